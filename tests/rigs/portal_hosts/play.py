"""Plays scripts of portals on either host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.rigs.portal_hosts.endpoint import EndpointPlayer, EndpointProcess, SimulatedEndpoint
from tests.rigs.portal_hosts.peer import PeerPlayer, PeerProcess, SimulatedPeer
from tests.rigs.portal_hosts.script import Player

PROCESS, SIMULATED = 0, 1
_HOSTS: Final[dict[str, tuple[type[Any], type[Any], Callable[[Any], Player]]]] = {
    "endpoint": (EndpointProcess, SimulatedEndpoint, EndpointPlayer),
    "peer": (PeerProcess, SimulatedPeer, PeerPlayer),
}
"""By kind of portal, which is the first word of a script's name."""


def written_anew(script: Path, which: int = PROCESS) -> str:
    """Play a script; its text with what comes of it now."""
    *hosts, player = _HOSTS[script.name.partition("_")[0]]
    with TemporaryDirectory() as folder:
        host = hosts[which](Path(folder))
        try:
            return "".join(f"{line}\n" for line in player(host).play(script))
        finally:
            host.close()

"""Faults of a simulation: what happens when. One to a line, as `AT ACTION NAME`, where AT is in seconds.

    cut LINK         its connection breaks and cannot be made: both ends are told
    silence LINK     nothing gets through, and nobody is told
    mend LINK        it works again
    kill DRO         all its processes die
    start DRO        it starts anew
    restart PORTAL   its process dies and is started by the parent
    routes DRO       the same for its route manager
    cost PORTAL N    it costs N from then on
    deafen TRD       its resolver daemons and SRSes fall silent: nobody hears of anything new
    hear TRD         they answer again, and everybody tells everything anew

LINK is `DRO-DRO`, or either of its portals; PORTAL is `DRO/PORTAL`; TRD is a domain id.
Empty lines and what follows `#` are comments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dro.clock import NS_PER_S
from dro.errors import ConfigError
from supervisor.tools.simulate.network import SimNetwork

LATEST_S: Final = 1_000_000
_WORD: Final = re.compile(r"\S+")


def _cost(net: SimNetwork, name: str, cost: str) -> None:
    dro, portal = net.portal(name)
    dro.set_cost(portal, int(cost))


def _restart_portal(net: SimNetwork, name: str) -> None:
    dro, portal = net.portal(name)
    if dro.is_up:
        dro.restart_portal(portal)


def _start(net: SimNetwork, name: str) -> None:
    net.dro(name)
    net.start([name])


ACTIONS: Final[Mapping[str, tuple[Callable[..., object], Callable[[SimNetwork, str], object]]]] = {
    "cut": (lambda net, name: net.wire(name).cut(is_silent=False), SimNetwork.wire),
    "silence": (lambda net, name: net.wire(name).cut(is_silent=True), SimNetwork.wire),
    "mend": (lambda net, name: net.wire(name).mend(), SimNetwork.wire),
    "kill": (lambda net, name: net.dro(name).kill(), SimNetwork.dro),
    "start": (_start, SimNetwork.dro),
    "restart": (_restart_portal, SimNetwork.portal),
    "routes": (lambda net, name: net.dro(name).restart_routes() if net.dro(name).is_up else None, SimNetwork.dro),
    "cost": (_cost, SimNetwork.portal),
    "deafen": (lambda net, name: net.trd(name).set_unresolved(is_unresolved=True), SimNetwork.trd),
    "hear": (lambda net, name: net.trd(name).set_unresolved(is_unresolved=False), SimNetwork.trd),
}
"""What each does, and how the name is looked up."""


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """`where`: of the script, for errors."""

    at_ns: int
    action: str
    arguments: tuple[str, ...]
    where: str = ""
    line: int = 0

    @property
    def text(self) -> str:
        return " ".join((self.action, *self.arguments))

    def find(self, net: SimNetwork) -> None:
        """Look for what it names. Raises: ConfigError when it is not there."""
        try:
            ACTIONS[self.action][1](net, self.arguments[0])
        except ConfigError as e:
            raise ConfigError(e.what, file=self.where, line=self.line, remedy=e.remedy) from e

    def apply(self, net: SimNetwork) -> None:
        ACTIONS[self.action][0](net, *self.arguments)


def read_script(path: str) -> list[ScriptedFault]:
    """Read faults in the order of their times. Raises: ConfigError with file and line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot be read: {getattr(e, 'strerror', '') or e}", file=path, remedy="check it") from e
    faults = [
        _read(words, path, number)
        for number, line in enumerate(lines, 1)
        if (words := _WORD.findall(line.partition("#")[0]))
    ]
    return sorted(faults, key=lambda fault: fault.at_ns)


def _read(words: list[str], path: str, line: int) -> ScriptedFault:
    def error(what: str) -> ConfigError:
        actions = ", ".join(ACTIONS)
        return ConfigError(what, file=path, line=line, remedy=f"write AT ACTION NAME; actions are {actions}")

    try:
        at_s = float(words[0])
    except ValueError as e:
        raise error(f"{words[0][:40]!r} is no time in seconds") from e
    if not 0 < at_s <= LATEST_S:
        raise error(f"{words[0][:40]} is not between 0 and {LATEST_S} s")
    if len(words) < 2 or words[1] not in ACTIONS:
        raise error(f"{words[1][:40]!r} is no action" if len(words) > 1 else "there is no action")
    action, arguments = words[1], tuple(words[2:])
    wanted = 2 if action == "cost" else 1
    if len(arguments) != wanted:
        raise error(f"{action} has {len(arguments)} arguments, not {wanted}")
    if action == "cost" and not (arguments[1].isascii() and arguments[1].isdigit() and 0 < int(arguments[1]) < 1 << 31):
        raise error(f"{arguments[1][:40]!r} is no cost")
    return ScriptedFault(int(at_s * NS_PER_S), action, arguments, path, line)

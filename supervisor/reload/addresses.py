"""Addresses of this host that change while the configuration names a network, a device or a host.

A portal has the address that its interfaces stood for when the file was read. When this host does not have it any more,
the file is read again, and the portals concerned are restarted with what it means now; but only if nothing else of it
has changed, as that is for an operator to take over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from dro.clock import s
from dro.config.change.element_difference import Change
from dro.config.dro_xml.model import DroConfig
from dro.config.um.interfaces import SYSTEM, is_of_device
from dro.config.um.options import option_table
from dro.config.um.rules import Kind
from dro.loop import Loop
from dro.timers import Timer

WAIT_NS: Final = s(1)
"""An address that is there again by then concerns nobody here."""


class AddressChanges:
    """Calls `on_changed` when an address that the configuration uses is gone."""

    def __init__(self, loop: Loop, config: Callable[[], DroConfig], on_changed: Callable[[], object]) -> None:
        self._loop = loop
        self._config = config
        self._on_changed = on_changed
        self._timer: Timer | None = None

    def look_later(self) -> None:
        """Addresses of the host have changed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(WAIT_NS, self._look)

    def _look(self) -> None:
        self._timer = None
        there = {interface.address for interface in SYSTEM.interfaces()}
        if not there.issuperset(_used(self._config())):
            self._on_changed()


def _used(config: DroConfig) -> Iterator[str]:
    """Yield the local addresses of all portals."""
    for portal in config.all_portals:
        for side in (portal.sending.context(), portal.receiving.context()):
            for key, value in side.explicit.items():
                if option_table()[key].rule.kind is Kind.INTERFACE and is_of_device(str(value)):
                    yield str(value)
    for peer in config.peers:
        if is_of_device(peer.tcp.interface):
            yield peer.tcp.interface


def is_of_interfaces(change: Change) -> bool:
    """Whether that change is from one local address to another."""
    return change.path.endswith("interface") and is_of_device(change.new or "")

"""Input and output of lint rules: findings, one portal's options by side, the machine.

No policy here; the rules are in the modules beside this one, their table in `rules.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from dro.config.reading.reader import Node
from dro.config.um.interfaces import SYSTEM, Interface, Lookup
from dro.config.um.options import OptionKey, UmOptions, find_option, place_of
from dro.errors import ConfigError

CTX: Final = "context"
SRC: Final = "source"
RCV: Final = "receiver"
WRCV: Final = "wildcard_receiver"
C = TypeVar("C", EndpointConfig, PeerConfig)
_SHARED_MEMORY: Final = "/dev/shm"
_EPHEMERAL: Final = "/proc/sys/net/ipv4/ip_local_port_range"


class Severity(Enum):
    """A warning is something that will go wrong, a hint something that may."""

    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was set; `line` 0: a variable of the environment, or nothing better is known."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Finding:
    """One relation that does not hold. The text reads like that of a ConfigError, with the reason in between."""

    severity: Severity
    place: Place
    subject: str  # the element or option to look at
    what: str
    why: str  # what comes of it, one clause
    remedy: str
    rule: str = ""
    portal: str = ""

    def __str__(self) -> str:
        portal = f"portal {self.portal}: " if self.portal else ""
        return f"{self.place}: {self.severity.value}: {portal}{self.subject}: {self.what}: {self.why}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Machine:
    """What the rules want to know of the machine; what is unknown is empty or 0."""

    interfaces: tuple[Interface, ...] = ()
    shm_bytes: int = 0  # size of the shared memory file system
    ephemeral_ports: tuple[int, int] = (0, 0)

    @classmethod
    def of_system(cls, lookup: Lookup = SYSTEM) -> Machine:
        interfaces: tuple[Interface, ...] = ()
        size, low, high = 0, 0, 0
        with contextlib.suppress(OSError):
            interfaces = lookup.interfaces()
        with contextlib.suppress(OSError):
            about = os.statvfs(_SHARED_MEMORY)
            size = about.f_blocks * about.f_frsize
        with contextlib.suppress(OSError, ValueError):
            low, high = map(int, Path(_EPHEMERAL).read_text().split())
        return cls(interfaces, size, (low, high))

    def device_of(self, address: str) -> str:
        """The device that has this address, or stands for the loopback network; empty when there is none."""
        for interface in self.interfaces:
            if interface.address == address:
                return interface.name
        loopback = (i.name for i in self.interfaces if i.is_loopback)
        return next(loopback, "lo") if address.startswith("127.") else ""


@dataclass(frozen=True, slots=True)
class SideOptions:
    """UM options of one side of a portal, and where findings about them belong when nobody set them."""

    um: UmOptions
    portal: Place

    def number(self, scope: str, name: str) -> int:
        return self.um.get_int(scope, name)

    def ms(self, scope: str, name: str) -> int:
        """A duration in milliseconds, whatever the unit of the option is."""
        return self.um.get_ns(scope, name) // 1_000_000

    def differs(self, *keys: OptionKey) -> bool:
        """Whether one of these has another value than the default. The defaults are never found fault with."""
        return any(self.um.value(*key) != _default(key) for key in keys)

    def place(self, *keys: OptionKey) -> Place:
        """Find where the last of these that has another value than its default was set."""
        places = [self.um.origin(key) for key in keys if self.differs(key)]
        origin = next((origin for origin in reversed(places) if origin), "")
        return Place(*place_of(origin)) if origin else self.portal


def _default(key: OptionKey) -> object:
    option = find_option(*key)
    assert option is not None
    return option.default


@dataclass(frozen=True, slots=True)
class PortalView(Generic[C]):
    """A portal as the rules see it."""

    config: C
    node: Node | None

    @property
    def place(self) -> Place:
        return Place(self.config.file, self.config.line)

    def element(self, *path: str) -> Place:
        """Find where an element of this portal stands, or else the portal."""
        return element_place(self.node, path, self.place)


class PeerView(PortalView[PeerConfig]):
    pass


@dataclass(frozen=True, slots=True)
class EndpointView(PortalView[EndpointConfig]):
    """`sending` is what proxy sources get, `receiving` what proxy receivers get."""

    sending: SideOptions
    receiving: SideOptions

    def has(self, name: str) -> bool:
        """Whether the file has this element of the portal."""
        return self.node is not None and any(one.is_present for one in self.node.find(name))


@dataclass(frozen=True, slots=True)
class View:
    """One configuration and the machine that it is looked at on."""

    config: DroConfig
    endpoints: tuple[EndpointView, ...]
    peers: tuple[PeerView, ...]
    machine: Machine

    @property
    def portals(self) -> tuple[PortalView[Any], ...]:
        return *self.endpoints, *self.peers

    def element(self, *path: str) -> Place:
        """Find where an element of the daemon stands, or else the file."""
        return element_place(self.config.tree, ("daemon", *path), Place(self.config.file, 1))


def element_place(node: Node | None, path: Iterable[str], otherwise: Place) -> Place:
    """Find where the first present element at a path stands."""
    found = node.find(*path) if node is not None else []
    return next((Place(one.file, one.line) for one in found if one.is_present), otherwise)


def view_of(config: DroConfig, machine: Machine) -> View:
    """Portals whose contexts are not permitted have been reported by the reader and are left out."""
    nodes: dict[tuple[str, int], Node] = {}
    if config.tree is not None:
        for kind in ("endpoint", "peer"):
            for node in config.tree.find("portals", kind):
                nodes[node.file, node.line] = node
    endpoints = []
    for endpoint in config.portals:
        place = Place(endpoint.file, endpoint.line)
        with contextlib.suppress(ConfigError):
            sending, receiving = endpoint.sending.context(), endpoint.receiving.context()
            at = nodes.get((endpoint.file, endpoint.line))
            endpoints.append(EndpointView(endpoint, at, SideOptions(sending, place), SideOptions(receiving, place)))
    peers = tuple(PeerView(peer, nodes.get((peer.file, peer.line))) for peer in config.peers)
    return View(config, tuple(endpoints), peers, machine)


warning = partial(Finding, Severity.WARNING)
hint = partial(Finding, Severity.HINT)


def seconds(ms: float) -> str:
    """A duration for people: `250 ms`, `1.5 s`."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.3g} s"


def rate(bps: float) -> str:
    """A bit rate for people."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bps >= size:
            return f"{bps / size:.4g} {unit}"
    return f"{bps:.0f} bit/s"

"""A host with known interfaces and host names, for tests of interface and address options."""

from __future__ import annotations

from dataclasses import dataclass, field

from dro.config.um.interfaces import Interface

LOOPBACK = Interface("lo", "127.0.0.1", 8, is_loopback=True, is_multicast=False)
LAN = Interface("eth0", "192.0.2.10", 24)
SECOND_ON_LAN = Interface("eth0", "192.0.2.77", 24)
WAN = Interface("eth1", "198.51.100.5", 30)
DOWN = Interface("eth2", "203.0.113.1", 24, is_up=False)


@dataclass(frozen=True)
class FakeLookup:
    """Answers from its fields."""

    table: tuple[Interface, ...] = (LOOPBACK, LAN, SECOND_ON_LAN, WAN, DOWN)
    hosts: dict[str, str] = field(
        default_factory=lambda: {"east": "192.0.2.10", "grp": "239.1.2.3", "net": "198.51.100.6"}
    )

    def interfaces(self) -> tuple[Interface, ...]:
        return self.table

    def host(self, name: str) -> str:
        if name not in self.hosts:
            raise OSError(f"no host {name}")
        return self.hosts[name]

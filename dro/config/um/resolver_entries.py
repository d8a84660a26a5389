"""Entries of `resolver_unicast_daemon`: where a daemon is, and what a context sends to it from.

Source: UM configuration rules, `[Iface[:SrcPort]->]IP:Port`. `dro.config.um.rules` has checked them and written them in
canonical form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResolverEntry:
    """One daemon. `interface`: empty as the other options say; `source_port` 0 likewise."""

    address: str
    port: int
    interface: str = ""
    source_port: int = 0

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def resolver_entries(texts: Iterable[str]) -> tuple[ResolverEntry, ...]:
    """Read entries in canonical form; of several with one address and port the first counts."""
    found: dict[str, ResolverEntry] = {}
    for text in texts:
        local, _, remote = text.rpartition("->")
        interface, _, source_port = local.partition(":")
        address, _, port = remote.partition(":")
        found.setdefault(remote, ResolverEntry(address, int(port), interface, int(source_port or 0)))
    return tuple(found.values())

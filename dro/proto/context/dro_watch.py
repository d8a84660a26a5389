"""Which DROs of a TRD were heard, and when: distinguishes proxy sources of a dead DRO from idle ones.

State: DRO contexts by source id and DRO hosts by address, both bounded. Called by the context for every TR packet of a
DRO. Source: DRO forwarding notes, 17.3 and 22. Guess: see `BoundSources.replace_dead`, which decides with it.
"""

from __future__ import annotations

from typing import Final

from dro.clock import s
from dro.state import StateLayout

SILENT_NS: Final = s(11)
"""A session that says nothing for longer than its longest session message interval (10 s by default) is silent."""
REMEMBERED_MAX: Final = 1024


class DroWatch:
    """Times are ns of the caller's clock; the least recently heard are forgotten first."""

    __slots__ = ("_contexts", "_hosts")

    def __init__(self) -> None:
        self._contexts: dict[bytes, tuple[int, int]] = {}  # first and last heard
        self._hosts: dict[int, int] = {}  # last heard

    def on_packet(self, host: int, source_id: bytes | None, now_ns: int) -> None:
        """A DRO said something on the TR channel. `source_id` None: it says nothing of a source."""
        self._hosts.pop(host, None)
        self._hosts[host] = now_ns
        if len(self._hosts) > REMEMBERED_MAX:
            del self._hosts[next(iter(self._hosts))]
        if source_id is not None:
            self._contexts[source_id] = (self._contexts.pop(source_id, (now_ns, now_ns))[0], now_ns)
            if len(self._contexts) > REMEMBERED_MAX:
                del self._contexts[next(iter(self._contexts))]

    def has_succeeded(self, source_id: bytes | None, old: bytes | None) -> bool:
        """Say whether the DRO context `source_id` has appeared since `old` was last heard."""
        if source_id is None or old is None:
            return False
        return self._contexts.get(source_id, (0, 0))[0] > self._contexts.get(old, (0, 0))[1]

    def is_host_silent(self, host: int, now_ns: int) -> bool:
        return now_ns - self._hosts.get(host, 0) > SILENT_NS


StateLayout(DroWatch, 1, _contexts=dict[bytes, tuple[int, int]], _hosts=dict[int, int])

"""The domain ids that the DROs of a TRD tell, by their addresses.

A TRD gets another id when each of its DROs has been given it, which happens while applications run. Guess: an id is
gone when each DRO that told it has told another one since, and not that one for `CHANGE_NS`; or was silent for
`FORGOTTEN_NS`, three times the longest interval in which a DRO repeats itself. So two DROs that differ, which is a
fault, move nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dro.clock import s

CHANGE_NS: Final = s(2)
FORGOTTEN_NS: Final = s(180)
MAX_TOLD: Final = 64
"""Pairs of address and id that are remembered; the one unheard for longest is forgotten first."""


class ToldDomains:
    """Keeps when each DRO told which domain id last."""

    def __init__(self) -> None:
        self.latest = 0
        """The id that was told last."""
        self._heard_ns: OrderedDict[tuple[int, int], int] = OrderedDict()

    def hear(self, ip: int, domain_id: int, now_ns: int) -> None:
        """Take what the DRO at that address tells."""
        self.latest = domain_id
        self._heard_ns[ip, domain_id] = now_ns
        self._heard_ns.move_to_end((ip, domain_id))
        if len(self._heard_ns) > MAX_TOLD:
            self._heard_ns.popitem(last=False)

    def is_gone(self, domain_id: int, now_ns: int) -> bool:
        """Whether no DRO has this id any more."""
        latest_ns: dict[int, int] = {}
        for (ip, told), at_ns in self._heard_ns.items():
            if told != domain_id:
                latest_ns[ip] = max(at_ns, latest_ns.get(ip, at_ns))
        return all(
            now_ns - at_ns > (CHANGE_NS if at_ns < latest_ns.get(ip, at_ns) else FORGOTTEN_NS)
            for (ip, told), at_ns in self._heard_ns.items()
            if told == domain_id
        )

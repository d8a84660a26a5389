"""Decides when which daemon statistics are due.

A group of a portal has an interval for each portal, others have one. What the configuration says holds until a control
request changes it; that lasts until the daemon stops. Source: DRO guide, 7.3.4, 7.3.5, 8.2 and 8.3; daemon statistics
notes, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dro.clock import s
from dro.config.dro_xml.model import PublishingConfig

PORTAL_CONFIG, PORTAL_STATS = "portal-config", "portal-stats"
GATEWAY_CONFIG, TOPOLOGY, MALLOC_INFO = "gateway-config", "route-manager-topology", "malloc-info"
WORDS: Final = {
    "gcfg": GATEWAY_CONFIG, "pcfg": PORTAL_CONFIG, "ri": TOPOLOGY, "pstat": PORTAL_STATS, "mallinfo": MALLOC_INFO,
}  # fmt: skip
"""Groups by the words of control requests, in the order in which a snapshot of all has them."""
OF_PORTALS: Final = (PORTAL_CONFIG, PORTAL_STATS)
CONFIGS: Final = (GATEWAY_CONFIG, PORTAL_CONFIG)
"""Sent whether they have changed or not."""


@dataclass(frozen=True, slots=True)
class DueGroup:
    """A group to be sent, of a portal if it has one for each. `is_forced`: also if nothing has changed."""

    group: str
    portal: str = ""
    is_forced: bool = False


class IntervalsCore:
    """Told the time, opens nothing."""

    def __init__(self) -> None:
        self._configured: dict[DueGroup, int] = {}  # s
        self._ordered: dict[DueGroup, int] = {}  # by requests, instead of these
        self._due_ns: dict[DueGroup, int] = {}

    def configure(self, daemon: PublishingConfig, portals: Mapping[str, PublishingConfig], now_ns: int) -> None:
        """Take over what the configuration says; what goes on as before keeps its time."""
        wanted = {DueGroup(group): daemon.interval_s(group) or 0 for group in WORDS.values() if group not in OF_PORTALS}
        for name, own in portals.items():
            for group in OF_PORTALS:
                of_portal, of_daemon = own.interval_s(group), daemon.interval_s(group)
                wanted[DueGroup(group, name)] = of_daemon or 0 if of_portal is None else of_portal
        for gone in self._configured.keys() - wanted.keys():
            self._due_ns.pop(gone, None)
            self._ordered.pop(gone, None)
        before, self._configured = self._configured, wanted
        for due, seconds in wanted.items():
            if due not in self._ordered and before.get(due) != seconds:
                self._set(due, seconds, now_ns)

    @property
    def portals(self) -> set[str]:
        """Names of the portals that are configured."""
        return {due.portal for due in self._configured if due.portal}

    def order(self, group: str, portal: str, seconds: int, now_ns: int) -> None:
        """Change an interval by request, from now on; an empty name is all portals."""
        for due in self._of(group, portal):
            self._ordered[due] = seconds
            self._set(due, seconds, now_ns)

    def ordered(self) -> list[tuple[str, str, int]]:
        """List what requests have changed, for `restore` of another process."""
        return [(due.group, due.portal, seconds) for due, seconds in self._ordered.items()]

    def restore(self, ordered: Iterable[tuple[str, str, int]], now_ns: int) -> None:
        """Take over what requests had changed; what is not configured any more is left out."""
        for group, portal, seconds in ordered:
            if (due := DueGroup(group, portal)) in self._configured:
                self._ordered[due] = seconds
                self._set(due, seconds, now_ns)

    def snapshot(self, group: str, portal: str) -> list[DueGroup]:
        """List what a snapshot of a group has; an empty group is all of them."""
        groups = [group] if group else list(WORDS.values())
        return [DueGroup(due.group, due.portal, is_forced=True) for one in groups for due in self._of(one, portal)]

    def take_due(self, now_ns: int) -> list[DueGroup]:
        """Return what has to be sent now, each once however late it is."""
        found = [due for due in self._configured if self._due_ns.get(due, now_ns + 1) <= now_ns]
        for due in found:
            self._due_ns[due] = now_ns + s(self._interval_s(due))
        return [DueGroup(due.group, due.portal, is_forced=due.group in CONFIGS) for due in found]

    def next_deadline(self) -> int | None:
        return min(self._due_ns.values(), default=None)

    def _of(self, group: str, portal: str) -> Iterable[DueGroup]:
        return [due for due in self._configured if due.group == group and portal in ("", due.portal)]

    def _interval_s(self, due: DueGroup) -> int:
        return self._ordered.get(due, self._configured[due])

    def _set(self, due: DueGroup, seconds: int, now_ns: int) -> None:
        if seconds:
            self._due_ns[due] = now_ns + s(seconds)
        else:
            self._due_ns.pop(due, None)

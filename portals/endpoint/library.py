"""Shows what the UM library counts in an endpoint portal: contexts, their transport sessions, the loop, row by row.

Topic resolution is one for both contexts, and is shown at the receiving one. In place of an event queue there is the
loop, which calls what is due. Sessions are shown in turn, so that a portal with very many spends no more on it than
one with some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from dro.bus.actor import WorkerContext
from dro.bus.counters import CounterPage
from dro.config.dro_xml.model import DroConfig, statistics_on
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.metrics.library import CONTEXT, EVENT_QUEUE, RECEIVER, SOURCE, library_figures
from dro.metrics.library_rows import LIBRARY, QUEUE, RECEIVING, SENDING, LibraryKey, LibraryRows
from dro.metrics.slots import Slot
from dro.transport.registry import KINDS
from dro.transport.session import ReceiverTransport, SenderTransport
from dro.um.fragment.context import FragmentContext

AT_ONCE: Final = 32
"""Sessions that are shown in one refresh."""
STEPS_AT_ONCE: Final = 4
"""Of counting topics, in one refresh; the rest runs in slices of the loop."""
_KIND_OF: Final = {kind.address: name for name, kind in KINDS.items()}
_DUPLICATES: Final = (Slot.UNICAST_DATA_DUP, Slot.UNICAST_CONTROL_DUP)
_NO_STREAM: Final = (Slot.UNICAST_DATA_NO_STREAM, Slot.UNICAST_CONTROL_NO_STREAM)
_UNKNOWN: Final = {"lbtrm": "lbtrm_unknown_msgs_rcved", "lbtru": "lbtru_unknown_msgs_rcved"}
"""By transport: datagrams of sessions that nobody has joined."""
Session = tuple[str, str, bool, SenderTransport | ReceiverTransport]
"""Kind, part, whether it is one of multicast immediate messages, and itself."""


class LibraryStatistics:
    """Writes the rows of one portal."""

    def __init__(
        self,
        rows: LibraryRows,
        page: CounterPage,
        loop: Loop,
        receiving: FragmentContext,
        sending: FragmentContext,
        tell: Callable[[LogEvent, Mapping[str, object]], object],
    ) -> None:
        """`tell`: the limited log of the portal."""
        self._rows, self._page, self._loop, self._tell = rows, page, loop, tell
        self._contexts = {RECEIVING: receiving, SENDING: sending}
        self._turn: deque[Session] = deque()
        self._seen: set[LibraryKey] = set()  # in this turn
        self._shown: dict[LibraryKey, SenderTransport | ReceiverTransport] = {}
        self._not_shown = 0
        self._topics = 0, 0  # that are wanted, and of them without a source
        self._is_counting = False
        self._is_ending = False

    def refresh(self) -> None:
        """Show the contexts, the loop and the next sessions; with the last of a turn, those that ended are freed."""
        if not self._is_counting:
            self._is_counting = True
            steps = self._count_topics()
            for _ in islice(steps, STEPS_AT_ONCE):
                pass
            if self._is_counting:
                self._loop.run_in_slices(steps)
        self._show_contexts()
        if not self._turn:
            self._turn.extend(self._sessions())
            self._seen.clear()
        for _ in range(min(AT_ONCE, len(self._turn))):
            self._show(*self._turn.popleft())
        if not self._turn and not self._is_ending:
            for key in self._shown.keys() - self._seen:
                del self._shown[key]
                self._rows.free(key)
        if (not_shown := self._rows.not_shown) > self._not_shown:
            self._not_shown = not_shown
            self._tell(LogEvent.LIBRARY_NOT_SHOWN, {"reason": f"no room for {not_shown} objects", "remedy": _ROOM})

    def _count_topics(self) -> Iterator[None]:
        """Count in slices: a portal may have very many topics."""
        counted = self._topics
        for so_far in self._contexts[RECEIVING].count_topics():
            counted = so_far
            yield
        self._topics = counted
        self._is_counting = False

    def finish(self) -> None:
        """Show everything: nothing that follows changes much, and what ends from now on stays as it is."""
        self._show_all()
        self._is_ending = True

    def forget_former(self) -> None:
        """Take out the sessions that the former process had, and this one has not."""
        self._show_all()
        self._rows.forget_former()

    def _show_all(self) -> None:
        self._show_contexts()
        for session in self._sessions():
            self._show(*session)

    def _sessions(self) -> Iterator[Session]:
        for part, context in self._contexts.items():
            for sender in context.pools.sessions():
                yield SOURCE, part, context.immediate.is_own(sender.address), sender
            for receiver in context.joined.sessions():
                yield RECEIVER, part, False, receiver
            for receiver in context.immediate.heard():
                yield RECEIVER, part, True, receiver

    def _show(self, kind: str, part: str, is_mim: bool, session: SenderTransport | ReceiverTransport) -> None:
        transport = _KIND_OF.get(type(session.address), "")
        figures = library_figures().get((kind, transport))
        if figures is None:
            return
        told = session.statistics()
        key = LibraryKey(kind, part, transport, told.source)
        self._seen.add(key)
        if self._shown.setdefault(key, session) is not session:  # it ended, and another one has the same name
            self._rows.free(key)
            self._shown[key] = session
        counters = told.counters
        values = [getattr(counters if hasattr(counters, f.name) else told, f.name, 0) for f in figures]
        context = self._contexts[part]
        self._rows.show(key, values, instance=context.context_instance, domain_id=context.domain_id, is_mim=is_mim)

    def _show_contexts(self) -> None:
        for part, context in self._contexts.items():
            self._show_one(
                LibraryKey(CONTEXT, part), self._of_context(part, context), context.context_instance, context.domain_id
            )
        self._show_one(LibraryKey(EVENT_QUEUE, QUEUE), self._of_loop())

    def _show_one(self, key: LibraryKey, values: Mapping[str, int], instance: bytes = b"", domain_id: int = 0) -> None:
        figures = library_figures()[key.kind, ""]
        shown = [values.get(figure.name, figure.at_first) for figure in figures]
        self._rows.show(key, shown, instance=instance, domain_id=domain_id)

    def _of_context(self, part: str, context: FragmentContext) -> Mapping[str, int]:
        page = self._page
        counts = context.joined.counts() + context.immediate.counts()
        values = {
            "tr_src_topics": context.source_count,
            "fragments_lost": counts.lost,
            "fragments_unrecoverably_lost": counts.unrecoverable,
        }
        if part == SENDING:
            return values | {"send_would_block": page[Slot.SEND_BLOCKED_EPISODES]}
        stats, channel = context.stats, context.resolution.channel.stats
        malformed = stats.malformed
        version = malformed.get("packet.version", 0)
        kind = malformed.get("packet.type", 0) + malformed.get("packet.extended_type", 0)
        return values | {
            "tr_dgrams_sent": channel.tr_dgrams_sent,
            "tr_bytes_sent": channel.tr_bytes_sent,
            "tr_dgrams_rcved": channel.tr_dgrams_rcved,
            "tr_bytes_rcved": channel.tr_bytes_rcved,
            "tr_dgrams_send_failed": channel.tr_dgrams_send_failed,
            "tr_dgrams_dropped_ver": version,
            "tr_dgrams_dropped_type": kind,
            "tr_dgrams_dropped_malformed": stats.tr_dgrams_dropped_malformed - version - kind,
            "tr_rcv_topics": self._topics[0],
            "tr_rcv_unresolved_topics": self._topics[1],
            **{name: context.joined.kinds[kind].counts().unknown for kind, name in _UNKNOWN.items()},
            "uim_dup_msgs_rcved": sum([page[slot] for slot in _DUPLICATES]),
            "uim_msgs_no_stream_rcved": sum([page[slot] for slot in _NO_STREAM]),
        }

    def _of_loop(self) -> Mapping[str, int]:
        loop = self._loop
        readers, calls = loop.waiting()
        return {
            "io_events": readers,
            "io_events_tot": loop.io_events,
            "timer_events_tot": loop.timer_events,
            "callback_events": calls,
            "callback_events_tot": loop.queued_calls,
            "events": readers + calls,
            "events_tot": loop.io_events + loop.timer_events + loop.queued_calls,
        }


_ROOM: Final = "give shared memory more room, or let the portal have fewer transport sessions"


def open_rows(ctx: WorkerContext, config: DroConfig) -> LibraryRows | None:
    """Open the rows of a portal; None if nobody wants them, or there is no memory for them, which is logged."""
    if not statistics_on(config):
        return None
    try:
        return LibraryRows.open(ctx.identity.counters_path.parent / f"{LIBRARY}.{ctx.index}")
    except ResourceError as e:
        ctx.log.warning(LogEvent.LIBRARY_NOT_SHOWN, extra={"reason": e.what, "remedy": e.remedy})
        return None

"""Shows what the UM library counts in an endpoint portal: its two contexts and their transport sessions, row by row.

Topic resolution is one for both contexts, and is shown at the receiving one. Sessions are shown in turn, so that a
portal with very many spends no more on it than one with some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from dro.bus.actor import WorkerContext
from dro.bus.counters import CounterPage
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.metrics.library import CONTEXT, RECEIVER, SOURCE, library_figures
from dro.metrics.library_rows import LIBRARY, RECEIVING, SENDING, LibraryKey, LibraryRows
from dro.metrics.slots import Slot
from dro.transport.registry import KINDS
from dro.transport.session import ReceiverTransport, SenderTransport
from dro.um.fragment.context import FragmentContext

AT_ONCE: Final = 64
"""Sessions that are shown in one refresh."""
_NO_SAMPLE: Final = (1 << 64) - 1
_KIND_OF: Final = {kind.address: name for name, kind in KINDS.items()}
_DUPLICATES: Final = (Slot.UNICAST_DATA_DUP, Slot.UNICAST_CONTROL_DUP)
_NO_STREAM: Final = (Slot.UNICAST_DATA_NO_STREAM, Slot.UNICAST_CONTROL_NO_STREAM)
Session = tuple[str, str, SenderTransport | ReceiverTransport]


class LibraryStatistics:
    """Writes the rows of one portal."""

    def __init__(
        self, rows: LibraryRows, page: CounterPage, receiving: FragmentContext, sending: FragmentContext
    ) -> None:
        self._rows, self._page = rows, page
        self._contexts = {RECEIVING: receiving, SENDING: sending}
        self._turn: Iterator[Session] = iter(())
        self._seen: set[LibraryKey] = set()

    def refresh(self, *, is_last: bool = False) -> None:
        """Show the contexts and the next sessions, or with the last refresh all of them."""
        for part, context in self._contexts.items():
            instance = context.context_instance
            values = self._of_context(part, context)
            names = library_figures()[CONTEXT, ""]
            key = LibraryKey(CONTEXT, part)
            self._rows.show(key, [values.get(f.name, 0) for f in names], instance=instance, domain_id=context.domain_id)
        sessions = list(islice(self._turn, AT_ONCE))
        for session in self._sessions() if is_last else sessions:
            self._show(*session)
        if not is_last and len(sessions) < AT_ONCE:  # all were shown: those that were not have ended
            for key in self._rows.keys() - self._seen:
                if key.kind != CONTEXT:
                    self._rows.free(key)
            self._seen = set()
            self._turn = iter(list(self._sessions()))

    def forget_former(self) -> None:
        """Take out the sessions that the former process had, and this one has not."""
        self.refresh(is_last=True)
        self._rows.forget_former()

    def _sessions(self) -> Iterator[Session]:
        for part, context in self._contexts.items():
            for sender in context.pools.sessions():
                yield SOURCE, part, sender
            for receiver in context.joined.sessions():
                yield RECEIVER, part, receiver

    def _show(self, kind: str, part: str, session: SenderTransport | ReceiverTransport) -> None:
        transport = _KIND_OF.get(type(session.address), "")
        figures = library_figures().get((kind, transport))
        if figures is None:
            return
        told = session.statistics()
        more = {"txw_msgs": getattr(told, "txw_msgs", 0), "txw_bytes": getattr(told, "txw_bytes", 0)}
        values = [more[f.name] if f.name in more else getattr(told.counters, f.name, 0) for f in figures]
        context = self._contexts[part]
        key = LibraryKey(kind, part, transport, told.source)
        self._seen.add(key)
        self._rows.show(
            key, values, instance=context.context_instance, domain_id=context.domain_id,
            is_mim=context.immediate.is_own(session.address),
        )  # fmt: skip

    def _of_context(self, part: str, context: FragmentContext) -> Mapping[str, int]:
        page = self._page
        values = {
            "tr_src_topics": context.source_count,
            "fragments_unrecoverably_lost": context.joined.counts().unrecoverable,
            "rcv_cb_svc_time_min": _NO_SAMPLE,
        }
        if part == SENDING:
            return values | {"send_would_block": page[Slot.SEND_BLOCKED_EPISODES]}
        stats, channel = context.stats, context.resolution.channel.stats
        malformed = stats.malformed
        version = malformed.get("packet.version", 0)
        kind = malformed.get("packet.type", 0) + malformed.get("packet.extended_type", 0)
        unknown = {name: joined.counts().unknown for name, joined in context.joined.kinds.items()}
        return values | {
            "tr_dgrams_sent": channel.tr_dgrams_sent,
            "tr_bytes_sent": channel.tr_bytes_sent,
            "tr_dgrams_rcved": channel.tr_dgrams_rcved,
            "tr_bytes_rcved": channel.tr_bytes_rcved,
            "tr_dgrams_send_failed": channel.tr_dgrams_send_failed,
            "tr_dgrams_dropped_ver": version,
            "tr_dgrams_dropped_type": kind,
            "tr_dgrams_dropped_malformed": stats.tr_dgrams_dropped_malformed - version - kind,
            "tr_rcv_topics": context.topic_count,
            "tr_rcv_unresolved_topics": context.unresolved_topic_count,
            "lbtrm_unknown_msgs_rcved": unknown.get("lbtrm", 0),
            "uim_dup_msgs_rcved": sum([page[slot] for slot in _DUPLICATES]),
            "uim_msgs_no_stream_rcved": sum([page[slot] for slot in _NO_STREAM]),
        }


def open_rows(ctx: WorkerContext) -> LibraryRows | None:
    """Open the rows of a portal; None if there is no memory for them, which is logged."""
    try:
        return LibraryRows.open(ctx.identity.counters_path.parent / f"{LIBRARY}.{ctx.index}")
    except ResourceError as e:
        ctx.log.warning(LogEvent.LIBRARY_NOT_SHOWN, extra={"reason": e.what, "remedy": e.remedy})
        return None

"""Transport sessions without a network, for what stands on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dro.transport.session import (
    ReceiverSessionStatistics,
    ReceiverTransport,
    SessionCounts,
    SourceSessionStatistics,
)
from dro.wire.source_string import TcpAddress, TransportAddress, format_source


@dataclass
class FakeCounters:
    bytes_rcved: int = 0
    lbm_msgs_rcved: int = 0
    lbm_msgs_no_topic_rcved: int = 0


class FakeTransport(ReceiverTransport):
    """A joined session that hears nothing.

    `at`: the place that was reached; `whole_to`: nothing is missing of what came before it.
    """

    def __init__(self, address: TransportAddress, generation_ns: int = 0) -> None:
        super().__init__(address)
        self.generation_ns = generation_ns
        self.at: int | None = None
        self.whole_to = 0
        self.heard_ns = 0
        self.is_left = False

    @property
    def active_ns(self) -> int:
        return self.heard_ns

    def mark(self) -> int | None:
        return self.at

    def is_whole(self, mark: int | None) -> bool:
        return mark is None or self.whole_to >= mark

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def statistics(self) -> ReceiverSessionStatistics:
        return ReceiverSessionStatistics(format_source(self.address), FakeCounters())

    def leave(self) -> None:
        self.is_left = True


class FakeSender:
    """The parts of a `SenderTransport` that most tests have no use for."""

    address: TransportAddress = TcpAddress(0x7F000001, 14371, 1)
    transport_index = 7
    datagram_max_bytes = 8192
    packs_all = False
    is_read_on = False
    is_flushing = False

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        return True

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        raise NotImplementedError

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool) -> Callable[[int], bool]:
        return lambda _: True

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def statistics(self) -> SourceSessionStatistics:
        raise NotImplementedError

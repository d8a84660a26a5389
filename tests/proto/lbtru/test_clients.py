"""The receivers of an LBT-RU source by a script in ms: who is sent to, and repairs of each (T18 to T20, T25)."""

from __future__ import annotations

from dro.clock import ms
from dro.proto.lbtru.clients import (
    ClientAnswer,
    ClientConnected,
    ClientDisconnected,
    ClientEffect,
    ClientList,
    ClientRefused,
    SendReset,
    SendSyn,
)
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.retransmit import Chunk
from dro.proto.repair.source import LBTRU_SOURCE, SourceSession

A = ("192.0.2.1", 14360)
B = ("192.0.2.2", 14360)
Note = tuple[object, ...]


class ClientsBench:
    """A `ClientList` beside the session of its source, whose data every client gets."""

    def __init__(self, rx_bps: int = 0, most: int = 10) -> None:
        limiter = RateLimiter(0, ms(100), 0)
        self.source = SourceSession(LBTRU_SOURCE, limiter, RateLimiter(rx_bps, ms(100), 0), 0)
        self.clients = ClientList(self.source, ms(10_000), most)
        self.notes: list[Note] = []

    def tick(self, t: float) -> None:
        while (deadline := self.clients.next_deadline()) is not None and deadline <= ms(t):
            self._note(deadline // ms(1), self.clients.on_timer(deadline))

    def data(self, t: float, size: int = 100) -> list[tuple[str, int]]:
        """Send a datagram; who gets it."""
        self.tick(t)
        self.source.on_sent_run(1, size - 20, Chunk(bytes(size), 0, size, size), ms(t))
        return sorted(self.clients.addresses)

    def request(self, t: float, client: tuple[str, int] = A) -> None:
        self.tick(t)
        self._note(t, self.clients.on_request(client, ms(t)))

    def acknowledge(self, t: float, client: tuple[str, int] = A) -> None:
        self.tick(t)
        self._note(t, self.clients.on_acknowledgement(client, ms(t)))

    def nak(self, t: float, *sqns: int, client: tuple[str, int] = A) -> None:
        self.tick(t)
        self._note(t, self.clients.on_nak(client, sqns, ms(t)))

    def _note(self, t: float, effects: list[ClientEffect]) -> None:
        for effect in effects:
            match effect:
                case SendSyn(client=client, message=message):
                    self.notes.append((t, client, "syn", message.lead, message.trail))
                case SendReset(client=client):
                    self.notes.append((t, client, "rst"))
                case ClientConnected(client=client):
                    self.notes.append((t, client, "connect"))
                case ClientDisconnected(client=client):
                    self.notes.append((t, client, "disconnect"))
                case ClientRefused(client=client):
                    self.notes.append((t, client, "refused"))
                case ClientAnswer(client=client, effect=Retransmit(sqn=sqn)):
                    self.notes.append((t, client, "again", sqn))
                case ClientAnswer(client=client, effect=SendNcf(reason=reason, sqns=sqns)):
                    self.notes.append((t, client, f"ncf{reason}", *sqns))


def test_t25_a_client_is_sent_to_until_it_is_silent_for_the_timeout() -> None:
    bench = ClientsBench()
    bench.request(0)
    bench.request(100)
    for t in (0, 500, 1000):
        bench.acknowledge(max(t, 100))
    assert bench.data(10_999) == [A]
    bench.tick(11_000)
    assert bench.data(11_001) == []
    bench.acknowledge(11_500)
    none = 0xFFFFFFFF  # no datagram has been sent
    assert bench.notes == [
        (0, A, "connect"), (0, A, "syn", none, 0), (100, A, "syn", none, 0), (11_000, A, "disconnect"),
        (11_500, A, "rst"),
    ]  # fmt: skip


def test_a_nak_is_a_sign_of_life_and_of_a_stranger_it_is_answered_by_a_reset() -> None:
    bench = ClientsBench()
    bench.request(0)
    bench.acknowledge(0)
    bench.data(1)
    bench.nak(9000, 0)
    bench.nak(9001, 0, client=B)
    assert bench.data(18_999) == [A]
    assert bench.data(19_001) == []
    assert bench.notes[2:] == [(9000, A, "again", 0), (9001, B, "rst"), (19_000, A, "disconnect")]


def test_the_answer_to_a_request_says_where_the_stream_stands() -> None:
    bench = ClientsBench()
    bench.request(0)
    for t in range(5):
        bench.data(t + 1)
    bench.request(10, B)
    assert bench.notes[2:] == [(10, B, "connect"), (10, B, "syn", 4, 0)]


def test_t18_the_ignore_interval_is_of_each_client() -> None:
    bench = ClientsBench()
    bench.request(0)
    bench.request(0, B)
    for t in range(10):
        bench.data(t + 1)
    for t in (100, 150, 300, 600):
        bench.nak(t, 5)
    bench.nak(310, 5, client=B)
    assert bench.notes[4:] == [
        (100, A, "again", 5), (150, A, "ncf1", 5), (600, A, "again", 5), (310, B, "again", 5),
    ]  # fmt: skip
    stats = bench.source.stats
    assert (stats.naks_rcved, stats.naks_ignored, stats.rxs_sent) == (5, 2, 3)


def test_t19_what_has_left_the_window_is_refused_and_what_was_never_sent_is_ignored() -> None:
    bench = ClientsBench()
    bench.request(0)
    for t in range(61):
        bench.data(t + 1)
    bench.source._window.trail_index = 50
    bench.nak(100, 49, 50, 61)
    assert bench.notes[2:] == [(100, A, "again", 50), (100, A, "ncf0", 49)]


def test_t20_what_waits_for_the_limit_goes_to_who_asked_by_turns() -> None:
    bench = ClientsBench(rx_bps=500_000)  # 6250 bytes in 100 ms
    bench.request(0)
    bench.request(0, B)
    for t in range(6):
        bench.data(t + 1, size=3000)
    bench.nak(30, 4, 1, 2, 3)
    bench.nak(31, 1, client=B)
    bench.nak(50, 3)
    bench.tick(320)
    assert bench.notes[4:] == [
        (30, A, "again", 1), (30, A, "again", 2), (30, A, "ncf2", 3, 4), (31, B, "ncf2", 1),
        (100, A, "again", 3), (100, B, "again", 1), (200, A, "again", 4),
    ]  # fmt: skip
    assert bench.clients.waiting_count == 0


def test_a_client_that_goes_takes_what_waits_for_it_with_it() -> None:
    bench = ClientsBench(rx_bps=8)
    bench.request(0)
    bench.data(1, size=3000)
    bench.data(2, size=3000)
    bench.nak(3, 0, 1)
    assert bench.clients.waiting_count > 0
    bench.tick(20_000)
    assert bench.notes[-1] == (10_003, A, "disconnect")
    assert bench.clients.waiting_count == 0
    assert bench.clients.next_deadline() is None


def test_there_are_no_more_clients_than_may_be() -> None:
    bench = ClientsBench(most=1)
    bench.request(0)
    bench.request(1, B)
    bench.acknowledge(2, B)
    assert bench.notes[2:] == [(1, B, "refused"), (2, B, "rst")]
    bench.acknowledge(3, A)
    bench.request(10_003, B)
    assert bench.notes[4:6] == [(10_003, A, "disconnect"), (10_003, B, "connect")]


def test_one_address_has_no_more_clients_than_may_be() -> None:
    bench = ClientsBench()
    bench.clients.of_one = 2
    for port in (1, 2, 3):
        bench.request(0, (A[0], port))
    bench.request(0, B)
    assert [note[2] for note in bench.notes] == ["connect", "syn", "connect", "syn", "refused", "connect", "syn"]
    bench.acknowledge(10, (A[0], 1))
    bench.tick(9000)
    bench.request(9000, (A[0], 3))
    assert bench.notes[-2][1:] == ((A[0], 3), "connect"), "those that showed no life have gone"


def test_who_only_asks_is_sent_to_for_a_third_of_the_timeout() -> None:
    bench = ClientsBench()
    for t in (0, 1000, 3000):
        bench.request(t)
    assert bench.data(3332) == [A]
    assert bench.data(3334) == []
    assert bench.notes[-1] == (3333, A, "disconnect")


def test_a_timeout_of_0_is_none() -> None:
    bench = ClientsBench()
    bench.clients.timeout_ns = 0
    bench.request(0)
    bench.acknowledge(1)
    assert bench.data(10_000_000) == [A]
    assert bench.clients.next_deadline() is None


def test_session_messages_begin_with_the_first_client() -> None:
    bench = ClientsBench()
    assert bench.source.next_deadline() is None
    bench.request(500)
    assert bench.source.next_deadline() == ms(700)
    bench.request(600, B)
    assert bench.source.next_deadline() == ms(700)


def test_when_the_session_closes_nothing_waits_and_nobody_is_sent_to() -> None:
    bench = ClientsBench(rx_bps=8)
    bench.request(0)
    bench.request(0, B)
    bench.data(1, size=3000)
    bench.nak(3, 0)
    bench.clients.close()
    assert bench.clients.addresses == []
    assert bench.clients.next_deadline() is None

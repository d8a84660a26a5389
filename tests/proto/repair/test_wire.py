"""Source and receiver sessions joined by a lossy wire: whatever is lost on the way, everything arrives once."""

from __future__ import annotations

from collections import Counter

import pytest

from dro.clock import ms, s
from dro.proto.repair.loss import LBTRU_LOSS, LossConfig
from dro.proto.repair.source import LBTRU_SOURCE, SourceConfig
from tests.fakes.wire import Wire

RELIABLE_START = ms(5)


def send_all(wire: Wire, count: int, every_ns: int = ms(1), train: int = 1) -> None:
    for i in range(count // train):
        wire.send_at(RELIABLE_START + i * every_ns, train)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("loss", "reorder"), [(0.0, 0.0), (0.02, 0.05), (0.2, 0.1)])
def test_everything_arrives_once_in_spite_of_loss(seed: int, loss: float, reorder: float) -> None:
    wire = Wire(seed, loss, ms(1), reorder, receivers=2, rx_bps=5_000_000)
    send_all(wire, 3000)
    wire.run(s(60))
    for station in wire.stations:
        first = min(station.delivered)
        assert first < 10
        assert Counter(station.delivered) == Counter(range(first, 3000))
        assert station.unrecoverable == []
        assert station.session._loss.count == 0
        assert station.session.stats.lost >= (3000 - first) * loss / 2
        assert (station.session.stats.lost > 0) == (loss > 0)
    assert (wire.packets_lost > 0) == (loss > 0)


def test_a_steady_stream_without_loss_is_delivered_in_order_without_a_nak() -> None:
    wire = Wire(7)
    send_all(wire, 6400, train=64)
    wire.run(s(5))
    assert wire.stations[0].delivered == list(range(6400))
    assert wire.stations[0].naks == []


def test_sqns_wrap_at_2_to_the_32_under_loss() -> None:
    start = 0xFFFFFFFF - 1000
    wire = Wire(11, 0.1, ms(1), 0.1, source_config=SourceConfig(first_sqn=start), rx_bps=5_000_000)
    send_all(wire, 2000)
    wire.run(s(60))
    station = wire.stations[0]
    sent = [(start + i) & 0xFFFFFFFF for i in range(2000)]
    first = sent.index(station.delivered[0])
    assert first < 20
    assert Counter(station.delivered) == Counter(sent[first:])
    assert 0 in station.delivered
    assert station.unrecoverable == []
    assert wire.source.next_sqn == (start + 2000) & 0xFFFFFFFF


def test_a_lost_tail_is_found_by_session_messages() -> None:
    wire = Wire(3)
    send_all(wire, 100)
    wire.run(ms(150))
    wire.loss = 1.0  # the last ones and the first session messages are lost
    wire.send_at(ms(160), 5)
    wire.run(s(1))
    assert wire.stations[0].delivered == list(range(100))
    wire.loss = 0.0
    wire.run(s(10))
    assert sorted(wire.stations[0].delivered) == list(range(105))


def test_what_has_left_the_window_is_reported_and_nothing_else_is() -> None:
    """A window of 100 datagrams and an outage of 500: 400 are lost for good, each reported once."""
    wire = Wire(5, source_config=SourceConfig(window_size_bytes=400))
    send_all(wire, 100)
    wire.run(ms(200))
    wire.loss = 1.0
    wire.send_at(ms(210), 500)
    wire.run(ms(300))
    wire.loss = 0.0
    wire.send_at(ms(310), 1)
    wire.run(s(20))
    station = wire.stations[0]
    assert station.unrecoverable == list(range(100, 501))
    assert sorted(station.delivered) == [*range(100), *range(501, 601)]
    assert station.session.stats.unrecovered_txw == 401
    assert station.session.stats.lost == 500


def test_every_datagram_is_delivered_or_given_up_when_the_source_cannot_keep_up() -> None:
    wire = Wire(
        9,
        0.3,
        ms(2),
        0.2,
        loss_config=LossConfig(generation_ns=ms(1500)),
        source_config=SourceConfig(window_size_bytes=4 * 300, rx_queue_bytes=100),
        rx_bps=4_000,
    )
    send_all(wire, 2000)
    wire.run(s(100))
    station = wire.stations[0]
    stats = station.session.stats
    fates = Counter(station.delivered + station.unrecoverable)
    assert fates == Counter(range(min(station.delivered), 2000))
    assert station.unrecoverable
    assert stats.unrecovered_txw + stats.unrecovered_tmo == len(station.unrecoverable)
    assert station.ended_ns is None


def test_lbtru_options_ask_at_once() -> None:
    wire = Wire(2, 0.1, ms(1), loss_config=LBTRU_LOSS, source_config=LBTRU_SOURCE)
    send_all(wire, 500)
    wire.run(s(30))
    station = wire.stations[0]
    assert Counter(station.delivered) == Counter(range(min(station.delivered), 500))
    assert 0 < station.session.stats.nak_stm_min <= 3


def test_the_session_ends_when_the_source_falls_silent_for_the_activity_timeout() -> None:
    wire = Wire(1, source_config=SourceConfig(sm_max_ns=s(10)))
    send_all(wire, 10)
    wire.run(s(200))
    assert wire.stations[0].began_ns == RELIABLE_START + ms(1)
    assert wire.stations[0].ended_ns is None
    wire.source.close()
    last_ns = wire.now_ns
    wire.run(s(300))
    ended_ns = wire.stations[0].ended_ns
    assert ended_ns is not None
    assert last_ns + s(50) <= ended_ns <= last_ns + s(60) + ms(1)

"""The real capture against the cores: R's losses must be repaired, and R's NAKs must get UM's answers."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dro.clock import ms, s
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.loss import LossConfig, NakDue, SessionEvent, Unrecoverable
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.retransmit import Chunk
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import SourceConfig, SourceSession
from dro.proto.session_events import Began, Ended
from tests.builders.lbtrm_capture import Packet, packets

TOTAL = 5000
R_CONFIG = LossConfig(generation_ns=ms(4000), activity_timeout_ns=s(5))


@pytest.fixture(scope="module")
def capture() -> list[Packet]:
    return packets()


def losses(capture: list[Packet]) -> set[int]:
    """Positions in the capture of what R did not get.

    An original was lost exactly if a NAK names its sqn, a retransmission exactly if a later NAK names it again.
    """
    named = {sqn for packet in capture for sqn in packet.sqns if packet.kind == "nak"}
    last_nak = {sqn: i for i, packet in enumerate(capture) if packet.kind == "nak" for sqn in packet.sqns}
    lost = set()
    for i, packet in enumerate(capture):
        if (packet.kind == "data" and packet.sqn in named) or (packet.kind == "rx" and i < last_nak[packet.sqn]):
            lost.add(i)
    return lost


def test_the_loss_rule_gives_the_published_numbers(capture: list[Packet]) -> None:
    lost = losses(capture)
    assert Counter(capture[i].kind for i in lost) == {"data": 487, "rx": 54}


@pytest.mark.parametrize("seed", range(3))
def test_r_gets_everything_and_asks_in_time(capture: list[Packet], seed: int) -> None:
    lost = losses(capture)
    session = ReceiverSession(R_CONFIG, Random(seed).random, 0)
    delivered: list[int] = []
    events: list[SessionEvent] = []
    found: dict[int, int] = {}  # missing sqn -> when
    repaired: dict[int, int] = {}
    asked: dict[int, list[int]] = {}
    told: dict[int, int] = {}  # sqn -> time of the last NCF that named it
    high: int | None = None

    def collect() -> None:
        for event in session.take_events():
            events.append(event)
            if not isinstance(event, NakDue):
                continue
            assert list(event.sqns) == sorted(event.sqns)
            for sqn in event.sqns:
                at_ns = event.at_ns
                times = asked.setdefault(sqn, [])
                assert sqn not in repaired
                if sqn in told and (not times or told[sqn] > times[-1]):
                    assert at_ns == told[sqn] + ms(1000)
                elif not times:
                    assert ms(25) <= at_ns - found[sqn] <= ms(75)
                else:
                    assert ms(100) <= at_ns - times[-1] <= ms(300)
                times.append(at_ns)

    for i, packet in enumerate(capture):
        while (deadline := session.next_deadline()) is not None and deadline <= packet.at_ns:
            session.on_timer(deadline)
            collect()
        if i in lost:
            continue
        match packet.kind:
            case "data" | "rx":
                if packet.kind == "data":
                    if high is not None:
                        found.update(dict.fromkeys(range(high + 1, packet.sqn), packet.at_ns))
                    high = packet.sqn
                if session.on_data(packet.sqn, packet.trail, packet.kind == "rx", packet.at_ns):
                    delivered.append(packet.sqn)
                    if packet.sqn in found:
                        repaired[packet.sqn] = packet.at_ns
            case "sm":
                session.on_session_message(packet.sqn, packet.trail, packet.at_ns)
            case "ncf":
                session.on_ncf(packet.sqns, packet.reason, packet.trail, packet.at_ns)
                told.update(dict.fromkeys(packet.sqns, packet.at_ns))
        collect()
    while (deadline := session.next_deadline()) is not None:
        session.on_timer(deadline)
        collect()

    assert sorted(delivered) == list(range(TOTAL))
    assert len(found) == len(repaired) == session.stats.lost == 487
    assert not any(isinstance(event, Unrecoverable) for event in events)
    assert events[0] == Began(capture[0].at_ns)
    last_ns = max(p.at_ns for i, p in enumerate(capture) if p.kind in ("data", "rx", "sm") and i not in lost)
    assert events[-1] == Ended(last_ns + s(5))
    times_ms = [(repaired[sqn] - found[sqn]) / 1e6 for sqn in found]
    assert 21 <= min(times_ms) < 22
    assert 3228 <= max(times_ms) < 3229
    assert session.stats.nak_stm_max == 3228
    assert session.stats.out_of_order == 0
    assert session.stats.duplicate_data == 0


def test_w_which_loses_nothing_drops_every_retransmission(capture: list[Packet]) -> None:
    session = ReceiverSession(LossConfig(), Random(1).random, 0)
    delivered = [
        packet.sqn
        for packet in capture
        if packet.kind in ("data", "rx")
        and session.on_data(packet.sqn, packet.trail, packet.kind == "rx", packet.at_ns)
    ]
    assert delivered == list(range(TOTAL))
    assert session.stats.duplicate_data == 541
    assert session.stats.lost == 0


def test_the_source_answers_the_naks_as_um_did(capture: list[Packet]) -> None:
    """Every answer of the capture, to the sqn: 541 retransmissions, 54 NCF entries, three entries without answer."""
    config = SourceConfig(sm_max_ns=s(2))
    source = SourceSession(config, RateLimiter(10_000_000, ms(10), 0), RateLimiter(5_000_000, ms(10), 0), 0)
    retransmitted: list[int] = []
    confirmed: list[tuple[int, tuple[int, ...]]] = []
    silent: list[tuple[int, int]] = []
    session_messages: list[tuple[int, int, int]] = []
    entries = 0
    for packet in capture:
        while (deadline := source.next_deadline()) is not None and deadline <= packet.at_ns:
            for effect in source.on_timer(deadline):
                assert isinstance(effect, SendSm)
                session_messages.append((effect.sm_sqn, effect.lead, effect.trail))
        if packet.kind == "data":
            assert packet.sqn == source.next_sqn
            assert packet.trail == source.trail
            source.on_sent_run(1, 25, Chunk(packet.payload, 0, len(packet.payload), len(packet.payload)), packet.at_ns)
        elif packet.kind == "nak":
            entries += len(packet.sqns)
            unanswered = set(packet.sqns)
            for effect in source.on_nak(packet.sqns, packet.at_ns):
                match effect:
                    case Retransmit(sqn=sqn, buffer=buffer, offset=offset, length=length):
                        assert int.from_bytes(buffer[offset + 8 : offset + 12]) == sqn
                        assert length == 57
                        retransmitted.append(sqn)
                        unanswered.discard(sqn)
                    case SendNcf(reason=reason, sqns=sqns):
                        confirmed.append((reason, sqns))
                        unanswered -= set(sqns)
            silent += [(sqn, packet.at_ns // 1_000_000) for sqn in sorted(unanswered)]
    assert entries == 598
    assert retransmitted == [packet.sqn for packet in capture if packet.kind == "rx"]
    assert len(retransmitted) == 541
    assert confirmed == [(packet.reason, packet.sqns) for packet in capture if packet.kind == "ncf"]
    assert sum(len(sqns) for _, sqns in confirmed) == 54
    assert {reason for reason, _ in confirmed} == {1}
    assert silent == [(401, 1918), (445, 2044), (1311, 3182)]
    assert session_messages == [(0, 4999, 0), (1, 4999, 0), (2, 4999, 0), (3, 4999, 0)]
    assert source.stats.naks_ignored == 57
    assert source.stats.msgs_sent == TOTAL
    assert source.txw_bytes == 125_000

"""Targets that are cores of transports: nothing is handed up twice, and with time no gap is open."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import pairwise
from typing import Final

from dro.clock import ms, s
from dro.errors import DecodeError
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.order import ARRIVAL, IN_ORDER, DeliveryController, LossBurst
from dro.proto.peerlink.datagram_session import (
    DatagramCounts,
    DatagramOptions,
    DatagramSession,
    DatagramState,
    SendPacket,
    SessionIds,
)
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit
from dro.proto.repair.loss import LossConfig, NakDue
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.retransmit import Chunk
from dro.proto.repair.source import SourceConfig, SourceSession
from dro.proto.stream.asks import AskLimits, RecoveryConfig
from dro.proto.stream.failover import FailoverConfig, FailoverStream
from dro.proto.stream.recovery import Recovery, RecoveryPhase
from dro.sqn import HALF, MASK
from dro.wire import lbtrm, lbtru
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import Frag as FragBlock
from dro.wire.lbmc.data_blocks import Tsni, UmeLjInfo
from dro.wire.lbmc.failover import HotFailover
from tests.fuzz.player import Player, core_target, scripts
from tests.fuzz.seeds import recorded, vectors
from tests.fuzz.target import Target

_LOSS: Final = LossConfig(max_gap=64, max_naks_per_packet=20, naks_per_round=30)


def _receiver(data: bytes) -> Hashable:
    """No datagram is handed up twice; all gaps are closed with time."""
    core = ReceiverSession(_LOSS, lambda: 0.5, 0)
    up: set[int] = set()
    events: set[str] = set()
    at = 1 << 40  # the sqn that is expected, without wrapping

    def drain(now_ns: int) -> None:
        for event in core.take_events():
            events.add(type(event).__name__)
            if isinstance(event, NakDue):
                assert 0 < len(event.sqns) <= _LOSS.max_naks_per_packet
                lbtrm.encode(lbtrm.Nak(1, 2, event.sqns, 0))
        assert core.missing <= _LOSS.max_gap

    def hear(packet: bytes, now_ns: int) -> Hashable:
        nonlocal at
        decoded = lbtrm.decode(packet)
        was = core.expected
        match decoded:
            case lbtrm.Data():
                is_again = bool(decoded.flags & lbtrm.FLAG_RETRANSMISSION)
                if core.on_data(decoded.sqn, decoded.trail, is_again, now_ns):
                    place = at if was is None else at + _ahead(decoded.sqn, was)
                    assert place not in up, "handed up twice"
                    up.add(place)
            case lbtrm.SessionMessage():
                core.on_session_message(decoded.lead, decoded.trail, now_ns)
            case lbtrm.Ncf():
                core.on_ncf(decoded.sqns, decoded.reason, decoded.trail, now_ns)
            case _:
                pass
        if was is None:
            at += isinstance(decoded, lbtrm.Data) and core.expected is not None
        elif core.expected is not None:
            at += (core.expected - was) & MASK  # never back
        return type(decoded).__name__

    signs = Player(core, drain).play(data, hear, s(90))
    assert not core.missing
    assert core.has_ended
    return tuple(sorted(events)), len(signs), min(len(up), 9)


def _ahead(sqn: int, than: int) -> int:
    distance = (sqn - than) & MASK
    return distance if distance < HALF else distance - MASK - 1


def _lbtrm_packets() -> list[bytes]:
    sent = [lbtrm.encode(lbtrm.Data(1, 2, sqn, 10, 0, 3, sqn & 7, b"x")) for sqn in (10, 11, 12, 14, 15, 20, 24, 90)]
    again = [lbtrm.encode(lbtrm.Data(1, 2, sqn, 10, lbtrm.FLAG_RETRANSMISSION, 3, 0, b"x")) for sqn in (13, 16, 17)]
    return [*vectors("transports", "lbtrm"), *recorded(14400)[:20], *sent, *again]


def _source(data: bytes) -> Hashable:
    """NAKs of strangers; what is sent again lies in the window and stays within the limit."""
    limits = RateLimiter(0, ms(10), 0), RateLimiter(80_000, ms(10), 0)
    core = SourceSession(SourceConfig(window_size_bytes=600, rx_queue_bytes=500), *limits, 0)
    buffer = b"".join([bytes((n,)) * 50 for n in range(40)])
    core.on_sent_run(40, 25, Chunk(buffer, 0, 50, 50), 0)
    kinds: set[str] = set()

    def take(effects: Iterable[object]) -> None:
        for effect in effects:
            kinds.add(type(effect).__name__)
            if isinstance(effect, Retransmit):
                assert effect.buffer[effect.offset : effect.offset + effect.length] == bytes((effect.sqn,)) * 50
        assert core.rctlr_rx_msgs <= 10

    class Timed:
        next_deadline = staticmethod(core.next_deadline)

        def on_timer(self, now_ns: int) -> None:
            take(core.on_timer(now_ns))

    def hear(packet: bytes, now_ns: int) -> Hashable:
        decoded = lbtrm.decode(packet)
        if not isinstance(decoded, lbtrm.Nak):
            raise DecodeError("source", "no NAK")
        take(core.on_nak(decoded.sqns, now_ns))
        return min(len(decoded.sqns), 20)

    signs = Player(Timed(), lambda _: None).play(data, hear, s(20))
    assert not core.rctlr_rx_msgs
    return tuple(sorted(kinds)), len(signs)


def _nak_packets() -> list[bytes]:
    asked = [(39,), (38, 37, 39), tuple(range(20, 40)), (0, 5, 39), tuple(range(40)) * 3, (40, MASK)]
    return [*(lbtrm.encode(lbtrm.Nak(1, 2, sqns, 0)) for sqns in asked), *vectors("transports", "lbtrm", ("rm_nak",))]


def _datagrams(data: bytes) -> Hashable:
    """The UDP part of a peer link."""
    limits = RateLimiter(0, ms(100), 0), RateLimiter(0, ms(100), 0)
    counts = DatagramCounts()
    options = DatagramOptions(loss=_LOSS, source=SourceConfig(charge_data=False, window_size_bytes=400))
    core = DatagramSession(options, SessionIds(5, 6), *limits, lambda: 0.5, 0, counts)
    core.source.on_sent_run(20, 25, Chunk(b"y" * 1000, 0, 50, 50), 0)
    kinds: set[str] = set()

    def drain(now_ns: int) -> None:
        for effect in core.take_effects():
            kinds.add(type(effect).__name__)
            if isinstance(effect, SendPacket):
                lbtru.decode(effect.packet)

    def hear(packet: bytes, now_ns: int) -> Hashable:
        decoded = lbtru.decode(packet)
        if not core.is_mine(decoded):
            raise DecodeError("datagrams", "of another session")
        if isinstance(decoded, lbtru.Data):
            is_again = bool(decoded.flags & lbtru.FLAG_RETRANSMISSION)
            core.receiver.on_data(decoded.sqn, decoded.trail, is_again, now_ns)
            core.settle()
        else:
            core.on_packet(decoded, now_ns)
        return type(decoded).__name__

    Player(core, drain).play(data, hear, s(120))
    assert core.state is DatagramState.OVER
    return tuple(sorted(kinds)), counts.unrecoverable > 0


def _datagram_packets() -> list[bytes]:
    own, other = (lbtru.sid_option(5),), (lbtru.sid_option(6),)
    packets: list[lbtru.Packet] = [
        lbtru.ConnectRequest(options=own), lbtru.SessionMessage(1, 3, 0, lbtru.FLAG_SYN, options=other),
        lbtru.SessionMessage(2, 30, 0, 0, options=other), lbtru.Nak((1, 19, 18), options=own),
        lbtru.Ack(3, options=own),
        lbtru.Ncf(0, 0, 0, (2, 3), options=other), lbtru.Ncf(0, 1, 0, (5,), options=other),
        *(lbtru.Data(sqn, 0, 0, b"x", options=other) for sqn in (0, 1, 2, 4, 9, 70)),
        lbtru.Data(3, 0, lbtru.FLAG_RETRANSMISSION, b"x", options=other),
    ]  # fmt: skip
    return [lbtru.encode(packet) for packet in packets]


def _delivery(mode: int, *, immediate: bool) -> Callable[[bytes], Hashable]:
    """Messages of a topic, with fragments and sequence number information."""
    config = DeliveryConfig(
        mode, burst_limit=30, map_limit=20, message_max_bytes=10_000, held_max_bytes=20_000, immediate=immediate,
        loss_check_interval_ns=ms(10),
    )  # fmt: skip

    def check(data: bytes) -> Hashable:
        core = DeliveryController(config)
        kinds: set[str] = set()

        def drain(now_ns: int) -> None:
            kinds.update([type(event).__name__ for event in core.take_events()])
            assert core._held_bytes <= config.held_max_bytes + 0xFFFF
            assert len(core._held) <= config.map_limit + config.burst_limit

        def hear(packet: bytes, now_ns: int) -> Hashable:
            message = lbmc.decode(packet)
            tsni, found = message.get(Tsni), message.get(FragBlock)
            if tsni is not None:
                for record in tsni.records:
                    core.on_tsni(record.sqn, now_ns)
            elif message.sqn is not None:
                at = lbmc.frag_of(packet, 0, int.from_bytes(packet[2:4], "big"))
                frag = None if at is None else at[:3]
                core.on_fragment(message.sqn, frag, message.payload, now_ns)
            return found is None

        player = Player(core, drain)
        signs = player.play(data, hear, s(60))
        assert not core.is_waiting
        core.on_end()
        drain(player.now_ns)
        return tuple(sorted(kinds)), len(signs), core.stats.malformed > 0, core.stats.too_long > 0

    return check


def _recovery(mode: int, *, late_join: bool) -> Callable[[bytes], Hashable]:
    """Live messages, TSNIs, answers and retransmissions in any order: each sqn is settled once, and little is held."""
    late = AskLimits(4, ms(500), ms(500), s(10), 1) if late_join else None
    config = RecoveryConfig(
        late, AskLimits(6, s(1), s(10), s(60), 2), info_interval_ns=s(1), info_max=5, proximity=15, held_max=20,
        asks_silent=True, silent_interval_ns=s(1), silent_max=5, otr_delay_ns=s(2), otr_threshold=10,
    )  # fmt: skip
    delivery = DeliveryConfig(mode, burst_limit=30, map_limit=20, held_max_bytes=20_000, recovers=True)

    def check(data: bytes) -> Hashable:
        controller = DeliveryController(delivery)
        core = Recovery(controller, config, 0)
        settled: set[int] = set()
        kinds: set[str] = set()
        last, at = 0, 1 << 40  # newest sqn that was settled, and without wrapping

        def drain(now_ns: int) -> None:
            nonlocal last, at
            for event in controller.take_events():
                kinds.add(type(event).__name__)
                is_burst = isinstance(event, LossBurst)
                first, count = (event.first_sqn, event.count) if isinstance(event, LossBurst) else (event.sqn, 1)
                if mode == ARRIVAL and not is_burst and controller._is_before_start(first):
                    continue  # repeats of those are not known
                assert count > 0
                before, at, last = at, at + _ahead(first, last) + count - 1, first + count - 1 & MASK
                assert is_burst or at not in settled, "settled twice"
                assert mode == ARRIVAL or not settled or at > before, "out of order"
                settled.add(at)
            for ask in core.asks:
                kinds.add(type(ask).__name__)
            core.asks.clear()
            assert controller.held <= delivery.map_limit + delivery.burst_limit
            assert len(core._asked) <= 6
            assert len(core._waiting) <= 20
            assert len(core._noticed) <= len(controller._gaps) + 1

        def hear(packet: bytes, now_ns: int) -> Hashable:
            message = lbmc.decode(packet)
            tsni, info = message.get(Tsni), message.get(UmeLjInfo)
            if tsni is not None:
                for record in tsni.records:
                    core.on_tsni(record.sqn, now_ns)
            elif info is not None:
                core.on_retained(info.low_sqn, info.high_sqn, now_ns)
            elif message.sqn is not None and message.type == MessageType.RETRANSMISSION:
                return core.on_again(message.sqn, None, b"", now_ns, 0, None), core.phase.name
            elif message.sqn is not None:
                core.on_fragment(message.sqn, None, b"", now_ns)
            return message.type, core.phase.name

        signs = Player(core, drain).play(data, hear, s(3000))
        assert core.phase is RecoveryPhase.FETCHING or not core._asked
        return tuple(sorted(kinds)), len(signs), min(len(settled), 9)

    return check


def _recovery_packets() -> list[bytes]:
    sqns = (5, 6, 7, 9, 10, 12, 20, 24, 60)
    live = [lbmc.Message(MessageType.MESSAGE, 1, sqn) for sqn in sqns]
    again = [lbmc.Message(MessageType.RETRANSMISSION, 1, sqn) for sqn in (3, 4, 5, 8, 11, 13, 14)]
    infos = [
        lbmc.control_message(UmeLjInfo(low, high, 1)) for low, high in ((3, 8), (0, MASK), (9, 9), (30, 4), (5, 50))
    ]
    tsnis = [lbmc.tsni_message([(1, sqn)]) for sqn in (8, 15, MASK)]
    return [lbmc.encode(message) for message in (*infos, *live, *again, *tsnis)]


def _message_packets() -> list[bytes]:
    made = [lbmc.encode(lbmc.Message(MessageType.MESSAGE, 1, sqn, (), b"x" * sqn)) for sqn in (5, 6, 7, 9, 10, 20, 60)]
    for sqn in range(12, 17):
        frag = FragBlock(first_sqn=12, offset=100 * (sqn - 12), length=500)
        made.append(lbmc.encode(lbmc.Message(MessageType.MESSAGE, 1, sqn, (frag,), b"y" * 100)))
    return [
        *made,
        *(lbmc.encode(lbmc.tsni_message([(1, sqn)])) for sqn in (8, 30)),
        *vectors("lbmc", "", ("frag", "tsni")),
    ]


def _failover(data: bytes) -> Hashable:
    """Numbers of three sources: each byte pair is one, as source, step and kind."""
    core: FailoverStream[int] = FailoverStream(FailoverConfig(ms(50), is_in_order=data[:1] >= b"\x80", map_limit=20))
    kinds: set[str] = set()
    number, now_ns, handed = 1000, s(1), 0
    for at in range(1, len(data) - 1, 2):
        kind, step = data[at], data[at + 1]
        source = "abc"[kind % 3]
        now_ns += ms(step % 8)
        match kind >> 4:
            case 0:
                core.on_source(source, added=bool(step & 1), now_ns=now_ns)
            case 1:
                core.on_lost(source)
            case 2:
                core.on_message(source, HotFailover(None, generation=step), 0, 0, now_ns)
            case 3:
                number += step << 24
            case _:
                number += step - 100 if kind & 8 else 1
                made = HotFailover(number % (1 << 32), is_optional=kind & 4 > 0, generation=step >> 6)
                core.on_message(source, made, at, step, now_ns, is_whole=kind & 2 > 0)
                handed += 1
        deadline = core.next_deadline()
        if deadline is not None and deadline <= now_ns:
            core.on_timer(now_ns)
            assert core.next_deadline() is None or core._gaps[0].deadline_ns > now_ns
        kinds.update(type(event).__name__ for event in core.take_events())
        assert len(core._held) <= 21
        assert not core._gaps or core._gaps[0].start == core._next
        assert all(one.end <= other.start for one, other in pairwise(core._gaps))
    assert core.stats.delivered <= handed
    return tuple(sorted(kinds)), core.stats.duplicates > 0, core.stats.outdated > 0, core.stats.intended > 0


def _failover_seeds() -> list[bytes]:
    script = [(0, 1), (1, 1), (2, 1), *[(0x40 | n % 3, 1) for n in range(12)], (0x10, 0), (0x4A, 104), (0x49, 101)]
    whole = bytes(byte for pair in script for byte in pair)
    return [b"\0" + whole, b"\xff" + whole + bytes([0x20, 1, 0x42, 0x41, 0x30, 0x7F, 0x42, 1, 0x43, 1])]


TARGETS: Final = (
    Target("core-failover", _failover_seeds, _failover),
    core_target("core-lbtrm-receiver", scripts(_lbtrm_packets), _receiver),
    core_target("core-lbtrm-source", scripts(_nak_packets), _source),
    core_target("core-datagrams", scripts(_datagram_packets), _datagrams),
    core_target("core-delivery-ordered", scripts(_message_packets), _delivery(IN_ORDER, immediate=False)),
    core_target("core-delivery-arrival", scripts(_message_packets), _delivery(ARRIVAL, immediate=False)),
    core_target("core-late-join", scripts(_recovery_packets), _recovery(IN_ORDER, late_join=True)),
    core_target("core-late-join-arrival", scripts(_recovery_packets), _recovery(ARRIVAL, late_join=True)),
    core_target("core-otr", scripts(_recovery_packets), _recovery(IN_ORDER, late_join=False)),
    core_target("core-delivery-tcp", scripts(_message_packets), _delivery(IN_ORDER, immediate=True)),
)

"""Every slot of a counter page is moved by a case of its own here; a slot without a case fails."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Final, cast
from unittest import mock

import pytest

from dro.bus.counters import CounterPage
from dro.config.um.resolver_entries import ResolverEntry
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.metrics.slots import PairSlot, Slot
from dro.proto.interest.events import InterestGained
from dro.proto.new_entries import NewEntryLimiter, NewEntryRate
from dro.proto.unicast.connections import OnOutcome, Outcome
from dro.transport.session import SessionCounts
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.resolution import ServerCounts
from dro.um.fragment.tr_channel import ResolverServer
from portals.datapath.addressed import AddressedData
from portals.datapath.descriptor import BatchKind
from portals.decisions.core import PortalCore
from portals.decisions.immediate.multicast import Class, ImmediateForwarding
from portals.decisions.immediate.multicast import ImmediateDropped as NotForwarded
from portals.decisions.immediate.multicast import ImmediateDropReason as WhyNot
from portals.decisions.immediate.multicast import ImmediateLeaves as ToSiblings
from portals.decisions.immediate.unicast import (
    ForRoutes,
    UnicastDropped,
    UnicastDropReason,
    UnicastForwarding,
    UnicastLeaves,
    Verdict,
)
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX, InterestAdded, SourceGone
from portals.decisions.recorded_interest import PATTERNS_MAX
from portals.endpoint.gauges import Gauges
from portals.endpoint.interest import TrdInterest
from portals.shell.gauges import show_core
from portals.shell.link import Link as PortalLink
from portals.shell.multicast import ImmediateTraffic
from portals.shell.portal import PortalShell
from portals.shell.unicast import UnicastTraffic
from tests.builders.routes import whole
from tests.fakes.patterns import compile_pattern
from tests.fakes.queues import FakeQueues
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker
from tests.portals.datapath.peer_counter_cases import PEER_CASES
from tests.portals.datapath.shell_counter_cases import ELSEWHERE, SHELL_CASES
from tests.portals.datapath.test_data_path import BlockingSender, Link, P, Q, control, data, request
from tests.portals.decisions.test_acl import lists


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    made = Link(tmp_path)
    yield made
    made.close()


Pages = tuple[CounterPage, CounterPage]
"""Of the portal that receives, and of the one that sends."""


BATCH: Final = data(1, 0, bytes(10)) + data(1, 1, bytes(20)) + request(1, 2, bytes(7)) + control(1)  # 22 32 31 20


def flow(link: Link) -> Pages:
    """Two batches; the second is for a topic that nobody wants."""
    link.add_source(1, BlockingSender())
    link.receive(BATCH)
    link.receive(data(1, 3, bytes(30)) + data(9, 0, b"z"))
    link.carry()
    return link.page_p, link.page_q


def duplicate(link: Link) -> Pages:
    link.add_source(1, BlockingSender())
    link.receive(data(1, 0, bytes(10)) + data(1, 0, bytes(10)))
    link.carry()
    return link.page_p, link.page_q


def older_than_the_window(link: Link) -> Pages:
    """The default window has passed the first two, of which it has seen one."""
    link.add_source(1, BlockingSender())
    for batch in (data(1, 0, bytes(10)), data(1, 2, b""), data(1, 60_000, b""), data(1, 0, bytes(9)), data(1, 1, b"")):
        link.receive(batch)
        link.carry()
    return link.page_p, link.page_q


def begun_anew(link: Link) -> Pages:
    link.add_source(1, BlockingSender())
    for sqn in (60_000, 0, 1, 2):
        link.now_ns += 600_000_000
        link.receive(data(1, sqn, b""))
        link.carry()
    return link.page_p, link.page_q


def blocked(link: Link) -> Pages:
    link.egress.queue.set_limit(40)
    link.add_source(1, BlockingSender(room=0))
    link.receive(data(1, 0, bytes(10)) + data(1, 1, bytes(11)) + data(1, 2, bytes(12)))
    link.carry()
    return link.page_p, link.page_q


def no_memory(link: Link) -> Pages:
    """There is no shared memory for a fragment of a source, nor for a unicast message of 9 bytes."""
    link.add_source(1, BlockingSender())

    addressed = AddressedData(link.ring, link.page_p, FakeQueues(), lambda _: None)
    with mock.patch("os.posix_fallocate", side_effect=OSError(errno.ENOSPC, "full")):
        link.receive(data(1, 0, bytes(10)))
        for kind in (BatchKind.UNICAST, BatchKind.IMMEDIATE):
            assert not addressed.send(Q, kind, 5, bytes(9))
    return link.page_p, link.page_q


def no_ring(link: Link) -> Pages:
    link.add_source(1, BlockingSender())
    link.receive(data(1, 0, bytes(10)) + data(1, 1, bytes(11)))
    link.egress.on_ring(P, None)
    link.carry()
    return link.page_p, link.page_q


def too_large(link: Link) -> Pages:
    link.add_source(1, BlockingSender(fragment_max=50))
    link.receive(data(1, 0, bytes(38)) + data(1, 1, bytes(39)))
    link.carry()
    return link.page_p, link.page_q


def lost_with_a_worker(link: Link) -> Pages:
    link.egress.reconcile(P, 3, 300)
    return link.page_p, link.page_q


def deleted(link: Link) -> Pages:
    link.egress.flush(link.add_source(1, BlockingSender()))
    link.receive(data(1, 0, bytes(10)))
    link.carry()
    return link.page_p, link.page_q


def queued(link: Link) -> Pages:
    """Five wait, two of them are sent later."""
    out = BlockingSender(room=0)
    link.add_source(1, out)
    link.receive(b"".join(data(1, sqn, bytes(88)) for sqn in range(5)))
    link.carry()
    out.room = 2
    link.egress.drain(out)
    return link.page_p, link.page_q


def full_channel(link: Link) -> Pages:
    link.add_source(1, BlockingSender())
    link.queues.room = 1
    for sqn in range(3):
        link.receive(data(1, sqn, bytes(sqn)))
    return link.page_p, link.page_q


def of_the_core(link: Link) -> Pages:
    """Three topics, two PCRE and one regex pattern are wanted; four topics may not leave, five may not be asked for.

    Of the patterns that are wanted in the TRD seven are too many.
    """
    acl = lists(inbound="-/^no/ +/./", outbound="-/^no/ +/./")
    core = PortalCore(P, 1, P, source_deletion_delay_ns=0, matcher=compile_pattern, acl=acl)
    core.on_routes(1, whole([(P, Q, P, Q)]), 0)
    core.on_sibling_up(Q, 1, 0, 0, 0)
    wanted = [(b"T%d" % n, PATTERN_NONE) for n in range(3)] + [(b"no%d" % n, PATTERN_NONE) for n in range(5)]
    wanted += [(b"P%d" % n, PATTERN_PCRE) for n in range(2)] + [(b"R", PATTERN_REGEX)]
    for symbol in wanted:
        core.on_message(Q, 1, InterestAdded(*symbol, Q), 0)
    for n in range(4):
        core.on_interest(InterestGained((b"no%d" % n, PATTERN_NONE)), 0)
    for n in range(PATTERNS_MAX + 7):
        core.on_interest(InterestGained((b"w%d" % n, PATTERN_PCRE)), 0)
    show_core(core, link.page_p)
    return link.page_p, link.page_q


def of_the_trd(link: Link) -> Pages:
    """Each gauge another figure; an earlier incarnation of the portal had counted a thousand of each event."""
    for slot in (
        Slot.BAD_DATAGRAMS, Slot.UNRECOVERABLE, Slot.TRAINS_OUT, Slot.NAKS_SENT, Slot.RETRANSMITTED, Slot.SOCKET_DROPS,
        Slot.UNSENT, Slot.DISCARDED, Slot.UNKNOWN_SENDERS, Slot.SRS_MALFORMED, Slot.SRS_CONNECTS, *LEFT_OUT,
    ):  # fmt: skip
        link.page_p.set(slot, 1000)

    def context(counts: SessionCounts) -> FragmentContext:
        cache = SimpleNamespace(refused=9, limited=10, turned_away=11)
        servers = [("lbmrd", True), ("lbmrd", True), ("lbmrd", False), *[("SRS", True)] * 4, ("SRS", False)]
        resolution = SimpleNamespace(
            servers=lambda: [ResolverServer(kind, ResolverEntry("", n), up) for n, (kind, up) in enumerate(servers)],
            server_counts=lambda: ServerCounts(unknown_senders=1, malformed=2, connects=3),
        )
        resolver = SimpleNamespace(cache=cache)
        return cast(FragmentContext, SimpleNamespace(counts=lambda: counts, resolver=resolver, resolution=resolution))

    receiving = context(SessionCounts(bad=1, unknown=99, unrecoverable=3, naks_sent=4, socket_drops=7))
    sending = context(SessionCounts(bad=1, retransmitted=5, trains=6, socket_drops=1, unsent=9, discarded=10))
    left_out = {Slot.INTEREST_LIMITED: 12, Slot.INTEREST_FULL: 13}
    interest = SimpleNamespace(counts=lambda: {slot: slot + 1 for slot in list(Slot)[:6]}, left_out=lambda: left_out)
    told: list[tuple[object, object]] = []
    gauges = Gauges(link.page_p, cast(TrdInterest, interest), receiving, sending, lambda *line: told.append(line))
    for _ in range(2):
        gauges.refresh(8)
    receiving.counts = lambda: SessionCounts(bad=1, unrecoverable=3, naks_sent=4)  # type: ignore[method-assign]
    gauges.refresh(8)  # a socket is closed, and its figure gone
    assert told == [
        (LogEvent.NEW_NAMES_LEFT_OUT, {"counter": slot.name, "count": count})
        for slot, count in zip(LEFT_OUT, (10, 11, 12, 13), strict=True)
    ], "once, as there is no more of it"
    return link.page_p, link.page_q


def told_late(link: Link) -> Pages:
    """Two siblings take nothing; what changed twice waits once."""
    stepper = Stepper()
    with TemporaryDirectory() as folder:
        worker = FakeWorker(stepper.loop, Path(folder), P, "P")
        core = PortalCore(P, 1, P, source_deletion_delay_ns=0, matcher=lambda pattern, kind: None)
        shell = PortalShell(worker.ctx, core, 1000)
        for sibling in (Q, Q + 1):
            shell._siblings.begin(sibling)
            for change in (SourceGone(1), SourceGone(1), SourceGone(2), InterestAdded(b"T", PATTERN_NONE, P)):
                shell._siblings.enqueue(sibling, change)
        shell._link = cast(PortalLink, SimpleNamespace(refresh_gauges=lambda: None))
        shell.refresh_gauges()
        link.page_p.set(Slot.REPORTS_WAITING, worker.counters[Slot.REPORTS_WAITING])
    stepper.loop.close()
    return link.page_p, link.page_q


def addressed(link: Link) -> Pages:
    """Nine wait, of 10 to 18 bytes: two of a kind that nobody takes, one that does not decode, and three too many."""
    queues = FakeQueues()
    queues.room = 6
    sender = AddressedData(link.ring, link.page_p, queues, lambda _: None)
    receiver = AddressedData(link.ring, link.page_q, queues, lambda _: None)

    def refuse(*_: object) -> None:
        raise DecodeError("unicast", "not for us")

    receiver.handlers = {BatchKind.UNICAST: refuse}
    kinds = [BatchKind.IMMEDIATE] * 2 + [BatchKind.UNICAST] * 7
    for n, kind in enumerate(kinds):
        assert sender.send(Q, kind, 5, bytes(10 + n)) is (n < 6)
    for _, slot in queues.announced[:3]:
        receiver.on_message(P, slot, link.reader)
    link.ring.commit(link.ring.reserve(link.ring.capacity) + link.ring.capacity)
    for _, slot in queues.announced[3:]:
        receiver.on_message(P, slot, link.reader)
    return link.page_p, link.page_q


Scene = Callable[[Link], Pages]

RECEIVER, SENDER = 0, 1
UNICAST_BYTES: Final = 40


def unicast(link: Link) -> Pages:
    """At the receiver, data and control for each reason; at the sender, what becomes of messages of 10 to 12 bytes."""
    stepper = Stepper()
    with TemporaryDirectory() as folder:
        worker = FakeWorker(stepper.loop, Path(folder), P, "P")
        asked = FakeUnicastLink()
        core = cast(UnicastForwarding, SimpleNamespace(on_message=lambda message, now_ns: verdicts.pop(0)))
        sender = AddressedData(link.ring, worker.counters, FakeQueues(), lambda _: None)
        traffic = UnicastTraffic(worker.ctx, sender, core, asked.link, lambda *_: None, lambda _: None, bool)
        verdicts: list[Verdict] = []
        for kind in (0, 8):
            for why in UnicastDropReason:
                verdicts.append(UnicastDropped(why, detail="00"))
                traffic.on_received(bytes([kind]) + bytes(UNICAST_BYTES - 1), "somebody")
        traffic._of_dros = NewEntryLimiter(NewEntryRate(in_all=2, of_one=2))
        verdicts += [ForRoutes()] * 4
        for ip in (1, 1, 1, 0):  # the last one is of no DRO
            traffic.on_received(bytes(UNICAST_BYTES), "somebody", ip)
        for nbytes, outcome in ((10, Outcome.SENT), (11, Outcome.FULL), (12, Outcome.FAILED)):
            asked.outcome = outcome
            verdicts.append(UnicastLeaves(P, 5, bytes(nbytes)))
            traffic.on_received(bytes(nbytes), "somebody")
            traffic.count_control(nbytes, outcome)
        refused = (Slot.GATEWAY_CONTROL_REFUSED, Slot.GATEWAY_CONTROL_REFUSED_BYTES)
        for slot in (*range(Slot.UNICAST_DATA_RCVD, Slot.GATEWAY_CONTROL_DROPPED_BYTES + 1), *refused):
            link.page_p.set(slot, worker.counters[slot])
    stepper.loop.close()
    return link.page_p, link.page_q


class FakeUnicastLink:
    """Every message has the outcome of the test."""

    def __init__(self) -> None:
        self.outcome = Outcome.SENT
        self.link = cast(PortalLink, self)

    def send_unicast(self, domain_id: int, message: bytes, on_outcome: OnOutcome) -> None:
        on_outcome(self.outcome)

    def send_immediate(self, message: bytes, on_outcome: OnOutcome) -> None:
        on_outcome(self.outcome)


def unicast_cases() -> dict[Slot, tuple[Scene, int, int]]:
    """Messages of each slot; the bytes are in the next one."""
    kinds, n = len(UnicastDropReason), UNICAST_BYTES
    counts = {
        Slot.UNICAST_DATA_RCVD: (kinds + 3, kinds * n + 33),
        Slot.UNICAST_CONTROL_RCVD: (kinds, kinds * n),
        Slot.UNICAST_FORWARDED: (3, 33),
        Slot.UNICAST_SENT: (1, 10),
        Slot.UNICAST_DROPPED_BLOCKED: (1, 11),
        Slot.UNICAST_DROPPED_ERROR: (1, 12),
        Slot.GATEWAY_CONTROL_RCVD: (2, 2 * n),
        Slot.GATEWAY_CONTROL_LIMITED: (1, n),
        Slot.GATEWAY_CONTROL_REFUSED: (1, n),
        Slot.GATEWAY_CONTROL_SENT: (1, 10),
        Slot.GATEWAY_CONTROL_DROPPED: (1, 11),
    }
    both = (Slot.UNICAST_BROKEN, Slot.UNICAST_HOPS, Slot.UNICAST_NO_CONTEXT)
    counts |= dict.fromkeys(both, (2, 2 * n))
    no_route = (Slot.UNICAST_DATA_NO_ROUTE, Slot.UNICAST_CONTROL_NO_ROUTE)
    counts |= dict.fromkeys(no_route, (2, 2 * n))  # before the first routes too
    counts[Slot.UNICAST_CONTROL_NO_FORWARDING] = (2, 2 * n)  # or unknown forwarding
    for slot in range(Slot.UNICAST_DATA_RCVD, Slot.GATEWAY_CONTROL_DROPPED, 2):
        counts.setdefault(Slot(slot), (1, n))
    made: dict[Slot, tuple[Scene, int, int]] = {}
    for slot, (messages, nbytes) in counts.items():
        made |= {slot: (unicast, RECEIVER, messages), Slot(slot + 1): (unicast, RECEIVER, nbytes)}
    return made


IMMEDIATE_BYTES: Final = 50


def immediate(link: Link) -> Pages:
    """At the receiver, a message of each kind in, for each reason to drop it, and out, with each outcome."""
    stepper = Stepper()
    with TemporaryDirectory() as folder:
        worker = FakeWorker(stepper.loop, Path(folder), P, "P")
        asked = FakeUnicastLink()
        queues = FakeQueues()
        addressed = AddressedData(link.ring, worker.counters, queues, lambda _: None)
        traffic = ImmediateTraffic(worker.ctx, addressed, 5, asked.link)
        verdicts: list[object] = []
        give = lambda *_: verdicts.pop(0)  # noqa: E731
        traffic._core = cast(ImmediateForwarding, SimpleNamespace(on_message=give, on_leaving=give))
        kinds = [Class(has_topic, is_request) for has_topic in (False, True) for is_request in (False, True)]
        data = bytes(IMMEDIATE_BYTES)
        for kind in kinds:
            verdicts.append(ToSiblings((Q,), data, kind))
            traffic.on_received(data, "somebody")
            for asked.outcome in Outcome:
                verdicts.append(kind)
                addressed.handlers[BatchKind.IMMEDIATE](Q, 0, memoryview(data))
        for why in WhyNot:
            verdicts.append(NotForwarded(why))
            traffic.on_received(data, "somebody")
        for has_topic in (False, True):
            verdicts.append(NotForwarded(WhyNot.DUPLICATE, kind=Class(has_topic)))
            addressed.handlers[BatchKind.IMMEDIATE](Q, 0, memoryview(data))
        assert len(queues.announced) == len(kinds)
        for slot in Slot:
            if slot.name.startswith("IMMEDIATE"):
                link.page_p.set(slot, worker.counters[slot])
    stepper.loop.close()
    return link.page_p, link.page_q


def immediate_cases() -> dict[Slot, tuple[Scene, int, int]]:
    outcomes, reasons = len(Outcome), len(WhyNot)
    counts = {
        Slot.IMMEDIATE_TOPIC_RCVD: 2,
        Slot.IMMEDIATE_TOPICLESS_RCVD: 2 + reasons,
        Slot.IMMEDIATE_TOPIC_FORWARDED: 2 * outcomes + 1,
        Slot.IMMEDIATE_TOPICLESS_FORWARDED: 2 * outcomes + 1,
    }
    for topic in ("TOPIC", "TOPICLESS"):
        counts |= {Slot[f"IMMEDIATE_{topic}_{name}"]: 2 for name in ("SENT", "DROPPED_BLOCKED", "DROPPED_SIZE")}
        counts |= {Slot[f"IMMEDIATE_{topic}_DROPPED_ERROR"]: 4, Slot[f"IMMEDIATE_{topic}_REQ_RCVD"]: 1}
        counts |= {Slot[f"IMMEDIATE_{topic}_REQ_SENT"]: 1}
    counts |= {Slot[f"IMMEDIATE_{name}"]: 1 for name in ("DUP", "NO_DOMAIN", "NO_ROUTE", "BROKEN")}
    counts[Slot.IMMEDIATE_TOPICLESS_DROPPED_DUP] = 1
    made: dict[Slot, tuple[Scene, int, int]] = {}
    for slot, messages in counts.items():
        made |= {slot: (immediate, RECEIVER, messages)}
        made |= {Slot(slot + 1): (immediate, RECEIVER, messages * IMMEDIATE_BYTES)}
    return made


LEFT_OUT: Final = (Slot.SOURCES_LIMITED, Slot.SOURCES_FULL, Slot.INTEREST_LIMITED, Slot.INTEREST_FULL)
CASES: Final[dict[Slot, tuple[Scene, int, int]]] = {  # scene, whose page, value
    Slot.LOCAL_TOPICS: (of_the_trd, RECEIVER, 1),
    Slot.LOCAL_PCRE: (of_the_trd, RECEIVER, 2),
    Slot.LOCAL_REGEX: (of_the_trd, RECEIVER, 3),
    Slot.REMOTE_TOPICS: (of_the_trd, RECEIVER, 4),
    Slot.REMOTE_PCRE: (of_the_trd, RECEIVER, 5),
    Slot.REMOTE_REGEX: (of_the_trd, RECEIVER, 6),
    Slot.PROXY_RECEIVERS: (of_the_core, RECEIVER, 6),
    Slot.LBMRDS: (of_the_trd, RECEIVER, 3),
    Slot.LBMRDS_ANSWERING: (of_the_trd, RECEIVER, 2),
    Slot.LBMRDS_WHICH: (of_the_trd, RECEIVER, 0b011),
    Slot.SRSES_WHICH: (of_the_trd, RECEIVER, 0b01111),
    Slot.SRSES: (of_the_trd, RECEIVER, 5),
    Slot.SRSES_ANSWERING: (of_the_trd, RECEIVER, 4),
    Slot.UNKNOWN_SENDERS: (of_the_trd, RECEIVER, 1001),
    Slot.SRS_MALFORMED: (of_the_trd, RECEIVER, 1002),
    Slot.SRS_CONNECTS: (of_the_trd, RECEIVER, 1003),
    Slot.RECEIVER_TOPICS: (of_the_core, RECEIVER, 3),
    Slot.RECEIVER_PCRE: (of_the_core, RECEIVER, 2),
    Slot.RECEIVER_REGEX: (of_the_core, RECEIVER, 1),
    Slot.PROXY_SOURCES: (of_the_trd, RECEIVER, 8),
    Slot.TOPICS_NOT_OUT: (of_the_core, RECEIVER, 4),
    Slot.TOPICS_NOT_IN: (of_the_core, RECEIVER, 5),
    Slot.SOURCES_NOT_IN: (of_the_trd, RECEIVER, 9),
    Slot.PATTERNS_WAITING: (of_the_core, RECEIVER, 7),
    Slot.TOPIC_RCVD: (flow, RECEIVER, 4),
    Slot.TOPIC_RCVD_BYTES: (flow, RECEIVER, 22 + 32 + 31 + 42),
    Slot.TOPIC_REQ_RCVD: (flow, RECEIVER, 1),
    Slot.TOPIC_REQ_RCVD_BYTES: (flow, RECEIVER, 31),
    Slot.CONTROL_RCVD: (flow, RECEIVER, 1),
    Slot.CONTROL_RCVD_BYTES: (flow, RECEIVER, 20),
    Slot.NO_TOPIC_RCVD: (flow, RECEIVER, 1),
    Slot.BAD_DATAGRAMS: (of_the_trd, RECEIVER, 1002),
    Slot.UNRECOVERABLE: (of_the_trd, RECEIVER, 1003),
    Slot.FORWARDED: (flow, SENDER, 5),
    Slot.FORWARDED_BYTES: (flow, SENDER, 22 + 32 + 31 + 20 + 42),
    Slot.SENT: (flow, SENDER, 5),
    Slot.SENT_BYTES: (flow, SENDER, 22 + 32 + 31 + 20 + 42),
    Slot.REQ_SENT: (flow, SENDER, 1),
    Slot.REQ_SENT_BYTES: (flow, SENDER, 31),
    Slot.DROPPED_DUP: (duplicate, SENDER, 1),
    Slot.DROPPED_DUP_BYTES: (duplicate, SENDER, 22),
    Slot.DROPPED_BLOCKED: (blocked, SENDER, 2),
    Slot.DROPPED_BLOCKED_BYTES: (blocked, SENDER, 23 + 24),
    Slot.DROPPED_ERROR: (no_ring, SENDER, 2),
    Slot.DROPPED_ERROR_BYTES: (no_ring, SENDER, 22 + 23),
    Slot.DROPPED_SIZE: (too_large, SENDER, 1),
    Slot.DROPPED_SIZE_BYTES: (too_large, SENDER, 51),
    Slot.DROPPED_RESTART: (lost_with_a_worker, SENDER, 3),
    Slot.DROPPED_RESTART_BYTES: (lost_with_a_worker, SENDER, 300),
    Slot.DROPPED_DELETED: (deleted, SENDER, 1),
    Slot.DROPPED_DELETED_BYTES: (deleted, SENDER, 22),
    Slot.DROPPED_OLD: (older_than_the_window, SENDER, 1),
    Slot.DROPPED_OLD_BYTES: (older_than_the_window, SENDER, 21),
    Slot.QUEUED_BYTES: (queued, SENDER, 300),
    Slot.QUEUED_BYTES_MAX: (queued, SENDER, 500),
    Slot.QUEUE_LIMIT: (blocked, SENDER, 40),
    Slot.QUEUED: (queued, SENDER, 3),
    Slot.BATCHES_IN: (flow, RECEIVER, 2),
    Slot.RUNS_IN: (flow, RECEIVER, 6),
    Slot.TRAINS_OUT: (of_the_trd, RECEIVER, 1006),
    Slot.NAKS_SENT: (of_the_trd, RECEIVER, 1004),
    Slot.RETRANSMITTED: (of_the_trd, RECEIVER, 1005),
    Slot.SOCKET_DROPS: (of_the_trd, RECEIVER, 1008),
    Slot.UNSENT: (of_the_trd, RECEIVER, 1009),
    Slot.DISCARDED: (of_the_trd, RECEIVER, 1010),
    Slot.FLOWS_RESTARTED: (begun_anew, SENDER, 1),
    Slot.SOURCES_LIMITED: (of_the_trd, RECEIVER, 1010),
    Slot.SOURCES_FULL: (of_the_trd, RECEIVER, 1011),
    Slot.INTEREST_LIMITED: (of_the_trd, RECEIVER, 1012),
    Slot.INTEREST_FULL: (of_the_trd, RECEIVER, 1013),
    Slot.REPORTS_WAITING: (told_late, RECEIVER, 6),
    Slot.ADDRESSED_HANDED: (addressed, RECEIVER, 6),
    Slot.ADDRESSED_HANDED_BYTES: (addressed, RECEIVER, 10 + 11 + 12 + 13 + 14 + 15),
    Slot.ADDRESSED_REFUSED: (addressed, RECEIVER, 3),
    Slot.ADDRESSED_REFUSED_BYTES: (addressed, RECEIVER, 16 + 17 + 18),
    Slot.ADDRESSED_FORWARDED: (addressed, SENDER, 6),
    Slot.ADDRESSED_FORWARDED_BYTES: (addressed, SENDER, 10 + 11 + 12 + 13 + 14 + 15),
    Slot.ADDRESSED_OVERRUN: (addressed, SENDER, 3),
    Slot.ADDRESSED_OVERRUN_BYTES: (addressed, SENDER, 13 + 14 + 15),
    Slot.ADDRESSED_ERROR: (addressed, SENDER, 3),
    Slot.ADDRESSED_ERROR_BYTES: (addressed, SENDER, 10 + 11 + 12),
    **unicast_cases(),
    **PEER_CASES,
    Slot.IMMEDIATE_TOPIC_DROPPED_DUP: (immediate, RECEIVER, 1),
    Slot.IMMEDIATE_TOPIC_DROPPED_DUP_BYTES: (immediate, RECEIVER, IMMEDIATE_BYTES),
    **immediate_cases(),
    **SHELL_CASES,
}
PAIR_CASES: Final[dict[PairSlot, tuple[Scene, int, int]]] = {
    PairSlot.HANDED: (full_channel, RECEIVER, 3),
    PairSlot.HANDED_BYTES: (full_channel, RECEIVER, 12 + 13 + 14),
    PairSlot.REFUSED: (full_channel, RECEIVER, 2),
    PairSlot.REFUSED_BYTES: (full_channel, RECEIVER, 13 + 14),
    PairSlot.NO_MEMORY: (no_memory, RECEIVER, 1),
    PairSlot.NO_MEMORY_BYTES: (no_memory, RECEIVER, 22),
    PairSlot.UNICAST_NO_MEMORY: (no_memory, RECEIVER, 1),
    PairSlot.UNICAST_NO_MEMORY_BYTES: (no_memory, RECEIVER, 9),
    PairSlot.ACCOUNTED: (blocked, SENDER, 2),
    PairSlot.ACCOUNTED_BYTES: (blocked, SENDER, 23 + 24),
    PairSlot.QUEUED: (queued, SENDER, 3),
    PairSlot.QUEUED_BYTES: (queued, SENDER, 300),
    PairSlot.SENT: (queued, SENDER, 2),
    PairSlot.SENT_BYTES: (queued, SENDER, 200),
}


def test_every_slot_has_a_case() -> None:
    assert set(Slot) - CASES.keys() == ELSEWHERE
    assert set(PairSlot) - PAIR_CASES.keys() == set()


@pytest.mark.parametrize("slot", CASES, ids=lambda slot: slot.name)
def test_a_slot_counts_what_it_is_for(slot: Slot, link: Link) -> None:
    scene, whose, value = CASES[slot]
    assert scene(link)[whose][slot] == value


@pytest.mark.parametrize("slot", PAIR_CASES, ids=lambda slot: slot.name)
def test_a_slot_of_a_pair_counts_what_it_is_for(slot: PairSlot, link: Link) -> None:
    scene, whose, value = PAIR_CASES[slot]
    page = scene(link)[whose]
    assert page[page.pair(P if whose else Q) + slot] == value


def test_a_unicast_message_that_does_not_decode_waits_for_nothing(link: Link) -> None:
    stepper = Stepper()
    with TemporaryDirectory() as folder:
        worker = FakeWorker(stepper.loop, Path(folder), P, "P")

        def refuse(*_: object) -> None:
            raise DecodeError("message", "cut off")

        asked = cast(PortalLink, SimpleNamespace(send_unicast=refuse))
        core = cast(UnicastForwarding, SimpleNamespace(on_message=lambda *_: UnicastLeaves(P, 5, bytes(10))))
        addressed = AddressedData(link.ring, worker.counters, FakeQueues(), lambda _: None)
        traffic = UnicastTraffic(worker.ctx, addressed, core, asked, lambda *_: None, lambda _: None)
        with pytest.raises(DecodeError):
            traffic.on_received(bytes(10), "somebody")
        page = worker.counters
        assert [page[slot] for slot in (Slot.UNICAST_FORWARDED, Slot.UNICAST_DROPPED_ERROR)] == [1, 1]
        assert (page[Slot.UNICAST_QUEUED], page[Slot.UNICAST_QUEUED_BYTES]) == (0, 0)
    stepper.loop.close()


def test_a_flow_without_trouble_moves_no_slot_of_trouble(link: Link) -> None:
    _, sender = flow(link)
    trouble = [slot for slot in Slot if slot.name.startswith(("DROPPED", "QUEUED"))]
    assert {slot.name: sender[slot] for slot in trouble if sender[slot]} == {}


@pytest.mark.parametrize("slots", [Slot, PairSlot])
def test_no_two_slots_are_the_same_cell(slots: type[IntEnum]) -> None:
    assert len(slots.__members__) == len(set(slots))


def test_the_numbers_of_slots_stay_as_they_are() -> None:
    """A page outlives the process that writes it; a slot is only ever added."""
    assert set(Slot) == {
        *range(62), *range(64, 77), *range(80, 90), *range(96, 140), *range(160, 215), *range(216, 249),
        *range(250, 283), *range(284, 326), *range(330, 348),
    }  # fmt: skip
    assert set(PairSlot) == {*range(14)}

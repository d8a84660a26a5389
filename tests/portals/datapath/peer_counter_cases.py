"""What moves the slots of a peer portal, see `test_counters`; an earlier process had counted `EARLIER` of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Final, cast

from dro.bus.counters import CounterPage
from dro.bus.totals import Totals
from dro.clock import s
from dro.metrics.slots import Slot
from dro.metrics.table import PORTAL, bounds_of
from dro.proto.peerlink.datagram_session import DatagramCounts
from dro.proto.peerlink.session import LinkEnd, RttStatistics
from dro.proto.repair.receiver import ReceiverStats
from dro.proto.repair.source import SourceStats
from dro.proto.unicast.connections import OnOutcome, Outcome
from dro.proto.unicast.contexts import KnownContexts
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import RawBlock
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import CtxInstD, Stream, UmeRxReq
from dro.wire.lbmc.dro_blocks import TnwgKeepalive
from portals.datapath.addressed import AddressedData
from portals.decisions.immediate.unicast import UnicastForwarding, UnicastLeaves
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX
from portals.peer.datagrams.gauges import datagram_totals, recovery_gauges
from portals.peer.link_watch import LinkWatch
from portals.peer.process.gauges import LinkGauges
from portals.peer.stream.sender import LinkCounters
from portals.peer.stream.writer import LinkWriter, count_lost
from portals.shell.link import Link as PortalLink
from portals.shell.unicast import UnicastTraffic
from tests.fakes.queues import FakeQueues
from tests.fakes.stream import FakeStream
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker
from tests.portals.datapath.test_data_path import BlockingSender, Link, P, control, data, request

Scene = Callable[[Link], tuple[CounterPage, CounterPage]]
Cases = dict[Slot, tuple[Scene, int, int]]
RECEIVER, SENDER = 0, 1
EARLIER: Final = 1000
BOUNDS: Final = bounds_of(PORTAL, "RTT")
TIMES: Final = (*BOUNDS, BOUNDS[-1] + 1)
"""One more of each than of the one before."""


def cells(name: str) -> list[Slot]:
    """Of the buckets of a histogram."""
    return [Slot[name], *(Slot[f"{name}_{at}"] for at in range(1, len(TIMES)))]


def cases(scene: Scene, values: Mapping[Slot, int], earlier: int = 0) -> Cases:
    """All of the portal that receives."""
    return {slot: (scene, RECEIVER, earlier + value) for slot, value in values.items()}


def put_earlier(page: CounterPage, slots: Iterable[Slot]) -> None:
    for slot in slots:
        page.set(slot, EARLIER)


def unknown_source(link: Link) -> tuple[CounterPage, CounterPage]:
    link.ingress.counts_unknown = True
    link.receive(data(9, 0, bytes(10)) + request(9, 1, bytes(7)) + control(9))  # 22 31 20
    return link.page_p, link.page_q


def not_operational(link: Link) -> tuple[CounterPage, CounterPage]:
    """The link is down: two do not fit into the queue, three are thrown away, and one has no proxy source any more."""
    link.egress.is_operational = False
    link.egress.queue.set_limit(300)
    proxy = link.add_source(1, BlockingSender(room=0))
    link.receive(b"".join(data(1, sqn, bytes(88)) for sqn in range(5)))
    link.carry()
    link.egress.drop_waiting()
    link.egress.flush(proxy)
    link.receive(data(1, 5, bytes(1)))
    link.carry()
    return link.page_p, link.page_q


NOT_OPERATIONAL: Final[Cases] = {
    Slot.DROPPED_NOT_OPERATIONAL: (not_operational, SENDER, 6),
    Slot.DROPPED_NOT_OPERATIONAL_BYTES: (not_operational, SENDER, 5 * 100 + 13),
}
UNKNOWN_SOURCE: Final[Cases] = {
    Slot.UNKNOWN_SOURCE: (unknown_source, RECEIVER, 2),
    Slot.UNKNOWN_SOURCE_BYTES: (unknown_source, RECEIVER, 22 + 31),
    Slot.UNKNOWN_SOURCE_REQ: (unknown_source, RECEIVER, 1),
    Slot.UNKNOWN_SOURCE_REQ_BYTES: (unknown_source, RECEIVER, 31),
    Slot.UNKNOWN_SOURCE_CONTROL: (unknown_source, RECEIVER, 1),
    Slot.UNKNOWN_SOURCE_CONTROL_BYTES: (unknown_source, RECEIVER, 20),
}


def of_the_link(link: Link) -> tuple[CounterPage, CounterPage]:
    """Up for the 16th time; the last keepalive was answered five seconds ago."""
    page, rtt = link.page_p, RttStatistics()
    watch, sent = LinkWatch(0, is_initiator=True, address=""), LinkCounters()
    put_earlier(page, [slot for slot in LINKS if slot not in LINK_NOW])
    gauges = LinkGauges(page, rtt, watch, sent)
    for count, end in enumerate(LinkEnd, 1):
        for _ in range(count):
            watch.on_up(0)
            watch.on_down(0, "", "", end)
    watch.on_up(0)
    watch.repairs, rtt.asked, sent.lost_bytes = 7, 150, 70
    for _ in range(6):
        watch.on_attempt_failed(LinkEnd.ERROR)
    for count, rtt_us in enumerate(TIMES, 1):
        for _ in range(count):
            rtt.add(rtt_us, s(1))
    for messages, nbytes in ((2, 20), (1, 10), (6, 60)):
        sent.on_batch(messages, nbytes)
    for _ in range(2):
        gauges.show(s(6), 1000, {PATTERN_NONE: 4, PATTERN_PCRE: 5, PATTERN_REGEX: 6}, 8)
    return page, link.page_q


ANSWERS: Final = sum(range(1, len(TIMES) + 1))
ANSWERED_US: Final = sum(count * rtt_us for count, rtt_us in enumerate(TIMES, 1))
LINK_NOW: Final = {
    Slot.LINK_UP: 1,
    Slot.LINK_RECONNECTS: EARLIER + 15,
    Slot.LINK_BATCH_MIN_BYTES: 10,
    Slot.LINK_BATCH_MEAN_BYTES: 30,
    Slot.LINK_BATCH_MAX_BYTES: 60,
    Slot.BATCH_MIN_MESSAGES: 1,
    Slot.BATCH_MEAN_MESSAGES: 3,
    Slot.BATCH_MAX_MESSAGES: 6,
    Slot.RTT_MIN_US: 100,
    Slot.RTT_MEAN_US: ANSWERED_US // ANSWERS,
    Slot.RTT_MAX_US: 2_500_001,
    Slot.KEEPALIVE_ANSWERED_S: 995,
}
_COUNTED: Final = {
    Slot.CONNECTS: 16,
    Slot.DISCONNECTED_REMOTE: 1,
    Slot.DISCONNECTED_ERROR: 2,
    Slot.DISCONNECTED_TIMEOUT: 3,
    Slot.DISCONNECTED_NEGOTIATION: 4,
    Slot.DISCONNECTED_SHUTDOWN: 5,
    Slot.CONNECT_FAILURES: 6,
    Slot.KEEPALIVES_SENT: 150,
    Slot.LINK_REPAIRS: 7,
    Slot.LINK_BATCHES: 3,
    Slot.LINK_LOST_BYTES: 70,
    Slot.RTT_SAMPLES: ANSWERS,
    **{slot: count for count, slot in enumerate(cells("RTT"), 1)},
    Slot.RTT_SUM: ANSWERED_US,
}
LINKS: Final = cases(of_the_link, LINK_NOW) | cases(of_the_link, _COUNTED, EARLIER)


def datagrams(link: Link) -> tuple[CounterPage, CounterPage]:
    page, counts = link.page_p, DatagramCounts()
    put_earlier(page, _DATAGRAMS)
    totals = Totals(page, datagram_totals(counts))
    counts.received = ReceiverStats(
        msgs_rcved=1, bytes_rcved=2, nak_pckts_sent=3, naks_sent=4, lost=5, ncfs_ignored=6, ncfs_shed=7,
        ncfs_rx_delay=8, ncfs_unknown=9, duplicate_data=10, unrecovered_txw=11, unrecovered_tmo=12,
        dgrams_dropped_other=13,
    )  # fmt: skip
    counts.sent = SourceStats(
        msgs_sent=14, bytes_sent=15, nak_pckts_rcved=16, naks_rcved=17, naks_ignored=18, naks_shed=19,
        naks_rx_delay_ignored=20, rxs_sent=21, rx_bytes_sent=22,
    )  # fmt: skip
    dropped = {"size": 23, "type": 24, "version": 25, "header": 26, "session": 27, "foreign": 28, "forged": 1}
    for reason, count in dropped.items():
        for _ in range(count):
            counts.drop(reason)
    for waited_us, naks in ((700, 1), (500, 1), (1200, 4)):
        counts.recoveries.us.add(waited_us)
        counts.recoveries.naks.add(naks)
    for _ in range(2):
        totals.show(datagram_totals(counts))
    for slot, value in recovery_gauges(counts.recoveries).items():
        page.set(slot, value)
    return page, link.page_q


_DATAGRAMS: Final = {
    Slot.UDP_RCVD: 1,
    Slot.UDP_RCVD_BYTES: 2,
    Slot.UDP_NAK_PACKETS_SENT: 3,
    Slot.UDP_NAKS_SENT: 4,
    Slot.UDP_LOST: 5,
    Slot.UDP_NCFS_IGNORED: 6,
    Slot.UDP_NCFS_SHED: 7,
    Slot.UDP_NCFS_RX_DELAY: 8,
    Slot.UDP_NCFS_UNKNOWN: 9,
    Slot.UDP_DUPLICATES: 10,
    Slot.UDP_UNRECOVERED_WINDOW: 11,
    Slot.UDP_UNRECOVERED_TIMEOUT: 12,
    Slot.UDP_DROPPED_SIZE: 23,
    Slot.UDP_DROPPED_TYPE: 24,
    Slot.UDP_DROPPED_VERSION: 25,
    Slot.UDP_DROPPED_HEADER: 26,
    Slot.UDP_DROPPED_SESSION: 27,
    Slot.UDP_DROPPED_OTHER: 28 + 1 + 13,
    Slot.UDP_SENT: 14,
    Slot.UDP_SENT_BYTES: 15,
    Slot.UDP_NAK_PACKETS_RCVD: 16,
    Slot.UDP_NAKS_RCVD: 17,
    Slot.UDP_NAKS_IGNORED: 18,
    Slot.UDP_NAKS_SHED: 19,
    Slot.UDP_NAKS_RX_DELAY: 20,
    Slot.UDP_RETRANSMITTED: 21,
    Slot.UDP_RETRANSMITTED_BYTES: 22,
}
_RECOVERIES: Final = {
    Slot.UDP_RECOVERY_MIN_US: 500,
    Slot.UDP_RECOVERY_MEAN_US: 800,
    Slot.UDP_RECOVERY_MAX_US: 1200,
    Slot.UDP_NAKS_PER_LOSS_MIN: 1,
    Slot.UDP_NAKS_PER_LOSS_MEAN: 2,
    Slot.UDP_NAKS_PER_LOSS_MAX: 4,
}
DATAGRAMS: Final = cases(datagrams, _DATAGRAMS, EARLIER) | cases(datagrams, _RECOVERIES)

STREAM: Final = Stream(1, 1, b"somebody")
RXREQ: Final = lbmc.encode(lbmc.control_message(UmeRxReq(1, 2, 3, 4, 5, 6), CtxInstD(b"instance"), STREAM))
UNKNOWN: Final = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, (RawBlock(0x66, bytes(6)), STREAM)))
FOR_NOBODY: Final = lbmc.encode(lbmc.control_message(TnwgKeepalive(0, 0, 0)))


class DownLink:
    """A link that is not there."""

    def send_unicast(self, domain_id: int, message: bytes, on_outcome: OnOutcome) -> None:
        on_outcome(Outcome.DOWN)


def unicast(link: Link) -> tuple[CounterPage, CounterPage]:
    """A request for retransmission, two of an unknown destination, three of no use, and one for a link that is down."""
    stepper = Stepper()
    with TemporaryDirectory() as folder:
        worker = FakeWorker(stepper.loop, Path(folder), P, "P")
        sender = AddressedData(link.ring, worker.counters, FakeQueues(), lambda _: None)
        core = UnicastForwarding(P, 0, KnownContexts())
        down = cast(PortalLink, DownLink())
        traffic = UnicastTraffic(worker.ctx, sender, core, down, lambda *_: None, lambda _: None)
        for message in (RXREQ, *[UNKNOWN] * 2, *[FOR_NOBODY] * 3):
            traffic.on_received(message, "somebody")
        leaves = UnicastLeaves(P, 5, bytes(40))
        traffic._core = cast(UnicastForwarding, SimpleNamespace(on_message=lambda message, now_ns: leaves))
        traffic.on_received(bytes(40), "somebody")
        for slot in UNICAST:
            link.page_p.set(slot, worker.counters[slot])
    stepper.loop.close()
    return link.page_p, link.page_q


UNICAST: Final[Cases] = {
    Slot.RXREQ_RCVD: (unicast, RECEIVER, 1),
    Slot.RXREQ_RCVD_BYTES: (unicast, RECEIVER, len(RXREQ)),
    Slot.UNICAST_UNKNOWN_FORWARDING: (unicast, RECEIVER, 2),
    Slot.UNICAST_UNKNOWN_FORWARDING_BYTES: (unicast, RECEIVER, 2 * len(UNKNOWN)),
    Slot.UNICAST_CONTROL_UNHANDLED: (unicast, RECEIVER, 3),
    Slot.UNICAST_CONTROL_UNHANDLED_BYTES: (unicast, RECEIVER, 3 * len(FOR_NOBODY)),
    Slot.UNICAST_DROPPED_NOT_OPERATIONAL: (unicast, RECEIVER, 1),
    Slot.UNICAST_DROPPED_NOT_OPERATIONAL_BYTES: (unicast, RECEIVER, 40),
}


def control_lost(link: Link) -> tuple[CounterPage, CounterPage]:
    """Two messages wait when the connection ends, and one is made while there is none."""
    stepper = Stepper()
    writer = LinkWriter(stepper.loop, lambda: None, lambda: None)
    writer.open(FakeStream(room=0))
    writer.put_urgent(bytes(10))
    writer.put(bytes(20))
    stepper.settle()
    writer.close()
    for _ in range(2):
        writer.control.move_to(link.page_p)
    count_lost(link.page_p, bytes(30))
    stepper.loop.close()
    return link.page_p, link.page_q


CONTROL: Final[Cases] = {
    Slot.GATEWAY_CONTROL_NOT_OPERATIONAL: (control_lost, RECEIVER, 3),
    Slot.GATEWAY_CONTROL_NOT_OPERATIONAL_BYTES: (control_lost, RECEIVER, 60),
}
PEER_CASES: Final = NOT_OPERATIONAL | UNKNOWN_SOURCE | LINKS | DATAGRAMS | UNICAST | CONTROL

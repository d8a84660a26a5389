"""Unicast messages through a DRO on real sockets: real portals in one process, contexts in their TRDs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dro.bus.messages import ROUTE_MESSAGES, RouteInfoHeard, SendRouteInfo
from dro.metrics.slots import Slot
from dro.transport import sockets
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import CtxInstD, Destination, LjiReq, Stream
from dro.wire.lbmc.dro_blocks import RouteInfo
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.extended import ContextFlag, RemoteContextRecord, RemoteName
from dro.wire.lbmr.options import ExtendedFunctionality, Functionality, LateJoin, PacketOptions, standard_options
from dro.wire.lbmr.tnwg import TnwgAddress, TnwgContextFlag, TnwgContextInfo, TnwgContextInstance, TnwgDomain
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_endpoint import HERE, SIBLING, THERE, OneEndpoint, one_endpoint
from tests.rigs.one_process import Application, OneProcess, one_process

LOOPBACK = sockets.ip_number("127.0.0.1")
ROUTE = lbmc.encode(lbmc.control_message(RouteInfo(1 << 63 | 7, 1, 1, 100)))


class Peer:
    """A context in a TRD that sends unicast messages by way of the DRO, and keeps what comes to its request port."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.context = application.context
        self.got: list[lbmc.Message] = []
        self.offers: dict[int, tuple[int, int]] = {}  # domain -> DRO that takes unicast messages for it
        self.sqn = 0
        self.context.on_unicast = lambda data, _: self.got.append(lbmc.decode(data))
        self.context.on_domain_route = self._on_domain_route

    def _on_domain_route(self, domains: tuple[int, ...], ip: int, port: int) -> None:
        self.offers |= dict.fromkeys(domains, (ip, port))

    @property
    def domain_id(self) -> int:
        return self.application.trd

    def destination(self, to: Peer) -> Destination:
        ip, port = to.context.request_address
        own_ip, own_port = self.context.request_address
        return Destination(to.domain_id, ip, port, self.domain_id, own_ip, own_port)

    def stream(self) -> Stream:
        self.sqn += 1
        return Stream(5, self.sqn - 1, self.context.context_instance)

    def send(self, domain_id: int, message: lbmc.Message) -> None:
        self.context.send_unicast(*self.offers[domain_id], lbmc.encode(message))

    def send_data(self, to: Peer, payload: bytes) -> None:
        blocks = (self.destination(to), self.stream())
        self.send(to.domain_id, lbmc.Message(MessageType.MESSAGE, 0, 0, blocks, payload))


def peers(dro: OneProcess, *trds: int) -> list[Peer]:
    """With a topic each, so that they hear from the DRO; once they know its domain routes."""
    made = [Peer(dro.application(trd)) for trd in trds]
    others = {trd: set(dro.portals) - {trd} for trd in trds}
    dro.until(lambda: all(peer.offers.keys() >= others[peer.domain_id] for peer in made))
    return made


def test_a_message_crosses_the_dro_and_its_answer_comes_back(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        one, two = peers(dro, 1, 2)
        for number in range(100):
            one.send_data(two, b"question %d" % number)
            dro.stepper.settle()
        dro.until(lambda: len(two.got) >= 100)
        assert [message.payload for message in two.got] == [b"question %d" % number for number in range(100)]
        arrived = two.got[0].get(Destination)
        assert arrived == replace(one.destination(two), hops_taken=1), "it is left in place"
        two.send_data(one, b"answer")
        dro.until(lambda: len(one.got) == 1)
        assert one.got[0].payload == b"answer"
        pages = dro.workers[1].counters, dro.workers[2].counters
        assert [page[Slot.UNICAST_DATA_RCVD] for page in pages] == [100, 1]
        assert [page[Slot.UNICAST_FORWARDED] for page in pages] == [1, 100]
        assert [page[Slot.UNICAST_SENT] for page in pages] == [1, 100]


def test_late_join_crosses_as_the_proxy_source_offers_it(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        one, two = peers(dro, 1, 2)
        ip, port = one.context.request_address
        offered = (
            ExtendedFunctionality(port=port, ip=ip, flags=Functionality.LATE_JOIN),
            LateJoin(port=port, ip=ip, transport_index=77, high_sqn=4, low_sqn=2),
        )
        source = one.context.open_source(b"AAA", tir_options=offered)
        two.context.want_topic(b"AAA")
        dro.until(lambda: two.application.topics() == {b"AAA"})
        (bound,) = two.application.bound(b"AAA")
        assert bound.tir.options is not None
        found = [item for item in bound.tir.options.items if isinstance(item, ExtendedFunctionality | LateJoin)]
        assert found == sorted(offered, key=lambda item: isinstance(item, ExtendedFunctionality))
        here_ip, here_port = two.context.request_address
        request = LjiReq(9, 77, source.topic_index, here_ip, here_port)
        two.send(1, lbmc.control_message(request, two.destination(one), two.stream()))
        dro.until(lambda: len(one.got) == 1)
        assert one.got[0].get(LjiReq) == request
        for sqn in (2, 3, 4):
            blocks = (one.destination(two), one.stream())
            one.send(2, lbmc.Message(MessageType.RETRANSMISSION, 9, sqn, blocks, b"again"))
        dro.until(lambda: len(two.got) == 3)
        assert [(m.type, m.topic_index, m.sqn) for m in two.got] == [
            (MessageType.RETRANSMISSION, 9, n) for n in (2, 3, 4)
        ]


def test_a_message_for_a_context_instance_finds_it_once_the_siblings_were_asked(
    tmp_path: Path, stepper: Stepper
) -> None:
    with one_process(tmp_path, stepper, 3) as dro:
        one, two, _ = peers(dro, 1, 2, 3)
        asked: list[lbmr.ContextInfo] = []

        def answer(packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
            body = packet.body
            if isinstance(body, lbmr.ContextInfo) and body.flags & ContextFlag.QUERY:
                asked.append(body)
                ip, port = two.context.request_address
                flags = ContextFlag.ADDRESS | ContextFlag.INSTANCE
                info = lbmr.ContextInfo(0, flags, port, ip, two.context.context_instance)
                two.context.resolution.send([lbmr.encode(lbmr.Packet(lbmr.VERSION, two.context.packet_options, info))])

        two.context.on_tr_packet = answer
        blocks = CtxInstD(two.context.context_instance)
        one.send(2, lbmc.Message(MessageType.MESSAGE, 0, 0, (blocks, one.stream()), b"lost"))
        dro.until(lambda: bool(asked))
        dro.run(500)
        assert asked[0].instance == two.context.context_instance
        one.send(2, lbmc.Message(MessageType.MESSAGE, 0, 0, (blocks, one.stream()), b"found"))
        dro.until(lambda: bool(two.got))
        assert [message.payload for message in two.got] == [b"found"]
        assert dro.workers[1].counters[Slot.UNICAST_NO_CONTEXT] == 1


def test_a_name_that_is_asked_for_in_one_trd_is_answered_from_another(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        one, two = peers(dro, 1, 2)
        answers: list[lbmr.RemoteContextInfo] = []

        def answer(packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
            body = packet.body
            if isinstance(body, lbmr.ContextInfo) and body.flags & ContextFlag.QUERY and body.name == b"store":
                ip, port = two.context.request_address
                flags = ContextFlag.ADDRESS | ContextFlag.INSTANCE
                info = lbmr.ContextInfo(0, flags, port, ip, two.context.context_instance, b"store")
                two.context.resolution.send([lbmr.encode(lbmr.Packet(lbmr.VERSION, two.context.packet_options, info))])

        def keep(packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
            if isinstance(packet.body, lbmr.RemoteContextInfo):
                answers.append(packet.body)

        two.context.on_tr_packet, one.context.on_tr_packet = answer, keep
        question = lbmr.ContextInfo(0, ContextFlag.QUERY, name=b"store")
        one.context.resolution.send([lbmr.encode(lbmr.Packet(lbmr.VERSION, one.context.packet_options, question))])
        dro.until(lambda: bool(answers))
        (record,) = answers[0].records
        ip, port = two.context.request_address
        assert [vars_of(option) for option in record.options] == [
            (2, ip, port), (two.context.context_instance,), (b"store",)
        ]  # fmt: skip


@pytest.mark.parametrize(
    "question",
    [
        lbmr.ContextInfo(0, ContextFlag.QUERY, name=b"n" * 234),
        lbmr.RemoteContextInfo((RemoteContextRecord((RemoteName(b"n" * 250),), 0x8000),)),
    ],
)
def test_a_question_for_a_name_that_cannot_be_told_on_is_left_alone(
    tmp_path: Path, stepper: Stepper, question: lbmr.Body
) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        one, two = peers(dro, 1, 2)
        one.context.resolution.send([lbmr.encode(lbmr.Packet(lbmr.VERSION, one.context.packet_options, question))])
        dro.run(1000)
        one.send_data(two, b"and it goes on")
        dro.until(lambda: len(two.got) == 1)


def vars_of(option: object) -> tuple[object, ...]:
    names = ("domain_id", "ip", "port", "instance", "name")
    return tuple(getattr(option, name) for name in names if hasattr(option, name))


# one portal, message by message


def in_the_trd(one: OneEndpoint) -> Peer:
    peer = Peer(one.dro.application(HERE))
    one.dro.until(lambda: THERE in peer.offers)
    return peer


def far(peer: Peer, **more: int) -> Destination:
    there = Destination(THERE, LOOPBACK, 9, HERE, *peer.context.request_address)
    return replace(there, **more)  # type: ignore[arg-type]  # its numbers


Case = tuple[Callable[[Peer], lbmc.Message], Slot, Slot]
DATA, CONTROL = MessageType.MESSAGE, MessageType.CONTROL


def of_type(kind: MessageType, *blocks: AnyBlock) -> lbmc.Message:
    if kind is CONTROL:
        return lbmc.control_message(*blocks)
    return lbmc.Message(kind, 0, 0, blocks, b"x")


CASES: dict[str, Case] = {
    "data without an address": (
        lambda peer: of_type(DATA, peer.stream()), Slot.UNICAST_DATA_RCVD, Slot.UNICAST_DATA_NO_FORWARDING,
    ),
    "control without an address": (
        lambda peer: of_type(CONTROL, peer.stream()), Slot.UNICAST_CONTROL_RCVD, Slot.UNICAST_CONTROL_NO_FORWARDING,
    ),
    "data without a stream": (
        lambda peer: of_type(DATA, far(peer)), Slot.UNICAST_DATA_RCVD, Slot.UNICAST_DATA_NO_STREAM,
    ),
    "control without a stream": (
        lambda peer: of_type(CONTROL, far(peer)), Slot.UNICAST_CONTROL_RCVD, Slot.UNICAST_CONTROL_NO_STREAM,
    ),
    "data without a route": (
        lambda peer: of_type(DATA, far(peer, domain_id=55), peer.stream()),
        Slot.UNICAST_DATA_RCVD, Slot.UNICAST_DATA_NO_ROUTE,
    ),
    "control without a route": (
        lambda peer: of_type(CONTROL, far(peer, domain_id=55), peer.stream()),
        Slot.UNICAST_CONTROL_RCVD, Slot.UNICAST_CONTROL_NO_ROUTE,
    ),
    "too many hops": (
        lambda peer: of_type(DATA, far(peer, hops_taken=254), peer.stream()),
        Slot.UNICAST_DATA_RCVD, Slot.UNICAST_HOPS,
    ),
    "an unknown context": (
        lambda peer: of_type(DATA, CtxInstD(b"whoisit?"), peer.stream()),
        Slot.UNICAST_DATA_RCVD, Slot.UNICAST_NO_CONTEXT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_sent_on_is_counted_with_the_reason(tmp_path: Path, stepper: Stepper, case: str) -> None:
    made, received, dropped = CASES[case]
    with one_endpoint(tmp_path, stepper) as one:
        peer = in_the_trd(one)
        message = made(peer)
        peer.send(THERE, message)
        one.dro.until(lambda: one.worker.counters[received] == 1)
        nbytes = len(lbmc.encode(message))
        assert [one.worker.counters[slot] for slot in (received + 1, dropped, dropped + 1)] == [nbytes, 1, nbytes]
        assert one.worker.counters[Slot.ADDRESSED_HANDED] == (case == "an unknown context"), "a question"


def test_what_is_sent_twice_is_handed_over_once(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        peer = in_the_trd(one)
        for kind in (DATA, CONTROL):
            message = of_type(kind, far(peer), peer.stream())
            peer.send(THERE, message)
            peer.send(THERE, message)
        page = one.worker.counters
        one.dro.until(lambda: page[Slot.UNICAST_CONTROL_RCVD] == 2)
        assert [page[slot] for slot in (Slot.UNICAST_DATA_DUP, Slot.UNICAST_CONTROL_DUP)] == [1, 1]
        assert page[Slot.ADDRESSED_HANDED] == 2


def test_a_message_for_the_own_trd_leaves_where_it_came_in(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        peer, other = in_the_trd(one), in_the_trd(one)
        blocks = (peer.destination(other), peer.stream())
        peer.send(THERE, lbmc.Message(DATA, 0, 0, blocks, b"neighbour"))
        one.dro.until(lambda: bool(other.got))
        assert other.got[0].payload == b"neighbour"


def test_a_message_for_the_dro_itself_is_not_sent_round(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        peer = in_the_trd(one)
        ip, port = one.portal.sending.request_address
        peer.send(THERE, of_type(DATA, far(peer, domain_id=HERE, ip=ip, port=port), peer.stream()))
        one.dro.until(lambda: one.worker.counters[Slot.UNICAST_UNHANDLED] == 1)


def test_in_a_transit_trd_it_goes_to_the_dro_that_offers_the_domain(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        neighbour = in_the_trd(one)
        message = lbmc.encode(of_type(DATA, Destination(7, LOOPBACK, 9, THERE, 1, 1), neighbour.stream()))
        outcomes: list[object] = []
        one.portal.send_unicast(7, message, outcomes.append)
        assert [str(outcome) for outcome in outcomes] == ["Outcome.FAILED"], "nobody offers it yet"
        options = of_a_dro(neighbour)
        route = lbmr.RemoteDomainRoute(*neighbour.context.request_address, 0, (7,))
        neighbour.context.resolution.send([lbmr.encode(lbmr.Packet(lbmr.VERSION, options, route))])
        stepper.settle()
        one.portal.send_unicast(7, message, outcomes.append)
        one.dro.until(lambda: bool(neighbour.got))
        assert lbmc.encode(neighbour.got[0]) == message
        assert len(outcomes) == 2


# the other DROs of the TRD


def of_a_dro(peer: Peer) -> PacketOptions:
    return standard_options(peer.context.context_instance, lbmr.SenderType.DRO, HERE)


def announce(peer: Peer, flags: int = TnwgContextFlag.DRO_SOURCE) -> None:
    ip, port = peer.context.request_address
    items = (TnwgContextInstance(peer.context.context_instance), TnwgAddress(port, ip=ip), TnwgDomain(HERE))
    options = of_a_dro(peer)
    body = TnwgContextInfo(0, flags, options=items)
    peer.context.resolution.send([lbmr.encode(lbmr.Packet(lbmr.VERSION, options, body))])


def test_route_information_goes_to_the_other_dros_of_the_trd(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        neighbour, application = in_the_trd(one), in_the_trd(one)
        one.worker.channels.sent.clear()
        announce(neighbour)
        stepper.settle()
        reports = [ROUTE_MESSAGES.decode(frame) for worker, frame in one.worker.channels.sent if worker == 0]
        assert reports == [one.portal.describe()], "so that it says everything it knows"
        one.worker.channels.on_ctl(0, ROUTE_MESSAGES.encode(SendRouteInfo(ROUTE)))
        one.dro.until(lambda: bool(neighbour.got))
        assert [lbmc.encode(message) for message in neighbour.got] == [ROUTE]
        assert application.got == []
        assert one.worker.counters[Slot.GATEWAY_CONTROL_SENT] == 1


def test_route_information_of_others_goes_to_the_route_manager(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        neighbour = in_the_trd(one)
        announce(neighbour)
        stepper.settle()
        one.worker.channels.sent.clear()
        one.dro.workers[0].channels.on_ctl = lambda *_: None
        neighbour.context.send_unicast(*one.portal.sending.request_address, ROUTE)
        one.dro.until(lambda: one.worker.counters[Slot.GATEWAY_CONTROL_RCVD] == 1)
        heard = [ROUTE_MESSAGES.decode(frame) for worker, frame in one.worker.channels.sent if worker == 0]
        (report,) = heard
        assert isinstance(report, RouteInfoHeard)
        assert report == RouteInfoHeard(1, ROUTE, neighbour.context.request_address[0], report.port)
        assert report.port, "of its connection"
        assert one.worker.counters[Slot.UNICAST_CONTROL_RCVD] == 0


def test_route_information_from_an_address_without_a_dro_is_refused(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        stranger = in_the_trd(one)
        one.worker.channels.sent.clear()
        stranger.context.send_unicast(*one.portal.sending.request_address, ROUTE)
        one.dro.until(lambda: one.worker.counters[Slot.GATEWAY_CONTROL_REFUSED] == 1)
        assert [frame for worker, frame in one.worker.channels.sent if worker == 0] == []


def test_a_flood_of_route_information_does_not_reach_the_route_manager(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        neighbour = in_the_trd(one)
        announce(neighbour)
        stepper.settle()
        one.dro.workers[0].channels.on_ctl = lambda *_: None
        for _ in range(2500):
            neighbour.context.send_unicast(*one.portal.sending.request_address, ROUTE)
            stepper.loop.run_once(0)
        page = one.worker.counters
        one.dro.until(lambda: page[Slot.GATEWAY_CONTROL_RCVD] + page[Slot.GATEWAY_CONTROL_LIMITED] == 2500, 900)
        assert page[Slot.GATEWAY_CONTROL_RCVD] == 2000


def test_a_query_of_another_dro_is_answered(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        neighbour = in_the_trd(one)
        one.dro.run(5000)
        heard: list[TnwgContextInfo] = []

        def keep(packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
            if isinstance(packet.body, TnwgContextInfo):
                heard.append(packet.body)

        neighbour.context.on_tr_packet = keep
        announce(neighbour, TnwgContextFlag.DRO_SOURCE | TnwgContextFlag.QUERY)
        one.dro.until(lambda: bool(heard), 1000)
        sending = one.portal.sending
        ip, port = sending.request_address
        items = (TnwgContextInstance(sending.context_instance), TnwgAddress(port, ip=ip), TnwgDomain(HERE))
        assert heard == [TnwgContextInfo(0, TnwgContextFlag.DRO_SOURCE, options=items)]
        assert SIBLING not in one.dro.portals

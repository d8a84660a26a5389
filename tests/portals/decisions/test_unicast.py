"""What becomes of a unicast message that a portal takes in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dro.bus.messages import Route
from dro.clock import s
from dro.proto.unicast.contexts import ContextPlace, KnownContexts
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.addressing import read_addressing
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import CtxInstD, Destination, Stream
from dro.wire.lbmc.dro_blocks import CtxInfo, RouteInfo, TnwgKeepalive
from portals.decisions.immediate.unicast import (
    HOPS_HIGH,
    ForContexts,
    ForRoutes,
    UnicastDropped,
    UnicastDropReason,
    UnicastForwarding,
    UnicastLeaves,
    Verdict,
)
from portals.decisions.routes import entering_routes

ME, SIBLING, HERE, THERE = 1, 2, 10, 20
INSTANCE = b"instance"
ROUTES = (Route((HERE, 30), THERE, ME, SIBLING), Route((THERE,), HERE, SIBLING, ME), Route((30,), 40, SIBLING, 3))


class Scene:
    def __init__(self, domain_id: int = HERE) -> None:
        self.contexts = KnownContexts()
        self.core = UnicastForwarding(ME, domain_id, self.contexts)
        self.core.on_routes(entering_routes(ME, ROUTES))
        self.sqn = 0

    def stream(self) -> Stream:
        self.sqn += 1
        return Stream(1, self.sqn, b"somebody")

    def take(self, *blocks: AnyBlock, at_ns: int = 0) -> Verdict:
        return self.core.on_message(lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, blocks)), at_ns)


def to(domain_id: int, hops: int = 0) -> Destination:
    return Destination(domain_id, 5, 6, HERE, 7, 8, hops_taken=hops)


def hops_of(verdict: Verdict) -> int:
    assert isinstance(verdict, UnicastLeaves)
    destination = read_addressing(verdict.message).destination
    assert destination is not None
    return destination.hops_taken


def test_a_message_leaves_by_the_portal_that_the_routes_name_one_dro_further() -> None:
    scene = Scene()
    verdict = scene.take(to(THERE, 3), scene.stream())
    assert isinstance(verdict, UnicastLeaves)
    assert (verdict.worker, verdict.domain_id, verdict.high_hops) == (SIBLING, THERE, 0)
    assert hops_of(verdict) == 4


def test_a_message_for_the_own_domain_leaves_here() -> None:
    scene = Scene()
    verdict = scene.take(to(HERE), scene.stream())
    assert isinstance(verdict, UnicastLeaves)
    assert (verdict.worker, verdict.domain_id) == (ME, HERE)


def test_a_route_that_begins_at_another_portal_is_none() -> None:
    scene = Scene()
    assert scene.take(to(40), scene.stream()) == UnicastDropped(UnicastDropReason.NO_ROUTE, 40)
    assert Scene(domain_id=0).take(to(0), Stream(1, 1, INSTANCE)) == UnicastDropped(UnicastDropReason.NO_ROUTE, 0), (
        "of a peer portal"
    )


def test_the_checks_come_in_their_order() -> None:
    scene = Scene()
    assert scene.take() == UnicastDropped(UnicastDropReason.NO_FORWARDING)
    assert scene.take(to(99, 254)) == UnicastDropped(UnicastDropReason.NO_STREAM)
    stream = scene.stream()
    assert scene.take(to(99, 254), stream) == UnicastDropped(UnicastDropReason.HOPS, 99)
    assert scene.take(to(THERE), stream) == UnicastDropped(UnicastDropReason.DUPLICATE)
    assert scene.take(to(99), scene.stream()) == UnicastDropped(UnicastDropReason.NO_ROUTE, 99)


def test_nothing_leaves_before_the_first_routes() -> None:
    core = UnicastForwarding(ME, HERE, KnownContexts())
    for domain_id in (HERE, THERE):
        blocks = (to(domain_id), Stream(1, domain_id, INSTANCE))
        message = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, blocks))
        assert core.on_message(message, 0) == UnicastDropped(UnicastDropReason.NO_ROUTES_YET, domain_id)


def test_many_hops_are_told_and_255_are_too_many() -> None:
    scene = Scene()
    for hops, high in ((HOPS_HIGH - 2, 0), (HOPS_HIGH - 1, HOPS_HIGH), (253, 254)):
        verdict = scene.take(to(THERE, hops), scene.stream())
        assert isinstance(verdict, UnicastLeaves)
        assert verdict.high_hops == high
    assert scene.take(to(THERE, 254), scene.stream()) == UnicastDropped(UnicastDropReason.HOPS, THERE)
    assert scene.take(to(THERE, 0xFFFF), scene.stream()) == UnicastDropped(UnicastDropReason.HOPS, THERE)


def test_a_context_instance_is_looked_up_and_the_destination_comes_first() -> None:
    scene = Scene()
    assert scene.take(CtxInstD(INSTANCE), scene.stream()) == UnicastDropped(
        UnicastDropReason.NO_CONTEXT, detail=INSTANCE.hex()
    )
    scene.contexts.learn(INSTANCE, ContextPlace(THERE, 1, 2), 0)
    verdict = scene.take(CtxInstD(INSTANCE), scene.stream())
    assert isinstance(verdict, UnicastLeaves)
    assert (verdict.worker, verdict.domain_id) == (SIBLING, THERE)
    verdict = scene.take(CtxInstD(INSTANCE), to(HERE), scene.stream())
    assert isinstance(verdict, UnicastLeaves)
    assert verdict.domain_id == HERE
    assert scene.take(CtxInstD(INSTANCE), scene.stream(), at_ns=s(900)) == UnicastDropped(
        UnicastDropReason.NO_CONTEXT, detail=INSTANCE.hex()
    )


def test_what_is_for_dros_goes_no_further() -> None:
    core = Scene().core
    addressed = (to(THERE), Stream(1, 1, INSTANCE))
    for block, verdict in (
        (RouteInfo(5, 1, 1, 1), ForRoutes()),
        (CtxInfo(flags=0x4000), ForContexts()),
        (TnwgKeepalive(1, 2, 3), UnicastDropped(UnicastDropReason.UNHANDLED)),
    ):
        assert core.on_message(lbmc.encode(lbmc.control_message(block, *addressed)), 0) == verdict


@given(st.binary(min_size=1, max_size=100), st.sampled_from([0, 8, 10]))
def test_any_message_gets_a_verdict(body: bytes, kind: int) -> None:
    rest = body[1:] + bytes(8)
    message = bytes([kind, body[0]]) + (4 + len(rest)).to_bytes(2, "big") + rest
    assert Scene().core.on_message(message, 0) is not None

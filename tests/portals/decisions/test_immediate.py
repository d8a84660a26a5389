"""Where multicast immediate messages leave a DRO, and that none passes a portal twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dro.bus.messages import Route
from dro.clock import s
from dro.proto.unicast.streams import FORGET_NS
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import Block
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import ODomain, OtidBlock, Request, TopicName
from portals.decisions.immediate.multicast import (
    Class,
    ImmediateDropped,
    ImmediateDropReason,
    ImmediateForwarding,
    ImmediateLeaves,
)
from portals.decisions.routes import entering_routes

ME, HERE = 1, 10
OTID, OTHER = b"a" * 32, b"b" * 32
ROUTES = (
    Route((HERE, 11), 20, ME, 2), Route((HERE,), 30, ME, 3), Route((HERE,), 31, ME, 3), Route((20,), HERE, 2, ME),
)  # fmt: skip


def core(*routes: Route, domain_id: int = HERE) -> ImmediateForwarding:
    made = ImmediateForwarding(domain_id)
    made.on_routes(entering_routes(ME, routes or ROUTES))
    return made


def message(sqn: int = 0, *blocks: Block) -> bytes:
    return lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, sqn, blocks, b"x"))


def whole(sqn: int = 0, domain_id: int = HERE, sender: bytes = OTID) -> bytes:
    return message(sqn, TopicName(b"t"), ODomain(domain_id), OtidBlock(sender))


def leaves(verdict: ImmediateDropped | ImmediateLeaves) -> tuple[int, ...]:
    assert isinstance(verdict, ImmediateLeaves), verdict
    return verdict.workers


def why(verdict: object) -> ImmediateDropReason:
    assert isinstance(verdict, ImmediateDropped), verdict
    return verdict.why


def test_it_leaves_by_every_portal_on_a_path_from_its_origin() -> None:
    assert leaves(core().on_message(whole(), None, 0)) == (2, 3)
    assert leaves(core().on_message(whole(domain_id=11), None, 0)) == (2,)


def test_another_dro_brings_it_where_no_path_leads_through_here() -> None:
    assert leaves(core().on_message(whole(domain_id=20), None, 0)) == ()
    assert leaves(core().on_message(whole(domain_id=99), None, 0)) == ()


def test_what_is_complete_passes_unchanged() -> None:
    verdict = core().on_message(whole(), None, 0)
    assert isinstance(verdict, ImmediateLeaves)
    assert (verdict.message, verdict.kind) == (whole(), Class(has_topic=True))


def test_what_is_missing_is_filled_in_at_the_first_portal() -> None:
    verdict = core().on_message(message(7, ODomain(0), Request(1, 2, 3)), OTHER, 0)
    assert isinstance(verdict, ImmediateLeaves)
    made = lbmc.decode(verdict.message)
    assert (made.get(ODomain), made.get(OtidBlock)) == (ODomain(HERE), OtidBlock(OTHER))
    assert verdict.kind == Class(is_request=True)


def test_over_a_link_nothing_may_be_missing() -> None:
    link = core(domain_id=0)
    assert why(link.on_message(message(0, ODomain(0), OtidBlock(OTID)), None, 0)) is ImmediateDropReason.NO_DOMAIN
    assert why(link.on_message(message(0, ODomain(HERE)), None, 0)) is ImmediateDropReason.NO_DOMAIN


def test_each_reason_to_drop() -> None:
    made = core()
    assert why(made.on_message(message(0, TopicName(b"t"), OtidBlock(OTID)), OTHER, 0)) is ImmediateDropReason.NO_DOMAIN
    broken = whole()[:13] + b"\3" + whole()[14:]
    assert why(made.on_message(broken, OTHER, 0)) is ImmediateDropReason.BROKEN
    assert leaves(made.on_message(whole(5), None, 0))
    assert why(made.on_message(whole(5), None, 0)) is ImmediateDropReason.DUPLICATE
    assert leaves(made.on_message(whole(5, sender=OTHER), None, 0))
    assert why(ImmediateForwarding(HERE).on_message(whole(), None, 0)) is ImmediateDropReason.NO_ROUTES_YET


def test_both_directions_count() -> None:
    made = core()
    assert made.on_leaving(whole(1, 20), 0) == Class(has_topic=True)
    assert why(made.on_message(whole(1, 20), None, 0)) is ImmediateDropReason.DUPLICATE, "an echo"
    assert leaves(made.on_message(whole(2), None, 0))
    assert why(made.on_leaving(whole(2), 0)) is ImmediateDropReason.DUPLICATE, "another DRO was first"


def test_senders_that_are_silent_are_forgotten() -> None:
    made = core()
    assert leaves(made.on_message(whole(5), None, 0))
    assert leaves(made.on_message(whole(5), None, FORGET_NS + s(1)))


@given(data=st.binary(max_size=120))
def test_arbitrary_bytes_are_dropped_or_pass(data: bytes) -> None:
    assert isinstance(core().on_message(data, OTID, 0), ImmediateDropped | ImmediateLeaves)

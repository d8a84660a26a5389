"""A link that is not there is named, with the reason, and not too often."""

from __future__ import annotations

from dro.clock import s
from dro.proto.peerlink.session import LinkEnd
from portals.peer.link_watch import ABSENT_NS, AGAIN_NS, LinkWatch


def watch(*, is_initiator: bool = True) -> LinkWatch:
    return LinkWatch(0, is_initiator=is_initiator, address="192.0.2.1:14000")


def test_a_companion_that_never_comes_is_named_after_a_time_and_then_every_hour() -> None:
    w = watch()
    w.on_failed("Connection refused")
    assert w.next_deadline() == ABSENT_NS
    assert w.on_timer(ABSENT_NS - 1) is None
    absence = w.on_timer(ABSENT_NS)
    assert absence is not None
    assert (absence.waiting_s, absence.reason) == (60, "Connection refused")
    assert "start the DRO there" in absence.remedy
    assert w.on_timer(ABSENT_NS + s(1)) is None
    assert w.on_timer(ABSENT_NS + AGAIN_NS) is not None


def test_an_acceptor_to_which_nobody_connects_says_where_it_listens() -> None:
    absence = watch(is_initiator=False).on_timer(ABSENT_NS)
    assert absence is not None
    assert absence.reason == "nobody has connected to 192.0.2.1:14000"
    assert "192.0.2.1:14000" in absence.remedy


def test_a_link_that_is_up_is_not_named_and_one_that_was_lost_is() -> None:
    w = watch()
    w.on_up(s(1))
    w.on_failed("a second connection was refused")
    assert (w.next_deadline(), w.on_timer(s(1000)), w.error) == (None, None, "")
    w.on_down(s(1000), "the companion closed it", "", LinkEnd.REMOTE)
    assert w.next_deadline() == s(1000) + ABSENT_NS
    absence = w.on_timer(s(1060))
    assert absence is not None
    assert absence.reason == "the companion closed it"
    w.on_up(s(1070))
    assert (w.links, w.error) == (2, "")


def test_a_reason_with_a_remedy_of_its_own() -> None:
    w = watch()
    w.on_failed("the companion speaks TLS", "configure <tls> at both ends")
    assert w.why_not() == ("the companion speaks TLS", "configure <tls> at both ends")


def test_ends_are_counted_by_reason_and_attempts_that_come_to_nothing() -> None:
    """A connection that was up for a part of the link only is an attempt."""
    w = watch()
    for end in LinkEnd:
        w.on_up(0)
        w.on_down(0, "over", "", end)
    assert (w.links, w.ends, w.failures) == (5, dict.fromkeys(LinkEnd, 1), 0)
    for end in (LinkEnd.ERROR, LinkEnd.TIMEOUT):
        w.on_down(0, "half of it", "", end)
        w.on_attempt_failed(end)
    assert (w.ends, w.failures) == (dict.fromkeys(LinkEnd, 1), 4)
    w.on_attempt_failed(LinkEnd.NEGOTIATION)
    assert (w.ends[LinkEnd.NEGOTIATION], w.failures) == (2, 5)

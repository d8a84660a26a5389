"""The first reason why a topic does not flow, from what three DROs say: each reason that a network rarely shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dro.bus.listing import PeerRow, ProxyRow, SourceRow, TopicRow
from supervisor.admin.status import PortalStatus
from supervisor.explain.first_reason import BLOCKED, FLOWS, OPEN, Facts, Hop, PathFinding, first_reason
from tests.builders.portal_status import idle

OTID = "00" * 32


def hop(dro: str, entered: str, left: str) -> Hop:
    """Everything is as it should be, from domain 1 to domain 3."""
    source = SourceRow(entered, "T", OTID, 1, "", "joined", (left,), 0, 1)
    return Hop(
        dro, entered, left, 1, 1,
        Facts(
            {name: idle(name) for name in (entered, left)},
            {},
            TopicRow(entered, "T", 1, 1, (), (3,), 0),
            TopicRow(left, "T", 0, 0, (3,), (), 1),
            (source,),
            (ProxyRow(left, "source", "T", "topic", (1,), OTID),),
        ),
    )  # fmt: skip


A, B, C = hop("A", "A1", "AB"), hop("B", "BA", "BC"), hop("C", "CB", "C3")


def changed(one: Hop, **facts: object) -> Hop:
    assert one.facts is not None
    return replace(one, facts=replace(one.facts, **facts))  # type: ignore[arg-type]


def reason(*hops: Hop) -> PathFinding:
    return first_reason(list(hops), 1, 3)


def test_what_is_in_order() -> None:
    assert reason(A, B, C).verdict == FLOWS
    assert reason(A, replace(B, facts=None), C).verdict == FLOWS, "what C hears speaks for B"
    unasked = reason(A, replace(B, facts=None), replace(C, facts=None))
    assert (unasked.verdict, unasked.ask) == (OPEN, "B")
    nobody = reason(*(replace(one, facts=None) for one in (A, B, C)))
    assert (nobody.verdict, nobody.ask) == (OPEN, "A")


SOURCE = A.facts.sources[0] if A.facts is not None else None
ENTRY = A.facts.entry if A.facts is not None else None
assert SOURCE is not None
assert ENTRY is not None
UP = PeerRow("AB", "initiator", "up", 1.0)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"entry": None}, "A1 does not answer"),
        ({"exit": None}, "AB does not answer"),
        ({"entry": replace(ENTRY, asked_for=())}, "A1 does not ask for it on behalf of domain 3, though AB wants it"),
        ({"sources": (replace(SOURCE, state="not wanted"),)}, "A1 hears the source and has not joined its session"),
        ({"sources": (replace(SOURCE, forwarded_to=("A9",)),)}, "A1 does not forward the source to AB"),
        ({"sources": (replace(SOURCE, domain_id=7),)}, "A1 hears no source of domain 1"),
        ({"proxies": ()}, "AB has no proxy source of it"),
        (
            {"peers": {"AB": replace(UP, state="waiting", error="timed out", remedy="look there")}},
            "AB has no link: timed out",
        ),
        ({"portals": {"A1": idle("A1", "drained")}}, "A1 is drained"),
        ({"portals": {"AB": idle("AB", QUEUED_BYTES=50)}}, "the queue of AB has 50 of 100 bytes"),
    ],
)
def test_each_reason(facts: dict[str, object], found: str) -> None:
    finding = reason(changed(A, **facts), B, C)
    assert (finding.reason, finding.dro) == (found, "A")
    assert finding.verdict == (OPEN if "answer" in found else BLOCKED)
    assert finding.remedy


def test_interest_comes_before_data_and_the_last_dro_before_the_first() -> None:
    silent = TopicRow("C3", "T", 0, 0, (), (), 0)
    assert reason(changed(A, sources=()), B, changed(C, exit=silent)).portal == "C3"
    assert reason(changed(A, sources=()), changed(B, proxies=()), C).portal == "A1"


CUT_OFF = replace(idle("A1", LBMRDS=2), resolved_by=("lbmrd 10.0.0.1:15380, 10.0.0.2:15380",))


SILENT = "A1 hears of nothing: no lbmrd of its TRD answers"
UNHEARD = "A1 hears no source of domain 1"


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (CUT_OFF, SILENT),
        (replace(CUT_OFF, counters=CUT_OFF.counters | {"LBMRDS_ANSWERING": 1}), UNHEARD),
        (replace(CUT_OFF, counters=CUT_OFF.counters | {"SRSES": 1, "SRSES_ANSWERING": 1}), UNHEARD),
        (replace(CUT_OFF, resolved_by=("224.9.10.11:12965 on 10.0.0.9", "lbmrd 10.0.0.1:15380")), UNHEARD),
    ],
)
def test_a_portal_whose_servers_are_silent_hears_of_nothing(status: PortalStatus, found: str) -> None:
    assert reason(changed(A, sources=(), portals={"A1": status}), B, C).reason == found
    assert reason(changed(A, portals={"A1": status}), B, C).verdict == FLOWS, "what is known"
    deaf = TopicRow("C3", "T", 0, 0, (), (), 0)
    silent = replace(CUT_OFF, name="C3")
    assert reason(A, B, changed(C, exit=deaf, portals={"C3": silent})).reason == SILENT.replace("A1", "C3")


def test_what_gets_lost_between_two_dros_that_were_asked() -> None:
    deaf = TopicRow("AB", "T", 0, 0, (), (), 0)
    assert reason(changed(A, exit=deaf), B, C).remedy.startswith("B asks for it")
    assert reason(A, changed(B, sources=()), C).remedy.startswith("A forwards it")
    assert reason(replace(A, facts=None), changed(B, sources=()), C).ask == "A"


@pytest.mark.parametrize(("direction", "portal"), [("outbound", "AB"), ("inbound", "A1")])
def test_an_access_list_without_a_look_at_the_configuration(direction: str, portal: str) -> None:
    row = TopicRow(portal, "T", 0, 0, (3,), (), 0, direction)
    finding = reason(changed(A, **{"exit" if direction == "outbound" else "entry": row}), B, C)
    assert (finding.reason, finding.portal) == (f"the {direction} access list of {portal} rejects it", portal)

"""What a portal lets pass: at which of its points each list decides, how often it is asked, and what a change moves."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from dro.clock import ms
from dro.config.dro_xml.acl import Session
from dro.config.dro_xml.model import AclConfig
from dro.config.um.layers import ContextOptions
from dro.errors import ConfigError
from dro.log.events import LogEvent
from dro.proto.interest.events import InterestGained
from dro.wire.source_string import (
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    TcpAddress,
    TransportAddress,
    UnknownTransport,
)
from portals.decisions import acl_enforcement as module
from portals.decisions.acl_enforcement import OPEN, AclEnforcement, session_of
from portals.decisions.core import PortalCore
from portals.decisions.effects import (
    ChangeForwarding,
    CloseProxyReceiver,
    CloseProxySource,
    Effect,
    OpenProxyReceiver,
    OpenProxySource,
    SendToSibling,
    UpdateProxyReceiver,
)
from portals.decisions.messages import (
    PATTERN_NONE,
    PATTERN_PCRE,
    PATTERN_REGEX,
    ForwardStart,
    ForwardStop,
    InterestAdded,
    InterestRemoved,
    PortalHello,
    SourceSeen,
    StateConfirmed,
)
from tests.builders.dro_file import parse_dro
from tests.builders.routes import whole
from tests.fakes.patterns import compile_pattern
from tests.fakes.worker import logged
from tests.portals.decisions.test_core import DELAY, OTID, Dro

TCP = TcpAddress(0x7F000001, 14371, 1)


def config(inbound: str = "", outbound: str = "") -> AclConfig:
    """Each list as `+name -name +/pattern/ ...`, a name with `@tcp` behind it for that transport only."""

    def entry(word: str) -> str:
        match, name, session = ("accept" if word[0] == "+" else "reject"), word[1:], ""
        if "@" in name:
            name, _, transport = name.partition("@")
            session = f'<transport comparison="eq" value="{transport}"/>'
        named = f"<pcre-pattern>{name[1:-1]}</pcre-pattern>" if name.startswith("/") else f"<topic>{name}</topic>"
        return f'<ace match="{match}">{named if name else ""}{session}</ace>'

    def entries(name: str, text: str) -> str:
        return f"<{name}>\n{chr(10).join(map(entry, text.split()))}</{name}>" if text else ""

    lists = entries("inbound", inbound) + entries("outbound", outbound)
    portal = f"<endpoint><name>A</name><domain-id>1</domain-id><acl>{lists}</acl></endpoint>"
    raw = f'<tnw-gateway version="1.0"><portals>{portal}</portals></tnw-gateway>'
    made = parse_dro(raw.encode(), "a.xml", warn=lambda _: None).portals[0].acl
    assert made is not None
    return made


def lists(inbound: str = "", outbound: str = "") -> AclEnforcement:
    return AclEnforcement(config(inbound, outbound))


def with_access(dro: Dro, **by_portal: AclEnforcement) -> Dro:
    for name, access in by_portal.items():
        dro.cores[int(name[1:])].on_acl(access, dro.now_ns)
    dro.settle()
    for worker in dro.cores:
        dro.take(worker)
    return dro


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


@pytest.mark.parametrize(
    ("address", "session"),
    [
        (TcpAddress(5, 14371, 9), Session("tcp", source_ip=5, tcp_source_port=14371)),
        (
            LbtrmAddress(5, 0xE1000001, 9, 12000, 24000),
            Session(
                "lbt-rm", source_ip=5, multicast_group=0xE1000001, udp_source_port=24000, udp_destination_port=12000
            ),
        ),
        (LbtruAddress(5, 14380, 9), Session("lbt-ru", source_ip=5, udp_source_port=14380)),
        (IpcAddress(3, 9, 77), Session("lbt-ipc", xport_id=77)),
        (SmxAddress(3, 9, 77), Session("other")),
        (RdmaAddress(3, 9, 77), Session("other")),
        (UnknownTransport(2, b"x"), Session("other")),
    ],
)
def test_what_conditions_see_of_a_session(address: TransportAddress, session: Session) -> None:
    assert session_of(address) == session


def test_no_list_lets_everything_pass_and_is_not_asked() -> None:
    for access in (OPEN, AclEnforcement(None), AclEnforcement(AclConfig())):
        assert access.may_leave(b"x")
        assert access.may_ask(b"x", PATTERN_NONE)
        assert access.may_ask(b"(", PATTERN_PCRE)
        assert access.may_enter(b"x", TCP)
        assert not access.judges_sources


def test_each_list_answers_its_own_questions() -> None:
    access = lists(inbound="+IN +SOME@tcp", outbound="+OUT")
    assert [access.may_leave(t) for t in (b"IN", b"OUT", b"SOME")] == [False, True, False]
    assert [access.may_ask(t, PATTERN_NONE) for t in (b"IN", b"OUT", b"SOME")] == [True, False, True]
    assert [access.may_enter(t, TCP) for t in (b"IN", b"OUT", b"SOME")] == [True, False, True]
    assert not access.may_enter(b"SOME", LbtruAddress(5, 14380, 9))
    assert access.may_ask(b"OUT", PATTERN_PCRE), "a pattern is not judged by its spelling"


def test_a_transport_that_no_condition_can_name_needs_an_entry_about_the_topic_alone() -> None:
    smx = SmxAddress(3, 9, 77)
    assert not lists(inbound="+A@tcp").may_enter(b"A", smx)
    assert lists(inbound="+A").may_enter(b"A", smx)


def test_topics_are_bytes() -> None:
    access = lists(outbound="-/^\\xff/ +/./")
    assert not access.may_leave(b"\xff\xfe")
    assert access.may_leave(b"plain")


def test_a_topic_is_judged_once_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, module.log.name)
    asked: list[str] = []
    access = lists(inbound="-NO +/./", outbound="-NO +/./")
    acl = access._acl

    class Counting:
        def outbound(self, topic: str) -> object:
            asked.append(f"out {topic}")
            return acl.outbound(topic)

        def inbound(self, topic: str, session: Session | None) -> object:
            asked.append(f"in {topic}")
            return acl.inbound(topic, session)

    monkeypatch.setattr(access, "_acl", Counting())
    for _ in range(3):
        assert not access.may_leave(b"NO")
        assert access.may_leave(b"YES")
        assert not access.may_ask(b"NO", PATTERN_NONE)
    assert asked == ["out NO", "out YES", "in NO"]
    told = [(record.message, vars(record)["topic"], vars(record)["at"]) for record in caplog.records]
    assert told == [
        ("topic not let out of the DRO", "NO", "a.xml:4"), ("topic not let into the DRO", "NO", "a.xml:2")
    ]  # fmt: skip


def test_a_refused_source_is_told_with_its_session_and_the_entry(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, module.log.name)
    assert not lists(inbound="+/^x/\n-A@tcp\n+/./").may_enter(b"A", TCP)
    (record,) = [r for r in caplog.records if r.message == "source not let into the DRO"]
    fields = vars(record)
    assert (fields["topic"], fields["source"], fields["at"]) == ("A", "TCP:127.0.0.1:14371:00000001", "a.xml:3")


def test_verdicts_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 10)
    access = lists(outbound="-/5$/ +/./")
    kept = []
    for _ in range(2):
        for n in range(30):
            assert access.may_leave(b"%d" % n) is (n % 10 != 5)
            kept.append(len(access._leaving))
    assert max(kept) == 20


# the points of the core


def test_interest_rejected_on_the_way_out_is_not_told() -> None:
    dro = with_access(Dro(3), p2=lists(outbound="-AAA +/./"))
    dro.want(2, b"AAA")
    dro.want(2, b"BBB")
    assert dro.take(1) == dro.take(3) == [OpenProxyReceiver(b"BBB", 0, (2,))]
    assert len(dro.cores[2].recorded.withheld) == 1
    dro.unwant(2, b"AAA")
    assert len(dro.cores[2].recorded.withheld) == 0
    assert dro.take(1) == []


def test_remote_interest_is_judged_as_well() -> None:
    dro = with_access(Dro(3), p2=lists(outbound="-AAA +/./"))
    dro.cores[2].on_interest(InterestGained((b"AAA", PATTERN_NONE), 77), 0)
    dro.settle()
    assert dro.take(1) == []


def test_interest_that_may_not_act_opens_no_proxy_receiver() -> None:
    dro = with_access(Dro(3), p1=lists(inbound="-AAA +/./"))
    dro.want(2, b"AAA")
    assert dro.take(1) == []
    assert dro.take(3) == [OpenProxyReceiver(b"AAA", 0, (2,))]
    assert len(dro.cores[1].receivers.refused) == 1
    dro.unwant(2, b"AAA")
    assert len(dro.cores[1].receivers.refused) == 0
    assert dro.take(1) == []


def test_a_verdict_that_depends_on_the_session_lets_interest_act() -> None:
    dro = with_access(Dro(2), p1=lists(inbound="+AAA@tcp"))
    dro.want(2, b"AAA")
    dro.want(2, b"BBB")
    assert dro.take(1) == [OpenProxyReceiver(b"AAA", 0, (2,))]


def test_a_pattern_passes_and_what_it_finds_is_judged_on_the_way_out() -> None:
    dro = with_access(Dro(3), p2=lists(outbound="-AAA +/./"), p1=lists(inbound="+ZZZ"))
    dro.want(2, b"^A", PATTERN_PCRE)
    assert dro.take(1) == dro.take(3) == [OpenProxyReceiver(b"^A", PATTERN_PCRE, (2,))]
    dro.source(1, b"AAA")
    assert dro.take(2) == []
    dro.source(1, b"AAB", b"2" * 32)
    assert kinds(dro.take(2)) == [OpenProxySource]


def test_a_portal_that_comes_back_is_told_of_accepted_interest_only() -> None:
    dro = with_access(Dro(2), p2=lists(outbound="-AAA +/./"))
    dro.want(2, b"AAA")
    dro.want(2, b"BBB")
    dro.kill(1)
    dro.start(1)
    assert dro.take(1) == [OpenProxyReceiver(b"BBB", 0, (2,))]


# changes


def test_a_topic_rejected_on_its_way_out_later_goes_at_once_and_comes_back() -> None:
    dro = Dro(3)
    for portal in (2, 3):
        dro.want(portal, b"AAA")
        dro.want(portal, b"BBB")
    handle = dro.source(1, b"AAA")
    dro.source(1, b"BBB", b"2" * 32)
    for worker in dro.cores:
        dro.take(worker)
    dro.cores[2].on_acl(lists(outbound="-AAA +/./"), 0)
    dro.settle()
    assert dro.take(2) == [CloseProxySource(OTID)]
    assert dro.take(3) == [CloseProxyReceiver(b"AAA", 0, (2,))]
    assert dro.take(1) == [UpdateProxyReceiver(b"AAA", 0, (), (2,)), ChangeForwarding(handle, (3,))]
    dro.cores[2].on_acl(OPEN, 0)
    dro.settle()
    assert kinds(dro.take(2)) == [OpenProxySource]
    assert dro.take(3) == [OpenProxyReceiver(b"AAA", 0, (2,))]
    assert dro.take(1) == [UpdateProxyReceiver(b"AAA", 0, (2,), ()), ChangeForwarding(handle, (2, 3))]
    assert len(dro.cores[2].recorded.withheld) == 0


def test_a_topic_that_may_not_be_asked_for_later_closes_its_proxy_receiver() -> None:
    dro = Dro(3)
    dro.want(2, b"AAA")
    dro.want(3, b"AAA")
    dro.want(2, b"BBB")
    for worker in dro.cores:
        dro.take(worker)
    dro.cores[1].on_acl(lists(inbound="-AAA +/./"), 0)
    dro.settle()
    assert dro.take(1) == [CloseProxyReceiver(b"AAA", 0, (2, 3))]
    assert dro.take(2) == dro.take(3) == []
    dro.cores[1].on_acl(OPEN, 0)
    assert dro.cores[1].take_effects() == [OpenProxyReceiver(b"AAA", 0, (2, 3))]


def test_a_starving_proxy_source_that_is_rejected_goes_at_once() -> None:
    dro = Dro(2)
    dro.want(2, b"AAA")
    dro.cores[1].own.end(dro.source(1, b"AAA"))
    dro.settle()
    dro.take(2)
    dro.cores[2].on_acl(lists(outbound="-AAA +/./"), 0)
    dro.settle()
    assert dro.take(2) == [CloseProxySource(OTID)]
    dro.pass_time(2 * DELAY)
    assert dro.take(2) == []


def test_a_list_that_says_the_same_has_no_effect_at_all() -> None:
    dro = with_access(Dro(3), p1=lists(inbound="-AAA +/./"), p2=lists(outbound="-AAA +/./"))
    for topic in (b"AAA", b"BBB", b"CCC"):
        dro.want(2, topic)
        dro.want(3, topic)
        dro.source(1, topic, topic[:1] * 32)
    dro.want(2, b"B", PATTERN_PCRE)
    for core, access in ((1, lists(inbound="+/^[BC]/")), (2, lists(outbound="-/^AAA/ +/^/"))):
        dro.cores[core].on_acl(access, 0)
        assert dro.cores[core].take_effects() == []


def test_what_one_change_says_to_the_siblings() -> None:
    """Exactly the interest of the topics that it concerns, with every domain, and the end of their flow."""
    core = PortalCore(2, 1, 2, source_deletion_delay_ns=ms(1), matcher=compile_pattern)
    core.on_routes(1, whole([(1, 2, 1, 2), (1, 9, 1, 2), (3, 2, 3, 2)]), 0)
    for sibling in (1, 3):
        core.on_sibling_up(sibling, 1, 0, 0, 0)
    for domain in (2, 9):
        core.on_interest(InterestGained((b"AAA", PATTERN_NONE), domain), 0)
    core.on_interest(InterestGained((b"BBB", PATTERN_NONE), 2), 0)
    for number, topic in enumerate((b"AAA", b"BBB")):
        core.on_message(1, 1, SourceSeen(number, topic * 8 + topic, topic, 1, 0, 0, b""), 0)
    before = core.take_effects()
    assert [e.message for e in before if isinstance(e, SendToSibling) and isinstance(e.message, ForwardStart)] == [
        ForwardStart(0), ForwardStart(1)
    ]  # fmt: skip
    assert not any(
        isinstance(e, SendToSibling) and isinstance(e.message, PortalHello | StateConfirmed) for e in before[-2:]
    )
    core.on_acl(lists(outbound="-AAA +/./"), 0)
    told = [(e.worker, e.message) for e in core.take_effects() if isinstance(e, SendToSibling)]
    removed = [InterestRemoved(b"AAA", 0, 2), InterestRemoved(b"AAA", 0, 9)]
    assert told == [(1, removed[0]), (3, removed[0]), (1, removed[1]), (3, removed[1]), (1, ForwardStop(0))]
    core.on_acl(OPEN, 0)
    told = [(e.worker, e.message) for e in core.take_effects() if isinstance(e, SendToSibling)]
    added = [InterestAdded(b"AAA", 0, 2), InterestAdded(b"AAA", 0, 9)]
    assert told == [(1, added[0]), (3, added[0]), (1, added[1]), (3, added[1]), (1, ForwardStart(0))]


def test_a_change_of_one_direction_asks_nothing_about_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    core = PortalCore(2, 1, 2, source_deletion_delay_ns=ms(1), matcher=compile_pattern)
    core.on_routes(1, whole([(1, 2, 1, 2), (2, 1, 2, 1)]), 0)
    core.on_sibling_up(1, 1, 0, 0, 0)
    core.on_interest(InterestGained((b"AAA", PATTERN_NONE), 2), 0)
    core.on_message(1, 1, InterestAdded(b"BBB", 0, 1), 0)
    first, second, third = lists("+AAA +BBB", "+AAA"), lists("+AAA", "+AAA"), lists("+AAA", "+AAA +BBB")
    core.on_acl(first, 0)
    core.take_effects()
    assert second.lets_out_like(first)
    assert not second.lets_in_like(first)
    monkeypatch.setattr(second, "may_leave", None)
    core.on_acl(second, 0)
    assert core.take_effects() == [CloseProxyReceiver(b"BBB", 0, (1,))]
    monkeypatch.undo()
    assert third.lets_in_like(second)
    monkeypatch.setattr(third, "may_ask", None)
    core.on_acl(third, 0)
    assert core.take_effects() == []


class Strict:
    """Options that forbid every name with `no` in it; notes what is asked."""

    by_topic = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def _ask(self, *what: str) -> None:
        self.asked.append(what)
        if "no" in what[1]:
            raise ConfigError("not permitted", file="um.xml", line=4)

    def source(self, name: str) -> None:
        self._ask("source", name)

    def receiver(self, name: str) -> None:
        self._ask("receiver", name)

    def wildcard_receiver(self, name: str, kind: str) -> None:
        self._ask("wildcard", name, kind)


def strict(options: Strict) -> ContextOptions:
    return cast(ContextOptions, options)


@pytest.mark.parametrize("has_lists", [True, False])
def test_what_the_options_forbid_neither_leaves_nor_is_asked_for(
    has_lists: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sending, receiving = Strict(), Strict()
    acl = config(inbound="-out +/./", outbound="-out +/./") if has_lists else None
    judge = AclEnforcement(acl, sending=strict(sending), receiving=strict(receiving))
    for _ in range(2):
        assert [judge.may_leave(name) for name in (b"yes", b"no")] == [True, False]
        assert [judge.may_ask(name, PATTERN_NONE) for name in (b"yes", b"no")] == [True, False]
        assert [judge.may_ask(name, PATTERN_PCRE) for name in (b"yes", b"no", b"out")] == [True, False, True]
        assert [judge.may_ask(name, PATTERN_REGEX) for name in (b"yes", b"no")] == [True, False]
    assert sending.asked == [("source", "yes"), ("source", "no")], "once for each"
    assert receiving.asked == [
        ("receiver", "yes"), ("receiver", "no"),
        ("wildcard", "yes", "pcre"), ("wildcard", "no", "pcre"), ("wildcard", "out", "pcre"),
        ("wildcard", "yes", "regex"), ("wildcard", "no", "regex"),
    ]  # fmt: skip
    fields = {"topic": "no", "reason": "not permitted", "at": "um.xml:4"}
    out, into = LogEvent.TOPIC_NOT_LET_OUT, LogEvent.TOPIC_NOT_LET_IN
    assert [(event, told) for _, event, told in logged(caplog)] == [
        (event, fields) for event in (out, into, into, into)
    ]
    assert judge.judges_sources is has_lists
    assert judge.may_leave(b"out") is judge.may_ask(b"out", PATTERN_NONE) is not has_lists
    assert len(sending.asked) == (2 if has_lists else 3), "what a list rejects is not asked about"


def test_options_that_are_the_same_for_all_topics_are_not_asked() -> None:
    options = Strict()
    options.by_topic = False
    judge = AclEnforcement(sending=strict(options), receiving=strict(options))
    assert judge.may_leave(b"no")
    assert judge.may_ask(b"no", PATTERN_NONE)
    assert judge.lets_out_like(OPEN)
    assert judge.lets_in_like(OPEN)
    assert options.asked == []


def test_lists_and_options_decide_whether_two_judge_alike() -> None:
    options, others = strict(Strict()), strict(Strict())
    acl = config(inbound="-a +/./", outbound="-b +/./")
    judge = AclEnforcement(acl, sending=options, receiving=options)
    for other, is_out, is_in in (
        (AclEnforcement(acl, sending=options, receiving=options), True, True),
        (AclEnforcement(acl, sending=others, receiving=options), False, True),
        (AclEnforcement(acl, sending=options, receiving=others), True, False),
        (AclEnforcement(config(inbound="-a +/./"), sending=options, receiving=options), False, True),
        (AclEnforcement(config(outbound="-b +/./"), sending=options, receiving=options), True, False),
    ):
        assert (judge.lets_out_like(other), judge.lets_in_like(other)) == (is_out, is_in)


def test_more_topics_than_are_kept_for_certain_are_not_all_decided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 2)
    options = Strict()
    judge = AclEnforcement(sending=strict(options))
    for name in (b"a", b"b", b"c", b"a", b"d", b"a", b"e", b"a"):
        assert judge.may_leave(name)
    assert [name for _, name in options.asked] == ["a", "b", "c", "d", "e"], "what is asked for again stays"
    assert judge.may_leave(b"b")
    assert options.asked[-1][1] == "b"

"""The interest of a TRD with the defaults of the configuration: when it goes, and what is said until then."""

from __future__ import annotations

import random

import pytest

from dro.clock import ms, s
from dro.config.dro_xml.model import EndpointConfig
from dro.metrics.slots import Slot
from dro.proto.interest.announced import START_REQUEST
from dro.proto.interest.events import InterestEvent, InterestGained, InterestLost
from dro.proto.interest.tqr_use_query import JITTER_PART
from dro.proto.interest.tqr_use_query import NEW_INTEREST as LOCAL_RATE
from dro.wire.lbmr import packet as lbmr
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE
from portals.endpoint.interest import TrdInterest
from tests.builders.dro_file import parse_dro
from tests.fakes.channel import packet
from tests.fakes.steps import steps

OWN_OPTIONS = packet(lbmr.ReceiverAlive(), source_type=1).options
DRO = b"""<tnw-gateway version="1.0"><daemon/><portals>
  <endpoint><name>A</name><domain-id>1</domain-id>
    <lbm-attributes><option name="resolver_multicast_address" scope="context" value="239.1.1.1"/></lbm-attributes>
  </endpoint>
  <endpoint><name>B</name><domain-id>2</domain-id>%s</endpoint>
</portals></tnw-gateway>"""


def endpoint(more: bytes = b"") -> EndpointConfig:
    return parse_dro(DRO % more, "dro.xml", warn=print).portals[1]


class Trd:
    """`TrdInterest` of the second endpoint, and what it said and found, with times in seconds."""

    def __init__(self, config: EndpointConfig, max_bytes: int = 8192) -> None:
        assert OWN_OPTIONS is not None
        self.datagrams: list[bytes] = []
        self.interest = TrdInterest(config, OWN_OPTIONS, max_bytes, (0x0A000001, 14391), random.Random(1), 0)
        self.changes: list[tuple[float, InterestEvent]] = []
        self.said: list[tuple[float, lbmr.Packet]] = []
        self.use_queries: list[float] = []
        self.now_ns = 0
        self._note()

    def hear(self, body: lbmr.Body) -> None:
        self.interest.on_packet(packet(body), 0x0A000002, self.now_ns)
        self._note()

    def run_until(self, until_s: float) -> None:
        while (due := self.interest.next_deadline()) is not None and due <= s(1) * until_s:
            self.now_ns = max(due, self.now_ns)
            self.interest.on_timer(self.now_ns)
            self._note()
        self.now_ns = round(s(1) * until_s)

    def _note(self) -> None:
        at = self.now_ns / s(1)
        self.changes += [(at, change) for change in self.interest.take_events()]
        for datagram in self.interest.take_datagrams(self.now_ns):
            self.datagrams.append(datagram)
            found = lbmr.decode(datagram)
            self.said.append((at, found))
            body = found.body
            if isinstance(body, lbmr.TopicManagement):
                self.use_queries += [at for tmr in body.records if tmr.kind == lbmr.TmrType.USE]


@pytest.mark.parametrize("pattern", [PATTERN_NONE, PATTERN_PCRE])
def test_by_default_interest_goes_15_s_after_the_last_receiver_left(pattern: int) -> None:
    """`<topic-use-query>` and `<pattern-use-query>`: five times 3000 ms."""
    trd = Trd(endpoint())
    name = b"^quotes" if pattern else b"quotes"
    query = lbmr.WildcardQueries((lbmr.WildcardTqr(1, name),)) if pattern else lbmr.Queries((name,))
    trd.hear(query)
    trd.run_until(10)
    flags = int(lbmr.TmrFlag.PCRE) if pattern else 0
    trd.hear(lbmr.TopicManagement((lbmr.Tmr(lbmr.TmrType.LEAVE, flags, name),)))
    trd.run_until(60)
    assert trd.use_queries == [10, 13, 16, 19, 22]
    assert trd.changes == [
        (0, InterestGained((name, pattern))),
        (25, InterestLost((name, pattern))),
    ]
    assert trd.interest.counts()[Slot.LOCAL_TOPICS] == trd.interest.counts()[Slot.LOCAL_PCRE] == 0


def test_topics_and_patterns_that_another_dro_asks_for_are_both_wanted() -> None:
    trd = Trd(endpoint())
    topic = lbmr.InterestRecord(3, b"quotes")
    pattern = lbmr.InterestRecord(3, b"^quotes", lbmr.InterestFlag.PATTERN, PATTERN_PCRE)
    said = packet(lbmr.TnwgInterest((topic, pattern)), source_id=b"another.", source_type=1)
    trd.interest.on_packet(said, 0x0A000002, 0)
    assert trd.interest.take_events() == [
        InterestGained((b"quotes", PATTERN_NONE), 3),
        InterestGained((b"^quotes", PATTERN_PCRE), 3),
    ]


def test_by_default_interest_of_a_dead_process_goes_after_300_to_315_s_and_the_spread() -> None:
    trd = Trd(endpoint())
    trd.hear(lbmr.Queries((b"quotes",)))
    trd.run_until(1000)
    (_, gained), (gone_s, lost) = trd.changes
    assert [gained, lost] == [InterestGained((b"quotes", 0)), InterestLost((b"quotes", 0))]
    assert len(trd.use_queries) == 5
    first = trd.use_queries[0]
    assert gone_s == pytest.approx(first + 15)
    assert 300 <= first <= 300 * (1 + 1 / JITTER_PART)


def test_the_options_of_the_endpoint_hold() -> None:
    more = b'<topic-resolution><topic-use-query timeout="700" max="2"/></topic-resolution>'
    trd = Trd(endpoint(more))
    trd.hear(lbmr.Queries((b"quotes",)))
    trd.now_ns = ms(1000)
    trd.hear(lbmr.TopicManagement((lbmr.Tmr(lbmr.TmrType.LEAVE, 0, b"quotes"),)))
    trd.run_until(20)
    assert trd.use_queries == pytest.approx([1.0, 1.7])
    assert trd.changes[-1][0] == pytest.approx(2.4)


EVERY_OPTION = b"""<topic-resolution>
<topic-use-query timeout="700" max="2" periodic-interval="30000"><rate-limit objects-per-second="20"/></topic-use-query>
<pattern-use-query timeout="900" max="3" periodic-interval="50000"><rate-limit bps="800"/></pattern-use-query>
<remote-topic-interest min-interval="1100" max-interval="4400">
  <rate-limit objects-per-second="20"/></remote-topic-interest>
<remote-pattern-interest min-interval="1300" max-interval="2600"><rate-limit bps="800"/></remote-pattern-interest>
<domain-route min-interval="150" max-interval="600"><rate-limit objects-per-second="0"/></domain-route>
<initial-request periodic-interval="2000" duration="7"/>
</topic-resolution>
<remote-topic check-interval="5000" timeout="11000"/><remote-pattern check-interval="7000" timeout="20000"/>"""


@pytest.fixture(params=["from the start", "changed"])
def chosen(request: pytest.FixtureRequest) -> Trd:
    """Every timer and limit of the endpoint is another one than by default."""
    config = endpoint(EVERY_OPTION)
    if request.param == "from the start":
        return Trd(config)
    trd = Trd(endpoint())
    trd.interest.on_config(config, 0)
    return trd


def said(trd: Trd, kind: type[lbmr.Body], until_s: float = 60) -> list[float]:
    """When bodies of a kind were sent, each with the options of the context."""
    trd.run_until(until_s)
    assert all(found.options == OWN_OPTIONS for _, found in trd.said)
    return [at for at, found in trd.said if isinstance(found.body, kind)]


def test_the_trd_is_asked_for_everything_at_the_start(chosen: Trd) -> None:
    assert said(chosen, lbmr.TopicResolutionRequest) == [0, 2, 4, 6]
    assert {found.body for _, found in chosen.said} == {lbmr.TopicResolutionRequest(START_REQUEST)}


def test_interest_of_other_domains_is_announced_and_withdrawn(chosen: Trd) -> None:
    chosen.run_until(20)  # the requests of the start are over
    chosen.said.clear()
    chosen.interest.on_wanted(b"AAA", PATTERN_NONE, (7, 8), (), s(20))
    chosen.interest.on_wanted(b"A.*", PATTERN_PCRE, (7,), (), s(20))
    chosen.run_until(30)
    chosen.interest.on_wanted(b"AAA", PATTERN_NONE, (), (8,), s(30))
    chosen.run_until(31)
    told = [(at, record) for at, found in chosen.said if isinstance(found.body, lbmr.TnwgInterest)
            for record in found.body.records]  # fmt: skip
    flag = lbmr.InterestFlag
    topic = [20, 21.1, 23.3, 27.7]
    assert [at for at, r in told if r == lbmr.InterestRecord(7, b"AAA")] == [20]
    assert [at for at, r in told if (r.domain_id, r.symbol) == (7, b"AAA")] == topic
    assert [at for at, r in told if (r.domain_id, r.symbol) == (8, b"AAA")] == [*topic, 30, 30.1, 30.2]
    assert [at for at, r in told if r == lbmr.InterestRecord(8, b"AAA", flag.CANCEL)] == [30, 30.1, 30.2]
    pattern = lbmr.InterestRecord(7, b"A.*", flag.PATTERN, PATTERN_PCRE)
    assert [at for at, r in told if r.symbol == b"A.*"] == [20, 21.3, 23.9, 26.5, 29.1]
    assert next(r for _, r in told if r.symbol == b"A.*") == pattern


def test_domains_that_can_be_reached_are_told_without_the_own_one(chosen: Trd) -> None:
    chosen.interest.on_routes({2, 7, 8}, 0)
    assert said(chosen, lbmr.RemoteDomainRoute, 2) == [0, 0.15, 0.45, 1.05, 1.65]
    routes = {found.body for _, found in chosen.said if isinstance(found.body, lbmr.RemoteDomainRoute)}
    assert routes == {lbmr.RemoteDomainRoute(0x0A000001, 14391, 0, (7, 8))}
    chosen.interest.on_routes({2}, s(2))
    chosen.said.clear()
    assert said(chosen, lbmr.RemoteDomainRoute) == []


@pytest.mark.parametrize(
    ("pattern", "first_s", "gap_s", "count"), [(PATTERN_NONE, 30, 0.7, 2), (PATTERN_PCRE, 50, 0.9, 3)]
)
def test_interest_that_is_not_repeated_is_asked_for(
    chosen: Trd, pattern: int, first_s: float, gap_s: float, count: int
) -> None:
    name = b"^quotes"
    chosen.hear(lbmr.WildcardQueries((lbmr.WildcardTqr(pattern, name),)) if pattern else lbmr.Queries((name,)))
    chosen.run_until(200)
    began_s = chosen.use_queries[0]
    assert first_s <= began_s <= first_s * (1 + 1 / JITTER_PART)
    assert chosen.use_queries == pytest.approx([began_s + n * gap_s for n in range(count)])
    gone_s, change = chosen.changes[-1]
    assert change == InterestLost((name, pattern))
    assert gone_s == pytest.approx(began_s + count * gap_s)


@pytest.mark.parametrize(("pattern", "gone_s"), [(PATTERN_NONE, 15), (PATTERN_PCRE, 21)])
def test_interest_of_another_dro_that_is_not_repeated_goes(chosen: Trd, pattern: int, gone_s: float) -> None:
    """At the first check after its timeout."""
    flags = lbmr.InterestFlag.PATTERN if pattern else 0
    record = lbmr.InterestRecord(3, b"AAA", flags, pattern)
    chosen.interest.on_packet(packet(lbmr.TnwgInterest((record,)), source_id=b"another.", source_type=1), 0, 0)
    chosen.run_until(60)
    assert chosen.changes == [(0, InterestGained((b"AAA", pattern), 3)), (gone_s, InterestLost((b"AAA", pattern), 3))]


@pytest.mark.parametrize("kind", ["topics", "patterns"])
def test_announcements_keep_to_their_limit(chosen: Trd, kind: str) -> None:
    """Twenty topics a second, two in 100 ms; 800 bits are one pattern in 100 ms."""
    pattern = PATTERN_PCRE if kind == "patterns" else PATTERN_NONE
    chosen.run_until(20)
    for number in range(100):
        chosen.interest.on_wanted(b"A%02d" % number, pattern, (7,), (), s(20))
    chosen.said.clear()
    chosen.run_until(21)
    told = [found.body for _, found in chosen.said if isinstance(found.body, lbmr.TnwgInterest)]
    assert sum(len(body.records) for body in told) == {"topics": 22, "patterns": 11}[kind]


@pytest.mark.parametrize("kind", ["topics", "patterns"])
def test_questions_keep_to_their_limit(chosen: Trd, kind: str) -> None:
    names = [b"A%02d" % number for number in range(100)]
    flags = int(lbmr.TmrFlag.PCRE) if kind == "patterns" else 0
    for name in names:
        chosen.hear(lbmr.WildcardQueries((lbmr.WildcardTqr(1, name),)) if flags else lbmr.Queries((name,)))
    chosen.run_until(20)
    for name in names:
        chosen.hear(lbmr.TopicManagement((lbmr.Tmr(lbmr.TmrType.LEAVE, flags, name),)))
    chosen.run_until(20.5)
    assert len(chosen.use_queries) == {"topics": 12, "patterns": 6}[kind]


@pytest.mark.parametrize(
    ("flag", "is_answered"), [(lbmr.RequestFlag.DRO_REMOTE_INTEREST, True), (lbmr.RequestFlag.QUERY, False)]
)
def test_who_asks_for_remote_interest_gets_all_of_it(chosen: Trd, flag: int, is_answered: bool) -> None:
    chosen.interest.on_wanted(b"AAA", PATTERN_NONE, (7,), (), 0)
    chosen.run_until(2)
    chosen.said.clear()
    chosen.hear(lbmr.TopicResolutionRequest(flag))
    assert [type(found.body) for _, found in chosen.said] == [lbmr.TnwgInterest] * is_answered
    chosen.said.clear()
    chosen.hear(lbmr.Queries((b"AAA",)))
    assert chosen.said == []


def test_everything_that_is_wanted_is_counted_by_kind() -> None:
    trd = Trd(endpoint())
    trd.hear(lbmr.Queries((b"a", b"b", b"c")))
    trd.hear(lbmr.WildcardQueries(tuple(lbmr.WildcardTqr(kind, b"%d" % n) for n, kind in enumerate((1, 1, 2)))))
    flag = lbmr.InterestFlag.PATTERN
    records = [lbmr.InterestRecord(3, b"x"), lbmr.InterestRecord(4, b"x"), lbmr.InterestRecord(3, b"y")]
    records += [lbmr.InterestRecord(n, b"p", flag, kind) for n, kind in ((3, 1), (4, 2), (5, 2), (6, 2))]
    trd.interest.on_packet(packet(lbmr.TnwgInterest(tuple(records)), source_id=b"another.", source_type=1), 0, 0)
    trd.hear(lbmr.TnwgInterest((lbmr.InterestRecord(3, b"z"),)))  # of no DRO
    assert trd.interest.counts() == {
        Slot.LOCAL_TOPICS: 3, Slot.LOCAL_PCRE: 2, Slot.LOCAL_REGEX: 1,
        Slot.REMOTE_TOPICS: 2, Slot.REMOTE_PCRE: 1, Slot.REMOTE_REGEX: 1,
    }  # fmt: skip


def test_counting_for_the_page_costs_the_same_however_much_interest_there_is() -> None:
    def cost(topics: int) -> int:
        trd = Trd(endpoint())
        trd.hear(lbmr.Queries(tuple(b"%d" % n for n in range(topics))))
        records = tuple(lbmr.InterestRecord(3, b"%d" % n) for n in range(topics))
        trd.interest.on_packet(packet(lbmr.TnwgInterest(records), source_id=b"another.", source_type=1), 0, 0)
        assert trd.interest.counts()[Slot.REMOTE_TOPICS] == topics
        return steps(trd.interest.counts)

    assert cost(1) == cost(1000)


def test_what_one_address_says_too_fast_is_left_out_and_counted() -> None:
    trd = Trd(endpoint())
    topics = tuple(b"%d" % n for n in range(LOCAL_RATE.of_one + 2))
    records = tuple(lbmr.InterestRecord(3, topic) for topic in topics)
    for ip in (1, 2):
        trd.interest.on_packet(packet(lbmr.Queries(topics)), ip, 0)
    said = packet(lbmr.TnwgInterest(records * 2), source_id=b"another.", source_type=1)
    trd.interest.on_packet(said, 1, 0)
    assert trd.interest.counts()[Slot.LOCAL_TOPICS] == LOCAL_RATE.of_one + 2, "the second one brings the rest"
    assert trd.interest.left_out() == {Slot.INTEREST_LIMITED: 2, Slot.INTEREST_FULL: 0}


def test_interest_of_the_own_domain_is_no_remote_interest() -> None:
    trd = Trd(endpoint())
    for pattern in (PATTERN_NONE, PATTERN_PCRE):
        own_domain = lbmr.InterestRecord(2, b"x", lbmr.InterestFlag.PATTERN if pattern else 0, pattern)
        trd.interest.on_packet(packet(lbmr.TnwgInterest((own_domain,)), source_id=b"another.", source_type=1), 0, 0)
    assert trd.interest.take_events() == []


def test_datagrams_are_no_larger_than_they_may_be() -> None:
    unlimited = b'<domain-route><rate-limit objects-per-second="0"/></domain-route>'
    trd = Trd(endpoint(b"<topic-resolution>" + unlimited + b"</topic-resolution>"), 200)
    for number in range(20):
        trd.interest.on_wanted(b"topic %02d" % number, PATTERN_NONE, (7,), (), 0)
    trd.interest.on_routes(set(range(1, 100)), 0)
    trd.hear(lbmr.Queries(tuple(b"topic %02d" % number for number in range(20))))
    trd.hear(lbmr.TopicManagement(tuple(lbmr.Tmr(lbmr.TmrType.LEAVE, 0, b"topic %02d" % n) for n in range(20))))
    kinds = [type(found.body) for _, found in trd.said]
    assert min(kinds.count(kind) for kind in (lbmr.TnwgInterest, lbmr.RemoteDomainRoute, lbmr.TopicManagement)) > 1
    assert max(map(len, trd.datagrams)) <= 200

"""The interest of a TRD with the defaults of the configuration: when it goes, and what is said until then."""

from __future__ import annotations

import random

import pytest

from dro.clock import ms, s
from dro.config.dro_xml.model import EndpointConfig
from dro.proto.interest.events import InterestEvent, InterestGained, InterestLost
from dro.proto.interest.tqr_use_query import JITTER_PART
from dro.wire.lbmr import packet as lbmr
from portals.datapath.counters import Slot
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE
from portals.endpoint.interest import TrdInterest
from tests.builders.dro_file import parse_dro
from tests.fakes.channel import packet

OWN_ID = b"\x01" * 8
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

    def __init__(self, config: EndpointConfig) -> None:
        options = packet(lbmr.ReceiverAlive(), source_type=1).options
        assert options is not None
        self.interest = TrdInterest(config, options, 8192, (0x0A000001, 14391), random.Random(1), 0)
        self.changes: list[tuple[float, InterestEvent]] = []
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
            body = lbmr.decode(datagram).body
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

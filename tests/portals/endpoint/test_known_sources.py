"""A portal that returns: what siblings give back is joined and recorded before the TRD has said a word."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from dro.clock import ms, s
from dro.errors import DecodeError
from dro.metrics.slots import PairSlot
from dro.proto.context.sources import BoundSource
from dro.transport.session import ReceiverTransport
from dro.um.fragment.own_source import FragmentSource
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import Cost, DomainId
from portals.decisions.messages import (
    PATTERN_NONE,
    PORTAL_MESSAGES,
    InitialStateSent,
    InterestAdded,
    InterestRemoved,
    KnownInterest,
    KnownSource,
    PortalMessage,
    SourceGone,
    SourceSeen,
)
from portals.decisions.relearning import CHECK_NS
from portals.endpoint.known_sources import join_info_of, known_source
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_endpoint import HERE, SIBLING, THERE, OneEndpoint, one_endpoint

RELEARNT_MS = 4 * CHECK_NS // ms(1)
UNADVERTISED = """
source resolver_send_initial_advertisement 0
source resolver_advertisement_minimum_initial_interval 0
source resolver_advertisement_sustain_interval 0
source resolver_advertisement_send_immediate_response 0
"""


def joined_before(source: FragmentSource, handle: int = 5, **more: int) -> SourceSeen:
    """As the life before had told it, with a portal cost of 4."""
    tir = lbmr.Tir(source.topic, source.transport.address, 60, source.topic_index)
    transport = cast(ReceiverTransport, source.transport)
    join_info = join_info_of(BoundSource(source.topic, source.otid, source.topic_index, transport, tir, False))
    return SourceSeen(handle, source.otid, source.topic, HERE, more.get("hops", 0), more.get("cost", 4), b"", join_info)


def handed(one: OneEndpoint) -> int:
    page = one.worker.counters
    return page[page.pair(SIBLING) + PairSlot.HANDED]


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_a_known_source_flows_before_it_is_advertised_or_wanted(
    tmp_path: Path, stepper: Stepper, transport: str
) -> None:
    with one_endpoint(tmp_path, stepper, "<cost>4</cost>", transport=transport, um=UNADVERTISED) as one:
        application = one.dro.application(HERE)
        source = application.source(b"AAA")
        seen = joined_before(source)
        one.hear(KnownSource(seen))
        one.dro.until(lambda: seen in one.sent())
        one.dro.run(100)
        application.send(source, 3)
        one.dro.until(lambda: handed(one) == 3)
        one.hear(InterestAdded(b"AAA", PATTERN_NONE, THERE), InitialStateSent())
        one.dro.run(RELEARNT_MS)
        assert not any(isinstance(m, SourceSeen | SourceGone) for m in one.sent()), "it is the one that is wanted"
        one.hear(InterestRemoved(b"AAA", PATTERN_NONE, THERE))
        one.dro.until(lambda: SourceGone(5) in one.sent())


def test_a_known_source_that_nobody_wants_is_left_when_the_portal_knows_its_domain(
    tmp_path: Path, stepper: Stepper
) -> None:
    with one_endpoint(tmp_path, stepper, "<cost>4</cost>", um=UNADVERTISED) as one:
        source = one.dro.application(HERE).source(b"AAA")
        one.hear(KnownSource(joined_before(source)))
        one.dro.run(2 * RELEARNT_MS)
        assert one.portal.receiving.bound_sources, "the sibling has not told everything"
        one.hear(InitialStateSent())
        one.dro.until(lambda: not one.portal.receiving.bound_sources, limit_ms=RELEARNT_MS)
        one.hear(InterestAdded(b"AAA", PATTERN_NONE, THERE))
        one.dro.until(lambda: bool(one.portal.receiving.bound_sources))


def test_an_access_control_list_judges_known_sources_as_well(tmp_path: Path, stepper: Stepper) -> None:
    acl = "<acl><inbound><ace match='reject'><topic>AAA</topic></ace><ace match='accept'><pcre-pattern>.</pcre-pattern>"
    with one_endpoint(tmp_path, stepper, f"<cost>4</cost>{acl}</ace></inbound></acl>", um=UNADVERTISED) as one:
        application = one.dro.application(HERE)
        first, second = application.source(b"AAA"), application.source(b"BBB")
        one.hear(*[KnownSource(joined_before(source, n)) for n, source in enumerate((first, second), 5)])
        one.dro.run(1000)
        assert [bound.topic for bound in one.portal.receiving.bound_sources] == [b"BBB"]


def test_a_known_source_is_corrected_by_its_first_advertisement(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper, "<cost>4</cost>") as one:
        application = one.dro.application(HERE)
        source = application.context.open_source(b"AAA", tir_options=(Cost(3, 20), DomainId(HERE)))
        seen = joined_before(source, hops=2, cost=14)
        known = known_source(seen, 4).tir
        assert known.options is not None
        assert (known.options.cost, known.options.otid, known.topic_index) == (
            Cost(2, 10),
            source.otid,
            source.topic_index,
        )
        one.hear(KnownSource(seen), InterestAdded(b"AAA", PATTERN_NONE, THERE))
        one.dro.run(500)
        told = [(m.handle, m.hop_count, m.cost) for m in one.sent() if isinstance(m, SourceSeen)]
        assert (told[0], told[-1]) == ((5, 2, 14), (5, 3, 24))


def test_known_interest_holds_until_receivers_are_asked_and_silent(tmp_path: Path, stepper: Stepper) -> None:
    queries = '<topic-resolution><topic-use-query timeout="100" max="2"/></topic-resolution>'
    with one_endpoint(tmp_path, stepper, queries) as one:
        application = one.dro.application(HERE)
        one.hear(*[KnownInterest(topic, PATTERN_NONE, HERE) for topic in (b"AAA", b"BBB")])
        assert [m.symbol for m in one.sent() if isinstance(m, InterestAdded)] == [b"AAA", b"BBB"]
        application.context.want_topic(b"AAA")
        one.dro.run(RELEARNT_MS)
        assert not any(isinstance(m, InterestRemoved) for m in one.sent())
        one.hear(InitialStateSent())
        one.dro.run(RELEARNT_MS)
        assert [m.symbol for m in one.sent() if isinstance(m, InterestRemoved)] == [b"BBB"]


def test_known_interest_of_other_domains_holds_until_no_dro_repeats_it(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        one.hear(KnownInterest(b"AAA", PATTERN_NONE, 7), KnownInterest(b"^B", 1, 7))
        assert [(m.symbol, m.domain_id) for m in one.sent() if isinstance(m, InterestAdded)] == [
            (b"AAA", 7),
            (b"^B", 7),
        ]
        one.dro.stepper.run(s(299) // ms(1), step_ms=1000)
        assert not any(isinstance(m, InterestRemoved) for m in one.sent())
        one.dro.stepper.run(s(200) // ms(1), step_ms=1000)
        assert {m.symbol for m in one.sent() if isinstance(m, InterestRemoved)} == {b"AAA", b"^B"}


def test_what_no_portal_wrote_does_not_decode(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="way"):
        known_source(SourceSeen(1, bytes(32), b"AAA", 1, 0, 0, b"", b"short"), 0)


def test_proxy_sources_of_a_long_exchange_are_fed_first_and_advertised_after_it(
    tmp_path: Path, stepper: Stepper
) -> None:
    """Fragments go on at once; advertisements are many, and limited anyway."""
    with one_endpoint(tmp_path, stepper) as one:
        application = one.dro.application(HERE)
        topics = [b"T%d" % n for n in range(60)]
        exchange = [KnownInterest(topic, PATTERN_NONE, HERE) for topic in topics]
        offers = [SourceSeen(n, n.to_bytes(32, "big"), topic, THERE, 0, 1, b"") for n, topic in enumerate(topics, 1)]
        said: list[PortalMessage] = [*exchange, *offers]
        frame = b"".join(map(PORTAL_MESSAGES.encode, said))
        one.worker.channels.on_ctl(SIBLING, frame)
        fed_unadvertised = False
        while len(one.portal.sources) < len(topics):
            one.dro.loop.run_once(0)
            fed_unadvertised |= bool(one.portal.sources) and one.portal.sending.own.has_silent
            assert one.portal.sending.resolver.finals_pending == 0
        assert fed_unadvertised
        one.dro.run(500)
        assert not one.portal.sending.own.has_silent
        for topic in topics:
            application.context.want_topic(topic)
        one.dro.until(lambda: application.topics() == set(topics))

"""A changed configuration in a working DRO: what is taken over, what goes on undisturbed, and what is not sent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dro.clock import s
from dro.config.dro_xml.model import EndpointConfig
from dro.metrics.slots import Slot
from dro.proto.interest.events import InterestGained
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import ContextInstance
from portals.decisions.core import PortalCore
from portals.decisions.effects import CloseProxySource, DelayDeletion, OpenProxySource, UpdateProxySource
from portals.decisions.messages import SourceGone, SourceSeen
from portals.shell import live
from tests.builders.routes import whole
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import OneProcess, one_process


def cost_of(dro: OneProcess, trd: int, topic: bytes) -> int:
    """The cost in the advertisement that an application of that TRD has joined."""
    application = next(a for a in dro.applications if a.sink.bound and a.bound(topic) and a.trd == trd)
    (bound,) = application.bound(topic)
    assert bound.tir.options is not None
    assert bound.tir.options.cost is not None
    return bound.tir.options.cost.cost


def test_the_live_fields_of_an_endpoint() -> None:
    """Those of statistics are for another process, which gets the configuration as well."""
    assert set(live.LIVE[EndpointConfig]) == {
        "acl",
        "context_query",
        "cost",
        "max_queue_bytes",
        "publishing",
        "remote_pattern",
        "remote_topic",
        "smart_batch",
        "source_deletion_delay_ms",
        "topic_resolution",
    }


def test_a_configuration_that_means_the_same_sends_nothing(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        a, b = dro.application(1), dro.application(2)
        a.source(b"AAA")
        b.context.want_topic(b"AAA")
        dro.until(lambda: b.topics() == {b"AAA"})
        dro.run(120_000)
        for said in dro.tr_sent.values():
            said.clear()
        for worker in dro.workers.values():
            worker.channels.sent.clear()
        written_out = "<cost>1</cost><source-deletion-delay>1000</source-deletion-delay><max-queue>1000000</max-queue>"
        dro.reconfigure(dro.write({1: written_out, 2: "<!-- moved -->\n\n"}))
        stepper.settle()
        assert dro.tr_sent == {1: [], 2: []}
        assert all(not worker.channels.sent for worker in dro.workers.values())


def test_a_changed_cost_is_advertised_on_both_sides_and_the_flow_goes_on(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 3) as dro:
        a, b, c = (dro.application(trd) for trd in (1, 2, 3))
        source, back = a.source(b"AAA"), b.source(b"back")
        for application, topic in ((b, b"AAA"), (c, b"AAA"), (a, b"back")):
            application.context.want_topic(topic)
        dro.until(lambda: a.topics() == {b"back"} and b.topics() == c.topics() == {b"AAA"})
        sent = 0

        def costs() -> list[int]:
            return [cost_of(dro, 2, b"AAA"), cost_of(dro, 3, b"AAA"), cost_of(dro, 1, b"back")]

        def change(xml: dict[int, str], wanted: list[int]) -> None:
            nonlocal sent
            versions = [portal.core.routes.version for portal in dro.portals.values()]
            dro.reconfigure(dro.write(xml))
            for _ in range(20):
                a.send(source, 3)
                b.send(back)
                sent += 3
                dro.run(20)
            dro.until(lambda: costs() == wanted)
            dro.until(lambda: [p.core.routes.version for p in dro.portals.values()] == [v + 1 for v in versions])

        assert costs() == [2, 2, 2]
        change({1: "<cost>7</cost>"}, [8, 8, 8])
        change({1: "<cost>7</cost>", 3: "<cost>20</cost>"}, [8, 27, 8])
        change({}, [2, 2, 2])
        assert b.heard(b"AAA") == c.heard(b"AAA") == list(range(sent))
        assert a.heard(b"back") == list(range(60))
        assert [len(x.sink.bound) for x in (a, b, c)] == [1, 1, 1], "no receiver had to join anything anew"


def test_an_attribute_that_changes_at_the_source_crosses_the_dro(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        a, b = dro.application(1), dro.application(2)
        source = a.source(b"AAA")
        b.context.want_topic(b"AAA")
        dro.until(lambda: b.topics() == {b"AAA"})
        source.update((lbmr.Cost(4, 30), ContextInstance(b"instance")))
        dro.until(lambda: cost_of(dro, 2, b"AAA") == 32)
        (bound,) = b.bound(b"AAA")
        assert bound.tir.options is not None
        assert ContextInstance(b"instance") in bound.tir.options.items


def test_a_changed_deletion_delay_holds_for_a_source_that_ended_before(tmp_path: Path, stepper: Stepper) -> None:
    long = {2: "<source-deletion-delay>60000</source-deletion-delay>"}
    with one_process(tmp_path, stepper, 2, portal_xml=long) as dro:
        a, b = dro.application(1), dro.application(2)
        source = a.source(b"AAA")
        b.context.want_topic(b"AAA")
        dro.until(lambda: b.topics() == {b"AAA"})
        source.close(final=True, linger_ns=0)
        dro.until(lambda: not dro.portals[1].core.own.seen)
        dro.run(3000)
        assert b.topics() == {b"AAA"}
        dro.reconfigure(dro.write({2: "<source-deletion-delay>3500</source-deletion-delay>"}))
        dro.run(100)
        assert b.topics() == {b"AAA"}
        dro.until(lambda: not b.topics(), limit_ms=1500)


def test_a_deletion_delay_may_shrink_and_grow_while_sources_starve() -> None:
    core = PortalCore(2, 1, 2, source_deletion_delay_ns=s(10), matcher=lambda pattern, kind: None)
    core.on_routes(1, whole([(1, 2, 1, 2)]), 0)
    core.on_sibling_up(1, 1, 0, 0, 0)
    core.on_interest(InterestGained((b"T", 0), 2), 0)
    for number in range(3):
        core.on_message(1, 1, SourceSeen(number, bytes([number]) * 32, b"T", 1, 0, 0, b""), 0)
    for number, at in enumerate((s(1), s(2), s(8))):
        core.on_message(1, 1, SourceGone(number), at)
        core.deletion_delay.change(s(10) if number else s(3))
        if not number:
            assert core.next_deadline() == s(4)
    assert core.next_deadline() == s(11)
    core.deletion_delay.change(0)
    assert core.next_deadline() == s(1)
    core.on_timer(s(8))
    effects = core.take_effects()
    assert len([e for e in effects if isinstance(e, OpenProxySource)]) == 3
    assert len([e for e in effects if isinstance(e, DelayDeletion)]) == 3
    assert [e.otid[0] for e in effects if isinstance(e, CloseProxySource)] == [0, 1, 2]


def test_a_source_offered_again_with_another_cost_updates_its_proxy_source_and_nothing_else() -> None:
    core = PortalCore(2, 1, 2, source_deletion_delay_ns=s(1), matcher=lambda pattern, kind: None)
    core.on_routes(1, whole([(1, 2, 1, 2)]), 0)
    core.on_sibling_up(1, 1, 0, 0, 0)
    core.on_interest(InterestGained((b"T", 0), 2), 0)
    otid = bytes(32)
    core.on_message(1, 1, SourceSeen(5, otid, b"T", 1, 0, 3, b""), 0)
    core.take_effects()
    dearer = SourceSeen(5, otid, b"T", 1, 0, 9, b"")
    core.on_message(1, 1, dearer, 0)
    assert core.take_effects() == [UpdateProxySource(1, dearer)]
    core.on_message(1, 1, dearer, 0)
    assert core.take_effects() == []


def test_a_smaller_queue_keeps_what_it_holds_and_takes_nothing_more(tmp_path: Path, stepper: Stepper) -> None:
    """The TRD of the receiver carries 100 kbit/s; time stands while the source sends, so everything waits."""
    slow = {2: "context transport_lbtrm_data_rate_limit 100000\n"}
    with one_process(tmp_path, stepper, 2, um=slow) as dro:
        a, b = dro.application(1), dro.application(2)
        source = a.source(b"AAA")
        b.context.want_topic(b"AAA")
        dro.until(lambda: b.topics() == {b"AAA"})
        dro.run(2000)

        def burst(count: int) -> None:
            a.send(source, count)
            stepper.settle()

        burst(500)
        held = dro.page(2, Slot.QUEUED)
        assert held > 300
        assert dro.dropped(2) == 0
        dro.reconfigure(dro.write({2: "<max-queue>100</max-queue>"}))
        assert dro.page(2, Slot.QUEUE_LIMIT) == 100
        assert dro.page(2, Slot.QUEUED) == held
        burst(50)
        assert dro.workers[2].counters[Slot.DROPPED_BLOCKED] == 50
        dro.reconfigure(dro.write({2: "<max-queue>2000000</max-queue>"}))
        burst(50)
        assert dro.workers[2].counters[Slot.DROPPED_BLOCKED] == 50
        assert dro.page(2, Slot.QUEUED) == held + 50
        dro.until(lambda: len(b.heard(b"AAA")) == 550, limit_ms=60_000)
        assert b.heard(b"AAA") == [*range(500), *range(550, 600)]


def test_timers_of_topic_resolution_change_while_they_run(tmp_path: Path, stepper: Stepper) -> None:
    """By default a receiver that is silent is asked after 300 s, and interest is told again every 60 s at most."""
    quick = """<topic-resolution>
        <topic-use-query timeout="200" max="2" periodic-interval="1000"/>
        <remote-topic-interest min-interval="100" max-interval="500"/>
        </topic-resolution>"""
    silent = "receiver resolver_query_minimum_initial_duration 100\nreceiver resolver_query_sustain_interval 0\n"
    with one_process(tmp_path, stepper, 2, um={2: silent}) as dro:
        a, b = dro.application(1), dro.application(2)
        a.source(b"AAA")
        b.context.want_topic(b"AAA")
        dro.until(lambda: b.topics() == {b"AAA"})
        dro.run(130_000)

        def counts(milliseconds: int) -> tuple[int, int]:
            """Use queries in TRD 2 and interest records in TRD 1 within so much time."""
            for said in dro.tr_sent.values():
                said.clear()
            dro.run(milliseconds)
            queries = [body for body in dro.tr_sent[2] if isinstance(body, lbmr.TopicManagement)]
            interest = [body for body in dro.tr_sent[1] if isinstance(body, lbmr.TnwgInterest)]
            return len(queries), len(interest)

        assert counts(10_000) in ((0, 0), (0, 1))
        dro.reconfigure(dro.write({1: quick, 2: quick}))
        queries, interest = counts(10_000)
        assert 8 <= queries <= 11, "one for each interval, each answered"
        assert 19 <= interest <= 21
        assert b.topics() == {b"AAA"}
        dro.reconfigure(dro.write({}))
        dro.run(60_000)
        assert counts(10_000) in ((0, 0), (0, 1))
        dro.reconfigure(dro.write({2: quick}))
        b.context.close()  # says goodbye; nobody answers from now on
        dro.applications.remove(b)
        dro.until(lambda: dro.page(2, Slot.LOCAL_TOPICS) == 0, limit_ms=2000)


def test_timers_of_the_route_manager_change(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        slow = (
            '<route-info check-interval="50"/><route-recalculation backoff-interval="30000" warning-interval="60000"/>'
        )
        dro.reconfigure(dro.write({}, slow))
        version = dro.portals[1].core.routes.version
        dro.reconfigure(dro.write({1: "<cost>3</cost>"}, slow))
        dro.run(29_000)
        assert dro.portals[1].core.routes.version == version
        dro.reconfigure(dro.write({1: "<cost>3</cost>"}))
        dro.until(lambda: dro.portals[1].core.routes.version > version, limit_ms=200)


def test_what_is_known_of_contexts_holds_for_the_new_time(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        dro.reconfigure(dro.write({1: '<context-query timeout="60"/>'}))
        assert [portal._unicast._contexts.known.forget_ns for portal in dro.portals.values()] == [s(60), s(900)]


def test_what_needs_a_new_process_is_left_alone(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        dro.reconfigure(dro.write({1: '<cost>4</cost><sqn-window size="64" increment="8"/>'}))
        mine = dro.portals[1]._config
        assert (mine.cost, mine.sqn_window.size) == (4, 16384)


def test_a_portal_that_is_not_in_the_file_any_more_changes_nothing(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 3) as dro:
        text = (tmp_path / "dro.xml").read_text()
        (tmp_path / "dro.xml").write_text(re.sub(r"<endpoint>\s*<name>P3.*?</endpoint>", "", text, flags=re.DOTALL))
        dro.reconfigure(dro.load())
        assert dro.portals[3]._config.name == "P3"


@pytest.mark.parametrize("field", live.LIVE[EndpointConfig])
def test_each_live_field_is_noticed_and_taken_over(field: str, tmp_path: Path, stepper: Stepper) -> None:
    xml = {
        "acl": '<acl><outbound><ace match="accept"><topic>A</topic></ace></outbound></acl>',
        "cost": "<cost>2</cost>",
        "source_deletion_delay_ms": "<source-deletion-delay>1</source-deletion-delay>",
        "max_queue_bytes": "<max-queue>1</max-queue>",
        "smart_batch": "<smart-batch>1</smart-batch>",
        "topic_resolution": '<topic-resolution><pattern-use-query max="1"/></topic-resolution>',
        "remote_topic": '<remote-topic timeout="1"/>',
        "remote_pattern": '<remote-pattern max-patterns="1"/>',
        "context_query": '<context-query timeout="1"/>',
        "publishing": '<publishing-interval><group name="default" ivl="1"/></publishing-interval>',
    }
    with one_process(tmp_path, stepper, 2) as dro:
        old, new = dro.config.portals[0], dro.write({1: xml[field]}).portals[0]
        assert live.changed(old, new) == {field}
        assert live.changed(live.taken_over(old, new), new) == frozenset()

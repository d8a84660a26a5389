"""An endpoint portal between real applications and a sibling of messages: what it says on either side, and logs."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from dro.bus.messages import PortalUp, Route
from dro.clock import ms, s
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.proto.interest.events import InterestGained
from dro.um.fragment.own_source import FragmentSource
from dro.wire.lbmr import options as lbmr_options
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import (
    ContextInstance,
    Cost,
    DomainId,
    ExtendedFunctionality,
    OtidOption,
    TirOption,
    TirOptions,
)
from portals.datapath.duplicate_window import DuplicateWindow
from portals.datapath.outgoing import ProxySource
from portals.decisions.messages import (
    PATTERN_NONE,
    PATTERN_PCRE,
    PATTERN_REGEX,
    ForwardStart,
    InterestAdded,
    InterestRemoved,
    SourceGone,
    SourceSeen,
    Withdraw,
)
from portals.endpoint.portal import STOP_GRACE_NS, run_endpoint
from portals.shell.matchers import Matchers
from portals.shell.quiescence import SenderQuiescence
from tests.fakes.transport import FakeSender
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker, Told, logged
from tests.rigs.one_endpoint import ENDPOINT, HERE, SIBLING, THERE, OneEndpoint, one_endpoint
from tests.rigs.one_process import Application

OTID = bytes(range(32))
BAD_OPTIONS = b"\xff"
INSTANCE = ContextInstance(b"instance")
PASSED = lbmr_options.write_tir_options(TirOptions((INSTANCE,)))


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def of_proxies(caplog: pytest.LogCaptureFixture) -> list[Told]:
    """The lines about proxies and patterns so far, and all warnings."""
    return [line for line in logged(caplog) if line[0] != "INFO" or line[1].name.startswith("PROXY_")]


def offer(
    handle: int = 5, *, otid: bytes = OTID, topic: bytes = b"AAA", hops: int = 1, cost: int = 10, more: bytes = b""
) -> SourceSeen:
    return SourceSeen(handle, otid, topic, THERE, hops, cost, more)


def wanted(one: OneEndpoint, *topics: bytes) -> Application:
    """An application that wants these topics, of which the portal knows."""
    application = one.dro.application(HERE)
    for topic in topics:
        application.context.want_topic(topic)
    known = one.portal.core.recorded.domains
    one.dro.until(lambda: all((topic, PATTERN_NONE) in known for topic in topics))
    one.sent()
    return application


def advertised(application: Application, topic: bytes = b"AAA") -> tuple[TirOption, ...]:
    """The options of the only source of a topic that an application has joined."""
    (bound,) = application.bound(topic)
    assert bound.tir.options is not None
    return bound.tir.options.items


# its birth and its end


def test_it_has_a_context_to_receive_and_one_to_send(
    tmp_path: Path, stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    with one_endpoint(tmp_path, stepper, "<cost>4</cost>") as one:
        receiving, sending = one.portal.receiving, one.portal.sending
        assert [line for line in logged(caplog) if line[1] is LogEvent.CONTEXT_CREATED] == [
            ("INFO", LogEvent.CONTEXT_CREATED,
             {"address": "127.0.0.1", "context_id": context.context_id, "context": f"P1_{part}_ctx"})
            for context, part in ((receiving, "rcv"), (sending, "src"))
        ]  # fmt: skip
        for context in (receiving, sending):
            options = context.packet_options
            assert (options.source_type, options.local_domain) == (lbmr.SenderType.DRO, HERE)
        assert one.portal.describe() == PortalUp(ENDPOINT, HERE, 4)
        assert sending.resolution is receiving.resolution, "one channel for both"


def test_what_its_own_contexts_say_is_neither_interest_nor_a_source(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        one.portal.core.on_interest(InterestGained((b"AAA", PATTERN_NONE)), 0)
        one.hear(InterestAdded(b"AAA", PATTERN_NONE, THERE), InterestAdded(b"BBB", PATTERN_NONE, THERE), offer())
        one.dro.run(3000)
        assert [*one.portal.core.recorded.domains] == [(b"AAA", PATTERN_NONE)]
        assert [*one.portal.receiving.resolver.cache.topics()] == []
        assert one.portal.receiving.stats.tr_dgrams_dropped_own > 2


@pytest.mark.parametrize("sources", [0, 2])
def test_it_ends_once_the_end_of_its_proxy_sources_is_told(tmp_path: Path, stepper: Stepper, sources: int) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        application = wanted(one, b"AAA")
        one.hear(*[offer(n, otid=bytes([n]) * 32) for n in range(sources)])
        one.dro.until(lambda: len(application.bound(b"AAA")) == sources)
        one.worker.told["on_stop"]()
        assert len(one.portal.sources) == 0
        if sources:
            one.dro.until(lambda: application.bound(b"AAA") == [])
            assert one.portal.finals_pending() == sources
            one.dro.run(STOP_GRACE_NS // ms(1) - 20)
            assert one.portal.finals_pending() == 0
        stepper.run(20)
        assert one.worker.ends == ["finish"]
        one.dro.tr_sent[1].clear()
        one.portal.receiving.resolution.send([b""])
        one.portal.sending.resolution.send([b""])
        one.dro.run(1000)
        assert one.dro.tr_sent[1] == [], "both contexts are closed"


@pytest.mark.parametrize("transport", ["lbtrm", "lbtru"])
def test_repairs_of_a_deleted_proxy_source_go_on_unless_the_portal_ends(
    tmp_path: Path, stepper: Stepper, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    """For as long as receivers ask: the NAK generation interval of the receiving context."""
    closed: list[tuple[bool, int]] = []
    close = FragmentSource.close

    def note(source: FragmentSource, *, final: bool, linger_ns: int) -> None:
        closed.append((final, linger_ns))
        close(source, final=final, linger_ns=linger_ns)

    monkeypatch.setattr(FragmentSource, "close", note)
    interval = f"source transport {transport}\nreceiver transport_{transport}_nak_generation_interval 7000\n"
    with one_endpoint(tmp_path, stepper, "<source-deletion-delay>0</source-deletion-delay>", um=interval) as one:
        wanted(one, b"AAA")
        one.hear(offer())
        one.hear(SourceGone(5))
        one.dro.run(10)
        assert closed == [(True, s(7))]
        one.hear(offer())
        one.worker.told["on_stop"]()
        assert closed[1:] == [(True, 0)]


def test_the_process_is_ready_when_it_hears(tmp_path: Path, stepper: Stepper) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    with one_endpoint(folder, stepper) as one:
        worker = FakeWorker(stepper.loop, tmp_path, ENDPOINT, "P1")
        endpoint = one.dro.config.portals[0]
        one.portal.receiving.close()
        one.portal.sending.close()
        run_endpoint(worker.ctx, endpoint, one.dro.config)
        assert worker.ends == ["ready", "run"]
        worker.told["on_stop"]()
        stepper.settle()
        assert worker.ends == ["ready", "run", "finish"]


# sources of the TRD


def test_a_source_of_the_trd_is_told_with_what_it_advertises(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper, "<cost>4</cost>") as one:
        application = one.dro.application(HERE)
        far = application.context.open_source(b"far", tir_options=(Cost(2, 10), INSTANCE, DomainId(7)))
        near = application.context.open_source(b"near")
        one.hear(*[InterestAdded(topic, PATTERN_NONE, THERE) for topic in (b"far", b"near")])
        one.dro.until(lambda: len(one.portal.receiving.bound_sources) == 2)
        seen = [m for m in one.sent() if isinstance(m, SourceSeen)]
        join_infos = {m.topic: m.join_info for m in seen}
        told = {m.topic: replace(m, join_info=b"") for m in seen}
        handles = {topic: m.handle for topic, m in told.items()}
        ip, port = application.context.request_address
        request = lbmr_options.write_tir_options(TirOptions((ExtendedFunctionality(port=port, ip=ip),)))
        assert told == {
            b"far": SourceSeen(handles[b"far"], far.otid, b"far", 7, 2, 14, PASSED),
            b"near": SourceSeen(handles[b"near"], near.otid, b"near", HERE, 0, 4, request),
        }
        far.update((Cost(3, 20), DomainId(7)))
        one.dro.run(100)
        assert one.sent() == [SourceSeen(handles[b"far"], far.otid, b"far", 7, 3, 24, b"", join_infos[b"far"])]
        near.close(final=True, linger_ns=0)
        one.dro.run(100)
        assert one.sent() == [SourceGone(handles[b"near"])]


def test_a_source_that_comes_while_it_is_drained_is_told_to_nobody(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        application = one.dro.application(HERE)
        application.source(b"AAA")
        one.hear(InterestAdded(b"AAA", PATTERN_NONE, THERE))
        one.dro.until(lambda: len(one.portal.receiving.bound_sources) == 1)
        one.hear(*[ForwardStart(message.handle) for message in one.sent() if isinstance(message, SourceSeen)])
        one.worker.told["on_drain"](60_000)
        source = application.source(b"AAA")
        one.dro.until(lambda: len(one.portal.receiving.bound_sources) == 2)
        one.dro.run(20)
        source.close(final=True, linger_ns=0)
        one.dro.run(20)
        assert [message for message in one.sent() if not isinstance(message, Withdraw)] == []


# proxy receivers


def asked(one: OneEndpoint) -> tuple[set[bytes], set[tuple[int, bytes]], list[lbmr.InterestRecord]]:
    """Topics and patterns asked for, and the interest that was announced, since the last call."""
    bodies, one.dro.tr_sent[1] = one.dro.tr_sent[1], []
    names = {name for body in bodies if isinstance(body, lbmr.Queries) for name in body.tqrs}
    patterns = {
        (q.pattern_type, q.pattern) for body in bodies if isinstance(body, lbmr.WildcardQueries) for q in body.patterns
    }
    return names, patterns, [r for body in bodies if isinstance(body, lbmr.TnwgInterest) for r in body.records]


def test_what_siblings_want_is_asked_for_announced_and_withdrawn(
    tmp_path: Path, stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    flag = lbmr.InterestFlag
    with one_endpoint(tmp_path, stepper) as one:
        more = (Route((98,), HERE, SIBLING, ENDPOINT), Route((HERE,), 98, ENDPOINT, SIBLING))
        one.hear_routes(Route((HERE,), THERE, ENDPOINT, SIBLING), Route((THERE,), HERE, SIBLING, ENDPOINT), *more)
        asked(one)
        of_proxies(caplog)
        one.hear(InterestAdded(b"AAA", PATTERN_NONE, THERE), InterestAdded(b"B.*", PATTERN_REGEX, THERE))
        one.dro.run(100)
        topic, pattern = lbmr.InterestRecord(THERE, b"AAA"), lbmr.InterestRecord(THERE, b"B.*", flag.PATTERN, 2)
        names, patterns, records = asked(one)
        assert (names, patterns) == ({b"AAA"}, {(2, b"B.*")})
        assert sorted(records, key=lambda r: r.symbol) == [topic, pattern]
        created, deleted = LogEvent.PROXY_RECEIVER_CREATED, LogEvent.PROXY_RECEIVER_DELETED
        assert of_proxies(caplog) == [
            ("INFO", created, {"topic": "AAA", "domains": (THERE,)}),
            ("INFO", created, {"pattern": "B.*", "domains": (THERE,)}),
        ]
        one.hear(InterestAdded(b"AAA", PATTERN_NONE, 98))
        assert asked(one)[2] == [lbmr.InterestRecord(98, b"AAA")]
        one.hear(InterestRemoved(b"AAA", PATTERN_NONE, THERE))
        assert asked(one)[2] == [lbmr.InterestRecord(THERE, b"AAA", flag.CANCEL)]
        assert of_proxies(caplog) == []
        one.hear(InterestRemoved(b"AAA", PATTERN_NONE, 98), InterestRemoved(b"B.*", PATTERN_REGEX, THERE))
        cancelled = [lbmr.InterestRecord(98, b"AAA", flag.CANCEL)]
        cancelled.append(lbmr.InterestRecord(THERE, b"B.*", flag.CANCEL | flag.PATTERN, 2))
        assert sorted(asked(one)[2], key=lambda r: r.symbol) == cancelled
        assert of_proxies(caplog) == [("INFO", deleted, {"topic": "AAA"}), ("INFO", deleted, {"pattern": "B.*"})]
        one.dro.run(30_000)
        assert asked(one)[:2] == (set(), set())


@pytest.mark.parametrize(
    ("symbol", "pattern"), [(b"AAA", PATTERN_NONE), (b"^A", PATTERN_PCRE), (b"^A.A$", PATTERN_REGEX)]
)
def test_sources_are_joined_for_as_long_as_they_are_wanted(
    tmp_path: Path, stepper: Stepper, symbol: bytes, pattern: int
) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        application = one.dro.application(HERE)
        for topic in (b"AAA", b"BBB"):
            application.source(topic)
        one.hear(InterestAdded(symbol, pattern, THERE))
        one.dro.until(lambda: [bound.topic for bound in one.portal.receiving.bound_sources] == [b"AAA"])
        one.hear(InterestRemoved(symbol, pattern, THERE))
        assert one.portal.receiving.bound_sources == []


def test_a_pattern_that_does_not_compile_is_told_and_asked_of_nobody(
    tmp_path: Path, stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        asked(one)
        of_proxies(caplog)
        one.hear(InterestAdded(b"(", PATTERN_PCRE, THERE))
        one.hear(InterestRemoved(b"(", PATTERN_PCRE, THERE))
        assert asked(one)[:2] == (set(), set())
        told = [line for line in of_proxies(caplog) if line[0] == "WARNING"]
        assert [(event, fields["pattern"]) for _, event, fields in told] == [(LogEvent.PATTERN_IGNORED, b"(")] * 2
        assert "missing closing parenthesis" in str(told[0][2]["error"])


def test_a_pattern_is_compiled_once_for_all_that_hold_it(
    tmp_path: Path, stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    worker = FakeWorker(stepper.loop, tmp_path, ENDPOINT, "P1")
    matchers = Matchers(worker.ctx)
    first = matchers(b"^(a+)+$", PATTERN_PCRE)
    assert first is not None
    assert matchers(b"^(a+)+$", PATTERN_PCRE) is first
    assert matchers(b"^(a+)+$", PATTERN_REGEX) is not first
    assert (first(b"aaa"), first(b"a" * 200 + b"b")) == (True, False)
    assert logged(caplog) == [("WARNING", LogEvent.PATTERN_LIMIT, {"pattern": b"^(a+)+$"})]
    held = weakref.ref(first)
    del first
    gc.collect()
    assert held() is None
    assert matchers(b"^(a+)+$", PATTERN_PCRE) is not None


# proxy sources


def test_a_source_beyond_is_advertised_and_its_fragments_are_sent(
    tmp_path: Path, stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    with one_endpoint(tmp_path, stepper, "<cost>4</cost>") as one:
        application = wanted(one, b"AAA")
        of_proxies(caplog)
        one.hear(offer(more=PASSED))
        assert one.sent() == [ForwardStart(5)]
        names = {"topic": "AAA", "otid": OTID.hex()}
        assert of_proxies(caplog) == [("INFO", LogEvent.PROXY_SOURCE_CREATED, names)]
        one.dro.until(lambda: bool(application.bound(b"AAA")))
        items = [item for item in advertised(application) if not isinstance(item, ExtendedFunctionality)]
        assert sorted(items, key=repr) == [INSTANCE, Cost(2, 14), DomainId(THERE), OtidOption(OTID)]
        assert one.dro.page(1, Slot.PROXY_SOURCES) == 1
        one.dro.run(200)
        one.hand(5, 0, b"one", b"two")
        one.dro.run(50)
        assert [message[12:] for _, _, message in application.sink.fragments] == [b"one", b"two"]
        one.hear(offer(hops=2, cost=20))
        one.dro.run(100)
        assert {item for item in advertised(application) if isinstance(item, Cost | ContextInstance)} == {Cost(3, 24)}
        one.hear(SourceGone(5))
        one.dro.run(990)
        assert of_proxies(caplog) == []
        one.dro.run(20)
        assert of_proxies(caplog) == [("INFO", LogEvent.PROXY_SOURCE_DELETED, names)]
        one.dro.until(lambda: application.bound(b"AAA") == [])
        assert one.dro.page(1, Slot.PROXY_SOURCES) == 0
        assert one.portal.sources.by_otid == {}


def test_an_offer_that_cannot_be_advertised_is_refused_until_there_is_a_better_one(
    tmp_path: Path, stepper: Stepper, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        application = wanted(one, b"AAA")
        of_proxies(caplog)
        one.hear(offer(more=BAD_OPTIONS))
        ((level, event, fields),) = of_proxies(caplog)
        assert (level, event, fields["topic"]) == ("ERROR", LogEvent.PROXY_SOURCE_REFUSED, "AAA")
        assert fields["error"]
        assert len(one.portal.sources) == 0
        one.hear(offer(hops=2))  # the same source: an update of what is not there
        one.hear(SourceGone(5))
        assert of_proxies(caplog) == []
        with monkeypatch.context() as patched:
            patched.setattr(one.portal.sending, "open_source", _no_port)
            one.hear(offer(6))
        refused = {"topic": "AAA", "error": "no port is left"}
        assert of_proxies(caplog) == [("ERROR", LogEvent.PROXY_SOURCE_REFUSED, refused)]
        one.hear(SourceGone(6))
        one.hear(offer(7))
        assert [event for _, event, _ in of_proxies(caplog)] == [LogEvent.PROXY_SOURCE_CREATED]
        one.dro.until(lambda: bool(application.bound(b"AAA")))
        one.hear(offer(7, more=BAD_OPTIONS))
        ((level, event, fields),) = of_proxies(caplog)
        assert (level, event, fields["topic"]) == ("WARNING", LogEvent.ADVERTISEMENT_UNCHANGED, "AAA")
        assert fields["error"]


def _no_port(*_: object, **__: object) -> None:
    raise ResourceError("no port is left")


def test_a_proxy_source_goes_on_with_another_feeder(tmp_path: Path, stepper: Stepper) -> None:
    """It keeps its duplicates in mind, and what the feeder before still hands over is sent once."""
    with one_endpoint(tmp_path, stepper, "<sqn-window size='16' increment='8'/>") as one:
        application = wanted(one, b"AAA")
        one.hear(offer())
        one.dro.until(lambda: bool(application.bound(b"AAA")))
        one.dro.run(200)
        one.hand(5, 0, b"0")
        one.hear(SourceGone(5))
        one.hear(offer(6, cost=3))
        one.hand(5, 1, b"1")
        one.hand(6, 0, b"0", b"1")
        one.hand(6, 20, b"20")
        one.hand(6, 1, b"1", b"2")
        one.dro.run(50)
        assert [message[12:] for _, _, message in application.sink.fragments] == [b"0", b"1", b"20", b"2"]
        page = one.worker.counters
        slots = (Slot.DROPPED_DELETED, Slot.DROPPED_DUP, Slot.DROPPED_OLD, Slot.SENT)
        assert [page[slot] for slot in slots] == [0, 2, 1, 4]
        assert Cost(2, 4) in advertised(application)


def test_a_changed_cost_is_advertised_for_every_proxy_source_and_told_to_everybody(
    tmp_path: Path, stepper: Stepper
) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        application = wanted(one, b"AAA", b"BBB")
        application.source(b"CCC")
        other = bytes(32)
        one.hear(offer(), offer(6, otid=other, topic=b"BBB", cost=20), InterestAdded(b"CCC", PATTERN_NONE, THERE))
        one.dro.until(lambda: len(application.topics()) == 2 and bool(one.portal.receiving.bound_sources))
        one.dro.run(100)
        one.sent()
        one.dro.reconfigure(one.dro.write({1: "<cost>5</cost>"}))
        one.dro.stepper.settle()
        (seen,) = one.sent()
        assert isinstance(seen, SourceSeen)
        assert (seen.topic, seen.cost) == (b"CCC", 5), "at once"
        one.dro.run(200)
        assert Cost(2, 15) in advertised(application, b"AAA")
        assert Cost(2, 25) in advertised(application, b"BBB")


def test_routes_are_told_to_the_trd(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        told: list[tuple[int, ...]] = []
        application = one.dro.application(HERE)
        application.context.on_domain_route = lambda domains, *_: told.append(domains)
        one.dro.run(1500)
        assert set(told) == {(THERE,)}


# what proxy sources still owe


class Settling(FakeSender):
    """Notes how it is asked, and has settled at some time."""

    def __init__(self, at_ns: int, is_read_on: bool = False) -> None:
        self.at_ns = at_ns
        self.is_read_on = is_read_on
        self.asked: list[tuple[int, int, bool]] = []

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool):  # type: ignore[no-untyped-def]  # noqa: ANN201
        self.asked.append((now_ns, linger_ns, is_last))
        return lambda now_ns: now_ns >= self.at_ns


@pytest.mark.parametrize("is_all", [True, False])
def test_sessions_are_at_rest_when_the_last_of_them_is(is_all: bool) -> None:
    senders = [Settling(10), Settling(30)]
    window = DuplicateWindow(16, 8)
    proxies = [ProxySource(OTID, b"t", n, senders[n % 2], window) for n in range(4)]  # type: ignore[arg-type]
    rest = SenderQuiescence(proxies, 7, 5, is_all=is_all)
    assert [sender.asked for sender in senders] == [[(5, 7, is_all)]] * 2
    assert [rest.is_over(now_ns) for now_ns in (9, 10, 29, 30)] == [False, False, False, True]
    assert not rest.is_read_on
    senders[1].is_read_on = True
    assert SenderQuiescence(proxies, 7, 5, is_all=is_all).is_read_on
    assert SenderQuiescence([], 7, 5, is_all=is_all).is_over(5)

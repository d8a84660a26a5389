"""The shell of a portal with a link that is no TRD: beside real endpoints in one process, as a peer portal will be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dro.bus.messages import ROUTE_MANAGER, ROUTE_MESSAGES, PortalGone, PortalUp, Role
from dro.clock import ms
from dro.errors import LocalProtocolError
from dro.metrics.slots import Slot
from dro.proto.context.sources import BoundSource
from dro.proto.interest.events import InterestEvent, InterestGained, InterestLost
from dro.proto.unicast.connections import OnOutcome
from dro.transport.runs import RunTable, read_messages
from dro.wire.lbmr.packet import Tir
from portals.datapath.duplicate_window import DuplicateWindow
from portals.datapath.outgoing import ProxySource
from portals.decisions.core import PortalCore
from portals.decisions.drain import Quiescence
from portals.decisions.effects import AdvertiseProxySource, CloseProxySource, OpenProxySource, ProxyEffect
from portals.decisions.messages import PATTERN_NONE
from portals.shell.portal import PortalShell
from tests.fakes.transport import FakeTransport
from tests.fakes.um_contexts import Stepper
from tests.portals.datapath.test_data_path import ADDRESS, BlockingSender, data
from tests.rigs.one_process import OneProcess, one_process

OTHER, DOMAIN = 9, 99  # worker and domain of the portal with the other link
AAA = (b"AAA", PATTERN_NONE)
OTID = bytes(range(32))


class NothingHeld:
    is_read_on = False

    def is_over(self, now_ns: int) -> bool:
        return True


class OtherLink:
    """Implements `portals.shell.link.Link`: interest by order of the test, proxy sources that keep what they get."""

    def __init__(self, shell: PortalShell) -> None:
        self.shell = shell
        self.effects: list[ProxyEffect] = []
        self.route_info: list[bytes] = []
        self.reachable: set[int] = set()
        self.proxies: dict[bytes, ProxySource] = {}
        self.sender = BlockingSender()
        self.transport = FakeTransport(ADDRESS)
        self.is_closed = False
        self.refreshed = 0
        self._interest: list[InterestEvent] = []
        self._topic_indexes = count(7)

    def say(self, event: InterestEvent) -> None:
        self._interest.append(event)
        self.shell.act_soon()

    def hear(self, topic: bytes, topic_index: int) -> BoundSource[Any]:
        source: BoundSource[Any] = BoundSource(
            topic, OTID, topic_index, self.transport, Tir(topic, ADDRESS, 60, topic_index), False
        )
        self.transport.sources[topic_index] = source
        self.shell.add_source(source, DOMAIN, 0, 1, b"")
        return source

    def receive(self, message: bytes) -> None:
        table = RunTable()
        read_messages(message, 0, len(message), 0, table)
        self.shell.ingress.on_fragments(memoryview(message), [(self.transport, table)], 0)

    def take_interest(self) -> list[InterestEvent]:
        events, self._interest = self._interest, []
        return events

    def can_deliver(self, now_ns: int) -> bool:
        return True

    def on_route_info(self, message: bytes) -> None:
        self.route_info.append(message)

    def send_unicast(self, domain_id: int, message: bytes, on_outcome: OnOutcome) -> None:
        raise NotImplementedError

    def on_context_info(self, worker: int, message: bytes) -> None:
        raise NotImplementedError

    def send_immediate(self, message: bytes, on_outcome: OnOutcome) -> None:
        raise NotImplementedError

    def perform(self, effect: ProxyEffect, now_ns: int) -> None:
        self.effects.append(effect)
        match effect:
            case OpenProxySource(worker=worker, source=seen):
                proxy = ProxySource(
                    seen.otid, seen.topic, next(self._topic_indexes), self.sender, DuplicateWindow(64, 8)
                )
                self.proxies[seen.otid] = proxy
                self.shell.egress.feed(proxy, worker, seen.handle)
            case CloseProxySource(otid=otid):
                self.shell.egress.flush(self.proxies.pop(otid))
            case _:
                pass

    def together(self) -> AbstractContextManager[object]:
        return nullcontext()

    def send_pending(self, now_ns: int) -> None:
        pass

    def next_deadline(self) -> int | None:
        return None

    def on_timer(self, now_ns: int) -> None:
        raise AssertionError("there is no deadline")

    def describe(self) -> PortalUp:
        return PortalUp(OTHER, DOMAIN, 1)

    def on_origins(self, origins: object) -> None: ...

    def on_routes(self, reachable: set[int], now_ns: int) -> None:
        self.reachable = reachable

    def quiescence(self, worker: int | None, now_ns: int) -> Quiescence:
        return NothingHeld()

    def finals_pending(self) -> int:
        return 0

    def stop(self) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True

    def refresh_gauges(self) -> None:
        self.refreshed += 1


@contextmanager
def beside(folder: Path, stepper: Stepper) -> Iterator[tuple[OneProcess, OtherLink]]:
    """A DRO with one endpoint, and a portal with the other link."""
    with one_process(folder, stepper, 1) as dro:
        worker = dro.add_worker(OTHER, "other", Role.PEER)
        core = PortalCore(OTHER, 1, DOMAIN, source_deletion_delay_ns=ms(100), matcher=lambda pattern, kind: None)
        shell = PortalShell(worker.ctx, core, 1_000_000)
        link = OtherLink(shell)
        shell.start(link)
        dro.introduce(worker)
        dro.until(lambda: link.reachable == {1})
        yield dro, link


def test_interest_beyond_another_link_brings_the_fragments_there(tmp_path: Path, stepper: Stepper) -> None:
    with beside(tmp_path, stepper) as (dro, link):
        application = dro.application(1)
        source = application.source(b"AAA")
        link.say(InterestGained(AAA))
        dro.until(lambda: len(link.proxies) == 1)
        dro.run(1000)
        application.send(source, 5)
        dro.until(lambda: len(link.sender.sent) >= 5)
        assert link.sender.sent == [(7, sqn, b"AAA %d" % sqn) for sqn in range(5)]
        assert dro.workers[OTHER].counters[Slot.SENT] == 5
        link.say(InterestLost(AAA))
        dro.until(lambda: not link.proxies)
        assert [type(effect) for effect in link.effects] == [OpenProxySource, AdvertiseProxySource, CloseProxySource]


def test_a_source_beyond_another_link_reaches_the_trd(tmp_path: Path, stepper: Stepper) -> None:
    with beside(tmp_path, stepper) as (dro, link):
        application = dro.application(1)
        application.context.want_topic(b"AAA")
        dro.until(lambda: bool(link.effects))
        source = link.hear(b"AAA", 3)
        dro.until(lambda: application.topics() == {b"AAA"})
        dro.run(2000)
        for sqn in range(3):
            link.receive(data(3, sqn, b"x%d" % sqn))
        dro.until(lambda: len(application.heard(b"AAA")) >= 3)
        assert application.heard(b"AAA") == [0, 1, 2]
        (bound,) = application.bound(b"AAA")
        assert bound.tir.options is not None
        assert bound.tir.options.domain_id == DOMAIN
        link.shell.remove_source(source)
        dro.until(lambda: not application.topics())


def test_gauges_follow_within_half_a_second(tmp_path: Path, stepper: Stepper) -> None:
    with beside(tmp_path, stepper) as (dro, link):
        page, proxy_receivers = dro.workers[1].counters, dro.portals[1].core.proxy_receivers
        link.say(InterestGained(AAA))
        dro.until(lambda: len(proxy_receivers) == 1)
        dro.run(510)
        assert page[Slot.PROXY_RECEIVERS] == 1
        link.say(InterestLost(AAA))
        dro.until(lambda: not proxy_receivers)
        dro.run(510)
        assert page[Slot.PROXY_RECEIVERS] == 0


def test_a_drain_and_a_stop_need_nothing_else_of_the_link(tmp_path: Path, stepper: Stepper) -> None:
    with beside(tmp_path, stepper) as (dro, link):
        application = dro.application(1)
        source = application.source(b"AAA")
        link.say(InterestGained(AAA))
        dro.until(lambda: len(link.proxies) == 1)
        dro.run(1000)
        application.send(source, 5)
        worker = dro.workers[OTHER]
        worker.told["on_drain"](20_000)
        dro.until(lambda: worker.answers == [""])
        assert (link.proxies, len(link.sender.sent), link.reachable) == ({}, 5, set())
        assert (ROUTE_MANAGER, ROUTE_MESSAGES.encode(PortalGone(OTHER))) in worker.channels.sent
        worker.told["on_stop"]()
        dro.until(lambda: link.is_closed)
        link.refreshed = 0
        dro.run(3000)
        assert link.refreshed <= 1


@pytest.mark.parametrize("message", [PortalUp(1, 1, 1), PortalGone(1)])
def test_what_is_for_the_route_manager_is_a_bug_at_a_portal(
    tmp_path: Path, stepper: Stepper, message: PortalUp | PortalGone
) -> None:
    with beside(tmp_path, stepper) as (dro, _), pytest.raises(LocalProtocolError, match="route manager"):
        dro.workers[OTHER].channels.on_ctl(0, ROUTE_MESSAGES.encode(message))

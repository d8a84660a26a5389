"""Persistence through real portals: a scripted store, and its clients in other TRDs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import pytest

from dro.metrics.slots import Slot
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr.options import StoreContextInstance, Ume, UmeStore, UmeStoreGroup
from tests.network.conftest import Make
from tests.network.plans import CHAIN
from tests.rigs.network import Network, Ports
from tests.rigs.store.clients import ScriptedReceiver, ScriptedSource
from tests.rigs.store.context_host import ContextHost
from tests.rigs.store.keeper import ScriptedStore, StoreState
from tests.rigs.store.party import DIFFERS, IN_USE, NO_PATTERN, OF_RECEIVER, OTHER_TOPIC, UNKNOWN_SOURCE

TOPIC: Final = b"topic"
BETWEEN: Final[Ports] = {"A": [1, 2], "B": [2, 3]}
ONE: Final[Ports] = {"A": [1, 2, 3]}
DROS: Final[Mapping[str, Mapping[str, Sequence[object]]]] = {"one-DRO": ONE, "links": CHAIN, "TRD-between": BETWEEN}
_STORE_PORT: Final = 18  # within the range of its TRD


class Scene:
    """Store in TRD 1, source in TRD 2, receivers in TRD 3, unless a test says otherwise."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.hosts: list[ContextHost] = []
        self.numbers = 0
        net.start()
        self.store_host, self.store = self.open_store()
        net.until(lambda: bool(self.store_host.own.domain_id))

    def host(self, trd: int, port: int = 0) -> ContextHost:
        config = Config.load(self.net.plan.config(trd))
        for end in ("low", "high") if port else ():
            config = config.with_("context", f"request_tcp_port_{end}", port)
        self.hosts.append(ContextHost(MessageContext(config, self.net.loop)))
        return self.hosts[-1]

    def open_store(
        self, kept: StoreState | None = None, *, topics: bytes = b"", takes_paced: bool = True
    ) -> tuple[ContextHost, ScriptedStore]:
        """It always has the same request port."""
        host = self.host(1, self.net.plan.port(1) + _STORE_PORT)
        store = ScriptedStore(host, kept, topics=topics, takes_paced=takes_paced)
        host.start(store)
        return host, store

    def restart_store(self, *, kept: StoreState | None = None, topics: bytes = b"", takes_paced: bool = True) -> None:
        self.kill(self.store_host)
        self.store_host, self.store = self.open_store(kept, topics=topics, takes_paced=takes_paced)

    def source(self, trd: int = 2, **options: object) -> ScriptedSource:
        host = self.host(trd)
        source = ScriptedSource(host, TOPIC, self.store_host.own, **options)  # type: ignore[arg-type]
        host.start(source)
        return source

    def ready_source(self, trd: int = 2, **options: object) -> ScriptedSource:
        source = self.source(trd, **options)
        self.net.until(lambda: source.is_ready)
        return source

    def receiver(self, trd: int = 3, **options: object) -> ScriptedReceiver:
        host = self.host(trd)
        receiver = ScriptedReceiver(host, TOPIC, **options)  # type: ignore[arg-type]
        host.start(receiver)
        return receiver

    def send(self, source: ScriptedSource, count: int, size: int = 0) -> None:
        """They are filled up to that size."""
        for _ in range(count):
            source.send((b"%d" % self.numbers).ljust(size, b"."))
            self.numbers += 1

    def has_all(self, receiver: ScriptedReceiver, first: int = 0) -> bool:
        return [data.rstrip(b".") for data in receiver.got] == [b"%d" % n for n in range(first, self.numbers)]

    def kill(self, host: ContextHost) -> None:
        self.hosts.remove(host)
        host.close()

    def kill_party(self, party: ScriptedSource | ScriptedReceiver) -> None:
        assert isinstance(party.host, ContextHost)
        self.kill(party.host)


Open = Callable[..., Scene]


@pytest.fixture
def opened(make: Make) -> Iterator[Open]:
    scenes: list[Scene] = []

    def made(dros: str = "one-DRO") -> Scene:
        scenes.append(Scene(make(DROS[dros])))
        return scenes[-1]

    yield made
    for scene in scenes:
        for host in scene.hosts:
            with suppress(OSError):
                host.close()


@pytest.mark.parametrize("dros", DROS)
def test_messages_are_stable_and_each_comes_once(opened: Open, dros: str) -> None:
    scene = opened(dros)
    source, receiver = scene.ready_source(), scene.receiver()
    scene.send(source, 20)
    scene.net.until(lambda: scene.has_all(receiver) and not source.unstable)
    scene.send(source, 20)
    scene.net.until(lambda: scene.has_all(receiver) and not source.unstable)
    stream = next(iter(receiver.streams.values()))
    number = stream.registration.reg_id
    scene.net.until(lambda: source.confirmed == {(number, sqn) for sqn in range(40)})
    assert scene.store.kept.receivers[number].acked == 39


@pytest.mark.parametrize(("source_trd", "receiver_trd"), [(1, 3), (2, 1), (2, 2), (1, 1)])
def test_the_store_may_be_in_the_same_domain(opened: Open, source_trd: int, receiver_trd: int) -> None:
    scene = opened("links")
    source = scene.ready_source(source_trd)
    scene.send(source, 10)
    scene.net.until(lambda: not source.unstable)
    receiver = scene.receiver(receiver_trd)
    scene.net.until(lambda: scene.has_all(receiver))
    scene.send(source, 10)
    scene.net.until(lambda: scene.has_all(receiver) and not source.unstable and len(source.confirmed) == 20)
    assert receiver.recovered == 10


@pytest.mark.parametrize("dros", DROS)
def test_the_longest_messages_of_one_fragment_come_from_the_store(opened: Open, dros: str) -> None:
    """A message that is sent again is longer, by what says where it goes."""
    scene = opened(dros)
    source = scene.ready_source()
    longest = source.opened._source._largest - lbmc.HEADER.size  # type: ignore[attr-defined]  # of the context
    scene.send(source, 10, longest)
    scene.net.until(lambda: not source.unstable)
    assert source.next_sqn == 10 == len(scene.store.kept.messages[source.registration.reg_id])
    receiver = scene.receiver()
    scene.net.until(lambda: scene.has_all(receiver))
    assert (receiver.recovered, {len(data) for data in receiver.got}) == (10, {longest})


@pytest.mark.parametrize("dros", DROS)
def test_a_receiver_gets_what_it_missed_from_the_store_of_a_dead_source(opened: Open, dros: str) -> None:
    """It knows where the store is before the source dies, and has been away meanwhile."""
    scene = opened(dros)
    source, before = scene.ready_source(), scene.receiver(session_id=7)
    scene.send(source, 5)
    scene.net.until(lambda: scene.has_all(before) and len(source.confirmed) == 5)
    stream = next(iter(before.streams.values()))
    scene.net.until(lambda: scene.store.kept.receivers[stream.registration.reg_id].acked == 4)
    scene.kill_party(before)
    scene.send(source, 30)
    scene.net.until(lambda: not source.unstable)
    after = scene.receiver(session_id=7)
    scene.net.until(lambda: bool(after.streams))
    scene.kill_party(source)
    scene.net.until(lambda: scene.has_all(after, first=5))
    assert after.recovered == 30
    assert next(iter(after.streams.values())).registration.reg_id == stream.registration.reg_id


def test_a_proxy_source_of_the_store_leads_receivers_to_its_messages(opened: Open) -> None:
    """The receiver comes when the source is gone; the source goes on later, behind its last message."""
    scene = opened("links")
    source = scene.ready_source(session_id=9, wants_proxy=True)
    scene.send(source, 12)
    scene.net.until(lambda: not source.unstable)
    scene.kill_party(source)
    scene.net.until(lambda: bool(scene.store.proxies))
    receiver = scene.receiver()
    scene.net.until(lambda: scene.has_all(receiver))
    assert receiver.recovered == 12
    again = scene.ready_source(session_id=9, wants_proxy=True)
    assert (again.next_sqn, scene.store.proxies) == (12, {})
    scene.send(again, 3)
    scene.net.until(lambda: scene.has_all(receiver) and not again.unstable)
    assert len(receiver.streams) == 1


@pytest.mark.parametrize("dros", ["one-DRO", "links"])
def test_a_store_goes_on_after_a_restart(opened: Open, dros: str) -> None:
    """What was sent meanwhile is sent to it again."""
    scene = opened(dros)
    source, receiver = scene.ready_source(), scene.receiver()
    scene.send(source, 5)
    scene.net.until(lambda: scene.has_all(receiver) and not source.unstable)
    kept = scene.store.kept
    scene.kill(scene.store_host)
    scene.send(source, 25)
    scene.net.run(6000)
    assert not source.is_ready
    assert len(source.unstable) == 25
    scene.store_host, scene.store = scene.open_store(kept)
    scene.net.until(lambda: scene.has_all(receiver) and not source.unstable)
    scene.send(source, 5)
    number = next(iter(receiver.streams.values())).registration.reg_id
    scene.net.until(lambda: scene.has_all(receiver) and not source.unstable and kept.receivers[number].acked == 34)
    assert sorted(kept.messages[source.registration.reg_id]) == list(range(35))


@pytest.mark.parametrize("dros", ["one-DRO", "links"])
def test_all_go_on_after_a_restart_of_a_dro(opened: Open, dros: str) -> None:
    scene = opened(dros)
    source, receiver = scene.ready_source(), scene.receiver()
    scene.send(source, 5)
    scene.net.until(lambda: scene.has_all(receiver) and not source.unstable)
    scene.net.kill("A")
    scene.send(source, 25)
    scene.net.run(6000)
    assert source.unstable
    scene.net.start("A")
    scene.net.until(lambda: scene.has_all(receiver) and not source.unstable, limit_ms=60_000)


def test_lost_requests_are_repeated(opened: Open) -> None:
    """Each party loses its first control messages, and some later ones."""
    scene = opened()
    source = scene.source()
    source.lose = scene.store.lose = 2
    scene.net.until(lambda: source.is_ready)
    scene.send(source, 10)
    scene.store.lose = 5
    scene.net.until(lambda: not source.unstable)
    receiver = scene.receiver()
    receiver.lose = 4
    scene.net.until(lambda: bool(receiver.streams))
    receiver.lose = scene.store.lose = 3
    scene.net.until(lambda: scene.has_all(receiver))
    number = next(iter(receiver.streams.values())).registration.reg_id
    receiver.lose = 2
    scene.send(source, 1)
    scene.net.until(lambda: scene.has_all(receiver) and scene.store.kept.receivers[number].acked == 10)
    assert (receiver.lose, scene.store.lose, source.lose) == (0, 0, 0)


def test_a_paced_store_keeps_what_a_receiver_still_needs(opened: Open) -> None:
    scene = opened("links")
    source = scene.ready_source(is_paced=True)
    here, there = scene.receiver(2, is_paced=True, session_id=1), scene.receiver(is_paced=True, session_id=2)
    scene.send(source, 10)
    number = source.registration.reg_id
    messages = scene.store.kept.messages[number]
    scene.net.until(lambda: scene.store.reclaimed == 10 and not messages)
    scene.kill_party(there)
    scene.send(source, 10)
    scene.net.until(lambda: scene.has_all(here) and not source.unstable)
    assert (scene.store.reclaimed, sorted(messages)) == (10, list(range(10, 20)))
    again = scene.receiver(is_paced=True, session_id=2)
    scene.net.until(lambda: scene.store.reclaimed == 20)
    assert scene.has_all(again, first=10)
    assert not messages


def test_clients_that_leave_are_forgotten(opened: Open) -> None:
    scene = opened()
    source, receiver = scene.ready_source(), scene.receiver()
    scene.net.until(lambda: bool(scene.store.kept.receivers))
    receiver.leave()
    scene.net.until(lambda: not scene.store.kept.receivers, limit_ms=300)
    scene.kill_party(receiver)
    silent = scene.receiver()
    scene.net.until(lambda: bool(scene.store.kept.receivers))
    scene.kill_party(silent)
    scene.net.until(lambda: not scene.store.kept.receivers)
    source.leave()
    scene.net.until(lambda: not scene.store.kept.sources, limit_ms=300)


def test_a_wrong_registration_is_answered_by_an_error(opened: Open) -> None:
    """Each error of the published list."""
    scene = opened()
    source, receiver = scene.ready_source(session_id=5), scene.receiver()
    scene.net.until(lambda: bool(scene.store.kept.receivers))
    (receiver_id,) = scene.store.kept.receivers

    def error_of(party: ScriptedSource) -> int:
        scene.net.until(lambda: bool(party.registration.error))
        assert not party.is_ready
        return party.registration.error

    number = source.registration.reg_id
    assert error_of(scene.source(reg_id=number, session_id=6)) == IN_USE
    assert error_of(scene.source(reg_id=receiver_id)) == OF_RECEIVER
    other = scene.host(2)
    elsewhere = ScriptedSource(other, b"other", scene.store_host.own, reg_id=number, session_id=5)
    other.start(elsewhere)
    assert error_of(elsewhere) == OTHER_TOPIC
    paced = scene.receiver(is_paced=True)
    scene.net.until(lambda: paced.errors == [DIFFERS])
    (stream,) = receiver.streams.values()
    stream.source_id, stream.registration.reg_id, stream.registration.is_valid = 99, 0, False
    scene.net.until(lambda: receiver.errors == [UNKNOWN_SOURCE])
    scene.restart_store(topics=b"another", takes_paced=False)
    assert error_of(scene.source()) == NO_PATTERN


def test_what_advertisements_say_of_stores_passes_as_it_is(opened: Open) -> None:
    """The address of the store is that in its own domain, which the information of the source names."""
    scene = opened("links")
    source, receiver = scene.ready_source(), scene.receiver()
    scene.net.until(lambda: any(stream.registration.is_valid for stream in receiver.streams.values()))
    (bound,) = receiver.host.bound(TOPIC)
    options = bound.tir.options
    own, store, number = source.host.own, scene.store_host.own, source.registration.reg_id
    assert options is not None
    offered = options.first(Ume)
    assert offered is not None
    assert (offered.store_ip, offered.store_port) == (store.ip, store.port)
    assert (offered.source_ip, offered.source_port, offered.registration_id) == (own.ip, own.port, number)
    assert options.all(UmeStore) == (UmeStore(0, store.port, 0, store.ip, number),)
    assert options.all(UmeStoreGroup) == (UmeStoreGroup(0, 1),)
    instance = scene.store_host.context.core.context_instance
    assert options.all(StoreContextInstance) == (StoreContextInstance(0, instance),)
    assert options.domain_id == 2
    assert [stream.registration.store for stream in receiver.streams.values()] == [store]
    assert store.domain_id == 1


@pytest.mark.parametrize("dros", ["one-DRO", "links"])
def test_each_message_of_persistence_is_counted_once_where_it_comes_in(opened: Open, dros: str) -> None:
    scene = opened(dros)
    source = scene.ready_source()
    scene.send(source, 20)
    scene.net.until(lambda: not source.unstable)
    receiver = scene.receiver()
    scene.net.until(lambda: scene.has_all(receiver) and receiver.recovered == 20)
    scene.net.until(lambda: len(source.confirmed) == 20)
    for host in scene.hosts:
        host.pause()
    scene.net.run(200)
    of_trd = {1: scene.store, 2: source, 3: receiver}
    owner = {1: "A", 2: "A", 3: "A"} if dros == "one-DRO" else {1: "A", 2: "B", 3: "C"}
    for trd, party in of_trd.items():
        dro = scene.net.dros[owner[trd]]
        got = [dro.page(trd, slot) for slot in (Slot.UNICAST_CONTROL_RCVD, Slot.UNICAST_DATA_RCVD)]
        assert got == [party.sent["control"], party.sent["again"]]
        others = [other for other in of_trd.values() if other is not party]
        assert dro.page(trd, Slot.UNICAST_SENT) == party.came == sum(other.sent_to(trd) for other in others)
    assert receiver.heard == {"UmePregResp": 1, "UmeKeepalive": receiver.heard["UmeKeepalive"]}
    assert scene.store.sent["again"] == 20
    dro = scene.net.dros[owner[3]]
    assert dro.page(3, Slot.RXREQ_RCVD) == scene.store.heard["UmeRxReq"] == 20

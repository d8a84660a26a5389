"""Persistence through real portals: a scripted store, and its clients in other TRDs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import pytest

from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from tests.network.conftest import Make
from tests.network.plans import CHAIN
from tests.rigs.network import Network, Ports
from tests.rigs.store.clients import ScriptedReceiver, ScriptedSource
from tests.rigs.store.context_host import ContextHost
from tests.rigs.store.keeper import ScriptedStore, StoreState

TOPIC: Final = b"topic"
DROS: Final[Mapping[str, Ports]] = {"one DRO": {"A": [1, 2, 3]}, "links": CHAIN, "TRD between": {"A": [1, 2], "B": [2, 3]}}
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

    def send(self, source: ScriptedSource, count: int) -> None:
        for _ in range(count):
            source.send(b"%d" % self.numbers)
            self.numbers += 1

    def has_all(self, receiver: ScriptedReceiver, first: int = 0) -> bool:
        return receiver.got == [b"%d" % number for number in range(first, self.numbers)]

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

    def made(dros: str = "one DRO") -> Scene:
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

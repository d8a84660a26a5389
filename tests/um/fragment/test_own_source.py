"""A source as users of a context have it: when its context is told, what it sends, and how it leaves its session."""

from __future__ import annotations

from typing import cast

import pytest

from dro.clock import s
from dro.config.um.options import UmOptions
from dro.errors import DecodeError
from dro.proto.context.own import OwnSources
from dro.proto.resolver.core import Resolver, ResolverConfig
from dro.proto.tcp.filters import SourceFilters
from dro.transport.session import SenderTransport
from dro.um.fragment.own_source import ContextSources
from dro.um.fragment.resolution import TopicResolution
from dro.um.fragment.source_sessions import SourceSessions
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from tests.fakes.transport import FakeSender
from tests.fakes.um_contexts import Stepper

LARGE = (lbmr.Cost(1 << 40, 1),)
INTERVALS = "resolver_advertisement_maximum_initial_interval", "resolver_advertisement_sustain_interval"
ONCE = UmOptions({("source", name): 0 for name in INTERVALS})


class Session(FakeSender):
    """One that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, int]] = []
        self.has_room = True

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        self.sent.append((message, now_ns))
        return self.has_room


class Scene:
    """One source, in the place of the topic resolution and of the sessions of its context."""

    def __init__(self, stepper: Stepper) -> None:
        self.clock = stepper.clock
        self.pumps = 0
        self.released: list[int] = []
        self.session = Session()
        self.transport = cast(SenderTransport, self.session)
        self.filters = SourceFilters()
        self.resolver = Resolver(ResolverConfig(b"instance"))
        self.own = OwnSources(self.resolver, context_id=1, first_index=0xFFFFFFFE)
        self.sources = ContextSources(stepper.loop, cast(TopicResolution, self), cast(SourceSessions, self), self.own)
        self.source = self.sources.open(b"t", ONCE, None, ())
        self.take()

    def take(self) -> list[lbmr.Tir]:
        """What is advertised now and in the next minute; what comes twice counts once."""
        until_ns, datagrams = self.clock.time_ns + s(60), self.resolver.take_outgoing()
        while (due_ns := self.resolver.next_deadline()) is not None and due_ns <= until_ns:
            self.clock.time_ns = due_ns
            self.resolver.on_timer(due_ns)
            datagrams += self.resolver.take_outgoing()
        bodies = [lbmr.decode(datagram).body for datagram in datagrams]
        return [*dict.fromkeys(tir for body in bodies if isinstance(body, lbmr.Queries) for tir in body.tirs)]

    # in the place of the topic resolution and of the sessions

    def pump(self) -> None:
        self.pumps += 1

    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        assert options is ONCE
        return self.transport

    def release(self, sender: SenderTransport, linger_ns: int) -> None:
        assert sender is self.transport
        self.released.append(linger_ns)


@pytest.fixture
def scene(stepper: Stepper) -> Scene:
    return Scene(stepper)


def test_a_source_has_the_name_of_its_session_and_index(scene: Scene) -> None:
    source = scene.source
    assert (source.topic, source.topic_index, source.transport) == (b"t", 0xFFFFFFFE, scene.transport)
    assert source.source_string == "TCP:127.0.0.1:14371:00000001[4294967294]"
    assert len(source.otid) == 32


def test_the_last_sqn_is_told_on_the_session(scene: Scene) -> None:
    assert scene.source.send_tsni(41, 8) is True
    scene.session.has_room = False
    assert scene.source.send_tsni(42, 9) is False
    assert scene.session.sent == [
        (lbmc.encode(lbmc.tsni_message([(0xFFFFFFFE, sqn)])), now_ns) for sqn, now_ns in ((41, 8), (42, 9))
    ]


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("linger_ns", [0, 5])
def test_a_source_is_closed_once_and_says_nothing_afterwards(scene: Scene, final: bool, linger_ns: int) -> None:
    for _ in range(2):
        scene.source.close(final=final, linger_ns=linger_ns)
    assert (scene.released, len(scene.sources), scene.pumps) == ([linger_ns], 0, 2)
    assert [tir.is_final for tir in scene.take()] == ([True] if final else [])
    scene.source.update((lbmr.Cost(1, 6),))
    scene.source.update((lbmr.Cost(1, 6),), again=True)
    scene.source.end()
    assert (scene.released, scene.pumps, scene.take()) == ([linger_ns], 2, [])


def test_a_source_that_has_advertised_its_end_sends_on_and_comes_back(scene: Scene) -> None:
    cost = lbmr.Cost(1, 6)
    scene.source.end()
    assert [tir.is_final for tir in scene.take()] == [True]
    assert (scene.released, len(scene.sources), scene.pumps) == ([], 1, 2), "the session is not given back"
    assert scene.source.send_tsni(41, 8) is True
    scene.source.update((cost,))
    assert scene.take() == [], "a change alone does not take its end back"
    scene.source.update((cost,), again=True)
    (tir,) = scene.take()
    assert tir.options is not None
    assert (tir.is_final, tir.options.cost) == (False, cost)
    assert (scene.released, scene.pumps) == ([], 4)


def test_a_change_that_cannot_be_advertised_is_the_callers_fault(scene: Scene) -> None:
    with pytest.raises(DecodeError):
        scene.source.update(LARGE)
    assert (scene.pumps, scene.take()) == (1, [])
    scene.source.close(final=False, linger_ns=0)
    scene.source.update(LARGE)


def test_a_source_may_be_closed_after_its_context(scene: Scene) -> None:
    scene.sources.stop_advertising()
    assert (len(scene.sources), scene.released) == (0, [])
    scene.source.close(final=True, linger_ns=7)
    assert (scene.released, scene.take()) == ([7], [])


def test_a_source_that_cannot_be_advertised_gives_its_session_back(scene: Scene) -> None:
    with pytest.raises(DecodeError):
        scene.sources.open(b"u", ONCE, None, LARGE)
    assert (scene.released, len(scene.sources), scene.take()) == ([0], 1, [])


def test_silent_sources_are_advertised_one_by_one(scene: Scene) -> None:
    for topic in (b"u", b"v"):
        scene.sources.open(topic, ONCE, None, (), is_silent=True)
    assert (scene.sources.has_silent, scene.take()) == (True, [])
    for topic in (b"u", b"v"):
        assert scene.sources.advertise_silent() is None
        assert [tir.topic for tir in scene.take()] == [topic]
    scene.sources.open(b"w", ONCE, None, LARGE, is_silent=True)
    assert isinstance(scene.sources.advertise_silent(), DecodeError)
    assert (scene.sources.has_silent, scene.sources.advertise_silent(), scene.take()) == (False, None, [])

"""Own sources without a network: what is advertised, when the resolver is told, when a session is given back."""

from __future__ import annotations

from typing import cast

import pytest

from dro.clock import ms
from dro.config.um.options import UmOptions
from dro.errors import DecodeError
from dro.proto.resolver.core import Resolver, SourceAd
from dro.transport.session import SenderTransport
from dro.um.fragment.own_source import OwnSources
from dro.um.fragment.source_sessions import SourceSessions
from dro.wire import otid
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import ContextInstance
from tests.fakes.transport import FakeSender
from tests.fakes.um_contexts import Stepper

REQUEST = (0x0A000001, 14392)


class Session(FakeSender):
    """One that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, int]] = []
        self.has_room = True

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        self.sent.append((message, now_ns))
        return self.has_room


class Scene:
    """Own sources, in the place of the resolver and of the sessions, of which there is one."""

    def __init__(self, stepper: Stepper, first_index: int = 0xFFFFFFFE) -> None:
        self.stepper = stepper
        self.session = Session()
        self.told: list[tuple[object, ...]] = []
        self.ads: list[SourceAd] = []
        self.released: list[int] = []
        self.pumps = 0
        self.refuses = False
        self.own = OwnSources(
            stepper.loop,
            cast(Resolver, self),
            cast(SourceSessions, self),
            context_id=0x01020304,
            first_index=first_index,
            request_address=REQUEST,
            pump=self._pump,
        )

    def _pump(self) -> None:
        self.pumps += 1

    def acquire(self, options: UmOptions) -> SenderTransport:
        return cast(SenderTransport, self.session)

    def release(self, sender: SenderTransport, linger_ns: int) -> None:
        assert sender is cast(SenderTransport, self.session)
        self.released.append(linger_ns)

    def add_source(self, ad: SourceAd, now_ns: int) -> int:
        if self.refuses:
            raise DecodeError("topic", "bad")
        self.ads.append(ad)
        self.told.append(("+", ad.tir.topic, now_ns))
        return 70 + len(self.ads)

    def update_source(self, handle: int, tir: lbmr.Tir, now_ns: int) -> None:
        self.told.append(("=", handle, tir, now_ns))

    def remove_source(self, handle: int, now_ns: int, *, final: bool = False) -> None:
        self.told.append(("-", handle, now_ns, final))


@pytest.fixture
def scene(stepper: Stepper) -> Scene:
    return Scene(stepper)


def test_a_source_is_advertised_with_its_otid_and_the_request_address(scene: Scene) -> None:
    options = UmOptions().with_("source", "resolver_advertisement_minimum_initial_interval", 30)
    first = scene.own.open(b"t", options, None, ())
    now_ns = scene.stepper.clock.time_ns
    assert (first.topic, first.topic_index) == (b"t", 0xFFFFFFFE)
    assert first.transport is cast(SenderTransport, scene.session)
    assert first.otid == otid.encode(scene.session.address, 0xFFFFFFFE, 0x01020304, 7)
    assert first.source_string == "TCP:127.0.0.1:14371:00000001[4294967294]"
    assert scene.ads[0].tir == lbmr.Tir(
        b"t", scene.session.address, lbmr.TIR_TTL, 0xFFFFFFFE,
        lbmr.TirOptions((lbmr.OtidOption(first.otid), lbmr.ExtendedFunctionality(ip=REQUEST[0], port=REQUEST[1]))),
    )  # fmt: skip
    assert scene.ads[0].options.minimum_initial_interval_ns == ms(30)
    assert scene.told == [("+", b"t", now_ns)]
    assert [scene.own.open(b"u", UmOptions(), None, ()).topic_index for _ in range(2)] == [0xFFFFFFFF, 0]
    assert len(scene.own) == 3


def test_what_a_proxy_is_given_stands_in_ascending_order_and_replaces_the_own(scene: Scene) -> None:
    origin = bytes(range(32))
    extended = lbmr.ExtendedFunctionality(port=1, ip=2)
    given = (extended, ContextInstance(b"instance"), lbmr.OtidOption(bytes(32)), lbmr.Cost(1, 5))
    source = scene.own.open(b"t", UmOptions(), origin, given)
    assert source.otid == origin
    options = scene.ads[0].tir.options
    assert options is not None
    assert options.items == (lbmr.Cost(1, 5), lbmr.OtidOption(origin), ContextInstance(b"instance"), extended)
    source.update(given)
    assert (len(scene.told), scene.pumps) == (1, 0), "nothing new"
    source.update((lbmr.Cost(1, 6),))
    (_, handle, tir, _), pumps = scene.told[1], scene.pumps
    assert (handle, pumps) == (71, 1)
    assert isinstance(tir, lbmr.Tir)
    assert tir.options is not None
    assert tir.options.items == (lbmr.Cost(1, 6), lbmr.OtidOption(origin)), "never the own address for its origin's"
    source.update((lbmr.Cost(1, 6),))
    assert len(scene.told) == 2
    source.update(given)
    assert len(scene.told) == 3


def test_a_source_that_cannot_be_advertised_gives_its_session_back(scene: Scene) -> None:
    scene.refuses = True
    with pytest.raises(DecodeError):
        scene.own.open(b"t", UmOptions(), None, ())
    assert (scene.released, len(scene.own)) == ([0], 0)


@pytest.mark.parametrize("final", [True, False])
def test_a_source_is_closed_once_and_says_nothing_afterwards(scene: Scene, final: bool) -> None:
    source = scene.own.open(b"t", UmOptions(), None, ())
    now_ns = scene.stepper.clock.time_ns
    for _ in range(2):
        source.close(final=final, linger_ns=5)
    source.update((lbmr.Cost(1, 6),))
    assert scene.told[1:] == [("-", 71, now_ns, final)]
    assert (scene.released, scene.pumps, len(scene.own)) == ([5], 1, 0)


def test_a_source_that_has_advertised_its_end_sends_and_is_advertised_again_when_that_is_wanted(scene: Scene) -> None:
    cost = (lbmr.Cost(1, 6),)
    source = scene.own.open(b"t", UmOptions(), None, cost)
    now_ns = scene.stepper.clock.time_ns
    source.end()
    source.end()
    assert (scene.told[1:], scene.released, scene.pumps) == ([("-", 71, now_ns, True)], [], 1)
    assert source.send_tsni(41, 8) is True
    source.update((lbmr.Cost(1, 7),))
    assert len(scene.told) == 2, "a change alone does not take its end back"
    source.update(cost, again=True)
    assert [entry[:2] for entry in scene.told[2:]] == [("+", b"t")]
    source.end()
    source.close(final=True, linger_ns=5)
    assert ([entry[0] for entry in scene.told], scene.released) == (["+", "-", "+", "-"], [5]), "its end is said once"


def test_at_the_end_all_sources_are_taken_from_the_resolver_and_closing_one_later_does_nothing(scene: Scene) -> None:
    sources = [scene.own.open(topic, UmOptions(), None, ()) for topic in (b"t", b"u")]
    scene.told.clear()
    scene.own.remove_all(9)
    assert scene.told == [("-", 71, 9, False), ("-", 72, 9, False)]
    assert len(scene.own) == 0
    sources[0].close(final=True, linger_ns=0)
    assert (len(scene.told), scene.released, scene.pumps) == (2, [], 0)


def test_the_last_sqn_is_told_on_the_session(scene: Scene) -> None:
    source = scene.own.open(b"t", UmOptions(), None, ())
    assert source.send_tsni(41, 8) is True
    scene.session.has_room = False
    assert source.send_tsni(42, 9) is False
    assert scene.session.sent == [
        (lbmc.encode(lbmc.tsni_message([(0xFFFFFFFE, sqn)])), now_ns) for sqn, now_ns in ((41, 8), (42, 9))
    ]


def test_a_silent_source_is_advertised_when_its_turn_comes_as_it_is_by_then(scene: Scene) -> None:
    first, closed, last = [scene.own.open(t, UmOptions(), None, (), is_silent=True) for t in (b"t", b"u", b"v")]
    assert (scene.told, scene.own.has_silent) == ([], True)
    first.update((lbmr.Cost(1, 6),))
    closed.close(final=True, linger_ns=5)
    assert (scene.told, scene.released) == ([], [5]), "nobody has heard of it"
    assert scene.own.advertise_silent() is None
    assert [entry[:2] for entry in scene.told] == [("+", b"t")]
    assert scene.ads[0].tir.options is not None
    assert scene.ads[0].tir.options.cost == lbmr.Cost(1, 6)
    scene.refuses = True
    assert isinstance(scene.own.advertise_silent(), DecodeError)
    assert (scene.own.has_silent, scene.own.advertise_silent()) == (False, None)
    last.close(final=True, linger_ns=0)
    first.close(final=True, linger_ns=0)
    assert [entry[:2] for entry in scene.told[1:]] == [("-", 71)]

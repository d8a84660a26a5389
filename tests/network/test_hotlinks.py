"""Hotlinks: two planes that carry everything, and receivers that deliver it once, also when one plane is cut.

Named after the rows of the feature table: hotlinks, source strings, mixing regular and hotlinked DROs, no chains.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from dro.config.um.options import UmOptions
from dro.loop import Loop
from dro.metrics.slots import Slot
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import BOS, EOS, Data, Event
from dro.um.message.receiver import CallbackListener
from dro.um.message.source import MessageSource
from tests.fakes.um_contexts import turn_until
from tests.network.conftest import Make
from tests.rigs.network import Network, Plan

HOTLINKS: Final = {"1A": [1, 98], "1B": [1, 99], "2A": [2, 98], "2B": [2, 99], "3A": [3, 98], "3B": [3, 99]}
PLANES: Final = {dro: ports for dro, ports in HOTLINKS.items() if dro[0] != "2"}
SPUR: Final = PLANES | {"3C": [3, 200]}
CHAIN: Final = {
    "1A": [1, 98], "1B": [1, 99], "2A": [2, 98], "2B": [2, 99], "2C": [2, 96], "2D": [2, 97], "4A": [4, 96],
    "4B": [4, 97],
}  # fmt: skip
TOPIC: Final = "orders"
SETTLE_MS: Final = 3000


def indexes(plan: dict[str, list[int]], shift: int = 0) -> dict[str, str]:
    """A and C have 1, B and D 2 at the TRD of applications; with `shift` those of TRD 3 differ from the others."""
    made = {}
    for dro, (trd, beyond) in plan.items():
        if beyond == 200:
            continue
        number = "ABCD".index(dro[1]) % 2 + 1
        made[f"{dro}-{trd}"] = f"<hotlink-index>{number + (shift if trd == 3 else 0)}</hotlink-index>"
    return made


class Receiver:
    """One client context with one receiver, and what it was told."""

    def __init__(self, plan: Plan, loop: Loop, trd: int, *, use_hotlink: int = 1) -> None:
        config = Config.load(plan.config(trd)).with_("receiver", "use_hotlink", use_hotlink)
        self.context = MessageContext(config, loop)
        self.events: list[Event] = []
        self.sources: list[tuple[str, bool]] = []
        listener = CallbackListener(self.events.append, None, lambda _, s, added: self.sources.append((s, added)))
        self.context.receiver(TOPIC, listener, UmOptions())

    def got(self) -> list[int]:
        return [int(event.data) for event in self.events if isinstance(event, Data)]

    def sessions(self) -> int:
        return len(self.context.core.bound_sources)


def sender_of(plan: Plan, loop: Loop, trd: int = 1) -> tuple[MessageContext, MessageSource]:
    """A client context with one source."""
    context = MessageContext(Config.load(plan.config(trd)).with_("source", "use_hotlink", 1), loop)
    return context, context.source(TOPIC, UmOptions())


class Site:
    """A network with applications, closed in the right order."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.contexts: list[MessageContext] = []
        self._sent = 0

    def receiver(self, trd: int, *, use_hotlink: int = 1) -> Receiver:
        made = Receiver(self.net.plan, self.net.loop, trd, use_hotlink=use_hotlink)
        self.contexts.append(made.context)
        return made

    def source(self, trd: int) -> MessageSource:
        context, source = sender_of(self.net.plan, self.net.loop, trd)
        self.contexts.append(context)
        return source

    def send(self, source: MessageSource, count: int) -> None:
        for _ in range(count):
            source.send(b"%d" % self._sent, flush=True)
            self._sent += 1
            self.net.run(10)

    def close(self) -> None:
        for context in self.contexts:
            context.close_children()
            context.close()


@pytest.fixture
def hotlinked(make: Make, request: pytest.FixtureRequest) -> Iterator[Site]:
    plan, transport, shift = request.param
    site = Site(make(plan, transport=transport, portal_xml=indexes(plan, shift)))
    site.net.start()
    site.net.run(SETTLE_MS, 20)
    yield site
    site.close()


def both(plan: dict[str, list[int]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "hotlinked", [(plan, "lbtrm", 0), (plan, "tcp", 0)], indirect=True, ids=["rm", "tcp"]
    )


def settled(site: Site, *receivers: Receiver, sessions: int = 2) -> None:
    site.net.until(lambda: all(one.sessions() == sessions for one in receivers))


@pytest.mark.parametrize(
    "hotlinked", [(HOTLINKS, "lbtrm", 0), (HOTLINKS, "tcp", 0), (HOTLINKS, "lbtrm", 6)], indirect=True
)
def test_each_message_is_delivered_once_and_both_planes_carry_all(hotlinked: Site) -> None:
    source = hotlinked.source(1)
    receivers = [hotlinked.receiver(trd) for trd in (2, 3)]
    settled(hotlinked, *receivers)
    hotlinked.send(source, 50)
    hotlinked.net.run(500, 20)
    assert [one.got() for one in receivers] == [list(range(50))] * 2
    dros = hotlinked.net.dros
    assert [dros[name].page(trd, Slot.SENT) for name, trd in (("1A", 98), ("1B", 99), ("3A", 3), ("3B", 3))] == [50] * 4
    assert [dro.dropped() for dro in dros.values()] == [0] * 6


@pytest.mark.parametrize("victim", ["1A", "1B", "3A", "3B"])
@both(PLANES)
def test_a_plane_that_is_cut_costs_nothing(hotlinked: Site, victim: str) -> None:
    source, receiver = hotlinked.source(1), hotlinked.receiver(3)
    settled(hotlinked, receiver)
    hotlinked.send(source, 20)
    hotlinked.net.kill(victim)
    for _ in range(200):
        hotlinked.send(source, 1)
        turn_until(hotlinked.net.loop, lambda: receiver.got()[-1:] == [hotlinked._sent - 1])  # without a pause
    hotlinked.net.start(victim)
    hotlinked.send(source, 300)
    hotlinked.net.run(500, 20)
    assert receiver.got() == list(range(520))


@both(PLANES)
def test_events_name_the_source_of_the_origin(hotlinked: Site) -> None:
    source, receiver, local = hotlinked.source(1), hotlinked.receiver(3), hotlinked.receiver(1)
    settled(hotlinked, receiver)
    settled(hotlinked, local, sessions=1)
    hotlinked.send(source, 5)
    hotlinked.net.kill("3A")
    hotlinked.net.until(lambda: receiver.sessions() == 1, limit_ms=90_000, step_ms=50)
    name = source.source_string
    assert {event.source for event in receiver.events if isinstance(event, Data | BOS | EOS)} == {name}
    began = [event.proxy_source for event in receiver.events if isinstance(event, BOS)]
    ended = [event.proxy_source for event in receiver.events if isinstance(event, EOS)]
    assert len(set(began) - {name, ""}) == 2
    assert len(ended) == 1
    assert ended[0] in began
    assert receiver.sources == [(name, True)], "the source is there as long as one of its sessions is"
    assert [event for event in local.events if isinstance(event, BOS)] == [BOS(TOPIC, name)]


@pytest.mark.parametrize("hotlinked", [(PLANES, "lbtrm", 0)], indirect=True)
def test_a_receiver_without_the_option_joins_one_plane(hotlinked: Site) -> None:
    source, receiver = hotlinked.source(1), hotlinked.receiver(3, use_hotlink=0)
    settled(hotlinked, receiver, sessions=1)
    hotlinked.send(source, 20)
    hotlinked.net.run(500, 20)
    assert receiver.sessions() == 1
    assert receiver.got() == list(range(20))


@both(SPUR)
def test_a_regular_dro_passes_one_copy_and_recovers(hotlinked: Site) -> None:
    """Behind a DRO without an index there is one stream; when its plane fails, it goes on by the other."""
    source, spur, near = hotlinked.source(1), hotlinked.receiver(200), hotlinked.receiver(3)
    settled(hotlinked, spur, sessions=1)
    settled(hotlinked, near)
    hotlinked.send(source, 20)
    assert spur.got() == list(range(20))
    hotlinked.net.kill("3A")
    hotlinked.send(source, 50)
    for _ in range(900):
        hotlinked.net.run(100, 50)
        hotlinked.send(source, 1)
        if spur.got()[-1] == hotlinked._sent - 1:
            break
    hotlinked.send(source, 20)
    hotlinked.net.run(500, 20)
    got = spur.got()
    assert got == sorted(set(got))
    assert got[-20:] == list(range(hotlinked._sent - 20, hotlinked._sent))
    assert near.got() == list(range(hotlinked._sent)), "whatever becomes of the spur"


@pytest.mark.parametrize("hotlinked", [(SPUR, "lbtrm", 0)], indirect=True)
def test_a_source_behind_a_regular_dro_is_redundant_beyond(hotlinked: Site) -> None:
    source, receiver = hotlinked.source(200), hotlinked.receiver(1)
    settled(hotlinked, receiver)
    hotlinked.send(source, 20)
    hotlinked.net.kill("3A")
    hotlinked.send(source, 100)
    hotlinked.net.run(500, 20)
    assert receiver.got() == list(range(120))


@pytest.mark.parametrize("hotlinked", [(CHAIN, "lbtrm", 0)], indirect=True)
def test_hotlinks_are_not_chained(hotlinked: Site) -> None:
    """The next TRD gets everything once, the one behind it nothing, and nothing goes in circles."""
    source, near, far = hotlinked.source(1), hotlinked.receiver(2), hotlinked.receiver(4)
    hotlinked.net.until(lambda: near.sessions() > 0)
    hotlinked.net.run(SETTLE_MS, 20)
    hotlinked.send(source, 20)
    hotlinked.net.run(500, 20)
    assert near.got() == list(range(20))
    assert far.got() == []
    dros = hotlinked.net.dros
    assert all(dros[name].page(trd, Slot.SENT) <= 20 for name, trds in CHAIN.items() for trd in trds)

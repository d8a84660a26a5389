"""Everything sent arrives once and in order, however the DROs are joined by peer links and whoever comes first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product

import pytest

from dro.config.um.options import UmOptions
from dro.metrics.slots import Slot
from dro.transport.runs import KIND_TSNI, Run
from dro.transport.session import ReceiverTransport
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import Data, Event, Loss
from dro.um.message.receiver import CallbackListener
from portals.decisions.messages import PATTERN_PCRE
from tests.network.conftest import Make
from tests.network.plans import ALL, CHAIN, TRIANGLE
from tests.rigs.network import Application, Network

TOPIC = b"orders/eu"
QUIET_MS = 1000
"""Longer than anything that is on its way takes."""


def by_topic(application: Application) -> None:
    application.context.want_topic(TOPIC)


def by_pattern(application: Application) -> None:
    application.context.want_pattern(b"^orders/", PATTERN_PCRE, lambda name: name.startswith(b"orders/"))


def by_both(application: Application) -> None:
    by_topic(application)
    by_pattern(application)


class Everybody:
    """In each TRD sources, and receivers of each kind in contexts of their own; all send to all."""

    def __init__(self, net: Network, sources: int = 1) -> None:
        self.net = net
        self.sources: dict[FragmentSource, Application] = {}
        self.receivers: list[Application] = []
        self._count = sources

    def open_sources(self) -> None:
        for trd in self.net.plan.trds:
            application = self.net.application(trd)
            for _ in range(self._count):
                self.sources[application.source(TOPIC)] = application

    def open_receivers(self, kinds: tuple[Callable[[Application], None], ...]) -> None:
        for trd in self.net.plan.trds:
            for want in kinds:
                self.receivers.append(self.net.application(trd))
                want(self.receivers[-1])

    def settle(self) -> None:
        self.net.until(lambda: all(len(r.bound(TOPIC)) == len(self.sources) for r in self.receivers))

    def send(self, rounds: int, size: Callable[[int], int] = lambda nth: 0) -> None:
        for nth in range(rounds):
            for source, application in self.sources.items():
                application.send(source, size=size(nth))
            self.net.run(10)

    def check(self, rounds: int) -> None:
        """Each of them has everything of each source, once and in order, and nothing is lost on the way."""
        expected = list(range(rounds))
        self.net.until(
            lambda: all(len(r.heard(TOPIC)) >= rounds * len(self.sources) for r in self.receivers), limit_ms=5000
        )
        self.net.run(QUIET_MS, 50)
        for receiver in self.receivers:
            for source in self.sources:
                assert receiver.got(source) == expected
        assert [dro.dropped() for dro in self.net.dros.values()] == [0] * len(self.net.dros)


WANTS = by_topic, by_pattern, by_both


@pytest.mark.parametrize(
    ("plan", "first"),
    [*product(("pair", "chain", "triangle"), ("sources", "receivers", "DROs")),
     ("ring", "DROs"), ("ring", "receivers"), ("star", "DROs"), ("spur", "sources")],
)  # fmt: skip
def test_everything_is_heard_once_and_in_order(make: Make, plan: str, first: str) -> None:
    """A source of the same topic and receivers of all kinds in each TRD."""
    net = make(ALL[plan])
    all_of_them = Everybody(net)
    if first == "DROs":
        net.start()
        net.run(1000)
    if first != "receivers":
        all_of_them.open_sources()
    all_of_them.open_receivers(WANTS)
    if first == "receivers":
        net.run(200)
        all_of_them.open_sources()
    if first != "DROs":
        net.start()
    all_of_them.settle()
    all_of_them.send(20)
    all_of_them.check(20)


def test_several_sources_of_a_context_and_topic_stay_apart(make: Make) -> None:
    net = make(TRIANGLE)
    net.start()
    all_of_them = Everybody(net, sources=5)
    all_of_them.open_sources()
    all_of_them.open_receivers((by_topic,))
    all_of_them.settle()
    all_of_them.send(20)
    all_of_them.check(20)


@pytest.mark.parametrize("order", ["".join(order) for order in permutations("ABC")])
@pytest.mark.parametrize("plan", [CHAIN, TRIANGLE], ids=["chain", "triangle"])
def test_dros_start_in_any_order(make: Make, plan: dict[str, list[int | str]], order: str) -> None:
    """Each one comes when those before it have long been there."""
    net = make(plan)
    all_of_them = Everybody(net)
    all_of_them.open_sources()
    all_of_them.open_receivers((by_topic,))
    for dro in order:
        net.start(dro)
        net.run(1500)
    all_of_them.settle()
    all_of_them.send(10)
    all_of_them.check(10)


@pytest.mark.parametrize("transport", ["tcp", "lbtrm", "lbtipc"])
@pytest.mark.parametrize("plan", ["pair", "star"])
def test_fragments_of_all_sizes_cross(make: Make, plan: str, transport: str) -> None:
    largest = 60_000 if transport == "tcp" else 7_000
    sizes = [0, largest, 1, 500, largest - 1, 1400, 100, largest // 2]
    net = make(ALL[plan], transport=transport)
    net.start()
    all_of_them = Everybody(net)
    all_of_them.open_sources()
    all_of_them.open_receivers((by_topic,))
    all_of_them.settle()
    all_of_them.send(24, lambda nth: sizes[nth % len(sizes)])
    all_of_them.check(24)
    for receiver in all_of_them.receivers:
        for source in all_of_them.sources:
            sender = source.otid.hex().encode()
            lengths = [len(m) - 12 for _, _, m in receiver.sink.fragments if m[12:].startswith(sender)]
            assert [length if length > 100 else 0 for length in lengths] == [s if s > 100 else 0 for s in sizes] * 3


def test_2000_topics_cross_two_links(make: Make) -> None:
    net = make(CHAIN)
    net.start()
    net.run(1000)
    sender, receiver = net.application(1), net.application(3)
    topics = [b"t%d" % nth for nth in range(2000)]
    with sender.context.together():
        sources = [sender.source(topic) for topic in topics]
    with receiver.context.together():
        for topic in topics:
            receiver.context.want_topic(topic)
    net.until(lambda: len(receiver.sink.current) == len(topics), limit_ms=60_000, step_ms=50)
    for _ in range(3):
        for source in sources:
            sender.send(source)
        net.run(50)
    net.until(lambda: len(receiver.sink.fragments) >= 3 * len(topics))
    net.run(QUIET_MS, 50)
    heard: dict[bytes, list[int]] = {topic: [] for topic in topics}
    for topic, sqn, _ in receiver.sink.fragments:
        heard[topic].append(sqn)
    assert all(sqns == [0, 1, 2] for sqns in heard.values())
    assert [dro.dropped() for dro in net.dros.values()] == [0, 0, 0]


def test_an_idle_source_is_kept_two_dros_away(make: Make) -> None:
    """Its TSNIs cross every DRO, and no receiver gives it up in five minutes."""
    net = make(CHAIN, daemon="")
    net.start()
    sender, receiver = net.application(1), net.application(3)
    tsnis: list[int] = []
    on_fragments = receiver.sink.on_runs

    def counted(transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        tsnis.extend(run.first_sqn for run in runs if run.kind == KIND_TSNI)
        on_fragments(transport, view, runs, now_ns)

    receiver.sink.on_runs = counted  # type: ignore[method-assign]
    source = sender.source(TOPIC)
    by_topic(receiver)
    net.until(lambda: len(receiver.bound(TOPIC)) == 1)
    sender.send(source, 3)
    for _ in range(10):
        net.run(30_000, 500)
        assert source.send_tsni(2, net.loop.now_ns())
    net.run(100)
    assert tsnis == [2] * 10
    assert (len(receiver.sink.bound), receiver.sink.unbound) == (1, [])
    sender.send(source, 2)
    net.until(lambda: len(receiver.got(source)) == 5)
    assert receiver.got(source) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("plan", ["pair", "chain", "ring", "star"])
def test_interest_that_is_gone_takes_all_proxies_along(make: Make, plan: str) -> None:
    net = make(ALL[plan])
    net.start()
    first, last = net.plan.trds[0], 3 if 3 in net.plan.trds else 2
    sender, receiver = net.application(first), net.application(last)
    source = sender.source(TOPIC)
    by_both(receiver)
    net.until(lambda: len(receiver.bound(TOPIC)) == 1)
    sender.send(source, 10)
    net.until(lambda: len(receiver.got(source)) == 10)
    assert any(dro.proxies() for dro in net.dros.values())
    receiver.context.unwant_topic(TOPIC)
    receiver.context.unwant_pattern(b"^orders/", PATTERN_PCRE)
    net.until(lambda: not any(dro.proxies() for dro in net.dros.values()), limit_ms=300_000, step_ms=100)
    before = {name: dro.page(port, Slot.SENT) for name, dro in net.dros.items() for port in net.plan.dros[name]}
    sender.send(source, 10)
    net.run(QUIET_MS, 50)
    assert {n: d.page(port, Slot.SENT) for n, d in net.dros.items() for port in net.plan.dros[n]} == before
    by_topic(receiver)
    net.until(lambda: len(receiver.bound(TOPIC)) == 1)
    sender.send(source, 10)
    net.until(lambda: len(receiver.got(source)) == 20)
    assert receiver.got(source) == [*range(10), *range(20, 30)]


def test_a_source_that_ends_takes_its_proxies_along(make: Make) -> None:
    net = make(ALL["ring"])
    net.start()
    sender, receiver = net.application(1), net.application(3)
    source = sender.source(TOPIC)
    by_topic(receiver)
    net.until(lambda: len(receiver.bound(TOPIC)) == 1)
    sender.send(source, 10)
    net.run(100)
    source.close(final=True, linger_ns=0)
    net.until(lambda: not receiver.bound(TOPIC), limit_ms=20_000)
    assert [ended for _, ended in receiver.sink.unbound] == [True]
    assert receiver.got(source) == list(range(10))


@pytest.mark.parametrize(("timeout_ms", "is_lost"), [(0, True), (2000, False)])
@pytest.mark.parametrize("transport", ["tcp", "lbtipc"])
def test_a_message_that_overtakes_another_is_waited_for_on_tcp_when_the_receiver_wants_it(
    make: Make, transport: str, timeout_ms: int, *, is_lost: bool
) -> None:
    """From LBT-RM, where one is lost and repaired, to a transport where it comes late."""
    net = make(ALL["pair"], transport={1: "lbtrm", 2: transport})
    net.start()
    option = f"transport_{transport}_dro_loss_recovery_timeout"
    context = MessageContext(Config.load(net.plan.config(2)).with_("receiver", option, timeout_ms), net.loop)
    events: list[Event] = []
    context.receiver(TOPIC.decode(), CallbackListener(events.append, None, lambda *_: None), UmOptions())
    sender = net.application(1)
    source = sender.source(TOPIC)
    net.until(lambda: bool(context.core.bound_sources))
    net.run(500)
    sender.send(source, 5)
    net.run(100)
    sender.lose(source)
    sender.send(source, 5)
    net.run(5000)
    heard = [event.sqn for event in events if isinstance(event, Data)]
    lost = [event.sqn for event in events if isinstance(event, Loss)]
    everything = list(range(11))
    assert (heard, lost) == (([sqn for sqn in everything if sqn != 5], [5]) if is_lost else (everything, []))
    context.close_children()
    context.close()

"""Whole DROs on a clock that the tests move: default keepalives, and when and why routes are calculated."""

from __future__ import annotations

import logging
from typing import Final

import pytest

from dro.clock import NS_PER_MS
from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from tests.network.conftest import Make
from tests.network.plans import PAIR
from tests.network.test_outages import Flow
from tests.network.test_shared_trds import know_all
from tests.rigs.network import Network, Ports

TOPIC: Final = b"quotes"
REASONS: Final = (
    LogEvent.LINK_UP, LogEvent.LINK_DOWN, LogEvent.RECALCULATION_FORCED, LogEvent.DRO_DISCOVERED,
    LogEvent.NODE_UPDATED, LogEvent.DRO_TIMED_OUT,
)  # fmt: skip


def now_ms(net: Network) -> int:
    return net.loop.now_ns() // NS_PER_MS


def test_a_silent_link_is_given_up_after_15_s_and_made_anew(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it is idle it is asked each 5 s. Then the network swallows everything, and both connections stand."""
    caplog.set_level(logging.INFO)
    net = make(PAIR, daemon="", delays_ms={("A", "B"): 1})
    (relay,) = net._relays
    net.start()

    def are_up() -> bool:
        return net.dros["A"].has_link("B") and net.dros["B"].has_link("A")

    def links_made() -> list[int]:
        return [net.dros["A"].peers["B"].link.watch.links, net.dros["B"].peers["A"].link.watch.links]

    net.until(are_up)
    net.run(2000)

    def samples() -> int:
        return net.dros["A"].page("B", Slot.RTT_SAMPLES) + net.dros["B"].page("A", Slot.RTT_SAMPLES)

    before = samples()
    net.run(60_000, 50)
    assert 10 <= samples() - before <= 26
    monkeypatch.setattr(relay, "_pass", lambda *_: None)
    silent_ms = now_ms(net)
    net.until(lambda: not are_up(), limit_ms=16_000, step_ms=50)
    assert 10_000 <= now_ms(net) - silent_ms <= 15_100
    reasons = [str(vars(record).get("reason")) for record in caplog.records if record.msg == LogEvent.PEER_LINK_LOST]
    assert reasons[0] == "nothing came for 15000 ms"
    monkeypatch.undo()
    # an attempt is made at once, which the network has swallowed as well
    net.until(lambda: are_up() and links_made() == [2, 2], limit_ms=20_000, step_ms=50)


def test_routes_are_there_5_to_6_s_after_the_start(make: Make) -> None:
    net = make({"A": [1, 2]}, daemon="")
    began_ms = now_ms(net)
    net.start()
    net.until(lambda: know_all(net), limit_ms=8000)
    assert 5000 <= now_ms(net) - began_ms <= 5750


@pytest.mark.parametrize(
    ("keepalive", "least", "most"),
    [('idle="yes" interval="1000"', 0, 1), ('idle="no" interval="1000"', 4, 12), ('idle="yes" interval="0"', 0, 0)],
)
def test_a_link_with_traffic_is_asked_when_that_is_configured(
    make: Make, keepalive: str, least: int, most: int
) -> None:
    """For five seconds; what has just come says enough otherwise. Without an interval silence is no fault."""
    xml = f'<gateway-keepalive {keepalive} timeout="3000"/>'
    net = make(PAIR, portal_xml={"A-B": xml, "B-A": xml}, delays_ms={("A", "B"): 1})
    (relay,) = net._relays
    net.start()
    flow = Flow(net, 1, 2)
    flow.run(500)
    dros = net.dros["A"], net.dros["B"]

    def samples() -> int:
        return dros[0].page("B", Slot.RTT_SAMPLES) + dros[1].page("A", Slot.RTT_SAMPLES)

    before = samples()
    flow.run(5000)
    assert least <= samples() - before <= most
    relay._pass = lambda *_: None  # type: ignore[method-assign]
    net.run(5000, 50)
    is_kept = 'interval="0"' in keepalive
    assert [dros[0].has_link("B"), dros[1].has_link("A")] == [is_kept, is_kept]


@pytest.mark.parametrize("plan", [{"A": [1, 2]}, PAIR], ids=["direct", "link"])
def test_the_end_of_a_source_is_told_in_4_s(make: Make, plan: Ports) -> None:
    """On TCP, without a final advertisement of its own; receivers on LBT-RM would wait for a minute otherwise."""
    net = make(plan, daemon="", transport={1: "tcp", 2: "lbtrm"})
    net.start()
    sender, receiver = net.application(1), net.application(2)
    source = sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: bool(receiver.bound(TOPIC)))
    net.run(1000)
    sender.send(source, 10)
    net.run(100)
    source.close(final=False, linger_ns=0)
    net.until(lambda: not receiver.bound(TOPIC), limit_ms=4000)
    assert [ended for _, ended in receiver.sink.unbound] == [True]
    assert receiver.got(source) == list(range(10))


def test_each_reason_to_calculate_routes_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    net = make(PAIR)

    def told(event: LogEvent) -> int:
        return sum(record.msg == event for record in caplog.records)

    def until_told(event: LogEvent, count: int = 1) -> None:
        before = told(event)
        net.until(lambda: told(event) >= before + count)

    net.start("A")
    net.run(1000)
    assert told(LogEvent.DRO_DISCOVERED) == 0
    net.start("B")
    net.until(lambda: told(LogEvent.DRO_DISCOVERED) == 2 and told(LogEvent.LINK_UP) >= 4)
    net.run(2000)
    net.dros["A"].set_cost("B", 5)
    until_told(LogEvent.NODE_UPDATED, 2)
    net.run(2000)
    net.dros["A"].workers[0].told["on_recalculate"]()
    assert told(LogEvent.RECALCULATION_FORCED) == 1
    net.kill("B")
    until_told(LogEvent.LINK_DOWN)
    until_told(LogEvent.DRO_TIMED_OUT)
    assert all(told(event) for event in REASONS)

"""Requests in a source's stream through real DROs, over a peer link and a TRD, judged by tshark."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import pytest

from dro.clock import ms
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import ODomain, Request
from tests.fakes.um_contexts import turn_until
from tests.netns.test_peer_links import dros_of
from tests.rigs.netns.capture import judge
from tests.rigs.netns.harness import Net
from tests.rigs.network import Plan

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

TOPIC: Final = b"questions"
COUNT: Final = 60
FIRST, TRANSIT, LAST = 1, 2, 3


def test_a_request_names_the_domain_that_it_is_from(net: Net, tmp_path: Path) -> None:
    """In its own TRD it does not, and in all TRDs and on all links after that it names the first."""
    plan = Plan(tmp_path, {"A": [FIRST, "B"], "B": [TRANSIT, "A"], "C": [TRANSIT, LAST]})
    with dros_of(net, plan) as dros:
        capture = net.start_capture(dros.host.namespace, "lo", "lo", "")
        for name in "ABC":
            dros.start(name)
        ends = {trd: dros.application(trd) for trd in plan.trds}
        for end in ends.values():
            end.context.want_topic(TOPIC)
        source = ends[FIRST].context.open_source(TOPIC)
        asks = Request(7, *ends[FIRST].context.request_address)
        sqns = iter(range(1 << 20))
        next_ns = 0

        def ask(is_request: bool) -> int:
            sqn = next(sqns)
            message = lbmc.Message(MessageType.MESSAGE, source.topic_index, sqn, (asks,) if is_request else (), b"?")
            assert source.transport.send_message(lbmc.encode(message), dros.loop.now_ns())
            return sqn

        def is_heard() -> bool:
            nonlocal next_ns
            if dros.loop.now_ns() >= next_ns:
                next_ns = dros.loop.now_ns() + ms(20)
                ask(False)
            return all(end.heard(TOPIC) for end in ends.values())

        turn_until(dros.loop, is_heard)
        sent = {ask(bool(nth % 3)): bool(nth % 3) for nth in range(COUNT)}
        turn_until(dros.loop, lambda: all(max(sent) in end.heard(TOPIC) for end in ends.values()))
        for trd, end in ends.items():
            got = [lbmc.decode(raw) for _, sqn, raw in end.sink.fragments if sqn in sent]
            assert [m.sqn for m in got] == list(sent)
            domain = () if trd == FIRST else (ODomain(FIRST),)
            assert [m.blocks for m in got] == [(asks, *domain) if is_request else () for is_request in sent.values()]
        for end in ends.values():
            end.context.close()
        for process in dros.processes.values():
            process.signal(signal.SIGTERM)
        assert [process.wait(20) for process in dros.processes.values()] == [0, 0, 0]
        verdict = judge(capture.stop(), dros.decoding())
    verdict.assert_clean({"lbtrm.data": 3 * COUNT, "lbttcp": 2, "lbmr.domain_route": 2})

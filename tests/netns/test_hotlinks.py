"""Hotlinks with real DROs in one namespace: one plane dies, nothing is lost; judged by tshark."""

from __future__ import annotations

import signal
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from dro.clock import ms
from dro.um.message.context import MessageContext
from tests.fakes.um_contexts import turn_until
from tests.netns.test_peer_links import dros_of
from tests.network.test_hotlinks import PLANES, Receiver, indexes, sender_of
from tests.rigs.netns.capture import judge
from tests.rigs.netns.harness import Net
from tests.rigs.network import Plan

pytestmark = [pytest.mark.netns, pytest.mark.tshark]


def close(context: MessageContext) -> None:
    context.close_children()
    context.close()


@pytest.mark.parametrize("transport", ["lbtrm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_plane_dies_and_comes_back_and_nothing_is_lost(net: Net, tmp_path: Path, transport: str) -> None:
    plan = Plan(tmp_path, PLANES, transport=transport, portal_xml=indexes(PLANES))
    with dros_of(net, plan) as dros, ExitStack() as ends:
        capture = net.start_capture(dros.host.namespace, "lo", "lo", "")
        for name in PLANES:
            dros.start(name)
        sending, source = sender_of(plan, dros.loop)
        ends.callback(close, sending)
        receiver = Receiver(plan, dros.loop, 3)
        ends.callback(close, receiver.context)
        turn_until(dros.loop, lambda: receiver.sessions() == 2)
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                source.send(b"%d" % sent, flush=True)
                sent += 1
                end_ns = dros.loop.now_ns() + ms(3)
                turn_until(dros.loop, lambda: dros.loop.now_ns() >= end_ns)  # noqa: B023 - called at once

        while not receiver.got():  # a session on TCP is there before its connection is
            send(1)
            assert sent < 1000
        first = receiver.got()[0]
        send(100)
        dros.kill("3A")
        send(300)
        assert receiver.got()[-1] >= sent - 20, "no pause"
        dros.start("3A")
        dros.processes["3A"].wait_output("route recalculation took|routes calculated", 20)
        send(300)
        with suppress(AssertionError):  # what is missing says more
            turn_until(dros.loop, lambda: len(receiver.got()) >= sent - first)
        got = receiver.got()
        missing = sorted(set(range(first, sent)) - set(got))
        assert got == list(range(first, sent)), (missing, receiver.sessions(), receiver.sources)
        ends.close()
        for process in dros.processes.values():
            process.signal(signal.SIGTERM)
        assert [process.wait(20) for process in dros.processes.values()] == [0] * len(PLANES)
        verdict = judge(capture.stop(), dros.decoding())
    verdict.assert_clean({"lbtrm.data" if transport == "lbtrm" else "lbttcp": 1500, "lbmr.proxy_tir": 4})

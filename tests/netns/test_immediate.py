"""Multicast immediate messages through real DROs, over a shared TRD and a peer link, judged by tshark."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dro.clock import ms
from tests.fakes.um_contexts import turn_until
from tests.netns.test_peer_links import dros_of
from tests.rigs.immediate import Immediate, give_groups
from tests.rigs.netns.capture import judge
from tests.rigs.netns.harness import Net
from tests.rigs.network import Plan

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

COUNT = 50


def test_messages_with_and_without_a_topic_reach_every_trd_once(net: Net, tmp_path: Path) -> None:
    plan = Plan(tmp_path, {"A": [1, 2, "B"], "B": [3, "A"], "C": [2, 4]})
    give_groups(plan)
    with dros_of(net, plan) as dros:
        capture = net.start_capture(dros.host.namespace, "lo", "lo", "")
        for name in "ABC":
            dros.start(name)
        applications = [dros.application(trd) for trd in plan.trds]
        ends = {trd: Immediate(application.context) for trd, application in zip(plan.trds, applications, strict=True)}

        def pause(milliseconds: int) -> None:
            end_ns = dros.loop.now_ns() + ms(milliseconds)
            turn_until(dros.loop, lambda: dros.loop.now_ns() >= end_ns)

        def tried() -> bool:
            """Every end has heard something of every other one: the routes are there."""
            for trd, end in ends.items():
                end.send(b"%d try" % trd, end.blocks(trd))
            pause(100)
            return all(len({payload[:1] for payload in end.payloads}) == 3 for end in ends.values())

        while not tried():
            pass
        for number in range(COUNT):
            for trd, end in ends.items():
                topic = b"quotes" if number % 2 else b""
                end.send(b"%d %d" % (trd, number), end.blocks(trd, topic, is_request=number % 5 == 0))
            pause(5)

        def counted(end: Immediate) -> list[bytes]:
            return [payload for payload in end.payloads if not payload.endswith(b"try")]

        turn_until(dros.loop, lambda: all(len(counted(end)) >= 3 * COUNT for end in ends.values()))
        for trd, end in ends.items():
            others = [other for other in ends if other != trd]
            assert sorted(counted(end)) == sorted(b"%d %d" % (other, n) for other in others for n in range(COUNT))
        for application in applications:
            application.context.close()
        for process in dros.processes.values():
            process.signal(signal.SIGTERM)
        assert [process.wait(20) for process in dros.processes.values()] == [0, 0, 0]
        verdict = judge(capture.stop(), dros.decoding())
    verdict.assert_clean({"lbtrm.data": 4 * COUNT, "lbttcp": 2 * COUNT, "lbmr.domain_route": 2})

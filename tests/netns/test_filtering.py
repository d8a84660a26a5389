"""Source-side filtering through a real DRO, at the source and at its proxy sources, judged by tshark."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from dro.clock import ms
from tests.fakes.um_contexts import turn_until
from tests.netns.test_peer_links import Dros, dros_of
from tests.rigs.netns.capture import judge
from tests.rigs.netns.harness import Net
from tests.rigs.network import Application, Plan

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

UM: Final = (
    "source transport_source_side_filtering_behavior inclusion\ncontext transport_tcp_maximum_ports 1\n"
    "source resolver_send_final_advertisements 1\n"
)
TOPICS: Final = (b"wanted", b"other", b"nobody's")
COUNT: Final = 40


def run(dros: Dros, milliseconds: int) -> None:
    end_ns = dros.loop.now_ns() + ms(milliseconds)
    turn_until(dros.loop, lambda: dros.loop.now_ns() >= end_ns)


def told(dros: Dros, path: Path, name: str) -> Counter[tuple[str, ...]]:
    """What tshark reads in the blocks of that name: the value that says which kind, and whether any is malformed."""
    argv = ["tshark", "-n", "-r", str(path), "-Y", f"lbmc.{name}", "-T", "fields", "-E", "occurrence=a"]
    for rule in dros.decoding():
        argv += ["-d", rule]
    kind = {"ssf_init": "lbmc.ssf_init.flags", "ssf_creq": "lbmc.ssf_creq.mode"}[name]
    done = subprocess.run([*argv, "-e", kind, "-e", "_ws.malformed"], capture_output=True, text=True, check=True)
    found: Counter[tuple[str, ...]] = Counter()
    for line in done.stdout.splitlines():
        values, _, malformed = line.partition("\t")
        found.update((value, malformed) for value in values.split(","))
    return found


def test_only_what_is_wanted_crosses_each_hop(net: Net, tmp_path: Path) -> None:
    """A source of three topics, a DRO, and receivers of one, of two and, later, of another one of them."""
    plan = Plan(tmp_path, {"A": [1, 2]}, transport="tcp", um=UM)
    with dros_of(net, plan) as dros:
        capture = net.start_capture(dros.host.namespace, "lo", "lo", "")
        dros.start("A")
        sender, one, two = (dros.application(trd) for trd in (1, 2, 2))
        sources = {topic: sender.source(topic) for topic in TOPICS}
        for application, topics in ((one, TOPICS[:1]), (two, TOPICS[:2])):
            for topic in topics:
                application.context.want_topic(topic)

        def send() -> None:
            for source in sources.values():
                sender.send(source)
            run(dros, 5)

        def until_heard(application: Application, *topics: bytes) -> None:
            before = {topic: len(application.heard(topic)) for topic in topics}

            def is_heard() -> bool:
                send()
                return all(len(application.heard(topic)) > amount for topic, amount in before.items())

            turn_until(dros.loop, is_heard)

        until_heard(two, *TOPICS[:2])
        until_heard(one, TOPICS[0])
        for _ in range(COUNT):
            send()
        run(dros, 200)
        for application, topics in ((one, TOPICS[:1]), (two, TOPICS[:2])):
            for topic in topics:
                heard = application.heard(topic)
                assert heard == [*range(heard[0], sender.sent(sources[topic]))], "none is missing from there on"
            assert {topic for topic, _, _ in application.sink.fragments} == set(topics)
            assert not any(session.lbm_msgs_no_topic_rcved for session in application.context.joined.sessions())
        one.context.close()
        again = dros.application(2)
        again.context.want_topic(TOPICS[0])
        until_heard(again, TOPICS[0])
        again.context.want_topic(TOPICS[2])
        until_heard(again, TOPICS[2])
        two.context.unwant_topic(TOPICS[1])
        run(dros, 1000)
        amount = len(two.heard(TOPICS[1]))
        until_heard(two, TOPICS[0])
        assert len(two.heard(TOPICS[1])) == amount
        for topic in (TOPICS[0], TOPICS[2]):
            heard = again.heard(topic)
            assert heard == [*range(heard[0], heard[-1] + 1)]
        for application in (sender, two, again):
            application.context.close()
        process = dros.processes["A"]
        process.signal(signal.SIGTERM)
        assert process.wait(20) == 0
        path = capture.stop()
        verdict = judge(path, dros.decoding())
        offers, requests = (told(dros, path, name) for name in ("ssf_init", "ssf_creq"))
    verdict.assert_clean({"lbttcp": 4 * COUNT})
    assert offers == {("0x20", ""): 4}, "one for each connection"
    assert set(requests) == {("0x00", ""), ("0x01", "")}
    assert requests["0x00", ""] == 8, "three topics of the DRO, one, two and two topics of receivers"

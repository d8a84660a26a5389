"""The important lines of a log (guide 5.5.2): two real DROs that come and go, and a message for nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.loop import Loop
from dro.um.fragment.context import FragmentContext
from dro.um.message.client_config import Config
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import CtxInstD, Stream
from tests.daemon.test_peers import Chain
from tests.fakes.um_contexts import RecordingSink, turn_until
from tests.network.plans import PAIR
from tests.rigs.network import Plan
from tests.rigs.waiting import wait_until

NOBODY = bytes.fromhex("0123456789abcdef")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Chain]:
    """A and B, which do not run yet; portal `A-B` connects to `B-A`."""
    made = Chain(Plan(tmp_path, PAIR))
    yield made
    for name in list(made.processes):
        made.end(name)
    made.plan.close()


def lines(pair: Chain, dro: str, pattern: str) -> int:
    """Lines of its log that have that behind the time."""
    return len(re.findall(rf"^\[\S+ \S+\] {pattern}$", (pair.plan.folder / f"{dro}.log").read_text(), re.MULTILINE))


def wait_line(pair: Chain, dro: str, pattern: str, count: int = 1) -> None:
    wait_until(lambda: lines(pair, dro, pattern) >= count, pattern, 60, pair.logs)


def test_a_peer_link_that_comes_and_goes(pair: Chain) -> None:
    to = rf"127\.0\.0\.1:{pair.plan.link_port('A', 'B')}"
    a, b = pair.name("A"), pair.name("B")
    lost = r"\[information\] Gwd-6033-618: peer portal \[{}\] lost connection to peer at \[{}\] via \[127\.0\.0\.1\] .*"
    anywhere = r"127\.0\.0\.1:\d+"
    pair.start_dro("A")
    failed = rf"no connection to the companion peer={to} interface=127\.0\.0\.1 error=\"Connection refused\""
    wait_line(pair, "A", rf"\[error\] Gwd-9175-6: {failed} process=A-B")
    pair.start_dro("B")
    wait_line(pair, "A", rf"\[information\] Gwd-9175-17: connected to the companion peer={to} dro={b} process=A-B")
    accepted = rf"accepted the companion peer={anywhere} dro={a} process=B-A"
    wait_line(pair, "B", rf"\[information\] Gwd-9175-32: {accepted}")
    pair.processes["B"].kill()
    pair.end("B")
    wait_line(pair, "A", lost.format("A-B", to))
    pair.start_dro("B")
    wait_line(pair, "B", rf"\[information\] Gwd-9175-32: {accepted}", 2)
    pair.end("A")
    wait_line(pair, "B", lost.format("B-A", anywhere))


def test_a_message_for_a_context_that_nobody_knows(pair: Chain) -> None:
    loop = Loop()
    context = FragmentContext(Config.load(pair.plan.config(1)).options, loop, sink=RecordingSink())
    offers: dict[int, tuple[int, int]] = {}
    context.on_domain_route = lambda domains, ip, port: offers.update(dict.fromkeys(domains, (ip, port)))
    for dro in PAIR:
        pair.start_dro(dro)
    turn_until(loop, lambda: 2 in offers)
    blocks = (CtxInstD(NOBODY), Stream(1, 0, context.context_instance))
    context.send_unicast(*offers[2], lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, blocks, b"lost")))
    what = "unicast message dropped: no forwarding entry for destination ctxinst"
    line = rf"\[warning\] {what} instance={NOBODY.hex()} peer=127\.0\.0\.1:\d+ process=A-1"
    turn_until(loop, lambda: lines(pair, "A", line) == 1)
    context.close()
    loop.close()

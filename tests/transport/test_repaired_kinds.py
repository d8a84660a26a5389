"""Contexts and portals carry messages by transports that repair datagrams."""

from __future__ import annotations

from pathlib import Path

import pytest

from dro.um.blocking_api import BlockingContext
from dro.um.message.events import Data
from tests.fakes.um_contexts import PATIENCE_S, Stepper, private_config
from tests.rigs.network import network


def test_contexts_carry_messages_by_lbtru() -> None:
    payloads = [b"%d" % number + bytes(number * 7 % 9000) for number in range(400)]
    config = private_config("lbtru")
    with BlockingContext(config) as a, BlockingContext(config) as b:
        source, receiver = a.source("topic"), b.receiver("topic")
        receiver.wait_sources(timeout=PATIENCE_S)
        source.wait_receivers(timeout=PATIENCE_S)
        for payload in payloads:
            source.send(payload)
        got: list[bytes] = []
        while len(got) < len(payloads):
            if isinstance(event := receiver.get(timeout=PATIENCE_S), Data):
                assert event.source.startswith("LBT-RU:127.0.0.1:")
                got.append(event.data)
        assert got == payloads


@pytest.mark.parametrize("other", ["lbtrm", "lbtru", "tcp"])
def test_portals_carry_messages_between_lbtru_and_others(other: str, tmp_path: Path) -> None:
    stepper = Stepper()
    with network(tmp_path, stepper, {"D": (1, 2)}, transport={1: "lbtru", 2: other}) as net:
        here, there = net.application(1), net.application(2)
        for application in (here, there):
            application.context.want_topic(b"topic")
        sources = [here.source(b"topic"), there.source(b"topic")]
        net.start()
        net.until(lambda: len(here.bound(b"topic")) == len(there.bound(b"topic")) == len(sources))
        for _ in range(50):
            for application, source in zip((here, there), sources, strict=True):
                application.send(source)
            net.run(10)
        net.until(lambda: all(len(one.got(source)) == 50 for one in (here, there) for source in sources))
        net.run(1000, 50)
        for one in (here, there):
            for source in sources:
                assert sorted(one.got(source)) == list(range(50)), "each once; order is that of arrival"
    stepper.loop.close()

"""Requests and immediate messages over two DROs, as their users have them: two tnwgd, and applications at both ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import pytest

from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event, RequestMsg
from tests.daemon.test_peers import Chain, running_pair
from tests.rigs.lbm_tools import Tool

PATIENCE_S: Final = 60


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with running_pair(tmp_path) as chain:
        yield chain


def test_requests_on_a_topic_cross_two_dros(chain: Chain) -> None:
    one, two = str(chain.plan.config(1)), str(chain.plan.config(2))
    with Tool("lbmresp", "-c", two, "-l", "100000", "service") as responder:
        responder.wait_for("request address")
        with Tool("lbmreq", "-c", one, "-d", "0", "-P", "1", "service") as asker:
            answer = asker.wait_for("Response [")
            asker.signal(signal.SIGTERM)
            assert asker.wait() == 143
        responder.signal(signal.SIGTERM)
        assert responder.wait() == 0
    assert answer.startswith("Response [TCP:2:127.0.0.1:")
    assert answer.endswith("], 100000 bytes")


def take(messages: SimpleQueue[Data], event: Event) -> None:
    if isinstance(event, Data):
        messages.put(event)


def test_who_hears_a_source_can_ask_its_context_across_two_dros(chain: Chain) -> None:
    """By the source string of what was heard, which is that of the last DRO."""
    heard: SimpleQueue[Data] = SimpleQueue()
    asked: SimpleQueue[Data] = SimpleQueue()
    with (
        BlockingContext(Config.load(chain.plan.config(1))) as origin,
        BlockingContext(Config.load(chain.plan.config(2))) as other,
    ):
        origin.on_immediate = asked.put
        source = origin.source("quotes", late_join=1)  # so the first message comes, whoever was there when
        receiver = other.receiver("quotes", on_event=lambda event: take(heard, event))
        receiver.wait_sources(timeout=PATIENCE_S)
        source.send(b"first")
        target = f"SOURCE:{heard.get(timeout=PATIENCE_S).source}"
        other.uim(target, b"thanks")
        assert asked.get(timeout=PATIENCE_S).data == b"thanks"
        with other.uim_request(target, b"more?") as request:
            message = asked.get(timeout=PATIENCE_S)
            assert isinstance(message, RequestMsg)
            message.response.send(b"x" * 1_000_000)
            assert request.get(timeout=PATIENCE_S).data == b"x" * 1_000_000

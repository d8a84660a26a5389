"""Batches across DROs: small messages share datagrams, are delivered singly, and wait no longer than configured.

Contexts of applications in networks of real portals, and a clock that the test moves by a millisecond at a time.
"""

from __future__ import annotations

from typing import Final

import pytest

from dro.clock import NS_PER_MS
from dro.config.um.options import UmOptions
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import Data, Event
from dro.um.message.receiver import CallbackListener
from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR
from tests.rigs.network import Network, Ports
from tests.um.message.test_context import opened

SOURCE_MS: Final = 100
LINK_MS: Final = 60
LINK_BYTES: Final = 450
HOPS_MS: Final = 20
"""Is left for the hops: each socket on its way is looked at once a step."""
SPACING_MS: Final = 7
SMALL: Final = 40
BATCHES: Final = f"<batching><min-length>{LINK_BYTES}</min-length><batch-interval>{LINK_MS}</batch-interval></batching>"
SMART: Final = f"<smart-batch>1</smart-batch>{BATCHES}"
TRANSIT: Final[Ports] = {"A": [1, 2], "B": [2, 3]}
UM: Final = f"source implicit_batching_interval {SOURCE_MS}\nsource implicit_batching_minimum_length 1000\n"


class BatchedFlow:
    """A source in the first TRD, and a receiver in the last one."""

    def __init__(self, net: Network, sender: MessageContext, ear: MessageContext) -> None:
        self._net = net
        self._sent_ns: dict[bytes, int] = {}
        self.delays_ms: list[float] = []
        ear.receiver("t", CallbackListener(self._on_event), UmOptions())
        self._source = sender.source("t", UmOptions())
        net.until(self._is_heard)
        net.run(1000)
        self.delays_ms.clear()

    def _is_heard(self) -> bool:
        self.send(flush=True)
        return bool(self.delays_ms)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Data):
            delay_ns = self._net.loop.now_ns() - self._sent_ns.pop(event.data)  # each comes once
            self.delays_ms.append(delay_ns / NS_PER_MS)

    def send(self, *, flush: bool) -> None:
        now_ns = self._net.loop.now_ns()
        data = b"%0*d" % (SMALL, now_ns)
        self._sent_ns[data] = now_ns
        self._source.send(data, flush=flush)

    def alone(self, *, flush: bool) -> float:
        """Send one message that nothing follows; return what it takes, in ms."""
        self.delays_ms.clear()
        self.send(flush=flush)
        self._net.until(lambda: bool(self.delays_ms), limit_ms=1000, step_ms=1)
        return self.delays_ms[0]

    def several(self, count: int, *, flush: bool) -> list[float]:
        """Send that many messages in a row; return what they take, in ms."""
        self.delays_ms.clear()
        for _ in range(count):
            self.send(flush=flush)
            self._net.run(SPACING_MS, 1)
        self._net.until(lambda: len(self.delays_ms) == count, limit_ms=1000, step_ms=1)
        return self.delays_ms


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
@pytest.mark.parametrize(
    ("dros", "peer_xml", "flush", "wait_ms"),
    [
        (TRANSIT, "", False, SOURCE_MS),
        (TRANSIT, "", True, 0),
        (PAIR, SMART, False, SOURCE_MS),
        (PAIR, SMART, True, 0),
        (PAIR, BATCHES, True, LINK_MS),
        (PAIR, BATCHES, False, SOURCE_MS + LINK_MS),
        (CHAIN, BATCHES, True, 2 * LINK_MS),
    ],
    ids=[
        "a batch of the source", "flushed", "the source and a smart link", "flushed, a smart link", "a link",
        "the source and a link", "two links",
    ],
)  # fmt: skip
def test_a_message_waits_for_the_batches_on_its_way_and_no_longer(
    make: Make, transport: str, dros: Ports, peer_xml: str, flush: bool, wait_ms: int
) -> None:
    """A DRO adds nothing to the batch of a source, and a peer link its own `<batch-interval>`."""
    net = make(dros, transport=transport, peer_xml=peer_xml, um=UM)
    net.start()
    net.run(3000, 20)
    first, last = (Config.load(net.plan.config(trd)) for trd in (net.plan.trds[0], net.plan.trds[-1]))
    with opened(first, net.stepper) as sender, opened(last, net.stepper) as ear:
        way = BatchedFlow(net, sender, ear)
        for _ in range(3):
            assert wait_ms - 3 <= way.alone(flush=flush) <= wait_ms + HOPS_MS
        delays_ms = way.several(100, flush=flush)
        assert max(delays_ms) <= wait_ms + HOPS_MS
        assert len(delays_ms) == 100


@pytest.mark.parametrize(("peer_xml", "batches"), [(BATCHES, 13), (SMART, 100)], ids=["batches", "smart"])
def test_small_messages_share_the_batches_of_a_link(make: Make, peer_xml: str, batches: int) -> None:
    """A batch leaves when it has its length, and the last one after its interval; a smart one waits for nothing.

    A hundred messages, one each 7 ms: nine in an interval of 60 ms, but eight of 64 bytes have the length.
    """
    net = make(PAIR, peer_xml=peer_xml, um=UM)
    net.start()
    net.run(3000, 20)
    first, last = (Config.load(net.plan.config(trd)) for trd in net.plan.trds)
    with opened(first, net.stepper) as sender, opened(last, net.stepper) as ear:
        way = BatchedFlow(net, sender, ear)
        sent = net.dros["A"].peers["B"].sender.counters
        before = sent.batch_bytes.count
        way.several(100, flush=True)
        assert sent.batch_bytes.count - before == batches

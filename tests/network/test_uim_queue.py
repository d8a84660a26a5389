"""Unicast messages that wait for a peer link whose other end does not read: `<uim-max-queue>`."""

from __future__ import annotations

import pytest

from dro.metrics.slots import Slot
from tests.network.conftest import Make
from tests.network.plans import PAIR
from tests.network.test_trds import Context
from tests.rigs.network import late

SIZE = 2000
DROPS = 50
MOST = 10_000  # messages that a link and its queue have room for


@pytest.mark.parametrize(
    ("xml", "limit"),
    [
        ("", 100_000),
        ("<max-queue>300000</max-queue>", 30_000),
        ("<max-queue>300000</max-queue><uim-max-queue>50000</uim-max-queue>", 50_000),
    ],
    ids=["default", "a tenth of max-queue", "uim-max-queue"],
)
def test_a_flood_over_a_link_that_is_not_read_is_kept_to_the_limit(make: Make, xml: str, limit: int) -> None:
    """What does not fit is dropped and counted; the rest arrives, in order, when the link is read again."""
    buffers = "<receive-buffer>65536</receive-buffer><send-buffer>65536</send-buffer>"
    net = make(PAIR, portal_xml={"A-B": xml}, tcp=buffers)
    one, two = Context(net, 1), Context(net, 2)
    net.start()
    net.until(lambda: one.reaches(two))
    net.run(100)
    a, b = net.dros["A"], net.dros["B"]
    two.got.clear()
    assert a.page("B", Slot.UNICAST_QUEUE_LIMIT) == limit
    b.set_reading("A", reads=False)
    sent, most = 0, 0

    def send() -> None:
        nonlocal sent, most
        assert one.send(two, (b"%d" % sent).ljust(SIZE, b"."))
        sent += 1
        net.stepper.settle()
        a.portals["A-B"]._shell.refresh_gauges()
        most = max(most, a.page("B", Slot.UNICAST_QUEUED_BYTES))

    while a.page("B", Slot.UNICAST_DROPPED_BLOCKED) < DROPS:  # the kernel may make more room for a while
        assert sent < MOST
        send()
    dropped = a.page("B", Slot.UNICAST_DROPPED_BLOCKED)
    assert limit - 2 * SIZE < most <= limit
    assert a.page("B", Slot.UNICAST_QUEUED_BYTES_MAX) == most
    b.set_reading("A", reads=True)
    net.until(lambda: a.page("B", Slot.UNICAST_QUEUED_BYTES) == 0)
    net.run(100)
    got = [int(payload.rstrip(b".")) for payload in two.got]
    refused = b.page("A", Slot.ADDRESSED_REFUSED)  # between the portals of B, as all comes at once
    assert len(got) + dropped + refused == sent
    assert late(got) == []

"""What a DRO does with more than it can pass on: fragments that do not fit, and a queue that is full."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from dro.metrics.slots import Slot
from tests.rigs.netns.app import App, Board
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.topology import app_hosts, running_dro, trd_name
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

Judged = Callable[..., AbstractContextManager[Watch]]
HEADER = 12  # of an LBMC message, which the books and the queue count with it


def test_a_fragment_that_does_not_fit_is_dropped(net: Net, judged: Judged) -> None:
    """10,000 bytes in one TCP fragment of up to 65,535 do not fit an LBT-RM datagram of 8,192; what follows does."""
    board = Board()
    large = "context transport_tcp_datagram_max_size 65535\n"
    with judged(trd_name(1), trd_name(2)), running_dro(net, {1: "tcp", 2: "lbtrm"}, um={1: large}) as dro:
        hosts = app_hosts(net, 1, 2)
        source, receiver = App(hosts[1], dro.configs[1], board, "source"), App(hosts[2], dro.configs[2], board)
        receiver.receive(b"big", cell=0)
        otid, _ = source.open("s", b"big")
        receiver.wait_heard(b"big")
        for size in (5000, 10_000, 100, 8000):
            source.send("s", 1, sizes=(size, size), window=10, cells=(0,))
            source.wait_sent("s")
        wait_until(lambda: len(receiver.arrivals(otid)) == 3, "what fits")
        arrivals = receiver.arrivals(otid)
        assert [size for _, size in arrivals] == [5000, 100, 8000]
        assert arrivals[1][0] - arrivals[0][0] >= 2  # a sqn is missing
        dro.wait_balanced()
        assert dro.books.dropped(2) == dict.fromkeys(dro.books.dropped(2), 0) | {"size_error": 1}
        assert dro.books[2, Slot.DROPPED_SIZE_BYTES] == 10_000 + HEADER
        assert dro.logged("fragment larger than the datagram size of the transport") == 1
        for app in (source, receiver):
            app.end()


@pytest.mark.parametrize("max_queue", [100_000, pytest.param(0, marks=pytest.mark.long)])
def test_a_queue_that_is_full_drops_what_comes(net: Net, judged: Judged, max_queue: int) -> None:
    """A burst of 600 kB on TCP to LBT-RM at 1 Mbit/s: the queue keeps the oldest, in order, and drops the newest."""
    count, size, board = 600, 1000, Board()
    slow = "context transport_lbtrm_data_rate_limit 1000000\n"
    more = {2: f"<max-queue>{max_queue}</max-queue>"}
    with judged(trd_name(1), trd_name(2)), running_dro(net, {1: "tcp", 2: "lbtrm"}, um={2: slow}, more=more) as dro:
        hosts = app_hosts(net, 1, 2)
        source, receiver = App(hosts[1], dro.configs[1], board, "source"), App(hosts[2], dro.configs[2], board)
        receiver.receive(b"burst", cell=0)
        otid, _ = source.open("s", b"burst")
        receiver.wait_heard(b"burst")
        source.send("s", count, sizes=(size, size), window=count, cells=(0,))
        source.wait_sent("s")
        wait_until(lambda: dro.books[2, Slot.FORWARDED] >= count, "everything reaching the portal", 20)
        wait_until(lambda: not dro.books[2, Slot.QUEUED], "the end of the queue", 20)
        # a batch counts as forwarded before its fragments count as sent or dropped
        books = dro.books
        wait_until(
            lambda: books[2, Slot.SENT] + sum(books.dropped(2).values()) == books[2, Slot.FORWARDED],
            "the end of the batch",
            20,
        )
        dropped = books.dropped(2)["would_block"]
        wait_until(lambda: len(receiver.arrivals(otid)) == count - dropped, "delivery", 20)
        sqns = [sqn for sqn, _ in receiver.arrivals(otid)]
        assert sqns == sorted(set(sqns))
        kept_first = next((n for n, sqn in enumerate(sqns) if sqn != sqns[0] + n), len(sqns))
        # 1 Mbit/s is 12.5 kB in a rate interval of 100 ms, so most of the burst has to wait
        assert dropped > count // 2
        assert kept_first >= max_queue // (size + HEADER)
        assert dro.books[2, Slot.QUEUED_BYTES_MAX] <= max_queue
        assert dro.books[2, Slot.QUEUED_BYTES_MAX] > max_queue - 2 * size or not max_queue
        assert dro.books[2, Slot.QUEUE_LIMIT] == max_queue
        assert {k: v for k, v in dro.books.dropped(2).items() if v} == {"would_block": dropped}
        dro.wait_balanced()
        assert dro.logged("dropping data due to high volume") >= 1
        if max_queue:
            assert dro.logged("began enqueueing data") >= 1
            assert dro.logged("completed flushing queue") == dro.logged("began enqueueing data")
        for app in (source, receiver):
            app.end()


def test_one_slow_trd_does_not_hold_back_another(net: Net, judged: Judged) -> None:
    """The same burst, received in a slow TRD and in a fast one: the fast one gets all of it."""
    count, size, board = 600, 1000, Board()
    slow = "context transport_lbtrm_data_rate_limit 1000000\n"
    transports = {1: "tcp", 2: "lbtrm", 3: "tcp"}
    trds = [trd_name(trd) for trd in transports]
    with judged(*trds), running_dro(net, transports, um={2: slow}, more={2: "<max-queue>50000</max-queue>"}) as dro:
        hosts = app_hosts(net, 1, 2, 3)
        apps = {trd: App(host, dro.configs[trd], board) for trd, host in hosts.items()}
        otid, _ = apps[1].open("s", b"burst")
        for trd in (2, 3):
            apps[trd].receive(b"burst", cell=trd)
            apps[trd].wait_heard(b"burst")
        apps[1].send("s", 1, sizes=(10, 10), cells=(2, 3))
        apps[1].wait_sent("s")
        apps[1].send("s", count, sizes=(size, size), window=200, cells=(3,))
        apps[1].wait_sent("s")
        wait_until(lambda: len(apps[3].arrivals(otid)) == count + 1, "delivery in the fast TRD", 20)
        sqns = [sqn for sqn, _ in apps[3].arrivals(otid)]
        assert sqns == sorted(set(sqns))
        dro.wait_balanced()
        assert not any(dro.books.dropped(3).values())
        assert dro.books.dropped(2)["would_block"] > 0
        for app in apps.values():
            app.end()

"""Four real DROs in a square of peer links with equal costs: sources are spread over both ways, until one is gone."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from dro.shares import share_of
from dro.um.fragment.own_source import FragmentSource
from supervisor.admin.client import Client, CommandError, find_dro
from supervisor.admin.lists import rows_of
from tests.fakes.um_contexts import turn_until
from tests.netns.test_peer_links import Dros, dros_of
from tests.rigs.netns.capture import judge
from tests.rigs.netns.harness import Net
from tests.rigs.network import QUICK, Plan

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

SQUARE: dict[str, list[int | str]] = {"A": [1, "B", "C"], "B": ["A", "D"], "C": ["A", "D"], "D": [4, "B", "C"]}
SOURCES = 8
EVERY_NS = 5_000_000


def by_way(dros: Dros, middle: str) -> set[str]:
    """The sources for which that DRO has a proxy source on its link to D."""
    client = Client(find_dro(str(dros.processes[middle].pid)))
    try:
        return {row.otid for row in rows_of(client, "proxies", f"{middle}-D", "") if row.proxy == "source"}
    except CommandError:
        return set()  # the portal is not ready
    finally:
        client.close()


class Many:
    """Sources of one context in TRD 1, of which two at least go different ways, and their receiver in TRD 4."""

    def __init__(self, dros: Dros) -> None:
        self._loop = dros.loop
        self.sender, self.receiver = (dros.application(trd) for trd in (1, 4))
        self.sources = [self._source(0)]
        while len(self.sources) < SOURCES or not self._is_divided():
            self.sources.append(self._source(len(self.sources)))
        self._next_ns = 0
        self._newest: dict[bytes, int] = {}
        self._read = 0

    def _source(self, number: int) -> FragmentSource:
        topic = b"topic %d" % number
        self.receiver.context.want_topic(topic)
        return self.sender.source(topic)

    def _is_divided(self) -> bool:
        """Trees 2j and 2j + 1 never choose alike between two ways."""
        trees = {share_of(source.otid).bit_length() - 1 for source in self.sources}
        return any(tree ^ 1 in trees for tree in trees)

    def until(self, holds: Callable[[], bool]) -> None:
        def look() -> bool:
            if self._loop.now_ns() >= self._next_ns:
                self._next_ns = self._loop.now_ns() + EVERY_NS
                for source in self.sources:
                    self.sender.send(source)
            return holds()

        turn_until(self._loop, look)

    def wait(self, holds: Callable[[], bool]) -> None:
        """For what is asked now and then only, as an answer takes its time."""
        looks = count(1)
        self.until(lambda: next(looks) % 100 == 0 and holds())

    def newest(self, topic: bytes) -> int:
        fragments = self.receiver.sink.fragments
        for name, sqn, _ in fragments[self._read :]:
            self._newest[name] = sqn
        self._read = len(fragments)
        return self._newest.get(topic, -1)

    def again(self) -> dict[bytes, int]:
        """Fifty messages in a row of each source arrive; the first of them."""
        self.until(lambda: all(self.newest(s.topic) >= self.sender.sent(s) - 10 for s in self.sources))
        first = {s.topic: self.sender.sent(s) for s in self.sources}
        self.until(lambda: all(self.newest(topic) >= number + 50 for topic, number in first.items()))
        return first

    def assert_whole(self, first: dict[bytes, int], last: dict[bytes, int]) -> None:
        """Of each source, between these numbers."""
        for source in self.sources:
            got = [n for n in self.receiver.got(source) if first[source.topic] <= n < last[source.topic]]
            assert got == [*range(first[source.topic], last[source.topic])], source.topic

    def close(self) -> None:
        for application in (self.sender, self.receiver):
            application.context.close()


def test_sources_are_spread_over_both_ways_and_all_go_by_the_other_when_one_dies(net: Net, tmp_path: Path) -> None:
    daemon = f"{QUICK}<extensions><equal-cost-sharing/></extensions>"
    with dros_of(net, Plan(tmp_path, SQUARE, daemon=daemon)) as dros:
        capture = net.start_capture(dros.host.namespace, "lo", "lo", "")
        for name in SQUARE:
            dros.start(name)
        many = Many(dros)
        many.again()
        every = {source.otid.hex() for source in many.sources}
        shared: list[set[str]] = []

        def is_shared() -> bool:
            """Each source has one way, and both ways are used."""
            shared[:] = [by_way(dros, name) for name in "BC"]
            return all(shared) and not shared[0] & shared[1] and shared[0] | shared[1] == every

        many.wait(is_shared)
        first = many.again()
        many.assert_whole(first, many.again())
        dros.kill("C")
        many.wait(lambda: by_way(dros, "B") == every)
        first = many.again()
        many.assert_whole(first, many.again())
        for source in many.sources:
            got = many.receiver.got(source)
            assert got == sorted(set(got)), "nothing twice, nothing out of order"
        many.close()
        for process in dros.processes.values():
            process.signal(signal.SIGTERM)
        assert [process.wait(20) for process in dros.processes.values()] == [0, 0, 0]
        verdict = judge(capture.stop(), dros.decoding())
    verdict.assert_clean({"lbttcp": 500, "lbtrm.data": 500})

"""Protocol conversion: each transport of a source with each of a proxy source, both ways at once (guide 3.1.6).

One DRO between two TRDs. Topics are named `<from>-<to>`: a source sends by the first transport, and the proxy source of
the topic in the other TRD by the second one, as the UM XML file of the DRO says. Sessions of LBT-IPC do not leave a
host, so applications that use it run on that of the DRO.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

import pytest

from dro.metrics.slots import Slot
from dro.transport.registry import KINDS
from tests.netns.test_direct_link import tool
from tests.rigs.effort import IS_LONG
from tests.rigs.netns.app import App, Board, assert_same, wait_delivered
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.topology import Dro, app_hosts, running_dro, trd_name
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

PREFIXES: Final = {"tcp": "TCP:", "lbtrm": "LBTRM:", "lbtru": "LBT-RU:", "lbtipc": "LBT-IPC:"}
"""How source strings of each transport begin."""
TRANSPORTS: Final = tuple(PREFIXES)
Judged = Callable[..., AbstractContextManager[Watch]]
MESSAGES: Final = 10_000 if IS_LONG else 200
FIRST: Final = 5
"""Messages of each source before packets get lost: from then on all sessions have begun."""
SECONDS: Final = 900.0 if IS_LONG else 60.0
LOSS: Final = 0.05
LOST_PORTS: Final[list[int | tuple[int, int]]] = [14400, (14390, 14399), (14360, 14389)]
"""Data and NAKs of LBT-RM, and all of LBT-RU."""
BY_TOPIC: Final = "".join(
    f"""<topic pattern="-{kind}$"><options type="source">
<option name="transport" default-value="{kind}"/></options></topic>
"""
    for kind in TRANSPORTS
)
UM_XML: Final = f"""<um-configuration version="1.0"><applications><application name="G1"><contexts>
<context name="out"><sources>{BY_TOPIC}</sources></context><context><sources/></context>
</contexts></application></applications></um-configuration>
"""
HEADER: Final = 12
"""Of an LBMC message, which the books count with it."""
OUT: Final = "<source-context-name>out</source-context-name><max-queue>16000000</max-queue>"


@dataclass(frozen=True)
class Conversion:
    """One source: where it is, the cell of its receiver, and the transports on both sides."""

    trd: int
    cell: int
    of_source: str
    of_proxy: str

    @property
    def topic(self) -> bytes:
        return f"{self.trd}.{self.of_source}-{self.of_proxy}".encode()


ALL: Final = [
    Conversion(trd, (trd - 1) * 100 + nth, *pair)
    for trd in (1, 2)
    for nth, pair in enumerate((a, b) for a in TRANSPORTS for b in TRANSPORTS)
]


class Applications:
    """Two in each TRD: one on a host of its own, and one on that of the DRO, for LBT-IPC."""

    def __init__(self, net: Net, dro: Dro, board: Board) -> None:
        self.hosts = app_hosts(net, 1, 2)
        self.board = board
        self._apps = {
            (trd, is_near): App(dro.host if is_near else host, dro.configs[trd], board, f"app{trd}")
            for trd, host in self.hosts.items()
            for is_near in (False, True)
        }

    def at(self, trd: int, transport: str) -> App:
        return self._apps[trd, transport == "lbtipc"]

    def source(self, one: Conversion) -> App:
        return self.at(one.trd, one.of_source)

    def receiver(self, one: Conversion) -> App:
        return self.at(3 - one.trd, one.of_proxy)

    def open(self, conversions: list[Conversion]) -> None:
        for one in conversions:
            self.receiver(one).receive(one.topic, cell=one.cell)
            name = one.topic.decode()
            self.source(one).open(name, one.topic, ("source", "transport", one.of_source))
        for one in conversions:
            (heard,) = self.receiver(one).wait_heard(one.topic, seconds=SECONDS)
            assert heard.sources[-1].startswith(PREFIXES[one.of_proxy])

    def send(self, conversions: list[Conversion], count: int, before: int, window: int = 32) -> None:
        for one in conversions:
            self.source(one).send(one.topic.decode(), count, seed=one.cell, window=window, cells=(one.cell,))
        wait_delivered(self.board, {one.cell: before + count for one in conversions}, SECONDS)

    def end(self) -> None:
        for app in self._apps.values():
            app.end()


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 60)
def test_each_transport_becomes_each_other_in_both_directions(net: Net, judged: Judged) -> None:
    """Messages of 1 to 7,000 bytes; then the same while packets of LBT-RM and LBT-RU get lost at all hosts."""
    assert set(TRANSPORTS) == set(KINDS)
    net.mtu = 9000
    net.capture_mib = 128
    (net.folder / "um.xml").write_text(UM_XML)
    daemon = f"<xml-config>{net.folder}/um.xml</xml-config>"
    kinds, more = dict.fromkeys((1, 2), "tcp"), dict.fromkeys((1, 2), OUT)
    watch = nullcontext() if IS_LONG else judged(trd_name(1), trd_name(2))  # a gigabyte is too much to judge
    with watch, running_dro(net, kinds, more=more, daemon=daemon) as dro:
        apps = Applications(net, dro, Board())
        apps.open(ALL)
        apps.send(ALL, FIRST, 0)
        lost = [host.lose(LOSS, dports=LOST_PORTS) for host in (*apps.hosts.values(), dro.host)]
        apps.send(ALL, MESSAGES, FIRST)
        for one in ALL:
            sent = apps.source(one).report().sent[one.topic.decode()]
            (got,) = apps.receiver(one).report().of_topic(one.topic)
            assert sent.source.startswith(PREFIXES[one.of_source])
            assert_same(got, sent)
            assert got.messages == FIRST + MESSAGES
            assert (got.hops, got.domain_id) == (1, one.trd)
        dro.wait_balanced()
        for portal in (1, 2):
            assert dro.books[portal, Slot.SENT] >= len(ALL) // 2 * MESSAGES
            assert not any(dro.books.dropped(portal).values())
        assert all(rule.remove().dropped for rule in lost)
        apps.end()


@pytest.mark.parametrize("transport", ["lbtru", "lbtipc"])
def test_a_fragment_that_does_not_fit_is_dropped_and_all_others_pass(net: Net, judged: Judged, transport: str) -> None:
    """10,000 bytes in one TCP fragment of up to 65,535, to datagrams of 8,192."""
    board = Board()
    large = "context transport_tcp_datagram_max_size 65535\n"
    with judged(trd_name(1)), running_dro(net, {1: "tcp", 2: transport}, um={1: large}) as dro:
        hosts = app_hosts(net, 1, 2)
        source = App(hosts[1], dro.configs[1], board, "source")
        receiver = App(dro.host if transport == "lbtipc" else hosts[2], dro.configs[2], board)
        receiver.receive(b"big", cell=0)
        otid, _ = source.open("s", b"big")
        receiver.wait_heard(b"big")
        for size in (5000, 10_000, 100, 8000):
            source.send("s", 1, sizes=(size, size), window=10, cells=(0,))
            source.wait_sent("s")
        wait_until(lambda: len(receiver.arrivals(otid)) == 3, "what fits")
        assert [length for _, length in receiver.arrivals(otid)] == [5000, 100, 8000]
        dro.wait_balanced()
        assert dro.books.dropped(2) == dict.fromkeys(dro.books.dropped(2), 0) | {"size_error": 1}
        assert dro.books[2, Slot.DROPPED_SIZE_BYTES] == 10_000 + HEADER
        assert dro.logged("fragment larger than the datagram size of the transport") == 1
        for app in (source, receiver):
            app.end()


@pytest.mark.parametrize("transport", ["lbtru", "lbtipc"])
def test_with_one_size_everywhere_large_messages_pass(net: Net, judged: Judged, transport: str) -> None:
    """`lbmsrc` and `lbmrcv`: up to 10,000 bytes, in one or two fragments, each verified."""
    with judged(trd_name(1)), running_dro(net, {1: "tcp", 2: transport}) as dro:
        hosts = app_hosts(net, 1, 2)
        near = dro.host if transport == "lbtipc" else hosts[2]
        receiver = tool(near, "lbmrcv", "-c", str(dro.configs[2]), "-V", "-O", "-r", "300", "big")
        source = tool(hosts[1], "lbmsrc", "-c", str(dro.configs[1]), "-V", "-l", "16-10000", "-P", "5", "big")
        assert receiver.wait(50) == 0, receiver.stdout
        source.signal(signal.SIGTERM)
        assert source.wait(20) == 143
        assert re.fullmatch(
            r"lbmrcv: received 300 messages, \d+ bytes, lost 0, bursts 0, bad 0", receiver.stdout.splitlines()[-1]
        )
        dro.wait_balanced()
        assert not any(dro.books.dropped(2).values())

"""What moves the counters of the guide's portal pages from outside: see `test_counters_everywhere`, which runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dro.um.fragment.own_source import FragmentSource
from dro.wire import lbtru
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import RawBlock
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import Destination, Request, SrcIdx, Stream, TopicIdx, UmeRxReq
from dro.wire.lbmc.dro_blocks import Domain
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import SenderType, standard_options
from dro.wire.lbmr.records import PatternType
from dro.wire.lbmr.tnwg import InterestFlag, InterestRecord, TnwgInterest
from portals.decisions.messages import PATTERN_PCRE, PATTERN_REGEX
from tests.bench.traffic.resolution import Channel
from tests.rigs.figures import Figures
from tests.rigs.link_relay import LinkRelay
from tests.rigs.loaded import Loaded
from tests.rigs.network import Plan
from tests.rigs.party import LOOPBACK, Party, unicast
from tests.rigs.site import ROOT, workers_of
from tests.rigs.web import fetch

SMALL: Final = 500  # datagrams of TRD 2
QUEUE: Final = 300_000  # of the link
UNICAST_QUEUE: Final = 20_000
PEER_XML: Final = (
    f"<max-queue>{QUEUE}</max-queue><uim-max-queue>{UNICAST_QUEUE}</uim-max-queue><smart-batch>1</smart-batch>"
    '<gateway-keepalive idle="no" interval="300" timeout="60000"/>'
)
WINDOW: Final = 500_000
"""Bytes that can be sent again over a link with `<udp>`."""
REPAIR_S: Final = 2.5
FREEZES_S: Final = 20.0
SENT_AGAIN: Final = (
    "UDP_NAK_PACKETS_RCVD UDP_NAKS_RCVD UDP_RETRANSMITTED UDP_RETRANSMITTED_BYTES UDP_NAKS_RX_DELAY UDP_NAKS_SHED "
    "UDP_NAKS_IGNORED"
)
REPAIRED: Final = (
    "UDP_NAK_PACKETS_SENT UDP_NAKS_SENT UDP_LOST UDP_RECOVERY_MIN_US UDP_RECOVERY_MEAN_US UDP_RECOVERY_MAX_US "
    "UDP_NAKS_PER_LOSS_MIN UDP_NAKS_PER_LOSS_MEAN UDP_NAKS_PER_LOSS_MAX UDP_NCFS_RX_DELAY UDP_NCFS_SHED "
    "UDP_NCFS_IGNORED UDP_DUPLICATES UDP_UNRECOVERED_WINDOW UDP_UNRECOVERED_TIMEOUT"
)
SOME: Final = -1
"""More than before, or less if it is a gauge."""
FLOW: Final = b"flow"
LARGE: Final = b"large"
BACK: Final = b"back"
Moves = dict[str, dict[str, int]]
"""By portal and row: messages that come to it."""


class Bench:
    """The running network and a party in each TRD; `close` ends it all."""

    def __init__(self, plan: Plan, relay: LinkRelay | None = None) -> None:
        self.plan, self._relay = plan, relay
        self._dros: dict[str, subprocess.Popen[bytes]] = {}
        self.parties = [Party(plan, trd) for trd in plan.trds]
        self.sources: dict[bytes, FragmentSource] = {}
        self._start()

    def _start(self) -> None:
        for dro in self.plan.dros:
            with (self.plan.folder / f"{dro}.log").open("ab") as log:
                command = [sys.executable, "-m", "supervisor.main", str(self.plan.file(dro))]
                self._dros[dro] = Loaded(command, cwd=ROOT, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        for dro in self.plan.dros:
            where = self.plan.web(dro)
            self.wait(lambda: fetch(where, "/readyz")[0] == 200, "the monitor", 60)  # noqa: B023 - called at once
        others = set(self.plan.trds[1:])
        self.wait(lambda: others <= self.one.offers.keys(), "domain routes over the link", 60)

    def close(self) -> None:
        for party in self.parties:
            party.close()
        for process in self._dros.values():
            process.terminate()
        for process in self._dros.values():
            process.wait(30)

    @property
    def one(self) -> Party:
        return self.parties[0]

    @property
    def two(self) -> Party:
        return self.parties[1]

    @property
    def three(self) -> Party:
        return self.parties[2]

    @property
    def relay(self) -> LinkRelay:
        assert self._relay is not None
        return self._relay

    def worker(self, name: str) -> int:
        """The process of a portal."""
        return workers_of(self._dros[name[0]].pid)[name]

    def wait(self, holds: Callable[[], object], what: Callable[[], str] | str, seconds: float = 20) -> None:
        until = time.monotonic() + seconds
        while not holds():
            self.turn()
            assert time.monotonic() < until, f"not in time: {what if isinstance(what, str) else what()}\n{self.logs()}"
            time.sleep(0.002)  # between two looks

    def turn(self) -> None:
        for party in self.parties:
            party.turn()

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.plan.folder.glob("?.log")))

    def rows(self, portal: str) -> Figures:
        """All rows of the page of a portal, as its JSON has them."""
        status, body = fetch(self.plan.web(portal[0]), f"/portal.json?name={portal}")
        assert status == 200, body
        lines = [line for group in json.loads(body)["groups"] for line in group["lines"]]
        return {name: value for line in lines for name, value in zip(line["names"], line["values"], strict=True)}


def nothing(bench: Bench) -> None:
    """What there is after the start."""


def want(bench: Bench) -> None:
    one, two, three = bench.one, bench.two, bench.three
    for party, topics in ((one, (BACK,)), (two, (FLOW,)), (three, (FLOW, LARGE))):
        for topic in topics:
            party.context.want_topic(topic)
        for number, kind in enumerate((PATTERN_PCRE, PATTERN_REGEX)):
            party.context.want_pattern(b"^of%d[.]%d$" % (party.trd, number), kind, lambda _: False)


def want_beyond(bench: Bench) -> None:
    """Another DRO of TRD 3 says what a TRD beyond it wants."""
    channel = Channel(f"{bench.plan.net(3)}.1", bench.plan.port(3), 3, is_strict=False)
    records = [InterestRecord(77, b"^beyond%d" % kind, InterestFlag.PATTERN, kind) for kind in PatternType]
    records.append(InterestRecord(77, b"beyond"))
    options = standard_options(b"otherdro", SenderType.DRO, 3)
    channel.send([lbmr.encode(lbmr.Packet(1, options, TnwgInterest(tuple(records))))], 1)
    channel.step()
    channel.close()


def open_sources(bench: Bench) -> None:
    """Both are heard where they are wanted."""
    for topic in (FLOW, LARGE):
        bench.sources[topic] = bench.one.source(topic)
    heard = ((bench.two, FLOW), (bench.three, FLOW), (bench.three, LARGE))

    def are_heard() -> bool:
        for source in bench.sources.values():
            bench.one.send(source)
        return all(party.has_heard(topic) for party, topic in heard)

    bench.wait(are_heard, "all sources")


def send_data(bench: Bench) -> None:
    for number in range(10):
        bench.one.send(bench.sources[FLOW], *([bench.one.request()] if number >= 7 else []))
    bench.one.send_control(bench.sources[FLOW], *topic_control(bench.sources[FLOW].topic_index))


def topic_control(topic_index: int) -> tuple[AnyBlock, ...]:
    """What a control message of a source may say, beside sequence numbers; those count as messages of no bytes."""
    return RawBlock(0x66, bytes(6)), TopicIdx(topic_index)


def send_again(bench: Bench) -> None:
    bench.one.send(bench.sources[FLOW])
    for _ in range(3):
        bench.one.send(bench.sources[FLOW], is_again=True)


def send_too_large(bench: Bench) -> None:
    for _ in range(4):
        bench.one.send(bench.sources[FLOW], size=SMALL)


def stop_reading(bench: Bench) -> None:
    """A receiver of TRD 2 reads no more, until what waits for it is too much."""
    bench.two.is_reading = False

    def is_full() -> bool:
        for _ in range(100):
            bench.one.send(bench.sources[FLOW], size=SMALL - 100)
        return bench.rows("A-2")["DROPPED_BLOCKED"] > 0

    bench.wait(is_full, "a full queue")


def read_on(bench: Bench) -> None:
    bench.two.is_reading = True
    bench.wait(lambda: bench.rows("A-2")["QUEUED_BYTES"] == 0, "what has waited")


def send_unicast(bench: Bench) -> None:
    one, two, three = bench.one, bench.two, bench.three
    to_two, to_three = (one.destination(p.trd, *p.context.request_address) for p in (two, three))
    one.send_unicast(2, to_two, one.stream())
    one.send_unicast(2, to_two, one.stream(), is_control=True)
    one.send_unicast(3, to_three, one.stream())
    one.send_unicast(3, to_three, one.stream())
    one.send_unicast(3, UmeRxReq(1, 2, 3, 4, 5, 6), to_three, one.stream(), is_control=True)


def send_unicast_again(bench: Bench) -> None:
    one, two = bench.one, bench.two
    to_two = one.destination(2, *two.context.request_address)
    for is_control in (False, True):
        stream = one.stream()
        for _ in range(2):
            one.send_unicast(2, to_two, stream, is_control=is_control)


def send_unicast_wrongly(bench: Bench) -> None:
    one = bench.one
    for is_control in (False, True):
        one.send_unicast(2, one.destination(2), is_control=is_control)  # without a stream
        one.send_unicast(2, one.destination(55), one.stream(), is_control=is_control)  # to where nobody is


def send_unicast_to_nobody(bench: Bench) -> None:
    bench.one.send_unicast(2, bench.one.destination(2), bench.one.stream())


def add_to_link(bench: Bench) -> None:
    """A companion that errs in whatever it can."""
    unknown = SrcIdx(0x7FFFFFF)
    for blocks in ((unknown,), (unknown, Request(1, LOOPBACK, 9))):
        bench.relay.add(lbmc.encode(lbmc.Message(MessageType.MESSAGE, 1, 1, blocks, b"x")))
    bench.relay.add(lbmc.encode(lbmc.control_message(unknown, *topic_control(1))))
    to = Destination(3, LOOPBACK, 9, 1, LOOPBACK, 9)
    streams = iter([Stream(7, number, b"stranger") for number in range(9)])
    for is_control in (False, True):
        bench.relay.add(unicast(to, is_control=is_control))
        bench.relay.add(unicast(replace(to, domain_id=55), next(streams), is_control=is_control))
    bench.relay.add(unicast(next(streams)))
    bench.relay.add(unicast(RawBlock(0x66, bytes(6)), next(streams)))
    bench.relay.add(lbmc.encode(lbmc.control_message(Domain(99))))


def send_immediate(bench: Bench) -> None:
    one = bench.one.immediate
    for topic in (b"quotes", b""):
        for is_request in (False, True):
            one.send(b"x", one.blocks(1, topic, is_request=is_request))


def send_immediate_without_ports(bench: Bench) -> None:
    """Portal A-2 has none left for the session that it would send on."""
    taken = []
    for port in range(bench.plan.port(2) + 21, bench.plan.port(2) + 44):
        taken.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        taken[-1].bind(("127.0.0.1", port))
    before = bench.rows("A-2")
    one = bench.one.immediate
    for topic in (b"quotes", b""):
        one.send(b"x", one.blocks(1, topic))
    names = ("IMMEDIATE_TOPIC_FORWARDED", "IMMEDIATE_TOPICLESS_FORWARDED")
    bench.wait(lambda: all(bench.rows("A-2")[name] > before[name] for name in names), "both are tried")
    for sock in taken:
        sock.close()


def send_immediate_too_large(bench: Bench) -> None:
    one = bench.one.immediate
    for topic in (b"quotes", b""):
        one.send(bytes(SMALL), one.blocks(1, topic))


def send_immediate_too_fast(bench: Bench) -> None:
    one = bench.one.immediate

    def are_dropped() -> bool:
        for topic in (b"quotes", b""):
            for _ in range(100):
                one.send(bytes(SMALL - 150), one.blocks(1, topic))
        rows = bench.rows("A-2")
        return min(rows["IMMEDIATE_TOPIC_DROPPED_BLOCKED"], rows["IMMEDIATE_TOPICLESS_DROPPED_BLOCKED"]) > 0

    bench.wait(are_dropped, "a full queue")
    bench.wait(lambda: rests(bench.rows("A-2")), "what has waited")


def rests(rows: Figures) -> bool:
    return not (rows["IMMEDIATE_QUEUED_TOPIC"] or rows["IMMEDIATE_QUEUED_TOPICLESS"])


def hold_link(bench: Bench) -> None:
    """The companion reads no more, until what waits is too much."""
    bench.relay.hold()

    def is_full() -> bool:
        for _ in range(100):
            bench.one.send(bench.sources[LARGE], size=4000)
        return bench.rows("A-B")["DROPPED_BLOCKED"] > 0

    bench.wait(is_full, "a full queue")
    to = bench.one.destination(3, *bench.three.context.request_address)
    for _ in range(30):
        bench.one.send_unicast(3, to, bench.one.stream(), size=UNICAST_QUEUE // 20)


def cut_link(bench: Bench) -> None:
    bench.relay.cut()


def mend_link(bench: Bench) -> None:
    bench.relay.mend()
    heard = len(bench.three.sink.fragments)

    def is_heard() -> bool:
        bench.one.send(bench.sources[FLOW])
        return len(bench.three.sink.fragments) > heard

    bench.wait(is_heard, "the flow over the link", 40)


def want_flow(bench: Bench) -> None:
    bench.two.context.want_topic(FLOW)
    bench.sources[FLOW] = bench.one.source(FLOW)

    def is_heard() -> bool:
        bench.one.send(bench.sources[FLOW])
        return bench.two.has_heard(FLOW)

    bench.wait(is_heard, "the flow over the link")


def freeze_receiver(bench: Bench) -> None:
    """A portal does not read for a while, and its socket drops what does not fit; until each way to repair was taken.

    What is asked for is more than may be sent again at once, some of it is not kept any more, and some comes too late.
    """
    until = time.monotonic() + FREEZES_S
    while not has_repaired(bench):
        assert time.monotonic() < until, (bench.rows("A-B"), bench.rows("B-A"))
        freeze_once(bench)
        over = time.monotonic() + REPAIR_S
        bench.wait(lambda: has_repaired(bench) or time.monotonic() > over, "repairs")  # noqa: B023 - called at once


def has_repaired(bench: Bench) -> bool:
    near, far = bench.rows("A-B"), bench.rows("B-A")
    return all(near[row] for row in SENT_AGAIN.split()) and all(far[row] for row in REPAIRED.split())


def freeze_once(bench: Bench) -> None:
    pid = bench.worker("B-A")
    os.kill(pid, signal.SIGSTOP)
    try:
        before = bench.rows("A-B")["UDP_SENT_BYTES"]

        def are_sent() -> bool:
            for _ in range(100):
                bench.one.send(bench.sources[FLOW], size=1000)
            return bench.rows("A-B")["UDP_SENT_BYTES"] > before + 2 * WINDOW

        bench.wait(are_sent, "more than can be sent again")
    finally:
        os.kill(pid, signal.SIGCONT)


def send_broken_datagrams(bench: Bench) -> None:
    """To the port of the link, from the host of the companion and from another; of each kind one more."""
    good = lbtru.encode(lbtru.Data(1, 1, 0, b"x", options=(lbtru.sid_option(1),)))
    kinds = (
        good[:5],
        bytes([15]) + good[1:],  # type
        bytes([0x70]) + good[1:],  # version
        good[: lbtru.DATA_LAYOUT.size + 2],  # within an option
        good,  # of another session
    )
    where = ("127.0.0.1", bench.plan.udp_port("B", "A"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for count, datagram in enumerate(kinds, 1):
            for _ in range(count):
                sock.sendto(datagram, where)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.2", 0))
        for _ in range(6):
            sock.sendto(good, where)

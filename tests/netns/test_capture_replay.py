"""A real UM source against the DRO and the client library: its packets, unchanged, from its own address.

Every figure that is expected here comes from the description of the capture, not from this program.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import statistics
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from dro.clock import NS_PER_S, ms, s
from dro.loop import Loop
from dro.metrics.slots import Slot
from dro.proto.context.sources import BoundSource
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.source import SourceConfig, SourceSession
from dro.transport import mmsg, sockets
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.runs import KIND_DATA, Run
from dro.transport.session import ReceiverTransport
from dro.transport.sockets import OS_SOCKETS
from dro.um.blocking_api import BlockingContext
from dro.um.fragment.context import FragmentContext
from dro.um.message.client_config import Config
from dro.um.message.events import BOS, EOS, Data, Event
from dro.wire.lbtrm import DATA_HEADER
from dro.wire.source_string import LbtrmAddress
from tests.builders.lbtrm_capture import Packet, packets
from tests.builders.nak_schedule import Arrival, Asked, Schedule, Windows, outside, schedule_of
from tests.builders.udp_capture import Datagram, read_frames, read_udp
from tests.fakes.clock import SteppedClock
from tests.fakes.runs import RunSink
from tests.rigs.books import Books, books_of
from tests.rigs.netns.capture import ports
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.judged import judged
from tests.rigs.netns.loss import NOT_THE_FIRST
from tests.rigs.netns.process import Process, Task
from tests.rigs.replay import DATA_GROUP, NAK_PORT, SESSION_ID, SOURCE_IP, TOPIC, read_nak
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark]
MESSAGES: Final = 5000
SHA256: Final = "222e681e4ed4df610cbb09a7bc5117279486c5d9228b32a6752d0f2d19c68e81"
DRO_IP: Final = "10.29.4.9"
CAPTURE_PORTS: Final = (ports("udp", 12090, "lbtrm", 12099),)
SO_RCVBUFFORCE: Final = 33
SO_TIMESTAMPNS: Final = 35
LATE_MS: Final = 500.0
"""What a NAK may come later than its schedule says: the process may have to wait for a busy processor."""
USUALLY_LATE_MS: Final = 25.0
"""What half of the NAKs keep to even so."""
EARLY_MS: Final = 3.0
"""What a repeat may come early on the wire: the NAK before was held up between reading the clock and sending."""

DRO_FILE: Final = """<?xml version="1.0"?>
<tnw-gateway version="1.0">
  <daemon>
    <name>G1</name>
    <log type="console"/>
    <route-info check-interval="50"/>
    <route-recalculation backoff-interval="100"/>
  </daemon>
  <portals>
    <endpoint><name>G1-TRD1</name><domain-id>1</domain-id><lbm-config>{trd1}</lbm-config></endpoint>
    <endpoint><name>G1-TRD2</name><domain-id>2</domain-id><lbm-config>{trd2}</lbm-config></endpoint>
  </portals>
</tnw-gateway>
"""
TRD1: Final = """# the options of the captured run that matter to a receiver
context default_interface 10.29.4.0/24
context resolver_multicast_address 239.101.3.1
source transport lbtrm
source implicit_batching_minimum_length 1
"""
NAK_OPTIONS: Final = """receiver transport_lbtrm_nak_initial_backoff_interval {0.initial_backoff}
receiver transport_lbtrm_nak_backoff_interval {0.backoff}
receiver transport_lbtrm_nak_suppress_interval {0.suppress}
"""
TRD2: Final = """context default_interface 10.2.0.0/24
source transport lbtrm
source implicit_batching_minimum_length 1
"""


class InOrder(RunSink):
    """A fragment sink that puts one topic into order by itself: `payloads` is what an application would be given."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.duplicates = 0
        self.sources: list[BoundSource[Any]] = []
        self.ended = 0
        self._held: dict[int, bytes] = {}

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        self.sources.append(source)

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        self.ended += ended

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        for run in runs:
            for i in range(run.fragments if run.kind == KIND_DATA else 0):
                at = run.offset + i * run.stride
                self._take(run.first_sqn + i, bytes(view[at + 12 : at + run.length]))
        while (payload := self._held.pop(len(self.payloads), None)) is not None:
            self.payloads.append(payload)

    def _take(self, sqn: int, payload: bytes) -> None:
        if sqn < len(self.payloads) or sqn in self._held:
            self.duplicates += 1
        else:
            self._held[sqn] = payload


def receive(config: Path, timeout_s: float) -> tuple[list[bytes], int, list[str]]:
    """An application in its TRD. Returns payloads in order, duplicates, and the address of each session, in the end."""
    sink, loop = InOrder(), Loop()
    context = FragmentContext(Config.load(config).options, loop, sink=sink)
    context.want_topic(TOPIC)
    print("wanting", flush=True)
    end_ns = loop.now_ns() + s(timeout_s)
    while len(sink.payloads) < MESSAGES and loop.now_ns() < end_ns:
        loop.run_once(ms(50))
    context.close()
    hosts = [sockets.ip_text(source.address.ip) for source in sink.sources if isinstance(source.address, LbtrmAddress)]
    return sink.payloads, sink.duplicates, hosts


def assert_is_the_recorded_stream(payloads: list[bytes]) -> None:
    assert payloads == [f"message {n}".encode().ljust(25, b"\0") for n in range(MESSAGES)]
    assert hashlib.sha256(b"".join(payloads)).hexdigest() == SHA256


class Witness:
    """A socket beside those of the program on one host: what it gets has passed the host's input loss."""

    def __init__(self, host: Host, trd: str) -> None:
        with host.inside():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self._socket.bind(DATA_GROUP)
            member = socket.inet_aton(DATA_GROUP[0]) + socket.inet_aton(host.address(trd))
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        self._socket.setblocking(False)

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def take(self) -> list[Arrival]:
        """Everything so far, with the kernel's time of arrival."""
        found: list[Arrival] = []
        while True:
            try:
                payload, control, _, _ = self._socket.recvmsg(65536, 64)
            except BlockingIOError:
                return found
            ((_, kind, stamp),) = control
            assert kind == SO_TIMESTAMPNS
            seconds, ns = struct.unpack("qq", stamp)
            found.append(Arrival(seconds * NS_PER_S + ns, payload))


def datagrams_of(path: Path) -> list[Datagram]:
    """UDP of a capture with times since the epoch."""
    start_ns = next(time_ns for _, time_ns, _ in read_frames(path))
    return [
        Datagram(d.frame, start_ns + d.time_ns, d.src, d.sport, d.dst, d.dport, d.payload, d.ttl)
        for d in read_udp(path)
    ]


@contextmanager
def running_dro(net: Net, host: Host, options: str = "") -> Iterator[Books]:
    trd1, trd2 = net.folder / "trd1.cfg", net.folder / "trd2.cfg"
    trd1.write_text(TRD1 + options)
    trd2.write_text(TRD2)
    xml = net.folder / "dro.xml"
    xml.write_text(DRO_FILE.format(trd1=trd1, trd2=trd2))
    daemon = host.start_python("-m", "supervisor.main", str(xml), name="tnwgd")
    daemon.wait_output("route recalculation took .*routes=2 process=", 30)
    with books_of(daemon.pid, 2) as books:
        yield books
    assert daemon.stop(10) == 0, daemon.stdout


def start_replay(source: Host, speed: float, *options: str) -> Process:
    """It begins when somebody asks for the topic, and gives interest a second to travel before the first data."""
    arguments = ["--speed", str(speed), "--after-query", "--data-delay", "1", "--linger", "60", *options]
    replay = source.start_python("-m", "tests.rigs.replay", *arguments, name="replay")
    replay.wait_output("^ready$")
    return replay


def summary_of(replay: Process) -> dict[str, int]:
    assert replay.stop() == 0, replay.stderr
    summary: dict[str, int] = json.loads(replay.stdout.splitlines()[-1])
    return summary


def assert_is_on_schedule(found: Schedule, windows: Windows) -> None:
    """Every NAK in its window, with scheduling slack on the late side."""
    assert found.unknown == []
    assert found.needless == []
    for delays, window, early_ms in (
        (found.first, windows.first, 0.0),
        (found.repeats, windows.repeat, EARLY_MS),
        (found.after_ncf, windows.after_ncf, 0.0),
    ):
        assert outside(delays, window, early_ms, LATE_MS) == []
        assert statistics.median(delays) <= window[1] + USUALLY_LATE_MS
    allowed = {"first": windows.first, "repeats": windows.repeat, "after_ncf": windows.after_ncf}
    for delays_of_one in found.either:
        assert any(not outside([delay], allowed[kind], EARLY_MS, LATE_MS) for kind, delay in delays_of_one.items())


CASES: Final = [
    pytest.param(1, 0.0, Windows(), id="as recorded, no loss", marks=[pytest.mark.slow, pytest.mark.long]),
    pytest.param(1, 0.1, Windows(), id="as recorded, 10 % loss", marks=pytest.mark.slow),
    pytest.param(10, 0.0, Windows(), id="10 times faster, no loss"),
    pytest.param(10, 0.1, Windows(), id="10 times faster, 10 % loss", marks=pytest.mark.long),
    pytest.param(10, 0.1, Windows(10, 40, 400), id="10 times faster, 10 % loss, configured intervals"),
]


@pytest.mark.parametrize(("speed", "loss", "windows"), CASES)
def test_a_recorded_um_source_crosses_the_dro(net: Net, speed: float, loss: float, windows: Windows) -> None:
    source = net.host("source", {"trd1": f"{SOURCE_IP}/24"})
    dro = net.host("dro", {"trd1": f"{DRO_IP}/24", "trd2": "10.2.0.9/24"})
    receiver = net.host("receiver", {"trd2": "10.2.0.1/24"})
    options = NAK_OPTIONS.format(windows) if windows != Windows() else ""
    on_wire = {"trd1": {"lbtrm.data": MESSAGES, "lbmr.tir": 20}, "trd2": {"lbtrm.data": MESSAGES, "lbmr.proxy_tir": 1}}
    with (
        Witness(dro, "trd1") as witness,
        judged(net, "trd1", "trd2", decode_as=CAPTURE_PORTS, minimum=on_wire) as watch,
        running_dro(net, dro, options) as books,
    ):
        rule = dro.lose(loss, dports=[DATA_GROUP[1]], groups=[DATA_GROUP[0]], where=NOT_THE_FIRST) if loss else None
        replay = start_replay(source, speed, "--ignore", "0.5")
        task: Task[tuple[list[bytes], int, list[str]]] = receiver.spawn(receive, net.folder / "trd2.cfg", 50)
        payloads, duplicates, hosts = task.result(60)
        assert_is_the_recorded_stream(payloads)
        assert duplicates == 0
        assert hosts == ["10.2.0.9"]  # the application hears the DRO
        summary = summary_of(replay)
        wait_until(lambda: not books.problems(), "books that balance")
        assert books[2, Slot.SENT] == books[1, Slot.TOPIC_RCVD] == MESSAGES
        dropped = rule.remove().dropped if rule else 0
        arrivals = witness.take()
    assert watch["trd2"].counts["lbtrm.data"] == MESSAGES
    assert summary["data"] == MESSAGES
    assert summary["refused"] == summary["foreign"] == 0
    assert watch["trd1"].counts["lbtrm.rx"] == summary["retransmissions"]

    naks = [d for d in datagrams_of(watch.paths["trd1"]) if (d.dst, d.dport) == (SOURCE_IP, NAK_PORT)]
    assert len({(d.src, d.sport) for d in naks}) == (1 if loss else 0)
    assert all(d.src == DRO_IP for d in naks)
    asked = [Asked(d.time_ns, read_nak(d.payload) or ()) for d in naks]
    assert all(nak.sqns and list(nak.sqns) == sorted(set(nak.sqns)) for nak in asked)
    assert sum(len(nak.sqns) for nak in asked) == summary["naks"]
    kinds = watch["trd1"].counts
    on_trd1 = sum(kinds[f"lbtrm.{kind}"] for kind in ("data", "rx", "sm", "ncf"))
    assert len(arrivals) + dropped == on_trd1
    found = schedule_of(arrivals, asked, grace_ms=LATE_MS)
    print(
        f"dropped {dropped}; NAKs: {len(found.first)} first, {len(found.repeats)} repeats, {len(found.after_ncf)} after"
        f" an NCF; needless {len(found.needless)}, unasked {len(found.unasked)}; latest in ms: "
        + ", ".join(f"{max(d, default=0):.1f}" for d in (found.first, found.repeats, found.after_ncf))
    )
    if not loss:
        assert not naks
        return
    assert 350 <= dropped <= 750
    assert_is_on_schedule(found, windows)
    assert found.unasked == []
    assert len(found.first) >= 350
    assert len(found.repeats) >= 10
    assert found.after_ncf
    # a draw of its own for each sqn, from the whole of the window
    assert min(found.first) < windows.initial_backoff * 0.7
    assert windows.initial_backoff * 0.8 < statistics.median(found.first)


PATTERN: Final = r"^29west\.example\.multi\.[01]$"
SOURCE_STRING: Final = "LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400[1353006825]"
ACTIVITY_TIMEOUT: Final = "receiver transport_lbtrm_activity_timeout 3000\n"


def listen(config: Path, pattern: str = "") -> list[Event]:
    """An application at message level, until the end of its source. Returns everything that it was told."""
    with BlockingContext(Config.load(config)) as context:
        receiver = context.wildcard_receiver(pattern) if pattern else context.receiver(TOPIC.decode())
        print("listening", flush=True)
        events = [receiver.get(timeout=40)]
        while not isinstance(events[-1], EOS):
            events.append(receiver.get(timeout=40))
            if len(events) == MESSAGES + 1:
                print("complete", flush=True)
        return events


def assert_was_told_the_recorded_stream(events: list[Event], source_string: str) -> None:
    """One session from beginning to end with every message in it once, and nothing else."""
    first, *messages, last = events
    data = [event for event in messages if isinstance(event, Data)]
    assert_is_the_recorded_stream([event.data for event in data])
    assert [event.sqn for event in data] == list(range(MESSAGES))
    topic = TOPIC.decode()
    assert {(event.topic, event.source) for event in data} == {(topic, source_string)}
    assert first == BOS(topic, source_string)
    assert last == EOS(topic, source_string)
    assert len(messages) == MESSAGES


def test_a_recorded_um_source_is_heard_by_our_library(net: Net) -> None:
    """As in the captured run: a plain receiver that loses a tenth, and a wildcard receiver that loses nothing."""
    source = net.host("source", {"trd1": f"{SOURCE_IP}/24"})
    plain = net.host("plain", {"trd1": "10.29.4.101/24"})
    wildcard = net.host("wildcard", {"trd1": "10.29.4.102/24"})
    config = net.folder / "trd1.cfg"
    config.write_text(TRD1 + ACTIVITY_TIMEOUT)
    with judged(net, "trd1", decode_as=CAPTURE_PORTS, minimum={"trd1": {"lbtrm.nak": 1, "lbtrm.rx": 350}}):
        rule = plain.lose(0.1, dports=[DATA_GROUP[1]], groups=[DATA_GROUP[0]], where=NOT_THE_FIRST)
        replay = start_replay(source, 10, "--ignore", "0.5")
        tasks = [plain.spawn(listen, config), wildcard.spawn(listen, config, PATTERN)]
        for task in tasks:
            assert_was_told_the_recorded_stream(task.result(60), SOURCE_STRING)
        assert rule.remove().dropped >= 350
        assert summary_of(replay)["data"] == MESSAGES


@pytest.mark.parametrize(
    ("speed", "tool", "wanted"),
    [
        pytest.param(1, "lbmrcv", TOPIC.decode(), id="lbmrcv, as recorded", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(10, "lbmrcv", TOPIC.decode(), id="lbmrcv, 10 times faster"),
        pytest.param(10, "lbmwrcv", PATTERN, id="lbmwrcv, 10 times faster"),
    ],
)
def test_the_recorded_stream_straight_into_the_tools(net: Net, speed: float, tool: str, wanted: str) -> None:
    source = net.host("source", {"trd1": f"{SOURCE_IP}/24"})
    receiver = net.host("receiver", {"trd1": "10.29.4.101/24"})
    config = net.folder / "trd1.cfg"
    config.write_text(TRD1 + ACTIVITY_TIMEOUT)
    with judged(net, "trd1", decode_as=CAPTURE_PORTS, minimum={"trd1": {"lbtrm.nak": 1, "lbtrm.rx": 350}}):
        rule = receiver.lose(0.1, dports=[DATA_GROUP[1]], groups=[DATA_GROUP[0]], where=NOT_THE_FIRST)
        replay = start_replay(source, speed, "--ignore", "0.5")
        options = ["-c", str(config), "-S", "-O", "-v", "--payload-sha256"]
        process = receiver.start_python("-m", f"dro.tools.lbm.{tool}", *options, wanted, name=tool)
        assert process.wait(60) == 0, process.stdout[-2000:] + process.stderr
        assert rule.remove().dropped >= 350
        assert summary_of(replay)["data"] == MESSAGES
    *lines, digest, last = process.stdout.splitlines()
    assert digest == f"{tool}: payload sha256 {SHA256}"
    assert last == f"{tool}: received {MESSAGES} messages, 125000 bytes, lost 0, bursts 0, bad 0"
    told = [re.fullmatch(rf"\[{TOPIC.decode()}\]\[(.*)\]\[(\d+)\](?:-RX-)?, 25 bytes", line) for line in lines]
    assert [(m[1], int(m[2])) for m in told if m] == [(SOURCE_STRING, n) for n in range(MESSAGES)]


@pytest.mark.slow
def test_applications_behind_the_dro_are_told_the_whole_session(net: Net) -> None:
    """Loss before and behind the DRO; a plain and a wildcard receiver; the end of the source crosses as well."""
    source = net.host("source", {"trd1": f"{SOURCE_IP}/24"})
    dro = net.host("dro", {"trd1": f"{DRO_IP}/24", "trd2": "10.2.0.9/24"})
    plain = net.host("plain", {"trd2": "10.2.0.1/24"})
    wildcard = net.host("wildcard", {"trd2": "10.2.0.2/24"})
    on_wire = {
        "trd1": {"lbtrm.nak": 1, "lbtrm.rx": 350},
        "trd2": {"lbtrm.nak": 1, "lbtrm.rx": 150, "lbmr.final_tir": 1},
    }
    with (
        judged(net, "trd1", "trd2", decode_as=CAPTURE_PORTS, minimum=on_wire),
        running_dro(net, dro, ACTIVITY_TIMEOUT) as books,
    ):
        rules = [
            dro.lose(0.1, dports=[DATA_GROUP[1]], groups=[DATA_GROUP[0]], where=NOT_THE_FIRST),
            plain.lose(0.05, dports=[14400], where=NOT_THE_FIRST),
        ]
        config = net.folder / "trd2.cfg"
        tasks = [plain.spawn(listen, config), wildcard.spawn(listen, config, PATTERN)]
        for task in tasks:
            task.wait_output("^listening$")
        replay = start_replay(source, 10, "--ignore", "0.5")
        for task in tasks:
            task.wait_output("^complete$", 40)
        assert summary_of(replay)["data"] == MESSAGES  # it has ended: nobody advertises the topic any more
        for task in tasks:
            events = task.result(60)
            (heard,) = {event.source for event in events if isinstance(event, Data)}
            assert heard.startswith("LBTRM:10.2.0.9:14390:")
            assert_was_told_the_recorded_stream(events, heard)
        assert all(rule.remove().dropped for rule in rules)
        wait_until(lambda: not books.problems(), "books that balance")
        assert books[1, Slot.NAKS_SENT]
        assert books[2, Slot.RETRANSMITTED] >= 150


def kind_of(payload: bytes) -> str:
    """Named as `tests.builders.lbtrm_capture` does."""
    return ("rx" if payload[16] & 0x20 else "data") if payload[0] == 0 else {2: "sm", 4: "ncf"}[payload[0]]


def test_our_source_answers_the_recorded_naks_as_um_did(net: Net) -> None:
    """The capture's data sent at its times, its NAKs at theirs: byte for byte what the UM source sent."""
    source = net.host("source", {"trd1": f"{SOURCE_IP}/24"})
    receiver = net.host("receiver", {"trd1": "10.29.4.101/24"})
    recorded = packets()
    clock = SteppedClock(0)
    loop = Loop(clock)
    address = LbtrmAddress(
        sockets.ip_number(SOURCE_IP), sockets.ip_number(DATA_GROUP[0]), SESSION_ID, DATA_GROUP[1], NAK_PORT
    )
    limiter, resend_limiter = RateLimiter(10_000_000, ms(10), 0), RateLimiter(5_000_000, ms(10), 0)
    core = SourceSession(SourceConfig(sm_max_ns=s(2)), limiter, resend_limiter, 0)  # as the run was configured
    with source.inside():
        nak_in = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        nak_in.bind((SOURCE_IP, NAK_PORT))
        nak_in.setblocking(False)
        data_out = OS_SOCKETS.multicast_sender(address.group, address.dport, SOURCE_IP, ttl=16, buffer_bytes=1 << 20)
        sender = LbtrmSender(
            loop,
            DatagramSenderSetup(
                address,
                data_out,
                nak_in,
                SOURCE_IP,
                datagram_max_bytes=8192,
                transport_index=1,
                header_bytes=DATA_HEADER,
            ),
            core,
            limiter,
            mmsg.DatagramBatch(),
            tgsz_log2=3,
        )
    with receiver.inside():
        nak_out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def reach(at_ns: int) -> None:
        while (deadline := loop.next_deadline()) is not None and deadline <= at_ns:
            clock.time_ns = max(clock.time_ns, deadline)
            loop.run_once(0)
        clock.time_ns = at_ns

    def ask(packet: Packet) -> None:
        packets_before = core.stats.nak_pckts_rcved
        nak_out.sendto(packet.payload, (SOURCE_IP, NAK_PORT))
        give_up_s = time.monotonic() + 10
        while core.stats.nak_pckts_rcved == packets_before:
            assert time.monotonic() < give_up_s, "the NAK did not arrive"
            loop.run_once(ms(1))

    with Witness(receiver, "trd1") as witness, judged(net, "trd1", decode_as=CAPTURE_PORTS) as watch:
        for packet in recorded:
            reach(packet.at_ns)
            if packet.kind == "data":
                assert sender.send_datagram(bytearray(DATA_HEADER) + packet.payload[DATA_HEADER:], 25, clock.time_ns)
            elif packet.kind == "nak":
                ask(packet)
        sent = [arrival.payload for arrival in witness.take()]
        sender.close(0, clock.time_ns)
        nak_out.close()
    for kind in ("data", "rx", "sm", "ncf"):
        theirs = [packet.payload for packet in recorded if packet.kind == kind]
        assert [payload for payload in sent if kind_of(payload) == kind] == theirs, kind
    kinds = Counter(kind_of(payload) for payload in sent)
    assert kinds == {"data": 5000, "rx": 541, "sm": 4, "ncf": 45}
    entries = [sqn for packet in recorded if packet.kind == "nak" for sqn in packet.sqns]
    confirmed = [sqn for packet in recorded if packet.kind == "ncf" for sqn in packet.sqns]
    assert (len(entries), len(confirmed), len(entries) - kinds["rx"] - len(confirmed)) == (598, 54, 3)
    assert watch["trd1"].counts["lbtrm.nak"] == 295
    assert watch["trd1"].counts["lbtrm.rx"] == 541
    assert sender.bad_packets == sender.send_errors == 0
    loop.close()

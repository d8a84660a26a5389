"""The source application of a real capture, replayed: unchanged bytes, same addresses and ports, live loss recovery.

It stands for the capture's source on a host that has the source's address. It sends the recorded topic resolution,
data, session messages and NCFs at their recorded times or faster, repairs what live receivers ask for, and answers
live topic queries with the recorded advertisement. It shares no code with the program under test.

As a script: `python -m tests.rigs.replay --help`. The first line on standard output is `ready` (sockets are open),
the last one a JSON object with the counts of `Summary`.
"""

from __future__ import annotations

import argparse
import json
import re
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TextIO

from tests.builders.udp_capture import Datagram, read_udp

CAPTURE: Final = Path(__file__).resolve().parents[1] / "golden/captures/um-lbtrm-single-source.pcap"
SOURCE_IP: Final = "10.29.4.121"
TR_SPORT: Final = 42180
DATA_SPORT: Final = 60709
NAK_PORT: Final = 12090
TR_GROUP: Final = ("239.101.3.1", 12965)
DATA_GROUP: Final = ("239.101.3.10", 14400)
SESSION_ID: Final = 0xF9D74F3E
TOPIC: Final = b"29west.example.multi.0"
TTL: Final = 16
DATA, SM, NAK, NCF = 0, 2, 3, 4
RETRANSMISSION: Final = 0x20
NS: Final = 1_000_000_000
LATE_MAX_NS: Final = NS // 50
"""After a longer pause, when others had the processor, the rest comes later: a burst would be lost in the network."""
DECODE_AS: Final = ("udp.port==12965,lbmr", "udp.port==14400,lbtrm", "udp.port==12090,lbtrm")


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """How to replay. `speed`: times faster than recorded."""

    speed: float = 1.0
    recovery: bool = False  # send the recorded retransmissions and NCFs too, which answered the recorded NAKs
    after_query: bool = False  # begin when a live query asks for the topic, else at once
    data_delay_s: float = 0.0  # least real time from the first advertisement to the first data datagram
    ignore_s: float = 0.0  # do not resend a sqn again so soon, but confirm its NAK once; UM's default is 0.5
    linger_s: float = 5.0  # go on answering for so long after the last datagram
    naks: Path | None = None  # JSON lines: one object per live NAK packet
    capture: Path = CAPTURE


@dataclass(slots=True)
class Summary:
    """What was sent and heard: datagrams, except for `naks` (sqns asked for) and `refused` (sqns not sent so far)."""

    tr: int = 0
    data: int = 0
    recorded_retransmissions: int = 0
    sm: int = 0
    ncf: int = 0
    nak_packets: int = 0
    naks: int = 0
    retransmissions: int = 0
    confirmed: int = 0  # NCF entries that answered live NAKs
    ignored: int = 0  # NAKs left without an answer
    refused: int = 0
    queries: int = 0
    foreign: int = 0  # datagrams to the NAK port that are no NAK of this session


class Recording:
    """The source's side of the capture.

    `schedule`: (ns after the first advertisement at recorded speed, datagram) in order; `originals`: data by sqn;
    `tir`: the advertisement that answers queries.
    """

    def __init__(self, path: Path) -> None:
        sent = [d for d in read_udp(path) if d.src == SOURCE_IP and d.sport in (TR_SPORT, DATA_SPORT)]
        if not sent:
            raise ValueError(f"{path}: nothing from {SOURCE_IP}")
        start_ns = sent[0].time_ns
        self.schedule = [(d.time_ns - start_ns, d) for d in sent]
        data = [d for d in sent if is_data(d)]
        self.originals = {sqn_of(d.payload): d.payload for d in data if not is_retransmission(d)}
        self.first_data_ns = data[0].time_ns - start_ns
        self.tir = [d for d in sent if d.sport == TR_SPORT][-1].payload

    def timetable(self, cfg: ReplayConfig) -> list[tuple[int, Datagram]]:
        """When to send what, ns after the start; all LBT-RM packets move together when data is delayed."""
        shift_ns = max(0, round(cfg.data_delay_s * NS) - round(self.first_data_ns / cfg.speed))
        table = []
        for at_ns, datagram in self.schedule:
            if not cfg.recovery and is_recovery(datagram):
                continue
            table.append((round(at_ns / cfg.speed) + (shift_ns if datagram.sport == DATA_SPORT else 0), datagram))
        return sorted(table, key=lambda entry: entry[0])


def is_data(d: Datagram) -> bool:
    return d.sport == DATA_SPORT and d.payload[0] == DATA


def is_retransmission(d: Datagram) -> bool:
    return is_data(d) and d.payload[16] & RETRANSMISSION != 0


def is_recovery(d: Datagram) -> bool:
    """A retransmission or an NCF: an answer to somebody's NAK."""
    return is_retransmission(d) or (d.sport == DATA_SPORT and d.payload[0] == NCF)


def sqn_of(payload: bytes) -> int:
    """The transport sequence number of an LBT-RM data packet."""
    return int.from_bytes(payload[8:12], "big")


def retransmission_of(payload: bytes) -> bytes:
    """The same data packet as a source resends it: one flag differs."""
    return payload[:16] + bytes([payload[16] | RETRANSMISSION]) + payload[17:]


def read_nak(payload: bytes) -> tuple[int, ...] | None:
    """The sqns of a NAK of the recorded session; None for anything else."""
    if len(payload) < 12:
        return None
    kind, option, port, session, count, form = struct.unpack_from("!BBHIHH", payload)
    if (kind, option, port, session, form) != (NAK, 0, NAK_PORT, SESSION_ID, 0) or len(payload) != 12 + 4 * count:
        return None
    return struct.unpack_from(f"!{count}I", payload, 12)


def nak_packet(sqns: Sequence[int]) -> bytes:
    """A NAK of the recorded session, as a receiver sends it."""
    return struct.pack(f"!BBHIHH{len(sqns)}I", NAK, 0, NAK_PORT, SESSION_ID, len(sqns), 0, *sqns)


def ncf_packet(sqns: Sequence[int]) -> bytes:
    """What the recorded source sends once for a NAK within its ignore interval: reason 1, trail 0."""
    return struct.pack(f"!BBHIIHBB{len(sqns)}I", NCF, 0, NAK_PORT, SESSION_ID, 0, len(sqns), 0, 0x10, *sqns)


def asks_for(payload: bytes, topic: bytes) -> bool:
    """Whether a topic resolution packet holds a query for a topic, or a PCRE query that matches it."""
    if len(payload) < 4 or not payload[1]:
        return False
    kind, count, at = payload[0] & 7, payload[1], 4
    for _ in range(count):
        if kind == 1:  # wildcard: one byte of pattern type first
            if payload[at : at + 1] not in (b"\x01", b"\x02"):
                return False
            at += 1
        elif kind != 0:
            return False
        stop = payload.find(b"\0", at)
        if stop < 0:
            return False
        text, at = payload[at:stop], stop + 1
        try:
            if text == topic if kind == 0 else re.search(text, topic):
                return True
        except re.error:
            continue
    return False


class Replayer:
    """Sockets and the loop of a replay; `run` does it all."""

    def __init__(self, cfg: ReplayConfig) -> None:
        self.summary = Summary()
        self._cfg = cfg
        self._recording = Recording(cfg.capture)
        self._next_sqn = 0  # below it, everything was sent
        self._stopped = False
        self._tr_out = self._socket(SOURCE_IP, TR_SPORT)
        self._data_out = self._socket(SOURCE_IP, DATA_SPORT)
        self._nak_in = self._socket(SOURCE_IP, NAK_PORT)
        self._tr_in = self._socket(*TR_GROUP)
        member = socket.inet_aton(TR_GROUP[0]) + socket.inet_aton(SOURCE_IP)
        self._tr_in.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        self._log: TextIO | None = cfg.naks.open("w", buffering=1) if cfg.naks else None
        self._start_ns = 0
        self._handlers: dict[socket.socket, Callable[[bytes, tuple[str, int]], None]] = {
            self._nak_in: self._on_nak,
            self._tr_in: self._on_tr,
        }
        self._asked = False
        self._resent_ns: dict[int, int] = {}
        self._confirmed: set[int] = set()  # since they were resent

    def _socket(self, ip: str, port: int) -> socket.socket:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, TTL)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(SOURCE_IP))
        s.setblocking(False)
        s.bind((ip, port))
        return s

    def stop(self) -> None:
        """Let `run` return soon; for a signal handler."""
        self._stopped = True

    def close(self) -> None:
        for s in (self._tr_out, self._data_out, self._nak_in, self._tr_in):
            s.close()
        if self._log is not None:
            self._log.close()

    def run(self) -> Summary:
        """Replay, linger, return the counts."""
        while self._cfg.after_query and not self._asked and not self._stopped:
            self._serve(time.monotonic_ns() + NS // 10)
        self._start_ns = time.monotonic_ns()
        for at_ns, datagram in self._recording.timetable(self._cfg):
            self._serve(self._start_ns + at_ns)
            late_ns = time.monotonic_ns() - self._start_ns - at_ns
            self._start_ns += max(late_ns - LATE_MAX_NS, 0)
            if self._stopped:
                return self.summary
            self._send(datagram)
        end_ns = time.monotonic_ns() + round(self._cfg.linger_s * NS)
        while not self._stopped and time.monotonic_ns() < end_ns:
            self._serve(min(end_ns, time.monotonic_ns() + NS // 10))
        return self.summary

    def _serve(self, until_ns: int) -> None:
        """Answer whatever comes in until a moment of the monotonic clock; looks at the sockets at least once."""
        while not self._stopped:
            left_ns = until_ns - time.monotonic_ns()
            # select takes microseconds; poll and epoll would turn the gaps between datagrams into a busy loop
            for ready in select.select(list(self._handlers), [], [], max(0, left_ns) / NS)[0]:
                self._drain(ready)
            if left_ns <= 0:
                return

    def _drain(self, ready: socket.socket) -> None:
        for _ in range(64):
            try:
                payload, sender = ready.recvfrom(65536)
            except BlockingIOError:
                return
            self._handlers[ready](payload, sender)

    def _send(self, d: Datagram) -> None:
        out = self._data_out if d.sport == DATA_SPORT else self._tr_out
        self._transmit(out, d.payload, (d.dst, d.dport))
        s = self.summary
        if d.sport == TR_SPORT:
            s.tr += 1
        elif is_retransmission(d):
            s.recorded_retransmissions += 1
        elif d.payload[0] == DATA:
            s.data += 1
            self._next_sqn = sqn_of(d.payload) + 1
        elif d.payload[0] == SM:
            s.sm += 1
        else:
            s.ncf += 1

    def _transmit(self, out: socket.socket, payload: bytes, to: tuple[str, int]) -> None:
        """Send one datagram, waiting for room in the socket's buffer."""
        while True:
            try:
                out.sendto(payload, to)
                return
            except BlockingIOError:
                select.select([], [out], [], 1.0)

    def _on_nak(self, payload: bytes, sender: tuple[str, int]) -> None:
        sqns = read_nak(payload)
        if sqns is None:
            self.summary.foreign += 1
            return
        known = [sqn for sqn in sqns if sqn < self._next_sqn and sqn in self._recording.originals]
        now_ns = time.monotonic_ns()
        ignore_ns = round(self._cfg.ignore_s * NS)
        ignored = [sqn for sqn in known if now_ns - self._resent_ns.get(sqn, now_ns - ignore_ns) < ignore_ns]
        resent = [sqn for sqn in known if sqn not in ignored]
        for sqn in resent:
            self._transmit(self._data_out, retransmission_of(self._recording.originals[sqn]), DATA_GROUP)
        confirmed = [sqn for sqn in ignored if sqn not in self._confirmed]
        if confirmed:
            self._transmit(self._data_out, ncf_packet(confirmed), DATA_GROUP)
        self._resent_ns.update(dict.fromkeys(resent, now_ns))
        self._confirmed.difference_update(resent)
        self._confirmed.update(confirmed)
        self.summary.nak_packets += 1
        self.summary.naks += len(sqns)
        self.summary.retransmissions += len(resent)
        self.summary.confirmed += len(confirmed)
        self.summary.ignored += len(ignored) - len(confirmed)
        self.summary.refused += len(sqns) - len(known)
        if self._log is not None:
            time_s = round((time.monotonic_ns() - self._start_ns) / NS, 6)
            entry = {"time_s": time_s, "from": f"{sender[0]}:{sender[1]}", "sqns": sqns, "answered": len(resent)}
            self._log.write(json.dumps(entry) + "\n")

    def _on_tr(self, payload: bytes, sender: tuple[str, int]) -> None:
        if not asks_for(payload, TOPIC):
            return
        self.summary.queries += 1
        self._asked = True
        if self._start_ns:
            self._transmit(self._tr_out, self._recording.tir, TR_GROUP)
            self.summary.tr += 1


def replay(cfg: ReplayConfig) -> Summary:
    """One whole replay in the calling process, for example a task on a test host."""
    replayer = Replayer(cfg)
    try:
        return replayer.run()
    finally:
        replayer.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="replay", description="Replay the source of a captured LBT-RM session.")
    parser.add_argument("--speed", type=float, default=1.0, help="times faster than recorded")
    parser.add_argument("--recovery", action="store_true", help="send recorded retransmissions and NCFs too")
    parser.add_argument("--after-query", action="store_true", help="begin when a live query asks for the topic")
    parser.add_argument("--data-delay", type=float, default=0.0, metavar="S", help="least time from TIR to first data")
    parser.add_argument("--ignore", type=float, default=0.0, metavar="S", help="NAK ignore interval; UM's is 0.5")
    parser.add_argument(
        "--linger", type=float, default=5.0, metavar="S", help="go on answering after the last datagram"
    )
    parser.add_argument("--naks", type=Path, help="log of live NAKs, JSON lines")
    parser.add_argument("--capture", type=Path, default=CAPTURE)
    a = parser.parse_args(argv)
    cfg = ReplayConfig(
        speed=a.speed,
        recovery=a.recovery,
        after_query=a.after_query,
        data_delay_s=a.data_delay,
        ignore_s=a.ignore,
        linger_s=a.linger,
        naks=a.naks,
        capture=a.capture,
    )
    replayer = Replayer(cfg)
    signal.signal(signal.SIGTERM, lambda *_: replayer.stop())
    signal.signal(signal.SIGINT, lambda *_: replayer.stop())
    print("ready", flush=True)
    try:
        summary = replayer.run()
    finally:
        replayer.close()
    print(json.dumps(asdict(summary)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

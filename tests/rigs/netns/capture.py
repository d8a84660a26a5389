"""Packet capture in a namespace, and a dissector's verdict on what was captured.

A capture begins when its constructor returns and ends, complete, when `stop` returns: a marker frame of a local
experimental ethertype is sent last and waited for in the file. The judge is tshark: every packet of the UM protocols
must decode without a malformed or error indication, and only expert remarks that belong to ordinary traffic may occur.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.rigs.netns.namespace import CommandFailed, inside
from tests.rigs.netns.process import Process
from tests.rigs.netns.streams import cut_anew, joined, tcp_ports
from tests.rigs.waiting import wait_until

MARKER_TYPE: Final = 0x88B5
_MARKER_HEAD: Final = b"\x01\x80\xc2\x00\x00\x0e\x02\x00\x00\x00\x00\x01" + MARKER_TYPE.to_bytes(2, "big")


class Capture:
    """One running dumpcap, writing a classic pcap file."""

    def __init__(self, namespace: str, device: str, path: Path, capture_filter: str = "", buffer_mib: int = 16) -> None:
        """Returns when packets are being kept. `capture_filter` is in pcap filter syntax."""
        self.path = path
        self._namespace = namespace
        self._device = device
        argv = ["dumpcap", "-q", "-P", "-B", str(buffer_mib), "-i", device, "-w", str(path)]
        if capture_filter:
            argv += ["-f", f"({capture_filter}) or ether proto {MARKER_TYPE:#x}"]
        self.process = Process(path.name, argv, namespace, path.parent)
        self.process.wait_output(r"^File: ", stderr=True)  # printed when the device is open and the file made

    def stop(self, timeout_s: float = 15.0) -> Path:
        """End the capture when everything sent before this call is in the file; returns the path."""
        if self.process.returncode is None:
            token = os.urandom(32)
            with (
                inside(self._namespace),
                socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw,
            ):
                raw.bind((self._device, 0))
                raw.send(_MARKER_HEAD + token + bytes(14))
            wait_until(lambda: token in self._tail(), f"the end marker in {self.path.name}", timeout_s, every_s=0.05)
            self.process.signal(signal.SIGINT)
            self.process.wait(timeout_s)
        dropped = re.search(r"dropped on interface '[^']*': \d+/(\d+)", self.process.stderr)
        if dropped is None or int(dropped[1]):
            raise CommandFailed(f"capture {self.path.name} is not complete: {self.process.stderr.strip()}")
        return self.path

    def _tail(self, size: int = 1 << 20) -> bytes:
        with self.path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read()


def ports(transport: str, low: int, protocol: str, high: int | None = None) -> str:
    """A decode-as rule for one port or an inclusive range: `ports("udp", 14390, "lbtrm", 14399)`."""
    return f"{transport}.port=={low}-{high},{protocol}" if high else f"{transport}.port=={low},{protocol}"


DEFAULT_PORTS: Final = (
    ports("udp", 12965, "lbmr"),
    ports("udp", 15380, "lbmr"),
    ports("udp", 14400, "lbtrm", 14401),
    ports("udp", 14390, "lbtrm", 14399),
    ports("udp", 14360, "lbtru", 14389),
    ports("tcp", 14371, "lbttcp", 14395),
)
"""UM's default ports: topic resolution (multicast group, unicast daemon), LBT-RM with MIM, LBT-RU, LBT-TCP with UIM."""

ORDINARY_REMARKS: Final = (
    "NAK",
    "NCF (NAK Ignored|Retransmit Delay|NAK Shed|Do not retry)",
    "SM( SYN)?",
    "ACK",
    "CREQ SYN",
    "RST Default",
    "RX 0x[0-9a-f]{8}",
    "TSNI Sqn 0x[0-9a-f]{8}",
    r"Connection establish request \(SYN\).*",
    r"Connection establish acknowledge \(SYN\+ACK\).*",
    r"Connection finish \(FIN\)",
    r"Connection reset \(RST\)",
    "This frame initiates the connection closing",
    "This frame undergoes the connection closing",
    "A new tcp session is started with the same ports.*",
    r"This frame is a \(suspected\) (fast |spurious )?retransmission",
    r"This frame is a \(suspected\) out-of-order segment",
    "Duplicate ACK.*",
    r"ACKed segment that wasn't captured \(common at capture start\)",  # bare ones are cut away
    "TCP window update",
    "TCP window specified by the receiver is now completely full",
    "TCP keep-alive segment",
    "ACK to a TCP keep-alive segment",
    "TCP Zero Window.*",
    "ACK to a TCP Zero Window Probe",
    "Possible traceroute.*",  # any UDP to or from an ephemeral port between 33434 and 33534
)
"""Expert remarks of healthy traffic, as full-match patterns: loss recovery, session management, TCP housekeeping."""

SEVERITIES: Final = {0x100000: "comment", 0x200000: "chat", 0x400000: "note", 0x600000: "warning", 0x800000: "error"}
MALFORMED_GROUP: Final = 0x07000000
_RM: Final = {0: "data", 2: "sm", 3: "nak", 4: "ncf"}
_RU: Final = {0: "data", 2: "sm", 3: "nak", 4: "ncf", 5: "ack", 6: "creq", 7: "rst"}
_TMR: Final = {(0, 0): "lbmr.leave", (1, 0): "lbmr.use_query", (1, 1): "lbmr.use_response"}  # type, response flag
_FIELDS: Final = (
    "frame.number",
    "frame.protocols",
    "_ws.expert.severity",
    "_ws.expert.group",
    "_ws.expert.message",
    "lbtrm.hdr.type",
    "lbtrm.data.flags_fec_type.rx",
    "lbtru.hdr.type",
    "lbtru.hdr.flags.rx",
    "lbmr.hdr.type",
    "lbmr.hdr.ext_type",
    "lbmr.tqr.name",
    "lbmr.tqr.pattern",
    "lbmr.tir.name",
    "lbmr.topt.cost.cost",
    "lbmr.tmb.tmr.type",
    "lbmr.tmb.tmr.flags.response",
    "lbmr.topic_res_request.flags",
    "lbmr.tnwg.interest_rec.flags",
    "lbmr.remote_domain_route.num_domains",
    "lbmc.type",
    "lbmc.frag.offset",
    "lbmc.tsni.num_recs",
)
_JOIN: Final = "\x1f"


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something in a frame that healthy traffic does not have. `severity`: a name, `malformed` or `undecoded`."""

    frame: int
    severity: str
    message: str
    protocols: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a dissector found in a capture.

    `counts`: packets as `lbmr` and `lbmr.type<n>` or `lbmr.ext<n>`; records as `lbmr.tqr`, `lbmr.wctqr`, `lbmr.tir`, of
    these `lbmr.proxy_tir` (with a cost: a DRO's) and `lbmr.final_tir` (cost -1: its end), `lbmr.use_query`,
    `lbmr.use_response`, `lbmr.leave`, `lbmr.request` (topic resolution request), `lbmr.interest`, of these
    `lbmr.pattern_interest` and `lbmr.interest_cancel`, `lbmr.domain_route`; `lbtrm.*` and `lbtru.*` with `data` (first
    transmissions), `rx`, `sm`, `nak`, `ncf`, and `ack`, `creq`, `rst`; `lbttcp` and `lbmsrs` (frames); `lbmc` (messages
    in any transport), of these `lbmc.fragment` and `lbmc.tsni`; `undecoded` (UDP or TCP content that no rule named).
    `remarks` counts every expert message.
    """

    frames: int
    counts: Mapping[str, int]
    remarks: Mapping[str, int]
    oddities: tuple[Oddity, ...] = field(repr=False)

    def assert_clean(self, minimum: Mapping[str, int] | None = None) -> None:
        """Fail with frame numbers on any oddity, and when fewer packets of a kind were seen than `minimum` says."""
        shown = [f"frame {o.frame}: {o.severity}: {o.message} [{o.protocols}]" for o in self.oddities[:20]]
        if len(self.oddities) > len(shown):
            shown.append(f"and {len(self.oddities) - len(shown)} more")
        assert not self.oddities, "the dissector objects:\n" + "\n".join(shown)
        for kind, least in (minimum or {}).items():
            assert self.counts.get(kind, 0) >= least, f"{kind}: {self.counts.get(kind, 0)} packets, expected {least}"


def judge(
    pcap: Path, decode_as: Iterable[str] = DEFAULT_PORTS, *, allow: Sequence[str] = (), undecoded_ok: bool = False
) -> Verdict:
    """Decode a capture with the given rules; later rules win over earlier ones.

    `allow`: further patterns of expert remarks below error severity to accept. `undecoded_ok`: UDP and TCP content
    that no dissector took is counted but not an oddity. Checksums are not looked at, as hosts may leave them open.

    LBT-TCP streams are cut anew first (`tests.rigs.netns.streams`); frame numbers are those of the file made for that,
    which lies beside `pcap`.
    """
    return judge_all([pcap], decode_as, allow=allow, undecoded_ok=undecoded_ok)[0]


def judge_all(
    pcaps: Sequence[Path], decode_as: Iterable[str] = DEFAULT_PORTS, *, allow: Sequence[str] = (),
    undecoded_ok: bool = False,
) -> list[Verdict]:  # fmt: skip
    """`judge` of several captures with no conversation in common: the start of the dissector is half of its work."""
    rules = list(decode_as)
    parts = [cut_anew(pcap, pcap.with_suffix(".cut.pcap"), tcp_ports(rules)) for pcap in pcaps]
    read, firsts = (parts[0], [1]) if len(parts) == 1 else joined(parts, parts[0].with_suffix(".all.pcap"))
    argv = ["tshark", "-n", "-r", str(read), "-Y", f"!(eth.type=={MARKER_TYPE:#x})", "-T", "fields"]
    argv += ["-E", f"aggregator={_JOIN}", "-E", "occurrence=a", "-E", "separator=/t"]
    for checked in ("ip", "udp", "tcp"):
        argv += ["-o", f"{checked}.check_checksum:FALSE"]
    for rule in rules:
        argv += ["-d", rule]
    for name in _FIELDS:
        argv += ["-e", name]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=300, check=False)
    if done.returncode:
        raise CommandFailed(f"tshark: {done.stderr.strip()}")
    ordinary = re.compile("|".join(f"(?:{p})" for p in (*ORDINARY_REMARKS, *allow)))
    frames: list[defaultdict[str, list[int]]] = [defaultdict(list) for _ in parts]
    for line in done.stdout.splitlines():
        text, _, rest = line.partition("\t")
        part = bisect_right(firsts, number := int(text)) - 1
        frames[part][rest].append(number - firsts[part] + 1)
    return [_verdict(found, ordinary, undecoded_ok) for found in frames]


def _verdict(frames: Mapping[str, list[int]], ordinary: re.Pattern[str], undecoded_ok: bool) -> Verdict:
    """`frames`: numbers of the frames for each text that the dissector printed; most frames say the same."""
    counts: Counter[str] = Counter()
    remarks: Counter[str] = Counter()
    oddities: list[Oddity] = []
    for rest, numbers in frames.items():
        values = dict(zip(_FIELDS[1:], rest.split("\t"), strict=True))
        odd = []
        for severity, message in _remarks(values):
            remarks[message] += len(numbers)
            if severity in ("error", "malformed") or not ordinary.fullmatch(message):
                odd.append((severity, message))
        if ":icmp:" in values["frame.protocols"]:
            counts["icmp"] += len(numbers)  # holds the head of a packet that was counted before
        else:
            kinds = Counter(_kinds(values))
            for kind, count in kinds.items():
                counts[kind] += count * len(numbers)
            if kinds["undecoded"] and not undecoded_ok:
                odd.append(("undecoded", "no dissector took the content"))
        oddities += [Oddity(number, *why, values["frame.protocols"]) for number in numbers for why in odd]
    return Verdict(sum(map(len, frames.values())), counts, remarks, tuple(sorted(oddities, key=lambda o: o.frame)))


def _remarks(values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Severity and text of each expert remark of a frame; severity `malformed` for that group."""
    if not values["_ws.expert.severity"]:
        return [("malformed", "malformed packet")] if "_ws.malformed" in values["frame.protocols"] else []
    severities = [SEVERITIES.get(int(v), v) for v in values["_ws.expert.severity"].split(_JOIN)]
    malformed = [int(v) == MALFORMED_GROUP for v in values["_ws.expert.group"].split(_JOIN)]
    messages = values["_ws.expert.message"].split(_JOIN)
    if not len(severities) == len(malformed) == len(messages):
        return [("error", f"remarks that do not pair up: {messages}")]
    return [("malformed" if m else s, text) for s, m, text in zip(severities, malformed, messages, strict=True)]


def _kinds(values: Mapping[str, str]) -> Iterable[str]:
    def numbers(name: str) -> list[int]:
        return [int(v, 0) for v in values[name].split(_JOIN) if v]

    layers = values["frame.protocols"].split(":")
    for number in numbers("lbtrm.hdr.type"):
        resent = number == 0 and "1" in values["lbtrm.data.flags_fec_type.rx"]
        yield "lbtrm.rx" if resent else f"lbtrm.{_RM.get(number, number)}"
    for number in numbers("lbtru.hdr.type"):
        resent = number == 0 and "1" in values["lbtru.hdr.flags.rx"]
        yield "lbtru.rx" if resent else f"lbtru.{_RU.get(number, number)}"
    for number in numbers("lbmr.hdr.type"):
        yield "lbmr"
        yield f"lbmr.type{number}"
    for number in numbers("lbmr.hdr.ext_type"):
        yield f"lbmr.ext{number}"
    for name, kind in (("lbmr.tqr.name", "tqr"), ("lbmr.tqr.pattern", "wctqr"), ("lbmr.tir.name", "tir")):
        yield from (f"lbmr.{kind}" for v in values[name].split(_JOIN) if v)
    for cost in numbers("lbmr.topt.cost.cost"):
        yield "lbmr.final_tir" if cost in (-1, 0xFFFFFFFF) else "lbmr.proxy_tir"
    for pair in zip(numbers("lbmr.tmb.tmr.type"), numbers("lbmr.tmb.tmr.flags.response"), strict=True):
        yield _TMR.get(pair, "lbmr.tmr_other")
    yield from ("lbmr.request" for _ in numbers("lbmr.topic_res_request.flags"))
    for flags in numbers("lbmr.tnwg.interest_rec.flags"):
        yield "lbmr.interest"
        if flags & 0x80:
            yield "lbmr.pattern_interest"
        if flags & 0x40:
            yield "lbmr.interest_cancel"
    yield from ("lbmr.domain_route" for _ in numbers("lbmr.remote_domain_route.num_domains"))
    yield from (kind for kind in ("lbttcp", "lbmsrs") if kind in layers)
    yield from ("lbmc" for _ in numbers("lbmc.type"))
    yield from ("lbmc.fragment" for _ in numbers("lbmc.frag.offset"))
    yield from ("lbmc.tsni" for _ in numbers("lbmc.tsni.num_recs"))
    if layers[-2:] in (["udp", "data"], ["tcp", "data"]):
        yield "undecoded"

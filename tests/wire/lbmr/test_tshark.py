"""Packets that we write, as the standard dissector reads them."""

from __future__ import annotations

import struct
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest

from dro.dissect.fields import FieldList
from dro.dissect.lbmr import lbmr_fields
from dro.wire import otid
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.extended import (
    ElectionOption,
    ElectionOptions,
    RemoteAddress,
    RemoteContextRecord,
    RemoteInstance,
    RemoteName,
    RemoteOriginatingDomain,
)
from dro.wire.lbmr.options import Functionality
from dro.wire.lbmr.queue_records import (
    ElectionCall,
    ElectionVote,
    InstanceList,
    Qir,
    QueueBlock,
    QueueGroup,
    QueueInstance,
    ResumeOperation,
)
from dro.wire.lbmr.tnwg import TnwgContextFlag, TnwgDomain, TnwgName
from dro.wire.source_string import IpcAddress, LbtrmAddress, LbtruAddress, RdmaAddress, SmxAddress, TcpAddress
from tests.builders.tir_options import tir_options

pytestmark = pytest.mark.tshark

OPTIONS: Final = lbmr.standard_options(bytes.fromhex("a1b2c3d4e5f60718"), lbmr.SenderType.DRO, 2)
RM: Final = LbtrmAddress(0x0A000001, 0xE00A0A0A, 0x12345678, 14400, 12090)
TCP: Final = TcpAddress(0x0A000001, 14371, 0x0A1B2C3D)
PROXY: Final = tir_options(
    otid=otid.encode(RM, 7, 8, 9),
    cost=lbmr.Cost(2, 11),
    domain_id=1,
    context_instance=b"\1\2\3\4\5\6\7\x08",
    extended=lbmr.ExtendedFunctionality(14391, 0x0A000001, Functionality.LATE_JOIN),
    late_join=lbmr.LateJoin(14391, 0x0A000001, 5, 6, 7),
)
QUEUE: Final = (bytes(range(20)), 1, 2, 0x0A000001, 3, 4, 5)
NOT_COMPARED: Final = (
    "lbmr.tqr",  # A6: the dissector's pattern begins with the type byte; the label is no field of its own
    "lbmr.topt.domain_id.flags",  # A7: shown as 8 bits
)

BODIES: Final[dict[str, lbmr.Body]] = {
    "keepalive": lbmr.Queries(),
    "queries": lbmr.Queries((b"A", b"29west.example.multi.0", b"x" * 255)),
    "wildcard": lbmr.WildcardQueries((lbmr.WildcardTqr(lbmr.PatternType.PCRE, rb"^A\.[01]$"),)),
    "proxy source": lbmr.Queries((), (lbmr.Tir(b"AAA", RM, 60, 7, PROXY), lbmr.Tir(b"BBB", TCP, 60, 8, PROXY))),
    "final": lbmr.Queries((), (lbmr.Tir(b"AAA", RM, 60, 7, PROXY.replacing(lbmr.Cost(2, lbmr.FINAL_COST))),)),
    "transports": lbmr.Queries(
        (b"Q",),
        (
            lbmr.Tir(b"ru", LbtruAddress(1, 2, 3), 60, 1),
            lbmr.Tir(b"ru0", LbtruAddress(1, 2), 60, 1),
            lbmr.Tir(b"tcp0", TcpAddress(1, 2), 60, 1),
            lbmr.Tir(b"ipc", IpcAddress(1, 2, 3), 60, 1, lbmr.TirOptions()),
            lbmr.Tir(b"smx", SmxAddress(1, 2, 3), 60, 1),
            lbmr.Tir(b"rdma", RdmaAddress(1, 2, 3), 60, 1),
        ),
    ),
    "stores": lbmr.Queries(
        (),
        (
            lbmr.Tir(
                b"S",
                TCP,
                60,
                1,
                lbmr.TirOptions(
                    (
                        lbmr.Ume(1, 2, 3, 4, 5, 6, 7, 8, option_flags=0x7800),
                        lbmr.UmeStore(0, 1, 2, 3, 4),
                        lbmr.UmeStore(1, 1, 2, 3, 4),
                        lbmr.UmeStoreGroup(0, 2),
                        lbmr.StoreContextInstance(0, b"abcdefgh"),
                        lbmr.QueueContextInstance(1, b"abcdefgh"),
                        lbmr.UmqRcrIndex(5),
                        lbmr.UmqQueueInfo(b"Queue"),
                        lbmr.Ulb(1, 2, 3, 4, 5),
                    )
                ),
            ),
        ),
    ),
    "receiver alive": lbmr.ReceiverAlive(),
    "source alive": lbmr.SourceAlive(),
    "management": lbmr.TopicManagement(
        (
            lbmr.Tmr(lbmr.TmrType.USE, 0, b"A"),
            lbmr.Tmr(lbmr.TmrType.USE, lbmr.TmrFlag.RESPONSE | lbmr.TmrFlag.PCRE, b"^A"),
            lbmr.Tmr(lbmr.TmrType.LEAVE, 0, b"B"),
        )
    ),
    "queue resolution": lbmr.QueueResolution(
        (b"Q",), (Qir(b"Q", b"T", 1, 2, 3, (QueueGroup(0, 1),), (QueueBlock(1, 2, 3, 4),)),)
    ),
    "election": lbmr.ProxySourceElection(
        1, 2, 3, 4, 5, 6, 7, b"topic", 0, ElectionOptions((ElectionOption(0, b"abcdefgh"),))
    ),
    "context query": lbmr.ContextInfo(0, lbmr.ContextFlag.QUERY, name=b"storeA"),
    "context answer": lbmr.ContextInfo(1, lbmr.ContextFlag.ADDRESS | lbmr.ContextFlag.PROXY, 14391, 0x0A000001),
    "request": lbmr.TopicResolutionRequest(lbmr.RequestFlag.QUERY | lbmr.RequestFlag.DRO_REMOTE_INTEREST),
    "interest": lbmr.TnwgInterest(
        (
            lbmr.InterestRecord(2, b"AAA"),
            lbmr.InterestRecord(3, b"^A", lbmr.InterestFlag.PATTERN, lbmr.PatternType.PCRE),
            lbmr.InterestRecord(2, b"B", lbmr.InterestFlag.CANCEL),
        )
    ),
    "tnwg context": lbmr.TnwgContextInfo(1, TnwgContextFlag.QUERY, 0, (TnwgDomain(3),)),
    "tnwg request": lbmr.TnwgTopicResolutionRequest((TnwgName(b"dro"),)),
    "route": lbmr.RemoteDomainRoute(0x0A080001, 14391, 0, (1, 2, 300)),
    "remote context": lbmr.RemoteContextInfo(
        (
            RemoteContextRecord((RemoteName(b"storeA"),), 0x8000),
            RemoteContextRecord(
                (
                    RemoteAddress(3, 0x0A000001, 14567),
                    RemoteInstance(b"abcdefgh"),
                    RemoteOriginatingDomain(3),
                )
            ),
        )
    ),
}
WITHOUT_PACKET_OPTIONS: Final[dict[str, lbmr.Body]] = {  # A5: the dissector looks for them at the wrong place
    "instances": lbmr.QueueManagement(
        0x70, 1, *QUEUE, 0, InstanceList(7, (QueueInstance(1, 2, 3, 4, 0x8000),)), queue=b"Queue"
    ),
    "join": lbmr.QueueManagement(0x40, 2, *QUEUE, queue=b"Queue"),
    "rejection": lbmr.QueueManagement(0, 3, *QUEUE, 9),
    "call": lbmr.QueueManagement(0, 5, *QUEUE, 0, ElectionCall(4)),
    "vote": lbmr.QueueManagement(0, 6, *QUEUE, 50, ElectionVote(4, 5)),
    "resume": lbmr.QueueManagement(0, 8, *QUEUE, 0, ResumeOperation(4)),
}


def frame(payload: bytes) -> bytes:
    """An Ethernet frame with a UDP datagram to the default group and port of topic resolution."""
    udp = struct.pack("!HHHH", 40000, 12965, 8 + len(payload), 0) + payload
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 16, 17, 0, b"\x0a\0\0\1", b"\xe0\x09\x0a\x0b")
    return b"\x01\x00\x5e\x09\x0a\x0b" + b"\x02\0\0\0\0\1" + b"\x08\0" + ip + udp


def tshark_fields(path: Path) -> list[dict[str, list[str]]]:
    """Fields of every packet with their printed values; `_ws.` names stand for what is wrong with one."""
    command = ["tshark", "-r", str(path), "-d", "udp.port==12965,lbmr", "-T", "pdml"]
    text = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    packets = []
    for packet in ET.fromstring(text).iter("packet"):
        values: dict[str, list[str]] = {}
        for field in packet.iter("field"):
            name, shown = field.get("name", ""), field.get("show", "")
            if name.startswith(("lbmr.", "_ws.")):
                values.setdefault(name, []).append(shown)
        packets.append(values)
    return packets


def test_the_standard_dissector_reads_what_we_write(tmp_path: Path) -> None:
    cases = {name: lbmr.encode(lbmr.Packet(1, OPTIONS, body)) for name, body in BODIES.items()}
    cases |= {name: lbmr.encode(lbmr.Packet(1, None, body)) for name, body in WITHOUT_PACKET_OPTIONS.items()}
    path = tmp_path / "ours.pcap"
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for payload in cases.values():
            raw = frame(payload)
            file.write(struct.pack("<IIII", 1, 0, len(raw), len(raw)) + raw)
    shown = tshark_fields(path)
    assert len(shown) == len(cases)
    for (name, payload), theirs in zip(cases.items(), shown, strict=True):
        assert not [field for field in theirs if field.startswith("_ws.")], name
        out = FieldList()
        lbmr_fields(payload, out)
        ours = {field: [text] if isinstance(text, str) else text for field, text in out.as_dict().items()}
        for field in NOT_COMPARED:
            ours.pop(field, None)
        assert {field: comparable(theirs.get(field, [])) for field in ours} == {
            field: comparable(texts) for field, texts in ours.items()
        }, name


def comparable(texts: list[str]) -> list[str]:
    """PDML writes flags as True or False in some versions, and bytes without colons."""
    return [{"True": "1", "False": "0"}.get(text, text).replace(":", "") for text in texts]

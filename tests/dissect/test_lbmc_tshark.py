"""Blocks and packets that no vector holds, printed by us and by the standard dissectors."""

from __future__ import annotations

import random
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest

from dro.dissect import packet as dissect
from dro.dissect.lbmc_tables import VARIANTS
from dro.wire import lbtrm, lbtru
from dro.wire.lbmc.codes import BlockType
from dro.wire.transport import TransportOption
from tests.builders import pcapfile

pytestmark = pytest.mark.tshark

Values = dict[str, str | list[str]]

MADE_BY_THE_DISSECTOR: Final = ("lbtrm.transport", "lbtrm.channel", "lbtru.channel", "lbtru.analysis", "lbmc.analysis")
NOT_COMPARED: Final = {
    BlockType.APPHDR_CHAIN: "the dissector takes the type of an element from the element itself",
    BlockType.UMQ_QMGMT: "the dissector prints the fields of topic resolution here",
    BlockType.TGIDX: "no layout is known",
}
TEXTS: Final = {  # PDML writes control characters in forms of its own
    BlockType.TOPICNAME,
    BlockType.UME_STORENAME,
    BlockType.GATEWAY_NAME,
    BlockType.CTXINFO,
    BlockType.AUTHENTICATION,
    BlockType.EXTOPT,
    BlockType.UMQ_CMD_RESP,
    BlockType.UMQ_IDX_CMD_RESP,
}
SIZES: Final = {BlockType.BATCH: 4, BlockType.UME_STOREID: 4, BlockType.UME_CAPABILITY: 4, BlockType.UME_PROXY_SRC: 4}


def shown(payloads: list[bytes], path: Path, rule: str, port: int) -> list[tuple[Values, bool]]:
    """What tshark prints of each datagram, and whether it calls the datagram malformed."""
    frames = [pcapfile.udp("10.1.1.10", 14380, "224.10.10.10", port, payload) for payload in payloads]
    path.write_bytes(pcapfile.pcap(frames))
    command = ["tshark", "-n", "-r", str(path), "-d", rule, "-T", "pdml"]
    text = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    packets: list[tuple[Values, bool]] = []
    for packet in ET.fromstring(text).iter("packet"):
        texts: dict[str, list[str]] = {}
        for field in packet.iter("field"):
            name, value = field.get("name", ""), field.get("show", "")
            is_label = value == "" and not name.endswith("msgsel")
            wanted = name.startswith(("lbmc.", "lbtrm.", "lbtru.", "data.data"))
            if wanted and not is_label and not name.startswith(MADE_BY_THE_DISSECTOR):
                texts.setdefault(name, []).append(comparable(value))
        malformed = any(proto.get("name") == "_ws.malformed" for proto in packet.iter("proto"))
        packets.append(({name: found[0] if len(found) == 1 else found for name, found in texts.items()}, malformed))
    return packets


def comparable(text: str) -> str:
    return {"True": "1", "False": "0"}.get(text, text)


def message_of(blocks: list[tuple[int, bytes]], payload: bytes) -> bytes:
    """A data message, or a control message when there is no payload."""
    follow = [code for code, _ in blocks] + [0x00 if payload else 0xFF]
    chain = b"".join(bytes((after, 2 + len(body))) + body for (_, body), after in zip(blocks, follow[1:], strict=True))
    numbers = bytes.fromhex("00000007 00000009") if payload else b""
    head = bytes((0x00 if payload else 0x08, follow[0])) + (4 + len(numbers + chain + payload)).to_bytes(2, "big")
    return head + numbers + chain + payload


def random_body(code: BlockType, rng: random.Random) -> bytes:
    """A body that is long enough for any layout, with counts and lengths that hold together."""
    body = bytearray(rng.randbytes(SIZES.get(code, rng.choice([62, 80, 200])) - 2))
    if code in TEXTS:
        body[2:] = bytes(byte if 0x20 <= byte != 0x7F else 0x41 for byte in body[2:])
    match code:
        case BlockType.TOPIC_MD_INTEREST | BlockType.PATTERN_MD_INTEREST:
            body[2:4] = rng.randrange(10).to_bytes(2, "big")
        case BlockType.AUTHENTICATION:
            body[1] = rng.randrange(1, 5)
            lengths = 1 if body[1] == 1 else 4
            body[2 : 2 + lengths] = bytes(rng.randrange(1, 9) for _ in range(lengths))
        case BlockType.EXTOPT:
            body[0] &= 0xDF
            body[2:6] = rng.choice([bytes.fromhex("01010000"), bytes.fromhex("f0010000")])
        case BlockType.UMQ_ACK:
            body[0] &= 0xF1
    if code in VARIANTS:
        body[1] = rng.choice(sorted(VARIANTS[code]))
    if (code, body[1]) == (BlockType.UMQ_CMD, 2):
        body[28] = rng.randrange(2)
    if (code, body[1]) == (BlockType.UMQ_CMD_RESP, 1):
        body[18:] = bytes.fromhex("00000002") + 2 * bytes.fromhex(
            "00000005 0002 03 09 414243 0001 0007 02 aabbcc 5a59 00000033 0002 0008 01 ddeeff 5a 0000000100000002"
        )
    return bytes(body)


def payload_for(code: BlockType) -> bytes:
    """In a data message an answer to a queue command has a longer form, which we do not print."""
    return b"" if code is BlockType.UMQ_CMD_RESP else b"user data"


def is_indexed(code: BlockType, body: bytes) -> bool:
    """Index commands: the dissector takes the length of the index from the block, not from the length byte."""
    return code in (BlockType.UMQ_IDX_CMD, BlockType.UMQ_IDX_CMD_RESP) and body[1] in (5, 6, 7, 8)


def test_every_block_prints_as_the_standard_dissector_prints_it(tmp_path: Path) -> None:
    rng = random.Random(12)
    bodies = [(code, random_body(code, rng)) for code in BlockType if code not in NOT_COMPARED for _ in range(12)]
    kept = [(code, body) for code, body in bodies if not is_indexed(code, body)]
    datagrams = [
        lbtrm.encode(lbtrm.Data(14390, 1, i, 0, payload=message_of([(code, body)], payload_for(code))))
        for i, (code, body) in enumerate(kept)
    ]
    theirs = shown(datagrams, tmp_path / "blocks.pcap", "udp.port==14400,lbtrm", 14400)
    assert len(theirs) == len(datagrams) > 800
    for (code, body), datagram, (expected, malformed) in zip(kept, datagrams, theirs, strict=True):
        ours = dissect.fields("lbtrm", datagram)
        assert ours.values == expected, (code.name, body.hex())
        assert (ours.error is not None) == malformed, (code.name, body.hex(), ours.error)


def test_an_answer_with_an_index_prints_the_same_when_its_length_is_right(tmp_path: Path) -> None:
    datagrams = []
    for i, (kind, numeric) in enumerate(((7, 0), (7, 1), (8, 0), (8, 1))):
        index = (5).to_bytes(8, "big") if numeric else b"my index"
        part = bytes.fromhex("0000000100000002") + numeric.to_bytes(4, "big") + bytes((0, 3, len(index), 0)) + index
        body = bytes((0, kind)) + bytes(range(16)) + part
        payload = message_of([(BlockType.UMQ_IDX_CMD_RESP, body)], b"")
        datagrams.append(lbtrm.encode(lbtrm.Data(14390, 1, i, 0, payload=payload)))
    theirs = shown(datagrams, tmp_path / "index.pcap", "udp.port==14400,lbtrm", 14400)
    assert [dissect.fields("lbtrm", d).values for d in datagrams] == [values for values, _ in theirs]
    assert not any(malformed for _, malformed in theirs)


def test_what_we_encode_reads_the_same_elsewhere(tmp_path: Path) -> None:
    rm: list[lbtrm.Packet] = [
        lbtrm.Data(14390, 2, 7, 1, 0xA0, payload=message_of([], b"x")),
        lbtrm.Data(14390, 2, 8, 1, options=(TransportOption(7, b"abc"),), payload=message_of([], b"x")),
        lbtrm.SessionMessage(14390, 2, 1, 8, 0),
        lbtrm.Nak(14390, 2, tuple(range(2045))),
        lbtrm.Nak(14390, 2, ()),
        lbtrm.Ncf(14390, 2, 0, 3, 1, (1, 2, 3)),
    ]
    ru: list[lbtru.Packet] = [
        lbtru.Data(1, 0, 0x4000, message_of([], b"x"), options=(lbtru.sid_option(5), lbtru.cid_option(6))),
        lbtru.SessionMessage(1, 2, 3, lbtru.FLAG_SYN, options=(lbtru.sid_option(5),)),
        lbtru.Nak((1, 2, 3), options=(lbtru.cid_option(6),)),
        lbtru.Ncf(0, 2, 0, (9,)),
        lbtru.Ack(7, options=(lbtru.sid_option(5),)),
        lbtru.ConnectRequest(options=(lbtru.sid_option(5), lbtru.cid_option(6))),
        lbtru.Reset(),
    ]
    rm_data, ru_data = [lbtrm.encode(packet) for packet in rm], [lbtru.encode(packet) for packet in ru]
    cases = (
        ("lbtrm", rm_data, shown(rm_data, tmp_path / "rm.pcap", "udp.port==14400,lbtrm", 14400)),
        ("lbtru", ru_data, shown(ru_data, tmp_path / "ru.pcap", "udp.port==14360,lbtru", 14360)),
    )
    for proto, datagrams, theirs in cases:
        assert len(theirs) == len(datagrams)
        for datagram, (expected, malformed) in zip(datagrams, theirs, strict=True):
            assert not malformed
            assert dissect.fields(proto, datagram).values == expected

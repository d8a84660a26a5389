"""`umdump` as a user meets it: arguments in, JSON Lines or tables and an exit status out."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dro.tools.umdump import topic as umdump_topic
from dro.tools.umdump.main import main
from dro.tools.umdump.ports import rules_of
from dro.wire import lbtrm, lbtru
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.data_blocks import Frag, TopicName
from dro.wire.lbmc.properties import Property, PropertyType
from dro.wire.lbmc.properties import encode as encode_properties
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import IpcAddress, LbtrmAddress, LbtruAddress, TcpAddress, TransportAddress
from tests.builders.large_capture import RULE, write_capture
from tests.builders.lbmc_messages import data_message, properties_chain
from tests.builders.pcapfile import ACK, FIN, MAC, SYN, enhanced, interface, ip, ipv4, pcap, section, tcp, udp, udp_body
from tests.builders.tir_options import tir_options

GOLDEN = Path(__file__).parents[2] / "golden"
CAPTURE = GOLDEN / "captures" / "um-lbtrm-single-source.pcap"
VECTORS = [
    json.loads(line)
    for name in ("lbmr", "lbmc", "transports")
    for line in (GOLDEN / "vectors" / f"{name}.jsonl").read_text().splitlines()
]
SOURCE, RECEIVER, GROUP = "10.0.0.1", "10.0.0.2", "239.9.9.9"
TR = ("239.1.1.1", 12965)
SID = 0x11223344


class Tool:
    """Runs `umdump` in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self.err = ""
        self.out = ""

    def run(self, *arguments: str) -> int:
        try:
            status = main(arguments)
        except SystemExit as e:
            status = int(e.code or 0)
        self.out, self.err = self._capsys.readouterr()
        return status

    def file(self, frames: list[bytes], name: str = "test.pcap") -> str:
        path = self._folder / name
        path.write_bytes(pcap(frames))
        return str(path)

    def lines(self, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
        assert self.run(*arguments) == status, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def packets(self, frames: list[bytes], *arguments: str, status: int = 0) -> list[dict[str, Any]]:
        return self.lines(*arguments, self.file(frames), status=status)

    def summary(self, frames: list[bytes], *arguments: str, status: int = 0) -> dict[str, Any]:
        (summary,) = self.lines("--summary", "--json", *arguments, self.file(frames), status=status)
        return summary


@pytest.fixture
def tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(tmp_path, capsys)


def tir(topic: bytes, address: TransportAddress, index: int = 7) -> bytes:
    record = lbmr.Tir(topic, address, 60, index)
    return udp(SOURCE, 5000, *TR, lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((), (record,)))))


RM = LbtrmAddress(ip(SOURCE), ip(GROUP), SID, 20000, 20001)
TCP_ADDRESS = TcpAddress(ip(SOURCE), 30000, SID)


def message(sqn: int, payload: bytes, index: int = 7, blocks: tuple[AnyBlock, ...] = ()) -> bytes:
    return lbmc.encode(data_message(index, sqn, payload, blocks=blocks))


def rm_data(sqn: int, content: bytes, flags: int = 0x80) -> bytes:
    record = lbtrm.Data(20001, SID, sqn, 0, flags, 3, sqn % 8, content)
    return udp(SOURCE, 4000, GROUP, 20000, lbtrm.encode(record))


def nak(*sqns: int) -> bytes:
    return udp(RECEIVER, 4001, SOURCE, 20001, lbtrm.encode(lbtrm.Nak(20001, SID, sqns)))


# hex


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{v['proto']}-{v['name']}" for v in VECTORS])
def test_a_vector_given_as_hex_prints_the_expected_fields(tool: Tool, vector: dict[str, Any]) -> None:
    (found,) = tool.lines("--hex", vector["hex"], "--proto", vector["proto"], status=int("malformed" in vector))
    # frame.protocols and _ws.* come from the frame layer of the other decoder; not all vectors list data.len
    expect = {k: v for k, v in vector["expect"].items() if k != "frame.protocols" and not k.startswith("_ws.")}
    if "data.len" not in expect:
        found["fields"].pop("data.len", None)
    assert found["fields"] == expect
    assert ("error" in found) == ("malformed" in vector)


@pytest.mark.parametrize(
    "text", ["0001000041414100", "00:01:00:00:41:41:41:00", " 0001 0000 4141 4100\n", "0x00010000 0x41414100"]
)
def test_hex_may_be_written_with_separators(tool: Tool, text: str) -> None:
    (found,) = tool.lines("--hex", text, "--proto", "lbmr")
    assert found["fields"]["lbmr.tqr.name"] == "AAA"
    assert found["proto"] == "lbmr"


def test_malformed_hex_prints_one_object_with_the_reason_and_ends_with_1(tool: Tool) -> None:
    (found,) = tool.lines("--hex", "000200004141", "--proto", "lbmr", status=1)
    assert found["error"]
    (found,) = tool.lines("--hex", "", "--proto", "lbtrm", status=1)
    assert found["error"]


def test_a_block_that_must_be_known_is_an_error_after_everything_is_printed(tool: Tool) -> None:
    """Code 0x59 with and without its ignore bit, in a message before another one."""
    after = message(9, b"next").hex()
    for flags, error in (
        ("0000", "lbmc.block.0x59: is not known, and its ignore bit is clear at byte 16"),
        ("8000", None),
    ):
        text = f"000200190000000100000001590400010008{flags}0000000061"
        (found,) = tool.lines("--hex", text + after, "--proto", "lbmc", status=int(error is not None))
        assert found.get("error") == error
        assert found["fields"]["data.data"] == ["61", "6e:65:78:74"]


# arguments


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "nothing to read; give"),
        (["--hex", "0g", "--proto", "lbmr"], "not hex; give"),
        (["--hex", "00"], "needs --proto; add --proto lbmr|"),
        (["--hex", "00", "--proto", "lbmr", "file"], "one packet; leave out FILE"),
        (["--hex", "00", "--proto", "lbmr", "--two-pass"], "every option but --proto"),
        (["--json", "file"], "the form of --summary"),
        (["--proto", "lbmr", "--follow-topic", "t", "file"], "leave out --proto"),
        (["-c", "absent.cfg", "file"], "absent.cfg"),
        (["--proto", "ospf", "file"], "invalid choice"),
        (["--decode-as", "udp.port=1,lbmr", "file"], "is no rule; write udp.port=="),
        (["--decode-as", "udp.port==70000,lbmr", "file"], "ports are 1 to 65535"),
        (["--decode-as", "udp.port==20-10,lbmr", "file"], "ports are 1 to 65535"),
        (["--decode-as", "udp.port==1,lbttcp", "file"], "does not run on udp; use one of lbmr"),
        (["--decode-as", "tcp.port==1,lbmr", "file"], "does not run on tcp; use one of lbttcp"),
        (["--two-pass", "-"], "twice; save it"),
        (["-", "-"], "only once; give - once"),
        (["--summary", "--follow-topic", "x", "file"], "exclude each other; run"),
        (["--nonsense"], "try umdump --help"),
    ],
)
def test_a_wrong_argument_is_answered_in_one_line_with_a_remedy(tool: Tool, arguments: list[str], text: str) -> None:
    assert tool.run(*arguments) == 2
    assert tool.err.startswith("umdump: ")
    assert tool.err.count("\n") == 1
    assert text in tool.err
    assert tool.out == ""


def test_a_file_that_cannot_be_opened_is_named_and_the_others_are_read(tool: Tool) -> None:
    good = tool.file([tir(b"T", RM)])
    (found,) = tool.lines("/does/not/exist", good, status=1)
    assert found["file"] == good
    assert "/does/not/exist: No such file" in tool.err


# the real capture


def test_the_summary_of_the_real_capture_has_its_published_counts(tool: Tool) -> None:
    (summary,) = tool.lines("--summary", "--json", str(CAPTURE))
    assert (summary["frames"], summary["malformed"], summary["other"]) == (6012, 0, {"igmp": 5})
    resolution = summary["protocols"]["lbmr"]
    assert resolution["packets"] == 122
    assert resolution["shapes"] == {"1 TQR": 41, "2 TQR": 1, "1 WC-TQR": 18, "1 TIR": 62}
    multicast = summary["protocols"]["lbtrm"]
    assert multicast["types"] == {"data": 5000, "retransmission": 541, "session message": 4, "NAK": 295, "NCF": 45}
    assert multicast["retransmitted_sqns"] == 487
    assert (multicast["nak_entries"], multicast["nak_sqns"]) == (598, 487)
    assert (multicast["ncf_entries"], multicast["ncf_reasons"]) == (54, {"1 (NAK ignored)": 54})
    (session,) = summary["sessions"]
    assert session["source"] == "LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400"
    assert (session["first_sqn"], session["last_sqn"], session["missing"]) == (0, 4999, 0)
    topic, unanswered = summary["topics"]
    assert (topic["topic"], topic["queries"], topic["advertisements"]) == ("29west.example.multi.0", 42, 62)
    (source,) = topic["sources"]
    assert source["source"] == "LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400[1353006825]"
    assert (source["messages"], source["repeats"], source["payload_bytes"]) == (5541, 541, 125000)
    assert (unanswered["topic"], unanswered["sources"]) == ("29west.example.multi.1", [])
    assert summary["patterns"] == [{"pattern": r"^29west\.example\.multi\.[01]$", "queries": 18}]


def test_the_summary_for_people_holds_the_same_numbers(tool: Tool) -> None:
    assert tool.run("--summary", str(CAPTURE)) == 0
    for number, name in [("5000", "data"), ("541", "retransmission"), ("598", "NAK entries"), ("62", "  of 1 TIR")]:
        assert any(line.split(maxsplit=1) == [number, name.strip()] for line in tool.out.splitlines()), name
    assert "29west.example.multi.0" in tool.out


def test_following_the_topic_of_the_real_capture_gives_each_message_once(tool: Tool) -> None:
    found = tool.lines("--follow-topic", "29west.example.multi.0", str(CAPTURE))
    assert [item["sqn"] for item in found] == list(range(5000))
    assert [item["text"] for item in found] == [f"message {n}" for n in range(5000)]
    assert {item["length"] for item in found} == {25}
    digest = hashlib.sha256(b"".join(bytes.fromhex(item["hex"]) for item in found)).hexdigest()
    assert digest == "222e681e4ed4df610cbb09a7bc5117279486c5d9228b32a6752d0f2d19c68e81"
    assert {item["source"] for item in found} == {"LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400[1353006825]"}


def test_every_um_packet_of_the_real_capture_is_shown_in_order(tool: Tool) -> None:
    found = tool.lines(str(CAPTURE))
    assert len(found) == 6012 - 5
    frames = [item["frame"] for item in found]
    assert frames == sorted(frames)
    first_tir = next(item for item in found if "lbmr.tir.name" in item["fields"])
    assert first_tir["frame"] == 7
    assert first_tir["src"] == "10.29.4.121:42180"
    assert first_tir["dst"] == "239.101.3.1:12965"
    assert first_tir["time"] == "2022-05-23T20:11:19.987218000Z"
    assert not any("error" in item for item in found)


def test_only_one_protocol_is_shown_when_asked_for(tool: Tool) -> None:
    found = tool.lines("--proto", "lbmr", str(CAPTURE))
    assert len(found) == 122
    assert {item["proto"] for item in found} == {"lbmr"}


# recognition


def test_default_ports_are_recognised(tool: Tool) -> None:
    data = lbtrm.encode(lbtrm.Data(1, 2, 3, 0))
    lost = lbtrm.encode(lbtrm.Nak(1, 2, (3,)))
    unicast = lbtru.encode(lbtru.Data(1, 0))
    query = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((b"T",))))
    frames = [
        udp(SOURCE, 5, "224.9.10.11", 12965, query),
        udp(SOURCE, 14402, RECEIVER, 15380, query),
        udp(RECEIVER, 15380, SOURCE, 14406, query),
        udp(SOURCE, 5, "224.10.10.14", 14400, data),
        udp(SOURCE, 5, "224.10.10.21", 14401, data),
        udp(RECEIVER, 5, SOURCE, 14390, lost),
        udp(SOURCE, 14380, RECEIVER, 14360, unicast),
        udp(RECEIVER, 14379, SOURCE, 14389, lbtru.encode(lbtru.Ack(1))),
        udp(SOURCE, 5, "224.10.10.15", 14400, data),
        udp(SOURCE, 14380, RECEIVER, 9999, unicast),
        udp(SOURCE, 53, RECEIVER, 4444, b"dns"),
    ]
    found = tool.packets(frames)
    assert [item["proto"] for item in found] == ["lbmr"] * 3 + ["lbtrm"] * 3 + ["lbtru"] * 2
    assert tool.summary(frames)["other"] == {"udp": 3}


def test_ports_named_by_a_rule_are_recognised_before_anything_else(tool: Tool) -> None:
    frames = [
        udp(SOURCE, 5, RECEIVER, 777, lbtrm.encode(lbtrm.Data(1, 2, 3, 0))),
        udp(SOURCE, 778, RECEIVER, 9, message(1, b"x")),
        udp(SOURCE, 5, "224.9.10.11", 12965, message(1, b"x")),
    ]
    rules = ["--decode-as", "udp.port==777,lbtrm", "--decode-as", "udp.port==778-800,lbmc"]
    rules += ["--decode-as", "udp.port==12965,lbmc"]
    assert [item["proto"] for item in tool.packets(frames, *rules)] == ["lbtrm", "lbmc", "lbmc"]


def test_sessions_are_followed_from_their_advertisement_on(tool: Tool) -> None:
    early, late = rm_data(0, message(0, b"a")), rm_data(1, message(1, b"b"))
    frames = [early, nak(9), tir(b"T", RM), late, nak(9)]
    assert [(item["frame"], item["proto"]) for item in tool.packets(frames)] == [
        (3, "lbmr"),
        (4, "lbtrm"),
        (5, "lbtrm"),
    ]


def test_two_passes_recognise_what_came_before_the_advertisement(tool: Tool) -> None:
    frames = [rm_data(0, message(0, b"a")), tir(b"T", RM)]
    assert [item["proto"] for item in tool.packets(frames, "--two-pass")] == ["lbtrm", "lbmr"]
    (found,) = tool.packets(frames, "--two-pass", "--follow-topic", "T")
    assert found["text"] == "a"


def test_lbtru_and_tcp_sessions_are_followed(tool: Tool) -> None:
    unicast = LbtruAddress(ip(SOURCE), 21000, SID)
    data = lbtru.Data(0, 0, payload=message(5, b"hello", 8), options=(lbtru.sid_option(SID),))
    frames = [
        tir(b"U", unicast, 8),
        udp(SOURCE, 21000, RECEIVER, 41000, lbtru.encode(data)),
        udp(RECEIVER, 41000, SOURCE, 21000, lbtru.encode(lbtru.Nak((4, 5)))),
        tir(b"T", TCP_ADDRESS, 7),
        tcp(SOURCE, 30000, RECEIVER, 40000, 1, message(3, b"there")),
    ]
    assert [item["proto"] for item in tool.packets(frames)] == ["lbmr", "lbtru", "lbtru", "lbmr", "lbttcp"]
    (found,) = tool.packets(frames, "--follow-topic", "U")
    assert (found["source"], found["sqn"], found["text"]) == (f"LBT-RU:{SOURCE}:21000:{SID:08x}[8]", 5, "hello")
    (found,) = tool.packets(frames, "--follow-topic", "T")
    assert (found["source"], found["sqn"], found["text"]) == (f"TCP:{SOURCE}:30000:{SID:08x}[7]", 3, "there")
    summary = tool.summary(frames)
    assert summary["protocols"]["lbtru"]["nak_sqns"] == 2
    session = next(item for item in summary["sessions"] if item["proto"] == "lbtru")
    assert (session["client"], session["data"], session["naks"]) == (f"{RECEIVER}:41000", 1, 1)


RU_VECTORS = {v["name"]: bytes.fromhex(v["hex"]) for v in VECTORS if v["proto"] == "lbtru"}
RU_SID, RU_INDEX = 0x263170A3, 0x5BC84E82  # of the vectors


def test_an_lbtru_session_is_followed_by_client_from_connect_request_to_reset(tool: Tool) -> None:
    ports = 21000, 41000  # advertised, and an ephemeral one

    def sent(*names: str) -> list[bytes]:
        return [udp(SOURCE, ports[0], RECEIVER, ports[1], RU_VECTORS[name]) for name in names]

    def answered(*names: str, port: int = ports[1]) -> list[bytes]:
        return [udp(RECEIVER, port, SOURCE, ports[0], RU_VECTORS[name]) for name in names]

    frames = [
        tir(b"U", LbtruAddress(ip(SOURCE), ports[0], RU_SID), RU_INDEX),
        *answered("ru_creq_syn_sid_cid", "ru_creq_syn_no_options"),
        *sent("ru_sm_syn_sid_cid"),
        *answered("ru_ack_sid_cid", "ru_ack_no_options"),
        *sent("ru_data_sid", "ru_data_no_options", "ru_data_sid_ignore_flag_cid", "ru_data_batch"),  # sqns 0, 5, 6, 7
        *answered("ru_nak_three", "ru_nak_one"),  # 8, 9, 4294967294; 8
        *sent("ru_ncf_ignored", "ru_ncf_rx_delay", "ru_data_retransmission", "ru_sm_plain", "ru_rst_default"),
        *answered("ru_creq_syn_sid_cid", port=41001),
    ]
    assert {item["proto"] for item in tool.packets(frames)[1:]} == {"lbtru"}
    assert next(item["sqn"] for item in tool.packets(frames, "--follow-topic", "U")) == 0
    summary = tool.summary(frames)
    assert summary["malformed"] == 0
    first, second = summary["sessions"]
    assert first["source"] == second["source"] == f"LBT-RU:{SOURCE}:{ports[0]}:{RU_SID:08x}"
    assert (first["is_advertised"], first["client"], second["client"]) == (
        True,
        f"{RECEIVER}:41000",
        f"{RECEIVER}:41001",
    )
    counted = {
        "connect_requests": 2, "ACKs": 2, "resets": 1, "session_messages": 2, "data": 4, "retransmissions": 1,
        "retransmitted_sqns": 1, "naks": 2, "nak_entries": 4, "nak_sqns": 3, "ncfs": 2, "ncf_entries": 4,
    }  # fmt: skip
    assert {name: first[name] for name in counted} == counted
    assert first["missing"] == first["last_sqn"] + 1 - 5  # of the five that were seen
    assert (second["connect_requests"], second["data"]) == (1, 0)


def test_an_advertisement_of_lbtipc_shows_host_session_and_transport_id(tool: Tool) -> None:
    (found,) = tool.packets([tir(b"I", IpcAddress(0x0A0B0C0D, 0x1A2B3C4, 20003))])
    shown = {name.rpartition("lbtipc.")[2]: value for name, value in found["fields"].items() if "lbtipc." in name}
    assert shown == {"host_id": "0x0a0b0c0d", "session_id": "0x01a2b3c4", "xport_id": "0x4e23"}
    assert tool.summary([tir(b"I", IpcAddress(1, 2, 3))])["topics"][0]["advertisements"] == 1


def test_the_request_port_of_an_advertisement_is_recognised(tool: Tool) -> None:
    options = tir_options(extended=lbmr.ExtendedFunctionality(33333, ip(SOURCE)))
    record = lbmr.Tir(b"T", RM, 60, 7, options)
    frames = [
        tcp(RECEIVER, 50000, SOURCE, 33333, 1, message(0, b"early")),
        udp(SOURCE, 5000, *TR, lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((), (record,))))),
        tcp(RECEIVER, 50001, SOURCE, 33333, 1, message(0, b"late")),
    ]
    assert [item["frame"] for item in tool.packets(frames)] == [2, 3]


# malformed packets


def test_a_malformed_packet_is_shown_with_its_reason_and_the_rest_goes_on(tool: Tool) -> None:
    frames = [
        tir(b"T", RM),
        rm_data(0, message(0, b"a")[:-4]),
        udp(SOURCE, 5, *TR, b"\x00"),
        rm_data(1, message(1, b"b")),
    ]
    found = tool.packets(frames, status=1)
    assert [("error" in item) for item in found] == [False, True, True, False]
    assert found[1]["fields"]["lbtrm.data.sqn"] == "0x00000000"
    summary = tool.summary(frames, status=1)
    assert summary["malformed"] == 2
    assert [item["frame"] for item in summary["errors"]] == [2, 3]
    assert [item["text"] for item in tool.packets(frames, "--follow-topic", "T", status=1)] == ["b"]


def test_summary_and_packets_agree_on_what_is_malformed(tool: Tool) -> None:
    frames = []
    for vector in VECTORS:
        data = bytes.fromhex(vector["hex"])
        if vector["proto"] in ("lbmr", "lbmc", "lbtrm", "lbtru"):
            port = {"lbmr": 1001, "lbmc": 1002, "lbtrm": 1003, "lbtru": 1004}[vector["proto"]]
            frames += [udp(SOURCE, 5, RECEIVER, port, data), udp(SOURCE, 5, RECEIVER, port, data[:-2])]
    rules = [f"--decode-as=udp.port=={1001 + n},{proto}" for n, proto in enumerate(["lbmr", "lbmc", "lbtrm", "lbtru"])]
    found = tool.packets(frames, *rules, status=1)
    assert len(found) == len(frames)
    assert tool.summary(frames, *rules, status=1)["malformed"] == sum("error" in item for item in found)


def test_a_packet_cut_by_the_capture_is_not_called_malformed(tool: Tool, tmp_path: Path) -> None:
    whole = rm_data(0, message(0, bytes(500)))
    path = tmp_path / "cut.pcapng"
    cut = enhanced(whole[:80])
    cut = cut[:24] + len(whole).to_bytes(4, "little") + cut[28:]
    path.write_bytes(section() + interface() + enhanced(tir(b"T", RM)) + cut)
    _, found = tool.lines(str(path))
    assert found["cut"] == len(whole) - 80
    assert "error" not in found
    assert tool.run("--summary", "--json", str(path)) == 0
    assert json.loads(tool.out)["cut_frames"] == 1


@pytest.mark.parametrize("arguments", [[], ["--summary", "--json"], ["--follow-topic", "T"]])
def test_a_truncated_file_is_reported_after_what_could_be_read(
    tool: Tool, tmp_path: Path, arguments: list[str]
) -> None:
    data = pcap([tir(b"T", RM), rm_data(0, message(0, b"a")), rm_data(1, message(1, b"b"))])
    path = tmp_path / "short.pcap"
    path.write_bytes(data[:-3])
    found = tool.lines(*arguments, str(path), status=1)
    assert found[-1]["frames" if arguments and arguments[0] == "--summary" else "frame"] == 2
    assert tool.err.count("\n") == 1
    assert f"at byte {len(data) - len(rm_data(1, message(1, b'b')))}" in tool.err


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from([b"", pcap([])[:24], section() + interface()]), st.binary(max_size=200))
def test_arbitrary_bytes_as_a_file_never_crash(tool: Tool, tmp_path: Path, head: bytes, tail: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(head + tail)
    for arguments in ([], ["--summary"], ["--follow-topic", "T"]):
        assert tool.run(*arguments, str(path)) in (0, 1)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([(12965, GROUP), (20000, GROUP), (20001, SOURCE), (14360, RECEIVER)]),
            st.one_of(st.binary(max_size=60), st.sampled_from(VECTORS).map(lambda v: bytes.fromhex(v["hex"]))),
        ),
        max_size=8,
    ),
    st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=40), st.integers(0, 31)), max_size=8),
)
def test_arbitrary_payloads_never_crash_and_all_modes_agree(
    tool: Tool, datagrams: list[tuple[tuple[int, str], bytes]], stream: list[tuple[int, bytes, int]]
) -> None:
    frames = [tir(b"T", RM), tir(b"T", TCP_ADDRESS)]
    frames += [udp(SOURCE, 14380, host, port, data) for (port, host), data in datagrams]
    frames += [tcp(SOURCE, 30000, RECEIVER, 40000, seq, data, flags) for seq, data, flags in stream]
    path = tool.file(frames)
    status = tool.run(path)
    bad = sum("error" in json.loads(line) for line in tool.out.splitlines())
    assert status == (1 if bad else 0)
    assert tool.run("--summary", "--json", path) == status
    assert json.loads(tool.out)["malformed"] == bad
    assert tool.run("--follow-topic", "T", path) == status
    assert tool.run("--summary", path) == status


# TCP


def connection(*segments: tuple[int, bytes], isn: int = 1000) -> list[bytes]:
    """A source's side of a connection, from its SYN on; offsets count from the first byte."""
    out = [tcp(SOURCE, 30000, RECEIVER, 40000, isn, flags=SYN | ACK)]
    return out + [tcp(SOURCE, 30000, RECEIVER, 40000, isn + 1 + at, data) for at, data in segments]


THREE = [message(n, f"message {n}".encode()) for n in range(3)]
RUN = b"".join(THREE)


def data_of(found: list[dict[str, Any]]) -> list[str]:
    """User data of all packets, message by message."""
    out: list[str] = []
    for item in found:
        value = item["fields"].get("data.data", []) if item["proto"] == "lbttcp" else []
        out += [bytes.fromhex(v.replace(":", "")).decode() for v in ([value] if isinstance(value, str) else value)]
    return out


EXPECTED = ["message 0", "message 1", "message 2"]


@pytest.mark.parametrize(
    "segments",
    [
        [(0, RUN)],
        [(at, RUN[at : at + 1]) for at in range(len(RUN))],
        [(0, RUN[:10]), (10, RUN[10:30]), (30, RUN[30:])],
        [(30, RUN[30:]), (0, RUN[:10]), (10, RUN[10:30])],
        [(0, RUN[:20]), (0, RUN[:20]), (10, RUN[10:40]), (5, RUN[5:9]), (30, RUN[30:])],
    ],
    ids=["one", "bytes", "split", "reordered", "overlapping"],
)
def test_tcp_is_reassembled_however_it_came(tool: Tool, segments: list[tuple[int, bytes]]) -> None:
    frames = [tir(b"T", TCP_ADDRESS), *connection(*segments)]
    assert data_of(tool.packets(frames)) == EXPECTED
    assert [item["text"] for item in tool.packets(frames, "--follow-topic", "T")] == EXPECTED
    assert tool.summary(frames)["protocols"]["lbttcp"]["types"] == {"messages": 3}


def test_missing_tcp_bytes_cost_the_messages_they_were_in_and_are_counted(tool: Tool) -> None:
    first = len(THREE[0])
    frames = [tir(b"T", TCP_ADDRESS), *connection((0, RUN[: first + 5]), (first + 9, RUN[first + 9 :]))]
    found = tool.packets(frames)
    assert data_of(found) == ["message 0", "message 2"]
    assert [item.get("lost") for item in found if item["proto"] == "lbttcp"] == [None, 4]
    summary = tool.summary(frames)
    assert (summary["tcp"]["holes"], summary["tcp"]["missing_bytes"]) == (1, 4)
    session = next(item for item in summary["sessions"] if item["proto"] == "lbttcp")
    assert (session["messages"], session["missing_bytes"]) == (2, 4)
    (topic,) = summary["topics"]
    assert topic["sources"][0]["missing_sqns"] == [[1, 1]]


def test_the_same_message_on_two_connections_is_followed_once(tool: Tool) -> None:
    other = [tcp(SOURCE, 30000, RECEIVER, 40001, 5 + at, RUN[at : at + 21]) for at in range(0, 63, 21)]
    frames = [tir(b"T", TCP_ADDRESS), *connection((0, RUN)), *other]
    assert [item["text"] for item in tool.packets(frames, "--follow-topic", "T")] == EXPECTED


def test_a_bad_length_on_tcp_is_an_error_and_so_is_an_early_end(tool: Tool) -> None:
    frames = [tir(b"T", TCP_ADDRESS), *connection((0, THREE[0] + b"\0\0\0\2"))]
    found = tool.packets(frames, status=1)
    assert data_of(found) == ["message 0"]
    assert "length 2" in found[-1]["error"]
    frames = [*connection((0, RUN[:-2])), tcp(SOURCE, 30000, RECEIVER, 40000, 1001 + len(RUN) - 2, flags=FIN | ACK)]
    assert "ends" in tool.packets([tir(b"T", TCP_ADDRESS), *frames], status=1)[-1]["error"]
    assert tool.summary([tir(b"T", TCP_ADDRESS), *frames], status=1)["malformed"] == 1


def test_a_rule_names_a_tcp_port(tool: Tool) -> None:
    frames = connection((0, RUN))
    assert tool.packets(frames) == []
    assert data_of(tool.packets(frames, "--decode-as", "tcp.port==30000,lbttcp")) == EXPECTED


def test_tls_on_a_source_port_is_left_alone(tool: Tool) -> None:
    frames = [
        tcp(RECEIVER, 40000, SOURCE, 14371, 9, flags=SYN),
        tcp(RECEIVER, 40000, SOURCE, 14371, 10, bytes.fromhex("160301020001")),
    ]
    assert tool.packets(frames) == []
    assert tool.summary(frames)["tcp"]["not_lbmc"] == 1


@pytest.mark.parametrize("vector", [v for v in VECTORS if "segments" in v], ids=lambda v: str(v["name"]))
def test_the_split_vectors_decode_without_the_start_of_the_connection(tool: Tool, vector: dict[str, Any]) -> None:
    seq = 77
    frames = []
    for part in map(bytes.fromhex, vector["segments"]):
        frames.append(tcp(vector["src"], vector["sport"], vector["dst"], vector["dport"], seq, part))
        seq += len(part)
    merged: dict[str, Any] = {}
    for item in tool.packets(frames):  # one object for each segment that completes a message
        assert item["proto"] == "lbttcp"
        for name, value in item["fields"].items():
            merged.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    merged.pop("data.len", None)
    expect = {k: v if isinstance(v, list) else [v] for k, v in vector["expect"].items()}
    assert merged == {k: v for k, v in expect.items() if k not in ("frame.protocols", "data.len")}


# messages


def test_fragments_are_joined_and_message_properties_taken_off(tool: Tool) -> None:
    tail = encode_properties([Property(b"size", PropertyType.INT, 12), Property(b"name", PropertyType.STRING, b"x")])
    body = b"0123456789" * 5 + tail
    cuts = [(0, 20), (20, 60), (60, len(body))]
    datagrams = [
        rm_data(
            n,
            message(100 + n, body[a:b], blocks=(properties_chain(len(tail)), Frag(100, a, len(body)))),
            0xA0 if n == 1 else 0x80,
        )
        for n, (a, b) in enumerate(cuts)
    ]
    frames = [tir(b"T", RM), datagrams[2], datagrams[0], datagrams[0], rm_data(3, message(103, b"next")), datagrams[1]]
    after, whole = tool.packets(frames, "--follow-topic", "T")
    assert (after["sqn"], after["text"]) == (103, "next")
    assert (whole["frame"], whole["sqn"], whole["length"], whole["fragments"]) == (6, 100, 50, 3)
    assert whole["text"] == "0123456789" * 5
    assert whole["properties"] == {"size": 12, "name": "x"}
    assert whole["retransmission"] is True


def test_unfinished_messages_are_given_up_when_they_take_too_much_memory(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(umdump_topic, "MAX_PARTIAL_BYTES", 100)

    def piece(sqn: int, first: int, offset: int, total: int) -> bytes:
        return rm_data(sqn, message(sqn, bytes([65 + first]) * 40, blocks=(Frag(first, offset, total),)))

    old, young = [piece(0, 0, 0, 80), piece(1, 0, 40, 80)], [piece(2, 2, 0, 80), piece(3, 2, 40, 80)]
    large = [piece(4 + n, 4, 40 * n, 120) for n in range(3)]
    frames = [tir(b"T", RM), old[0], *young, *large, old[1]]
    found = tool.packets(frames, "--follow-topic", "T")
    assert [(item["sqn"], item["length"]) for item in found] == [(2, 80)]


def test_immediate_messages_are_found_by_the_name_they_carry(tool: Tool) -> None:
    named = [message(0, text, 0, blocks=(TopicName(b"T"),)) for text in (b"one", b"two")]
    other = message(0, b"no", 0, blocks=(TopicName(b"TT"),))
    frames = [tcp(RECEIVER, 50000, SOURCE, 14391, 1, other + b"".join(named))]
    found = tool.packets(frames, "--follow-topic", "T")
    assert [item["text"] for item in found] == ["one", "two"]
    assert found[0]["source"] == f"UIM:{RECEIVER}:50000"


def test_losses_are_shown_per_session_and_topic(tool: Tool) -> None:
    frames = [tir(b"T", RM), *(rm_data(n, message(n, b"x")) for n in (0, 1, 4, 5, 9)), nak(2, 3, 2)]
    summary = tool.summary(frames)
    (session,) = summary["sessions"]
    assert (session["missing"], session["missing_sqns"]) == (5, [[2, 3], [6, 8]])
    assert (session["nak_entries"], session["nak_sqns"]) == (3, 2)
    assert summary["topics"][0]["sources"][0]["missing"] == 5


def test_messages_without_an_advertisement_are_counted_under_no_topic(tool: Tool) -> None:
    content = lbtrm.encode(lbtrm.Data(14390, 9, 0, 0, payload=message(0, b"x", 3)))
    summary = tool.summary([udp(SOURCE, 5, "224.10.10.10", 14400, content)])
    (topic,) = summary["topics"]
    assert topic["topic"] is None
    assert topic["sources"][0]["source"] == f"LBTRM:{SOURCE}:14390:00000009:224.10.10.10:14400[3]"
    assert summary["sessions"][0]["is_advertised"] is False


def test_a_topic_name_cannot_drive_the_terminal(tool: Tool) -> None:
    path = tool.file([tir(b"\x1b[2Jevil\n", RM)])
    assert tool.run("--summary", path) == 0
    assert "\x1b" not in tool.out
    assert r"\x1b[2Jevil\n" in tool.out


def test_a_datagram_in_ip_fragments_is_put_together(tool: Tool) -> None:
    body = udp_body(4000, 20000, lbtrm.encode(lbtrm.Data(20001, SID, 0, 0, payload=message(0, b"y" * 3000))))
    cuts = [(0, 1480), (1480, 2960), (2960, len(body))]
    pieces = [
        MAC + b"\x08\x00" + ipv4(SOURCE, GROUP, 17, body[a:b], frag=(0x2000 if b < len(body) else 0) | a // 8)
        for a, b in cuts
    ]
    (found,) = tool.packets([tir(b"T", RM), pieces[1], pieces[2], pieces[0]], "--follow-topic", "T")
    assert (found["frame"], found["length"]) == (4, 3000)


# the process


def umdump_process(*arguments: str, stdin: int | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error", "-m", "dro.tools.umdump.main", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=stdin)


def test_standard_input_is_read_to_its_end() -> None:
    with umdump_process("--summary", "--json", "-", stdin=subprocess.PIPE) as process:
        out, err = process.communicate(CAPTURE.read_bytes(), timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert json.loads(out)["frames"] == 6012


def test_a_live_pipe_shows_each_packet_at_once() -> None:
    data = pcap([tir(b"T", RM), tir(b"U", RM, 8)])
    first = 24 + 16 + len(tir(b"T", RM))
    with umdump_process("-", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(data[:first])
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["fields"]["lbmr.tir.name"] == "T"
        process.stdin.write(data[first:])
        process.stdin.close()
        assert json.loads(process.stdout.readline())["fields"]["lbmr.tir.name"] == "U"
        assert process.wait(60) == 0


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    with umdump_process(str(CAPTURE)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_the_progress_line_is_for_terminals_only(tmp_path: Path) -> None:
    with umdump_process("--summary", str(CAPTURE)) as process:
        assert process.communicate(timeout=60)[1] == b""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "dro.tools.umdump.main", "--summary", "--json", str(CAPTURE)]
    with open(tmp_path / "out", "wb") as out:
        assert subprocess.run(command, stdout=out, stderr=theirs, timeout=60, check=False).returncode == 0
    os.close(theirs)
    shown = os.read(ours, 65536)
    os.close(ours)
    assert b"frames [" in shown
    assert shown.endswith(b"\r\x1b[K")


def test_ports_of_a_configuration_file_are_recognised(tool: Tool, tmp_path: Path) -> None:
    """Topic resolution, a session whose advertisement is missing, and one file for each TRD."""
    one, two = tmp_path / "trd1.cfg", tmp_path / "trd2.cfg"
    one.write_text("context resolver_multicast_port 7001\n")
    two.write_text("source transport_lbtrm_destination_port 20000\n")
    query = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((b"T",), ())))
    frames = [udp(SOURCE, 5000, "239.1.1.1", 7001, query), rm_data(1, message(1, b"x"))]
    assert tool.packets(frames) == []
    assert "no UM packet was recognised; for ports other than UM's defaults give -c FILE" in tool.err
    assert [p["proto"] for p in tool.packets(frames, "-c", str(one), "-c", str(two))] == ["lbmr", "lbtrm"]
    assert tool.err == ""


def test_servers_of_a_configuration_file_are_recognised(tool: Tool, tmp_path: Path) -> None:
    (file := tmp_path / "trd.cfg").write_text(
        "context resolver_unicast_daemon 127.0.0.1:6000->10.9.9.9:7001\ncontext resolver_service 10.9.9.9:7002\n"
    )
    rules = [(rule.is_tcp, rule.low, rule.high, rule.proto) for rule in rules_of([str(file)], lambda _: None)]
    assert rules[-3:] == [(False, 7001, 7001, "lbmr"), (True, 7002, 7002, "lbmsrs"), (False, 6000, 6000, "lbmr")]
    query = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((b"T",), ())))
    frames = [udp(SOURCE, 6000, "10.9.9.9", 7001, query), udp("10.9.9.9", 7001, SOURCE, 6000, query)]
    assert tool.packets(frames) == []
    assert [p["proto"] for p in tool.packets(frames, "-c", str(file))] == ["lbmr", "lbmr"]


def test_a_port_range_without_ports_is_refused_at_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "trd.cfg").write_text("\ncontext transport_tcp_port_high 14000\n")
    assert main(["-c", str(file), "none.pcap"]) == 2
    assert f"{file}:2: context transport_tcp_port_high: no port lies" in capsys.readouterr().err


def test_a_topic_without_messages_is_said(tool: Tool) -> None:
    assert tool.packets([tir(b"T", RM), rm_data(1, message(1, b"x"))], "--follow-topic", "nope") == []
    assert tool.err == "umdump: no message of topic 'nope'; umdump --summary lists the topics of the capture\n"


@pytest.mark.parametrize("mode", [(), ("--summary", "--json")])
def test_a_protocol_without_packets_is_said(tool: Tool, mode: tuple[str, ...]) -> None:
    tool.packets([tir(b"T", RM), rm_data(1, message(1, b"x"))], "--proto", "lbmc", *mode)
    assert tool.err == (
        "umdump: no lbmc packet: the capture has lbmr, lbtrm, and LBMC messages that a transport carries belong to its "
        "packets; leave out --proto, or name one of these\n"
    )
    tool.packets([tir(b"T", RM)], "--proto", "lbttcp", *mode)
    assert tool.err == "umdump: no lbttcp packet: the capture has lbmr; leave out --proto, or name one of these\n"


def test_files_in_any_order_last_from_the_earliest_to_the_latest_frame(tool: Tool, tmp_path: Path) -> None:
    names = []
    for second in (7, 5, 9, 6):
        path = tmp_path / f"{second}.pcap"
        path.write_bytes(pcap([tir(b"T", RM)], start_ns=second * 10**9))
        names.append(str(path))
    (summary,) = tool.lines("--summary", "--json", *names)
    assert [summary[key] for key in ("first", "last", "seconds")] == [
        "1970-01-01T00:00:05.000000000Z", "1970-01-01T00:00:09.000000000Z", 4.0
    ]  # fmt: skip


def test_memory_does_not_grow_with_the_capture(tmp_path: Path) -> None:
    """Peak memory for 8,000 and for 40,000 packets, half of them on ever new sessions and topics, with small tables."""

    def peak(count: int) -> int:
        path = tmp_path / f"{count}.pcap"
        write_capture(path, count)
        script = (
            "import resource, sys; from dro.tools.umdump import counts; from dro.tools.umdump.main import main;"
            "counts.MAX_SESSIONS = counts.MAX_SOURCES = counts.MAX_TOPICS = 1000;"
            "pool = counts.SqnPool; counts.SqnPool = lambda: pool(1000); status = main(sys.argv[1:]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(status)"
        )
        command = [sys.executable, "-c", script, "--summary", "--json", "--decode-as", RULE, str(path)]
        done = subprocess.run(command, capture_output=True, timeout=240, check=True)
        assert json.loads(done.stdout)["forgotten"]
        return int(done.stderr)

    assert peak(40_000) < peak(8_000) + 8_000  # KiB; with tables that grow it is 40,000 more

"""`lbmmon` as users run it: a process, and statistics that the client library or a datagram brings."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from dro.lbmmon.fields import CSV, NO_SAMPLE, PB, message_class
from dro.lbmmon.packet import encode
from dro.lbmmon.records import DroStats, LibraryStats, MonitorSender
from dro.um.blocking_api import BlockingContext, BlockingSource
from dro.um.message.client_config import Config
from tests.fakes.um_contexts import PATIENCE_S
from tests.rigs.lbm_tools import Tool, ToolNet

TOPIC: Final = "/29west/statistics"
SENDER: Final = MonitorSender(1_700_000_000, "app", "192.0.2.1", 77, 0xABC, False, bytes(range(8)), 5)
SESSION: Final = LibraryStats(
    SENDER, "receiver_transport", "TCP:192.0.2.9:14371",
    {"tcp.bytes_rcved": 1 << 60, "tcp.lbm_msgs_rcved": 7, "tcp.lbm_msgs_no_topic_rcved": 0, "tcp.lbm_reqs_rcved": 0},
)  # fmt: skip


def of_dro() -> DroStats:
    made = message_class("DROMonMsg")()
    made.attributes.application_id, made.attributes.process_id, made.attributes.timestamp = "dro1", 9, 1_700_000_001
    portal = made.stats.portals.add(portal_name="E\x1b", cost=3)
    portal.endpoint.send.transport_topic_fragments_sent = 1 << 40
    portal = made.stats.portals.add(portal_name="P", portal_index=1)
    portal.peer.send.rtt_min = NO_SAMPLE
    return DroStats(MonitorSender(1_700_000_001, "dro1", "", 9, 0), made)


def topics() -> bytes:
    """A packet of type 4 and one of type 5 in one message: what a receiver and a wildcard receiver want."""
    made = message_class("UMSMonMsg")()
    made.attributes.application_id = "app"
    topic = made.events.receiver_topics.add(topic="quotes")
    topic.sources.add(source_string="TCP:192.0.2.9:14371", otid="0a0b", topic_idx=12, source_state=1, timestamp_sec=4)
    made.events.wildcard_receivers.add(pattern="^q", type=1)
    return framed(4, made.SerializeToString())


def framed(kind: int, data: bytes) -> bytes:
    """The same header and attributes as those of another packet in the same format."""
    one = encode(SESSION, PB)
    attributes = one[12 : 12 + int.from_bytes(one[6:8], "big")]
    return one[:4] + kind.to_bytes(2, "big") + one[6:8] + len(data).to_bytes(2, "big") + bytes(2) + attributes + data


@pytest.fixture
def net(tmp_path: Path) -> Iterator[ToolNet]:
    with ToolNet(tmp_path) as made:
        yield made


@contextmanager
def publishing(file: str, topic: str = TOPIC) -> Iterator[BlockingSource]:
    """A source that a program has found."""
    with BlockingContext(Config.load(file)) as context:
        source = context.source(topic)
        source.wait_receivers(timeout=PATIENCE_S)
        yield source


def told(tool: Tool) -> list[Any]:
    return [json.loads(line) for line in tool.lines]


def heard(net: ToolNet, packets: list[bytes], *arguments: str, topic: str = TOPIC) -> Tool:
    """A program that has ended after all of them."""
    file = net.config("tcp")
    with Tool("lbmmon", "-c", file, "-n", str(len(packets)), *arguments) as tool:
        with publishing(file, topic) as source:
            for packet in packets:
                source.send(packet)
            assert tool.wait() == 0
        return tool


def test_all_figures_have_names_in_the_text(net: ToolNet) -> None:
    tool = heard(net, [encode(SESSION, PB), encode(of_dro(), PB), topics()])
    assert tool.lines[:7] == [
        '2023-11-14T22:13:20Z receiver_transport "app" at 192.0.2.1 process 77 object 0xabc context 0001020304050607'
        " domain 5",
        "  source TCP:192.0.2.9:14371",
        "  tcp.bytes_rcved 1152921504606846976",
        "  tcp.lbm_msgs_rcved 7",
        "  tcp.lbm_msgs_no_topic_rcved 0",
        "  tcp.lbm_reqs_rcved 0",
        '2023-11-14T22:13:21Z dro "dro1" at unknown process 9 object 0x0',
    ]
    for line in (
        "  stats.portals[0].portal_name E\\x1b",
        "  stats.portals[0].endpoint.send.transport_topic_fragments_sent 1099511627776",
        "  stats.portals[1].peer.send.rtt_min -",
    ):
        assert line in tool.lines
    assert tool.lines[-11:] == [
        '1970-01-01T00:00:00Z receiver_topic "app" at unknown process 0 object 0x0',
        "  topic quotes",
        "  sources[0].source_string TCP:192.0.2.9:14371",
        "  sources[0].otid 0a0b",
        "  sources[0].topic_idx 12",
        "  sources[0].source_state SOURCE_CREATED",
        "  sources[0].timestamp_sec 4",
        "  sources[0].timestamp_usec 0",
        '1970-01-01T00:00:00Z wildcard_receiver "app" at unknown process 0 object 0x0',
        "  pattern ^q",
        "  type 1",
    ]
    assert tool.err.splitlines()[-1] == "lbmmon: received 3 packets, bad 0, lost 0"


@pytest.mark.parametrize("module", [PB, CSV])
def test_json_is_that_of_protobuf_whatever_the_format(net: ToolNet, module: int) -> None:
    [found] = told(heard(net, [encode(SESSION, module)], "--json"))
    assert found["attributes"] == {
        "senderIpv4Address": "192.0.2.1", "timestamp": "1700000000", "applicationId": "app", "objectId": "2748",
        "processId": "77", "contextInstance": "AAECAwQFBgc=", "domainId": 5,
    }  # fmt: skip
    [session] = found["stats"]["receiverTransports"]
    assert session["sourceString"] == "TCP:192.0.2.9:14371"
    assert session["tcp"] == {
        "bytesRcved": "1152921504606846976", "lbmMsgsRcved": "7", "lbmMsgsNoTopicRcved": "0", "lbmReqsRcved": "0",
    }  # fmt: skip


def test_json_of_a_dro_and_of_topics(net: ToolNet) -> None:
    dro, topic, pattern = told(heard(net, [encode(of_dro(), PB), topics()], "--json"))
    assert dro["attributes"]["applicationId"] == "dro1"
    first, second = dro["stats"]["portals"]
    assert first["endpoint"]["send"]["transportTopicFragmentsSent"] == str(1 << 40)
    assert (first["portalName"], first["cost"], second["peer"]["send"]["rttMin"]) == ("E\x1b", 3, str(NO_SAMPLE))
    [topic] = topic["events"]["receiverTopics"]
    assert (topic["topic"], topic["sources"][0]["sourceState"]) == ("quotes", "SOURCE_CREATED")
    assert pattern["events"]["wildcardReceivers"] == [{"pattern": "^q", "type": 1}]


def test_bad_packets_are_a_line_each_and_nothing_stops(net: ToolNet) -> None:
    file = net.config("tcp")
    with Tool("lbmmon", "-c", file, "-n", "2", "--json") as tool, publishing(file) as source:
        for packet in (
            b"no packet",
            framed(7, b"\xff\xff"),
            encode(SESSION, PB),
            framed(6, b""),
            encode(SESSION, PB),
        ):
            source.send(packet)
        assert tool.wait() == 0
    assert len(tool.lines) == 2
    first, *bad, last = tool.err.splitlines()
    assert first == "lbmmon: receiving"
    assert [line.rpartition("]: ")[0].split("][")[0] for line in bad] == [f"lbmmon: [{TOPIC}"] * 3
    assert "statistics of a store" in bad[2]
    assert last == "lbmmon: received 2 packets, bad 3, lost 0"


def test_one_format_alone_and_its_separator(net: ToolNet) -> None:
    file = net.config("tcp")
    form = ("-f", "csv", "--format-opts", "separator=x")
    with Tool("lbmmon", "-c", file, "-n", "1", *form) as tool, publishing(file) as source:
        source.send(encode(SESSION, PB))
        source.send(encode(SESSION, CSV, "x"))
        assert tool.wait() == 0
    assert "  tcp.lbm_msgs_rcved 7" in tool.lines
    assert "it is pb, not csv" in tool.err


@pytest.mark.parametrize(
    ("options", "topic"), [("topic=/my/statistics", "/my/statistics"), ("wctopic=^/other/.*$", "/other/one")]
)
def test_other_topics_and_patterns_are_heard(net: ToolNet, options: str, topic: str) -> None:
    tool = heard(net, [encode(SESSION, PB)], "--transport-opts", options, topic=topic)
    assert "  tcp.lbm_msgs_rcved 7" in tool.lines


@pytest.mark.parametrize("group", ["", "239.255.77.3"])
def test_datagrams_are_heard(net: ToolNet, group: str) -> None:
    options = f"port={net.port};interface=127.0.0.1" + (f";mcgroup={group}" if group else "")
    with Tool("lbmmon", "-t", "udp", "--transport-opts", options, "-n", "2", "--json") as tool:
        tool.wait_for_error("receiving")
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            for packet in (encode(SESSION, CSV), b"x", encode(of_dro(), PB)):
                sock.sendto(packet, (group or "127.0.0.1", net.port))
        assert tool.wait() == 0
    assert [("stats" in found) for found in told(tool)] == [True, True]
    assert "lbmmon: 127.0.0.1:" in tool.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(net: ToolNet, number: signal.Signals) -> None:
    with Tool("lbmmon", "-c", net.config("tcp")) as tool:
        tool.wait_for_error("receiving")
        tool.signal(number)
        assert tool.wait() == 128 + number
    assert tool.err.splitlines()[-1] == "lbmmon: received 0 packets, bad 0, lost 0"


def test_a_reader_that_goes_away_ends_it(net: ToolNet) -> None:
    file = net.config("tcp")
    with Tool("lbmmon", "-c", file) as tool:
        with publishing(file) as source:
            tool.close_output()
            while tool.is_running:
                source.send(encode(SESSION, PB))
        assert tool.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-t", "snmp"], "lbmmon: argument -t/--transport: invalid choice: 'snmp'"),
        (["-f", "xml"], "lbmmon: argument -f/--format: invalid choice: 'xml'"),
        (["--transport-opts", "topic"], "lbmmon: module options: 'topic' is not name=value"),
        (["-t", "udp", "--transport-opts", "port=0"], "lbmmon: module options: port '0' is out of range"),
        (["--format-opts", "separator="], "lbmmon: module options: separator '' is not one ASCII character"),
    ],
)
def test_wrong_usage_is_told_in_a_line(arguments: list[str], said: str) -> None:
    with Tool("lbmmon", *arguments) as tool:
        assert tool.wait() == 2
    assert tool.err.startswith(said)
    assert tool.err.count("\n") == 1

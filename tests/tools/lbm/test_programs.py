"""lbmsrc, lbmrcv and lbmwrcv as users run them: processes on the loopback interface, judged by output and status."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.tools.lbm import verify
from tests.rigs.lbm_tools import Tool, ToolNet

TOPIC = "tools.test"
TRANSPORTS = pytest.mark.parametrize("transport", ["lbtrm", "tcp", "lbtru", "lbtipc"])
FINAL_ADS = "source resolver_send_final_advertisements 1"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[ToolNet]:
    with ToolNet(tmp_path) as made:
        yield made


def begin(source: Tool, *receivers: Tool) -> None:
    """Let the source send once every receiver has found it and, but for LBT-RM, is connected."""
    for receiver in receivers:
        receiver.wait_for("source found")
    if "][LBTRM:" not in source.wait_for("source created"):
        source.wait_for("Receiver connect")
    source.write_line()


@TRANSPORTS
def test_messages_of_all_sizes_arrive_verified_and_in_order(net: ToolNet, transport: str, tmp_path: Path) -> None:
    config = net.config(transport)
    record = tmp_path / "payloads"
    with (
        Tool("lbmrcv", "-c", config, "-V", "-O", "-r", "3000", "--payload-sha256", "--payload-file", str(record), TOPIC)
        as receiver,
        Tool("lbmsrc", "-c", config, "-V", "-M", "3000", "-l", "16-20000", "--wait-for-line", "--payload-sha256", TOPIC)
        as source,
    ):  # fmt: skip
        begin(source, receiver)
        assert receiver.wait() == 0
        source.signal(signal.SIGTERM)  # ends the linger
        assert source.wait() == 0
    messages, size = source.sent
    assert messages == 3000
    assert receiver.received == (3000, size, 0, 0, 0)
    assert receiver.digest == source.digest
    payloads = record.read_bytes()
    assert len(payloads) == size + 4 * 3000
    at, sequences, digest = 0, [], hashlib.sha256()
    while at < len(payloads):
        length = int.from_bytes(payloads[at : at + 4], "big")
        payload = payloads[at + 4 : at + 4 + length]
        sequences.append(verify.check(payload).sequence)
        digest.update(payload)
        at += 4 + length
    assert sequences == list(range(3000))
    assert digest.hexdigest() == receiver.digest


@TRANSPORTS
def test_a_wildcard_receiver_gets_what_matches(net: ToolNet, transport: str) -> None:
    config = net.config(transport)
    with (
        Tool("lbmwrcv", "-c", config, "-v", "-V", "-r", "200", r"^tools\.[ab]$") as receiver,
        Tool("lbmsrc", "-c", config, "-V", "-M", "100", "-L", "0", "--wait-for-line", "tools.a") as a,
        Tool("lbmsrc", "-c", config, "-V", "-M", "100", "-L", "0", "--wait-for-line", "tools.b") as b,
        Tool("lbmsrc", "-c", config, "-M", "100", "-d", "0", "-L", "0", "tools.c") as c,
    ):
        receiver.wait_for("[tools.a], receiver created")
        receiver.wait_for("[tools.b], receiver created")
        for topic in ("tools.a", "tools.b"):
            assert (
                re.search(rf"\[{re.escape(topic)}\]\[.*\], source found", receiver.wait_for(f"[{topic}][")) is not None
            )
        begin(a)
        begin(b)
        assert receiver.wait() == 0
        assert (a.wait(), b.wait(), c.wait()) == (0, 0, 0)
    assert receiver.received == (200, 200 * 25, 0, 0, 0)
    for topic in ("tools.a", "tools.b"):
        sqns = [
            int(n) for n in re.findall(rf"^\[{re.escape(topic)}\]\[[^]]+\]\]?\[(\d+)\], 25 bytes$", receiver.out, re.M)
        ]
        assert sqns == list(range(100))
    assert "tools.c" not in receiver.out


@TRANSPORTS
def test_output_lines_keep_topic_source_sqn_length(net: ToolNet, transport: str) -> None:
    config = net.config(transport)
    with (
        Tool("lbmrcv", "-c", config, "-v", "-A", "-r", "3", TOPIC) as receiver,
        Tool("lbmsrc", "-c", config, "-v", "-M", "3", "-L", "0", "-l", "12", "--wait-for-line", TOPIC) as source,
    ):
        begin(source, receiver)
        assert receiver.wait() == 0
        assert source.wait() == 0
    name = re.fullmatch(rf"\[{TOPIC}\]\[(.+)\], source created", source.lines[0])
    assert name is not None
    data = [line for line in receiver.lines if line.startswith("[") or line.startswith("message")]
    assert data == [
        f"[{TOPIC}][{name[1]}], source found",
        f"[{TOPIC}][{name[1]}], Beginning of Transport Session",
        f"[{TOPIC}][{name[1]}][0], 12 bytes",
        "message 0   ",
        f"[{TOPIC}][{name[1]}][1], 12 bytes",
        "message 1   ",
        f"[{TOPIC}][{name[1]}][2], 12 bytes",
        "message 2   ",
    ]
    assert receiver.lines[0] == f"lbmrcv: receiving [{TOPIC}]"
    assert receiver.lines[-1] == "lbmrcv: received 3 messages, 36 bytes, lost 0, bursts 0, bad 0"
    assert any(line.startswith("Receiver connect [") for line in source.lines) is (transport != "lbtrm")


@pytest.mark.parametrize(("transport", "extra"), [("tcp", ""), ("lbtrm", FINAL_ADS)])
@pytest.mark.parametrize("flags", [["-S"], ["-E", "-q"]])
def test_a_receiver_ends_with_its_sources(net: ToolNet, transport: str, extra: str, flags: list[str]) -> None:
    config = net.config(transport, extra)
    with (
        Tool("lbmrcv", "-c", config, *flags, TOPIC) as receiver,
        Tool("lbmsrc", "-c", config, "-M", "500", "-L", "0.2", "--wait-for-line", TOPIC) as source,
    ):
        begin(source, receiver)
        assert source.wait() == 0
        assert receiver.wait() == 0
    assert receiver.received == (500, 500 * 25, 0, 0, 0)
    assert "End of Transport Session" in receiver.out
    summary = re.fullmatch(
        r"lbmrcv: first to last message \d+\.\d{3} secs\. \d+\.\d{3} Kmsgs/sec\. \d+\.\d{3} Kbps", receiver.lines[-2]
    )
    assert (summary is not None) is ("-S" in flags)


def test_payloads_that_are_not_verifiable_are_bad(net: ToolNet) -> None:
    config = net.config("tcp")
    with (
        Tool("lbmrcv", "-c", config, "-V", "-r", "10", TOPIC) as receiver,
        Tool("lbmsrc", "-c", config, "-M", "10", "-L", "0", "--wait-for-line", TOPIC) as source,
    ):
        begin(source, receiver)
        assert receiver.wait() == 1
        assert source.wait() == 0
    assert receiver.received == (10, 250, 0, 0, 10)
    assert receiver.out.count("BAD: wrong length") == 10


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("name", ["lbmrcv", "lbmwrcv"])
def test_a_signal_ends_a_receiver_with_its_last_line(
    net: ToolNet, name: str, number: signal.Signals, status: int
) -> None:
    with Tool(name, "-c", net.config("lbtrm"), TOPIC) as receiver:
        receiver.wait_for("receiving")
        receiver.signal(number)
        assert receiver.wait() == status
    assert receiver.received == (0, 0, 0, 0, 0)
    assert receiver.err == ""


@TRANSPORTS
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_source_with_its_last_line(
    net: ToolNet, transport: str, number: signal.Signals, status: int
) -> None:
    config = net.config(transport)
    with (
        Tool("lbmrcv", "-c", config, "-v", TOPIC) as receiver,
        Tool("lbmsrc", "-c", config, "-P", "1", "--wait-for-line", TOPIC) as source,
    ):
        begin(source, receiver)
        receiver.wait_for("[5], 25 bytes")
        source.signal(number)
        assert source.wait() == status
        messages, size = source.sent
        assert messages >= 6
        assert size == messages * 25
        assert source.err == ""


@pytest.mark.parametrize("name", ["lbmsrc", "lbmrcv", "lbmwrcv"])
def test_a_signal_ends_a_program_that_waits_for_its_configuration(tmp_path: Path, name: str) -> None:
    """Reading a pipe is repeated after a signal that a handler takes, so no handler may be there yet."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Tool(name, "-c", str(pipe), TOPIC) as tool, pipe.open("wb", buffering=0):  # it reads from here on
        tool.signal(signal.SIGTERM)
        assert tool.wait() == -signal.SIGTERM
    assert tool.err == ""


@pytest.mark.parametrize("arguments", [["--wait-for-line"], ["-d", "1000"]])
def test_a_signal_before_the_first_message(net: ToolNet, arguments: list[str]) -> None:
    with Tool("lbmsrc", "-c", net.config("lbtrm"), *arguments, TOPIC) as source:
        source.wait_for("source created")
        source.signal(signal.SIGTERM)
        assert source.wait() == 143
    assert source.sent == (0, 0)


def test_a_blocked_source_ends_at_a_signal(net: ToolNet) -> None:
    """Nothing leaves at 1000 bits/s after the first messages; the signal must not wait for that."""
    config = net.config("lbtrm")
    with Tool("lbmsrc", "-c", config, "-R", "M1000/1000", "-d", "0", "-l", "100", "-v", TOPIC) as source:
        source.wait_for("source created")
        source.signal(signal.SIGINT)
        assert source.wait() == 130
    assert source.sent[0] < 1000


@TRANSPORTS
def test_non_blocking_sends_lose_nothing(net: ToolNet, transport: str) -> None:
    config = net.config(transport, "context transport_lbtrm_data_rate_limit 50000000")
    with (
        Tool("lbmrcv", "-c", config, "-V", "-r", "2000", TOPIC) as receiver,
        Tool("lbmsrc", "-c", config, "-n", "-V", "-M", "2000", "-l", "5000", "-L", "1", "--wait-for-line", TOPIC)
        as source,
    ):  # fmt: skip
        begin(source, receiver)
        assert receiver.wait() == 0
        assert source.wait() == 0
    assert receiver.received == (2000, 10_000_000, 0, 0, 0)


@TRANSPORTS
def test_statistics(net: ToolNet, transport: str) -> None:
    config = net.config(transport)
    with (
        Tool("lbmrcv", "-c", config, "-C", "-s", "0.1", "--max-sources", "1", TOPIC) as receiver,
        Tool("lbmsrc", "-c", config, "-M", "10", "-P", "50", "-s", "0.1", "--wait-for-line", TOPIC) as source,
    ):
        begin(source, receiver)
        session = re.escape(source.wait_for("source [").partition("[")[2].partition("]:")[0])
        assert "msgs_sent" in source.wait_for("source [")
        assert re.match(rf"receiver \[{session}\]: .*lbm_msgs_rcved \d+", receiver.wait_for("receiver ["))
        assert "tr_dgrams_rcved" in receiver.wait_for("context [lbmrcv]: ")
        rate = receiver.wait_for(" secs. ")
        assert re.fullmatch(
            r"\d+\.\d{3} secs\. \d+\.\d{3} Kmsgs/sec\. \d+\.\d{3} Kbps "
            r"\[0 pkts lost, 0 msgs unrecovered, 0 loss bursts\]",
            rate,
        )
        receiver.signal(signal.SIGTERM)
        assert receiver.wait() == 143
        source.wait_for("Receiver disconnect" if transport == "tcp" else "source [")


def test_a_pause_spreads_the_messages(net: ToolNet) -> None:
    with Tool("lbmsrc", "-c", net.config("lbtrm"), "-M", "11", "-P", "30", "-d", "0", "-L", "0", TOPIC) as source:
        assert source.wait() == 0
    seconds = float(source.lines[-1].split()[-2])
    assert seconds >= 0.3


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("lbmsrc", [], "lbmsrc: the following arguments are required: topic; try lbmsrc --help"),
        ("lbmsrc", ["-f", "t"], "lbmsrc: -f (hot failover, see lbmhfsrc) is not supported yet; leave it out"),
        ("lbmsrc", ["-V", "-l", "15", "t"], "lbmsrc: -V needs room for a checksum; give -l 16 or more"),
        ("lbmsrc", ["-l", "9-5", "t"], "is not a length such as 25 or 1-2000"),
        ("lbmrcv", ["--monitor-rcv=5", "t"], "lbmrcv: --monitor-rcv (monitoring) is not supported yet; leave it out"),
        ("lbmhfsrc", ["-x", "32", "-i", "5g", "t"], "lbmhfsrc: number 5000000000 does not fit 32 bits"),
        ("lbmwrcv", ["-r", "0", "t"], "argument -r/--msgs: 0 is too few; give 1 or more"),
        ("lbmsrc", ["-N", "5g", "t"], "argument -N/--channel: 5000000000 is too many; give 4294967295 or less"),
        ("lbmsrc", ["-j", "99999999999999g", "t"], "is out of range; use 18446744073709551615 or less"),
        ("lbmrcv", ["-c", "/nowhere/um.cfg", "t"], "/nowhere/um.cfg: cannot read the UM configuration file"),
        ("lbmrcv", ["x" * 300], "has 300 bytes"),
        ("lbmsrc", ["x" * 300], "has 300 bytes"),
    ],
)
def test_wrong_usage_is_status_2_and_one_line(net: ToolNet, name: str, arguments: list[str], text: str) -> None:
    with Tool(name, "-c", net.config("lbtrm"), *arguments) as tool:
        assert tool.wait() == 2
    assert text in tool.err
    assert tool.err.count("\n") == 1
    assert "received" not in tool.out
    assert "sent" not in tool.out


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?R)"])
def test_a_pattern_that_is_none_is_wrong_usage(net: ToolNet, pattern: str) -> None:
    with Tool("lbmwrcv", "-c", net.config("lbtrm"), pattern) as receiver:
        assert receiver.wait() == 2
    assert receiver.err.startswith(f"lbmwrcv: pattern {pattern!r}: ")


def test_bad_lines_of_a_configuration_are_all_told(net: ToolNet) -> None:
    config = net.config("lbtrm", "context request_tcp_port many\nsource transport pigeon")
    with Tool("lbmsrc", "-c", config, TOPIC) as source:
        assert source.wait() == 2
    assert len(source.err.splitlines()) == 2
    assert all(line.startswith(f"lbmsrc: {config}:") for line in source.err.splitlines())


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("lbmsrc", "source transport broker"),
        ("lbmrcv", "context resolver_unicast_daemon 127.0.0.1"),
        ("lbmrcv", "context use_tls yes"),
        ("lbmsrc", "source use_tls 1"),
        ("lbmsrc", "context transport_tcp_port_high 1024"),
    ],
)
def test_what_this_release_refuses_is_a_mistake_of_the_configuration(net: ToolNet, name: str, line: str) -> None:
    config = net.config("tcp", line)
    number = Path(config).read_text().splitlines().index(line) + 1
    with Tool(name, "-c", config, TOPIC) as tool:
        assert tool.wait() == 2
    (text,) = tool.err.splitlines()
    assert text.startswith(f"{name}: {config}:{number}: {line.rpartition(' ')[0]}: ")
    assert "; " in text  # a remedy


def test_files_of_both_kinds_and_the_environment_make_one_configuration(
    net: ToolNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    um_xml = tmp_path / "um.xml"
    um_xml.write_text(
        """<um-configuration version="1.0"><applications><application name="desk"><contexts><context><sources>
<topic pattern="^tools"><options type="source"><option name="transport" default-value="lbtrm"/></options></topic>
</sources></context></contexts></application></applications></um-configuration>"""
    )
    plain = Path(net.config("tcp"))
    plain.write_text(plain.read_text().replace("source transport tcp\n", ""))
    monkeypatch.setenv("LBM_DEFAULT_CONFIG_FILE", str(plain))
    monkeypatch.setenv("LBM_XML_CONFIG_APPNAME", "desk")
    with (
        Tool("lbmrcv", "-c", str(um_xml), "-r", "5", TOPIC) as receiver,
        Tool("lbmsrc", "-c", str(um_xml), "-M", "5", "-L", "0", "--wait-for-line", TOPIC) as source,
    ):
        assert "][LBTRM:" in source.wait_for("source created")
        begin(source, receiver)
        assert receiver.wait() == 0
        assert source.wait() == 0


def test_a_port_in_use_is_status_3(net: ToolNet) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = net.config("tcp", f"context request_tcp_port {taken.getsockname()[1]}")
        with Tool("lbmrcv", "-c", config, TOPIC) as receiver:
            assert receiver.wait() == 3
    assert "request_tcp_port" in receiver.err
    assert "Traceback" not in receiver.err


def test_a_record_that_cannot_be_written_is_status_3(net: ToolNet) -> None:
    config = net.config("tcp")
    with (
        Tool("lbmrcv", "-c", config, "--payload-file", "/dev/full", TOPIC) as receiver,
        Tool("lbmsrc", "-c", config, "-l", "100000", "-M", "20", "-L", "0", "--wait-for-line", TOPIC) as source,
    ):
        begin(source, receiver)
        assert receiver.wait() == 3
        assert source.wait() == 0
    assert "lbmrcv: cannot write /dev/full: No space left on device" in receiver.err
    assert "Traceback" not in receiver.err


def test_a_reader_that_goes_away_ends_the_receiver_quietly(net: ToolNet) -> None:
    config = net.config("tcp")
    with (
        Tool("lbmrcv", "-c", config, "-v", TOPIC) as receiver,
        Tool("lbmsrc", "-c", config, "-P", "1", "--wait-for-line", TOPIC) as source,
    ):
        begin(source, receiver)
        receiver.close_output()
        assert receiver.wait() == 0
    assert receiver.err == ""


@pytest.mark.parametrize("name", ["lbmsrc", "lbmrcv", "lbmwrcv"])
def test_help(name: str) -> None:
    with Tool(name, "--help") as tool:
        assert tool.wait() == 0
    assert tool.out.startswith(f"usage: {name} ")
    assert "not supported yet" in tool.out


def test_a_source_that_filters_is_heard_by_who_asks_for_its_topic(net: ToolNet) -> None:
    """From the first message that comes on, none is missing."""
    config = net.config("tcp", "source transport_source_side_filtering_behavior inclusion")
    with (
        Tool("lbmrcv", "-c", config, "-V", "-r", "100", TOPIC) as receiver,
        Tool("lbmsrc", "-c", config, "-V", "-M", "400", "-P", "5", TOPIC) as source,
    ):
        assert receiver.wait() == 0
        source.signal(signal.SIGTERM)
        source.wait()
    assert receiver.received[2:] == (0, 0, 0)
    assert "without effect" not in source.err

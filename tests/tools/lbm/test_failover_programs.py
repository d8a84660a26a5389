"""lbmhfsrc, lbmhfrcv, lbmlatping and lbmlatpong as users run them, and channels of lbmsrc and lbmrcv."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.tools.lbm.lbmlatping import summary
from tests.rigs.lbm_tools import Tool, ToolNet

TRANSPORTS = pytest.mark.parametrize("transport", ["lbtrm", "tcp"])


@pytest.fixture
def net(tmp_path: Path) -> Iterator[ToolNet]:
    with ToolNet(tmp_path) as made:
        yield made


@TRANSPORTS
@pytest.mark.parametrize("program", [["lbmhfrcv"], ["lbmrcv", "-f"]])
def test_two_sources_are_one_stream(net: ToolNet, transport: str, program: list[str], tmp_path: Path) -> None:
    config, tape = net.config(transport), tmp_path / "tape"
    tape.write_text("".join(f"{n}\n" for n in range(4_294_967_296, 4_294_967_596, 3)))
    numbers = ["-V", "-x", "64", "-t", str(tape), "-L", "60", "--wait-for-line", "t"]
    with (
        Tool(*program, "-c", config, "-v", "-V", "-O", "-r", "100", "t") as receiver,
        Tool("lbmhfsrc", "-c", config, *numbers) as one,
        Tool("lbmhfsrc", "-c", config, *numbers) as other,
    ):
        receiver.wait_for("source found")
        while receiver.read().count("source found") < 2:
            receiver.wait_more()
        for source in (one, other):
            if transport == "tcp":
                source.wait_for("Receiver connect")
            source.write_line()
        assert receiver.wait() == 0
        for source in (one, other):
            source.wait_for("source created")
            source.signal(signal.SIGTERM)
            source.wait()
    found = [int(number) for number in re.findall(r"\]\[hf (\d+)\], 25 bytes$", receiver.out, re.M)]
    assert found == list(range(4_294_967_296, 4_294_967_596, 3))
    assert receiver.received == (100, 2500, 0, 0, 0)


@TRANSPORTS
def test_a_receiver_of_a_channel_counts_no_other(net: ToolNet, transport: str) -> None:
    config = net.config(transport)
    with (
        Tool("lbmrcv", "-c", config, "-A", "-N", "5", "-r", "3", "t") as receiver,
        Tool("lbmsrc", "-c", config, "-N", "4", "-M", "3", "-l", "9", "-L", "0", "--wait-for-line", "t") as other,
        Tool("lbmsrc", "-c", config, "-N", "5", "-M", "3", "-l", "10", "-L", "60", "--wait-for-line", "t") as source,
    ):
        receiver.wait_for("source found")
        while receiver.read().count("source found") < 2:
            receiver.wait_more()
        for one in (other, source):
            if transport == "tcp":
                one.wait_for("Receiver connect")
            one.write_line()
        assert receiver.wait() == 0
        source.signal(signal.SIGTERM)
        assert (other.wait(), source.wait()) == (0, 0)
    assert receiver.received == (3, 30, 0, 0, 0)


@TRANSPORTS
def test_round_trips_are_measured(net: ToolNet, transport: str) -> None:
    config = net.config(transport)
    with (
        Tool("lbmlatping", "-c", config, "-M", "50", "-i", "5", "-P", "100", "--timeout", "30", "x") as ping,
        Tool("lbmlatpong", "-c", config, "x") as pong,
    ):
        assert ping.wait() == 0
        pong.signal(signal.SIGTERM)
        assert pong.wait() == 143
    assert ping.lines[-1].startswith("lbmlatping: 50 round trips, 0 lost, min ")
    returned = re.fullmatch(r"lbmlatpong: returned (\d+) messages", pong.lines[-1])
    assert returned is not None
    assert int(returned[1]) >= 56


def test_a_file_of_numbers_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_text("1\n\nroot\n")
    with Tool("lbmhfsrc", "-t", str(path), "t") as source:
        assert source.wait() == 2
    assert f"{path}:3: 'root' is no number" in source.err


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert summary([1000 * n for n in range(101)], 2) == (
        "lbmlatping: 101 round trips, 2 lost, min 0.0, median 50.0, 90% 90.0, 99% 99.0, 99.9% 100.0, max 100.0 us"
    )
    assert summary([], 1) == "lbmlatping: 0 round trips, 1 lost"


@pytest.mark.parametrize(("tool", "scope"), [("lbmhfsrc", "source"), ("lbmhfrcv", "receiver")])
def test_hot_failover_with_hotlinks_is_wrong_usage(net: ToolNet, tool: str, scope: str) -> None:
    with Tool(tool, "-c", net.config("lbtrm", f"{scope} use_hotlink 1"), "t") as program:
        assert program.wait() == 2
    assert "hot failover cannot be combined with use_hotlink" in program.err
    assert program.err.count("\n") == 1

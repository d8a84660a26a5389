"""`tnwgdcmd` as users run it: a process, and a context that answers as a DRO does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data, RequestMsg
from tests.rigs.lbm_tools import Tool, ToolNet


class Daemon:
    """Answers requests; `asked` has their texts."""

    def __init__(self, context: BlockingContext) -> None:
        self.target = context.request_address
        self.asked: list[str] = []
        self.answers: dict[str, bytes] = {}
        context.on_immediate = self._answer

    def _answer(self, request: Data) -> None:
        assert isinstance(request, RequestMsg)
        text = request.data.decode()
        self.asked.append(text)
        if text != "silence":
            request.response.send(self.answers.get(text, b"OK"))


@pytest.fixture
def net(tmp_path: Path) -> Iterator[ToolNet]:
    with ToolNet(tmp_path) as made:
        yield made


@pytest.fixture
def config(net: ToolNet) -> str:
    return net.config("tcp")


@pytest.fixture
def daemon(config: str) -> Iterator[Daemon]:
    with BlockingContext(Config.load(config)) as context:
        yield Daemon(context)


def test_a_request_is_made_of_all_words_and_its_answer_printed(daemon: Daemon, config: str) -> None:
    with Tool("tnwgdcmd", "-c", config, "-T", daemon.target, '"port al"', "snap", "pcfg") as tool:
        assert tool.wait() == 0
    assert daemon.asked == ['"port al" snap pcfg']
    assert (tool.out, tool.err) == ("OK\n", "")


@pytest.mark.parametrize(
    ("answer", "line", "status"),
    [
        (b"OK 1", "OK 1", 0),
        (b"OK\0", "OK", 0),
        (b"ERROR unknown request", "ERROR unknown request", 1),
        (b"", "", 1),
        (b"not OK", "not OK", 1),
        (b"\x1b[2J\xff", "\\x1b[2J\ufffd", 1),
    ],
)
def test_only_a_leading_ok_is_success(daemon: Daemon, config: str, answer: bytes, line: str, status: int) -> None:
    daemon.answers["version"] = answer
    with Tool("tnwgdcmd", "-c", config, "-T", daemon.target, "version") as tool:
        assert tool.wait() == status
    assert tool.out == f"{line}\n"


def test_each_line_of_the_input_is_a_request(daemon: Daemon, config: str) -> None:
    daemon.answers["no"] = b"ERROR unknown request"
    with Tool("tnwgdcmd", "-c", config, "-T", daemon.target) as tool:
        tool.write_line("ri 5")
        assert tool.wait_for("OK") == "OK"
        for line in ("", "no", "snap"):
            tool.write_line(line)
        tool.close_input()
        assert tool.wait() == 1
    assert daemon.asked == ["ri 5", "no", "snap"]
    assert tool.lines == ["OK", "ERROR unknown request", "OK"]


def test_silence_is_told_after_the_time_that_was_given(daemon: Daemon, config: str) -> None:
    with Tool("tnwgdcmd", "-c", config, "-T", daemon.target, "--timeout", "0.2", "silence") as tool:
        assert tool.wait() == 3
    assert tool.out == ""
    assert tool.err.startswith(f"tnwgdcmd: request to {daemon.target}: no response within 0.2 s; see that this is")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["version"], "tnwgdcmd: the following arguments are required: -T/--target"),
        (["-T", "host:1", "version"], "tnwgdcmd: target 'host:1' is not TCP:ip:port or TCP:domain:ip:port"),
        (["-T", "TCP:127.0.0.1:1", "--timeout", "x", "version"], "tnwgdcmd: argument --timeout: 'x' is not a number"),
    ],
)
def test_wrong_usage_is_told_in_a_line(config: str, arguments: list[str], said: str) -> None:
    with Tool("tnwgdcmd", "-c", config, *arguments) as tool:
        assert tool.wait() == 2
    assert tool.err.startswith(said)
    assert tool.err.count("\n") == 1

"""lbmreq, lbmresp, lbmimsg, lbmireq and lbmtrreq as users run them: processes on the loopback interface."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.lbm_tools import Tool, ToolNet

TOPIC = "service"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[ToolNet]:
    with ToolNet(tmp_path) as made:
        yield made


def with_group(net: ToolNet) -> str:
    """A file with a group for immediate messages."""
    path = Path(net.config("tcp"))
    group = next(line.split()[2] for line in path.read_text().splitlines() if "resolver_multicast_address" in line)
    return net.config(
        "tcp", f"context mim_address {group.rpartition('.')[0]}.254\ncontext mim_destination_port {net.port}"
    )


def target_of(responder: Tool) -> str:
    return responder.wait_for("request address").rpartition(" ")[2]


def until_answered(asker: Tool) -> tuple[int, int]:
    """End it when the responses to a request have come; returns responses and their bytes."""
    asker.wait_for("Response [")
    asker.signal(signal.SIGTERM)
    assert asker.wait() in (0, 143)
    match = re.fullmatch(r"lbmi?req: sent \d+ requests, received (\d+) responses, (\d+) bytes", asker.lines[-1])
    assert match is not None
    return int(match[1]), int(match[2])


def end(tool: Tool) -> None:
    tool.signal(signal.SIGTERM)
    assert tool.wait() == 0


@pytest.mark.parametrize("queue", [[], ["-q"]], ids=["callback", "queue"])
def test_requests_on_a_topic_are_answered(net: ToolNet, queue: list[str]) -> None:
    """Again, until the receiver has found the source."""
    config = net.config("lbtrm")
    with Tool("lbmresp", "-c", config, "-l", "100", "-r", "2", TOPIC) as responder:
        target = target_of(responder)
        with Tool("lbmreq", "-c", config, "-d", "0", "-P", "0.5", "-L", "60", *queue, TOPIC) as asker:
            responses, size = until_answered(asker)
        assert size == 100 * responses
        assert asker.lines.count(f"Response [{target}], 100 bytes") == responses
        end(responder)
    match = re.fullmatch(r"lbmresp: answered (\d+) requests, sent (\d+) responses", responder.lines[-1])
    assert match is not None
    assert int(match[2]) == 2 * int(match[1]) > 0
    assert responder.lines[1].startswith(f"Request [{TOPIC}][LBTRM:127.0.0.1:")
    assert responder.lines[1].endswith("], 25 bytes")


@pytest.mark.parametrize("topic", [[TOPIC], []], ids=["topic", "topicless"])
@pytest.mark.parametrize("way", ["unicast", "multicast"])
def test_immediate_requests_are_answered(net: ToolNet, way: str, topic: list[str]) -> None:
    config = with_group(net)
    with Tool("lbmresp", "-c", config, TOPIC) as responder:
        address = target_of(responder)  # it listens then: nobody sends a multicast message again to who comes later
        target = ["-T", address] if way == "unicast" else []
        with Tool("lbmireq", "-c", config, "-d", "0", "-P", "60", "-R", "1", *target, *topic) as asker:
            assert until_answered(asker) == (1, 25)
        end(responder)
    assert f"Request IM [{''.join(topic)}][" in responder.out


def test_another_program_answers_what_is_forwarded(net: ToolNet) -> None:
    config = net.config("tcp")
    with Tool("lbmresp", "-c", config, "others") as other:
        target_of(other)
        with Tool("lbmresp", "-c", config, "-f", "others", "-s", TOPIC) as first:
            target = target_of(first)
            with Tool("lbmireq", "-c", config, "-T", target, "-d", "0", "-P", "0.5", TOPIC) as asker:
                responses, size = until_answered(asker)
            end(first)
        end(other)
    assert size == 25 * responses > 0
    assert first.lines[-1].endswith("sent 0 responses")
    assert "Forwarded request [others][TCP:" in other.out
    assert "Request" not in first.out


def test_immediate_messages_come_to_receivers_of_their_topics(net: ToolNet) -> None:
    config = with_group(net)
    with Tool("lbmwrcv", "-c", config, "-v", "-O", "-r", "6", "^t") as receiver:
        receiver.wait_for("receiving")
        with Tool("lbmimsg", "-c", config, "-n", "3", "-M", "6", "-P", "1", "-l", "10", "-d", "0", "t") as sender:
            assert receiver.wait() == 0
            assert sender.wait() == 0
    assert sender.lines[-1].startswith("lbmimsg: sent 6 messages, 60 bytes, ")
    found = [line.split("]")[0] for line in receiver.lines if line.startswith("IM [")]
    assert found == ["IM [t1", "IM [t2", "IM [t3"] * 2


@pytest.mark.parametrize("queue", [[], ["-q"]], ids=["callback", "queue"])
def test_those_without_a_topic_are_printed_too(net: ToolNet, queue: list[str]) -> None:
    config = with_group(net)
    with Tool("lbmrcv", "-c", config, "-v", "-r", "2", *queue, "t") as receiver:
        receiver.wait_for("receiving")
        with Tool("lbmimsg", "-c", config, "-o", "-M", "2", "-l", "10", "-d", "0") as sender:
            assert receiver.wait() == 0
            assert sender.wait() == 0
    assert [line.startswith("IM [][LBTRM:") for line in receiver.lines[1:3]] == [True, True]


def test_one_that_nobody_takes_is_an_error(net: ToolNet) -> None:
    config = net.config("tcp")
    with Tool("lbmimsg", "-c", config, "-T", "TCP:99:127.0.0.1:14391", "-o", "-M", "1", "-d", "0") as sender:
        assert sender.wait() == 3
    assert "no DRO offers domain 99" in sender.err
    with Tool("lbmreq", "-c", config, "-d", "0", "-P", "0", "-R", "1", "-L", "0", "nobody") as asker:
        assert asker.wait() == 1
    assert asker.lines[-1] == "lbmreq: sent 1 requests, received 0 responses, 0 bytes"


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("lbmimsg", [], "give a topic, or -o for none"),
        ("lbmimsg", ["-o", "t"], "give a topic, or -o for none"),
        ("lbmimsg", ["-o", "-n", "3"], "-n needs a topic"),
        ("lbmimsg", ["-T", "SOURCE:TCP:127.0.0.1:1[2]", "t"], "is not TCP:ip:port or TCP:domain:ip:port"),
        ("lbmireq", ["-T", "TCP:1.2.3:4"], "is not TCP:ip:port or TCP:domain:ip:port"),
        ("lbmtrreq", [], "say what to ask for"),
        ("lbmtrreq", ["-a", "-i", "0"], "-i: everybody answers each request, so at least 100 milliseconds"),
    ],
)
def test_wrong_arguments_are_named(tool: str, arguments: list[str], why: str) -> None:
    with Tool(tool, *arguments) as program:
        assert program.wait() == 2
    assert why in program.err


def test_everybody_can_be_asked_to_advertise(net: ToolNet) -> None:
    """A receiver that does not query, with a source that is quiet: they find each other by the request alone."""
    quiet = (
        "source resolver_advertisement_minimum_initial_interval 0\n"
        "source resolver_advertisement_sustain_interval 0\n"
        "receiver resolver_query_minimum_initial_interval 0\n"
        "receiver resolver_query_sustain_interval 0\n"
    )
    config = net.config("tcp", quiet)
    with Tool("lbmsrc", "-c", config, "--wait-for-line", "-M", "1", "-L", "0", TOPIC) as source:
        source.wait_for("source created")
        with Tool("lbmrcv", "-c", config, "-r", "1", TOPIC) as receiver:
            receiver.wait_for("receiving")
            with Tool("lbmtrreq", "-c", config, "-a", "-i", "100", "-d", "0.3", "-L", "0") as asker:
                receiver.wait_for("source found")
                assert asker.wait() == 0
            source.write_line()
            assert receiver.wait() == 0
        source.wait()
    assert asker.lines[-1].startswith("lbmtrreq: sent ")

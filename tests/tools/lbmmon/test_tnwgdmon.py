"""`tnwgdmon` as users run it: a process, and daemon statistics in both forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dro.lbmmon.binary import PORTAL_STATS, binary_messages, gateway_config, portal_config
from dro.lbmmon.fields import PB
from dro.lbmmon.packet import encode
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from tests.fakes.um_contexts import PATIENCE_S
from tests.rigs.lbm_tools import Tool, ToolNet
from tests.tools.lbmmon.test_lbmmon import SESSION, of_dro

TIME_NS: Final = 1_700_000_000_250_000_000
[(_, ENDPOINT), (_, PEER)] = binary_messages(of_dro().message, PORTAL_STATS, time_ns=TIME_NS, order=">")
CONFIG: Final = gateway_config("<tnwgd>\n</tnwgd>", TIME_NS)
OPTIONS: Final = portal_config(1, 1, "P", "source context", [("mim_address", "0.0.0.0")], TIME_NS)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[ToolNet]:
    with ToolNet(tmp_path) as made:
        yield made


def heard(net: ToolNet, binary: list[bytes], packets: list[bytes], count: int, *arguments: str, topic: str) -> Tool:
    """A program that has ended after so many messages."""
    file = net.config("tcp")
    with Tool("tnwgdmon", "-c", file, "-n", str(count), *arguments) as tool:
        with BlockingContext(Config.load(file)) as context:
            sources = [(context.source(topic), binary), (context.source("/29west/statistics"), packets)]
            for source, _ in sources:
                source.wait_receivers(timeout=PATIENCE_S)
            for source, messages in sources:
                for message in messages:
                    source.send(message)
            assert tool.wait() == 0
        return tool


def test_binary_messages_are_told_by_the_names_of_their_members(net: ToolNet) -> None:
    tool = heard(net, [ENDPOINT, CONFIG, OPTIONS], [], 3, topic="tnwgd.monitor")
    assert tool.lines[0] == "2023-11-14T22:13:20.250000Z PORTSTAT version 1 960 bytes big-endian"
    for line in (
        "  portal_name E\\x1b",
        "  send_stats.transport_topic_fragments_sent 1099511627776",
        "  ingress_cost 3",
        "  text <tnwgd>",
        "  text </tnwgd>",
        "  attr_type source context",
        "  option mim_address 0.0.0.0",
    ):
        assert line in tool.lines
    assert tool.err.splitlines()[-1] == "tnwgdmon: received 3 packets, bad 0, lost 0"


def test_json_has_a_message_on_each_line(net: ToolNet) -> None:
    tool = heard(net, [b"not binary", PEER, OPTIONS], [], 2, "--json", "/my/daemon", topic="/my/daemon")
    peer, options = [json.loads(line) for line in tool.lines]
    assert (peer["name"], peer["version"], peer["timeUs"], peer["isBigEndian"]) == (
        "PORTSTAT", 1, TIME_NS // 1000, True,
    )  # fmt: skip
    assert (peer["values"]["portal_name"], peer["values"]["portal_type"]) == ("P", 1)
    assert options["options"] == {"mim_address": "0.0.0.0"}
    assert "tnwgdmon: [/my/daemon]" in tool.err
    assert tool.err.splitlines()[-1] == "tnwgdmon: received 2 packets, bad 1, lost 0"


def test_of_the_statistics_topic_those_of_dros_are_told(net: ToolNet) -> None:
    tool = heard(net, [], [encode(SESSION, PB), encode(of_dro(), PB)], 1, "--json", topic="tnwgd.monitor")
    [found] = [json.loads(line) for line in tool.lines]
    assert found["attributes"]["applicationId"] == "dro1"


def test_one_topic_cannot_have_both(net: ToolNet) -> None:
    with Tool("tnwgdmon", "-c", net.config("tcp"), "/29west/statistics") as tool:
        assert tool.wait() == 2
    assert "have the same topic /29west/statistics" in tool.err

"""A reload of a file that means the same puts nothing on the network, not even a report of a group."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from supervisor.admin.client import Client, find_dro
from tests.rigs.netns.app import App, Board
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.topology import app_hosts, running_dro, trd_name
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark, pytest.mark.slow]

Judged = Callable[..., AbstractContextManager[Watch]]
SELDOM = """
      <topic-resolution>
        <remote-topic-interest min-interval="600000" max-interval="600001"/>
        <domain-route min-interval="600000" max-interval="600001"/>
        <initial-request periodic-interval="600000" duration="600"/>
      </topic-resolution>"""
SILENT = """\
source resolver_advertisement_minimum_initial_duration 500
source resolver_advertisement_minimum_sustain_duration 1
receiver resolver_query_minimum_initial_duration 500
receiver resolver_query_minimum_sustain_duration 1
"""
"""Sources and receivers are told of for a second and no longer; TCP sessions say nothing of themselves."""
RELOADS = 6


def packets_out(host: Host) -> int:
    """IP packets of any kind that the host has ever sent."""
    names, values = [line.split() for line in host.run(["cat", "/proc/net/snmp"]).stdout.splitlines()[:2]]
    return int(values[names.index("OutRequests")])


def reformatted(text: str, number: int) -> str:
    """The same in other words: order, white space, remarks."""
    blocks = re.findall(r" *<endpoint>.*?</endpoint>\n", text, re.DOTALL)
    for block in blocks:
        text = text.replace(block, "")
    turned = blocks[number % len(blocks) :] + blocks[: number % len(blocks)]
    return text.replace("  </portals>", f"<!-- {number} -->\n" + "\n\n".join(turned) + "</portals>")


def test_the_same_file_in_other_words_sends_no_packet(net: Net, judged: Judged) -> None:
    kinds = {1: "tcp", 2: "tcp"}
    board = Board()
    with (
        judged(*map(trd_name, kinds)),
        running_dro(net, kinds, um=dict.fromkeys(kinds, SILENT), more=dict.fromkeys(kinds, SELDOM)) as dro,
    ):
        hosts = app_hosts(net, 1, 2)
        source, receiver = App(hosts[1], dro.configs[1], board, "source"), App(hosts[2], dro.configs[2], board)
        receiver.receive(b"quotes", cell=0)
        source.open("s", b"quotes")
        receiver.wait_heard(b"quotes")
        source.send("s", 10, cells=(0,))
        source.wait_sent("s")
        file = net.folder / "dro.xml"
        client = Client(find_dro(str(dro.process.pid)))
        last = [-1]

        def is_quiet() -> bool:
            before, last[0] = last[0], packets_out(dro.host)
            return before == last[0]

        wait_until(is_quiet, "two seconds without a packet", 90, every_s=2.0)
        text = file.read_text()
        noisy = 0
        for number in range(RELOADS):
            file.write_text(reformatted(text, number))
            before = packets_out(dro.host)
            answer = client.request("reload")
            noisy += packets_out(dro.host) != before
            assert answer["plan"] == {"file": str(file), "changes": [], "actions": [], "warnings": []}
        assert noisy <= 1, "reloads send something; one of them may meet a timer of the kernel"
        file.write_text(text.replace("<domain-id>2</domain-id>", '<domain-id>2</domain-id><sqn-window size="8192"/>'))
        before = packets_out(dro.host)
        client.request("reload", within_s=60)
        assert packets_out(dro.host) > before, "a portal that restarts is heard"
        receiver.wait_heard(b"quotes")
        client.close()
        for app in (source, receiver):
            app.end()

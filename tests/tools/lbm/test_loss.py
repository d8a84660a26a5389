"""Loss that nobody repairs, on a network that loses datagrams: what the receiving tools count, print and end with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.rigs.netns.harness import Net

pytestmark = pytest.mark.netns

TOPIC = "loss"
DATA_PORT = 14400
# a gap is given up before the first NAK leaves; one message a datagram; the end is told
CONFIG = """
context default_interface 10.29.4.{host}
context resolver_multicast_interface 10.29.4.{host}
source transport lbtrm
source resolver_send_final_advertisements 1
source implicit_batching_minimum_length 1
receiver transport_lbtrm_nak_generation_interval 20
receiver transport_lbtrm_nak_initial_backoff_interval 5000
"""


def run(net: Net, tool: str, *arguments: str) -> tuple[int, list[str]]:
    """One source with 300 messages and a receiver that every tenth datagram does not reach: status and lines."""
    source = net.host("source", {"trd1": "10.29.4.1/24"})
    receiver = net.host("receiver", {"trd1": "10.29.4.2/24"})
    paths = []
    for number in (1, 2):
        paths.append(net.folder / f"{number}.cfg")
        paths[-1].write_text(CONFIG.format(host=number))
    rule = receiver.lose(every=10, dports=[DATA_PORT])
    process = receiver.start_python("-m", f"dro.tools.lbm.{tool}", "-c", str(paths[1]), *arguments, TOPIC, name=tool)
    process.wait_output("receiving")
    sender = source.start_python(
        "-m", "dro.tools.lbm.lbmsrc", "-c", str(paths[0]), "-V", "-M", "300", "-P", "5", "-d", "1", "-L", "0.5", TOPIC,
        name="lbmsrc",
    )  # fmt: skip
    process.wait_output("source found")
    assert sender.wait(60) == 0, sender.stderr
    status = process.wait(60)
    assert rule.remove().dropped
    assert process.stderr == ""
    return status, process.stdout.splitlines()


@pytest.mark.parametrize("tool", ["lbmrcv", "lbmwrcv"])
def test_every_loss_is_told_and_the_status_is_1(net: Net, tool: str) -> None:
    status, lines = run(net, tool, "-S", "-V", "-O", "-v")
    assert status == 1
    last = re.fullmatch(rf"{tool}: received (\d+) messages, (\d+) bytes, lost (\d+), bursts 0, bad 0", lines[-1])
    assert last is not None, lines[-5:]
    received, size, lost = map(int, last.groups())
    told = [int(m[1]) for line in lines if (m := re.fullmatch(rf"\[{TOPIC}\]\[.+\]\[(\d+)\], 25 bytes", line))]
    gaps = [int(m[1]) for line in lines if (m := re.fullmatch(rf"\[{TOPIC}\]\[.+\]\[(\d+)\], LOST", line))]
    assert (len(told), len(gaps)) == (received, lost)
    assert size == received * 25
    assert lost > 10
    assert sorted(told + gaps) == list(range(told[0], max(told + gaps) + 1))  # nothing twice, nothing in silence
    rates = [
        m for line in lines if (m := re.search(r"\[(\d+) pkts lost, (\d+) msgs unrecovered, 0 loss bursts\]", line))
    ]
    assert sum(int(m[2]) for m in rates) <= lost


def test_too_much_loss_ends_the_receiver(net: Net) -> None:
    status, lines = run(net, "lbmrcv", "-U", "5")
    assert status == 1
    last = re.fullmatch(r"lbmrcv: received (\d+) messages, \d+ bytes, lost (\d+), bursts 0, bad 0", lines[-1])
    assert last is not None, lines[-5:]
    received, lost = map(int, last.groups())
    assert lost * 100 >= 5 * (received + lost)
    assert received < 250
    assert not any("End of Transport Session" in line for line in lines)


def test_loss_that_nobody_asked_about_is_no_failure(net: Net) -> None:
    status, lines = run(net, "lbmrcv", "-E")
    assert status == 0
    last = re.fullmatch(r"lbmrcv: received \d+ messages, \d+ bytes, lost (\d+), bursts 0, bad 0", lines[-1])
    assert last is not None, lines[-5:]
    assert int(last[1]) > 10

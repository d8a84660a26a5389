"""Late join and recovery as users run them: two DROs with a link, `lbmsrc -j` in one TRD, `lbmrcv` in another."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.daemon.test_peers import Chain, running_pair
from tests.rigs.lbm_tools import Tool

TOPIC: Final = "late.test"
COUNT: Final = 1000


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with running_pair(tmp_path) as chain:
        yield chain


def sqns_of(receiver: Tool) -> list[str]:
    """Sqns and marks of what a receiver has printed."""
    lines = [line.partition("][")[2].partition("][")[2] for line in receiver.lines if line.endswith(" bytes")]
    return [line.partition(",")[0] for line in lines]


def test_a_late_receiver_behind_two_dros_prints_everything_as_sent_again(chain: Chain) -> None:
    config = [str(chain.plan.config(trd)) for trd in (1, 2)]
    with Tool(
        "lbmsrc", "-c", config[0], "-j", "1m", "-V", "-l", "16-100", "-M", str(COUNT), "-d", "0", "-L", "600",
        "-s", "0.5", "--payload-sha256", TOPIC,
    ) as source:  # fmt: skip
        source.wait_for(f"msgs_sent {COUNT},")
        with Tool("lbmrcv", "-c", config[1], "-v", "-V", "-O", "-r", str(COUNT), "--payload-sha256", TOPIC) as late:
            assert late.wait() == 0, late.err + chain.logs()
        source.signal(signal.SIGTERM)
        assert source.wait() == 0
    assert sqns_of(late) == [f"{sqn}]-RX-" for sqn in range(COUNT)]
    assert late.received[0::2] == (COUNT, 0, 0)
    assert late.digest == source.digest


def test_what_a_killed_dro_has_lost_is_brought_by_recovery(chain: Chain) -> None:
    """Each message once and in order, those from the time without the DRO marked; late join is off."""
    config = [str(chain.plan.config(trd)) for trd in (1, 2)]
    with Path(config[1]).open("a") as file:
        file.write("receiver use_otr 1\nreceiver use_late_join 0\n")
    with Tool("lbmrcv", "-c", config[1], "-v", "-V", "-O", "-r", str(COUNT), TOPIC) as receiver, Tool(
        "lbmsrc", "-c", config[0], "-j", "1m", "-V", "-l", "16-100", "-P", "10", "-d", "0", TOPIC
    ) as source:  # fmt: skip
        receiver.wait_for(" bytes")
        chain.processes["B"].kill()
        chain.processes.pop("B").wait()
        chain.start_dro("B")
        assert receiver.wait() == 0, receiver.err + chain.logs()
        source.signal(signal.SIGTERM)
        source.wait()
    sqns = sqns_of(receiver)
    first = int(sqns[0].partition("]")[0])
    assert [sqn.partition("]")[0] for sqn in sqns] == [str(first + n) for n in range(COUNT)]
    assert sum(sqn.endswith("-OTR-") for sqn in sqns) > 0
    assert receiver.received[2:] == (0, 0, 0)

"""Late join as users run it: two DROs with a link, `lbmsrc -j` in one TRD, an `lbmrcv` that comes late in another."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

from tests.daemon.test_peers import Chain
from tests.network.plans import PAIR
from tests.rigs.lbm_tools import Tool
from tests.rigs.network import Plan, Ports

TOPIC: Final = "late.test"
COUNT: Final = 1000


def test_a_late_receiver_behind_two_dros_prints_everything_as_sent_again(tmp_path: Path) -> None:
    ports: Ports = PAIR  # type: ignore[assignment]
    chain = Chain(Plan(tmp_path, ports))
    try:
        for name in PAIR:
            chain.start_dro(name)
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
        sqns = [line.partition("][")[2].partition("][")[2] for line in late.lines if line.endswith(" bytes")]
        assert [sqn.partition(",")[0] for sqn in sqns] == [f"{sqn}]-RX-" for sqn in range(COUNT)]
        assert late.received[0::2] == (COUNT, 0, 0)
        assert late.digest == source.digest
    finally:
        for name in list(chain.processes):
            chain.end(name)
        chain.plan.close()

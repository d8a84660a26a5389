"""Shows the history of a demonstration: what its DROs have counted, aggregated by Spark, and a page of answers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from supervisor.admin.client import Client, find_dro
from supervisor.admin.status import PortalsStatus

INTERVAL_S: Final = 1.0
QUIET_S: Final = 1.0
LIMIT_S: Final = 20.0
NEEDS: Final = "it needs what `pip install open-dro[history,analytics]` installs: `make demo-history` does"
_FORWARDED: Final = ("FORWARDED", "UNICAST_FORWARDED", "IMMEDIATE_TOPIC_FORWARDED", "IMMEDIATE_TOPICLESS_FORWARDED")


def lack() -> str:
    """Say what is not installed; empty when all is there."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except ImportError as e:
        return f"{e.name} is not installed; {NEEDS}"
    return ""


def arguments(folder: Path) -> Sequence[str]:
    """Give what is said to a `tnwgd` that keeps its history there."""
    return ("--history", str(folder), "--history-interval", f"{INTERVAL_S:g}")


def counted(pids: Iterable[int]) -> int:
    """Messages that all portals have forwarded, once no more come."""
    pids = list(pids)
    deadline = time.monotonic() + LIMIT_S
    before, now = -1, _forwarded(pids)
    while before != now and time.monotonic() < deadline:
        time.sleep(QUIET_S)
        before, now = now, _forwarded(pids)
    return now


def _forwarded(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        with Client(find_dro(str(pid))) as client:
            told = client.ask(PortalsStatus, "portals")
            total += sum(portal.counters.get(name, 0) for portal in told.portals for name in _FORWARDED)
    return total


def report(folder: Path, messages: int) -> int:
    """Aggregate the history and make its page. Returns the exit status: 1 unless gold has all `messages`."""
    page = folder / "report"
    for program in (
        ("analytics.aggregate", "--history", str(folder)),
        ("analytics.report", "all", "--history", str(folder), "--html", str(page)),
    ):
        print(f"demo: {' '.join(['python -m', *program])}", flush=True)
        if subprocess.run([sys.executable, "-m", *program], stdout=subprocess.DEVNULL, check=False).returncode:
            return 1
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    in_gold = pc.sum(pq.read_table(folder / "gold/day")["forwarded_messages"]).as_py()
    print(f"page of all answers: {page / 'index.html'}")
    print(f"history: messages {messages} in counters, {in_gold} in gold", flush=True)
    return int(in_gold != messages)

"""Kills portals of a DRO under load, and counts at the message level what receivers with default options get."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.bench.links import KINDS
from tests.rigs.going_on import kill_portals
from tests.rigs.link_kills import kill_peers

PER_DRO = 100


def show(what: str, pauses_ms: Iterable[float], messages: int) -> None:
    pauses = sorted(pauses_ms)
    print(
        f"{what}: {len(pauses)} kills, {messages} messages; pause median {pauses[len(pauses) // 2]:.0f}, "
        f"p90 {pauses[len(pauses) * 9 // 10]:.0f}, most {pauses[-1]:.0f} ms",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="going_on", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of each transport and kind of link (default 100)")
    parser.add_argument("--links", nargs="*", default=["TCP", "UDP+TLS+LZ4"], choices=list(KINDS))
    parser.add_argument("--transports", nargs="*", default=["lbtrm", "tcp"], choices=["lbtrm", "tcp"])
    parser.add_argument(
        "--at-once", type=int, nargs="+", default=[1], help="how many are killed at a time, by chance one of these; "
        "of several one may be the route manager (default 1)",
    )  # fmt: skip
    arguments = parser.parse_args()
    problems: list[str] = []
    for transport in arguments.transports:
        pauses: list[float] = []
        messages = clean_starts = 0
        while len(pauses) < arguments.kills:
            with tempfile.TemporaryDirectory(prefix="dro-going-on-") as name:
                some = min(PER_DRO, arguments.kills - len(pauses))
                outcome = kill_portals(Path(name), transport, some, random.Random(), at_once=arguments.at_once)
            pauses += outcome.pauses_ms
            messages += outcome.messages
            clean_starts += outcome.clean_starts
            problems += outcome.problems
        show(transport, pauses, messages)
        print(f"{transport}: {clean_starts} lives began clean")
    for kind in arguments.links:
        with tempfile.TemporaryDirectory(prefix="dro-going-on-") as name:
            result = kill_peers(Path(name), kind, arguments.kills, random.Random())
        show(f"peer link by {kind}", result.pauses_ms, result.sent)
        counts = result.lost, result.doubled, result.disordered
        if any(counts) or result.log:
            problems += [f"{kind}: %d lost, %d doubled, %d out of order" % counts, *result.log]
    print("\n".join(problems) or "nothing lost, doubled or out of order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

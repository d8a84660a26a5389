"""Measures what a route table costs a transit portal and the route manager, with half of the domains on either side.

`python -m tests.bench.route_tables --domains 300 1000`: the longest turn in processor time while a table is cut for
the portal, sent, read and taken over, then another one that differs in a route; and the memory that it takes.
`--dros 100 1000`: what the route manager needs to calculate the table of a network of so many DROs, each in two of as
many TRDs, and another one when the cost of a portal has changed: the median and the most of 20 portals.
"""

from __future__ import annotations

import argparse
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from statistics import median
from typing import Final

from dro.bus.messages import ROUTE_MESSAGES, Origin, Route, RouteTable
from dro.clock import NS_PER_MS
from portals.decisions.core import PortalCore
from portals.decisions.effects import GoOn
from portals.decisions.immediate.multicast import ImmediateForwarding
from portals.decisions.routes import entering_routes
from router.route_recalculation import SendTable
from router.route_table import TableCalculation
from router.topology import DroRecord, Neighbour
from tests.fakes.patterns import compile_pattern
from tests.router.test_paths import DRO_BIT

ME: Final = 1
OTHER: Final = 2
ROUNDS: Final = 3
CHANGES: Final = 20


def transit_table(domains: int) -> RouteTable:
    """Make a table as the route manager calculates it."""
    here, there = tuple(range(1, domains // 2 + 1)), tuple(range(domains // 2 + 1, domains + 1))
    routes = [Route(there, d, OTHER, ME) for d in here] + [Route(here, d, ME, OTHER) for d in there]
    return RouteTable(1, tuple(routes), tuple(Origin(d, 1, 1) for d in (*here, *there)))


def sent(table: RouteTable) -> bytes:
    """To the portal."""
    ((_, part),) = SendTable(table, ME).parts([ME])
    return ROUTE_MESSAGES.encode(part)


def received(frame: bytes) -> RouteTable:
    table = ROUTE_MESSAGES.decode(frame)
    assert isinstance(table, RouteTable)
    return table


def portal() -> PortalCore:
    return PortalCore(ME, 1, 0, source_deletion_delay_ns=0, matcher=compile_pattern)


def turns(core: PortalCore, routes: Sequence[Route]) -> Iterator[None]:
    """Take the next table over, what is left to slices step by step."""
    core.on_routes(core.routes.version + 1, routes, 0)
    yield
    for effect in core.take_effects():
        if isinstance(effect, GoOn):
            for _ in effect.steps:
                yield


def all_turns(domains: int) -> Iterator[None]:
    """Time manager and portal for a table, and for one that replaces it."""
    table = transit_table(domains)
    yield
    frame = sent(table)
    yield
    table = received(frame)
    yield
    core = portal()
    yield from turns(core, table.routes)
    ImmediateForwarding(0).on_routes(entering_routes(ME, table.routes))
    yield
    yield from turns(core, table.routes[1:])
    core.forget_routes(0)


def longest_ns(domains: int) -> int:
    """Processor time of the longest turn, the least of some rounds."""
    found = []
    for _ in range(ROUNDS):
        longest, began = 0, time.thread_time_ns()
        for _ in all_turns(domains):
            longest, began = max(longest, time.thread_time_ns() - began), time.thread_time_ns()
        found.append(max(longest, time.thread_time_ns() - began))
    return min(found)


def memory_bytes(domains: int) -> tuple[int, int]:
    """Weigh what a portal keeps because of a table, and the most while it reads it and takes it over."""
    core, frame = portal(), sent(transit_table(domains))
    tracemalloc.start()
    try:
        deque(turns(core, received(frame).routes), maxlen=0)
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def network(dros: int, rng: random.Random) -> list[DroRecord]:
    """Make a tree of TRDs with loops: each DRO joins its own TRD to one before, and some to two."""
    found = []
    for n in range(dros):
        trds = {n + 1, *(rng.randint(1, n) for _ in range(1 + (n % 4 == 0)) if n)}
        found.append(DroRecord(DRO_BIT | n, tuple(Neighbour(trd, c := rng.randint(1, 5), c) for trd in sorted(trds))))
    return found


def calculated(records: Sequence[DroRecord], before: TableCalculation | None = None) -> tuple[float, TableCalculation]:
    """Calculate the table of the DRO in the middle; returns milliseconds of processor time with it."""
    own = records[len(records) // 2]
    began = time.thread_time_ns()
    made = TableCalculation(own.node_id, records, {n.node_id: k for k, n in enumerate(own.neighbours, 1)}, before)
    assert made.run(1 << 60)
    return (time.thread_time_ns() - began) / NS_PER_MS, made


def show_calculations(dros: int) -> None:
    """Print what a network takes as a whole and after one changed cost, each time from the table before."""
    rng = random.Random(7)
    records = network(dros, rng)
    whole_ms, before = min((calculated(records) for _ in range(ROUNDS)), key=itemgetter(0))
    changed_ms = []
    for place in rng.sample(range(dros), CHANGES):
        first, *others = records[place].neighbours
        records[place] = replace(
            records[place], neighbours=(replace(first, egress_cost=first.egress_cost + 3), *others)
        )
        took_ms, before = calculated(records, before)
        changed_ms.append(took_ms)
    print(f"{dros} DROs: {whole_ms:.0f} ms; a changed cost {median(changed_ms):.0f} ms, at most {max(changed_ms):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dros", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--domains", type=int, nargs="+", default=[100, 300, 1000])
    arguments = parser.parse_args()
    for dros in arguments.dros:
        show_calculations(dros)
    for domains in arguments.domains:
        kept, most = memory_bytes(domains)
        turn_ms = longest_ns(domains) / NS_PER_MS
        print(f"{domains} domains: longest turn {turn_ms:.1f} ms; {kept >> 10} KiB are kept, {most >> 10} at most")


if __name__ == "__main__":
    main()

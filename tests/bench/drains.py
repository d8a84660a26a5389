"""Drains and removes portals of a loaded three-portal DRO, again and again, and reports how long it took.

Three flows go round the DRO: TRD 1 to 2, 2 to 3, 3 to 1. Each round drains or removes one portal under load, waits for
the ends of its sources, and brings it back. What the DRO sent for the flows that it carried must have been received,
and the third flow must not notice anything. In some rounds (`--kills`) a sibling is killed in the middle: then the
flows of the sibling have gaps, but everything must end, balance and flow again.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from dro.metrics.slots import DROP_SLOTS
from tests.bench.portal_recovery import show
from tests.rigs.books import books_of
from tests.rigs.flow import BOUND, DUPLICATES, MISSING, PAUSE, WRONG
from tests.rigs.orders import begin, order
from tests.rigs.ring import WORKERS, Ring
from tests.rigs.site import Site, drained, running

LIMIT = ("--limit", "100")


@dataclass(frozen=True)
class Round:
    """What one round did; times in ms."""

    worker: str
    how: str
    was_killed: bool
    gone: float  # from the order to its answer
    flowing: float  # from the order to bring it back to the last topic that flows again
    past_missing: int
    problems: tuple[str, ...]


def settled_problems(ring: Ring, pages: int, *, may_drop: bool) -> list[str]:
    """Pause, and see what does not balance."""
    for flow in ring.flows.values():
        flow[PAUSE] = 1
    with books_of(ring.site.pid, pages) as books:
        ring.wait(lambda: drained(books), "nothing on its way")
        found = books.problems()
        drops = {slot.name: total for slot in DROP_SLOTS.values() if (total := books.total(slot))}
        if drops and not may_drop:
            found.append(f"dropped {drops}")
    found += [flow.story() for flow in ring.flows.values() if flow[DUPLICATES] or flow[WRONG]]
    for flow in ring.flows.values():
        flow[PAUSE] = 0
    return found


def one_round(ring: Ring, worker: str, how: str, kill: bool) -> tuple[Round, int]:
    """The round, and how many portals it added."""
    site = ring.site
    past, into, out = ring.past(worker), ring.entering(worker), ring.leaving(worker)
    missing = {flow.label: flow[MISSING] for flow in ring.flows.values()}
    began = time.monotonic()
    ordered = begin(site.pid, "portal", how, worker, *LIMIT)
    if kill:
        time.sleep(random.random() * 3)  # at any phase of the drain
        site.kill(random.choice([name for name in WORKERS if name != worker]))
    said, told = ordered.communicate(timeout=200)
    gone = time.monotonic() - began
    problems = [] if ordered.returncode == 0 else [f"{how} {worker}: {said}{told}"]
    if not kill:
        for flow in (into, out):
            ring.wait(lambda f=flow: f[BOUND] == 0, "the ends", 90)
            if flow[MISSING] != missing[flow.label]:
                problems.append(f"{flow.label} lost {flow[MISSING] - missing[flow.label]}")
    began = time.monotonic()
    order(site.pid, "portal", {"drain": "resume", "remove": "add"}[how], worker)
    ring.wait_flowing_again()
    flowing = time.monotonic() - began
    past_missing = past[MISSING] - missing[past.label]
    return Round(worker, how, kill, gone * 1e3, flowing * 1e3, past_missing, tuple(problems)), how == "remove"


def main() -> None:
    parser = argparse.ArgumentParser(prog="drains", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--transport", choices=("lbtrm", "tcp"), default="lbtrm")
    parser.add_argument("--topics", type=int, default=34, help="of each of the three flows (default 34)")
    parser.add_argument("--rate", type=int, default=1000, help="messages per second of each flow (default 1000)")
    parser.add_argument("--interval", type=int, default=2000, help="NAK generation interval, ms (default 2000)")
    parser.add_argument("--kills", type=float, default=0.0, help="in which part of the rounds a sibling is killed")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    um = f"receiver transport_lbtrm_nak_generation_interval {arguments.interval}\n"
    numbers = (1, 2, 3)
    rounds: list[Round] = []
    problems: list[str] = []
    pages, killed = 3, False
    with TemporaryDirectory(prefix="dro-drains-") as name:
        site = Site(
            Path(name), 3, transports=dict.fromkeys(numbers, arguments.transport), um=dict.fromkeys(numbers, um)
        )
        with running(site):
            ring = Ring(site, arguments.topics, arguments.rate)
            for _ in range(arguments.rounds):
                kill = random.random() < arguments.kills
                one, added = one_round(ring, random.choice(WORKERS), random.choice(("drain", "remove")), kill)
                pages, killed = pages + added, killed or kill
                rounds.append(one)
                problems += [*one.problems, *settled_problems(ring, pages, may_drop=killed)]
                print(
                    f"{len(rounds):3} {one.how:<6} {one.worker}{' killing' if kill else ''}  gone {one.gone:7.0f} ms"
                    f"  flowing again {one.flowing:6.0f} ms  third flow: missing {one.past_missing}"
                    f"{'' if not problems else f'  {problems[-1]}'}",
                    flush=True,
                )
    print()
    plain = [one for one in rounds if not one.was_killed]
    if plain:
        show("from the order to the answer", [one.gone for one in plain])
        show("from the order to the last topic", [one.flowing for one in plain])
        print(f"  the third flow lost {sum(one.past_missing for one in plain)} messages")
    print("  books balance, nothing lost" if not problems else "\n".join(problems))


if __name__ == "__main__":
    main()

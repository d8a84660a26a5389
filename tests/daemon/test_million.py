"""A million messages through two real DROs: what became of each is in the counters, exactly, and everywhere the same.

An ordinary run sends 60,000 of them and kills three processes; with `DRO_LONG=1` it is the million.

First without kills: what the source sent, what each portal counts and what the receivers got agree in messages and in
bytes, with loss, repairs, an access control list, fragments that are too large, and a receiver that does not read. Then
every process is killed in turn while the rest of the million flows; what may be lost with a process is bounded by what
the books call lost with it. In both parts each scrape balances.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dro.metrics.slots import DROP_SLOTS, Slot
from dro.wire.lbmc import message as lbmc
from tests.bench.traffic import generator
from tests.bench.traffic.generator import Counts
from tests.bench.traffic.workload import Workload
from tests.rigs.effort import IS_LONG
from tests.rigs.figures import Figures, assert_same_everywhere
from tests.rigs.million import DROS, LARGE, PLAIN, SECRET, SIZES, Million, million
from tests.rigs.scraper import Scraper

WITHOUT_KILLS: Final = 850_000 if IS_LONG else 40_000
WITH_KILLS: Final = 150_000 if IS_LONG else 20_000
RATE: Final = 36_000 if IS_LONG else 20_000
RATE_WITH_KILLS: Final = 10_000 if IS_LONG else 8_000
PERIOD_S: Final = 1.0 if IS_LONG else 0.25  # of scrapes; each is parsed and judged afterwards
LOSS_PPM: Final = 5_000  # of the datagrams of the source, and of those that reach a receiver of TRD 2 and 3
OTHERS: Final = 200  # messages of each topic of the other source
LOST: Final = 20  # of these, for good
KILLS: Final = (
    ("A", "A-1"), ("A", "A-4"), ("A", "A-B"), ("A", "route-manager"), ("A", "monitor"),
    ("B", "B-A"), ("B", "B-2"), ("B", "B-3"), ("B", "route-manager"), ("B", "monitor"),
)  # fmt: skip
KILLED: Final = KILLS if IS_LONG else (KILLS[0], KILLS[2], KILLS[6])
WORKLOAD: Final = Workload(
    "million", topics=20, sessions=2, sizes=SIZES, has_trains=True, rate=RATE, window=1 << 30, has_books=True
)  # the window is never full: nobody waits for a receiver

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not generator.is_possible(), reason="the load generator needs gcc"),
]
Portals = dict[str, Figures]


def since(before: Portals, after: Portals) -> Portals:
    return {name: {slot: value - before[name][slot] for slot, value in of.items()} for name, of in after.items()}


def test_a_million_messages_are_accounted_for(tmp_path: Path) -> None:
    with generator.built() as program, million(program, tmp_path, WORKLOAD) as run:
        scrapers = [Scraper(run.plan.web(dro), may_be_killed=True, period_s=PERIOD_S) for dro in DROS]
        for scraper in scrapers:
            scraper.start()
        try:
            check_exactly(run)
            assert_told_everywhere(run)
            check_with_kills(run)
            assert_told_everywhere(run)
            assert run.load.counts().sent >= WITHOUT_KILLS + WITH_KILLS
        finally:
            for scraper in scrapers:
                scraper.stop()
        assert [scraper.problems for scraper in scrapers] == [[], []]
        assert min(scraper.scrapes for scraper in scrapers) > 20


def assert_told_everywhere(run: Million) -> None:
    for dro, ports in DROS.items():
        for port in ports:
            assert_same_everywhere(run.plan.web(dro), f"{dro}-{port}")


def check_exactly(run: Million) -> None:
    """All that can become of a message but the end of a process."""
    before, counts_before, read = run.portals(), run.load.counts(), (run.reader.messages, run.reader.nbytes)
    run.load.set(loss=LOSS_PPM, sinkloss=LOSS_PPM)
    run.load.tell(f"resume {WITHOUT_KILLS}")
    for n in range(OTHERS):
        run.other.send(SECRET)
        if n % (OTHERS // LOST) == 5:
            run.other.lose()
        else:
            run.other.send(PLAIN)
    run.reader.stop_reading()
    with run.books() as (at_a, _):
        run.wait(lambda: at_a.dropped(2)["would_block"] > before["A-4"]["DROPPED_BLOCKED"], "a receiver that blocks")
        run.reader.go_on()
        goal = before["A-1"]["UNRECOVERABLE"] + LOST
        run.wait(lambda: at_a[1, Slot.UNRECOVERABLE] >= goal, "what is lost for good")
    run.wait(lambda: run.load.counts().sent - counts_before.sent == WITHOUT_KILLS, "all messages", 200)
    run.load.tell("pause")
    run.load.set(loss=0, sinkloss=0)
    counts = run.settle()
    of = since(before, run.portals())
    arrived = [now - then for now, then in zip(counts.received, counts_before.received, strict=True)]
    gone = counts.gone - counts_before.gone
    taken = of["A-1"]["TOPIC_RCVD"]
    plain = OTHERS - LOST

    assert taken + of["A-1"]["NO_TOPIC_RCVD"] + of["A-1"]["UNRECOVERABLE"] == WITHOUT_KILLS + 2 * OTHERS
    assert of["A-1"]["NO_TOPIC_RCVD"] == OTHERS, "each message of the topic that is kept out"
    assert of["A-1"]["UNRECOVERABLE"] >= LOST
    assert counts.omitted > counts_before.omitted
    assert of["A-1"]["NAKS_SENT"] > 0

    assert of["A-4"]["FORWARDED"] == taken
    assert of["A-4"]["FORWARDED_BYTES"] == of["A-1"]["TOPIC_RCVD_BYTES"]
    assert of["A-B"]["FORWARDED"] == taken - plain
    assert of["B-A"]["TOPIC_RCVD"] == of["A-B"]["SENT"]
    assert of["B-A"]["TOPIC_RCVD_BYTES"] == of["A-B"]["SENT_BYTES"]
    for name in ("B-2", "B-3"):
        assert of[name]["FORWARDED"] == of["B-A"]["TOPIC_RCVD"]
        assert of[name]["FORWARDED_BYTES"] == of["B-A"]["TOPIC_RCVD_BYTES"]
    assert list(unbalanced(of)) == []

    assert (run.reader.messages - read[0], run.reader.nbytes - read[1]) == (of["A-4"]["SENT"], of["A-4"]["SENT_BYTES"])
    assert of["A-4"]["DROPPED_BLOCKED"] > 0
    assert of["B-3"]["DROPPED_SIZE"] > 0
    assert of["B-3"]["DROPPED_SIZE_BYTES"] == of["B-3"]["DROPPED_SIZE"] * (lbmc.HEADER.size + LARGE)
    assert of["B-2"]["DROPPED_SIZE"] == 0
    assert sum(arrived) + gone == of["B-2"]["SENT"] + of["B-3"]["SENT"], "a datagram has a message"
    assert gone or arrived == [of["B-2"]["SENT"], of["B-3"]["SENT"]]
    assert counts.again == 0


def check_with_kills(run: Million) -> None:
    before, counts_before = run.portals(), run.load.counts()
    run.load.set(rate=RATE_WITH_KILLS)
    run.load.tell("resume")
    for dro, worker in KILLED:
        run.kill(dro, worker)
    run.wait(lambda: run.load.counts().sent - counts_before.sent >= WITH_KILLS, "all messages", 100)
    run.load.tell("pause")
    counts = run.settle()
    of = since(before, run.portals())
    with run.books() as books:
        assert [of_one.problems() for of_one in books] == [[], []]
    assert list(unbalanced(of)) == []
    assert list(too_many(of, counts_before, counts)) == []
    assert counts.again == 0, "none arrives twice"
    for name in ("A-1", "A-4", "A-B", "B-A", "B-2", "B-3"):
        assert of[name]["TOPIC_RCVD"] + of[name]["SENT"] > WITH_KILLS // 4


def unbalanced(of: Portals) -> Iterator[str]:
    """Portals that do not say of all that came to them what became of it."""
    for name, slots in of.items():
        for unit in ("", "_BYTES"):
            parts = {part: slots[f"{part}{unit}"] for part in ("SENT", *(slot.name for slot in DROP_SLOTS.values()))}
            if slots[f"FORWARDED{unit}"] != sum(parts.values()):
                yield f"{name}: {slots[f'FORWARDED{unit}']}{unit} forwarded, {parts}"


def too_many(of: Portals, before: Counts, after: Counts) -> Iterator[str]:
    """Steps of the way behind which there is more than before them.

    What a process that is killed had sent and not counted is in the books as lost with it.
    """
    out = {name: of[name]["SENT"] + of[name]["DROPPED_RESTART"] for name in ("A-B", "B-2", "B-3")}
    at_a_1 = of["A-1"]["TOPIC_RCVD"]
    arrived = [now - then for now, then in zip(after.received, before.received, strict=True)]
    for what, less, more in (
        ("taken in", at_a_1, after.sent - before.sent),
        ("handed to A-4", of["A-4"]["FORWARDED"], at_a_1),
        ("handed to A-B", of["A-B"]["FORWARDED"], at_a_1),
        ("over the link", of["B-A"]["TOPIC_RCVD"], out["A-B"]),
        ("handed to B-2", of["B-2"]["FORWARDED"], of["B-A"]["TOPIC_RCVD"]),
        ("handed to B-3", of["B-3"]["FORWARDED"], of["B-A"]["TOPIC_RCVD"]),
        ("arrived in TRD 2", arrived[0], out["B-2"]),
        ("arrived in TRD 3", arrived[1], out["B-3"]),
    ):
        if less > more:
            yield f"{what}: {less} of {more}"

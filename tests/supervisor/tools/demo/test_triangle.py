"""The demonstration of three DROs: what receivers count, ask for again, and show."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dro.errors import DroError
from dro.um.message.events import Data
from supervisor.tools.demo.arrivals import SENT_AGAIN, STAMP, Arrivals, exit_status
from supervisor.tools.demo.demonstration import DemoScreen, Timetable
from supervisor.tools.demo.network import LINKS, TRIANGLE, WHOLE, DemoNetwork, LinkState, NetworkState
from supervisor.tools.demo.repairs import ranges
from supervisor.tools.demo.screen import CounterRates
from tests.supervisor.tools.demo.terminals import Terminal, pictures_of, run_on_a_terminal

LOOKS = 20


@pytest.fixture
def network(tmp_path: Path) -> DemoNetwork:
    """It looks at nothing: its thread is not started."""
    network = DemoNetwork({}, tmp_path, threading.Event())
    network.view = NetworkState(
        tuple(LinkState(f"{a}-{b}", (a, b) != ("A", "C"), 1, 123456789, 500.0) for a, b in LINKS), TRIANGLE.detour
    )
    return network


def give(arrivals: Arrivals, *serials: int, sent_ns: int = 1) -> None:
    for serial in serials:
        arrivals.on_event(Data("T", "S", serial, STAMP.pack(serial, sent_ns)))


def test_what_is_sent_again_fills_a_gap_and_is_no_duplicate() -> None:
    arrivals = Arrivals("receiver")
    give(arrivals, 0, 1, 5)
    assert arrivals.missing() == [2, 3, 4]
    assert arrivals.missing(sent=8) == [2, 3, 4, 6, 7]
    give(arrivals, 1, 2, 3, 4, 6, sent_ns=SENT_AGAIN)
    assert (arrivals.received, arrivals.repaired, arrivals.missing()) == (7, 4, [])
    assert exit_status(7, [arrivals]) == 0
    assert len(arrivals.latencies_ns) == 3


@pytest.mark.parametrize(
    ("serials", "of"), [((0, 1, 1), lambda a: a.duplicates), ((0, 2, 1), lambda a: a.out_of_order)]
)
def test_what_the_dros_double_or_reorder_shows_in_the_exit_status(
    serials: tuple[int, ...], of: Callable[[Arrivals], int]
) -> None:
    arrivals = Arrivals("receiver")
    give(arrivals, *serials)
    assert of(arrivals) == 1
    assert exit_status(arrivals.received, [arrivals]) == 1


def test_missing_messages_are_asked_for_in_ranges() -> None:
    assert ranges([2, 3, 4, 7, 9, 10]) == [(2, 3), (7, 1), (9, 2)]
    assert ranges([]) == []


def acts(timetable: Timetable, network: DemoNetwork, until_s: int) -> list[tuple[int, str]]:
    """In which seconds the link is cut and mended; the network does what it is told at once."""
    found: list[tuple[int, str]] = []
    for second in range(until_s):
        network.is_whole = True
        timetable.act(second, network)
        found += [(second, name) for name, told in (("cut", network.is_told_to_cut), ("mend", network.is_told_to_mend))
                  if told.is_set()]  # fmt: skip
        network.is_told_to_cut.clear()
        network.is_told_to_mend.clear()
    return found


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (20, [(3, "cut"), (10, "mend")]),
        (0, [(5, "cut"), (15, "mend"), (35, "cut"), (45, "mend")]),
        (4, []),
    ],
)
def test_when_the_link_is_cut(network: DemoNetwork, seconds: float, expected: list[tuple[int, str]]) -> None:
    assert acts(Timetable(seconds), network, 60) == expected


def test_dros_may_start_for_as_long_as_the_demonstration_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stop, looks = threading.Event(), iter(range(LOOKS))

    def starting(_: str) -> Path:
        if next(looks, None) is None:
            stop.set()
        raise DroError("it starts")

    monkeypatch.setattr("supervisor.tools.demo.network.find_dro", starting)
    monkeypatch.setattr("supervisor.tools.demo.network.STEP_LIMIT_S", 0.0)
    monkeypatch.setattr("supervisor.tools.demo.network.LOOK_S", 0.001)
    network = DemoNetwork({"A": 1}, tmp_path, stop)
    network.run()
    assert (stop.is_set(), network.error) == (True, "")


def test_no_line_is_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, network: DemoNetwork, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    arrivals = [Arrivals("receiver, TRD 2"), Arrivals("wildcard, TRD 3")]
    arrivals[0].source = "LBTRM:127.0.0.1:25046:df12c47a:239.207.97.10:25045[3745027089]" * 2
    DemoScreen(network, {}, {"link0": 1, "link1": 2, "link2": 3}, tmp_path).show(0, 0, arrivals)
    (lines,) = [picture for picture in pictures_of(terminal.getvalue()) if any(picture)]
    assert max(map(len, lines)) == 80
    assert [line.split()[:2] for line in lines if line.startswith(("  A-", "  B-"))] == [
        ["A-B", "up"], ["A-C", "cut"], ["B-C", "up"],
    ]  # fmt: skip
    assert "  path of the messages  to TRD 2  TRD1-A-B-TRD2   to TRD 3  TRD1-A-B-C-TRD3" in lines


def test_what_there_is_to_try_is_seen_on_a_terminal_of_24_lines(
    monkeypatch: pytest.MonkeyPatch, network: DemoNetwork, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((80, 24)))
    arrivals = [Arrivals("receiver, TRD 2"), Arrivals("wildcard, TRD 3")]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        ports = {f"{kind}{i}": 10000 + i for kind in ("link", "web") for i in range(3)}
        DemoScreen(network, dict.fromkeys("ABC", child), ports, tmp_path).show(0, 0, arrivals)
        child.communicate()
    (lines,) = [picture for picture in pictures_of(terminal.getvalue()) if any(picture)]
    [hint] = [line for line in lines if line.startswith("  try ")]
    assert f"--dro A-demo{os.getpid()} portals" in hint
    assert sum(line.endswith("  http://127.0.0.1:10001") for line in lines) == 1


def test_what_is_down_is_said_whatever_the_script_does(network: DemoNetwork) -> None:
    network.note = "portal A-C costs 10 now; the DROs calculate other routes"
    assert network.now == network.note, "its own cut"
    network.view = replace(network.view, troubled=("B-C is paused", "A-C is paused"))
    assert network.now == f"{network.note}; B-C is paused"
    network.note = WHOLE
    assert network.now == "B-C is paused; A-C is paused; link A-C is down"
    network.view = NetworkState()
    assert network.now == WHOLE


def test_who_watches_may_pause_what_the_script_pauses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may be mended before anybody has looked: the portal is resumed nevertheless."""
    (tmp_path / "triangle-a.xml").write_text("")
    network, orders = DemoNetwork({"A": 1}, tmp_path, threading.Event()), list[str]()
    monkeypatch.setattr(network, "_order", lambda command, **_: orders.append(command))
    monkeypatch.setattr("supervisor.tools.demo.network.LAST_MESSAGES_S", 0.0)
    up = tuple(LinkState(f"{a}-{b}", True, 1, 0, 0.0) for a, b in LINKS)
    steps = network._steps()
    network.view = NetworkState(up, network.layout.dros_to)
    network.cut()
    network.mend()
    next(steps)
    network.view = NetworkState(up, TRIANGLE.detour)
    next(steps)
    assert orders == ["reload", "portal pause", "portal resume", "reload"]


def test_rates_are_of_the_last_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    rates = CounterRates()
    for step in range(1, 40):
        now_s = 100 + step / 2
        uneven = 250 * step + 100 * (step % 2)  # as a busy machine lets a monitor look
        rate = rates.of({"x": uneven})["x"]
        assert rate == (pytest.approx(500, rel=0.05 if step > 20 else 0.5) if step > 1 else 0)


@pytest.mark.slow
def test_a_link_is_cut_and_mended_and_nothing_is_missing() -> None:
    status, shown = run_on_a_terminal("--seconds", "20")
    assert status == 0, shown
    pictures = pictures_of(shown)
    links = [next((line for line in picture if line.startswith("  A-C ")), "").split() for picture in pictures]
    states = [words[1] for words in links if words]
    assert (states[0], states[-1], set(states)) == ("up", "up", {"up", "cut"})
    cut = [picture for picture, words in zip(pictures, links, strict=True) if words[1:2] == ["cut"]]
    assert all(any("TRD1-A-B-C-TRD3" in line for line in picture) for picture in cut)
    assert all(len(line) <= 80 for picture in pictures for line in picture if line.startswith("  "))
    assert ", lost 0, duplicates 0, repaired " in shown

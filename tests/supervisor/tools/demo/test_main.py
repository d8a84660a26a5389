"""The demonstration of one DRO, and its command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.samples.processes import Processes
from supervisor.tools.demo.arrivals import Arrivals, exit_status
from supervisor.tools.demo.demonstration import DemoScreen
from supervisor.tools.demo.local_dro import tnwgdctl, workers_of
from supervisor.tools.demo.network import DIRECT, DemoNetwork
from tests.supervisor.tools.demo.terminals import Terminal, pictures_of, run_on_a_terminal


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate()


def test_no_line_is_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    arrivals = [Arrivals("receiver"), Arrivals("wildcard")]
    network = DemoNetwork({}, tmp_path, threading.Event(), DIRECT)
    arrivals[0].source = "LBTRM:127.0.0.1:25046:df12c47a:239.207.97.10:25045[3745027089]" * 2
    screen = DemoScreen(network, {"DEMO": child}, {"web0": 65535}, tmp_path)
    screen.show(0, 0, arrivals)
    first = terminal.getvalue()
    assert max(len(line.removeprefix("\x1b[2K")) for line in first.splitlines()) == 80
    screen.show(1, 0, arrivals)
    again = terminal.getvalue()[len(first) :]
    assert again.startswith(f"\x1b[{first.count(chr(10))}A")


@pytest.mark.slow
def test_the_whole_table_is_seen_on_a_terminal_of_eighty_columns() -> None:
    status, shown = run_on_a_terminal("--direct", "--seconds", "1")
    assert status == 0, shown
    lines = [line for picture in pictures_of(shown) for line in picture]
    table = [line for line in lines if line.startswith(("  ", "open DRO"))]
    assert max(map(len, table)) <= 80
    (head,) = {line for line in table if "messages" in line}
    assert head.split()[-2:] == ["p99.9", "us"]
    (process_head,) = {line for line in table if "memory" in line}
    assert process_head.endswith("memory MiB  web monitor")
    assert any(line.split()[0] == "route-manager" and len(line.split()) == 4 for line in table)


def test_memory_is_a_process_s_part_of_what_it_shares() -> None:
    use = workers_of(os.getpid(), Processes())[0]
    pages = Path("/proc/self/smaps_rollup").read_text()
    parts = {name: int(value) * 1024 for name, value in re.findall(r"^(Rss|Pss): +(\d+) kB", pages, re.M)}
    assert 0 < use.figures.resident_bytes < parts["Rss"]
    assert use.figures.resident_bytes == pytest.approx(parts["Pss"], rel=0.3)


def test_the_command_to_try_runs_as_it_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("tnwgdctl")
    for folder in (beside.parents[2], tmp_path):
        monkeypatch.chdir(folder)
        done = subprocess.run(
            [*tnwgdctl().split(), "--version"], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.startswith("tnwgdctl ")


@pytest.mark.parametrize(
    ("sent", "second", "status"),
    [
        (10, Arrivals("wildcard", received=10), 0),
        (10, Arrivals("wildcard", received=9), 1),
        (10, Arrivals("wildcard", received=10, duplicates=1), 1),
        (10, Arrivals("wildcard", received=10, out_of_order=1), 1),
        (0, Arrivals("wildcard"), 1),
    ],
)
def test_what_does_not_arrive_shows_in_the_exit_status(sent: int, second: Arrivals, status: int) -> None:
    first = Arrivals("receiver", received=sent)
    assert exit_status(sent, [first, second]) == exit_status(sent, [second, first]) == status


def test_a_wrong_argument_names_a_command_that_there_is() -> None:
    command = [sys.executable, "-m", "supervisor.tools.demo.main"]
    done = subprocess.run([*command, "--seconds", "-1"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("; try python -m supervisor.tools.demo.main --help\n")

"""The demonstration with Prometheus beside it, as `make demo-monitor` runs it, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.tools.demo.prometheus import NOT_INSTALLED, RULES, configuration, running_prometheus
from tests.rigs.terminal import TerminalProgram
from tests.rigs.waiting import wait_until
from tests.supervisor.tools.demo.running import LIMIT_S, Demo, files_of, processes_of


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path, "--monitor", "--rate", "100")
    yield made
    made.close()


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


def wait_metrics(web: str, series: str) -> None:
    """Until it listens and has that; the monitor is the last process to start."""

    def has() -> bool:
        try:
            return series in get(f"{web}/metrics")
        except OSError:
            return False

    wait_until(has, f"{series} of {web}", LIMIT_S, every_s=0.1)


def asked(address: str, path: str) -> Any:  # noqa: ANN401 - JSON
    answer = json.loads(get(f"{address}/api/v1/{path}"))
    assert answer["status"] == "success"
    return answer["data"]


@pytest.mark.slow
def test_it_is_watched_until_sigint_and_leaves_nothing(demo: Demo) -> None:
    webs = {name: demo.wait_for(rf"web monitor of {name}: (http://[\d.:]+), ")[1] for name in "ABC"}
    demo.wait_for(r"sent \d{2,}  TRD 2 received \d{2,} by A-B, ")
    for name, web in webs.items():
        wait_metrics(web, f'dro_up{{dro="{name}-demo{demo.process.pid}"}} 1.0')
    if shutil.which("prometheus"):
        see_targets(demo.wait_for(r"Prometheus: (http://[\d.:]+)/graph")[1], demo)
    else:
        assert NOT_INSTALLED in demo.output
    pid = demo.process.pid
    assert len(files_of(pid)) >= 6
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(LIMIT_S) == 0, demo.output
    assert re.search(r"demo: sent \d+, received \d+, lost 0, ", demo.output)
    assert processes_of(pid) == []
    assert files_of(pid) == []
    assert list(demo.temporary.iterdir()) == []


def see_targets(address: str, demo: Demo) -> None:
    """Both jobs of all three DROs are scraped, and the rules work on what they say."""

    def up() -> bool:
        targets = asked(address, "targets")["activeTargets"]
        return len(targets) == 6 and all(target["health"] == "up" for target in targets)

    wait_until(up, "targets that are up", LIMIT_S, lambda: demo.output, every_s=0.1)
    names = {series["metric"]["dro"][0] for series in asked(address, "query?query=dro_up%3D%3D1")["result"]}
    assert names == set("ABC")
    rules = [rule for group in asked(address, "rules")["groups"] for rule in group["rules"]]
    assert len(rules) == 48
    assert {rule.get("lastError", "") for rule in rules} == {""}


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_is_for_the_demonstration_alone() -> None:
    """The DROs are stopped when its last messages have come."""
    terminal = TerminalProgram("-m", "supervisor.tools.demo.main", "--direct")
    try:
        sent = re.compile(r"source, TRD 1 +[1-9]")
        wait_until(lambda: sent.search(terminal.output), "messages", LIMIT_S, lambda: terminal.output)
        terminal.press("\x03")
        assert terminal.wait_end(LIMIT_S) == 0, terminal.output
        wait_until(lambda: ", lost 0, duplicates 0" in terminal.output, "the result", 10, lambda: terminal.output)
    finally:
        terminal.close()


def test_the_file_has_the_targets_twice_and_is_the_one_that_is_shipped() -> None:
    shipped, made = (RULES / "prometheus.yml").read_text(), configuration(["127.0.0.1:1", "127.0.0.1:2"])
    assert made.count('["127.0.0.1:1", "127.0.0.1:2"]') == 2
    assert "scrape_interval: 2s" in made
    assert len(made.splitlines()) == len(shipped.splitlines())


def test_without_prometheus_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with running_prometheus(tmp_path, ["127.0.0.1:1"], 1, threading.Event()) as note:
        assert note == NOT_INSTALLED


def test_one_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "prometheus"
    program.write_text("#!/bin/sh\necho no such flag >&2\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "folder"
    folder.mkdir()
    with running_prometheus(folder, ["127.0.0.1:1"], 1, threading.Event()) as note:
        assert note == "Prometheus is not ready: no such flag"

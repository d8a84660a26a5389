"""Runs a failed test with processes again, in continuous integration alone (`CI=true`): a plug-in of pytest.

A test that starts processes can fail for want of a processor. When all others have ended, each such failure runs three
times by itself. A run in which nothing else failed, and all of these passed, is green; it names them as FLAKY and
shows the first failure, with what the machine did at that moment. Everybody else's run fails as ever.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from _pytest.terminal import TerminalReporter

from tests.lanes import Lane, lane_of_id

TIMES: Final = 3
MOST: Final = 10
"""More failures are no bad luck; none of them runs again."""
LIMIT_S: Final = 900.0
"""For one test and what it starts; a test itself has a limit that pytest keeps."""
LINES_MOST: Final = 120
TICKS: Final = os.sysconf("SC_CLK_TCK")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") == "true" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reruns(config.rootpath), "reruns")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the machine to the report of a failure that may be one of processes.

    What the frames of a failure hold ends here: a process or file that was left open fails this test, not a later one.
    """
    report = yield
    error = call.excinfo.value if report.failed and call.excinfo is not None else None
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            _ = frame.f_locals  # a copy that pytest has looked at is made anew, and empty
        error = error.__cause__ or error.__context__
    if report.failed:
        gc.collect()
    if report.failed and lane_of_id(item.nodeid) is Lane.PROCESSES:
        files = getattr(item, "funcargs", {}).get("tmp_path", "none")
        began = time.strftime("%H:%M:%S", time.gmtime(report.start))
        text = f"{report.when} began at {began} UTC and took {report.duration:.2f} s; files: {files}\n{machine_state()}"
        report.sections.append(("machine at the failure", text))
    return report


def machine_state() -> str:
    """Describe the load of the machine and its processes, those that have used most processor time first."""
    facts = (f"{path}: {_text(path)}" for path in ("/proc/loadavg", "/proc/pressure/cpu", "/proc/pressure/io"))
    rows = sorted(_processes(), reverse=True)
    lines = [f"{pid:>7} {parent:>7} {state} {cpu_s:8.1f} s {waits:<20} {what}"
             for cpu_s, pid, parent, state, waits, what in rows]  # fmt: skip
    more = [f"and {len(lines) - LINES_MOST} more"] if len(lines) > LINES_MOST else []
    return "\n".join([*facts, "    pid  parent state, processor time, waits in, command", *lines[:LINES_MOST], *more])


def _processes() -> Iterator[tuple[float, int, int, str, str, str]]:
    for path in Path("/proc").glob("[0-9]*"):
        what = _text(f"{path}/cmdline").replace("\0", " ")[:100]
        fields = _text(f"{path}/stat").rpartition(")")[2].split()
        if what and fields:  # no thread of the kernel, and not gone by now
            cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
            yield cpu_s, int(path.name), int(fields[1]), fields[0], _text(f"{path}/wchan"), what


def _text(path: str) -> str:
    """Read a file of the kernel; empty when it is not there."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class Reruns:
    """Runs failed tests again when all have ended, and decides whether the whole run has failed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / "build/flaky"
        self._failed: dict[str, list[pytest.TestReport]] = {}
        self._lines: list[str] = []
        self._logs: list[Path] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(trylast=True)  # the workers of xdist have ended
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        tests = [test for test in self._failed if lane_of_id(test) is Lane.PROCESSES]
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not tests:
            return
        if len(tests) > MOST:
            self._lines.append(f"{len(tests)} tests with processes failed: more than {MOST} do not run again")
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        flaky = {test for nth, test in enumerate(tests, 1) if self._passes_alone(nth, test)}
        if session.testsfailed == sum(len(self._failed[test]) for test in flaky):
            session.exitstatus = pytest.ExitCode.OK
        self._move(session.config, flaky)

    def _passes_alone(self, nth: int, test: str) -> bool:
        log = self._folder / f"{nth}-{re.sub(r'[^A-Za-z0-9_]+', '-', test)[:120]}.txt"
        log.write_text("\n".join(_told(report) for report in self._failed[test]), encoding="utf-8")
        for attempt in range(1, TIMES + 1):
            again = log.with_suffix(f".again-{attempt}.txt")
            if not _passes(test, self._root, again):
                self._lines.append(f"FAILED {test} again, at attempt {attempt} of {TIMES} by itself: {again}")
                return False
        self._lines.append(f"FLAKY {test}: failed once, passed {TIMES} times by itself; first failure: {log}")
        self._logs.append(log)
        return True

    def _move(self, config: pytest.Config, flaky: set[str]) -> None:
        """Count flaky tests as such, and no longer as failed."""
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(terminal, TerminalReporter)
        for kind in ("failed", "error"):
            reports = terminal.stats.pop(kind, [])
            terminal.stats.setdefault("flaky", []).extend(report for report in reports if report.nodeid in flaky)
            if left := [report for report in reports if report.nodeid not in flaky]:
                terminal.stats[kind] = left

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        for log in self._logs:
            terminalreporter.section(f"first failure of a flaky test: {log}")
            terminalreporter.write_line(log.read_text(encoding="utf-8"))
        if self._lines:
            terminalreporter.section("tests that ran again")
        for line in self._lines:
            terminalreporter.write_line(line)


def _told(report: pytest.TestReport) -> str:
    """Give a report with all that was caught and noted beside it."""
    parts = (f"{f' {title} ':-^80}\n{text}" for title, text in report.sections)
    return "\n".join([report.longreprtext, *parts])


def _passes(test: str, root: Path, log: Path) -> bool:
    """Run one test in a pytest of its own, which keeps the files of the runs before it."""
    options = ("-rs", "-p", "no:cacheprovider", "-o", "tmp_path_retention_count=100")
    command = [sys.executable, "-m", "pytest", *options, test]
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    with log.open("w", encoding="utf-8") as out:
        try:
            status = subprocess.run(
                command, cwd=root, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False, timeout=LIMIT_S
            ).returncode
        except subprocess.TimeoutExpired:
            out.write(f"\nnot ended after {LIMIT_S:.0f} s\n")
            return False
    return status == pytest.ExitCode.OK

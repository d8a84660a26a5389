"""Records which tests run which lines of the product, also in programs and forks: `make reached`.

    python -m tests.reached [--join] [option of pytest ...]    writes tests/golden/reached.json

It runs the tests with processes under coverage, without compiled modules; what that leaves in build/reached can be
joined once more with `--join`.
While tests run, this is a plug-in of pytest: it tells coverage the test that runs, and what a test starts inherits it.
Of all that, the file keeps little. For each module of the product it names tests that together run every line that any
test with processes runs, the cheapest in time for what they add; and a few, fixed until the next record, that do the
same for the whole product as far as they go: those that every change has to pass.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import coverage
import pytest

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "tests/golden/reached.json"
LANE: Final = "processes"
"""The lane that is recorded, by name: the plug-in that knows lanes must not be imported before pytest loads it."""
FOLDER: Final = ROOT / "build/reached"
EVERY: Final = 40
"""How many tests every change of the product has to pass."""
LINES: Final = """select file.path, context.context, line_bits.numbits from line_bits
    join file on file.id = file_id join context on context.id = context_id"""
WHOLE: Final = ("tests/daemon/", "tests/netns/")
"""Folders of tests with whole DROs, of which `EVERY` are taken."""
START_S: Final = 2.0
"""Counts beside the duration of a test, so that many short ones are no better than one that is twice as long."""
DEAR_S: Final = 10.0
"""A line that costs more of a test is left to the whole suite."""
OLD: Final = 0.3
"""The share of modules that are not as they were when a record is said to be old."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Holds what was recorded: node ids of tests by module of the product, dotted."""

    date: str = ""
    modules: frozenset[str] = frozenset()
    """Paths of the modules of tests that were recorded."""
    every: tuple[str, ...] = ()
    tests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = RECORD) -> Reached:
        if not path.exists():
            return cls()
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(found["date"], frozenset(found["modules"]), tuple(found["every"]), found["tests"], found["digests"])

    def write(self, path: Path = RECORD) -> None:
        text = json.dumps(asdict(self) | {"modules": sorted(self.modules)}, indent=0, sort_keys=True)
        path.write_text(text + "\n", encoding="utf-8")

    def tests_of(self, products: Iterable[str]) -> set[str]:
        """Find the tests that a change of these modules has to pass."""
        return {*self.every, *(test for name in products for test in self.tests.get(name, ()))}

    def age(self, root: Path = ROOT) -> str:
        """Say that the record is old, when it is; otherwise nothing."""
        if not self.digests:
            return "no record of what tests with processes reach: make reached"
        differ = sum(digest(root, name) != known for name, known in self.digests.items())
        share = differ / len(self.digests)
        return f"{share:.0%} of the modules differ from the record of {self.date}: make reached" if share > OLD else ""


def digest(root: Path, module: str) -> str:
    """Give a few digits that tell a module from what it was before; empty when it is gone."""
    path = root / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return hashlib.sha256(file.read_bytes()).hexdigest()[:8] if file.exists() else ""


def choose(
    lines: Mapping[str, Mapping[str, int]], seconds: Mapping[str, float], most: int = EVERY
) -> tuple[list[str], dict[str, list[str]]]:
    """Choose tests of whole DROs for all modules together, at most so many, and then for each what these leave.

    `lines` has, by module and test, the lines that it runs as bits. Each choice is the test that adds most lines a
    second. Lines dearer than `DEAR_S` are left.
    """
    left = {module: _union(tests.values()) for module, tests in lines.items()}
    whole: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for module, tests in lines.items():
        for test, bits in tests.items():
            if test.startswith(WHOLE):
                whole[test][module] = bits

    def worth(test: str, runs: Mapping[str, int]) -> float:
        return sum((bits & left[module]).bit_count() for module, bits in runs.items()) / (
            seconds.get(test, 1) + START_S
        )

    every: list[str] = []
    while len(every) < most and whole:
        best = max(sorted(whole), key=lambda test: worth(test, whole[test]))
        runs = whole.pop(best)
        every.append(best)
        for module, bits in runs.items():
            left[module] &= ~bits
    chosen: dict[str, list[str]] = {}
    for module, tests in lines.items():
        chosen[module] = []
        while left[module]:
            best = max(sorted(tests), key=lambda test: worth(test, {module: tests[test]}))
            if worth(best, {module: tests[best]}) < 1 / DEAR_S:
                break
            chosen[module].append(best)
            left[module] &= ~tests[best]
    return every, chosen


def _union(sets: Iterable[int]) -> int:
    union = 0
    for bits in sets:
        union |= bits
    return union


def read_lines(folder: Path = FOLDER) -> dict[str, dict[str, int]]:
    """Read what coverage has left: by module of the product and node id, lines as bits."""
    found: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in sorted(folder.glob("data.*")):
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as data:
                rows = data.execute(LINES).fetchall()
        except sqlite3.DatabaseError:  # its process was killed while it wrote
            continue
        for file, test, numbits in rows:
            if "::" in test:
                parts = Path(file).relative_to(ROOT).with_suffix("").parts
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found[module][test] |= int.from_bytes(numbits, "little")
    return {module: dict(tests) for module, tests in sorted(found.items())}


class Durations:
    """Notes how long each test takes that passes; a plug-in of the process that gives the tests to workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = {test: round(seconds, 3) for test, seconds in self._seconds.items() if test not in self._failed}
        (self._folder / f"seconds-{os.getpid()}.json").write_text(json.dumps(passed))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(Path(_current().config.data_file).parent))


def _current() -> coverage.Coverage:
    current = coverage.Coverage.current()
    assert current is not None, "run under coverage"
    return current


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tell coverage the test, here and in what it starts."""
    current = _current()
    current.switch_context(item.nodeid)
    current.config.context = item.nodeid
    os.environ["COVERAGE_PROCESS_CONFIG"] = current.config.serialize()
    try:
        return (yield)
    finally:
        current.switch_context("")


def record(options: list[str]) -> None:
    """Run the tests; one that fails is left out of the record."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    settings = FOLDER / "coveragerc"
    settings.write_text(f"[run]\ndata_file = {FOLDER}/data\nparallel = true\npatch = subprocess, fork, _exit\n"
                        "source = dro, portals, router, supervisor\n")  # fmt: skip
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest",
               "-p", "tests.reached", "--lane", LANE, *options]  # fmt: skip
    subprocess.run(command, cwd=ROOT, env=os.environ | {"DRO_PURE": "1"}, check=False)


def is_recorded(test: str) -> bool:
    from tests.lanes import lane_of_id

    return lane_of_id(test).name.lower() == LANE


def main(arguments: list[str]) -> int:
    if arguments[:1] != ["--join"]:
        record(arguments)
    seconds: dict[str, float] = {}
    for path in FOLDER.glob("seconds-*.json"):
        seconds |= {test: took for test, took in json.loads(path.read_text()).items() if is_recorded(test)}
    lines = {
        module: {test: bits for test, bits in tests.items() if test in seconds}
        for module, tests in read_lines().items()
    }
    if not lines:
        print(f"nothing is recorded in {FOLDER}", file=sys.stderr)
        return 1
    every, chosen = choose(lines, seconds)
    Reached(
        time.strftime("%Y-%m-%d"),
        frozenset(test.partition("::")[0] for test in seconds),
        tuple(every),
        {module: tuple(tests) for module, tests in chosen.items() if tests},
        {module: digest(ROOT, module) for module in lines},
    ).write()
    longest = max(chosen, key=lambda module: sum(seconds[test] for test in chosen[module]))
    print(f"{len(seconds)} tests; every change: {sum(seconds[test] for test in every):.0f} s in one process; "
          f"most for one module: {sum(seconds[test] for test in chosen[longest]):.0f} s for {longest}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Mutants in forked processes: the tests are collected once, and each mutant is a change of code objects in a child.

A function that is loaded runs another body as soon as its `__code__` is another, for whoever holds the function. What
runs when a module is imported (a constant, a default, the fields of a class) cannot be changed like this.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final, TypeAlias

import pytest

NOT_FAILED: Final = 5  # status of a child whose tests all passed


@dataclass(slots=True)
class _Child:
    index: int
    pid: int
    output: int
    deadline: float
    by: str = ""


class Forked:
    """A plugin of pytest that runs, instead of all tests, those of each mutant until one fails."""

    def __init__(self, jobs: int, limit_s: float) -> None:
        self._jobs = jobs
        self._limit_s = limit_s
        self._work: Iterator[tuple[int, Path, str, list[str]]] = iter(())
        self._done: Callable[[int, str, str], None] = lambda *_: None
        self._children: dict[int, _Child] = {}

    def run(
        self,
        tests: list[str],
        work: Iterator[tuple[int, Path, str, list[str]]],
        done: Callable[[int, str, str], None],
    ) -> None:
        """`work`: number, file, its mutated text and the node ids of each mutant; `done(number, outcome, test)`.

        The outcome is that of a verdict, or "import" for a mutant of what runs at import.
        """
        self._work, self._done = work, done
        options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "15", "--no-header",
                   "-o", "tmp_path_retention_policy=none"]  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="dro-mutants-") as folder:
            status = pytest.main([*options, "--basetemp", f"{folder}/tests", *tests], plugins=[self])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"the tests are not collected: {status!r}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Called by pytest once everything is collected."""
        by_function: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all children
        gc.unfreeze()  # what is frozen after the collection is not listed
        gc.collect()
        functions = loaded_functions()
        gc.freeze()
        for index, file, text, tests in self._work:
            swaps = swaps_of(file, text, functions)
            if swaps is None:
                self._done(index, "import", "")
                continue
            items = [item for test in tests for item in by_function.get(test) or _below(session.items, test)]
            while len(self._children) >= self._jobs:
                self._wait()
            self._fork(index, swaps, items)
        while self._children:
            self._wait()
        return True

    def _fork(self, index: int, swaps: list[tuple[FunctionType, CodeType]], items: list[pytest.Item]) -> None:
        output, theirs = os.pipe()
        pid = os.fork()
        if pid:
            os.close(theirs)
            self._children[output] = _Child(index, pid, output, time.monotonic() + self._limit_s)
            return
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            for function, code in swaps:
                function.__code__ = code
            _run_items(items, theirs)
        finally:
            os._exit(NOT_FAILED)

    def _wait(self) -> None:
        now = time.monotonic()
        first = min(child.deadline for child in self._children.values())
        for output in select.select(list(self._children), [], [], max(first - now, 0))[0]:
            child = self._children[output]
            if data := os.read(output, 4096):
                child.by += data.decode(errors="replace")
            else:
                self._end(child, "")
        for child in [child for child in self._children.values() if child.deadline <= time.monotonic()]:
            self._end(child, "the limit")

    def _end(self, child: _Child, late: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what the tests have started, too
        _, status = os.waitpid(child.pid, 0)
        os.close(child.output)
        del self._children[child.output]
        test, _, kind = child.by.partition("\n")
        if late or kind == "time":
            self._done(child.index, "killed by time", test or late)
        elif test or (os.WIFEXITED(status) and os.WEXITSTATUS(status) != NOT_FAILED):
            self._done(child.index, "killed", test or "the end of the process")
        else:
            self._done(child.index, "lived", "")


def _below(items: list[pytest.Item], path: str) -> list[pytest.Item]:
    """Give those of a folder, or of a module."""
    return [item for item in items if item.nodeid.startswith((f"{path}/", f"{path}::"))]


def _run_items(items: list[pytest.Item], output: int) -> None:
    """Run tests until one fails; its node id goes to `output`."""
    reports: list[pytest.TestReport] = []

    class Reports:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            reports.append(report)

    if not items:
        return
    config = items[0].config
    terminal = config.pluginmanager.unregister(name="terminalreporter")
    assert terminal is not None
    config.pluginmanager.register(Reports())
    for item, following in zip(items, [*items[1:], None], strict=True):
        reports.clear()
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        for report in reports:
            if report.failed:
                kind = "time" if "Timeout" in report.longreprtext[-300:] else ""
                os.write(output, f"{item.nodeid}\n{kind}".encode())
                return


Functions: TypeAlias = dict[tuple[str, str, int], list[FunctionType]]
"""Those of this process by file, name and first line."""


def loaded_functions() -> Functions:
    found: Functions = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType):
            code = thing.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(thing)
    return found


def swaps_of(file: Path, text: str, loaded: Functions) -> list[tuple[FunctionType, CodeType]] | None:
    """What to change so that the loaded module of a file does as `text` says; None when that takes an import."""
    swaps: list[tuple[FunctionType, CodeType]] = []

    def differs(old: CodeType, new: CodeType) -> bool:
        """Is there a difference that no function takes? Those that a function takes are in `swaps`."""
        if _meaning(old) == _meaning(new):
            return False
        functions = [f for f in loaded.get((name, old.co_qualname, old.co_firstlineno), ()) if f.__code__ == old]
        if functions and all(len(f.__closure__ or ()) == len(new.co_freevars) for f in functions):
            swaps.extend((function, new) for function in functions)
            return False
        inner, other = _inner(old), _inner(new)
        if len(inner) != len(other) or _meaning(old, deep=False) != _meaning(new, deep=False):
            return True
        return sum(differs(a, b) for a, b in zip(inner, other, strict=True)) > 0  # looks at all

    name = str(file)
    before = compile(file.read_text(encoding="utf-8"), name, "exec", dont_inherit=True)
    return None if differs(before, compile(text, name, "exec", dont_inherit=True)) else swaps


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _meaning(code: CodeType, *, deep: bool = True) -> tuple[object, ...]:
    """What a code object does, wherever it stands in its file."""
    constants = [
        (type(constant), constant) if not isinstance(constant, CodeType) else _meaning(constant) if deep else None
        for constant in code.co_consts
    ]
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, tuple(constants))

"""A target of the fuzzer, what came of an input, and a run of one target: mutated seeds, from a seeded generator.

A target takes bytes and gives a sign of what it did with them, which need not be more than a word. An input whose sign
is new is mutated further, beside the seeds: a decoder names where it refused, so this finds its way into records.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from dro.errors import DecodeError
from tests.fuzz.mutate import MUTATIONS, Mutate

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / "tests/golden/fuzz"
"""Inputs that were found once: a folder for each target."""
LIMIT_S: Final = 0.5
POOL_MAX: Final = 3000
FINDINGS_MAX: Final = 20
SMALLER_S: Final = 5.0
PACKAGES: Final = ("dro", "portals", "router", "supervisor", "tests")


@dataclass(frozen=True, slots=True)
class Target:
    """`refuses`: the exceptions that an input may cause; any other is a finding, as is more than `limit_s` of
    processor time. `short`: executions in the ordinary tests."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    check: Callable[[bytes], Hashable]
    refuses: tuple[type[Exception], ...] = (DecodeError,)
    form: str = "bytes"
    limit_s: float = LIMIT_S
    short: int = 300

    @property
    def mutate(self) -> Mutate:
        return MUTATIONS[self.form]


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that a target did not stand. `key` is the same for inputs that show the same defect."""

    target: str
    data: bytes
    key: str
    text: str

    def write(self, folder: Path) -> Path:
        """Keep it as a file from which it is run again."""
        path = folder / self.target / hashlib.sha256(self.data).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def execute(target: Target, data: bytes) -> tuple[Hashable, bool, Finding | None]:
    """Run a target on an input: the sign, whether it was taken, and what is wrong."""
    began = time.thread_time()
    sign, is_taken, finding = _execute_once(target, data)
    took_s = time.thread_time() - began
    if finding is None and took_s > target.limit_s:  # once may be a collection of garbage, or the machine's
        _forget_results()
        began = time.thread_time()
        _execute_once(target, data)
        took_s = min(took_s, time.thread_time() - began)
        if took_s > target.limit_s:
            finding = Finding(target.name, data, "too slow", f"{took_s:.2f} s of processor time\n")
    return sign, is_taken, finding


def _forget_results() -> None:
    """Clear the caches of the project's functions and of regular expressions: nothing is faster the second time."""
    re.purge()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES:
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def _execute_once(target: Target, data: bytes) -> tuple[Hashable, bool, Finding | None]:
    try:
        return target.check(data), True, None
    except target.refuses as e:
        return (type(e).__name__, getattr(e, "where", "") or getattr(e, "element", "")), False, None
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        key = f"{type(e).__name__} in {Path(last.filename).name}:{last.lineno}"
        return key, True, Finding(target.name, data, key, traceback.format_exc())


def smaller(target: Target, finding: Finding) -> Finding:
    """The finding, with an input from which parts are left out as long as it shows the same."""
    data, size, end_s = finding.data, len(finding.data) // 2, time.monotonic() + SMALLER_S
    while size:
        at = 0
        while at < len(data) and time.monotonic() < end_s:
            shorter = data[:at] + data[at + size :]
            again = execute(target, shorter)[2]
            if again is not None and again.key == finding.key:
                data, finding = shorter, again
            else:
                at += size
        size //= 2
    return finding


@dataclass(slots=True)
class Count:
    """What was done with a target."""

    executions: int = 0
    taken: int = 0
    signs: int = 0
    seconds: float = 0.0

    def add(self, other: Count) -> None:
        self.executions += other.executions
        self.taken += other.taken
        self.signs = max(self.signs, other.signs)
        self.seconds += other.seconds


@dataclass(slots=True)
class Run:
    """A target that is run on from where it was; `note` is told each input before it is tried."""

    target: Target
    random: Random
    note: Callable[[bytes], object] = lambda _: None
    found: dict[str, Finding] = field(default_factory=dict)
    seeds_taken: int = 0
    _signs: set[Hashable] = field(default_factory=set)
    _pool: list[bytes] = field(default_factory=list)
    _inputs: Iterator[bytes] | None = None

    def go_on(self, *, seconds: float | None = None, count: int | None = None) -> Count:
        """Try inputs for that time, or so many."""
        done, began = Count(), time.perf_counter()
        if self._inputs is None:
            self._pool += self.target.seeds()
            for data in list(self._pool):
                self._try(data, done)
            self.seeds_taken = done.taken
            self._inputs = self._mutated()
        for data in islice(self._inputs, count):
            self._try(data, done)
            if seconds is not None and not done.executions % 8 and time.perf_counter() - began > seconds:
                break
        done.signs, done.seconds = len(self._signs), time.perf_counter() - began
        return done

    def _mutated(self) -> Iterator[bytes]:
        pool, random, mutate = self._pool, self.random.random, self.target.mutate
        longest = 4 * max(map(len, pool)) + 64
        while True:
            one, other = pool[int(random() * len(pool))], pool[int(random() * len(pool))]
            yield mutate(self.random, one, other)[:longest]

    def _try(self, data: bytes, done: Count) -> None:
        self.note(data)
        sign, is_taken, finding = execute(self.target, data)
        done.executions += 1
        done.taken += is_taken
        if sign not in self._signs and len(self._pool) < POOL_MAX:
            self._signs.add(sign)
            if self._inputs is not None:  # the seeds are there
                self._pool.append(data)
        if finding is not None and finding.key not in self.found and len(self.found) < FINDINGS_MAX:
            self.found[finding.key] = smaller(self.target, finding)

"""`make bench`: which benches run with which arguments."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.bench.__main__ import BENCHES, commands

PARTS = {"__main__", "cost_unit", "dros", "generators"}  # of benches


def test_every_bench_is_known_and_has_a_main() -> None:
    modules = {path.stem for path in (Path(__file__).parent / "bench").glob("*.py")}
    assert modules - PARTS == set(BENCHES)
    assert all(callable(importlib.import_module(f"tests.bench.{name}").main) for name in BENCHES)


def test_all_run_unless_some_are_named() -> None:
    assert [module.removeprefix("tests.bench.") for module, *_ in commands([])] == list(BENCHES)
    assert commands(["log", "drains"]) == [["tests.bench.log"], ["tests.bench.drains"]]
    assert commands(["soak"]) == [["tests.bench.soak", *BENCHES["soak"]]]
    assert commands(["drains", "--rounds", "3"]) == [["tests.bench.drains", "--rounds", "3"]]


@pytest.mark.parametrize("words", [["nope"], ["--rounds", "3"], ["drains", "log", "--rounds", "3"]])
def test_what_cannot_be_run(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no bench 'nope'; there are throughput|arguments go to one bench"):
        commands(words)

"""The fuzzer itself: what is a finding, what is kept of it, and that a run is the same with the same seed."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from tests.fuzz import __main__ as fuzz
from tests.fuzz.mutate import MUTATIONS, script, steps_of
from tests.fuzz.table import TARGETS
from tests.fuzz.target import Count, Run, Target, execute


def refusing(data: bytes) -> str:
    """Takes what begins with an A."""
    if data[:1] != b"A":
        raise DecodeError("first", "no A")
    return "taken"


def broken(data: bytes) -> str:
    """Does not stand a B behind the A."""
    refusing(data)
    if b"B" in data:
        raise KeyError("B")
    return "taken"


def target(check: Callable[[bytes], str], name: str = "target", **more: float) -> Target:
    return Target(name, lambda: [b"AAAAAAAAAA", b"BBBB"], check, **more)  # type: ignore[arg-type]  # limits


def test_a_refusal_is_no_finding_and_another_exception_is() -> None:
    assert execute(target(broken), b"xB") == (("DecodeError", "first"), False, None)
    _, _, finding = execute(target(broken), b"AxB")
    assert finding is not None
    assert finding.key.startswith("KeyError in test_fuzz.py:")


def test_too_much_processor_time_is_a_finding() -> None:
    def slow(data: bytes) -> str:
        began = time.thread_time()
        while time.thread_time() - began < 0.02:
            pass
        return "taken"

    assert execute(target(slow), b"")[2] is None
    finding = execute(target(slow, limit_s=0.01), b"")[2]
    assert finding is not None
    assert finding.key == "too slow"


def test_what_takes_long_once_is_none() -> None:
    """It was a collection of garbage, or the machine."""
    lasts_s = [0.02]

    def slow_once(data: bytes) -> str:
        end = time.thread_time() + (lasts_s.pop() if lasts_s else 0)
        while time.thread_time() < end:
            pass
        return "taken"

    assert execute(target(slow_once, limit_s=0.01), b"")[2] is None
    assert not lasts_s


@functools.lru_cache
def remembering(_data: bytes) -> str:
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    return "taken"


def test_what_is_slow_until_it_is_remembered_is_a_finding() -> None:
    finding = execute(target(remembering, limit_s=0.01), b"x")[2]
    assert finding is not None
    assert finding.key == "too slow"


def test_a_finding_is_made_smaller_and_reported_once() -> None:
    run = Run(target(broken), Random(1))
    done = run.go_on(count=500)
    (finding,) = run.found.values()
    assert finding.data == b"AB"
    assert run.seeds_taken == 1
    assert 1 < done.taken < done.executions == 502


def test_inputs_are_those_of_the_seed() -> None:
    def inputs(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        Run(target(refusing), Random(seed), seen.append).go_on(count=50)
        return seen

    assert inputs(1) == inputs(1) != inputs(2)


def test_an_input_with_a_new_sign_is_mutated_further() -> None:
    """A word is found letter by letter: each is a bit away from what is there."""

    def spell(data: bytes) -> str:
        pairs = zip(data, b"CEIQa", strict=False)
        return "".join([chr(byte) for byte, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])

    found: set[str] = set()
    one = Target("target", lambda: [b"AAAAA"], spell)
    for seed in range(1, 4):
        Run(one, Random(seed), lambda data: found.add(spell(data))).go_on(count=10_000)
    assert max(map(len, found)) >= 4, "by chance alone it takes ten thousand millions"


@pytest.mark.parametrize("form", MUTATIONS)
def test_no_form_fails_on_what_is_short_or_random(form: str) -> None:
    draw = Random(1)
    for size in (0, 1, 2, 3, 5, 40):
        for _ in range(200):
            one, other = draw.randbytes(draw.randrange(size + 1)), draw.randbytes(size)
            assert isinstance(MUTATIONS[form](draw, one, other), bytes)


def test_a_script_comes_back() -> None:
    steps = [(0, b"one"), (70_000, b""), (5, b"x" * 300)]
    assert list(steps_of(script(steps))) == [(0, b"one"), (0xFFFF, b""), (5, b"x" * 300)]
    assert list(steps_of(script(steps)[:-200]))[-1] == (5, b"x" * 100)


def test_a_run_reports_findings_totals_and_how_to_run_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = {"fine": target(refusing, "fine"), "broken": target(broken, "broken")}
    monkeypatch.setattr(fuzz, "TARGETS", targets)
    monkeypatch.setattr(fuzz, "TURN_S", 0.05)
    arguments = ["--minutes", "0.01", "--jobs", "1", "--seed", "7", "--folder", str(tmp_path)]
    assert fuzz.main(arguments) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("seed 7, 1 processes")
    (path,) = (tmp_path / "broken").iterdir()
    assert path.read_bytes() == b"AB"
    assert f"run it again: python -m tests.fuzz {path}" in shown
    assert shown.count("KeyError in test_fuzz.py") == 1
    first = json.loads((tmp_path / "totals.json").read_text())
    assert Count(**first["fine"]).executions > 2
    assert fuzz.main([str(path)]) == 1
    assert "KeyError" in capsys.readouterr().out
    assert fuzz.main([*arguments, "--targets", "fine"]) == 0
    second = json.loads((tmp_path / "totals.json").read_text())
    assert second["fine"]["executions"] > first["fine"]["executions"]
    assert second["broken"] == first["broken"]


def test_a_fault_of_a_decoder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "need", lambda reader, where, count: None)
    run = Run(TARGETS["lbmr-tir"], Random(1))
    run.go_on(count=1000)
    assert {key.partition(" ")[0] for key in run.found} >= {"IndexError", "error"}


@pytest.mark.parametrize("what", ["the process ended with -9", "nothing came of it in 0 s"])
def test_an_input_that_ends_or_stops_its_process_is_a_finding(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(data: bytes) -> str:
        if data == b"BBBB":
            os.kill(os.getpid(), signal.SIGKILL) if "ended" in what else time.sleep(1000)
        return "taken"

    monkeypatch.setattr(fuzz, "HANGS_S", 0.3)
    fuzzing = fuzz.Fuzzing([target(check)], 1, tmp_path)
    fuzzing.run(1.5, 1)
    ((key, path),) = fuzzing.found.items()
    assert key == ("target", what)
    assert path.read_bytes() == b"BBBB"
    assert what in capsys.readouterr().out

"""A job that is killed at any moment, or goes on while files come and is killed: gold as of one undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.analytics.coming import Coming, gold
from tests.rigs.effort import IS_LONG
from tests.rigs.site import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
KILLS: Final = 20 if IS_LONG else 1
LIMIT_S: Final = 300.0


@contextmanager
def job(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Start the program in a session of its own, which ends with this block."""
    command = [sys.executable, "-m", "analytics.aggregate", "--history", str(folder), "--master", "local[2]", *more]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def ended(folder: Path) -> float:
    """Run the job to its end; the seconds it took."""
    begin = time.monotonic()
    with job(folder) as process:
        said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    return time.monotonic() - begin


@pytest.mark.parametrize("seed", [6])
def test_gold_is_that_of_an_undisturbed_run_when_jobs_are_killed_and_files_come(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    count = 2 + 3 * KILLS
    coming = Coming(chance, count)
    for nth in range(count):
        coming.write(whole, nth)
    took_s = ended(whole)
    for nth in range(2):
        coming.write(killed, nth)
    for _ in range(KILLS):
        with job(killed) as process:
            time.sleep(took_s * chance.uniform(0.3, 1.0))
            process.kill()
    nth = 2
    for kill in range(KILLS):
        with job(killed, "--follow", "0.2") as process:
            assert process.stdout is not None
            for _ in range(3):
                coming.write(killed, nth)
                nth += 1
                if kill % 2 == 0:
                    told = next(line for line in process.stdout if "days of DROs aggregated" in line or "Error" in line)
                    assert "Error" not in told, told
            time.sleep(chance.uniform(0, 8))
            process.kill()
    ended(killed)
    assert gold(killed) == gold(whole)

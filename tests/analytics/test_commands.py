"""A person sees one line for what is wrong, an end in order, and nothing that Spark says besides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from analytics.charts import TICKS, _ticks
from supervisor.history.main import main as history
from tests.builders.histories import START_S, write
from tests.rigs.object_store import bucket
from tests.rigs.site import ROOT
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.timeout(120)
DAY_S: Final = 86_400
STOPPED: Final = "tnwgd-aggregate: stopped; the next run goes on where it was\n"


def rows(dro: str) -> list[dict[str, object]]:
    """Samples of an hour, one a minute."""
    begin = START_S * 1_000_000
    return [
        {"dro": dro, "ts": begin + at * 60_000_000, "run": begin, "seq": at, "source": "pages", "up": True,
         "portal": "P", "page": 1, "sent": at}
        for at in range(60)
    ]  # fmt: skip


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The job, in a session of its own, that goes on until it is stopped."""
    write(tmp_path, "portal", rows("A"))
    command = [sys.executable, "-m", "analytics.aggregate", "--history", str(tmp_path), "--master", "local[1]"]
    process = subprocess.Popen([*command, "--follow", "1"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)  # fmt: skip
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def of_session(session: int) -> str:
    """The programs of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            state, _, _, of, *_ = rest.split()
            if int(of) == session and state != "Z":
                found.append(name)
    return " ".join(found)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_while_spark_starts_sees_a_line_and_nothing_goes_on(
    program: subprocess.Popen[str], number: signal.Signals
) -> None:
    wait_until(lambda: "java" in of_session(program.pid), "Java", 60)
    os.killpg(program.pid, number)
    said, _ = program.communicate(timeout=60)
    assert (said, program.returncode) == (STOPPED, 128 + number)
    wait_until(lambda: not of_session(program.pid), "the end of all", 30, lambda: of_session(program.pid))


def test_who_stops_it_later_sees_what_was_done_and_a_line(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    done = program.stdout.readline()
    assert done.endswith(" 1 days of DROs aggregated, 1 days of gold\n")
    os.killpg(program.pid, signal.SIGINT)
    said, _ = program.communicate(timeout=60)
    assert (said, program.returncode) == (STOPPED, 130)
    wait_until(lambda: not of_session(program.pid), "the end of all", 30, lambda: of_session(program.pid))


@pytest.mark.parametrize(
    ("address", "why"), [("", "no directory and no URI was named"), ("s3://", "the URI names no bucket or directory")]
)
def test_a_history_without_a_name_is_refused(address: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(["compact", "--history", address]) == 1
    said = f"cannot compact {address or repr('')}: no store that can be used: {why}"
    assert capsys.readouterr().err.startswith(f"tnwgd-history: {said}")


def test_a_bucket_that_is_not_there_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bucket() as uri:
        before, _, after = uri.partition("@bucket-")
        wrong = f"{before}@no-bucket-{after}"
        assert history(["scrape", "http://127.0.0.1:1/metrics", "--history", wrong, "--journal", str(tmp_path)]) == 1
    assert "there is no bucket no-bucket-" in capsys.readouterr().err


@pytest.mark.parametrize("length_s", [0, 3600, 7200, 30_000, DAY_S, 6 * DAY_S, 40 * DAY_S, 700 * DAY_S, 9000 * DAY_S])
def test_an_axis_has_whole_hours_or_days(length_s: int) -> None:
    first = START_S + 7
    found = _ticks(first, first + length_s)
    assert found == [first] or all(time % 3600 == 0 and first <= time <= first + length_s for time in found)
    assert len(found) <= max(TICKS, length_s // (364 * DAY_S) + 1)
    if length_s >= DAY_S * TICKS:
        assert all(time % DAY_S == 0 for time in found)

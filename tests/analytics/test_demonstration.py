"""The demonstration that keeps a history, as `make demo-history` runs it, until its page of answers.

It lies here for the Spark session that the tests of this folder share: the programs of `analytics` run in it. The page
has one answer, or in a long run all, as `make demo-history` makes it.
"""

from __future__ import annotations

import importlib
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.tools.demo import history
from supervisor.tools.demo.main import run
from supervisor.tools.demo.network import TRIANGLE
from tests.rigs.effort import IS_LONG


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Give the signals back that the demonstration takes."""
    taken = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in taken]
    yield
    for number, handler in zip(taken, before, strict=True):
        signal.signal(number, handler)


def run_here(command: Sequence[str], **_options: object) -> SimpleNamespace:
    """Run `python -m MODULE` in this process."""
    module, arguments = command[2], command[3:]
    if not IS_LONG:
        arguments = ["balance" if one == "all" else one for one in arguments]
    return SimpleNamespace(returncode=importlib.import_module(module).main(arguments))


@pytest.mark.slow
@pytest.mark.timeout(660)
@pytest.mark.usefixtures("spark")
def test_the_demonstration_ends_with_a_page_and_the_same_count_in_gold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "history"
    monkeypatch.setattr(history, "subprocess", SimpleNamespace(run=run_here, DEVNULL=subprocess.DEVNULL))
    assert run(TRIANGLE, 6, 500, is_monitored=False, kept=folder) == 0
    said = capsys.readouterr().out
    told = re.search(r"^history: messages (\d+) in counters, (\d+) in gold$", said, re.MULTILINE)
    assert told, said
    assert told[1] == told[2]
    assert int(told[1]) > 1000
    page = folder / "report/index.html"
    assert f"page of all answers: {page}\n" in said
    assert page.read_text().count("<h2") > (10 if IS_LONG else 1)

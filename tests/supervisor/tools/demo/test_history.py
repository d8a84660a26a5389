"""The demonstration that keeps a history, as `make demo-history` runs it, until its page of answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[4]
LIMIT_S: Final = 600


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_the_demonstration_ends_with_a_page_and_the_same_count_in_gold(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.tools.demo.main", "--seconds", "6", "--history", str(folder)],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(r"^history: messages (\d+) in counters, (\d+) in gold$", done.stdout, re.MULTILINE)
    assert told, done.stdout
    assert told[1] == told[2]
    assert int(told[1]) > 1000
    page = folder / "report/index.html"
    assert f"page of all answers: {page}\n" in done.stdout
    assert page.read_text().count("<h2") > 10

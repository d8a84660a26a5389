"""The picture of the demonstration on a terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.demo import Arrivals, Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate()


def test_no_line_is_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    arrivals = [Arrivals("receiver"), Arrivals("wildcard")]
    arrivals[0].source = "LBTRM:127.0.0.1:25046:df12c47a:239.207.97.10:25045[3745027089]" * 2
    screen = Screen(child, tmp_path)
    screen.show(0, 0, arrivals)
    first = terminal.getvalue()
    assert max(len(line.removeprefix("\x1b[2K")) for line in first.splitlines()) == 80
    screen.show(1, 0, arrivals)
    again = terminal.getvalue()[len(first) :]
    assert again.startswith(f"\x1b[{first.count(chr(10))}A")

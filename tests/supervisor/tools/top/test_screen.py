"""The live view of a made-up DRO: signals, failures and a shell that stops it leave the terminal as it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.rigs.terminal import ALTERNATE_SCREEN, TerminalProgram
from tests.rigs.waiting import wait_until

PROGRAM = """
import sys, time
from pathlib import Path
from rich.console import Console
from supervisor.tools.top.screen import Screen
from tests.builders.top_samples import portal, sample

class Looker:
    def look(self):
        if Path(sys.argv[1]).exists():
            raise RuntimeError("of the test")
        self.sent = getattr(self, "sent", 0) + 1000
        return sample(self.sent / 1000, portal("P1"), portal("P2", SENT=self.sent))

ended_by = Screen(Looker(), Console(highlight=False), 0.1).run()
sys.exit(0 if ended_by is None else int(ended_by))
"""


@pytest.fixture
def failure(tmp_path: os.PathLike[str]) -> str:
    """The file whose existence makes it fail."""
    return os.path.join(tmp_path, "failure")


@pytest.fixture
def terminal(failure: str) -> Iterator[TerminalProgram]:
    made = TerminalProgram("-c", PROGRAM, failure)
    made.wait_for(r"^P2 +ready")
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it_with_the_terminal_as_before(terminal: TerminalProgram, number: signal.Signals) -> None:
    terminal.process.send_signal(number)
    assert terminal.wait_end() == number
    terminal.wait_restored()


def test_a_failure_restores_the_terminal_before_it_is_told(terminal: TerminalProgram, failure: str) -> None:
    open(failure, "w").close()
    assert terminal.wait_end() == 1
    terminal.wait_restored()
    wait_until(lambda: "RuntimeError: of the test" in terminal.output, "the failure", 10)
    assert terminal.output.rindex("RuntimeError") > terminal.output.rindex("\x1b[?1049l")


def test_a_paused_picture_stays_and_rates_are_right_afterwards(terminal: TerminalProgram) -> None:
    terminal.wait_for(r"^P2 +ready +0 +0 +1\.00k")
    terminal.press("p")
    terminal.wait_for("paused")
    before = [line for line in terminal.screen if ", at " in line]
    drawn = len(terminal.output)
    wait_until(lambda: len(terminal.output) > drawn + 5000, "more pictures", 20)
    assert [line for line in terminal.screen if ", at " in line] == before
    terminal.press("pq")
    assert terminal.wait_end() == 0
    terminal.wait_restored()


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(terminal: TerminalProgram) -> None:
    terminal.press("\x1a")
    _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    terminal.wait_restored()
    pictures = terminal.output.count(ALTERNATE_SCREEN)
    terminal.process.send_signal(signal.SIGCONT)
    wait_until(lambda: terminal.output.count(ALTERNATE_SCREEN) > pictures, "the alternate screen again", 20)
    terminal.press("q")
    assert terminal.wait_end() == 0
    terminal.wait_restored()

"""A program on a terminal of its own, as somebody sees it who presses keys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any, Final

from tests.rigs.circumstances import on_terminal
from tests.rigs.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
HOME: Final = "\x1b[H"  # where each picture begins
ALTERNATE_SCREEN, NORMAL_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
HIDDEN_CURSOR, SHOWN_CURSOR = "\x1b[?25l", "\x1b[?25h"
_MOVES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TerminalProgram:
    """`arguments` for the interpreter. The terminal is its controlling one, so keys become signals."""

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 24, **environment: str) -> None:
        self._outer, self._inner = pty.openpty()
        self.resize(columns, lines)
        self.settings: Final[list[Any]] = termios.tcgetattr(self._inner)
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environ | {"TERM": "xterm-256color"} | environment,
            stdin=self._inner, stdout=self._inner, stderr=self._inner, start_new_session=True,
            preexec_fn=on_terminal(os.ttyname(self._inner)),
        )  # fmt: skip
        self._bytes = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # nobody has the other end any more
            while part := os.read(self._outer, 1 << 16):
                self._bytes += part

    @property
    def output(self) -> str:
        """All that it wrote."""
        return self._bytes.decode("utf-8", "replace")

    @property
    def screen(self) -> list[str]:
        """The lines of the last whole picture, without colours."""
        pictures = self.output.split(HOME)
        return [line.rstrip() for line in _MOVES.sub("", pictures[-2] if len(pictures) > 1 else "").splitlines()]

    def wait_for(self, pattern: str, seconds: float = 30) -> str:
        """The line of the screen that has it, once it is there."""

        def found() -> str | None:
            assert self.process.poll() is None, self.output
            return next((line for line in self.screen if re.search(pattern, line)), None)

        return wait_until(found, f"{pattern!r} on the screen", seconds, lambda: "\n".join(self.screen))

    def press(self, keys: str) -> None:
        os.write(self._outer, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._outer, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    @property
    def is_restored(self) -> bool:
        """Lines, echo, the cursor and the normal screen are back."""
        shown = self.output
        return (
            termios.tcgetattr(self._inner) == self.settings
            and shown.rfind(NORMAL_SCREEN) > shown.rfind(ALTERNATE_SCREEN) >= 0
            and shown.rfind(SHOWN_CURSOR) > shown.rfind(HIDDEN_CURSOR) >= 0
        )

    def wait_end(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)

    def wait_restored(self) -> None:
        wait_until(lambda: self.is_restored, "a terminal as before", 10, lambda: repr(self.output[-300:]))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._inner)
        self._reader.join()
        os.close(self._outer)

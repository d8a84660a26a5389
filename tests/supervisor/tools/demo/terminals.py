"""A demonstration on a terminal of eighty columns, and what was seen there."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).parents[4]
LIMIT_S = 150


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Its exit status, and all that it wrote."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 40, 80, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "supervisor.tools.demo.main", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=slave, stderr=slave)
    os.close(slave)
    shown = bytearray()
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(master, 1 << 16):
            shown += part
    os.close(master)
    return process.wait(LIMIT_S), shown.decode()


def pictures_of(shown: str) -> list[list[str]]:
    """The lines of each picture, without the movements of the cursor."""
    return [re.sub(r"\x1b\[\d*[A-Z]", "", picture).replace("\r", "").split("\n") for picture in shown.split("\x1b[J")]

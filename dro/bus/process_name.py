"""What process listings show: its name (`ps -o comm`) and its arguments (`ps -ef`)."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import Final

_PR_SET_NAME: Final = 15


def name_process(name: str) -> None:
    """Set the name, of which the kernel takes the first 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def show_name(name: str) -> None:
    """Put the name before the arguments, as far as there is room. Does nothing where /proc does not show them.

    The interpreter has copies of its arguments, so nothing reads the originals any more.
    """
    shown = "".join(character if character.isprintable() else "?" for character in name)
    title = " ".join([f"tnwgd: {shown}", *sys.argv[1:]]).encode("utf-8", "replace")
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        if 0 < begin < end:
            ctypes.memmove(begin, title[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)

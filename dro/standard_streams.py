"""Standard streams of every program: opened when it was started without them; full or closed pipes; other streams.

Called first by the entry points. A closed descriptor of 0 to 2 would be reused for the next socket or file, and printed
text would be written to it.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from typing import Final, TextIO

from dro.errors import ResourceError

_NAMES: Final = ("stdin", "stdout", "stderr")


def open_standard_streams() -> None:
    """Standard streams that are closed become the null device; what the terminal cannot show is written as escapes."""
    for fd, name in enumerate(_NAMES):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `fd`
            os.set_inheritable(fd, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def close_others() -> None:
    """Close what was inherited beside them and whose end somebody may wait for: pipes, sockets and terminals.

    Files stay open: the lock of a script that has become this program is one.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself is gone
            fd = int(name)
            kind = stat.S_IFMT(os.fstat(fd).st_mode)
            if fd >= len(_NAMES) and os.get_inheritable(fd) and kind in (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR):
                os.close(fd)


def output_lost(error: OSError) -> ResourceError | None:
    """Give up standard output, which could not be written; None for a pipe whose reader has what it wanted.

    What is still in the buffer is thrown away, so that the interpreter does not fail with it once more at exit.
    """
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    if isinstance(error, BrokenPipeError):
        return None
    return ResourceError(f"cannot write the output: {error.strerror}", remedy="make room, or send it elsewhere")


def say(stream: TextIO, text: str) -> None:
    """Write without a promise, errors are ignored: a message about a failure, where the stream may have failed too."""
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()

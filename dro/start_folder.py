"""The working directory that a program was started in, by its name.

Relative names of files count from it for as long as the program runs, also when it was removed meanwhile, or replaced
by another of the same name, as deployments do.
"""

from __future__ import annotations

import contextlib
import os

_name = ""


def keep_start_folder() -> None:
    """Remember the working directory of now; before that, and when it is gone already, none is known."""
    global _name
    with contextlib.suppress(OSError):
        _name = os.getcwd()


def absolute(file: str) -> str:
    """Make the name of a file absolute; it stays as it is where that cannot be known."""
    try:
        return os.path.abspath(os.path.join(_name, file))
    except OSError:
        return file


def enter_start_folder() -> None:
    """Make what has the folder's name now the working directory of this process."""
    if _name:
        with contextlib.suppress(OSError):
            os.chdir(_name)


def shown_folder() -> str:
    """Name the working directory for a message."""
    try:
        return os.getcwd()
    except OSError:
        return f"{_name or 'the working directory'}, which is gone,"

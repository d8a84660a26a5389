"""How much of a file system in memory is left to others by what is kept there for the next life of a process."""

from __future__ import annotations

import os
from typing import Final

LEFT_SHARE: Final = 4
LEFT_BYTES: Final = 64 << 20
"""That much of the file system is left, or that part of it if it is less: rings need it, for data."""


def leaves_enough(fd: int, nbytes: int) -> bool:
    """Say whether enough is left of the file system of that file when it grows by so many bytes."""
    about = os.fstatvfs(fd)
    return about.f_bavail * about.f_frsize - nbytes >= min(LEFT_BYTES, about.f_blocks * about.f_frsize // LEFT_SHARE)

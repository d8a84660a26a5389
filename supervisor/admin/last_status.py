"""The status of a DRO as a file beside its counter pages, for those who look at the pages while the parent does not
answer or is dead.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dro.bus.codec import from_json
from dro.errors import DecodeError
from supervisor.admin.status import DroStatus

FILE_NAME: Final = "status.json"


@dataclass(frozen=True, slots=True)
class LastStatus:
    time_s: float  # of the monotonic clock, when it was written
    status: DroStatus


def write_last_status(folder: Path, last: LastStatus) -> None:
    """Replace the file as a whole, readable by its owner alone. Raises: OSError, and the earlier one stays."""
    path, unfinished = folder / FILE_NAME, folder / f"{FILE_NAME}.new"
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(asdict(last), file)
    unfinished.replace(path)


def read_last_status(folder: Path) -> LastStatus | None:
    """None when there is none, or none that this release understands."""
    try:
        return from_json(LastStatus, json.loads((folder / FILE_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, DecodeError):
        return None

"""`python -m tests.rigs.parse_cost FILE`: KiB of memory and seconds of processor time that reading a DRO file takes."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from pathlib import Path

from dro.errors import ConfigError
from tests.builders.dro_file import parse_dro


def main(raw: bytes) -> None:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with contextlib.suppress(ConfigError):
        parse_dro(raw, "m.xml", warn=lambda _: None, environ={})
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - began)


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_bytes())

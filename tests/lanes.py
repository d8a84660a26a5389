"""Tells which lane the tests of a module are in, and ends a test that does what its lane is without.

A fast test starts no process and opens no socket, a loopback test starts no process. `LANES` is the whole rule: the
longest of its paths that leads to a module names its lane, and a module that none leads to is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent


class Lane(IntEnum):
    """Says what tests may do; each lane may do what those before it may."""

    FAST = 0
    LOOPBACK = 1
    PROCESSES = 2


LANES: Final = {
    "analytics": Lane.PROCESSES,
    "bus": Lane.PROCESSES,
    "config/change/test_effects.py": Lane.LOOPBACK,
    "config/dro_xml/test_pickle.py": Lane.PROCESSES,
    "config/lint/test_together.py": Lane.PROCESSES,
    "config/reading/test_hostile_xml.py": Lane.PROCESSES,
    "config/reading/test_xinclude.py": Lane.LOOPBACK,
    "daemon": Lane.PROCESSES,
    "deploy": Lane.PROCESSES,
    "dissect/test_lbmc_tshark.py": Lane.PROCESSES,
    "docs": Lane.PROCESSES,
    "fuzz/test_fuzz.py": Lane.PROCESSES,
    "fuzz/test_targets.py": Lane.LOOPBACK,
    "log": Lane.PROCESSES,
    "netns": Lane.PROCESSES,
    "network": Lane.LOOPBACK,
    "portals/datapath/test_data_path_edges.py": Lane.LOOPBACK,
    "portals/datapath/test_mixed_traffic_cost.py": Lane.LOOPBACK,
    "portals/endpoint": Lane.LOOPBACK,
    "portals/peer": Lane.LOOPBACK,
    "portals/shell": Lane.LOOPBACK,
    "portals/test_hosts.py": Lane.LOOPBACK,
    "router/test_worker.py": Lane.LOOPBACK,
    "supervisor": Lane.PROCESSES,
    "supervisor/explain": Lane.FAST,
    "supervisor/commands": Lane.FAST,
    "supervisor/reload": Lane.LOOPBACK,
    "supervisor/samples": Lane.FAST,
    "supervisor/tools/simulate": Lane.FAST,
    "test_bench_traffic.py": Lane.PROCESSES,
    "test_changed.py": Lane.PROCESSES,
    "test_compiled_steps.py": Lane.PROCESSES,
    "test_site.py": Lane.PROCESSES,
    "test_standard_streams.py": Lane.PROCESSES,
    "tools": Lane.PROCESSES,
    "um": Lane.LOOPBACK,
    "um/transport/test_tls.py": Lane.PROCESSES,
    "wire/lbmr/test_tshark.py": Lane.PROCESSES,
}
NEEDED: Final = dict.fromkeys(("socket.bind", "socket.connect", "socket.sendto"), Lane.LOOPBACK) | (
    dict.fromkeys(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"), Lane.PROCESSES)
)
"""Audit events of the interpreter that not every lane may cause."""
_permitted = Lane.PROCESSES


def lane_of(module: Path) -> Lane:
    """Find the lane of a module of tests."""
    parts = module.relative_to(TESTS).parts
    for length in range(len(parts), 0, -1):
        if (lane := LANES.get("/".join(parts[:length]))) is not None:
            return lane
    return Lane.FAST


@contextmanager
def only(lane: Lane) -> Iterator[None]:
    """Fail what needs a lane beyond this one, in the block."""
    global _permitted
    before, _permitted = _permitted, lane
    try:
        yield
    finally:
        _permitted = before


def _check(event: str, _: object) -> None:
    needed = NEEDED.get(event, Lane.FAST)
    if needed > _permitted:
        pytest.fail(
            f"{event} in a test of the lane {_permitted.name.lower()}: tests/lanes.py says which lane its module is in"
        )


sys.addaudithook(_check)

"""Puts each module of tests into a lane, and ends a test that does what its lane is without: a plug-in of pytest.

A fast test starts no process and opens no socket, a loopback test starts no process. `LANES` is the whole rule: the
longest of its paths that leads to a module names its lane, and a module that none leads to is fast. What a test does is
told by the interpreter (audit events); a whole run says which modules need less than their lane has.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import pytest
import zmq
from _pytest.terminal import TerminalReporter

TESTS: Final = Path(__file__).parent
LEFT_OUT: Final = "lane delivery left out: nothing of it differs from main; make test-delivery runs it, and so does CI"


class Lane(IntEnum):
    """Says what tests may do; each lane may do what those before it may."""

    FAST = 0
    LOOPBACK = 1
    PROCESSES = 2
    DELIVERY = 3


LANES: Final = {
    "analytics": Lane.DELIVERY,
    "bus": Lane.PROCESSES,
    "config/change/test_effects.py": Lane.LOOPBACK,
    "config/dro_xml/test_pickle.py": Lane.PROCESSES,
    "config/lint/test_together.py": Lane.PROCESSES,
    "config/reading/test_hostile_xml.py": Lane.PROCESSES,
    "config/reading/test_xinclude.py": Lane.LOOPBACK,
    "daemon": Lane.PROCESSES,
    "deploy": Lane.DELIVERY,
    "dissect/test_lbmc_tshark.py": Lane.PROCESSES,
    "docs": Lane.DELIVERY,
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
    "test_flaky.py": Lane.PROCESSES,
    "test_reached.py": Lane.PROCESSES,
    "test_site.py": Lane.DELIVERY,
    "test_standard_streams.py": Lane.PROCESSES,
    "tools": Lane.PROCESSES,
    "um": Lane.LOOPBACK,
    "um/transport/test_tls.py": Lane.PROCESSES,
    "wire/lbmr/test_tshark.py": Lane.PROCESSES,
}
NEEDED: Final = dict.fromkeys(("socket.bind", "socket.connect", "socket.sendto", "zmq"), Lane.LOOPBACK) | (
    dict.fromkeys(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"), Lane.PROCESSES)
)
"""Audit events of the interpreter that not every lane may cause."""
_permitted, _needed = Lane.DELIVERY, Lane.FAST
_needs: dict[str, int] = {}
"""The least lane in which each module of this run could be."""


def lane_of(module: Path) -> Lane:
    """Find the lane of a module of tests."""
    parts = module.relative_to(TESTS).parts
    for length in range(len(parts), 0, -1):
        if (lane := LANES.get("/".join(parts[:length]))) is not None:
            return lane
    return Lane.FAST


def lane_of_id(test: str) -> Lane:
    """Find the lane of a test by its node id."""
    return lane_of(TESTS.parent / test.partition("::")[0])


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
    global _needed
    needed = NEEDED.get(event, Lane.FAST)
    if needed > _permitted:
        pytest.fail(
            f"{event} in a test of the lane {_permitted.name.lower()}: tests/lanes.py says which lane its module is in"
        )
    _needed = max(_needed, needed)


def _audited(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def audited(*arguments: object) -> Any:  # noqa: ANN401  as the method of ZeroMQ
        sys.audit("zmq")
        return method(*arguments)

    return audited


sys.addaudithook(_check)
for _name in ("bind", "connect"):  # its sockets are not those of the interpreter
    setattr(zmq.Socket, _name, _audited(getattr(zmq.Socket, _name)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", choices=[lane.name.lower() for lane in Lane], help="the tests of this lane alone")


def pytest_configure(config: pytest.Config) -> None:
    """Decide once, for all workers, whether a run of everything has the lane of delivery in it."""
    if hasattr(config, "workerinput"):
        return
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.lane
    config.option.leave_out = is_whole and os.environ.get("CI") != "true" and not _delivers()


def _delivers() -> bool:
    from tests.changed import Tree, changed_files, reaches_delivery

    try:
        return reaches_delivery(changed_files(os.environ.get("BASE", "main")), Tree())
    except ValueError:  # no repository of git
        return True


def pytest_report_header(config: pytest.Config) -> str | None:
    return LEFT_OUT if config.option.leave_out else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules of other lanes than the one that is asked for."""
    if not collection_path.name.startswith("test_"):
        return None
    lane, asked = lane_of(collection_path), config.option.lane
    is_other = lane is Lane.DELIVERY and config.option.leave_out if asked is None else lane is not Lane[asked.upper()]
    return is_other or None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test with no more than its lane permits, and note what it needs."""
    global _needed
    _needed = Lane.FAST
    with only(lane_of_id(item.nodeid)):
        result = yield
    module = item.nodeid.partition("::")[0]
    _needs[module] = max(_needs.get(module, 0), _needed)
    return result


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["needs"] = _needs


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401  of xdist
    """Join what a worker of xdist has noted."""
    for module, needed in getattr(node, "workeroutput", {}).get("needs", {}).items():
        _needs[module] = max(_needs.get(module, 0), needed)


def pytest_terminal_summary(terminalreporter: TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Name the modules that could be in a lane below theirs, when all of them have run."""
    if exitstatus or config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword:
        return
    for module, needed in sorted(_needs.items()):
        if needed < min(lane_of_id(module), Lane.PROCESSES):
            terminalreporter.write_line(f"{module} does what the lane {Lane(needed).name.lower()} permits, and no more")

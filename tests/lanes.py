"""Puts each module of tests into a lane, and ends a test that does what its lane is without: a plug-in of pytest.

A fast test starts no process and opens no socket, a loopback test starts no process. `LANES` is the whole rule: the
longest of its paths that leads to a module names its lane, and a module that none leads to is fast. What a test does is
told by the interpreter (audit events); a whole run says which modules need less than their lane has.

Programs import this before they start pytest, hence PYTEST_DONT_REWRITE: it has no assertions.
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


_LISTED: Final = {
    Lane.FAST: "daemon/test_example_files.py netns/test_nak_schedule.py netns/test_streams.py",
    Lane.LOOPBACK: """
        bus/test_backlog.py bus/test_channel.py config/change/test_effects.py config/reading/test_xinclude.py
        fuzz/test_targets.py log/test_sinks.py network portals/datapath/test_data_path_edges.py
        portals/datapath/test_mixed_traffic_cost.py portals/endpoint/test_acl_traffic.py
        portals/endpoint/test_known_sources.py portals/endpoint/test_listing.py portals/endpoint/test_live.py
        portals/endpoint/test_portal_alone.py portals/endpoint/test_proxies.py
        portals/endpoint/test_um_layers.py portals/endpoint/test_unicast.py portals/peer/test_link_streams.py
        portals/shell/test_portal.py portals/test_hosts.py supervisor/history/test_network.py
        supervisor/host/test_service_manager.py supervisor/monitor/test_app.py supervisor/monitor/test_events.py
        supervisor/monitor/test_pages.py supervisor/reload/test_trial.py
        supervisor/tools/top/test_looker.py um/fragment/test_context_sockets.py
        um/fragment/test_immediate.py um/fragment/test_ports.py um/fragment/test_receiver_sessions.py
        um/fragment/test_refused_sockets.py um/fragment/test_request_port.py um/fragment/test_source_sessions.py
        um/fragment/test_service_links.py um/fragment/test_unicast_channel.py
        um/message/test_context_sockets.py um/message/test_late_join.py um/message/test_messages_sockets.py
        um/message/test_requests.py um/message/test_immediate.py um/test_refused_sends.py
        um/test_user_guide.py um/test_requests.py transport/test_kinds.py transport/test_lbtrm.py
        transport/test_lbtrm_edges.py
        transport/test_lbtrm_receiver.py transport/test_lbtrm_sender.py transport/test_mmsg.py
        portals/peer/test_peer_tls.py
        transport/test_lbtru.py transport/test_repaired_kinds.py transport/test_fan_out.py transport/test_sockets.py
        transport/test_tcp.py transport/test_tcp_receiver.py transport/test_tcp_sender.py
        transport/test_lbtrm_goes_on.py transport/test_lbtrm_senders_go_on.py transport/test_tcp_goes_on.py
        transport/test_lbtrm_sender_goes_on.py
        transport/test_lbtipc.py transport/test_lbtipc_goes_on.py transport/test_tcp_sender_goes_on.py
    """,
    Lane.PROCESSES: """
        bus/test_actor.py bus/test_cycle_search.py bus/test_kept_state.py bus/test_counters.py bus/test_process_name.py
        shared_memory/test_ring.py
        bus/test_worker_guards.py config/dro_xml/test_pickle.py config/lint/test_together.py
        config/reading/test_hostile_xml.py daemon dissect/test_lbmc_tshark.py fuzz/test_fuzz.py log/test_file.py
        log/test_limits.py log/test_to_monitor.py metrics/test_library_rows.py netns supervisor/admin/test_server.py
        supervisor/history/test_disk_full.py supervisor/history/test_kills.py supervisor/history/test_published.py
        supervisor/host/test_detach.py
        supervisor/host/test_identity.py supervisor/host/test_installation.py supervisor/host/test_pidfile.py
        supervisor/host/test_privileges.py supervisor/host/test_run_dirs.py
        supervisor/host/test_single_instance.py supervisor/monitor/test_charts.py
        supervisor/monitor/test_exposition.py supervisor/parent/test_forked_task.py
        supervisor/parent/test_kept_over_lives.py
        supervisor/parent/test_parent.py supervisor/resolvers supervisor/start supervisor/tools/ctl/test_completion.py
        supervisor/tools/ctl/test_main.py supervisor/tools/demo supervisor/tools/doctor supervisor/tools/init
        supervisor/tools/top/test_screen.py test_bench_traffic.py test_changed.py test_compiled_steps.py test_setup.py
        test_flaky.py test_mutation.py test_reached.py test_standard_streams.py tools/lbm/test_loss.py
        tools/lbm/test_failover_programs.py
        tools/lbm/test_programs.py tools/lbmmon/test_lbmmon.py tools/lbmmon/test_tnwgdcmd.py
        tools/lbmmon/test_tnwgdmon.py tools/immediate tools/umdump transport/test_lbtipc_kills.py transport/test_tls.py
        wire/lbmr/test_tshark.py
        wire/srs/test_srs_tshark.py
    """,
    Lane.DELIVERY: "analytics deploy docs test_site.py",
}
LANES: Final = {path: lane for lane, paths in _LISTED.items() for path in paths.split()}
NEEDED: Final = dict.fromkeys(("socket.bind", "socket.connect", "socket.sendto", "zmq"), Lane.LOOPBACK) | (
    dict.fromkeys(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"), Lane.PROCESSES)
)
"""Audit events of the interpreter that not every lane may cause."""
_permitted, _needed = Lane.DELIVERY, Lane.FAST
_needs: dict[str, int] = {}
"""The least lane in which each module of this run could be."""
_leaves_out = False
"""Whether this run is one of everything but the delivery."""


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
    if not NEEDED:
        return  # the interpreter ends
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
    global _leaves_out
    if hasattr(config, "workerinput"):
        _leaves_out = config.workerinput["leaves_out"]
        return
    _leaves_out = _is_whole(config) and os.environ.get("CI") != "true" and not _delivers()


def _is_whole(config: pytest.Config) -> bool:
    """Tell whether nobody has asked for certain tests."""
    asked = config.option.lane or config.option.keyword or config.getoption("tests", None)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not asked


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401  of xdist
    node.workerinput["leaves_out"] = _leaves_out


def _delivers() -> bool:
    from tests.changed import changed_files, reaches_delivery

    try:
        return reaches_delivery(changed_files(os.environ.get("BASE", "main")))
    except ValueError:  # no repository of git
        return True


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules of other lanes than the one that is asked for."""
    if not collection_path.name.startswith("test_"):
        return None
    lane = lane_of_id(collection_path.relative_to(config.rootpath).as_posix())
    asked = config.option.lane
    is_other = lane is Lane.DELIVERY and _leaves_out if asked is None else lane is not Lane[asked.upper()]
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
        session.config.workeroutput["needs"] = {module: int(needed) for module, needed in _needs.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401  of xdist
    """Join what a worker of xdist has noted."""
    for module, needed in getattr(node, "workeroutput", {}).get("needs", {}).items():
        _needs[module] = max(_needs.get(module, 0), needed)


def pytest_terminal_summary(terminalreporter: TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Say what a whole run has left out, and name the modules that could be in a lane below theirs."""
    if _leaves_out:
        terminalreporter.write_line(LEFT_OUT)
    if exitstatus or not _is_whole(config):
        return
    for module, needed in sorted(_needs.items()):
        if needed < lane_of_id(module) < Lane.DELIVERY:
            terminalreporter.write_line(f"{module} does what the lane {Lane(needed).name.lower()} permits, and no more")

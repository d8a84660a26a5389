"""The demonstration without multicast; `tests/netns/test_cloud.py` shows that it uses none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from supervisor.tools.demo.arrivals import Arrivals
from supervisor.tools.demo.demonstration import DemoScreen
from supervisor.tools.demo.network import CLOUD, WHOLE, DemoNetwork, LinkState, NetworkState
from supervisor.tools.demo.resolvers import DemoResolver, ResolverFigures, figures_of, read_figures
from tests.rigs.waiting import wait_until
from tests.supervisor.tools.demo.running import LIMIT_S, Demo, files_of, processes_of
from tests.supervisor.tools.demo.terminals import Terminal, pictures_of


def test_all_that_is_to_be_seen_fits_a_terminal_of_24_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((80, 24)))
    network = DemoNetwork({}, tmp_path, threading.Event(), CLOUD)
    told = {one.name: ResolverFigures(2, 123456) for one in CLOUD.resolvers}
    network.view = NetworkState((LinkState("A-B", True, 1, 123456789, 500.0),), CLOUD.dros_to, resolvers=told)
    ports = {"link0": 20001, "web0": 20002, "web1": 20003}
    ports |= {port: 20010 for one in CLOUD.resolvers for port in one.ports}
    arrivals = [Arrivals("receiver, TRD 2"), Arrivals("wildcard, TRD 2")]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        resolvers = {one.name: child for one in CLOUD.resolvers}
        DemoScreen(network, dict.fromkeys("AB", child), ports, tmp_path, resolvers=resolvers).show(0, 0, arrivals)
        child.communicate()
    (lines,) = [picture for picture in pictures_of(terminal.getvalue()) if any(picture)]
    assert max(map(len, lines)) <= 80
    assert sum(line.endswith("  http://127.0.0.1:20010") for line in lines) == 3
    assert f"  clients  {'  '.join(f'{name} 2 (told 123456)' for name in told)}" in lines
    assert f"  try    kill {child.pid}: lbmrd1 ends, and messages go on" in lines


def test_a_daemon_is_asked_for_its_figures() -> None:
    one = DemoResolver("one", "umsrs")
    text = "# HELP umsrs_clients x\numsrs_clients 2.0\numsrs_records_told_total 1e+06\n"
    assert read_figures(one, text) == ResolverFigures(2, 10**6)
    with pytest.raises(ValueError, match="no umsrs_clients"):
        read_figures(one, "")
    assert figures_of(one, 1) is None, "nobody listens there"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_lbmrd_ends_and_messages_go_on_until_a_signal_ends_all(tmp_path: Path, number: signal.Signals) -> None:
    demo = Demo(tmp_path, "--cloud", "--rate", "100")
    try:
        demo.wait_for(rf"sent \d{{2,}}  TRD 2 received \d{{2,}} by A-B, .*\({WHOLE}\)")
        pid = demo.process.pid
        (first,) = (line for line in processes_of(pid) if "supervisor.resolvers.lbmrd" in line and is_first(line, demo))
        os.kill(int(first.split()[0]), signal.SIGTERM)
        demo.wait_for(r"TRD 2 received \d+ .*\(lbmrd1 does not answer\)\n(.*\n)*.*sent .*lbmrd1 does not answer")
        demo.process.send_signal(number)
        assert demo.process.wait(LIMIT_S) == 0, demo.output
        assert re.search(r"demo: sent \d+, received \d+, lost 0, duplicates 0", demo.output)
        wait_until(lambda: processes_of(pid) == [], "the end of all processes", 5)
        assert files_of(pid) == []
        assert list(demo.temporary.iterdir()) == []
    finally:
        demo.close()


def is_first(line: str, demo: Demo) -> bool:
    """Whether a process has the metrics of the first lbmrd."""
    port = demo.wait_for(r"metrics of lbmrd1: http://127.0.0.1:(\d+)/")[1]
    return port in line.split("\0")


@pytest.mark.slow
def test_a_daemon_that_cannot_start_ends_it_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DemoResolver, "arguments", lambda *_: ("--port", "none"))
    monkeypatch.setattr(sys, "stdout", said := Terminal())
    from supervisor.tools.demo import demonstration

    assert demonstration.run(CLOUD, tmp_path, threading.Event(), 1, 100) == 1
    assert "whole number from 0 to 65535" in said.getvalue()
    assert re.search(r"demo: the DROs did not find each other; (lbmrd1|lbmrd2|umsrs) ended", said.getvalue())

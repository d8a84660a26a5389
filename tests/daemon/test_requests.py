"""Requests on a topic over two DROs, as their users have them: two tnwgd, lbmresp in one TRD, lbmreq in the other."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.rigs.lbm_tools import Tool
from tests.rigs.loaded import Loaded
from tests.rigs.network import Plan, Ports
from tests.rigs.site import ROOT

PAIR: Ports = {"A": [1, "B"], "B": [2, "A"]}


def test_requests_on_a_topic_cross_two_dros(tmp_path: Path) -> None:
    plan = Plan(tmp_path, PAIR)
    one, two = str(plan.config(1)), str(plan.config(2))
    dros: list[subprocess.Popen[bytes]] = []
    try:
        for name in PAIR:
            with (tmp_path / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-m", "supervisor.main", str(plan.file(name))]
                dros.append(Loaded(command, cwd=ROOT, stdout=log, stderr=log))
        with Tool("lbmresp", "-c", two, "-l", "100000", "service") as responder:
            responder.wait_for("request address")
            with Tool("lbmreq", "-c", one, "-d", "0", "-P", "1", "service") as asker:
                answer = asker.wait_for("Response [")
                asker.signal(signal.SIGTERM)
                assert asker.wait() == 143
            responder.signal(signal.SIGTERM)
            assert responder.wait() == 0
        assert answer.startswith("Response [TCP:2:127.0.0.1:")
        assert answer.endswith("], 100000 bytes")
    finally:
        for process in dros:
            process.terminate()
        for process in dros:
            process.wait(30)
        plan.close()

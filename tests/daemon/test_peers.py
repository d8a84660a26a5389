"""Shows what an operator types about the links of real DROs; `tests/network/test_answers.py` has all the answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from supervisor.tools.ctl.main import main
from supervisor.tools.ctl.output import EXIT_FAILED, EXIT_OK
from tests.network.plans import CHAIN, PAIR
from tests.rigs.certificates import Authority
from tests.rigs.flow import Board
from tests.rigs.loaded import Loaded
from tests.rigs.network import Plan
from tests.rigs.site import ROOT
from tests.rigs.waiting import wait_until

Ask = Callable[..., Any]


@dataclass
class Chain:
    """A `tnwgd` for each DRO, and a flow from TRD 1 to TRD 3."""

    plan: Plan
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *words: str) -> None:
        with (self.plan.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", *words]
            self.processes[name] = Loaded(command, cwd=ROOT, stdout=log, stderr=log)

    def start_dro(self, name: str) -> None:
        self.start(name, "supervisor.main", str(self.plan.file(name)))

    def end(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        process.wait(30)

    def name(self, dro: str) -> str:
        return f"{dro}{self.plan.base}"

    def logs(self) -> str:
        return "\n".join(path.read_text()[-4000:] for path in sorted(self.plan.folder.glob("*.log")))


@contextmanager
def running_pair(folder: Path) -> Iterator[Chain]:
    """Run DRO A with TRD 1 and DRO B with TRD 2, and the link between them."""
    chain = Chain(Plan(folder, PAIR))
    try:
        for name in PAIR:
            chain.start_dro(name)
        yield chain
    finally:
        for name in list(chain.processes):
            chain.end(name)
        chain.plan.close()


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    made = Chain(Plan(folder, CHAIN))
    flow = Board.create(folder, "flow", 1)
    try:
        for name in CHAIN:
            made.start_dro(name)
        made.start("send", "tests.rigs.flow", str(made.plan.config(1)), "--send", str(flow.path), "--rate", "50")
        made.start("receive", "tests.rigs.flow", str(made.plan.config(3)), "--receive", str(flow.path))
        wait_until(lambda: flow.is_flowing, "a flow", 60, made.logs)
        yield made
    finally:
        for name in list(made.processes):
            made.end(name)
        made.plan.close()


@pytest.fixture
def typed(chain: Chain, capsys: pytest.CaptureFixture[str]) -> Ask:
    """`typed(dro, words...)`: the text, or with `--json` the object. `status` None: any."""

    def ask(dro: str, *words: str, status: int | None = EXIT_OK) -> Any:  # noqa: ANN401 - JSON
        capsys.readouterr()
        assert status in (None, main([*words, "--dro", chain.name(dro)])), capsys.readouterr()
        out = capsys.readouterr().out
        return json.loads(out) if "--json" in words else out

    return ask


def test_peers(chain: Chain, typed: Ask) -> None:
    rows = typed("B", "peers", "--json")["peers"]
    assert [(row["portal"], row["state"], row["dro"]) for row in rows] == [
        ("B-A", "up", chain.name("A")),
        ("B-C", "up", chain.name("C")),
    ]
    assert rows[0]["fragments_received"] > 0
    text = typed("B", "peers", "--portal", "B-C")
    assert text.startswith("B-C  initiator, up for ")
    assert f"companion {chain.name('C')}, node " in text

    def heard() -> int:
        (portal,) = [p for p in typed("B", "portals", "--json")["portals"] if p["name"] == "B-A"]
        return int(portal["counters"]["GATEWAY_CONTROL_RCVD"])

    wait_until(heard, "what the DROs tell each other is counted")
    typed("B", "peers", "--portal", "B-2", status=EXIT_FAILED)


def test_a_companion_that_is_gone_is_named_wherever_one_looks(chain: Chain, typed: Ask) -> None:
    chain.end("C")
    try:
        wait_until(lambda: typed("B", "status", "--json")["neighbours"], "a neighbour that is missed")
        (missed,) = typed("B", "status", "--json")["neighbours"]
        assert missed["portal"] == "B-C"
        assert missed["what"].startswith("no link for ")
        assert "neighbours: B-C: no link for " in typed("B", "status")
        assert "B-C  initiator, " in typed("B", "peers")
        checks = typed("B", "doctor", "--listen-only", "--listen", "0.1", "--json", status=EXIT_OK)["checks"]
        (found,) = [check for check in checks if check["check"] == "neighbours"]
        assert (found["portal"], found["status"]) == ("B-C", "warn")
        asked = ("explain", "flow.0", "--from", "1", "--to", "3")
        wait_until(lambda: "no route" in typed("B", *asked, status=None), "no route")
        reason = typed("B", *asked, "--json", status=EXIT_FAILED)["network"]["reason"]
        assert "B-C: no link for " in reason
    finally:
        chain.start_dro("C")
    wait_until(lambda: not typed("B", "status", "--json")["neighbours"], "the link", 60, chain.logs)


def test_a_flow_crosses_a_link_with_tls_and_compression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path)
    made = Chain(Plan(tmp_path, PAIR))
    flow = Board.create(tmp_path, "flow", 1)
    for dro in PAIR:
        certificate, key = authority.leaf(dro)
        secret = (
            f"<compression>LZ4</compression><tls><certificate>{certificate}</certificate>"
            f"<certificate-key>{key}</certificate-key>"
            f"<trusted-certificates>{authority.trusted}</trusted-certificates></tls>"
        )
        file = made.plan.file(dro)
        file.write_text(file.read_text().replace("<nodelay/>", f"<nodelay/>{secret}"))
    try:
        for dro in PAIR:
            made.start_dro(dro)
        made.start("send", "tests.rigs.flow", str(made.plan.config(1)), "--send", str(flow.path), "--rate", "50")
        made.start("receive", "tests.rigs.flow", str(made.plan.config(2)), "--receive", str(flow.path))
        wait_until(lambda: flow.is_flowing, "a flow", 60, made.logs)
        assert main(["peers", "--json", "--dro", made.name("B")]) == EXIT_OK
        (row,) = json.loads(capsys.readouterr().out)["peers"]
        assert (row["state"], row["transport"]) == ("up", "TCP + TLSv1.3 + LZ4")
    finally:
        for name in list(made.processes):
            made.end(name)
        made.plan.close()

"""The example networks as a user meets them: `tnwgd -v` takes every file, and a start is a run or a clear refusal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from lxml import etree

from supervisor.main import main
from tests.config.dro_xml.test_examples import EXAMPLES, FILES, REFUSED, ident
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.process import Process

RUNNING = [path for path in FILES if ident(path) not in REFUSED]
ENDPOINTS = [path for path in RUNNING if etree.parse(path).find("portals/peer") is None]


def test_v_takes_every_example_but_the_two_portals_in_one_domain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 87 at once, of which one folder says that its file is an error."""
    monkeypatch.chdir(EXAMPLES)
    assert main(["-v", *map(ident, FILES)]) == 1
    out, err = capsys.readouterr()
    for path in FILES:
        if ident(path) in REFUSED:
            assert f"{ident(path)}: no errors" not in out
            assert re.search(rf"{re.escape(ident(path))}:\d+: .*{REFUSED[ident(path)]}", err)
        else:
            assert f"{ident(path)}: no errors\n" in out


@pytest.mark.parametrize("path", [path for path in FILES if path not in RUNNING], ids=ident)
def test_what_cannot_run_is_refused(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    assert main([path.name]) == 1
    err = capsys.readouterr().err
    assert REFUSED[ident(path)] in err


def test_the_networks_with_dros_of_endpoints_alone_are_these() -> None:
    assert {path.parent.name for path in ENDPOINTS} == {
        "cost-sum", "direct-link", "dumbbell", "hotlinks", "hotlinks-mixed", "palm-tree", "star-central-dro",
        "star-central-trd", "transit-trd", "unsupported-hotlink-chain", "unsupported-two-domain-ids",
    }  # fmt: skip
    assert len(ENDPOINTS) > 10


@pytest.mark.netns
@pytest.mark.long
def test_what_needs_endpoints_only_runs(net: Net) -> None:
    """Every such DRO, those of a network on one host, as the files are made for."""
    hosts: dict[str, Host] = {}
    running: dict[Path, Process] = {}
    for path in ENDPOINTS:
        folder = path.parent.name
        if folder not in hosts:
            hosts[folder] = net.host(folder[:12], {f"t{len(hosts)}": f"10.{len(hosts) + 1}.0.1/24"})
        made = net.folder / folder
        if not made.exists():
            made.symlink_to(path.parent)
        label = f"{folder[:12]}-{path.stem}"
        running[path] = hosts[folder].start_python("-m", "supervisor.main", path.name, name=label, cwd=made)
    for process in running.values():
        process.wait_output("route recalculation took", 60)
    conflict = running[EXAMPLES / "unsupported-two-domain-ids" / "dro-g1.xml"]
    topology = json.loads((EXAMPLES / "unsupported-two-domain-ids" / "topology.json").read_text())
    assert "log a domain id conflict" in topology["expected_behaviour"]
    conflict.wait_output("of another domain dropped", 60)
    for process in running.values():
        assert process.stop(10) == 0, process.stdout

"""What the guide to security says to paste works: certificates, the configuration of a link, keys, and the firewall."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.monitor.orders import read_tokens
from supervisor.tools.ctl.main import main
from supervisor.tools.ctl.output import EXIT_OK
from tests.builders.dro_file import endpoint, gateway, load
from tests.builders.guide_blocks import blocks
from tests.network.plans import PAIR
from tests.rigs.loaded import Loaded
from tests.rigs.netns.app import App, Board, wait_delivered
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.topology import app_hosts, running_dro
from tests.rigs.network import Plan
from tests.rigs.site import ROOT
from tests.rigs.waiting import wait_until

GUIDE = "security.md"
OTHER = "<peer><name>P2</name><single-tcp><acceptor><listen-port>26123</listen-port></acceptor></single-tcp></peer>"
PLACE = "/etc/open-dro"
END = {"A": "east", "B": "west"}  # in a plan A connects, and B accepts


def paste(script: str, folder: Path) -> None:
    subprocess.run(["sh", "-eu", "-c", script], cwd=folder, check=True, capture_output=True, timeout=60)


def link_of(plan: Plan, dro: str) -> str:
    """`<single-tcp>` of the guide for that end, with the folder and port of the test."""
    west, east = blocks(GUIDE, "TLS for a peer link", "xml")
    text = (west if END[dro] == "west" else east).replace(f"{PLACE}/tls", str(plan.folder))
    return text.replace("26123", str(plan.link_port("A", "B"))).replace("192.0.2.10", "127.0.0.1")


def peer(plan: Plan, dro: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any] | None:
    """The link of a DRO, when it is up."""
    capsys.readouterr()
    if main(["peers", "--json", "--dro", f"{dro}{plan.base}"]) != EXIT_OK:
        return None
    rows = json.loads(capsys.readouterr().out)["peers"]
    return rows[0] if rows and rows[0]["state"] == "up" else None


@pytest.mark.slow
def test_the_link_of_the_guide_is_up_and_takes_new_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, certificates = blocks(GUIDE, "TLS for a peer link", "sh")
    paste(authority + certificates, tmp_path)
    plan = Plan(tmp_path, PAIR)
    dros = []
    for dro in PAIR:
        file = plan.file(dro)
        own = link_of(plan, dro)
        file.write_text(re.sub(r"<single-tcp>.*</single-tcp>", own, file.read_text()))
    try:
        for dro in PAIR:
            with (tmp_path / f"{dro}.log").open("wb") as log:
                command = [sys.executable, "-m", "supervisor.main", str(plan.file(dro))]
                dros.append(Loaded(command, cwd=ROOT, stdout=log, stderr=log))
        row = wait_until(lambda: peer(plan, "B", capsys), "the link", 60, (tmp_path / "B.log").read_text, every_s=0.2)
        assert row["transport"] == "TCP + TLSv1.3"
        assert (row["certificate"], row["own_certificate_days"]) == ("east.dro.example", 396)
        paste(certificates.replace("-days 397", "-days 200"), tmp_path)
        assert main(["portal", "restart", "B-A", "--dro", f"B{plan.base}"]) == EXIT_OK

        def is_new() -> bool:
            found = peer(plan, "B", capsys)
            return found is not None and (found["certificate_days"], found["own_certificate_days"]) == (199, 199)

        wait_until(is_new, "a link with the new certificates", 60, (tmp_path / "B.log").read_text, every_s=0.2)
    finally:
        for process in dros:
            process.terminate()
            process.wait(30)
        plan.close()


def test_keys_of_route_information_are_read(tmp_path: Path) -> None:
    (script,) = blocks(GUIDE, "Keys of route information", "sh")
    paste(script, tmp_path)
    (xml,) = blocks(GUIDE, "Keys of route information", "xml")
    warnings: list[str] = []
    given = xml.replace(PLACE, str(tmp_path))
    found = load(gateway(endpoint("P1", 1), OTHER, daemon=given), warnings).daemon.route_authentication
    assert found is not None
    assert (len(found.keys), found.unread, warnings) == (1, "", [])


def test_tokens_are_read(tmp_path: Path) -> None:
    (script,) = blocks(GUIDE, "Tokens of the admin API", "sh")
    paste(script, tmp_path)
    assert [(one.name, one.role) for one in read_tokens(tmp_path / "tokens")] == [("alice", "operator")]


def connects(host: Host, address: str, port: int) -> bool:
    return host.run(["timeout", "1", "bash", "-c", f"exec 3<>/dev/tcp/{address}/{port}"], check=False).returncode == 0


@pytest.mark.netns
@pytest.mark.slow
def test_behind_the_firewall_data_crosses_and_other_ports_are_closed(net: Net) -> None:
    (rules,) = blocks(GUIDE, "Firewall", "nft")
    file = net.folder / "open-dro.nft"
    file.write_text(rules)
    board = Board()
    hosts = app_hosts(net, 1, 2)
    with running_dro(net, {1: "lbtrm", 2: "tcp"}) as dro:
        dro.host.start(["python3", "-m", "http.server", "8000"], "stranger").wait_output("Serving HTTP")
        wait_until(lambda: connects(hosts[1], dro.host.address("trd1"), 8000), "a port that nobody guards")
        dro.host.run(["nft", "-c", "-f", str(file)])
        for _ in range(2):  # a second time it replaces its table
            dro.host.run(["nft", "-f", str(file)])
        apps = {trd: App(host, dro.configs[trd], board) for trd, host in hosts.items()}
        for source, receiver in ((1, 2), (2, 1)):
            topic = b"from %d" % source
            apps[receiver].receive(topic, cell=receiver)
            apps[source].open(topic.decode(), topic)
            apps[receiver].wait_heard(topic)
            apps[source].send(topic.decode(), 500, cells=(receiver,))
        wait_delivered(board, {1: 500, 2: 500})
        assert not connects(hosts[1], dro.host.address("trd1"), 8000)
        assert connects(hosts[1], dro.host.address("trd1"), 14391)
        for app in apps.values():
            app.end()

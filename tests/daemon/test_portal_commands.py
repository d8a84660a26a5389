"""What operators do to the portals of a real DRO, also with files and portals that are broken."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.admin.client import Client, CommandError, UnreachableError, find_dro
from supervisor.admin.status import DroStatus, OperationResult, PortalsStatus, PortalStatus, WorkerStatus
from tests.rigs.dro_run import is_running
from tests.rigs.orders import begin
from tests.rigs.site import Site, running
from tests.rigs.waiting import wait_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A DRO with three portals; each test changes it in several ways, one after the other."""
    with running(Site(tmp_path, 3)) as made:
        yield made


class Operator:
    """Speaks to the DRO of a site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.run_dir = find_dro(str(site.pid))
        site.wait(lambda: self.status().is_running, "all portals are ready")

    def status(self) -> DroStatus:
        with Client(self.run_dir) as client:
            return client.ask(DroStatus, "status")

    def worker(self, name: str) -> WorkerStatus:
        return next(worker for worker in self.status().workers if worker.name == name)

    def portals(self) -> dict[str, PortalStatus]:
        with Client(self.run_dir) as client:
            return {portal.name: portal for portal in client.ask(PortalsStatus, "portals").portals}

    def order(self, action: str, name: str, **arguments: object) -> OperationResult:
        with Client(self.run_dir) as client:
            return client.ask(OperationResult, f"portal {action}", within_s=120, name=name, **arguments)

    def refused(self, action: str, name: str, **arguments: object) -> str:
        with pytest.raises(CommandError) as error:
            self.order(action, name, **arguments)
        return str(error.value)


def edit(site: Site, old: str, new: str) -> None:
    path = site.folder / "dro.xml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_one_portal_is_changed_and_the_others_stay(site: Site) -> None:
    operator = Operator(site)
    before = {worker.name: worker for worker in operator.status().workers}
    assert operator.order("restart", "P1") == OperationResult("P1", "ready")
    assert operator.worker("P1").last_death == "ended by order"
    assert operator.worker("P1").incarnation > before["P1"].incarnation
    assert not is_running(before["P1"].pid)
    assert operator.order("pause", "P1") == OperationResult("P1", "paused")
    paused = operator.worker("P1")
    assert (paused.state, paused.pid, paused.uptime_s, paused.restarts) == ("paused", 0, 0.0, 1)
    assert operator.portals()["P1"].state == "paused"
    assert "P1 is paused already" in operator.refused("pause", "P1")
    assert operator.order("resume", "P1") == OperationResult("P1", "ready")
    assert operator.order("restart", "route-manager") == OperationResult("route-manager", "ready")
    after = {worker.name: worker for worker in operator.status().workers}
    assert [after[name].pid for name in ("P2", "P3")] == [before[name].pid for name in ("P2", "P3")]
    assert [worker.index for worker in after.values()] == [0, 1, 2, 3]

    others = [operator.worker(name).pid for name in ("P1", "P3")]
    assert operator.order("remove", "P2", limit_s=5) == OperationResult("P2", "removed")
    assert list(operator.portals()) == ["P1", "P3"]
    assert "no portal 'P2'; it has P1, P3" in operator.refused("restart", "P2")
    edit(site, "<name>P2</name>\n", "<name>P2</name>\n      <cost>7</cost>\n")
    edit(site, "<name>P1</name>\n", "<name>P1</name>\n      <cost>9</cost>\n")
    assert operator.order("add", "P2") == OperationResult("P2", "ready")
    portals = operator.portals()
    assert (portals["P2"].cost, portals["P1"].cost) == (7, 1)  # that portal of the file, and nothing else of it
    assert operator.worker("P2").index == 4
    assert [operator.worker(name).pid for name in ("P1", "P3")] == others
    assert "this DRO has P2 already, it is ready" in operator.refused("add", "P2")
    assert operator.order("restart", "P2") == OperationResult("P2", "ready")
    assert operator.portals()["P2"].cost == 7


def knock_often(operator: Operator) -> None:
    for n in range(1000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, contextlib.suppress(OSError):
            sock.settimeout(20)
            sock.connect(str(operator.run_dir / "admin"))  # refused while too many wait
            sock.sendall((b"garbage\n", b'{"command":', b"[" * 70_000, b"")[n % 4])  # or dropped already


def test_a_portal_that_cannot_be_added_changes_nothing(site: Site) -> None:
    operator = Operator(site)
    workers = [(worker.name, worker.pid) for worker in operator.status().workers]
    knock_often(operator)
    wait_until(lambda: _answers(operator), "an answer")
    assert site.log.count("admin client") < 100
    assert "there is no portal 'P4'; the file has P1, P2, P3" in operator.refused("add", "P4")
    text = (site.folder / "dro.xml").read_text()
    endpoint = text[text.index("    <endpoint>") : text.index("</endpoint>") + len("</endpoint>\n")]
    p4 = endpoint.replace("P1", "P4")
    (site.folder / "dro.xml").write_text(text.replace("  </portals>", p4 + "  </portals>"))
    assert "dro.xml:" in operator.refused("add", "P4")  # domain 1 twice
    (site.folder / "dro.xml").write_text("<tnw-gateway><oops/>")
    assert "dro.xml" in operator.refused("add", "P4")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen()
        port = taker.getsockname()[1]
        um = (site.folder / "trd1.cfg").read_text()
        taken = f"context request_tcp_port_low {port}\ncontext request_tcp_port_high {port}\n"
        (site.folder / "trd4.cfg").write_text(um.replace(site.net(1), "239.199.4") + taken)
        p4 = p4.replace("<domain-id>1<", "<domain-id>4<").replace("trd1.cfg", "trd4.cfg")
        (site.folder / "dro.xml").write_text(text.replace("  </portals>", p4 + "  </portals>"))
        refusal = operator.refused("add", "P4")
        assert "Address already in use" in refusal
        assert "P4 is removed" in refusal
    assert [(worker.name, worker.pid) for worker in operator.status().workers] == workers
    assert list(operator.portals()) == ["P1", "P2", "P3"]
    text4 = (site.folder / "trd4.cfg").read_text().removesuffix(taken)
    (site.folder / "trd4.cfg").write_text(text4)  # the ports of P1 suffice for one context more
    assert operator.order("add", "P4") == OperationResult("P4", "ready")
    assert operator.worker("P4").index == 5


def test_a_frozen_portal_is_removed_and_a_killed_one_not_restarted_over_an_operators_head(site: Site) -> None:
    operator = Operator(site)
    others = [operator.worker(name).pid for name in ("P1", "P3")]
    frozen = site.worker("P2")
    os.kill(frozen, signal.SIGSTOP)
    began = time.monotonic()
    done = operator.order("remove", "P2", limit_s=0)
    assert (done.state, "was killed" in done.note) == ("removed", True)
    assert time.monotonic() - began < 30
    assert not is_running(frozen)
    assert [operator.worker(name).pid for name in ("P1", "P3")] == others

    os.kill(site.worker("P3"), signal.SIGSTOP)
    drain = threading.Thread(target=lambda: operator.order("drain", "P3", limit_s=60), daemon=True)
    drain.start()
    site.wait(lambda: operator.worker("P3").operation == "drain", "the drain is under way")
    assert operator.worker("P3").state == "draining"
    assert "P3 is busy: drain is under way" in operator.refused("restart", "P3")
    os.kill(operator.worker("P3").pid, signal.SIGKILL)
    drain.join(60)
    assert operator.worker("P3").state == "drained"
    assert operator.worker("P3").last_death == "killed by SIGKILL"
    assert operator.order("resume", "P3") == OperationResult("P3", "ready")


def test_a_new_life_holds_no_admin_connection(site: Site) -> None:
    """Else a client would not see the end of the parent, and its place would stay taken."""
    operator = Operator(site)

    def sockets(pid: int) -> set[str]:
        found = set()
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(fd))
        return {link for link in found if link.startswith("socket:")}

    with Client(operator.run_dir) as client:
        client.request("status")
        operator.order("restart", "P1")
        operator.order("restart", "route-manager")
        for worker in operator.status().workers:
            assert not sockets(worker.pid) & sockets(site.pid)
        os.kill(site.pid, signal.SIGKILL)
        with pytest.raises(UnreachableError, match="is gone"):
            client.request("status")
        assert site.daemon is not None
        site.daemon.wait(20)
    assert (operator.run_dir / "admin").exists()  # and is not taken for a living one
    with pytest.raises(UnreachableError, match=f"no DRO '{site.pid}'"):
        find_dro(str(site.pid))
    with pytest.raises(UnreachableError, match="Connection refused"):
        operator.status()
    site.daemon = None


def _answers(operator: Operator) -> bool:
    try:
        return operator.status().is_running
    except (UnreachableError, CommandError, json.JSONDecodeError):
        return False


def test_the_end_of_the_dro_ends_a_drain_of_all_portals(site: Site) -> None:
    """A portal that stands still keeps the DRO for longer than the drain waits for routes."""
    operator = Operator(site)
    frozen = operator.worker("P2").pid
    leave = begin(site.pid, "drain", "--all")
    site.wait(lambda: "drain --all is under way" in operator.refused("drain", "P9"), "the beginning of the drain")
    os.kill(frozen, signal.SIGSTOP)
    try:
        assert site.daemon is not None
        site.daemon.terminate()
        said, _ = leave.communicate(timeout=60)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert (leave.returncode, "the DRO is stopping" in said) == (1, True), said
    assert site.daemon.wait(30) == 0
    site.daemon = None

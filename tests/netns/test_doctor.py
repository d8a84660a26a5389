"""`tnwgdctl doctor` on real networks: silent about a healthy one, and each injected fault is named, and it alone."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dro.wire.lbmr import packet as lbmr
from tests.rigs.netns.capture import judge
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.topology import DRO_HOST, address_in, app_hosts, running_dro, trd_name, write_dro

pytestmark = pytest.mark.netns

UM = """# UM options of TRD {trd}
context default_interface {interface}
source transport lbtrm
context transport_tcp_datagram_max_size 8192
"""
LISTEN = ("--listen", "0.5")
FIND = ("--listen", "3")  # long enough to find responders by themselves
RESPONDER = address_in(1, 1)
NAMED = ("--responder", RESPONDER)
RESOLVER_GROUP, DATA_PORT = "224.9.10.11", 14400


@dataclass(frozen=True)
class Told:
    """What a doctor said, by JSON."""

    status: int
    answer: dict[str, object]

    @property
    def checks(self) -> list[dict[str, str]]:
        found = self.answer["checks"]
        assert isinstance(found, list)
        return found

    def of(self, *statuses: str) -> list[dict[str, str]]:
        return [check for check in self.checks if check["status"] in statuses]

    def one(self, name: str, portal: str) -> dict[str, str]:
        """The only check of that name that is not ok or a note; the text of all others if there is another number."""
        found = [c for c in self.of("warn", "fail") if c["check"] == name and c["portal"] == portal]
        assert len(found) == 1, self.checks
        return found[0]


@dataclass(frozen=True)
class Trds:
    """A host that shall run a DRO between two TRDs, and a host in each."""

    net: Net
    dro: Host
    apps: dict[int, Host]
    folder: Path

    def um(self, trd: int, more: str = "", interface: str = "") -> Path:
        path = self.folder / f"trd{trd}.cfg"
        path.write_text(UM.format(trd=trd, interface=interface or f"10.{trd}.0.0/24") + more)
        return path

    def xml(self) -> Path:
        return write_dro(self.folder, {trd: self.folder / f"trd{trd}.cfg" for trd in self.apps})

    def respond(self, trd: int = 1) -> None:
        address = address_in(trd, 1)
        process = self.apps[trd].start_python(
            "-m", "supervisor.tools.ctl.main", "doctor", "--respond", address, name="responder"
        )
        process.wait_output(f"responder ready on {address}", 30)

    def doctor(self, *arguments: str, wrapper: Sequence[str] = ()) -> Told:
        argv = [
            *wrapper,
            sys.executable,
            "-m",
            "supervisor.tools.ctl.main",
            "doctor",
            str(self.xml()),
            "--json",
            *LISTEN,
            *arguments,
        ]
        done = self.dro.run(argv, timeout_s=60, check=False)
        assert done.returncode in (0, 1), done.stderr
        return Told(done.returncode, json.loads(done.stdout))


@pytest.fixture
def trds(net: Net, tmp_path: Path) -> Trds:
    apps = app_hosts(net, 1, 2)
    dro = net.host("dro", {trd_name(trd): f"{address_in(trd, DRO_HOST)}/24" for trd in apps})
    made = Trds(net, dro, apps, tmp_path)
    for trd in apps:
        made.um(trd)
    return made


def test_a_healthy_network_gives_no_reason_to_complain(trds: Trds) -> None:
    trds.respond(1)
    trds.respond(2)
    told = trds.doctor(*FIND)
    assert (told.status, told.answer["status"], told.of("warn", "fail")) == (0, "ok", [])
    for trd in (1, 2):
        names = [c["check"] for c in told.of("ok") if c["portal"] == f"G1-TRD{trd}"]
        other = address_in(trd, 1)
        for name in ("interface", "ports", "socket buffers", "multicast on this host", "clock"):
            assert name in names
        for way in ("to", "from"):
            assert names.count(f"multicast {way} {other}") == 2  # topic resolution and data
            assert names.count(f"datagram size {way} {other}") == 1


def test_without_a_responder_it_says_what_it_does_not_know(trds: Trds) -> None:
    told = trds.doctor()
    assert (told.status, told.of("warn", "fail")) == (0, [])
    assert {c["check"] for c in told.of("note")} == {"others", "datagram size"}
    missing = trds.doctor(*NAMED)
    assert missing.status == 1
    assert "does not answer" in missing.one("responder", "G1-TRD1")["what"]


def test_multicast_that_is_blocked_towards_another_host(trds: Trds) -> None:
    trds.respond()
    trds.apps[1].lose(1.0, groups=[RESOLVER_GROUP])
    told = trds.doctor(*NAMED)
    check = told.one(f"multicast to {RESPONDER}", "G1-TRD1")
    assert (told.status, check["status"], len(told.of("warn", "fail"))) == (1, "fail", 1)
    assert (
        f"{RESOLVER_GROUP}:12965 (topic resolution) does not pass from {address_in(1, 9)} to {RESPONDER}"
        in check["what"]
    )


def test_multicast_that_is_blocked_from_another_host(trds: Trds) -> None:
    trds.respond()
    trds.dro.lose(1.0, groups=["224.0.0.0/4"], where=f"ip saddr {RESPONDER}")
    told = trds.doctor(*FIND)  # the beacon is blocked as well, the greeting is not
    failed = told.of("warn", "fail")
    assert {c["check"] for c in failed} == {f"multicast from {RESPONDER}"}
    assert len(failed) == 2
    assert all("does not pass from " + RESPONDER in c["what"] for c in failed)


def test_a_block_of_both_directions_is_told_as_long_as_the_responder_is_named(trds: Trds) -> None:
    trds.respond()
    trds.dro.lose(1.0, groups=["224.0.0.0/4"], where=f"ip saddr {RESPONDER}")
    trds.apps[1].lose(1.0, groups=["224.0.0.0/4"])
    told = trds.doctor(*NAMED)
    assert {c["check"] for c in told.of("fail")} == {f"multicast {way} {RESPONDER}" for way in ("to", "from")}
    assert len(told.of("fail")) == 4


def test_a_block_of_data_alone_and_random_loss(trds: Trds) -> None:
    trds.respond()
    trds.apps[1].lose(1.0, dports=[DATA_PORT])
    trds.dro.lose(every=2, dports=[12965], where=f"ip saddr {RESPONDER}")
    told = trds.doctor(*NAMED)
    assert "LBT-RM data) does not pass" in told.one(f"multicast to {RESPONDER}", "G1-TRD1")["what"]
    lossy = told.one(f"multicast from {RESPONDER}", "G1-TRD1")
    assert (lossy["status"], "of 5 datagrams pass" in lossy["what"]) == ("warn", True)


def test_multicast_that_this_host_blocks_itself(trds: Trds) -> None:
    trds.dro.lose(1.0, groups=[RESOLVER_GROUP])
    told = trds.doctor()
    assert [c["check"] for c in told.of("warn", "fail")] == ["multicast on this host"] * 2


DAEMON = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 15380))
print("ready", flush=True)
while True:
    sock.sendto(bytes.fromhex("{answer}"), sock.recvfrom(65535)[1])
"""


def test_a_resolver_daemon_that_answers_and_one_that_is_blocked(trds: Trds) -> None:
    for trd, app in trds.apps.items():
        trds.um(trd, f"context resolver_unicast_daemon {address_in(trd, 1)}:15380\n")
        answer = lbmr.encode(lbmr.Packet(lbmr.VERSION, None, lbmr.Queries())).hex()
        app.start_python("-c", DAEMON.format(answer=answer), name="lbmrd").wait_output("ready", 30)
    told = trds.doctor()
    assert [c["check"] for c in told.of("ok") if c["check"].startswith("lbmrd")] == [
        f"lbmrd {address_in(trd, 1)}:15380" for trd in trds.apps
    ]
    assert told.of("fail") == []
    assert not any("multicast" in c["check"] for c in told.of("ok"))
    trds.apps[1].lose(1.0, dports=[15380])
    check = trds.doctor().one(f"lbmrd {address_in(1, 1)}:15380", "G1-TRD1")
    assert (check["status"], check["what"]) == ("fail", "no answer to keepalives within 1 s")


def test_a_path_mtu_that_is_too_small(trds: Trds) -> None:
    trds.respond()
    trd = trds.net.trds["trd1"]
    _ip("-n", trd.namespace, "link", "set", trd.ports["app1"], "mtu", "1400")
    told = trds.doctor(*NAMED)
    failed = told.of("warn", "fail")
    assert [(c["check"], c["status"]) for c in failed] == [
        (f"datagram size {way} {RESPONDER}", "fail") for way in ("to", "from")
    ]
    for check in failed:  # devices let pass 4 bytes more, for a VLAN tag
        found = re.match(
            r"path MTU (140[0-4]), but the interface trd1 has 1500: whole datagrams above (\d+) ", check["what"]
        )
        assert found, check["what"]
        assert int(found[2]) == int(found[1]) - 28
        assert f"mtu {found[1]})" in check["remedy"]


def test_fragments_that_are_dropped(trds: Trds) -> None:
    trds.respond()
    rules = "table ip frags { chain c { type filter hook prerouting priority -500; ip frag-off & 0x1fff != 0 drop; }; }"
    trds.apps[1].run(["nft", rules])
    told = trds.doctor(*NAMED)
    check = told.one(f"datagram size to {RESPONDER}", "G1-TRD1")
    assert "whole datagrams of 1472 bytes pass, 8192 bytes in fragments do not" in check["what"]
    assert len(told.of("warn", "fail")) == 1


def test_ports_that_are_taken(trds: Trds) -> None:
    ports = range(14391, 14396)  # those of UM's request ports
    trds.um(2, "context request_tcp_interface 127.0.0.1\n")
    with _holding(trds.dro, address_in(1, 9), ports) as pid:
        told = trds.doctor()
    check = told.one("ports", "G1-TRD1")
    print(check)
    assert (told.status, check["status"], len(told.of("warn", "fail"))) == (0, "warn", 1), "any free port will do"
    assert "2 may be wanted, 0 free: 14391, 14392, 14393, 14394, 14395 held by python" in check["what"]
    assert f"(pid {pid})" in check["remedy"]
    trds.um(1, "context request_tcp_port_high 14394\n")
    with _holding(trds.dro, address_in(1, 9), ports) as pid:
        told = trds.doctor()
    check = told.one("ports", "G1-TRD1")
    assert (told.status, check["status"]) == (1, "fail")
    assert "2 needed, 0 free: 14391, 14392, 14393, 14394 held by python" in check["what"]


def test_a_port_that_is_taken_while_there_are_enough_is_named_and_no_fault(trds: Trds) -> None:
    with _holding(trds.dro, address_in(1, 9), [14392]) as pid:
        told = trds.doctor()
    assert told.of("warn", "fail") == []
    assert any(f"14392 held by python (pid {pid})" in c["what"].replace("python3", "python") for c in told.of("ok"))


@contextmanager
def _holding(host: Host, address: str, ports: Sequence[int]) -> Iterator[int]:
    with host.inside():
        listeners = [socket.create_server((address, port), reuse_port=False) for port in ports]
    try:
        yield os.getpid()
    finally:
        for listener in listeners:
            listener.close()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


def test_an_interface_that_is_missing(trds: Trds) -> None:
    trds.um(2, interface="10.77.0.0/24")
    told = trds.doctor()
    check = told.one("interface", "G1-TRD2")
    assert (told.status, check["status"]) == (1, "fail")
    assert "no interface of this host matches '10.77.0.0/24'" in check["what"]
    assert check["place"] == f"{trds.folder / 'trd2.cfg'}:2"
    assert {c["check"] for c in told.of("fail")} == {"interface"}


def test_an_interface_that_is_down(trds: Trds) -> None:
    _ip("-n", trds.dro.namespace, "link", "set", "trd2", "down")
    told = trds.doctor()
    assert "10.2.0.9 on trd2 is down" in told.one("interface", "G1-TRD2")["what"]
    assert len(told.of("warn", "fail")) == 1


def test_socket_buffers_that_are_not_granted(trds: Trds) -> None:
    trds.um(1, "context transport_lbtrm_receiver_socket_buffer 1073741824\n")
    trds.um(2, "context resolver_multicast_receiver_socket_buffer 65536\n"
               "context transport_lbtrm_receiver_socket_buffer 131072\n"
               "context transport_lbtru_receiver_socket_buffer 131072\n")  # fmt: skip
    told = trds.doctor(wrapper=["setpriv", "--bounding-set=-net_admin"])
    warned = [c for c in told.of("warn") if "1073741824 bytes asked" in c["what"]]
    assert [(c["portal"], c["check"]) for c in warned] == [("G1-TRD1", "socket buffers")]
    assert "sysctl -w net.core.rmem_max=1073741824" in warned[0]["remedy"]
    assert {(c["portal"], c["check"]) for c in told.of("warn", "fail")} == {("G1-TRD1", "socket buffers")}
    assert told.status == 0
    assert trds.doctor("--strict", wrapper=["setpriv", "--bounding-set=-net_admin"]).status == 1


def test_datagram_sizes_that_differ(trds: Trds) -> None:
    trds.um(2, "context transport_lbtrm_datagram_max_size 1400\n")
    told = trds.doctor()
    warned = told.of("warn", "fail")
    assert [c["check"] for c in warned] == ["lint fragment-size"]
    assert "1400 bytes at portal G1-TRD2 (lbtrm), 8192 at portal G1-TRD1 (lbtrm)" in warned[0]["what"]
    assert warned[0]["place"] == f"{trds.folder / 'trd2.cfg'}:5"


def test_a_trd_that_another_dro_gives_another_domain_id(trds: Trds) -> None:
    task = trds.apps[1].spawn(_speak, address_in(1, 1), 77)
    told = trds.doctor()
    check = told.one("domain id", "G1-TRD1")
    assert (told.status, check["status"]) == (1, "fail")
    assert f"the DRO at {RESPONDER} speaks of domain id 77, this portal has 1" in check["what"]
    assert any(c["check"] == "others" and RESPONDER in c["what"] for c in told.of("ok"))
    task.kill()


def _speak(address: str, domain_id: int) -> None:
    options = lbmr.standard_options(b"12345678", lbmr.SenderType.DRO, domain_id)
    packet = lbmr.encode(lbmr.Packet(lbmr.VERSION, options, lbmr.TopicResolutionRequest(0)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        while True:
            sock.sendto(packet, (RESOLVER_GROUP, 12965))
            time.sleep(0.05)  # what it is to do until it is killed


@pytest.mark.tshark
def test_a_running_dro_is_looked_at_and_not_disturbed(net: Net) -> None:
    """What the doctor puts on UM's own ports is UM to the dissector, and the DRO takes no notice of it."""
    apps = app_hosts(net, 1, 2)
    captures = {trd: net.capture(trd_name(trd), "not port 14499") for trd in apps}
    with running_dro(net, {1: "lbtrm", 2: "tcp"}) as dro:
        for trd, host in apps.items():
            address = address_in(trd, 1)
            responder = host.start_python(
                "-m", "supervisor.tools.ctl.main", "doctor", "--respond", address, name="responder"
            )
            responder.wait_output("responder ready", 30)
        argv = [sys.executable, "-m", "supervisor.tools.ctl.main", "doctor", "--json", "--dro", str(dro.process.pid)]
        argv += ["--listen", "4"]  # its DRO names the domain once in a second
        done = dro.host.run(argv, timeout_s=60, check=False)
        told = Told(done.returncode, json.loads(done.stdout))
        assert told.answer["running_pid"] == dro.process.pid
        assert told.of("fail") == []
        assert {c["check"] for c in told.of("warn")} == {"lint window-time"}  # of the file that the harness writes
        assert sum("of this DRO" in c["what"] for c in told.checks if c["check"] == "ports") >= 2
        assert any(c["check"] == "domain id" and "1 is what is said here" in c["what"] for c in told.checks)
        dro.wait_balanced()
        assert dro.logged("WARNING|ERROR") == 0
    for capture in captures.values():
        judge(capture.stop()).assert_clean({"lbmr.tqr": 0})

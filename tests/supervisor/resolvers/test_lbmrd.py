"""lbmrd as a program: what clients get over real sockets, and what a wrong start says."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import signal
import socket
import urllib.request
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from dro.log.lines import JsonFormatter
from dro.loop import Loop
from dro.transport.fan_out import FanOut
from dro.transport.mmsg import BATCH
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import LbtrmAddress, TcpAddress
from supervisor.resolvers.lbmrd import PROGRAM, Lbmrd, _key_of, main
from tests.rigs.resolver_daemon import ResolverDaemon
from tests.rigs.resolver_daemon import running as daemon_running
from tests.rigs.waiting import wait_until

ROOT: Final = Path(__file__).parents[3]
ALIVE: Final = lbmr.encode(lbmr.Packet(1, None, lbmr.ReceiverAlive()))
ANSWER: Final = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries()))
QUERY: Final = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((b"AAA",))))
NAT: Final = """\
<lbmrd><daemon><interface>127.0.0.1</interface></daemon>
<domains><domain name="in"><network>127.1.0.0/16</network></domain>
<domain name="out"><network>127.2.0.0/16</network></domain></domains>
<transformations><transform source="in" destination="out">
<rule><match address="127.1.0.5" port="*"/><replace address="127.2.0.9" port="4711"/></rule>
</transform></transformations></lbmrd>
"""


running = partial(daemon_running, "lbmrd")


class Party:
    """A context, as far as the daemon sees it."""

    def __init__(self, daemon: ResolverDaemon, ip: str = "127.0.0.1") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(20)
        self.socket.bind((ip, 0))
        self.socket.connect(daemon.address)

    def registered(self) -> Party:
        self.socket.send(ALIVE)
        assert self.socket.recv(100) == ANSWER
        return self

    def tell(self, packet: bytes) -> None:
        self.socket.send(packet)

    def heard(self) -> bytes:
        return self.socket.recv(65535)


@contextlib.contextmanager
def parties(daemon: ResolverDaemon, *ips: str) -> Iterator[list[Party]]:
    made = [Party(daemon, ip).registered() for ip in ips]
    try:
        yield made
    finally:
        for party in made:
            party.socket.close()


def test_datagrams_go_to_all_others_and_keepalives_come_back(tmp_path: Path) -> None:
    with running(tmp_path, "-i", "127.0.0.1") as daemon, parties(daemon, *["127.0.0.1"] * 3) as (a, b, c):
        a.tell(QUERY)
        assert (b.heard(), c.heard()) == (QUERY, QUERY)
        a.registered()  # nothing came back before the answer
        assert daemon.end() == 0
        assert daemon.logged("daemon stops")["signal"] == "SIGTERM"


def test_silent_clients_are_forgotten_and_metrics_count_them(tmp_path: Path) -> None:
    with (
        running(tmp_path, "-i", "127.0.0.1", "-t", "1", "-a", "50", "--metrics", "0") as daemon,
        parties(daemon, "127.0.0.1") as (a,),
    ):
        a.tell(b"?")
        assert daemon.logged("malformed TR datagram dropped")["error"] == "1 bytes are no header"
        assert daemon.logged("client was silent, removed")
        a.registered()
        address = str(daemon.logged("metrics are served")["address"])

        def counted() -> dict[str, str] | None:
            with urllib.request.urlopen(address, timeout=20) as answer:
                page = answer.read().decode()
            values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
            return values if values["lbmrd_sent_datagrams_total"] == "2.0" else None

        values = wait_until(counted, "the answer to be counted, which is heard before")
        assert values["lbmrd_clients"] == "1.0"
        assert values["lbmrd_clients_registered_total"] == "2.0"
        assert values["lbmrd_clients_expired_total"] == "1.0"
        assert values['lbmrd_received_datagrams_total{kind="keepalive"}'] == "2.0"
        assert values['lbmrd_received_datagrams_dropped_total{reason="malformed"}'] == "1.0"
        assert daemon.end() == 0


def test_advertisements_are_translated_between_two_networks(tmp_path: Path) -> None:
    (tmp_path / "nat.xml").write_text(NAT)
    tirs = (
        lbmr.Tir(b"AAA", TcpAddress(0x7F010005, 14371, 9), 60, 7),
        lbmr.Tir(b"BBB", LbtrmAddress(0x7F010006, 0xEF010101, 9, 14400, 12090), 60, 8),
    )
    packet = lbmr.Packet(1, None, lbmr.Queries((b"Q",), tirs))
    with (
        running(tmp_path, "-i", "0.0.0.0/1", str(tmp_path / "nat.xml")) as daemon,
        parties(daemon, "127.1.0.5", "127.1.0.6", "127.2.0.1", "127.0.0.1") as (a, inside, outside, elsewhere),
    ):
        assert daemon.address[0] == "127.0.0.1"
        a.tell(lbmr.encode(packet))
        assert inside.heard() == elsewhere.heard() == lbmr.encode(packet)
        told = lbmr.decode(outside.heard()).body
        assert isinstance(told, lbmr.Queries)
        assert (told.tqrs, told.tirs[1]) == ((b"Q",), tirs[1])
        assert told.tirs[0].transport == TcpAddress(0x7F020009, 4711, 9)
        outside.tell(lbmr.encode(packet))
        assert a.heard() == lbmr.encode(packet)


def test_a_full_table_refuses_and_a_hangup_changes_nothing(tmp_path: Path) -> None:
    with (
        running(tmp_path, "-i", "127.0.0.1", "--max-clients", "2") as daemon,
        parties(daemon, "127.0.0.1", "127.0.0.1") as (a, b),
    ):
        late = Party(daemon)
        late.tell(QUERY)
        assert daemon.logged("client refused: there are as many as may be")["clients"] == 2
        daemon.process.send_signal(signal.SIGHUP)
        daemon.logged("SIGHUP ignored: a changed configuration needs a restart")
        a.tell(ALIVE + b"more")
        assert a.heard() == ANSWER
        a.tell(QUERY)
        assert b.heard() == QUERY
        late.socket.close()


def test_the_service_manager_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(20)
        environ = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
        with running(tmp_path, "-i", "127.0.0.1", environ=environ) as daemon:
            said = manager.recv(1000) + manager.recv(1000) + manager.recv(1000)
            assert f"READY=1\nSTATUS=lbmrd at 127.0.0.1:{daemon.address[1]}".encode() in said
            assert said.count(b"WATCHDOG=1") == 2
            assert daemon.end() == 0


def test_a_flood_leaves_time_for_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn takes a bounded number of datagrams."""
    monkeypatch.setattr("supervisor.resolvers.lbmrd.BATCHES_PER_TURN", 1)
    loop, log = Loop(), logging.getLogger("tests.lbmrd")
    args = PROGRAM.arguments().parse_args(["-i", "127.0.0.1", "-p", "0"])
    daemon = Lbmrd(PROGRAM.load(args, print), loop, log)
    host, _, port = daemon.address.partition(":")
    fired: list[int] = []

    def received() -> int:
        return sum(int(s.value) for m in daemon.metrics() for s in m.samples if s.name == f"{m.name}_total"
                   and m.name == "lbmrd_received_datagrams")  # fmt: skip

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
        flood.connect((host, int(port)))
        for _ in range(150):
            flood.send(QUERY)
        for turn, taken in enumerate((BATCH, 2 * BATCH, 150), 1):
            loop.call_at(loop.now_ns(), lambda: fired.append(1))
            loop.run_once(0)
            assert (received(), len(fired)) == (taken, turn)
    daemon.close()
    loop.close()


def test_a_full_send_buffer_is_not_told_as_the_error_before(caplog: pytest.LogCaptureFixture) -> None:
    loop, log = Loop(), logging.getLogger("tests.lbmrd")
    args = PROGRAM.arguments().parse_args(["-i", "127.0.0.1", "-p", "0"])
    daemon = Lbmrd(PROGRAM.load(args, print), loop, log)
    fan = daemon._fans[""] = FanOut(array("Q", (_key_of("255.255.255.255", 9), 0)))  # not without SO_BROADCAST
    fan.send(daemon._socket.fileno(), QUERY, 0, 1)
    daemon._tell()
    fan.blocked += 1
    daemon._tell()
    told = [JsonFormatter("lbmrd").body(record) for record in caplog.records]
    assert os.strerror(errno.EACCES) in told[0]
    assert "the send buffer is full" in told[1]
    daemon.close()
    loop.close()


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (["-p", "70000"], 2, "'70000' is no whole number from 0 to 65535"),
        (["-t", "0"], 2, "'0' is no whole number from 1 to"),
        (["--metrics", "here"], 2, "'here' is no [ADDRESS:]PORT"),
        (["-v"], 2, "CONFIG is missing"),
        (["-i", "192.0.2.77"], 1, "--interface: no interface of this host matches '192.0.2.77'"),
        (["-L", "/nowhere/log"], 1, "--logfile: log file /nowhere/log: No such file or directory"),
        (["/nowhere/lbmrd.xml"], 1, "/nowhere/lbmrd.xml: cannot read the configuration file"),
    ],
)
def test_a_wrong_start_says_why(
    arguments: list[str], status: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(arguments) == status
    assert error in capsys.readouterr().err


def outcome(arguments: list[str]) -> int:
    """The exit status of the program in this process."""
    try:
        return main(arguments)
    except SystemExit as e:
        return int(str(e.code))


def test_a_file_is_validated_and_its_problems_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nat.xml"
    path.write_text(NAT)
    assert outcome(["-v", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: no errors\n"
    path.write_text(NAT.replace("127.0.0.1", '"nosuch0"').replace('name="out"', 'name="o"'))
    assert outcome(["-v", str(path)]) == 1
    assert f"{path}:4: <transform>: there is no domain 'out'; name one of <domains>\n" in capsys.readouterr().err
    path.write_text(NAT.replace("127.0.0.1", '"nosuch0"'))
    assert outcome([str(path)]) == 1
    assert f"{path}:1: <interface>: device 'nosuch0' does not exist" in capsys.readouterr().err
    path.write_text(NAT.replace("</daemon>", '<log type="file">/nowhere/log</log></daemon>'))
    assert outcome([str(path)]) == 1
    assert f"{path}:1: <log>: log file /nowhere/log: No such" in capsys.readouterr().err


def test_the_dtd_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["-d"]) == 0
    assert re.match(r"<!ELEMENT lbmrd \(daemon\?, domains\?, transformations\?\)>\n", capsys.readouterr().out)


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken, socket.socket() as http:
        taken.bind(("127.0.0.1", 0))
        http.bind(("127.0.0.1", 0))
        port, web = taken.getsockname()[1], http.getsockname()[1]
        log = str(tmp_path / "log")
        assert outcome(["-i", "127.0.0.1", "-p", str(port), "-L", log]) == 1
        assert f"lbmrd: cannot receive on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
        assert outcome(["-i", "127.0.0.1", "-p", "0", "-L", log, "--metrics", str(web)]) == 1
        assert f"lbmrd: cannot serve metrics at 127.0.0.1:{web}: Address already in use" in capsys.readouterr().err
    assert "daemon cannot start" in Path(log).read_text()

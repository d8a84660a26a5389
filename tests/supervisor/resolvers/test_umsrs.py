"""umsrs as a program: clients over real connections, and what a wrong start says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from dro.wire.srs import messages, rsocket
from dro.wire.srs.messages import (
    EXT_DOMAIN,
    InterestInfo,
    InterestMode,
    MessageId,
    RegistrationRequest,
    RegistrationResponse,
    SourceDelete,
    SourceInfo,
    SrsMessage,
    SrsRecord,
    StreamRequest,
)
from dro.wire.srs.rsocket import (
    UNBOUNDED_N,
    ErrorFrame,
    ExtFrame,
    Frame,
    FrameSplitter,
    FrameType,
    KeepaliveFrame,
    PayloadFrame,
    RequestFrame,
    SetupFrame,
)
from supervisor.resolvers.umsrs import main
from tests.fakes.srs import source
from tests.rigs.lbm_tools import Tool, ToolNet
from tests.rigs.resolver_daemon import ResolverDaemon
from tests.rigs.resolver_daemon import running as daemon_running
from tests.rigs.waiting import wait_until

ROOT: Final = Path(__file__).parents[3]


def running(folder: Path, *arguments: str) -> AbstractContextManager[ResolverDaemon]:
    return daemon_running("umsrs", folder, "-i", "127.0.0.1", *arguments)


class SrsParty:
    """A context, as far as the daemon sees it."""

    def __init__(
        self, daemon: ResolverDaemon, number: int, mode: int = InterestMode.FLOOD, *, domain_id: int = 0
    ) -> None:
        self.socket = socket.create_connection(daemon.address, timeout=20)
        self._splitter = FrameSplitter()
        self._records: list[SrsRecord] = []
        request = RegistrationRequest(int(domain_id > 0), 0x7F000001, 14391, number, 1, mode, domain_id)
        self.send(
            SetupFrame(60_000, 120_000),
            RequestFrame(1, FrameType.REQUEST_RESPONSE, messages.encode(request)),
            RequestFrame(3, FrameType.REQUEST_STREAM, messages.encode(StreamRequest()), UNBOUNDED_N),
        )

    def registered(self) -> SrsParty:
        """The same, once the daemon has answered, and told what there was."""
        frame = self.next_frame()
        assert isinstance(frame, PayloadFrame)
        self.response = messages.decode(frame.data)[0]
        self.sync()
        return self

    def send(self, *frames: Frame) -> None:
        self.socket.sendall(b"".join(map(rsocket.encode, frames)))

    def tell(self, *records: SrsRecord) -> None:
        """Tell records; the daemon has taken them when this returns."""
        for batch in messages.pack_records(records, 30_000):
            self.send(RequestFrame(5, FrameType.REQUEST_FNF, batch))
        self.sync()

    def sync(self) -> None:
        self.send(KeepaliveFrame(True, 0, b"sync"))
        while not isinstance(frame := self.next_frame(), KeepaliveFrame):
            self._keep(frame)

    def next_frame(self) -> Frame:
        while (raw := self._splitter.next_frame()) is None:
            data = self.socket.recv(65536)
            assert data, "the daemon has closed the connection"
            self._splitter.feed(data)
        return rsocket.decode(raw)

    def _keep(self, frame: Frame) -> None:
        if isinstance(frame, PayloadFrame):
            found: tuple[SrsMessage, ...] = messages.decode(frame.data)
            self._records += [one for one in found if isinstance(one, SourceInfo | SourceDelete | InterestInfo)]

    def heard(self, count: int) -> list[SrsRecord]:
        """So many records, as soon as they have come."""
        while len(self._records) < count:
            self._keep(self.next_frame())
        taken, self._records = self._records[:count], self._records[count:]
        return taken

    def error(self) -> bytes:
        """The error with which the daemon ends the connection."""
        while not isinstance(frame := self.next_frame(), ErrorFrame):
            pass
        assert self.socket.recv(1) == b""
        return frame.text


@contextlib.contextmanager
def parties(daemon: ResolverDaemon, *modes: int) -> Iterator[list[SrsParty]]:
    with contextlib.ExitStack() as stack:
        made = [SrsParty(daemon, number, mode).registered() for number, mode in enumerate(modes, 1)]
        for party in made:
            stack.callback(party.socket.close)
        yield made


def test_sources_and_interest_reach_who_wants_them(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--metrics", "0") as daemon,
        parties(daemon, InterestMode.FILTER, InterestMode.FILTER, InterestMode.FLOOD_AND_FORWARD) as (a, b, dro),
    ):
        b.tell(InterestInfo(MessageId.RECEIVER_INFO, b"A"), InterestInfo(MessageId.WILDCARD_INFO, b"^C"))
        a.tell(source(b"A", 1), source(b"B", 2), source(b"C", 3))
        assert b.heard(2) == [source(b"A", 1), source(b"C", 3)]
        assert [type(one) for one in dro.heard(5)] == [InterestInfo] * 2 + [SourceInfo] * 3
        a.tell(SourceDelete(source(b"A", 1).otid, b"A"))
        assert b.heard(1) == dro.heard(1) == [SourceDelete(source(b"A", 1).otid, b"A")]
        values = daemon.metrics()
        assert values["umsrs_connections"] == values["umsrs_clients"] == 3
        assert values["umsrs_sources"] == 2
        assert values["umsrs_interest"] == 2
        assert values["umsrs_records_received_total"] == 6
        assert values['umsrs_records_refused_total{reason="unreadable"}'] == 0
        assert daemon.logged("client registered over TCP")["client"] == "client 1"
        assert daemon.end() == 0


def test_what_a_client_has_told_last_before_it_ends_is_told_on(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, parties(daemon, 0, 0) as (a, b):
        a.tell(source(b"A"))
        assert b.heard(1) == [source(b"A")]
        end = SourceDelete(source(b"A").otid, b"A")
        a.send(RequestFrame(5, FrameType.REQUEST_FNF, messages.encode(end)))
        a.socket.close()
        assert b.heard(1) == [end]
        assert daemon.logged("client has lost its connection")["client"] == "client 1"


def test_many_sources_reach_clients_that_come_early_late_and_slowly(tmp_path: Path) -> None:
    count = 20_000
    records = [source(b"topic.%d" % number, number) for number in range(count)]
    with running(tmp_path) as daemon, parties(daemon, 0, 0, 0) as (a, early, slow):
        a.tell(*records)
        assert early.heard(count) == records
        late = SrsParty(daemon, 9)
        answer = late.next_frame()
        assert isinstance(answer, PayloadFrame)
        assert messages.decode(answer.data) == (RegistrationResponse(4, 0),)
        assert late.heard(count) == records
        assert slow.heard(count) == records
        late.socket.close()


def test_a_client_that_reads_nothing_is_cut_off(tmp_path: Path) -> None:
    with running(tmp_path, "--max-queue", "1", "--metrics", "0") as daemon, parties(daemon, 0, 0, 0) as (a, b, mute):
        mute.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        told = 0
        while not daemon.metrics().get('umsrs_connections_ended_total{reason="slow"}'):
            records = [source(b"T%d" % number, number, cost=told) for number in range(10_000)]
            a.tell(*records)
            assert b.heard(len(records)) == records
            told += 1
            assert told < 50
        assert daemon.logged("connection of a client ended")["reason"] == "reads too slowly for what changes"
        assert daemon.metrics()["umsrs_queued_bytes"] == 0


def test_the_domain_is_learnt_and_one_that_differs_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, parties(daemon, 0) as (app,):
        dro = SrsParty(daemon, 7, domain_id=5).registered()
        assert dro.response == RegistrationResponse(2, 5)
        assert app.next_frame() == ExtFrame(EXT_DOMAIN, (5).to_bytes(4, "big"))
        wrong = SrsParty(daemon, 8, domain_id=6)
        assert wrong.error() == b"this TRD has domain id 5, not 6"
        dro.socket.close()
        wrong.socket.close()


def test_strangers_are_refused_and_clients_go_on(tmp_path: Path) -> None:
    with running(tmp_path, "--max-connections", "3") as daemon, parties(daemon, 0, 0) as (a, b):
        with socket.create_connection(daemon.address, timeout=20) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            splitter = FrameSplitter()
            while data := stranger.recv(1000):
                splitter.feed(data)
            raw = splitter.next_frame()
            assert raw is not None
            assert isinstance(rsocket.decode(raw), ErrorFrame)
        with (
            socket.create_connection(daemon.address, timeout=20),
            socket.create_connection(daemon.address, timeout=20) as late,
        ):
            assert late.recv(1) == b""
        assert daemon.logged("client refused: there are as many as may be")["clients"] == 3
        a.tell(source(b"A"))
        assert b.heard(1) == [source(b"A")]


def test_contexts_find_each_other_by_it_alone(tmp_path: Path) -> None:
    with running(tmp_path, "--metrics", "0") as daemon, ToolNet(tmp_path) as net:
        host, port = daemon.address
        only = f"context resolver_service {host}:{port}\ncontext resolver_disable_udp_topic_resolution 1"
        config = net.config("tcp", only)
        with (
            Tool("lbmrcv", "-c", config, "-V", "-r", "100", "AAA") as early,
            Tool("lbmwrcv", "-c", config, "-v", "-V", "-r", "100", "^A") as wildcard,
            Tool("lbmsrc", "-c", config, "-V", "-M", "100", "--wait-for-line", "AAA") as sender,
        ):
            early.wait_for("source found")
            wildcard.wait_for("[AAA], receiver created")
            with Tool("lbmrcv", "-c", config, "-V", "-r", "100", "AAA") as late:
                late.wait_for("source found")
                while sender.out.count("Receiver connect") < 3:
                    sender._read(time.monotonic() + 20)
                sender.write_line()
                for receiver in (early, wildcard, late):
                    assert receiver.wait() == 0
                    assert receiver.received[0] == 100
            sender.signal(signal.SIGTERM)
            assert sender.wait() == 0
        wait_until(lambda: not daemon.metrics()["umsrs_sources"], "the end of the source", detail=str)
        assert daemon.metrics()["umsrs_records_told_total"] >= 3


def test_the_pid_file_is_written_and_goes(tmp_path: Path) -> None:
    (tmp_path / "srs.xml").write_text(f"<um-srs><daemon><pid-file>{tmp_path}/srs.pid</pid-file></daemon></um-srs>")
    with running(tmp_path, str(tmp_path / "srs.xml")) as daemon:
        assert (tmp_path / "srs.pid").read_text() == f"{daemon.process.pid}\n"
        assert outcome(["-p", "0", "-L", os.devnull, str(tmp_path / "srs.xml")]) == 1
        assert daemon.end() == 0
    assert not (tmp_path / "srs.pid").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (["-p", "70000"], 2, "'70000' is no whole number from 0 to 65535"),
        (["--max-queue", "0"], 2, "'0' is no whole number from 1 to"),
        (["-v"], 2, "CONFIG is missing"),
        (["-i", "192.0.2.77"], 1, "--interface: no interface of this host matches '192.0.2.77'"),
        (["/nowhere/srs.xml"], 1, "/nowhere/srs.xml: cannot read the configuration file"),
    ],
)
def test_a_wrong_start_says_why(
    arguments: list[str], status: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(arguments) == status
    assert error in capsys.readouterr().err


def test_an_interface_that_is_not_there_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "srs.xml"
    path.write_text('<um-srs><srs>\n<interface>"nosuch0"</interface></srs></um-srs>')
    assert outcome([str(path)]) == 1
    assert f"{path}:2: <interface>: device 'nosuch0' does not exist" in capsys.readouterr().err


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert outcome(["-i", "127.0.0.1", "-p", str(port), "-L", os.devnull]) == 1
    assert f"umsrs: cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_the_dtd_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["-d"]) == 0
    assert re.match(r"<!ELEMENT um-srs \(daemon\?, srs\?, daemon-monitor\?\)>\n", capsys.readouterr().out)


def outcome(arguments: list[str]) -> int:
    """The exit status of the program in this process."""
    try:
        return main(arguments)
    except SystemExit as e:
        return int(str(e.code))

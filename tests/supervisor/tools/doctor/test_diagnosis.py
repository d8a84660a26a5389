"""The doctor without a network: its packets, its responder's core, and what it looks at on the host."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.bus.ring_size import RING_START_BYTES, ring_bytes
from dro.clock import ms, s
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig, TlsConfig
from dro.config.lint.finding import Machine, view_of
from dro.errors import DecodeError
from dro.wire import lbtrm
from dro.wire.lbmr import packet as lbmr
from supervisor.host import privileges
from supervisor.tools.ctl import main as ctl
from supervisor.tools.doctor import host as doctor_host
from supervisor.tools.doctor import messages as probe
from supervisor.tools.doctor import ports as doctor_ports
from supervisor.tools.doctor import trd_sockets as trd_sockets
from supervisor.tools.doctor.check import Check, Status, fail, note, ok, warn, worst
from supervisor.tools.doctor.diagnosis import DiagnosisRequest, Running, diagnose
from supervisor.tools.doctor.host import ClockSample
from supervisor.tools.doctor.messages import FROM_DOCTOR, FROM_RESPONDER, GroupAddress
from supervisor.tools.doctor.ports import PortHolder
from supervisor.tools.doctor.responder_core import (
    MAX_PLACES,
    MAX_SENT,
    SENT_PER_SECOND,
    SESSION_NS,
    ResponderCore,
    read_probe,
)
from supervisor.tools.doctor.trd import against_clock
from tests.builders.dro_file import parse_dro
from tests.fakes.lookup import FakeLookup
from tests.rigs.certificates import Authority
from tests.rigs.site import reserve_block

TR, DATA, SIZED = GroupAddress("239.1.1.1", 12965), GroupAddress("239.1.1.2", 14400), GroupAddress("239.1.1.2", 14499)
HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"
SECRET = b"sixteen bytes of"
COOKIE = probe.cookie_of(SECRET, HERE)
ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "tests" / "golden" / "examples" / "direct-link" / "dro-g1.xml"
WITH_PEER = EXAMPLE.parents[1] / "peer-link" / "dro-g1.xml"

PLACES = st.builds(GroupAddress, st.text(max_size=20), st.integers(0, 70_000))
NONCES = st.integers(0, 2**32 - 1)
ORDERS = st.one_of(
    st.builds(probe.Hello, NONCES),
    st.builds(probe.Welcome, NONCES, st.text(max_size=40), st.integers()),
    st.builds(probe.Beacon, st.integers()),
    st.builds(probe.Watch, NONCES, st.text(max_size=40), *[st.lists(PLACES, max_size=3).map(tuple)] * 3),
    st.builds(
        probe.Send, NONCES, st.text(max_size=40), st.sampled_from(["tr", "data", "sized", "?"]), PLACES,
        st.integers(-5, 300), st.integers(-5, 10**9), st.lists(st.integers(-1, 10**6), max_size=20).map(tuple),
        st.booleans(),
    ),
    st.builds(probe.Report, NONCES, st.text(max_size=40)),
    st.builds(probe.Done, NONCES, st.text(max_size=40)),
    st.builds(probe.Counts, NONCES, st.dictionaries(st.text(max_size=20), st.integers(), max_size=5)),
)  # fmt: skip


# bytes


@given(ORDERS)
def test_orders_come_back_as_they_were_written(message: probe.DoctorMessage) -> None:
    assert probe.read_message(probe.write_message(message)) == message


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda raw: b"DROdoc1 " + raw)))
def test_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        probe.read_message(raw)


@pytest.mark.parametrize(
    "body", ["[]", "{}", '{"message":"send"}', '{"message":["send"]}', '{"message":"hello","nonce":"1"}', "[" * 3000]
)
def test_json_of_another_shape_is_refused(body: str) -> None:
    with pytest.raises(DecodeError):
        probe.read_message(b"DROdoc1 " + body.encode())


@given(st.binary(max_size=300))
def test_any_datagram_is_a_probe_or_none(raw: bytes) -> None:
    assert read_probe(TR, raw) is None or raw[:8] == b"DROdoc1\0" or len(raw) >= 12


@given(st.sampled_from([FROM_DOCTOR, FROM_RESPONDER]), NONCES, st.integers(16, 65507), st.booleans())
def test_probes_are_read_as_written(kind: int, nonce: int, size: int, is_whole: bool) -> None:
    signal = probe.Probe(kind, nonce)
    assert read_probe(TR, probe.write_tr_signal(kind, nonce)) == signal
    assert read_probe(DATA, probe.write_data_signal(kind, nonce)) == signal
    sized = probe.write_sized(kind, nonce, size, is_whole=is_whole)
    assert (len(sized), read_probe(SIZED, sized)) == (size, probe.Probe(kind, nonce, size, is_whole))


def test_signals_are_packets_that_um_passes_over() -> None:
    packet = lbmr.decode(probe.write_tr_signal(FROM_DOCTOR, 7))
    assert packet.body == lbmr.Queries()  # asks for nothing, offers nothing
    assert packet.options is not None
    assert not packet.options.is_from_dro
    assert not any(isinstance(option, lbmr.LocalDomain) for option in packet.options.items)
    assert isinstance(lbtrm.decode(probe.write_data_signal(FROM_DOCTOR, 7)), lbtrm.SessionMessage)


def test_packets_of_others_are_no_signals() -> None:
    options = lbmr.standard_options(b"12345678", 0, 1)
    assert read_probe(TR, lbmr.encode(lbmr.Packet(lbmr.VERSION, options, lbmr.Queries((b"topic",))))) is None
    assert read_probe(DATA, lbtrm.encode(lbtrm.SessionMessage(14390, 7, 0, 5, 0))) is None


@pytest.mark.parametrize("path", [575, 996, 1280, 1372, 1400, 1431, 1471, 1472, 8000])
def test_the_largest_size_that_passes_is_found_in_few_rounds(path: int) -> None:
    for mtu in (1500, 9000):
        room = mtu - 28
        low, high = 0, room + 1
        tried: tuple[int, ...] = (512, room)
        for _ in range(4):
            low, high = probe.narrowed(low, high, {size for size in tried if size <= path}, tried)
            tried = probe.mtu_sizes(low, high)
            assert len(tried) <= 24
            if high - low <= 1:
                break
        assert low <= min(path, room) < high
        assert high - low <= (2 if mtu == 1500 else 40)


# the responder


def joins(_place: GroupAddress) -> str:
    return ""


def asked(
    core: ResponderCore, message: probe.DoctorMessage, sender: str = HERE, now_ns: int = 0
) -> tuple[object, object]:
    return core.on_message(probe.write_message(message), sender, now_ns, 99, joins)


def watching(nonce: int = 5) -> ResponderCore:
    core = ResponderCore(SECRET)
    assert asked(core, probe.Watch(nonce, COOKIE, (TR,), (DATA,), (SIZED,))) == (probe.Done(nonce), None)
    return core


def test_a_greeting_gets_a_cookie_for_its_address_alone() -> None:
    core = ResponderCore(SECRET)
    assert asked(core, probe.Hello(5)) == (probe.Welcome(5, COOKIE, 99), None)
    assert asked(core, probe.Hello(5), ELSEWHERE) != (probe.Welcome(5, COOKIE, 99), None)


@pytest.mark.parametrize(
    "message",
    [
        probe.Watch(5, COOKIE, (TR,)),
        probe.Report(5, COOKIE),
        probe.Send(5, COOKIE, "tr", TR, 1),
        probe.Watch(5, "", (TR,)),
        probe.Done(5),
        probe.Beacon(1),
    ],
)
def test_without_the_right_cookie_nothing_is_done_and_nothing_answered(message: probe.DoctorMessage) -> None:
    assert asked(watching(), message, ELSEWHERE) == (None, None)


def test_what_a_doctor_sends_is_counted_for_it_and_nobody_else() -> None:
    core = watching()
    for place in (TR, TR, DATA):
        core.on_multicast(place, (probe.write_tr_signal if place == TR else probe.write_data_signal)(FROM_DOCTOR, 5))
    core.on_multicast(TR, probe.write_tr_signal(FROM_RESPONDER, 5))
    core.on_multicast(TR, probe.write_tr_signal(FROM_DOCTOR, 6))
    core.on_multicast(GroupAddress("239.9.9.9", 1), probe.write_tr_signal(FROM_DOCTOR, 5))
    core.on_multicast(SIZED, probe.write_sized(FROM_DOCTOR, 5, 700, is_whole=True))
    expected = {"239.1.1.1:12965": 2, "239.1.1.2:14400": 1, "239.1.1.2:14499 700 whole": 1}
    assert asked(core, probe.Report(5, COOKIE)) == (probe.Counts(5, expected), None)
    assert asked(core, probe.Report(6, COOKIE)) == (probe.Counts(6, {}), None)


def test_it_says_what_it_is_told_to_groups_that_were_asked_for_before() -> None:
    core = watching()
    answer, sending = core.on_message(probe.write_message(probe.Send(5, COOKIE, "tr", TR, 3, 2)), HERE, 0, 0, joins)
    assert answer == probe.Done(5)
    assert sending is not None
    assert (sending.place, sending.ttl, sending.is_whole) == (TR, 3, False)
    assert sending.datagrams == (probe.write_tr_signal(FROM_RESPONDER, 5),) * 2
    _, sized = core.on_message(
        probe.write_message(probe.Send(5, COOKIE, "sized", SIZED, 3, 1, (600, 5, 1 << 20), True)), HERE, 0, 0, joins
    )
    assert sized is not None
    assert ([len(d) for d in sized.datagrams], sized.is_whole) == ([600], True)


@pytest.mark.parametrize(
    "message",
    [
        probe.Send(5, COOKIE, "tr", GroupAddress("239.1.1.9", 12965), 1),
        probe.Send(6, COOKIE, "tr", TR, 1),
        probe.Send(5, COOKIE, "tr", TR, 256),
        probe.Send(5, COOKIE, "tr", TR, 1, 0),
        probe.Send(5, COOKIE, "sized", SIZED, 1, 1, (600,) * (MAX_SENT + 1)),
        probe.Send(5, COOKIE, "noise", TR, 1),
        probe.Watch(5, COOKIE, (TR,) * (MAX_PLACES + 1)),
        probe.Watch(5, COOKIE, (GroupAddress("192.0.2.9", 12965),)),
        probe.Watch(5, COOKIE, (GroupAddress("nowhere", 12965),)),
        probe.Watch(5, COOKIE, (GroupAddress("239.1.1.1", 0),)),
    ],
)
def test_orders_beyond_the_limits_are_refused(message: probe.DoctorMessage) -> None:
    answer, sending = asked(watching(), message)
    assert isinstance(answer, probe.Done)
    assert (bool(answer.problem), sending) == (True, None)


def test_it_says_so_much_in_a_second_and_no_more() -> None:
    core = watching()
    message = probe.Send(5, COOKIE, "sized", SIZED, 1, 1, (600,) * MAX_SENT)
    sent = [asked(core, message, now_ns=s(7))[1] for _ in range(2 * SENT_PER_SECOND // MAX_SENT)]
    assert sum(sending is not None for sending in sent) == SENT_PER_SECOND // MAX_SENT
    assert asked(core, message, now_ns=s(8))[1] is not None


def test_sessions_are_forgotten_after_a_while_and_when_there_are_many() -> None:
    core = watching()
    assert core.places(SESSION_NS) == {TR, DATA, SIZED}
    assert core.places(SESSION_NS + 1) == set()
    core = watching(nonce=1)
    for nonce in range(2, 40):
        asked(core, probe.Watch(nonce, COOKIE, (GroupAddress(f"239.2.2.{nonce}", 12965),)))
    assert len(core.places(0)) == 32
    assert TR not in core.places(0)


def test_a_group_that_cannot_be_joined_is_told() -> None:
    core = ResponderCore(SECRET)
    answer, _ = core.on_message(
        probe.write_message(probe.Watch(5, COOKIE, (TR,))), HERE, 0, 0, lambda place: f"no {place.port}"
    )
    assert answer == probe.Done(5, "no 12965")
    assert core.places(0) == set()


def test_a_responder_that_ends_is_noticed_and_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trd_sockets, "ANSWER_NS", ms(50))
    port, guard = reserve_block(2)
    place = GroupAddress("239.255.7.7", port + 1)
    argv = [sys.executable, "-m", "supervisor.tools.ctl.main", "doctor", "--respond", "127.0.0.1", "--port", str(port)]
    with guard, subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as responder:
        assert responder.stdout is not None
        assert responder.stdout.readline().startswith(b"responder ready")
        with closing(trd_sockets.TrdSockets("127.0.0.1", port, 0, [place], [])) as sockets:
            while not sockets.has_found(["127.0.0.1"]):
                sockets.hello(["127.0.0.1"])
                sockets.receive(time.monotonic_ns() + ms(50))
            assert abs(sockets.found["127.0.0.1"].clock_ns) < s(1)
            assert sockets.watch("127.0.0.1", (place,), (), ()) == ""
            sockets.request_send("127.0.0.1", "tr", place, count=2)
            sockets.settle()
            assert (sockets.received_from("127.0.0.1", place), sockets.reported("127.0.0.1")) == (2, {})
            responder.terminate()
            assert responder.wait(30) == 0
            assert not sockets.has_lost("127.0.0.1")
            assert sockets.reported("127.0.0.1") == {}
            assert sockets.has_lost("127.0.0.1")
            assert sockets.watch("127.0.0.1", (place,), (), ()) == "no answer"


@pytest.mark.parametrize(
    ("ahead_ns", "status", "text"),
    [
        (ms(900), Status.OK, "agrees"), (-ms(900), Status.OK, "agrees"), (s(90), Status.WARN, "90 s ahead"),
        (-s(90), Status.WARN, "90 s behind"),
    ],
)  # fmt: skip
def test_the_clock_of_the_responder(ahead_ns: int, status: Status, text: str) -> None:
    check = against_clock("P", HERE, ahead_ns)
    assert (check.status, text in check.what) == (status, True)


# the host


def config_of(portals: str) -> DroConfig:
    text = f'<tnw-gateway version="1.0"><portals>{portals}</portals></tnw-gateway>'
    return parse_dro(text.encode(), "dro.xml", warn=lambda _: None, lookup=FakeLookup(), environ={})


def peer(name: str, address: str) -> str:
    link = f"<single-tcp><initiator><address>{address}</address><port>29000</port></initiator></single-tcp>"
    return f"<peer><name>{name}</name>{link}</peer>"


def statuses(checks: Sequence[Check]) -> list[Status]:
    return [check.status for check in checks]


def test_names_of_companions_are_looked_up() -> None:
    config = config_of(peer("P", "east") + peer("Q", "west") + peer("R", "192.0.2.9"))
    lookup = FakeLookup(hosts={"east": "192.0.2.10", "192.0.2.9": "192.0.2.9"})
    checks = list(doctor_host.names(config.peers, lookup))
    assert statuses(checks) == [Status.OK, Status.FAIL, Status.OK]
    assert "west cannot be resolved" in checks[1].what


NOON_2026 = 1_780_000_000 * 10**9


@pytest.mark.parametrize(
    ("wall_ns", "later_ns", "newest_s", "status", "text"),
    [
        (NOON_2026, s(3), 0.0, Status.OK, "2026"),
        (0, s(3), 0.0, Status.FAIL, "the year is 1970"),
        (NOON_2026 * 3, s(3), 0.0, Status.FAIL, "the year is 2139"),
        (NOON_2026, s(3), NOON_2026 / 1e9 + 200_000, Status.WARN, "in the future"),
        (NOON_2026, s(63), 0.0, Status.WARN, "moved by 60000 ms"),
        (NOON_2026, -s(57), 0.0, Status.WARN, "moved by -60000 ms"),
    ],
)
def test_the_clock(wall_ns: int, later_ns: int, newest_s: float, status: Status, text: str) -> None:
    (check,) = doctor_host.clock(ClockSample(wall_ns, 50), ClockSample(wall_ns + later_ns, 50 + s(3)), newest_s)
    assert (check.status, text in check.what) == (status, True), check


@pytest.mark.parametrize(
    ("at_most", "missing", "status"),
    [(True, 0, Status.OK), (True, 1, Status.WARN), (False, 0, Status.WARN), (False, 1, Status.FAIL)],
)
def test_shared_memory_has_to_hold_every_ring_and_should_hold_what_it_may_grow_to(
    at_most: bool, missing: int, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = view_of(load_dro(str(WITH_PEER), warn=lambda _: None), Machine())
    assert len(view.portals) > len(view.endpoints) > 0, "those of peer portals as well"
    sizes = [ring_bytes(p.config.max_queue_bytes) if at_most else RING_START_BYTES for p in view.portals]
    needed = sum(sizes)
    room = SimpleNamespace(f_bavail=needed - missing, f_frsize=1, f_blocks=needed)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    assert statuses(list(doctor_host.shared_memory(view, is_running=False))) == [status]


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("sound", Status.OK, "sound.pem"),
        ("old", Status.WARN, "<certificate>: {0}/old.pem: has expired"),
        ("none", Status.FAIL, "<certificate>: {0}/none.pem: No such file or directory"),
    ],
)
def test_files_of_tls(tmp_path: Path, name: str, status: Status, text: str) -> None:
    signer = Authority(tmp_path)
    signer.leaf("sound")
    signer.leaf("old", begins=-2, ends=-1)
    peer = load_dro(str(WITH_PEER), warn=lambda _: None).peers[0]
    files = [str(tmp_path / f"{name}.{end}") for end in ("pem", "key")]
    with_tls = replace(peer, tcp=replace(peer.tcp, tls=TlsConfig(files[0], files[1], "", signer.trusted, ())))
    (check,) = doctor_host.files([peer, with_tls], time.time())
    assert (check.status, text.format(tmp_path) in check.what) == (status, True)


def test_shared_memory_and_open_files_of_a_dro_that_is_too_large() -> None:
    config = load_dro(str(EXAMPLE), warn=lambda _: None)
    huge = replace(config, portals=tuple(replace(p, max_queue_bytes=1 << 50) for p in config.portals))
    for is_running, status in ((False, Status.WARN), (True, Status.OK)):
        checks = list(doctor_host.shared_memory(view_of(huge, Machine()), is_running=is_running))
        assert statuses(checks) == [status]
    assert statuses(list(doctor_host.shared_memory(view_of(config, Machine()), is_running=False))) == [Status.OK]
    (few,) = doctor_host.open_files(1 << 30, 0)
    assert (few.status, "LimitNOFILE" in few.remedy) == (Status.WARN, True)
    (own,) = doctor_host.open_files(1, os.getpid())
    assert f"tnwgd (pid {os.getpid()})" in own.what


def test_buffers_without_the_capability() -> None:
    assert doctor_host.grant(socket.SO_RCVBUF, 1 << 30, may_force=False) < 1 << 30
    assert doctor_host.grant(socket.SO_RCVBUF, 8192, may_force=False) >= 8192


def test_holders_of_ports_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        own = PortHolder(os.getpid(), Path("/proc/self/comm").read_text().strip())
        for kind, sock in (("tcp", tcp), ("udp", udp)):
            port = sock.getsockname()[1]
            assert doctor_ports.port_holders(kind)[port] == own
            assert doctor_ports.bind_error(kind, "127.0.0.1", port)
    assert str(PortHolder(0, "")) == "a process that cannot be seen from here"


@pytest.mark.parametrize("own", [False, True])
def test_ports_of_lbtru_are_looked_at_for_sources_and_receivers(own: bool, tmp_path: Path) -> None:
    first, guard = reserve_block(4)
    fixed = f"source transport_lbtru_port {first + 1}\n" if own else ""
    (tmp_path / "a.cfg").write_text(
        "context default_interface 127.0.0.1\ncontext resolver_multicast_port 12966\nsource transport lbtru\n"
        "context request_tcp_bind_request_port 0\ncontext transport_lbtru_maximum_ports 2\n"
        f"context transport_lbtru_port_low {first}\ncontext transport_lbtru_port_high {first + 1}\n{fixed}"
        f"receiver transport_lbtru_port_low {first + 2}\nreceiver transport_lbtru_port_high {first + 2}\n"
    )
    xml = tmp_path / "dro.xml"
    xml.write_text(
        '<tnw-gateway version="1.0"><portals><endpoint><name>A</name><domain-id>1</domain-id>'
        f"<lbm-config>{tmp_path / 'a.cfg'}</lbm-config></endpoint></portals></tnw-gateway>"
    )
    with guard:
        view = view_of(load_dro(str(xml), warn=lambda _: None), Machine())
        assert statuses(list(doctor_ports.ports(view, ours=()))) == [Status.OK, Status.OK]
        for port in (first + 1, first + 2):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.bind(("0.0.0.0", port))
                taken = [check for check in doctor_ports.ports(view, ours=()) if check.status is not Status.OK]
            (check,) = taken
            assert f"(pid {os.getpid()})" in check.remedy
            assert ("receiver transport_lbtru_port_high" in check.what) == (port == first + 2)
            assert (check.status is Status.FAIL) == (own and port == first + 1)


def test_ports_of_the_running_dro_are_its_own(tmp_path: Path) -> None:
    first, guard = reserve_block(4)
    (tmp_path / "a.cfg").write_text(
        "context default_interface 127.0.0.1\ncontext resolver_multicast_port 12966\nsource transport tcp\n"
        f"context request_tcp_port_low {first}\ncontext request_tcp_port_high {first + 1}\n"
        f"context transport_tcp_port_low {first + 2}\ncontext transport_tcp_port_high {first + 3}\n"
        "context transport_tcp_maximum_ports 2\n"
    )
    xml = tmp_path / "dro.xml"
    xml.write_text(
        '<tnw-gateway version="1.0"><portals><endpoint><name>A</name><domain-id>1</domain-id>'
        f"<lbm-config>{tmp_path / 'a.cfg'}</lbm-config></endpoint></portals></tnw-gateway>"
    )
    view = view_of(load_dro(str(xml), warn=lambda _: None), Machine())
    with guard, socket.create_server(("127.0.0.1", first)), socket.create_server(("127.0.0.1", first + 3)):
        request, sessions = doctor_ports.ports(view, ours=())
        assert (request.status, "2 needed, 1 free" in request.what) == (Status.FAIL, True)
        assert (sessions.status, "2 may be wanted, 1 free" in sessions.what) == (Status.WARN, True)
        assert f"(pid {os.getpid()})" in request.remedy
        assert statuses(list(doctor_ports.ports(view, ours=[os.getpid()]))) == [Status.OK, Status.OK]
    assert statuses(list(doctor_ports.ports(view, ours=()))) == [Status.OK, Status.OK]


# as a whole


def test_the_worst_decides() -> None:
    checks = [ok("", "a", "fine"), note("", "b", "hm")]
    assert (worst([]), worst(checks)) == (Status.OK, Status.NOTE)
    assert worst([fail("", "c", "no", "do"), warn("", "d", "bad", "do"), *checks]) == Status.FAIL
    assert fail("P", "c", "no", "mend it", "a.cfg:3").line() == "fail  c: a.cfg:3: no; mend it"


def test_a_file_that_cannot_be_read_is_a_diagnosis(tmp_path: Path) -> None:
    bad = tmp_path / "bad.xml"
    bad.write_text("<tnw-gateway version='1.0'>\n<portals>\n<endpoint/>\n</portals></tnw-gateway>")
    diagnosis = diagnose(DiagnosisRequest(str(bad)))
    assert diagnosis.status is Status.FAIL
    assert {check.place for check in diagnosis.checks} == {f"{bad}:3"}
    assert all(check.remedy for check in diagnosis.checks)
    assert diagnose(DiagnosisRequest(str(tmp_path / "none.xml"))).status is Status.FAIL


def test_listening_alone_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("something was sent")

    monkeypatch.setattr("supervisor.tools.doctor.trd.send_all", refuse)
    monkeypatch.setattr("supervisor.tools.doctor.trd_sockets.TrdSockets.hello", refuse)
    diagnosis = diagnose(DiagnosisRequest(str(EXAMPLE), Running(), listen_s=0.05, sends=False))
    assert diagnosis.status in (Status.OK, Status.NOTE)
    assert not any(check.name == "multicast on this host" for check in diagnosis.checks)


def test_as_a_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert ctl.main(["doctor", str(EXAMPLE), "--listen", "0.1"]) == 0
    text = capsys.readouterr().out
    assert "portal G1-TRD1\n" in text
    assert "own datagrams are heard" in text
    assert ctl.main(["doctor", str(EXAMPLE), "--listen", "0.1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["running_pid"], answer["file"]) == (0, str(EXAMPLE))
    assert {check["status"] for check in answer["checks"]} <= {"ok", "note"}
    assert ctl.main(["doctor", ""]) == 1  # a variable of a script that is not set
    assert "is empty" in capsys.readouterr().err
    assert ctl.main(["doctor", str(tmp_path / "none.xml"), "--problems"]) == 1
    assert "fail  configuration" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--respond", "host"], ["--respond", "239.1.1.1"], ["--responder", "0.0.0.0"], ["--listen", "0"],
        ["--listen", "60"], ["--listen", "nan"], ["--port", "80"], ["--port", "x"], ["--for", "-1"], ["a", "b"],
        ["--for", "9"], ["a", "--respond", "127.0.0.1"], ["--respond", "127.0.0.1", "--json"], ["a", "--dro", "X"],
        ["a", "--listen-only", "--responder", "127.0.0.1"],
    ],
)  # fmt: skip
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main(["doctor", *arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tnwgdctl")


def test_a_responder_on_an_address_that_is_none_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["doctor", "--respond", "192.0.2.250"]) == 1
    assert "UDP port 14499 of 192.0.2.250" in capsys.readouterr().err


def test_a_responder_ends_when_its_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    port, guard = reserve_block(1)
    with guard:
        assert ctl.main(["doctor", "--respond", "127.0.0.1", "--port", str(port), "--for", "0.05"]) == 0
    assert f"responder ready on 127.0.0.1, UDP port {port}" in capsys.readouterr().out


@pytest.mark.parametrize(("effective", "expected"), [("0000000000001000", True), ("ffffffffffffefff", False)])
def test_the_capability_is_that_of_the_network(
    effective: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    status.write_text(f"CapPrm:\tffffffffffffffff\nCapEff:\t{effective}\nCapBnd:\tffffffffffffffff\n")
    monkeypatch.setattr(privileges, "Path", lambda _: status)
    assert doctor_host.has_net_admin() is expected


def test_the_capability_of_a_process_is_read() -> None:
    assert doctor_host.has_net_admin() == doctor_host.has_net_admin(os.getpid())
    assert not doctor_host.has_net_admin(1 << 30)
    argv = ["setpriv", "--bounding-set=-all", sys.executable, "-c",
            "from supervisor.tools.doctor.host import has_net_admin; print(has_net_admin())"]  # fmt: skip
    if os.geteuid() == 0:
        assert subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "False\n"


def test_validation_tells_what_the_lint_finds(tmp_path: Path) -> None:
    um, xml = tmp_path / "a.cfg", tmp_path / "dro.xml"
    um.write_text("context default_interface 127.0.0.1\ncontext transport_lbtrm_data_rate_limit 1000000000\n")
    portals = "".join(
        f"<endpoint><name>P{n}</name><domain-id>{n}</domain-id><lbm-config>{um}</lbm-config><lbm-attributes><option "
        f'scope="context" name="resolver_multicast_port" value="{12960 + n}"/></lbm-attributes></endpoint>'
        for n in (1, 2)
    )
    xml.write_text(f'<tnw-gateway version="1.0"><portals>{portals}</portals></tnw-gateway>')
    argv = [sys.executable, "-m", "supervisor.main", "-v", str(xml)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    for portal in ("P1", "P2"):
        start = f"{um}:2: warning: portal {portal}: source transport_lbtrm_transmission_window_size: 25165824 bytes"
        assert start in done.stdout + done.stderr


def test_what_a_load_warns_of_is_noted_and_what_it_skips_has_failed(tmp_path: Path) -> None:
    (tmp_path / "a.cfg").write_text(
        "context default_interface 127.0.0.1\ncontext no_such_option 1\ncontext resolver_multicast_ttl 300\nmulticast\n"
    )
    xml = tmp_path / "dro.xml"
    xml.write_text(
        '<tnw-gateway version="1.0"><portals><endpoint><name>A</name><domain-id>1</domain-id>'
        f"<lbm-config>{tmp_path / 'a.cfg'}</lbm-config></endpoint></portals></tnw-gateway>"
    )
    diagnosis = diagnose(DiagnosisRequest(str(xml), listen_s=0.05, sends=False))
    of_file = [c for c in diagnosis.checks if c.name == "configuration"]
    assert [c.what for c in of_file if "no_such_option" in c.what and c.status is Status.NOTE]
    failed = [(c.portal, c.place) for c in of_file if c.status is Status.FAIL]
    assert failed == [("A", f"{tmp_path / 'a.cfg'}:3"), ("A", f"{tmp_path / 'a.cfg'}:4")]
    (broken,) = [c.line() for c in of_file if c.place.endswith(":4")]
    assert broken.endswith("a.cfg:4: 'multicast' has fewer than three fields, so the line does not count; "
                           "write: scope option value")  # fmt: skip
    assert sum("resolver_multicast_ttl" in c.what for c in diagnosis.checks) == 1

"""The doctor asks resolver daemons and SRSes, and names what is wrong with each."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dro.config.dro_xml.load import load_dro
from dro.config.lint.finding import EndpointView, Machine, view_of
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs import messages as srs
from dro.wire.srs import rsocket
from supervisor.tools.doctor import ports as doctor_ports
from supervisor.tools.doctor import servers as doctor_servers
from supervisor.tools.doctor.check import Check, Status
from supervisor.tools.doctor.diagnosis import DiagnosisRequest, diagnose
from tests.rigs.site import reserve_block

HERE = "127.0.0.1"
DOMAIN = 7
ANSWER = lbmr.encode(lbmr.Packet(lbmr.VERSION, None, lbmr.Queries()))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_servers, "ANSWER_S", 0.3)


@contextmanager
def served(sock: socket.socket, serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """Serve one request of the doctor in a thread; gives the port."""
    sock.settimeout(5)
    thread = threading.Thread(target=serve, args=(sock,), daemon=True)
    thread.start()
    with closing(sock):
        yield sock.getsockname()[1]
        thread.join(5)


def udp(address: str = HERE) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    return sock


def endpoint(folder: Path, options: str) -> EndpointView:
    (folder / "a.cfg").write_text(f"context default_interface {HERE}\n{options}\n")
    (folder / "dro.xml").write_text(
        f'<tnw-gateway version="1.0"><portals><endpoint><name>A</name><domain-id>{DOMAIN}</domain-id>'
        f"<lbm-config>{folder / 'a.cfg'}</lbm-config></endpoint></portals></tnw-gateway>"
    )
    return view_of(load_dro(str(folder / "dro.xml"), warn=lambda _: None), Machine()).endpoints[0]


def asked(folder: Path, options: str) -> Check:
    (test,) = doctor_servers.tests_of(endpoint(folder, options))
    return test.run(sends=True)


def daemon_options(port: int, local: int) -> str:
    return (
        f"context resolver_unicast_daemon {HERE}:{port}\n"
        f"context resolver_unicast_port_low {local}\ncontext resolver_unicast_port_high {local}"
    )


def test_a_daemon_answers_a_keepalive_of_the_portal(tmp_path: Path) -> None:
    got: list[tuple[lbmr.Packet, int]] = []

    def answer(sock: socket.socket) -> None:
        datagram, sender = sock.recvfrom(9000)
        got.append((lbmr.decode(datagram), sender[1]))
        sock.sendto(ANSWER, sender)

    local, guard = reserve_block(1)
    with guard, served(udp(), answer) as port:
        check = asked(tmp_path, daemon_options(port, local))
    assert (check.status, check.name) == (Status.OK, f"lbmrd {HERE}:{port}")
    assert "answers a keepalive in " in check.what
    ((packet, from_port),) = got
    assert from_port == local
    assert packet.options is not None
    assert (packet.body, packet.options.is_from_dro, packet.options.local_domain) == (
        lbmr.ReceiverAlive(), True, DOMAIN,
    )  # fmt: skip


def test_a_daemon_that_is_not_there(tmp_path: Path) -> None:
    with closing(udp()) as free:
        port = free.getsockname()[1]
    local, guard = reserve_block(1)
    with guard:
        check = asked(tmp_path, daemon_options(port, local))
    assert (check.status, check.place) == (Status.FAIL, f"{tmp_path / 'a.cfg'}:2")
    assert "nothing has that port there" in check.what
    assert f"ports {port} there and {local} to {local} here" in check.remedy


def test_a_silent_daemon_gets_several_keepalives(tmp_path: Path) -> None:
    local, guard = reserve_block(1)
    with guard, closing(udp()) as sock:
        check = asked(tmp_path, daemon_options(sock.getsockname()[1], local))
        for _ in range(doctor_servers.KEEPALIVES):
            assert sock.recv(9000, socket.MSG_DONTWAIT)
    assert (check.status, check.what) == (Status.FAIL, "no answer to keepalives within 0.3 s")


def test_an_answer_from_another_address_is_named(tmp_path: Path) -> None:
    other = udp()
    shown = f"from {HERE}:{other.getsockname()[1]}"

    def answer(sock: socket.socket) -> None:
        other.sendto(ANSWER, sock.recvfrom(9000)[1])

    local, guard = reserve_block(1)
    with guard, closing(other), served(udp(), answer) as port:
        check = asked(tmp_path, daemon_options(port, local))
    assert (check.status, shown in check.what) == (Status.FAIL, True)


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    local, guard = reserve_block(1)
    with guard, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind((HERE, local))
        view = endpoint(tmp_path, f"context resolver_unicast_daemon {HERE}:{local}->{HERE}:9")
        (test,) = doctor_servers.tests_of(view)
        check = test.run(sends=True)
        assert (check.status, f"UDP {local} on {HERE}" in check.what) == (Status.NOTE, True)
        whole = view_of(load_dro(str(tmp_path / "dro.xml"), warn=lambda _: None), Machine())
        checks = [one for one in doctor_ports.ports(whole, ours=()) if "resolver_unicast_daemon" in one.what]
        assert [one.status for one in checks] == [Status.FAIL]


# SRSes


def answers_registration(domain_id: int) -> Callable[[socket.socket], None]:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        splitter = rsocket.FrameSplitter()
        with connection:
            while data := connection.recv(9000):
                splitter.feed(data)
                while (raw := splitter.next_frame()) is not None:
                    frame = rsocket.decode(raw)
                    if isinstance(frame, rsocket.RequestFrame):
                        ((request,), _) = srs.decode_lenient(frame.data)
                        assert isinstance(request, srs.RegistrationRequest)
                        assert request.application_type == srs.ApplicationType.APPLICATION
                        response = srs.encode(srs.RegistrationResponse(1, domain_id))
                        connection.sendall(rsocket.encode(rsocket.PayloadFrame(frame.stream_id, response)))

    return serve


def listening() -> socket.socket:
    return socket.create_server((HERE, 0))


def srs_options(port: int) -> str:
    return f"context resolver_service {HERE}:{port}\ncontext resolver_disable_udp_topic_resolution 1"


@pytest.mark.parametrize(
    ("domain_id", "status", "text"),
    [
        (DOMAIN, Status.OK, f", domain id {DOMAIN}"),
        (0, Status.OK, ", without domain id"),
        (9, Status.FAIL, f"but has domain id 9, this portal {DOMAIN}"),
    ],
)
def test_an_srs_registers_an_application(domain_id: int, status: Status, text: str, tmp_path: Path) -> None:
    with served(listening(), answers_registration(domain_id)) as port:
        check = asked(tmp_path, srs_options(port))
    assert (check.status, check.name) == (status, f"SRS {HERE}:{port}")
    assert "registers a context in " in check.what
    assert text in check.what


def says(data: bytes) -> Callable[[socket.socket], None]:
    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as connection:
            connection.recv(9000)
            connection.sendall(data)

    return serve


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no SRS"),
        (b"", "it closes the connection"),
        (rsocket.encode(rsocket.ErrorFrame(0, 3, b"no room")), "no room"),
    ],
)
def test_something_else_has_the_port_of_an_srs(data: bytes, text: str, tmp_path: Path) -> None:
    with served(listening(), says(data)) as port:
        check = asked(tmp_path, srs_options(port))
    assert (check.status, text in check.what) == (Status.FAIL, True), check


def test_an_srs_that_refuses_or_is_silent(tmp_path: Path) -> None:
    with closing(listening()) as sock:
        port = sock.getsockname()[1]
        assert "no answer to a registration within 0.3 s" in asked(tmp_path, srs_options(port)).what
    check = asked(tmp_path, srs_options(port))
    assert (check.status, check.what) == (Status.FAIL, "the connection is refused")
    assert f"TCP port {port}" in check.remedy


def test_a_diagnosis_has_the_servers_of_each_portal(tmp_path: Path) -> None:
    endpoint(tmp_path, srs_options(9))
    found = diagnose(DiagnosisRequest(str(tmp_path / "dro.xml"), listen_s=0.05)).checks
    assert [(c.portal, c.status) for c in found if c.name == f"SRS {HERE}:9"] == [("A", Status.FAIL)]
    found = diagnose(DiagnosisRequest(str(tmp_path / "dro.xml"), sends=False)).checks
    assert [(c.portal, c.status) for c in found if c.name == f"SRS {HERE}:9"] == [("A", Status.NOTE)]
    assert not any("multicast" in c.name and c.status is not Status.NOTE for c in found)

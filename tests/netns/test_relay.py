"""The slow wire: its queue with a fake clock, and the process between two hosts."""

from __future__ import annotations

import socket
import time

import pytest

from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.relay import ETHERTYPE_IPV4, TUN, Line, Link

MS = 1_000_000


def frame(n: int, ethertype: bytes = ETHERTYPE_IPV4) -> bytes:
    return bytes(12) + ethertype + n.to_bytes(4, "big")


def test_a_frame_waits_for_the_delay_and_not_longer() -> None:
    line = Line(Link(delay_ms=20), seed=1)
    line.on_frame(frame(1), 5 * MS)
    assert line.next_deadline() == 25 * MS
    assert line.take_due(25 * MS - 1) == []
    assert line.take_due(25 * MS) == [frame(1)]
    assert line.next_deadline() is None


@pytest.mark.parametrize("in_order", [True, False])
def test_jitter_reorders_only_when_allowed(in_order: bool) -> None:
    line = Line(Link(delay_ms=10, jitter_ms=10, in_order=in_order), seed=7)
    sent = [frame(n) for n in range(200)]
    for n, f in enumerate(sent):
        line.on_frame(f, n * MS)
    got = line.take_due(1000 * MS)
    assert sorted(got) == sent
    assert (got == sent) is in_order


def test_loss_takes_its_share_of_ipv4_and_nothing_else() -> None:
    line = Line(Link(loss=0.2), seed=3)
    for n in range(1000):
        line.on_frame(frame(n), 0)
        line.on_frame(frame(n, b"\x08\x06"), 0)
    kinds = [f[12:14] for f in line.take_due(0)]
    assert kinds.count(b"\x08\x06") == 1000
    assert 700 < kinds.count(ETHERTYPE_IPV4) < 900


@pytest.fixture
def far(net: Net) -> tuple[Host, Host]:
    """Two hosts of one TRD, the second behind 40 ms of wire."""
    if not TUN.exists():
        pytest.skip(f"{TUN} is missing: no TAP devices here")
    near = net.host("near", {"trd1": "10.77.0.1/24"})
    return near, net.host("far", {"trd1": "10.77.0.2/24"}, {"trd1": Link(delay_ms=40)})


@pytest.mark.netns
def test_a_round_trip_over_a_slow_wire_takes_twice_its_delay(far: tuple[Host, Host]) -> None:
    near_host, far_host = far
    with near_host.inside():
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with far_host.inside():
        away = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with near, away:
        near.settimeout(10)
        away.settimeout(10)
        away.bind((far_host.address(), 0))
        start_s = time.monotonic()
        near.sendto(b"ping", away.getsockname())
        payload, sender = away.recvfrom(10)
        away.sendto(payload, sender)
        assert near.recv(10) == b"ping"
        assert time.monotonic() - start_s >= 0.080


@pytest.mark.netns
def test_multicast_crosses_a_slow_wire(far: tuple[Host, Host]) -> None:
    near_host, far_host = far
    with near_host.inside():
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with far_host.inside():
        away = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with near, away:
        away.settimeout(10)
        away.bind(("239.77.1.1", 14400))
        member = socket.inet_aton("239.77.1.1") + socket.inet_aton(far_host.address())
        away.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        start_s = time.monotonic()
        near.sendto(b"hello", ("239.77.1.1", 14400))
        assert away.recv(10) == b"hello"
        assert time.monotonic() - start_s >= 0.040

"""A link between two DROs over each kind of stream: what crosses is whole, and each side says why it refuses."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.bus.messages import ListRows
from dro.metrics.slots import Slot
from portals.peer.stream.peer_tls import PeerStreamMaker
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import logged
from tests.rigs.certificates import Authority
from tests.rigs.network import Network, Ports, network

PAIR: Ports = {"A": [1, "B"], "B": [2, "A"]}
REFUSALS = ("PEER_CONNECT_FAILED", "PEER_REFUSED")
LZ4 = "<compression>LZ4</compression>"


@pytest.fixture(name="authority")
def _authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Authority(folder)


def tls(authority: Authority, name: str) -> str:
    certificate, key = authority.leaf(name)
    return (
        f"<tls><certificate>{certificate}</certificate><certificate-key>{key}</certificate-key>"
        f"<trusted-certificates>{authority.trusted}</trusted-certificates></tls>"
    )


def configured(net: Network, **single_tcp: str) -> Network:
    """More elements of `<single-tcp>` by DRO."""
    for dro, text in single_tcp.items():
        file = net.plan.file(dro)
        file.write_text(file.read_text().replace("<nodelay/>", f"<nodelay/>{text}"))
    return net


@pytest.fixture(name="net")
def _net(tmp_path: Path, stepper: Stepper) -> Iterator[Network]:
    with network(tmp_path, stepper, PAIR, transport="tcp") as net:
        yield net


def has_routes(net: Network) -> bool:
    return all(portal.core.routes.version for dro in net.dros.values() for portal in dro.portals.values())


def crosses(net: Network, count: int = 2000, size: int = 1000) -> None:
    """A topic from TRD 1 to TRD 2."""
    source, receiver = net.application(1), net.application(2)
    receiver.context.want_topic(b"AAA")
    own = source.source(b"AAA")
    net.until(lambda: bool(receiver.bound(b"AAA")))
    net.run(300)
    for _ in range(count // 100):
        source.send(own, 100, size=size)
        net.run(20)
    net.until(lambda: len(receiver.heard(b"AAA")) >= count)
    assert receiver.heard(b"AAA") == [*range(count)]
    assert {len(payload) for _, _, payload in receiver.sink.fragments} == {12 + size}


def test_a_link_with_more_to_read_than_there_is_time_for_is_told_to_the_route_manager(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.start()
    net.until(lambda: has_routes(net))
    net.run(2000)
    exchange = net.dros["B"].manager._core.exchange
    (other,) = exchange.others.values()
    assert other.busy_ns == 0
    monkeypatch.setattr("portals.peer.stream.receiver.TURN_NS", -1)
    receiver = net.application(1)
    for number in range(50):
        receiver.context.want_topic(b"%d" % number)
    net.until(lambda: other.busy_ns > 0)


@pytest.mark.parametrize("compression", ["", LZ4], ids=["", "LZ4"])
@pytest.mark.parametrize("is_secret", [False, True], ids=["", "TLS"])
def test_what_crosses_is_whole(net: Network, authority: Authority, compression: str, is_secret: bool) -> None:
    a, b = (tls(authority, name) if is_secret else "" for name in ("a.example", "b.example"))
    configured(net, A=compression + a, B=compression + b).start()
    net.until(lambda: has_routes(net))
    crosses(net)
    assert sum(dro.dropped() for dro in net.dros.values()) == 0
    assert net.dros["A"].page("B", Slot.SENT) == 2000
    assert net.dros["B"].page("A", Slot.TOPIC_RCVD) == 2000


def test_compression_on_one_side_only_works_and_is_told(net: Network, caplog: pytest.LogCaptureFixture) -> None:
    configured(net, A=LZ4).start()
    net.until(lambda: has_routes(net))
    crosses(net, 200)
    odd = [fields["reason"] for _, event, fields in logged(caplog) if event.name == "PEER_ODD"]
    assert sorted(map(str, odd)) == [
        "<compression> is configured only at the companion, the link is not compressed",
        "<compression> is configured only here, the link is not compressed",
    ]


def test_tls_on_one_side_only_is_refused_and_told(
    net: Network, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    configured(net, A=tls(authority, "a.example")).start()
    net.run(3000)
    assert not any(dro.peers[other].connection for dro, other in zip(net.dros.values(), "BA", strict=True))
    events = [event.name for _, event, _ in logged(caplog)]
    assert "TLS_FAILED" in events or "PEER_REFUSED" in events


@pytest.mark.parametrize(
    ("secret", "found"),
    [("A", "the companion speaks TLS"), ("B", "its log says why; <tls> has to be configured at both ends")],
)
def test_a_companion_that_speaks_tls_on_a_plain_link_is_told_as_such(
    net: Network, authority: Authority, caplog: pytest.LogCaptureFixture, secret: str, found: str
) -> None:
    configured(net, **{secret: tls(authority, f"{secret.lower()}.example")}).start()
    net.run(3000)
    reasons = [str(f.get("reason", f.get("error"))) for _, event, f in logged(caplog) if event.name in REFUSALS]
    assert any(found in reason for reason in reasons)


def test_a_link_says_what_carries_it(net: Network, authority: Authority) -> None:
    texts = {dro: LZ4 + tls(authority, f"{dro.lower()}.example") for dro in "AB"}
    configured(net, **texts).start()
    net.until(lambda: has_routes(net))
    worker = next(w for w in net.dros["A"].workers.values() if w.name == "A-B")
    (row,) = json.loads(worker.told["on_list"](ListRows(1, "peers", "", 0)).rows)  # type: ignore[attr-defined]
    assert row["transport"] == "TCP + TLSv1.3 + LZ4"
    assert "b.example" in row["certificate"]
    assert row["certificate_days"] >= 0
    assert row["own_certificate_days"] >= 0
    assert ": " not in row["local"]


def test_the_end_of_a_certificate_is_told_while_the_link_is_up(
    net: Network, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(net, **{dro: tls(authority, f"{dro.lower()}.example") for dro in "AB"}).start()
    net.until(lambda: has_routes(net))
    looked: list[PeerStreamMaker] = []
    monkeypatch.setattr(PeerStreamMaker, "warn_of_expiry", lambda maker: looked.append(maker))
    net.run(61_000, step_ms=100)
    assert {*looked} == {portal._make_stream for dro in net.dros.values() for portal in dro.peers.values()}


def test_a_certificate_of_an_unknown_authority_is_refused(
    net: Network, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    configured(net, A=tls(authority, "a.example"), B=tls(other, "b.example")).start()
    net.run(3000)
    assert net.dros["A"].peers["B"].connection is None
    reasons = [str(f.get("reason", f.get("error"))) for _, event, f in logged(caplog) if event.name in REFUSALS]
    assert any("authority" in reason for reason in reasons)


def test_what_can_be_compressed_is(net: Network) -> None:
    """Its bytes on the wire, from the counters of the socket at the other end."""
    configured(net, A=LZ4, B=LZ4).start()
    net.until(lambda: has_routes(net))
    crosses(net, 1000)
    link = net.dros["B"].peers["A"].connection
    assert link is not None
    inner = link._stream._inner  # type: ignore[union-attr]
    received = inner.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 200)
    assert 5_000 < int.from_bytes(received[128:136], "little") < 200_000  # tcpi_bytes_received, of a million

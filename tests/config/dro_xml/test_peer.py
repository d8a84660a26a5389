"""Peer portals in the DRO file: what the parts of `<peer>` say together."""

from __future__ import annotations

import pytest

from dro.config.dro_xml.model import InitiatorConfig, PeerConfig
from dro.config.reading.problems import ConfigErrors
from tests.builders.dro_file import load

ACCEPTOR = "<acceptor><listen-port>9</listen-port></acceptor>"
INITIATOR = "<initiator reconnect-interval='7'><address>{0}</address><port>8</port></initiator>"


def document(*peers: str) -> bytes:
    lines = "\n".join(peers)
    return f'<tnw-gateway version="1.0"><portals>\n{lines}\n</portals></tnw-gateway>'.encode()


def read(tcp: str, inner: str = "", warnings: list[str] | None = None) -> PeerConfig:
    text = f"<peer><name>P</name><single-tcp>{tcp}</single-tcp>{inner}</peer>"
    return load(document(text), warnings).peers[0]


def refused(tcp: str, inner: str = "") -> str:
    with pytest.raises(ConfigErrors) as caught:
        read(tcp, inner)
    return str(caught.value)


def test_defaults_of_a_peer() -> None:
    made = read(ACCEPTOR, "<udp><port>5</port></udp>")
    assert (made.cost, made.sourcemap_size, made.max_datagram_bytes) == (1, 131072, 65500)
    assert (made.batch_min_bytes, made.batch_interval_ms, made.smart_batch) == (8192, 200, False)
    assert (made.tcp.interface, made.tcp.receive_buffer_bytes, made.tcp.send_buffer_bytes) == ("0.0.0.0", 0, 0)
    assert (made.tcp.keepalive, made.tcp.nodelay, made.tcp.compression, made.tcp.tls) == (False, False, "", None)
    assert (made.tcp.listen_port, made.tcp.initiator) == (9, None)
    assert made.udp is not None
    assert (made.udp.receive_buffer_bytes, made.udp.send_buffer_bytes) == (8388608, 1048576)
    assert (made.keepalive.only_when_idle, made.keepalive.interval_ms, made.keepalive.timeout_ms) == (True, 5000, 15000)


def test_an_initiator() -> None:
    assert read(INITIATOR.format("far.example")).tcp.initiator == InitiatorConfig("far.example", 8, 7)
    for bad in ("1.2.3", "a b", "-", "", "a..b", "256.1.1.1"):
        assert "<address>: " in refused(INITIATOR.format(bad))


def test_exactly_one_side() -> None:
    assert "neither <initiator> nor <acceptor>" in refused("")
    assert "both <initiator> and <acceptor>" in refused(ACCEPTOR + INITIATOR.format("192.0.2.1"))


def test_the_interface_is_a_local_address() -> None:
    assert read(f"<interface>192.0.2.0/24</interface>{ACCEPTOR}").tcp.interface == "192.0.2.10"
    assert "dro.xml:2: <interface>: no interface of this host matches" in refused(
        f"<interface>10.9.9.0/24</interface>{ACCEPTOR}"
    )


def test_an_interface_that_may_come_later_is_waited_for() -> None:
    warnings: list[str] = []
    assert read(f"<interface>10.9.9.9</interface>{ACCEPTOR}", warnings=warnings).tcp.interface == "10.9.9.9"
    expected = "dro.xml:2: <interface>: no interface of this host matches '10.9.9.9'; it is waited for"
    assert [expected in warning for warning in warnings].count(True) == 1


@pytest.mark.parametrize(("written", "made"), [(0, 131072), (1, 1), (3, 4), (64, 64), (65, 128)])
def test_the_source_map_is_a_power_of_two(written: int, made: int) -> None:
    warnings: list[str] = []
    assert read(ACCEPTOR, f"<sourcemap size='{written}'/>", warnings).sourcemap_size == made
    assert any("is not a power of two" in w for w in warnings) == (written != made)


def test_names_differ_from_those_of_other_portals() -> None:
    peers = [f"<peer><name>{n}</name><single-tcp>{ACCEPTOR}</single-tcp></peer>" for n in ("A", "B", "A")]
    endpoint = "<endpoint><name>B</name><domain-id>1</domain-id></endpoint>"
    with pytest.raises(ConfigErrors) as caught:
        load(document(*peers, endpoint))
    assert [str(e) for e in caught.value.errors] == [
        "dro.xml:3: <peer>: portal name 'B' is already used by the portal in line 5; give each portal its own name",
        "dro.xml:4: <peer>: portal name 'A' is already used by the portal in line 2; give each portal its own name",
    ]


def test_names_differ_also_on_one_line() -> None:
    peer = f"<peer><name>A</name><single-tcp>{ACCEPTOR}</single-tcp></peer>"
    with pytest.raises(ConfigErrors, match="portal name 'A' is already used"):
        load(document(peer + peer))


def test_the_password_is_not_shown() -> None:
    tls = (
        "<tls><certificate>c</certificate><certificate-key>k</certificate-key>"
        "<certificate-key-password>geheim</certificate-key-password></tls>"
    )
    made = read(tls + ACCEPTOR)
    assert made.tcp.tls is not None
    assert made.tcp.tls.certificate_key_password == "geheim"
    assert "geheim" not in repr(made)


def test_session_messages_have_a_rising_gap() -> None:
    udp = "<udp><port>5</port><session-message min-interval='20' max-interval='10'/></udp>"
    assert "min-interval 20 exceeds max-interval 10" in refused(ACCEPTOR, udp)

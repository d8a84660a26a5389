"""Where the guide contradicts itself about the DRO file: one test for each decision, named by its number.

A2, A3: not well-formed, see `test_hostile_xml.py`. B1: `test_load.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from dro.config.reading.problems import ConfigErrors
from dro.errors import ConfigError
from tests.builders.dro_file import gateway, load

ACCEPTOR = "<acceptor><listen-port>9</listen-port></acceptor>"
TLS = "<tls><certificate>c</certificate><certificate-key>k</certificate-key>{0}</tls>"


def endpoint(inner: str, warnings: list[str] | None = None) -> EndpointConfig:
    return load(gateway(f"<endpoint><name>E</name><domain-id>1</domain-id>{inner}</endpoint>"), warnings).portals[0]


def peer(inner: str = "", tcp: str = "", warnings: list[str] | None = None) -> PeerConfig:
    text = f"<peer><name>P</name><single-tcp>{tcp}{ACCEPTOR}</single-tcp>{inner}</peer>"
    return load(gateway(text), warnings).peers[0]


def daemon(inner: str, warnings: list[str] | None = None) -> DroConfig:
    return load(gateway("<endpoint><name>E</name><domain-id>1</domain-id></endpoint>", daemon=inner), warnings)


def refusal(raw: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        load(raw)
    return str(caught.value)


def test_a1_another_order_is_a_warning() -> None:
    raw = gateway("<endpoint><name>E</name><lbm-config>/dev/null</lbm-config><domain-id>1</domain-id></endpoint>")
    warnings: list[str] = []
    load(raw, warnings)
    assert "dro.xml:3: <domain-id>: should stand before <lbm-config>" in warnings


@pytest.mark.parametrize(
    "text",
    [
        "<receiver-context-name>a</source-context-name>",
        "<sqn-window size=16384/>",
        "<topic-purge>",
    ],
)
def test_a2_a3_what_is_not_well_formed_is_refused(text: str) -> None:
    raw = gateway(f"<endpoint><name>E</name><domain-id>1</domain-id>{text}</endpoint>")
    assert refusal(raw).startswith("dro.xml:3: not well-formed XML")


def test_a4_an_ace_says_what_it_does() -> None:
    raw = gateway(
        "<endpoint><name>E</name><domain-id>1</domain-id><acl><inbound><ace><topic>T</topic></ace></inbound></acl></endpoint>"
    )
    assert refusal(raw).startswith("dro.xml:3: <ace>: attribute match is missing")


def test_a5_a_literal_topic_that_looks_like_a_pattern_is_told() -> None:
    warnings: list[str] = []
    endpoint(
        '<acl><inbound><ace match="accept"><topic>.*</topic></ace><ace match="accept"><topic>.*_x$</topic></ace>'
        '<ace match="accept"><topic>a.b</topic></ace></inbound></acl>',
        warnings,
    )
    assert "dro.xml:3: <topic>: '.*' is taken as every topic; use <pcre-pattern>" in warnings
    assert "dro.xml:3: <topic>: '.*_x$' is compared literally; use <pcre-pattern> for a pattern" in warnings
    assert not any("a.b" in w for w in warnings)


def test_a8_udp_may_stand_inside_single_tcp() -> None:
    warnings: list[str] = []
    assert peer(tcp="<udp><port>77</port></udp>", warnings=warnings) == peer("<udp><port>77</port></udp>")
    assert "dro.xml:3: <udp>: belongs beside <single-tcp>, taken as if it were there" in warnings
    udp = "<udp><port>1</port></udp>"
    both = f"<peer><name>P</name><single-tcp>{ACCEPTOR}{udp}</single-tcp>{udp}</peer>"
    assert "given here and beside <single-tcp>" in refusal(gateway(both))


def test_a9_compression_and_tls_go_with_udp() -> None:
    made = peer("<udp><port>77</port></udp>", f"<compression>LZ4</compression>{TLS.format('')}")
    assert made.udp is not None
    assert made.tcp.compression == "LZ4"
    assert made.tcp.tls is not None


@pytest.mark.parametrize(
    ("written", "suites"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", ("ECDHE-RSA-AES128-GCM-SHA256",)),
        ("TLS_RSA_WITH_AES_256_CBC_SHA256", ("AES256-SHA256",)),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", ("AES128-SHA",)),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", ("ECDHE-ECDSA-CHACHA20-POLY1305",)),
        ("AES256-SHA256, TLS_AES_128_GCM_SHA256", ("AES256-SHA256", "TLS_AES_128_GCM_SHA256")),
    ],
)  # fmt: skip
def test_a10_cipher_suites_in_both_spellings(written: str, suites: tuple[str, ...]) -> None:
    tls = peer(tcp=TLS.format(f"<cipher-suites>{written}</cipher-suites>")).tcp.tls
    assert tls is not None
    assert tls.cipher_suites == suites


def test_a10_unknown_suites_are_told_and_none_left_is_an_error() -> None:
    warnings: list[str] = []
    tls = peer(tcp=TLS.format("<cipher-suites>ALL,AES256-SHA256,NO-SUCH</cipher-suites>"), warnings=warnings).tcp.tls
    assert tls is not None
    assert tls.cipher_suites == ("AES256-SHA256",)
    assert [w for w in warnings if "NO-SUCH" in w or "ALL" in w] != []
    text = f"<single-tcp>{TLS.format('<cipher-suites>NO-SUCH</cipher-suites>')}{ACCEPTOR}</single-tcp>"
    assert "no usable cipher suite" in refusal(gateway(f"<peer><name>P</name>{text}</peer>"))


def test_a10_suites_of_tls_1_3_cannot_be_chosen_among() -> None:
    offered = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
    for suites, is_told in ((offered, False), (offered[:1], True), (("AES256-SHA256",), False)):
        warnings: list[str] = []
        peer(tcp=TLS.format(f"<cipher-suites>{','.join(suites)}</cipher-suites>"), warnings=warnings)
        assert any("TLS 1.3" in warning for warning in warnings) is is_told


def test_a11_datagrams_are_small_with_tls_over_udp() -> None:
    udp = "<udp><port>77</port></udp>"
    assert peer(udp).max_datagram_bytes == 65500
    assert peer("", TLS.format("")).max_datagram_bytes == 65500
    assert peer(udp, TLS.format("")).max_datagram_bytes == 16348
    assert peer(f"{udp}<max-datagram>16348</max-datagram>", TLS.format("")).max_datagram_bytes == 16348
    with pytest.raises(ConfigErrors, match="16349 is above 16348, the limit with <tls> and <udp>"):
        peer(f"{udp}<max-datagram>16349</max-datagram>", TLS.format(""))


def test_a12_portals_have_names_and_the_daemon_may() -> None:
    assert daemon("").daemon.name == ""
    assert "<peer>: <name> is missing" in refusal(gateway(f"<peer><single-tcp>{ACCEPTOR}</single-tcp></peer>"))


def test_a13_a_rate_limit_of_the_initial_request_is_ignored() -> None:
    warnings: list[str] = []
    endpoint("<topic-resolution><initial-request><rate-limit bps='1'/></initial-request></topic-resolution>", warnings)
    assert "dro.xml:3: <rate-limit>: has no function here, ignored" in warnings


def test_a14_max_patterns_has_no_function() -> None:
    warnings: list[str] = []
    assert endpoint("<pattern-interest-generate max-patterns='300000'/>", warnings) == endpoint("")
    assert "dro.xml:3: <pattern-interest-generate>: deprecated, ignored" in warnings


def test_a15_the_ignore_interval_of_a_peer_link_is_100() -> None:
    udp = peer("<udp><port>1</port></udp>").udp
    assert udp is not None
    assert udp.ignore_interval_ms == 100


def test_a16_a_short_keepalive_is_taken_with_a_warning() -> None:
    warnings: list[str] = []
    assert peer("<gateway-keepalive interval='1000'/>", warnings=warnings).keepalive.interval_ms == 1000
    assert "dro.xml:3: <gateway-keepalive>: interval 1000 is short, 2000 or more is advised" in warnings


def test_a17_unknown_options_of_the_monitor_modules_are_ignored(tmp_path: Path) -> None:
    warnings: list[str] = []
    (tmp_path / "a.cfg").write_text("context resolver_multicast_ttl 4\nsource transport lbtrm\n")
    text = (
        f"<monitor interval='5'><transport-module options='config={tmp_path}/a.cfg;topic=/t;context|ttl=1;speed=2'/>"
        "<format-module module='csv' options='config=/a.cfg;separator=|'/></monitor>"
    )
    monitor = daemon(text, warnings).daemon.monitor
    assert monitor is not None
    assert (monitor.topic, monitor.separator) == ("/t", "|")
    assert monitor.um.get_int("context", "resolver_multicast_ttl") == 4
    assert "dro.xml:2: <format-module>: options: 'config' is not known, ignored" in warnings
    for name in ("speed", "context|ttl"):
        assert f"dro.xml:2: <transport-module>: options: '{name}' is not known, ignored" in warnings


def test_a18_parts_of_the_daemon_monitor_may_stand_under_daemon() -> None:
    parts = (
        "<publishing-interval><group name='default' ivl='7'/></publishing-interval><remote-snapshot-request allow='1'/>"
    )
    warnings: list[str] = []
    assert daemon(parts, warnings) == daemon(f"<daemon-monitor>{parts}</daemon-monitor>")
    assert "dro.xml:2: <publishing-interval>: belongs into <daemon-monitor>, taken as if it were there" in warnings
    made = daemon(parts).daemon.daemon_monitor
    assert made is not None
    assert made.answers_snapshots
    assert not made.obeys_changes
    assert made.topic == "tnwgd.monitor"
    assert made.publishing.interval_s("portal-stats") == 7


def test_a18_the_group_of_the_gateway_is_ignored_in_a_portal() -> None:
    warnings: list[str] = []
    groups = "<group name='gateway-config' ivl='1'/><group name='portal-stats' ivl='2'/>"
    made = endpoint(f"<publishing-interval>{groups}</publishing-interval>", warnings).publishing
    assert made is not None
    assert made.intervals_s == (("portal-stats", 2),)
    assert "dro.xml:3: <group>: gateway-config has no effect in a portal, ignored" in warnings


@pytest.mark.parametrize(
    ("condition", "fits"),
    [
        ("source-ip value='1234'", False),
        ("source-ip value='192.0.2.1'", True),
        ("multicast-group value='1234'", False),
        ("udp-source-port value='1234'", True),
        ("udp-source-port value='65536'", False),
        ("xport-id value='192.0.2.1'", False),
        ("transport value='1234'", False),
    ],
)
def test_a19_values_are_checked_for_the_kind_of_condition(condition: str, fits: bool) -> None:
    text = f"<acl><inbound><ace match='accept'><{condition} comparison='eq'/></ace></inbound></acl>"
    if fits:
        assert endpoint(text).acl is not None
    else:
        with pytest.raises(ConfigErrors, match=r"dro\.xml:3: <"):
            endpoint(text)


def test_a20_propagation_delay_is_ignored() -> None:
    warnings: list[str] = []
    assert daemon("<propagation-delay delta='1'/>", warnings) == daemon("")
    assert "dro.xml:2: <propagation-delay>: deprecated, ignored" in warnings


def test_a21_the_former_link_is_refused_with_the_name_of_the_new_one() -> None:
    text = (
        "<peer><name>P</name><tcp><listen-port>1</listen-port>"
        "<companion><address>a</address><port>1</port></companion></tcp></peer>"
    )
    assert refusal(gateway(text)).startswith(
        "dro.xml:3: <tcp>: this form of the peer link does not exist any more; use <single-tcp>"
    )


@pytest.mark.parametrize("name", ["ingress-cost", "egress-cost"])
def test_a25_separate_costs_do_not_exist(name: str) -> None:
    raw = gateway(f"<endpoint><name>E</name><domain-id>1</domain-id><{name}>1</{name}></endpoint>")
    assert f"<{name}>: unknown element in <endpoint>" in refusal(raw)


def test_a24_a26_units_and_hop_count() -> None:
    config = daemon("")
    assert config.daemon.route_info.max_hop_count == 100
    assert config.daemon.route_info.timeout_ms == 4000
    assert config.portals[0].topic_resolution.initial_request.duration_s == 10


def test_a27_slips_of_the_text_form_are_aliases() -> None:
    warnings: list[str] = []
    made = daemon(
        "<lbn-license-file>l</lbn-license-file><monitor><transport-module module='lbn'/></monitor>", warnings
    ).daemon
    assert made.license_file == "l"
    assert made.monitor is not None
    assert made.monitor.transport_module == "lbm"
    assert peer("<sourcecemap size='64'/>", warnings=warnings).sourcemap_size == 64
    assert 'dro.xml:2: <transport-module module="lbn">: taken as lbm' in warnings
    assert "dro.xml:3: <sourcecemap>: taken as <sourcemap>" in warnings

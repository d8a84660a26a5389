"""Lint: each rule finds what it is for and nothing else; defaults and the example networks are found no fault with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.lint.finding import Finding, Machine, Severity
from dro.config.lint.rules import RULES, lint, rules_table
from dro.errors import ConfigError
from tests.builders.dro_file import load
from tests.fakes.lookup import FakeLookup

EXAMPLES = Path(__file__).parents[2] / "golden" / "examples"
DOCS = Path(__file__).parents[3] / "docs" / "run.md"
LOOKUP = FakeLookup()
MACHINE = Machine(LOOKUP.interfaces(), shm_bytes=8 << 30, ephemeral_ports=(32768, 60999))
TWO = {"A": "192.0.2.10", "B": "198.51.100.5"}  # portal: interface, each on a network of its own

FILE = """<?xml version="1.0"?>
<tnw-gateway version="1.0">
  <daemon><name>D</name>{daemon}</daemon>
  <portals>
{portals}
  </portals>
</tnw-gateway>
"""


def endpoint(name: str, domain: int, um: Sequence[str] = (), xml: str = "", interface: str = "192.0.2.10") -> str:
    """An endpoint; `um` has lines of a UM file, `xml` elements as (place, text) that the order of the DTD allows."""
    lines = [f"context default_interface {interface}", *um]
    options = "\n".join('<option scope="{}" name="{}" value="{}"/>'.format(*line.split(None, 2)) for line in lines)
    before, _, after = xml.partition("@")
    return (
        f"<endpoint><name>{name}</name><domain-id>{domain}</domain-id>{before}"
        f"<lbm-attributes>{options}</lbm-attributes>{after}</endpoint>"
    )


def config_of(*portals: str, daemon: str = "") -> DroConfig:
    text = FILE.format(portals="\n".join(portals), daemon=daemon)
    return load(text, lookup=LOOKUP)


def pair(um: Sequence[str] = (), xml: str = "", other_um: Sequence[str] = ()) -> tuple[str, str]:
    """Portal A with these options and a plain portal B, each in a network of its own."""
    return endpoint("A", 1, um, xml), endpoint("B", 2, other_um, interface=TWO["B"])


def peer(udp: str = "", xml: str = "") -> tuple[str, str]:
    link = "<single-tcp><acceptor><listen-port>29000</listen-port></acceptor></single-tcp>"
    udp_part = f"<udp><port>29600</port>{udp}</udp>" if udp else ""
    return endpoint("A", 1), f"<peer><name>P</name>{link}{udp_part}{xml}</peer>"


def acl(*aces: str, direction: str = "inbound") -> tuple[str, str]:
    text = "\n".join(aces)
    return pair(xml=f"@<acl><{direction}>\n{text}\n</{direction}></acl>")


def ace(match: str, conditions: str) -> str:
    return f'<ace match="{match}">{conditions}</ace>'


LBTRM = "source transport lbtrm"
FILTERS = "source transport_source_side_filtering_behavior inclusion"
LBTRU = "source transport lbtru"
LBTIPC = "source transport lbtipc"
RES = "topic-resolution"
ANY_TOPIC = "<pcre-pattern>.*</pcre-pattern>"

DAEMON = "context resolver_unicast_daemon 192.0.2.5:15380"
ALIVE = [DAEMON, "context resolver_unicast_force_alive 1"]
SRS_ALONE = ["context resolver_service 192.0.2.5:27000", "context resolver_disable_udp_topic_resolution 1"]

# rule -> what it finds: the portals, a part of the text (None: nothing is found), the daemon's elements
CASES: list[tuple[str, tuple[str, ...], str | None]] = [
    ("joined-trds", (endpoint("A", 1), endpoint("B", 2, interface="192.0.2.77")), "11:12965 is used by portal A"),
    ("joined-trds", (endpoint("A", 1, interface="0.0.0.0"), endpoint("B", 2)), "the two TRDs are one"),
    ("joined-trds", (endpoint("A", 1, ["context resolver_multicast_outgoing_address 239.0.0.9"]),
                     endpoint("B", 2, ["context resolver_multicast_incoming_address 239.0.0.9"])), "by portal A"),
    ("joined-trds", pair(), None),
    ("joined-trds", (endpoint("A", 1), endpoint("B", 2, ["context resolver_multicast_port 12966"])), None),
    ("data-groups", (endpoint("A", 1, [LBTRM]), endpoint("B", 2, ["context resolver_multicast_port 12966"])),
     "5 groups from 224.10.10.10 with port 14400"),
    ("data-groups", (endpoint("A", 1, [LBTRM]), endpoint("B", 2, ["context resolver_multicast_port 12966",
                     "source transport_lbtrm_destination_port 14500"])), None),
    ("groups", pair(["context transport_lbtrm_multicast_address_low 224.10.10.15"]), "below the low end"),
    ("groups", pair(["source transport_lbtrm_multicast_address 224.9.10.11",
                     "source transport_lbtrm_destination_port 12965"]), "LBT-RM data and to topic resolution"),
    ("groups", pair(["context transport_lbtrm_multicast_address_high 224.10.10.30",
                     "source transport_lbtrm_destination_port 14401"]), "multicast immediate messages"),
    ("groups", pair(["context transport_lbtrm_multicast_address_high 224.10.10.30"]), None),
    ("port-room", pair(["context request_tcp_port_high 14391"]), "2 TCP ports are bound by portal A, 1 are there"),
    ("port-room", pair(["context request_tcp_port 14391"]), "set it to 0 and use the range"),
    ("port-room", (endpoint("A", 1, ["context request_tcp_port_high 14393"]), endpoint("B", 2,
                   ["context resolver_multicast_port 1", "context request_tcp_port_high 14393"])),
     "4 TCP ports are bound by portal A, B, 3 are there"),
    ("port-room", pair(["context transport_tcp_maximum_ports 30"]), "30 TCP ports may be wanted by portal A, 20"),
    ("port-room", pair([LBTRM, "context transport_lbtrm_source_port_high 14391"]), "5 UDP ports may be wanted"),
    ("port-room", pair([LBTRU, "context transport_lbtru_port_high 14382"]), "5 UDP ports may be wanted by portal A, 3"),
    ("port-room", pair([LBTRU, "receiver transport_lbtru_port_high 14380"]), None),
    ("port-room", pair([LBTRU, "receiver transport_lbtru_port_low 14380", "receiver transport_lbtru_port_high 14384",
                        "context transport_lbtru_port_high 14384"]), "6 UDP ports may be wanted by portal A, 5"),
    ("port-room", pair(["context transport_lbtru_port_high 14382"]), None),  # nothing is sent by it
    ("port-room", pair(["context request_tcp_port_high 14392"]), None),
    ("port-room", pair(["context request_tcp_bind_request_port 0", "context request_tcp_port_high 14391"]), None),
    ("ephemeral-ports", pair(["context request_tcp_port_low 40000", "context request_tcp_port_high 40010"]),
     "use ports below 32768"),
    ("ephemeral-ports", pair(["context request_tcp_port_low 20000", "context request_tcp_port_high 20010"]), None),
    ("fragment-size", pair([LBTRM]), "fragments from B that are larger are dropped as size_error"),
    ("fragment-size", pair([LBTRM], other_um=["context transport_tcp_datagram_max_size 8192"]), None),
    ("fragment-size", pair(["context transport_tcp_datagram_max_size 8192"]), "8192 bytes at portal A (tcp), 65535 at"),
    ("fragment-size", pair([LBTRM, "context transport_tcp_datagram_max_size 16384"], other_um=[LBTRM]), "hint"),
    ("fragment-size", pair([LBTRU]), "8192 bytes at portal A (lbtru), 65535 at portal B (tcp)"),
    ("fragment-size", pair([LBTIPC]), None),
    ("fragment-size", pair([LBTIPC, "context transport_lbtipc_datagram_max_size 8192"]), "8192 bytes at portal A"),
    ("fragment-size", pair([LBTRU, "context transport_lbtru_datagram_max_size 65535"], other_um=[LBTIPC]), None),
    ("fragment-size", pair(), None),
    ("resolver-size", pair(["context resolver_datagram_max_size 1400"]), "1400 at A, 8192 at B"),
    ("own-size", pair(["context transport_lbtrm_receiver_datagram_max_size 1400"]), "1400 bytes, sources send 8192"),
    ("own-size", pair(["context transport_lbtrm_source_datagram_max_size 1400"]), None),
    ("filtering", pair([LBTRU, FILTERS]), "send by lbtru, which does not filter"),
    ("filtering", pair([LBTIPC, FILTERS]), "send by lbtipc, which does not filter"),
    ("filtering", pair([FILTERS]), None),
    ("nak-ignore", pair(["source transport_lbtrm_ignore_interval 10000"]), "never sent again"),
    ("nak-ignore", pair(["receiver transport_lbtrm_nak_backoff_interval 100"]), "more than half the NAK backoff"),
    ("nak-ignore", pair(["source transport_lbtrm_ignore_interval 100"]), None),
    ("nak-ignore", pair(["source transport_lbtrm_ignore_interval 500"]), None),  # the default, written out
    ("nak-ignore", peer('<nak-handling ignore-interval="150"/>'), "<nak-handling> ignore-interval"),
    ("nak-ignore", peer('<nak-handling send-naks="no"/>'), "NAKs are switched off"),
    ("nak-ignore", peer('<nak-handling ignore-interval="100"/>'), None),
    ("nak-times", pair(["receiver transport_lbtrm_nak_initial_backoff_interval 10000"]), "before the first NAK"),
    ("nak-times", pair(["receiver transport_lbtrm_nak_generation_interval 300"]), "asked for once at the most"),
    ("nak-times", pair(["receiver transport_lbtrm_nak_suppress_interval 10000"]), "nothing is asked for again"),
    ("nak-times", pair(["receiver transport_lbtrm_nak_generation_interval 2000"]), None),
    ("window-time", pair(["context transport_lbtrm_data_rate_limit 1000000000"]), "201 ms at 1 Gbit/s"),
    ("window-time", pair(["source transport_lbtrm_transmission_window_limit 65536"]), "65536 bytes are 52 ms"),
    ("window-time", pair(["context transport_lbtrm_data_rate_limit 100000000"]), "hint: portal A: source transport"),
    ("window-time", pair(["receiver transport_lbtrm_nak_generation_interval 20000"]), None),
    ("window-time", peer('<transmission-window size="65536"/>'), "<transmission-window>"),
    ("retransmit-rate", pair(["context transport_lbtrm_retransmit_rate_limit 10000000"]), "can take the whole rate"),
    ("retransmit-rate", pair(["context transport_lbtrm_retransmit_rate_limit 0"]), "no limit for repairs"),
    ("retransmit-rate", pair(["context transport_lbtrm_retransmit_rate_limit 100000"]), "1.0 % of the 10 Mbit/s"),
    ("retransmit-rate", pair(["context transport_lbtrm_data_rate_limit 20000000"]), None),
    ("retransmit-rate", pair(["context transport_lbtru_retransmit_rate_limit 10000000"]), "can take the whole rate"),
    ("nak-ignore", pair(["source transport_lbtru_ignore_interval 10000"]), "lbtru_ignore_interval: 10 s"),
    ("nak-times", pair(["receiver transport_lbtru_nak_generation_interval 300"]), "lbtru_nak_backoff"),
    ("window-time", pair(["context transport_lbtru_data_rate_limit 1000000000"]), "201 ms at 1 Gbit/s"),
    ("rate-quota", pair(["context transport_lbtru_rate_interval 5"]), "6250 bytes for each interval of 5 ms"),
    ("own-size", pair(["context transport_lbtru_receiver_datagram_max_size 1400"]), "1400 bytes, sources send 8192"),
    ("buffers", pair(["context transport_lbtru_receiver_socket_buffer 20000"]), "20000 bytes are 16.0 ms at 10 Mbit/s"),
    ("loss-check", pair(["receiver delivery_control_loss_check_interval 51000"]), "lbtru_activity_timeout above"),
    ("tsni", pair([LBTRU, "source transport_topic_sequence_number_info_active_threshold 29"]), "set it to 30"),
    ("tsni", pair(["receiver transport_lbtru_nak_generation_interval 50000"]), "set it to 70"),
    ("tsni", pair([LBTRU, "receiver transport_lbtrm_nak_generation_interval 2000",
                   "source transport_topic_sequence_number_info_active_threshold 22"]), None),
    ("retransmit-rate", peer('<peer-rate-limit retransmit="10000000"/>'), "<peer-rate-limit> retransmit"),
    ("rate-quota", pair(["context transport_lbtrm_rate_interval 5"]), "6250 bytes for each interval of 5 ms"),
    ("rate-quota", pair(["context transport_lbtrm_rate_interval 20"]), None),
    ("session-life", pair(["source transport_lbtrm_sm_maximum_interval 30000"]), "3 session message intervals"),
    ("session-life", pair(["source transport_lbtrm_sm_minimum_interval 20000"]), "below the minimum interval of 20 s"),
    ("session-life", pair(["receiver transport_lbtrm_nak_generation_interval 90000"]), "that are never reported"),
    ("session-life", pair(["receiver transport_lbtrm_preactivity_timeout 5000"]), "a chance to be heard"),
    ("session-life", pair(["receiver transport_lbtrm_activity_timeout 30000"]), None),
    ("session-life", pair(["receiver transport_lbtru_activity_timeout 20000"]), "3 session message intervals of 10 s"),
    ("session-life", pair(["receiver transport_lbtru_acknowledgement_interval 5000"]), "3 acknowledgement intervals"),
    ("session-life", pair(["source transport_lbtru_client_activity_timeout 1400"]), "set it to 1500, or receiver"),
    ("session-life", pair(["source transport_lbtru_client_activity_timeout 1500"]), None),
    ("session-life", pair(["receiver transport_lbtipc_activity_timeout 19999"]), "below two session message intervals"),
    ("session-life", pair(["source transport_lbtipc_sm_interval 40000"]), "sm_interval to 30000"),
    ("session-life", pair(["receiver transport_lbtipc_activity_timeout 20000"]), None),
    ("session-life", peer('<session-message activity-timeout="20000"/>'), "<session-message> activity-timeout"),
    ("unreliable", pair(["receiver transport_lbtrm_send_naks 0"]), "NAKs are switched off"),
    ("unreliable", pair([LBTRM, "context transport_lbtrm_data_rate_limit 0"]), "no rate limit"),
    ("unreliable", pair(["context transport_lbtrm_data_rate_limit 0"]), None),
    ("unreliable", pair(["receiver transport_lbtru_send_naks 0"]), "every lost datagram of LBT-RU stays lost"),
    ("unreliable", pair([LBTRU, "context transport_lbtru_data_rate_limit 0"]), "no rate limit for data of LBT-RU"),
    ("unreliable", pair([LBTRU, "context transport_lbtrm_data_rate_limit 0"]), None),
    ("loss-check", pair(["receiver delivery_control_loss_check_interval 50000"]), "before its losses are noticed"),
    ("loss-check", pair(["receiver delivery_control_loss_check_interval 3000"]), "losses are reported late"),
    ("loss-check", pair(["receiver delivery_control_loss_check_interval 2500"]), None),
    ("tsni", pair(["source transport_topic_sequence_number_info_active_threshold 10"]), "set it to 30"),
    ("tsni", pair(["receiver transport_tcp_activity_timeout 4000"]), "idle TCP sessions end for no reason"),
    ("tsni", pair(["receiver transport_tcp_activity_timeout 20000"]), None),
    ("buffers", pair(["context transport_lbtrm_receiver_socket_buffer 20000"]), "20000 bytes are 16.0 ms at 10 Mbit/s"),
    ("buffers", pair(["source transport_session_maximum_buffer 1000"]), "hold no datagram of 65535"),
    ("buffers", pair(["context resolver_multicast_receiver_socket_buffer 16384"]), "hold 2 datagrams"),
    ("buffers", pair(["context transport_lbtrm_receiver_socket_buffer 1048576"]), None),
    ("batching", pair(["source implicit_batching_minimum_length 100000"]), "is above the datagram size of 65535"),
    ("batching", pair(["source implicit_batching_minimum_length 100000"], xml="<smart-batch>1</smart-batch>"), None),
    ("batching", peer(xml="<max-datagram>4000</max-datagram>"), "min-length 8192 is above max-datagram 4000"),
    ("resolver-phases", pair(["receiver resolver_query_minimum_initial_interval 300"]), "below the shortest interval"),
    ("resolver-phases", pair([f"{scope} resolver_{word}_{name} 0" for scope, word in
                              (("source", "advertisement"), ("receiver", "query"))
                              for name in ("maximum_initial_interval", "sustain_interval")]), "never find a source"),
    ("resolver-phases", pair(["source resolver_advertisement_sustain_interval 0"]), None),
    ("resolver-rates", pair(["context resolver_initial_query_bps 10000"]), "below one datagram of 8192 bytes"),
    ("resolver-rates", pair(["context resolver_initial_query_bps 0"]), None),
    ("resolver-ttl", pair([*ALIVE, "context resolver_multicast_ttl 0"]), None),
    ("port-room", (*(endpoint(f"P{n}", n, [*ALIVE[1:], f"context resolver_unicast_daemon 192.0.2.{n}:1"])
                     for n in range(1, 7)),), "6 UDP ports are bound by portal P1, P2, P3, P4, P5, P6, 5 are there"),
    ("resolver-daemons", pair(ALIVE), None),
    ("resolver-daemons", pair([DAEMON]), "the first messages do not cross the DRO; set it to 1"),
    ("resolver-daemons", pair([*ALIVE, "context resolver_unicast_keepalive_interval 600"]),
     "1000 ms is below two keepalive intervals of 600 ms"),
    ("resolver-daemons", pair([*ALIVE, "context resolver_unicast_keepalive_interval 0"]), "0 sends no keepalives"),
    ("resolver-daemons", pair([*ALIVE, "context resolver_unicast_check_interval 201"]), "set it to 200 or less"),
    ("resolver-daemons", pair([*ALIVE, "context resolver_unicast_activity_timeout 0"]), None),
    ("resolver-daemons", pair([DAEMON, *SRS_ALONE]), None),
    ("resolver-reach", pair(["context resolver_unicast_daemon 127.0.0.1:15380"]),
     "127.0.0.1:15380 is on this host alone, the portal is at 192.0.2.10"),
    ("resolver-reach", pair([DAEMON]), None),
    ("resolver-reach", pair(["context resolver_service 127.0.0.1:1", "context default_interface 127.0.0.1"]), None),
    ("resolver-services", pair(SRS_ALONE), None),
    ("resolver-services", pair(SRS_ALONE[1:]), "1 switches topic resolution off"),
    ("resolver-services", pair([*SRS_ALONE, "context resolver_cache 0"]), "receivers that come later do not find it"),
    ("resolver-transport", pair([*SRS_ALONE, LBTRM]), "set it to tcp"),
    ("resolver-transport", pair([*ALIVE, LBTRM]), "set it to tcp"),
    ("resolver-transport", pair([*ALIVE, "context mim_address 239.1.1.1"]), "a group for immediate messages"),
    ("resolver-transport", pair([SRS_ALONE[0], LBTRM]), None),
    ("resolver-ttl", pair(["context resolver_multicast_ttl 0"]), "no other host hears this portal"),
    ("resolver-ttl", (endpoint("A", 1, ["context resolver_multicast_ttl 0"], interface="127.0.0.1"), endpoint("B", 2)),
     None),
    ("use-query", pair(xml=f'@<{RES}><topic-use-query timeout="60000"/></{RES}>'), "5 tries of 60 s take 300 s"),
    ("use-query", pair(xml=f'@<{RES}><pattern-use-query periodic-interval="10000"/></{RES}>'), "<pattern-use-query>"),
    ("use-query", pair(xml=f'@<{RES}><topic-use-query timeout="59999"/></{RES}>'), None),
    ("remote-interest", pair(xml='@<remote-topic timeout="60000" check-interval="1000"/>'), "is alive is dropped"),
    ("remote-interest", pair(xml='@<remote-pattern timeout="100000"/>'), "one lost repetition stops the flow"),
    ("remote-interest", pair(xml='@<remote-topic check-interval="400000"/>'), "for the longer of the two"),
    ("remote-interest", pair(xml='@<remote-topic timeout="120000"/>'), None),
    ("deletion-delay", pair(xml="<source-deletion-delay>0</source-deletion-delay>"), "takes to start again"),
    ("deletion-delay", pair(xml="<source-deletion-delay>600000</source-deletion-delay>"), "go on being advertised"),
    ("deletion-delay", pair(xml="<source-deletion-delay>500</source-deletion-delay>"), None),
    ("cost", pair(xml="<cost>50000000</cost>"), "no longer fits its field"),
    ("cost", pair(xml="<cost>100000</cost>"), None),
    ("queue", pair(xml="<max-queue>0</max-queue>"), "0 is no queue"),
    ("queue", pair(xml="<max-queue>10000</max-queue>"), "hold no datagram of 65535"),
    ("queue", pair([LBTRM], xml="<max-queue>10000</max-queue>"), None),
    ("queue", peer(xml="<max-queue>10000</max-queue>"), "hold no batch of 65500"),
    ("shared-memory", pair(xml="<max-queue>4000000000</max-queue>"), "this machine has 8192 MiB in /dev/shm"),
    ("shared-memory", peer(xml="<max-queue>4000000000</max-queue>"), "this machine has 8192 MiB in /dev/shm"),
    ("shared-memory", pair(xml="<max-queue>1000000000</max-queue>"), None),
    ("shared-memory", pair([LBTIPC, "source transport_lbtipc_transmission_window_size 2000000000"]),
     "9537 MiB for sessions of LBT-IPC"),
    ("shared-memory", pair([LBTIPC, "source transport_lbtipc_transmission_window_size 2000000000",
                            "source transport_lbtipc_id 20001"]), None),
    ("shared-memory", pair(["source transport_lbtipc_transmission_window_size 2000000000"]), None),
    ("acl", acl(ace("reject", ANY_TOPIC), ace("accept", "<topic>a</topic>")), "the entry in line 6 rejects all that"),
    ("acl", acl(ace("accept", "<pcre-pattern>^a</pcre-pattern>"), ace("reject", "<topic>abc</topic>")), "never"),
    ("acl", acl(ace("accept", ANY_TOPIC), ace("accept", "<topic>a</topic>")), "the entry changes nothing"),
    ("acl", acl(ace("reject", "<topic>a</topic>")), "no entry accepts anything"),
    ("acl", acl(ace("reject", '<source-ip comparison="ge" value="10.0.0.0"/><transport comparison="eq" value="tcp"/>'),
                ace("accept", '<transport comparison="eq" value="tcp"/><source-ip comparison="eq" value="10.0.0.9"/>')),
     "rejects all that this one matches"),
    ("acl", acl(ace("accept", '<tcp-source-port comparison="gt" value="9"/>'  # other transports have no such port
                    '<tcp-source-port comparison="lt" value="10"/><topic>a</topic>'), ace("accept", ANY_TOPIC)), None),
    ("acl", acl(ace("accept", '<transport comparison="eq" value="tcp"/><transport comparison="ne" value="tcp"/>'),
                ace("accept", ANY_TOPIC)), "never hold together"),
    ("acl", acl(ace("accept", "<topic>b</topic><pcre-pattern>^a</pcre-pattern>"), ace("accept", ANY_TOPIC)),
     "never hold together"),
    ("acl", acl(ace("reject", "<topic>a</topic>"), ace("accept", ANY_TOPIC)), None),
    ("acl", acl(ace("reject", "<pcre-pattern>^a</pcre-pattern>"), ace("accept", "<topic>b</topic>"),
                ace("accept", ANY_TOPIC), direction="outbound"), None),
    ("acl", acl(ace("reject", '<xport-id comparison="eq" value="9"/>'), ace("accept", "<topic>a</topic>")), None),
    ("acl", peer(xml='<acl><inbound><ace match="accept"><source-ip comparison="eq" value="10.0.0.1"/></ace>'
                     f'<ace match="accept">{ANY_TOPIC}</ace></inbound></acl>'), "never hold together"),
    ("keepalive", peer(xml='<gateway-keepalive interval="5000" timeout="9000"/>'), "is less than three intervals"),
    ("keepalive", peer(xml='<gateway-keepalive interval="0"/>'), "sends none"),
    ("keepalive", peer(xml='<gateway-keepalive interval="5000" timeout="15000"/>'), None),
]  # fmt: skip


def found(rule: str, config: DroConfig) -> list[Finding]:
    return [finding for finding in lint(config, MACHINE) if finding.rule == rule]


@pytest.mark.parametrize(("rule", "portals", "text"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)])
def test_a_rule(rule: str, portals: tuple[str, ...], text: str | None) -> None:
    findings = found(rule, config_of(*portals))
    if text is None:
        assert findings == []
        return
    assert any(text in str(finding) for finding in findings), [str(finding) for finding in findings]
    for finding in findings:
        assert finding.place.file == "dro.xml"
        assert finding.place.line > 3
        assert finding.remedy


def test_route_info() -> None:
    config = config_of(*pair(), daemon='<route-info timeout="1500" check-interval="2000"/>')
    assert [f.what for f in found("route-info", config)] == [
        "timeout 1.5 s is less than two propagation intervals of 1 s", "check-interval 2 s is above timeout 1.5 s",
    ]  # fmt: skip


def test_every_rule_is_shown_here_to_find_something_and_to_hold_its_tongue() -> None:
    finds = {rule for rule, _, text in CASES if text is not None} | {"route-info"}
    assert finds == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("transport", ["tcp", "lbtrm", "lbtru", "lbtipc"])
def test_the_defaults_of_the_guide_are_found_no_fault_with(transport: str) -> None:
    um = [f"source transport {transport}"]
    portals = endpoint("A", 1, um), endpoint("B", 2, um, interface=TWO["B"])
    assert lint(config_of(*portals), MACHINE) == []
    assert lint(config_of(*peer("<!-- all defaults -->")), MACHINE) == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/dro-*.xml")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_the_example_networks_are_found_no_fault_with(path: Path) -> None:
    try:
        config = load_dro(str(path), warn=lambda _: None)
    except ConfigError:
        assert path.parent.name == "unsupported-two-endpoints"
        return
    assert lint(config, Machine(shm_bytes=128 << 20, ephemeral_ports=(32768, 60999))) == []


def test_a_finding_names_the_line_of_the_option_in_its_own_file(tmp_path: Path) -> None:
    um = tmp_path / "a.cfg"
    um.write_text("# fast\ncontext transport_lbtrm_data_rate_limit 1000000000\n")
    text = FILE.format(
        portals=f"<endpoint><name>A</name><domain-id>1</domain-id><lbm-config>{um}</lbm-config></endpoint>", daemon=""
    )
    config = load(text, lookup=LOOKUP)
    finding = next(f for f in lint(config, MACHINE) if f.rule == "window-time")
    assert (finding.place.file, finding.place.line, finding.severity) == (str(um), 2, Severity.WARNING)
    assert re.match(
        re.escape(f"{um}:2: warning: portal A: source transport_lbtrm_transmission_window_size: "), str(finding)
    )


def test_a_long_list_of_entries_takes_bounded_time() -> None:
    aces = [ace("accept", f"<pcre-pattern>^t{n}\\.</pcre-pattern>") for n in range(1000)]
    assert found("acl", config_of(*acl(*aces))) == []


def test_the_guide_for_operators_has_the_table_of_rules() -> None:
    assert rules_table() in DOCS.read_text(encoding="utf-8")

"""The samples of the guide's chapters 4 and 7, one by one: what each of their shapes does here.

A sample shows one element among dots, often with a slip in the markup. Each row has the shape of one, with names and
figures of its own and what the dots stand for filled in, and what becomes of it: taken, taken with a warning, or
refused. Which slips are forgiven is decided in `test_decisions.py`. Samples of whole networks: `test_examples.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dro.config.dro_xml.acl import Acl, Session
from dro.config.dro_xml.model import DroConfig
from dro.errors import ConfigError
from tests.builders.dro_file import load
from tests.config.dro_xml.test_examples import EXAMPLES

ACCEPTOR = "<acceptor><listen-port>26200</listen-port></acceptor>"
TCP = Session("tcp", source_ip=0x7F000001, tcp_source_port=15001)
NOT_XML = "not well-formed XML"


def whole(daemon: str = "", portals: str = "") -> str:
    plain = "<endpoint><name>W1</name><domain-id>11</domain-id></endpoint>"
    return f'<tnw-gateway version="1.0"><daemon>{daemon}</daemon><portals>{portals or plain}</portals></tnw-gateway>'


def endpoint(inner: str) -> str:
    return whole(portals=f"<endpoint><name>W1</name><domain-id>11</domain-id>{inner}</endpoint>")


def peer(inner: str = "", tcp: str = ACCEPTOR) -> str:
    return whole(portals=f"<peer><name>W2</name><single-tcp>{tcp}</single-tcp>{inner}</peer>")


def tcp(inner: str) -> str:
    return peer(tcp=inner if "acceptor" in inner or "initiator" in inner else f"{inner}{ACCEPTOR}")


def tls(inner: str) -> str:
    needed = "".join(
        f"<{name}>{value}</{name}>"
        for name, value in (("certificate", "w.pem"), ("certificate-key", "w.key"))
        if f"<{name}>" not in inner
    )
    return tcp(f"<tls>{needed}{inner}</tls>")


def udp(inner: str) -> str:
    return peer(f"<udp>{'' if '<port>' in inner else '<port>26201</port>'}{inner}</udp>")


def acl(inner: str, direction: str = "inbound") -> str:
    return endpoint(f"<acl><{direction}>{inner}</{direction}></acl>")


def ace(inner: str) -> str:
    return acl(f'<ace match="accept">{inner}</ace>')


def resolution(inner: str) -> str:
    return endpoint(f"<topic-resolution>{inner}</topic-resolution>")


def statistics(inner: str) -> str:
    return whole(f'<daemon-monitor topic="w.stats"><lbm-config>/dev/null</lbm-config>{inner}</daemon-monitor>')


Look = Callable[[DroConfig], object]


@dataclass(frozen=True)
class Sample:
    """`section` of the guide; `says`: part of a warning, or of the error with `is_refused`; `look` at the result."""

    section: str
    text: str
    says: str = ""
    is_refused: bool = False
    look: Look = bool
    is_: object = True

    def __str__(self) -> str:
        return self.section


def refused(section: str, text: str, says: str) -> Sample:
    return Sample(section, text, says, is_refused=True)


def verdicts(*topics: str) -> Look:
    def judge(config: DroConfig) -> object:
        made = Acl.of(config.portals[0].acl)
        return [made.inbound(topic, TCP).accept for topic in topics]

    return judge


CONDITION = '<ace match="accept"><{} comparison="equal" value="{}"/></ace>'
INTERVALS = '<group name="default" ivl="7"/><group name="portal-config" ivl="40"/>'
REQUESTS = '<remote-snapshot-request allow="1"/><remote-config-changes-request allow="0"/>'
MONITOR = '<monitor interval={}><transport-module module="lbm" options="{}"/><format-module options="{}"/></monitor>'
OPTION = '<lbm-attributes><option scope="context" name="request_tcp_interface" value="192.0.2.10"/></lbm-attributes>'
LIST = "<pcre-pattern>area/.*/</pcre-pattern><pcre-pattern>area/north/</pcre-pattern>"
USE_QUERY = '<{0} max="4" periodic-interval="200000" timeout="2000"><rate-limit/></{0}>'

SAMPLES = [
    # 4.2.3: access control
    Sample("4.2.3 accept", acl('<ace match="accept"><topic>W</topic></ace>'),
           look=verdicts("W", "X"), is_=[True, False]),
    Sample("4.2.3 reject", acl('<ace match="reject"><topic>W</topic></ace><ace match="accept"><topic>.*</topic></ace>'),
           "'.*' is taken as every topic", look=verdicts("W", "X"), is_=[False, True]),
    Sample("4.2.3 order",
           whole(portals="<endpoint><name>W1</name><lbm-config>/dev/null</lbm-config><domain-id>11</domain-id><acl>"
                 '<inbound><ace match="accept"><topic>OWN.w1</topic></ace><ace match="reject">'
                 r"<pcre-pattern>^OWN\..*</pcre-pattern></ace>"
                 '<ace match="accept"><pcre-pattern>.*</pcre-pattern></ace></inbound></acl></endpoint>'),
           "<domain-id>: should stand before <lbm-config>",
           look=verdicts("OWN.w1", "OWN.w2", "OTHER"), is_=[True, False, True]),
    # 4.4.1: names of contexts
    refused("4.4.1", whole(portals="<endpoint><name>W1</name><domain-id>11</domain-id><receiver-context-name>w"
                           "</source-context-name></endpoint>"), NOT_XML),
    # 7.1: the outline has elements that never end
    refused("7.1", peer("<max-queue><max-datagram><batching><min-length><batch-interval></batching>"), NOT_XML),
    refused("7.2 invalid", f"{LIST}<topic>health</topic>", NOT_XML),
    Sample("7.2 valid", acl(f'<ace match="accept">{LIST}<topic>health</topic></ace>')),
    Sample("7.3.1", whole()),
    Sample("7.3.2", whole(), look=lambda c: len(c.portals)),
    Sample("7.3.3", peer(), look=lambda c: [p.name for p in c.peers], is_=["W2"]),
    Sample("7.3.4", statistics(f"<publishing-interval>{INTERVALS}</publishing-interval>"),
           look=lambda c: c.daemon.daemon_monitor and c.daemon.daemon_monitor.publishing.interval_s("portal-config"),
           is_=40),
    Sample("7.3.5", statistics(f"<publishing-interval>{INTERVALS}</publishing-interval>"),
           look=lambda c: c.daemon.daemon_monitor and c.daemon.daemon_monitor.publishing.interval_s("malloc-info"),
           is_=7),
    Sample("7.3.6", peer('<gateway-keepalive idle="no" interval="1500"/>'), "interval 1500 is short",
           look=lambda c: (c.peers[0].keepalive.only_when_idle, c.peers[0].keepalive.interval_ms), is_=(False, 1500)),
    Sample("7.3.7", endpoint('<context-query periodic-interval="9000" max-contexts="9" interval="90" timeout="99"/>'),
           look=lambda c: c.portals[0].context_query.timeout_s, is_=99),
    Sample("7.3.8", endpoint('<sqn-window size="2048" increment="256"/>'),
           look=lambda c: c.portals[0].sqn_window.increment, is_=256),
    refused("7.3.9", endpoint("<receiver-context-name>w-in</source-context-name>"), NOT_XML),
    Sample("7.3.10", endpoint("<source-context-name>w-out</source-context-name>"),
           look=lambda c: c.portals[0].source_context_name, is_="w-out"),
    refused("7.3.19", acl("<ace><topic>W</topic></ace>"), "<ace>: attribute match is missing"),
    refused("7.3.20", acl("<ace><pcre-pattern>^W[12]$</pcre-pattern></ace>", "outbound"), "attribute match is missing"),
    refused("7.3.21", acl('<ace match="accept"><topic>W</topic><transport value=lbt-rm comparison=eq/></ace>'),
            NOT_XML),
    Sample("7.3.22", acl(CONDITION.format("xport-id", 15001))),
    Sample("7.3.23", acl(CONDITION.format("tcp-source-port", 15001)), look=verdicts("W"), is_=[True]),
    Sample("7.3.24", acl(CONDITION.format("udp-destination-port", 15001))),
    Sample("7.3.25", acl(CONDITION.format("udp-source-port", 15001))),
    refused("7.3.26", acl(CONDITION.format("multicast-group", 15001)), "'15001' is not an IPv4 address"),
    refused("7.3.27", acl(CONDITION.format("source-ip", 15001)), "'15001' is not an IPv4 address"),
    Sample("7.3.28", acl(CONDITION.format("transport", "lbtrm")), look=verdicts("W"), is_=[False]),
    Sample("7.3.30 lines", ace("<pcre-pattern>\n  ^W1.*\n</pcre-pattern>"), look=verdicts("W12", " W12"),
           is_=[True, False]),
    Sample("7.3.30 blank", ace('<pcre-pattern xml:space="preserve"> </pcre-pattern>'), look=verdicts("a b", "ab"),
           is_=[True, False]),
    Sample("7.3.31 trimmed", ace("<topic> W </topic>"), look=verdicts("W", "W "), is_=[True, False]),
    Sample("7.3.31 preserved", ace('<topic xml:space="preserve">W </topic>'), look=verdicts("W", "W "),
           is_=[False, True]),
    refused("7.3.32", acl("<ace><topic>W</topic></ace>"), "<ace>: attribute match is missing"),
    Sample("7.3.33", endpoint(OPTION), look=lambda c: c.portals[0].um.get_interface("context", "request_tcp_interface"),
           is_="192.0.2.10"),
    Sample("7.3.34", endpoint(OPTION.replace("<option", '<option name="response_tcp_interface" scope="context" '
                                             'value="127.0.0.1"/><option'))),
    Sample("7.3.35", endpoint("<lbm-config>/dev/null</lbm-config>"),
           look=lambda c: c.portals[0].lbm_config, is_=("/dev/null",)),
    *(
        Sample(section, peer("<batching><min-length>2000</min-length><batch-interval>300</batch-interval></batching>"),
               look=lambda c: (c.peers[0].batch_min_bytes, c.peers[0].batch_interval_ms), is_=(2000, 300))
        for section in ("7.3.36", "7.3.37", "7.3.38")
    ),
    Sample("7.3.39", peer("<max-datagram>40000</max-datagram>"),
           look=lambda c: c.peers[0].max_datagram_bytes, is_=40000),
    Sample("7.3.40", peer("<smart-batch>1</smart-batch><batching><min-length>2000</min-length></batching>"),
           look=lambda c: c.peers[0].smart_batch),
    Sample("7.3.41", endpoint("<max-queue>700000</max-queue>"),
           look=lambda c: c.portals[0].max_queue_bytes, is_=700000),
    Sample("7.3.42", endpoint("<source-deletion-delay>3000</source-deletion-delay>"),
           look=lambda c: c.portals[0].source_deletion_delay_ms, is_=3000),
    Sample("7.3.43", udp("<port>26500</port>"), look=lambda c: c.peers[0].udp and c.peers[0].udp.port, is_=26500),
    Sample("7.3.44", udp('<connect attempt-interval="300" max-attempts="5"/>'),
           look=lambda c: c.peers[0].udp and c.peers[0].udp.connect_attempts, is_=5),
    Sample("7.3.45", udp('<session-message min-interval="300" max-interval="9000" activity-timeout="50000"/>'),
           look=lambda c: c.peers[0].udp and c.peers[0].udp.activity_timeout_ms, is_=50000),
    Sample("7.3.46", udp('<nak-handling initial-backoff-interval="10" backoff-interval="300"\n suppress-interval="900" '
                         'generation-interval="9000"\n ignore-interval="80" send-naks="no"/>'),
           look=lambda c: c.peers[0].udp and c.peers[0].udp.send_naks, is_=False),
    Sample("7.3.47", udp('<peer-rate-limit data="20000000" retransmit="4000000" interval="50"/>'),
           look=lambda c: c.peers[0].udp and c.peers[0].udp.rate_interval_ms, is_=50),
    Sample("7.3.48", udp('<transmission-window size="30000000" limit="40000000"/>'),
           look=lambda c: c.peers[0].udp and c.peers[0].udp.window_limit_bytes, is_=40000000),
    Sample("7.3.49", udp("<coalesce-threshold>12</coalesce-threshold>"),
           look=lambda c: c.peers[0].udp and c.peers[0].udp.coalesce_threshold, is_=12),
    Sample("7.3.50", udp("<multiple-receive-max-datagrams>\n  20\n</multiple-receive-max-datagrams>"),
           look=lambda c: c.peers[0].udp and c.peers[0].udp.datagrams_per_read, is_=20),
    Sample("7.3.51", tcp("<send-buffer>200000</send-buffer>"),
           look=lambda c: c.peers[0].tcp.send_buffer_bytes, is_=200000),
    Sample("7.3.52", tcp("<receive-buffer>200000</receive-buffer>"),
           look=lambda c: c.peers[0].tcp.receive_buffer_bytes, is_=200000),
    *(
        Sample(section, tcp("<initiator><address>192.0.2.91</address><port>26700</port></initiator>"),
               look=lambda c: c.peers[0].tcp.initiator and c.peers[0].tcp.initiator.address, is_="192.0.2.91")
        for section in ("7.3.53", "7.3.57", "7.3.58")
    ),
    Sample("7.3.54", tcp(f"<interface>192.0.2.10/24</interface>{ACCEPTOR}"),
           look=lambda c: (c.peers[0].tcp.interface, c.peers[0].tcp.listen_port), is_=("192.0.2.10", 26200)),
    refused("7.3.55", tcp("<acceptor><listen-port>26200</port></acceptor>"), NOT_XML),
    Sample("7.3.56", tcp(ACCEPTOR), look=lambda c: c.peers[0].tcp.listen_port, is_=26200),
    Sample("7.3.59", tls("<certificate>w.pem</certificate><certificate-key>w.key</certificate-key>"
                         "<certificate-key-password>\n four words in line\n</certificate-key-password>"
                         "<trusted-certificates>others.pem</trusted-certificates>"),
           look=lambda c: c.peers[0].tcp.tls and c.peers[0].tcp.tls.certificate_key_password, is_="four words in line"),
    refused("7.3.60", tls("<cipher-suites>AES256-SHA256<cipher-suites>"), NOT_XML),
    refused("7.3.61", tls("<trusted-certificates>others.pem<trusted-certificates>"), NOT_XML),
    Sample("7.3.62", tls("<certificate-key-password>\n four words\n</certificate-key-password>"),
           look=lambda c: c.peers[0].tcp.tls and c.peers[0].tcp.tls.certificate_key_password, is_="four words"),
    Sample("7.3.63", tls("<certificate-key>other.key</certificate-key>"),
           look=lambda c: c.peers[0].tcp.tls and c.peers[0].tcp.tls.certificate_key, is_="other.key"),
    Sample("7.3.64", tls("<certificate>other.pem</certificate><certificate-key>w.key</certificate-key>"),
           look=lambda c: c.peers[0].tcp.tls and c.peers[0].tcp.tls.certificate, is_="other.pem"),
    Sample("7.3.65", tcp("<compression>LZ4</compression>"), look=lambda c: c.peers[0].tcp.compression, is_="LZ4"),
    Sample("7.3.66", tcp("<nodelay/>"), look=lambda c: c.peers[0].tcp.nodelay),
    Sample("7.3.67", tcp("<keepalive/>"), look=lambda c: c.peers[0].tcp.keepalive),
    Sample("7.3.68", tcp("<interface>192.0.2.10/24</interface>"),
           look=lambda c: c.peers[0].tcp.interface, is_="192.0.2.10"),
    Sample("7.3.71", peer().replace("<single-tcp>", '<sourcemap size="65536"/><single-tcp>'),
           look=lambda c: c.peers[0].sourcemap_size, is_=65536),
    Sample("7.3.72", endpoint("<cost>33</cost>"), look=lambda c: c.portals[0].cost, is_=33),
    Sample("7.3.73", whole("<name>WEST</name>"), look=lambda c: c.daemon.name, is_="WEST"),
    Sample("7.3.74", endpoint("<cost>1</cost>"), look=lambda c: c.portals[0].domain_id, is_=11),
    Sample("7.3.75", endpoint('<remote-pattern check-interval="70000" max-patterns="70" timeout="240000"/>'),
           look=lambda c: c.portals[0].remote_pattern.max, is_=70),
    Sample("7.3.76", endpoint('<remote-topic check-interval="70000" max-topics="70" timeout="240000"/>'),
           look=lambda c: c.portals[0].remote_topic.max, is_=70),
    Sample("7.3.78", resolution("<initial-request><rate-limit/></initial-request>"),
           "<rate-limit>: has no function here, ignored"),
    refused("7.3.79", resolution('<initial-request duration="12" periodic-interval="900"/></topic-use-query>'),
            NOT_XML),
    Sample("7.3.80", resolution('<domain-route min-interval="200" max-interval="900">'
                                '<rate-limit bps="0" objects-per-second="40"/></domain-route>'),
           look=lambda c: c.portals[0].topic_resolution.domain_route.rate_limit.objects_per_second, is_=40),
    refused("7.3.81", resolution('<topic-use-query max="4" timeout="2000"/><rate-limit bps="9000"/></topic-use-query>'),
            NOT_XML),
    *(
        Sample(section, resolution(f'<{name} min-interval="900" max-interval="80000"><rate-limit/></{name}>'))
        for section, name in (("7.3.82", "remote-pattern-interest"), ("7.3.83", "remote-topic-interest"))
    ),
    Sample("7.3.84", resolution(USE_QUERY.format("pattern-use-query")),
           look=lambda c: c.portals[0].topic_resolution.pattern_use_query.max, is_=4),
    Sample("7.3.85", resolution(USE_QUERY.format("topic-use-query")),
           look=lambda c: c.portals[0].topic_resolution.topic_use_query.max, is_=4),
    Sample("7.3.86", endpoint("<hotlink-index>0</hotlink-index>"), look=lambda c: c.portals[0].hotlink_index, is_=0),
    Sample("7.3.87", endpoint("<cost>1</cost>"), look=lambda c: c.portals[0].domain_id, is_=11),
    Sample("7.3.88", whole("<name>WEST</name>")),
    Sample("7.3.89", whole('<route-recalculation backoff-interval="4000" warning-interval="9000"/>'),
           look=lambda c: c.daemon.route_recalculation.backoff_interval_ms, is_=4000),
    Sample("7.3.90", whole('<route-info propagation-interval="900" check-interval="700" timeout="5000" '
                           'max-hop-count="50"/>'), look=lambda c: c.daemon.route_info.max_hop_count, is_=50),
    refused("7.3.91", whole("<xml-config>no-such-um.xml</xml-config>"), "file 'no-such-um.xml' does not exist"),
    *(
        Sample(section, statistics(f"<publishing-interval>{INTERVALS}</publishing-interval>{REQUESTS}"),
               look=lambda c: c.daemon.daemon_monitor and (c.daemon.daemon_monitor.answers_snapshots,
                                                           c.daemon.daemon_monitor.obeys_changes), is_=(True, False))
        for section in ("7.3.93", "7.3.94", "7.3.95")
    ),
    Sample("7.3.96", whole("<web-monitor>*:26800</web-monitor>"),
           look=lambda c: c.daemon.web_monitor and c.daemon.web_monitor.port, is_=26800),
    Sample("7.3.97", whole(MONITOR.format('"20"', "config=/dev/null;topic=w", "config=/w.cfg;separator=|")),
           "options: 'config' is not known, ignored",
           look=lambda c: c.daemon.monitor and (c.daemon.monitor.topic, c.daemon.monitor.separator), is_=("w", "|")),
    Sample("7.3.98", whole(MONITOR.format('"20"', "config=/dev/null;topic=w", "separator=!")),
           look=lambda c: c.daemon.monitor and c.daemon.monitor.separator, is_="!"),
    refused("7.3.99", whole(MONITOR.format("20", "config=/w.cfg;topic=w", "separator=!")), NOT_XML),
    refused("7.3.99 options", whole(MONITOR.format("20", "config=/w.cfg;context|request_tcp_interface=192.0.2.10", "")),
            NOT_XML),
    refused("7.3.100", whole('<patternmap hash-function="murmur2" size="131111">'), NOT_XML),
    refused("7.3.101", whole('<topicmap hash-function="murmur2" size="131111">'), NOT_XML),
    Sample("7.3.102", whole("<lbm-license-file>w.txt</lbm-license-file>"),
           look=lambda c: c.daemon.license_file, is_="w.txt"),
    Sample("7.3.103", whole(r"<pidfile>\w\run\w.pid</pidfile>"), look=lambda c: c.daemon.pidfile, is_=r"\w\run\w.pid"),
    Sample("7.3.104", whole("<gid>4321</gid>"), look=lambda c: c.daemon.gid, is_=4321),
    Sample("7.3.105", whole("<uid>4322</uid>"), look=lambda c: c.daemon.uid, is_=4322),
    Sample("7.3.106", whole('<log type="syslog"/>'), look=lambda c: c.daemon.log.type, is_="syslog"),
]  # fmt: skip
# Sections that have samples. Those of 4.3 are networks, those of 4.4.2 to 4.4.5 UM files.
IN_CHAPTER_7 = [n for n in range(1, 107) if n not in {*range(11, 19), 29, 69, 70, 77, 92}]
NETWORKS = {
    "4.3.1": "direct-link", "4.3.2": "peer-link", "4.3.3": "transit-trd", "4.3.4": "parallel-links",
    "4.3.5": "loop-and-spur", "4.3.6": "star-central-dro", "4.3.7": "mesh",
}  # fmt: skip


def test_every_section_with_a_sample_has_a_row() -> None:
    rows = {sample.section.partition(" ")[0] for sample in SAMPLES}
    assert rows == {"4.2.3", "4.4.1", "7.1", "7.2", *(f"7.3.{n}" for n in IN_CHAPTER_7)}


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample.is_refused], ids=str)
def test_a_sample_that_cannot_be_meant_is_refused(sample: Sample) -> None:
    with pytest.raises(ConfigError) as caught:
        load(sample.text)
    assert sample.says in str(caught.value)
    assert str(caught.value).startswith("dro.xml:")


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if not sample.is_refused], ids=str)
def test_a_sample_means_what_it_shows(sample: Sample) -> None:
    warnings: list[str] = []
    assert sample.look(load(sample.text, warnings)) == sample.is_
    told = [warning for warning in warnings if "nothing to forward to" not in warning]
    if sample.says:
        assert any(sample.says in warning for warning in told)
    else:
        assert told == []


@pytest.mark.parametrize(("section", "folder"), NETWORKS.items())
def test_a_network_of_the_guide_is_among_the_examples(section: str, folder: str) -> None:
    """Their files load and mean what `topology.json` says: `test_examples.py`."""
    topology = json.loads((EXAMPLES / folder / "topology.json").read_text())
    assert section in json.dumps(topology)
    assert len(topology["dros"]) == len(list((EXAMPLES / folder).glob("dro-*.xml")))


def test_networks_of_relative_names_of_the_text_form_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.3.1 in its text form: `lbn-config`, `module="lbn"`, `lbn-license-file`, and UM files with one resolver port."""
    monkeypatch.chdir(tmp_path)
    for trd in (1, 2):
        (tmp_path / f"w{trd}.cfg").write_text(
            "## Options ##\ncontext request_tcp_interface 192.0.2.0/24\ncontext resolver_multicast_port 13900\n"
            f"context resolver_multicast_interface 192.0.2.0/24\ncontext resolver_multicast_address 225.9.8.{trd}\n"
        )
    daemon = '<log type="console"/><lbn-license-file>w.txt</lbn-license-file><monitor interval="6">'
    daemon += '<transport-module module="lbn" options="config=w1.cfg"/></monitor><web-monitor>*:26801</web-monitor>'
    portals = "".join(
        f"<endpoint><name>W{n}</name><domain-id>{n}</domain-id><lbn-config>w{n}.cfg</lbn-config></endpoint>"
        for n in (1, 2)
    )
    warnings: list[str] = []
    config = load(whole(daemon, portals), warnings)
    groups = [portal.um.value("context", "resolver_multicast_incoming_address") for portal in config.portals]
    assert groups == ["225.9.8.1", "225.9.8.2"]
    assert len(warnings) == 3  # a slip that comes again is told once
    assert all("taken as" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("daemon", "each"),
    [
        ("", "<lbm-config>w.cfg</lbm-config>"),  # 4.3.3, G1: the files of both TRDs say the same
        ("<xml-config>w.xml</xml-config>", ""),  # 4.4.5: one file gives the channel to three endpoints
    ],
)
def test_two_files_of_the_guide_are_refused_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: str, each: str
) -> None:
    """Their TRDs have one topic resolution channel, and so are one TRD with several domain ids, which 3.8 forbids."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.cfg").write_text("context resolver_multicast_address 225.9.8.1\n")
    (tmp_path / "w.xml").write_text(
        '<um-configuration version="1.0"><applications><application><contexts><context><options type="context">'
        '<option name="resolver_multicast_address" default-value="225.9.8.1"/></options></context></contexts>'
        "</application></applications></um-configuration>"
    )
    portals = "".join(f"<endpoint><name>W{n}</name><domain-id>{n}</domain-id>{each}</endpoint>" for n in (1, 2))
    with pytest.raises(ConfigError, match=r"resolver channel 225\.9\.8\.1:\d+ on \S+ is already used by the endpoint"):
        load(whole(daemon, portals))

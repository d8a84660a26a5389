"""Every value of the DRO file has an effect that shows, or is refused or told by name: never silence.

For each row of the table of elements that is in use, two files that differ in this value alone make a difference in
the part of the program that uses it; the same file twice makes none. All other rows are refused or warned about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dro.config.dro_xml.model import DroConfig, statistics_on
from dro.config.dro_xml.unsupported import ConfigWarning, unsupported
from dro.config.reading.problems import ConfigErrors
from dro.config.reading.schema import XML_SPACE, elements
from dro.config.report.effects import EffectKind, Row, effect_of, rows
from dro.errors import ConfigError, ResourceError
from dro.log.handler import Settings
from supervisor.host.pidfile import take_pid_file
from supervisor.host.privileges import identity_of
from supervisor.host.run_dirs import make_run_dirs
from supervisor.monitor.server import address_of
from supervisor.parent.log_settings import log_settings
from tests.builders import datagram_scenes, peer_scenes
from tests.builders import effect_scenes as scenes
from tests.builders.dro_file import OTHER_KEYS, ROUTE_KEYS, load
from tests.builders.one_element import document, path_to, sample

Scene = Callable[[str, Path], object]
_serial = count()


def first(scene: Callable[..., object]) -> Scene:
    """Of the first endpoint."""
    return lambda text, _: scene(load(text).portals[0])


def whole(scene: Callable[[DroConfig], object]) -> Scene:
    return lambda text, _: scene(load(text))


def on_a_site(text: str, folder: Path) -> object:
    return scenes.dro(folder / str(next(_serial)), text)


def model(text: str, _folder: Path) -> object:
    """For what the reader itself uses."""
    try:
        return load(text)
    except ConfigError as e:
        return str(e)


def identity(text: str, _folder: Path) -> object:
    daemon = load(text).daemon
    try:
        return identity_of(daemon.uid, daemon.gid)
    except ResourceError as e:  # only root can become another user
        return str(e)


def pid_file(text: str, folder: Path) -> object:
    held = take_pid_file(folder / load(text).daemon.pidfile)
    try:
        return sorted(path.name for path in folder.iterdir())
    finally:
        held.remove()


def listener(text: str, _folder: Path) -> object:
    try:
        where = load(text).daemon.web_monitor
    except ConfigErrors as e:
        return str(e)
    assert where is not None
    return address_of(where)


def published(text: str, _folder: Path) -> object:
    """What the worker that publishes statistics is given."""
    config = load(text)
    assert statistics_on(config)
    return config.daemon.monitor, config.daemon.daemon_monitor, [portal.publishing for portal in config.all_portals]


def run_directory(text: str, _folder: Path) -> object:
    with TemporaryDirectory(prefix="e") as made:  # the path of a socket is short
        bases = Path(made, "run"), Path(made, "shm")
        for base in bases:
            base.mkdir()
        run_dirs = make_run_dirs(load(text).daemon.name, run_base=bases[0], shm_base=bases[1])
        run_dirs.remove()
        return run_dirs.run.name


def log(text: str, _folder: Path) -> object:
    return log_settings(load(text).daemon.log, Settings())


DOCUMENT = """<tnw-gateway version="{version}">
<daemon>{daemon}</daemon>
<portals>
<endpoint><name>{name}</name><domain-id>{domain}</domain-id>{both}</endpoint>
<endpoint><name>E2</name><domain-id>2</domain-id>{both}{second}<lbm-attributes>
<option scope="context" name="resolver_multicast_address" value="239.1.1.1"/></lbm-attributes></endpoint>
</portals></tnw-gateway>"""
SITE = """<tnw-gateway version="{version}">
<daemon>{daemon}<route-info check-interval="50"/><route-recalculation backoff-interval="100"/></daemon>
<portals>
<endpoint><name>{name}</name><domain-id>{domain}</domain-id>{both}
<lbm-config>{{folder}}/trd1.cfg</lbm-config></endpoint>
<endpoint><name>E2</name><domain-id>2</domain-id>{both}{second}
<lbm-config>{{folder}}/{um}.cfg</lbm-config></endpoint>
</portals></tnw-gateway>"""


def fill(template: str, **parts: str) -> str:
    return template.format(
        **(
            {"version": "1.0", "daemon": "", "name": "E1", "domain": "1", "both": "", "second": "", "um": "trd2"}
            | parts
        )
    )


@dataclass(frozen=True)
class Probe:
    """Two values of a row, the file around them with an @ in their place, and the scene in which they show."""

    row: Row
    values: tuple[str, str]
    template: str
    scene: Scene
    note: str = ""
    shows: tuple[str, ...] = ()  # on a site: what differs, and nothing else

    def text(self, value: str) -> str:
        return self.template.replace("@", value)

    def __str__(self) -> str:
        return "-".join(part for part in (*self.row, self.note) if part)


# Topic resolution and sweeps: small figures everywhere, so that 45 s show them all.
TRD_BASE = {
    ("topic-use-query", "timeout"): "1000", ("topic-use-query", "max"): "3",
    ("topic-use-query", "periodic-interval"): "9000",
    ("pattern-use-query", "timeout"): "1000", ("pattern-use-query", "max"): "3",
    ("pattern-use-query", "periodic-interval"): "9000",
    ("remote-topic-interest", "min-interval"): "1000", ("remote-topic-interest", "max-interval"): "8000",
    ("remote-pattern-interest", "min-interval"): "1000", ("remote-pattern-interest", "max-interval"): "8000",
    ("domain-route", "min-interval"): "1000", ("domain-route", "max-interval"): "8000",
    ("initial-request", "periodic-interval"): "1000", ("initial-request", "duration"): "5",
    ("remote-topic", "check-interval"): "4000", ("remote-topic", "max-topics"): "100",
    ("remote-topic", "timeout"): "15000",
    ("remote-pattern", "check-interval"): "4000", ("remote-pattern", "max-patterns"): "100",
    ("remote-pattern", "timeout"): "15000",
}  # fmt: skip
TRD_OTHER = {
    "timeout": "2500", "max": "2", "periodic-interval": "5000", "min-interval": "3000", "max-interval": "4000",
    "duration": "8", "check-interval": "7000", "max-topics": "10", "max-patterns": "10",
}  # fmt: skip
LIMITED = ("topic-use-query", "pattern-use-query", "remote-topic-interest", "remote-pattern-interest", "domain-route")


def resolution(row: Row, value: str, limit: str = "") -> str:
    """The endpoint with all of `TRD_BASE`, one value changed; `limit`: a rate limit inside the element of `row`."""
    values = TRD_BASE | ({} if limit else {row: value})
    parts: dict[str, str] = {}
    for element in dict.fromkeys(name for name, _ in values):
        given = "".join(f' {a}="{v}"' for (name, a), v in values.items() if name == element)
        inner = limit if element == row[0] else ""
        parts[element] = f"<{element}{given}>{inner}</{element}>"
    sweeps = parts.pop("remote-topic") + parts.pop("remote-pattern")
    return fill(DOCUMENT, both=f"<topic-resolution>{''.join(parts.values())}</topic-resolution>{sweeps}")


def of_resolution() -> Iterator[Probe]:
    for row, base in TRD_BASE.items():
        yield Probe(row, (base, TRD_OTHER[row[1]]), resolution(row, "@"), first(scenes.trd))
    for element in LIMITED:
        for attribute, other, values in (
            ("bps", "objects-per-second", ("0", "9000")),
            ("objects-per-second", "bps", ("0", "40")),
        ):
            text = resolution((element, ""), "", f'<rate-limit {attribute}="@" {other}="0"/>')
            yield Probe(("rate-limit", attribute), values, text, first(scenes.trd), element)


def of_contexts() -> Iterator[Probe]:
    for name, values in (
        ("periodic-interval", ("300000", "100000")), ("max-contexts", ("20", "7")), ("interval", ("200", "900")),
        ("timeout", ("900", "500")),
    ):  # fmt: skip
        text = fill(DOCUMENT, both=f'<context-query {name}="@"/>')
        yield Probe(("context-query", name), values, text, first(scenes.contexts))


def acl(inbound: str = "", outbound: str = "") -> str:
    lists = [f"<{name}>{text}</{name}>" for name, text in (("inbound", inbound), ("outbound", outbound)) if text]
    return f"<acl>{''.join(lists)}</acl>"


def ace(condition: str, match: str = "accept") -> str:
    return f'<ace match="{match}">{condition}</ace>'


def of_access() -> Iterator[Probe]:
    judge = first(scenes.access)
    one = ace("<topic>A</topic>")
    portal = fill(DOCUMENT, both="@")
    yield Probe(("acl", ""), ("", acl(one)), portal, judge)
    yield Probe(("inbound", ""), ("", acl(inbound=one)), portal, judge)
    yield Probe(("outbound", ""), ("", acl(outbound=one)), portal, judge)
    both = ace("<topic>A</topic>", "@") + ace("<pcre-pattern>.</pcre-pattern>")
    yield Probe(("ace", "match"), ("accept", "reject"), fill(DOCUMENT, both=acl(both)), judge)

    def inbound(condition: str) -> str:
        return fill(DOCUMENT, both=acl(ace(condition)))

    for kind in ("topic", "pcre-pattern", "regex-pattern"):
        yield Probe((kind, ""), ("A", "B"), inbound(f"<{kind}>@</{kind}>"), judge)
        spaced = inbound(f'<{kind} xml:space="@">A  B</{kind}>')
        yield Probe((kind, XML_SPACE), ("default", "preserve"), spaced, judge)
    for kind, values in (
        ("transport", ("tcp", "lbt-rm")), ("source-ip", ("127.0.0.1", "127.0.0.10")),
        ("multicast-group", ("239.1.1.1", "239.1.1.10")), ("udp-source-port", ("12090", "12190")),
        ("udp-destination-port", ("14400", "14500")), ("tcp-source-port", ("14371", "14399")),
        ("xport-id", ("20000", "20009")),
    ):  # fmt: skip
        yield Probe((kind, "value"), values, inbound(f'<{kind} value="@" comparison="eq"/>'), judge)
        yield Probe((kind, "comparison"), ("eq", "ne"), inbound(f'<{kind} value="{values[0]}" comparison="@"/>'), judge)


def of_daemon() -> Iterator[Probe]:
    def daemon(text: str) -> str:
        return fill(DOCUMENT, daemon=text)

    spaces = ("default", "preserve")
    yield Probe(("tnw-gateway", "version"), ("1.0", "2.0"), fill(DOCUMENT, version="@"), model)
    yield Probe(("name", ""), ("A", "B"), daemon("<name>@</name>"), run_directory, "daemon")
    yield Probe(("name", XML_SPACE), spaces, daemon('<name xml:space="@"> A</name>'), run_directory)
    yield Probe(("log", ""), ("a.log", "b.log"), daemon('<log type="file">@</log>'), log)
    yield Probe(("log", "type"), ("console", "syslog"), daemon('<log type="@"/>'), log)
    yield Probe(("log", "frequency"), ("daily", "hourly"), daemon('<log type="file" frequency="@">a</log>'), log)
    yield Probe(("log", "size"), ("0", "1"), daemon('<log type="file" size="@">a</log>'), log)
    yield Probe(("log", XML_SPACE), spaces, daemon('<log type="file" xml:space="@"> a</log>'), log)
    yield Probe(("uid", ""), ("65534", "65533"), daemon("<uid>@</uid><gid>1</gid>"), identity)
    yield Probe(("gid", ""), ("65534", "65533"), daemon("<uid>1</uid><gid>@</gid>"), identity)
    yield Probe(("pidfile", ""), ("a.pid", "b.pid"), daemon("<pidfile>@</pidfile>"), pid_file)
    yield Probe(("pidfile", XML_SPACE), spaces, daemon('<pidfile xml:space="@"> a.pid</pidfile>'), pid_file)
    yield Probe(("web-monitor", ""), ("127.0.0.1:5", "*:6"), daemon("<web-monitor>@</web-monitor>"), listener)
    yield Probe(
        ("web-monitor", XML_SPACE), spaces, daemon('<web-monitor xml:space="@"> 127.0.0.1:5</web-monitor>'), listener
    )
    routes = whole(scenes.routes)
    for name, values in (
        ("propagation-interval", ("1000", "900")), ("check-interval", ("750", "4000")),
        ("timeout", ("4000", "9000")), ("max-hop-count", ("100", "2")),
    ):  # fmt: skip
        yield Probe(("route-info", name), values, daemon(f'<route-info {name}="@"/>'), routes)
    for name, values in (("backoff-interval", ("5000", "300")), ("warning-interval", ("10000", "6000"))):
        yield Probe(("route-recalculation", name), values, daemon(f'<route-recalculation {name}="@"/>'), routes)
    fast = daemon('<extensions><fast-recalculation first-interval="@"/></extensions>')
    yield Probe(("fast-recalculation", "first-interval"), ("20", "600"), fast, routes)
    shares = daemon("<extensions>@</extensions>")
    yield Probe(("equal-cost-sharing", ""), ("", "<equal-cost-sharing/>"), shares, routes)
    signed = daemon("<extensions><route-authentication><key-file>@</key-file></route-authentication></extensions>")
    yield Probe(("key-file", ""), (ROUTE_KEYS, OTHER_KEYS), signed, routes)
    file = f"<key-file>{ROUTE_KEYS}</key-file>"
    unsigned = f'<extensions><route-authentication accept-unsigned="@">{file}</route-authentication></extensions>'
    yield Probe(("route-authentication", "accept-unsigned"), ("no", "yes"), daemon(unsigned), routes)
    monitor = '<monitor interval="5"><transport-module {}/><format-module {}/></monitor>'
    for (element, name), values in {
        ("transport-module", "module"): ("lbm", "lbmsnmp"), ("transport-module", "options"): ("topic=a", "topic=b"),
        ("format-module", "module"): ("csv", "pb"), ("format-module", "options"): ("separator=|", "separator=!"),
    }.items():  # fmt: skip
        text = monitor.format(
            *(f'{name}="@"' if one == element else "" for one in ("transport-module", "format-module"))
        )
        yield Probe((element, name), values, daemon(text), published)
    yield Probe(("monitor", "interval"), ("5", "6"), daemon('<monitor interval="@"/>'), published)
    yield Probe(("daemon-monitor", "topic"), ("a", "b"), daemon('<daemon-monitor topic="@"/>'), published)
    for name in ("remote-snapshot-request", "remote-config-changes-request"):
        text = daemon(f'<daemon-monitor><{name} allow="@"/></daemon-monitor>')
        yield Probe((name, "allow"), ("0", "1"), text, published)
    group = "<publishing-interval><group name='{}' ivl='{}'/></publishing-interval>"
    for name, values, parts in (
        ("name", ("default", "portal-stats"), ("@", "5")),
        ("ivl", ("5", "6"), ("portal-stats", "@")),
    ):
        text = group.format(*parts)
        yield Probe(("group", name), values, daemon(f"<daemon-monitor>{text}</daemon-monitor>"), published, "daemon")
        of_portal = fill(DOCUMENT, daemon="<daemon-monitor/>", both=text)
        yield Probe(("group", name), values, of_portal, published, "portal")
    named = "<source-context-name>A</source-context-name>"
    file = fill(SITE, daemon="<xml-config>{folder}/@.xml</xml-config>", both=named)
    yield Probe(("xml-config", ""), ("tcp", "lbtrm"), file, on_a_site, shows=(SESSION,))
    yield Probe(("xml-config", XML_SPACE), spaces, daemon('<xml-config xml:space="@"> /dev/null</xml-config>'), model)


def of_portals() -> Iterator[Probe]:
    def both(text: str) -> str:
        return fill(SITE, both=text)

    def option(scope: str, name: str, value: str) -> str:
        text = f'<lbm-attributes><option scope="{scope}" name="{name}" value="{value}"/></lbm-attributes>'
        return fill(SITE, second=text, um="tcp")

    spaces = ("default", "preserve")
    yield Probe(("name", ""), ("A", "B"), fill(DOCUMENT, name="@"), whole(scenes.processes), "portal")
    yield Probe(("domain-id", ""), ("1", "7"), fill(SITE, domain="@"), on_a_site, shows=(TOLD, ADVERTISED))
    yield Probe(("cost", ""), ("1", "5"), both("<cost>@</cost>"), on_a_site, shows=(TOLD, ADVERTISED))
    index = both("<hotlink-index>@</hotlink-index>")
    yield Probe(("hotlink-index", ""), ("1", "5"), index, on_a_site, shows=(TOLD, ADVERTISED))
    delay = both("<source-deletion-delay>@</source-deletion-delay>")
    yield Probe(("source-deletion-delay", ""), ("1000", "5000"), delay, on_a_site, shows=(DELETION,))
    queue = both("<max-queue>@</max-queue>")
    yield Probe(("max-queue", ""), ("1000000", "8000000"), queue, on_a_site, shows=("room", "ring"))
    yield Probe(
        ("smart-batch", ""), ("0", "1"), both("<smart-batch>@</smart-batch>"), on_a_site, shows=("fills datagrams",)
    )
    for name, values, window in (
        ("size", ("512", "1024"), '<sqn-window size="@" increment="64"/>'),
        ("increment", ("8", "512"), '<sqn-window size="1024" increment="@"/>'),
    ):
        yield Probe(("sqn-window", name), values, both(window), on_a_site, shows=("window",))
    yield Probe(("lbm-config", ""), ("tcp", "lbtrm"), fill(SITE, um="@"), on_a_site, shows=(SESSION,))
    space = fill(DOCUMENT, both='<lbm-config xml:space="@"> /dev/null</lbm-config>')
    yield Probe(("lbm-config", XML_SPACE), spaces, space, model)
    interface = "transport_tcp_interface"
    scopes = option("@", interface, "127.0.0.2")
    yield Probe(("option", "scope"), ("source", "receiver"), scopes, on_a_site, shows=(SESSION,))
    names = ("request_tcp_port_low", "transport_lbtrm_source_port_low")
    yield Probe(("option", "name"), names, option("context", "@", "{port}"), on_a_site, shows=(PORTS,))
    addresses = ("127.0.0.1", "127.0.0.2")
    yield Probe(("option", "value"), addresses, option("source", interface, "@"), on_a_site, shows=(SESSION,))
    xml = "<xml-config>{folder}/contexts.xml</xml-config>"
    for name, other, shows in (
        ("source-context-name", "receiver-context-name", (SESSION, PORTS)),
        ("receiver-context-name", "source-context-name", (PORTS,)),
    ):
        named = fill(SITE, daemon=xml, both=f"<{name}>@</{name}><{other}>A</{other}>")
        yield Probe((name, ""), ("A", "B"), named, on_a_site, shows=shows)
        spaced = fill(DOCUMENT, both=f'<{name} xml:space="@"> A</{name}>')
        yield Probe((name, XML_SPACE), spaces, spaced, model)


LINK = """<tnw-gateway version="1.0"><daemon><name>D</name></daemon><portals>
<endpoint><name>E1</name><domain-id>1</domain-id></endpoint>
<peer><name>P</name>{before}<single-tcp>{tcp}{end}</single-tcp>{after}</peer>
</portals></tnw-gateway>"""
TO = '<initiator reconnect-interval="{pause}"><address>{address}</address><port>{port}</port></initiator>'
TLS = "<tls><certificate>{certificate}</certificate><certificate-key>{key}</certificate-key>{more}</tls>"


def of_peers() -> Iterator[Probe]:
    def peer(tcp: str = "", after: str = "", before: str = "", end: str = "", **to: str) -> str:
        end = end or TO.format(**{"pause": "5000", "address": "127.0.0.1", "port": "26123"} | to)
        return LINK.format(before=before, tcp=tcp, end=end, after=after)

    def tls(certificate: str = "{a_pem}", key: str = "{a_key}", more: str = "") -> str:
        return peer(TLS.format(certificate=certificate, key=key, more=more))

    scene = peer_scenes.link
    yield Probe(("sourcemap", "size"), ("8", "16"), peer(before='<sourcemap size="@"/>'), scene)
    yield Probe(("interface", ""), ("127.0.0.1", "127.0.0.2"), peer("<interface>@</interface>"), scene)
    yield Probe(("address", ""), ("127.0.0.1", "127.0.0.2"), peer(address="@"), scene)
    yield Probe(("port", ""), ("26123", "26124"), peer(port="@"), scene)
    listen = peer(end="<acceptor><listen-port>@</listen-port></acceptor>")
    yield Probe(("listen-port", ""), ("26123", "26124"), listen, scene)
    yield Probe(("receive-buffer", ""), ("65536", "262144"), peer("<receive-buffer>@</receive-buffer>"), scene)
    yield Probe(("send-buffer", ""), ("65536", "262144"), peer("<send-buffer>@</send-buffer>"), scene)
    for element in ("keepalive", "nodelay"):
        yield Probe((element, ""), ("", f"<{element}/>"), peer("@"), scene)
    yield Probe(("compression", ""), ("", "<compression>LZ4</compression>"), peer("@"), scene)
    yield Probe(("certificate", ""), ("{a_pem}", "{b_pem}"), tls(certificate="@"), scene)
    yield Probe(("certificate-key", ""), ("{a_key}", "{b_key}"), tls(key="@"), scene)
    secret = "<certificate-key-password>@</certificate-key-password>"
    yield Probe(("certificate-key-password", ""), ("secret", "other"), tls("{c_pem}", "{c_key}", secret), scene)
    trusted = "<trusted-certificates>@</trusted-certificates>"
    yield Probe(("trusted-certificates", ""), ("{one}", "/none.pem"), tls(more=trusted), scene)
    suites = ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256")
    yield Probe(("cipher-suites", ""), suites, tls(more="<cipher-suites>@</cipher-suites>"), scene)
    yield Probe(("peer-name", ""), ("a", "b"), tls(more="<peer-name>@</peer-name>"), whole(peer_scenes.wanted_name))
    yield Probe(("initiator", "reconnect-interval"), ("1000", "5000"), peer(pause="@"), scene)
    yield Probe(("uim-max-queue", ""), ("50000", "100000"), peer(after="<uim-max-queue>@</uim-max-queue>"), scene)
    yield Probe(("max-datagram", ""), ("3000", "65500"), peer(after="<max-datagram>@</max-datagram>"), scene)
    for name, values in (("min-length", ("2000", "20000")), ("batch-interval", ("50", "200"))):
        yield Probe((name, ""), values, peer(after=f"<batching><{name}>@</{name}></batching>"), scene)
    alive = {"idle": ("yes", "no"), "interval": ("2000", "5000"), "timeout": ("10000", "15000")}
    for name, values in alive.items():
        yield Probe(("gateway-keepalive", name), values, peer(after=f'<gateway-keepalive {name}="@"/>'), scene)
    for name, values, other in (("interval", ("200", "400"), 'timeout="9000"'), ("timeout", ("5000", "9000"), "")):
        yield Probe(("fast-keepalive", name), values, peer(after=f'<fast-keepalive {name}="@" {other}/>'), scene)
    for name, values in (("interval", ("500", "1000")), ("timeout", ("2000", "3000"))):
        yield Probe(("canary", name), values, peer(after=f'<canary {name}="@"/>'), peer_scenes.canaries)


def of_datagrams() -> Iterator[Probe]:
    """`<udp>`: a link with quick repair and little rate, of which one value is another one."""
    usual = {
        "transmission-window": {"size": "1000000", "limit": "0"},
        "peer-rate-limit": {"data": "1000000", "retransmit": "1000000", "interval": "50"},
        "nak-handling": {
            "initial-backoff-interval": "0", "backoff-interval": "50", "suppress-interval": "100",
            "generation-interval": "1500", "send-naks": "yes", "ignore-interval": "20",
        },
        "session-message": {"min-interval": "50", "max-interval": "400", "activity-timeout": "60000"},
        "connect": {"attempt-interval": "200", "max-attempts": "5"},
    }  # fmt: skip
    others = {
        "size": "65536", "limit": "70000", "data": "500000", "retransmit": "100000", "interval": "100",
        "initial-backoff-interval": "100", "backoff-interval": "200", "suppress-interval": "500",
        "generation-interval": "1000", "send-naks": "no", "ignore-interval": "500", "min-interval": "100",
        "max-interval": "800", "activity-timeout": "2000", "attempt-interval": "100", "max-attempts": "3",
    }  # fmt: skip
    end = TO.format(pause="1000", address="127.0.0.1", port="26123")

    def link(first: str = "", name: str = "", attribute: str = "") -> str:
        changed = {**usual, name: {**usual.get(name, {}), attribute: "@"}} if name else usual
        parts = [
            "<" + " ".join([element, *[f'{key}="{value}"' for key, value in values.items()]]) + "/>"
            for element, values in changed.items()
        ]
        after = (
            "<batching><min-length>1000</min-length></batching>"
            f"<udp><port>{{udp_port}}</port>{first}{''.join(parts)}</udp>"
            '<gateway-keepalive interval="0"/>'
        )
        return LINK.format(before="", tcp="", end=end, after=after)

    scene = datagram_scenes.datagrams
    for element, values in (
        ("receive-buffer", ("65536", "262144")),
        ("send-buffer", ("65536", "262144")),
        ("multiple-receive-max-datagrams", ("4", "0")),
    ):
        yield Probe((element, ""), values, link(f"<{element}>@</{element}>"), scene)
    for element, attributes in usual.items():
        for attribute, value in attributes.items():
            yield Probe((element, attribute), (value, others[attribute]), link("", element, attribute), scene)


TOLD, ADVERTISED, SESSION, PORTS = "told the route manager", "advertised", "session", "request ports"
DELETION = "deletion after half seconds"
PROBES = [*of_daemon(), *of_portals(), *of_peers(), *of_datagrams(), *of_access(), *of_resolution(), *of_contexts()]


def used_by(row: Row) -> str:
    spec = elements()[row[0]]
    return (spec.attributes[row[1]] if row[1] else spec.row).used_by


def test_every_row_that_is_in_use_has_a_probe() -> None:
    probed = {probe.row for probe in PROBES}
    assert {row for row in rows() if effect_of(*row).kind is EffectKind.USED} <= probed
    assert {row for row in rows() if used_by(row)} <= probed, "a row that waits for its part has one as well"
    assert not [row for row in probed if not used_by(row) and row[1] != XML_SPACE]


@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_a_value_makes_a_difference_where_it_is_used(probe: Probe, tmp_path: Path) -> None:
    one, other = (probe.scene(probe.text(value), tmp_path) for value in probe.values)
    assert one != other
    if probe.scene is on_a_site:
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        differing = {key for key in one if one[key] != other[key]}
        assert set(probe.shows) <= differing <= {*probe.shows, DELETION}, "a time lies now and then at a border"


@pytest.mark.parametrize("scene", [first(scenes.trd), first(scenes.access), whole(scenes.routes), on_a_site, log])
def test_a_scene_shows_nothing_but_the_file(scene: Scene, tmp_path: Path) -> None:
    """Else a difference would prove nothing."""
    text = fill(SITE) if scene is on_a_site else fill(DOCUMENT)
    assert scene(text, tmp_path) == scene(text, tmp_path)


def limited_rows() -> list[Row]:
    """Rows that have no effect in this release but the former form of the peer link, which the reader refuses."""
    kinds = (EffectKind.REFUSED, EffectKind.WARNED)
    return [
        row
        for row in rows()
        if effect_of(*row).kind in kinds and not {"tcp", "companion"} & {row[0]} and row[0] != "tnw-gateway"
    ]


@pytest.mark.parametrize("row", limited_rows(), ids="-".join)
def test_a_value_without_effect_is_refused_or_told_by_name(row: Row) -> None:
    element, attribute = row
    spec = elements()[element]
    path = path_to(element)
    given = {a: sample(f) for a, f in spec.attributes.items() if (f.is_required or a == attribute) and a != XML_SPACE}
    content = sample(spec.content) if spec.content is not None else ""
    raw = document(path, " ".join(f'{name}="{value}"' for name, value in given.items()), content)
    config = load(raw)
    found = [limit for limit in unsupported(config) if str(limit.element).strip("<>") in path]
    assert found, raw.decode()
    wants_error = effect_of(*row).kind is EffectKind.REFUSED
    assert any(isinstance(limit, ConfigWarning) != wants_error for limit in found)
    assert all(re.match(r"dro\.xml:[12]: <", str(limit)) for limit in found)


def test_no_row_is_left_out() -> None:
    """Used, refused, told, ignored with a warning, or nothing but a container: `effect_of` knows every row."""
    kinds = {row: effect_of(*row).kind for row in rows()}
    holding = {row for row, kind in kinds.items() if kind is EffectKind.HOLDS}
    assert not [row for row in holding if row[1] or elements()[row[0]].content is not None]

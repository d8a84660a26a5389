"""Targets that read: routes, messages between processes, patterns, configuration, captures, monitoring, requests."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import struct
import tempfile
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

from dro.bus.codec import Codec
from dro.bus.messages import PARENT_MESSAGES, ROUTE_MESSAGES, WORKER_REPORTS
from dro.config.reading.problems import Problems
from dro.config.reading.xml_file import parse_xml
from dro.config.resolvers.lbmrd import read_lbmrd
from dro.config.um.text_file import parse_um_text
from dro.config.um.xml_document import parse_um_xml
from dro.dissect import packet as dissect
from dro.dissect.capture import Capture, UmPacket
from dro.dissect.follow import Directory
from dro.dissect.pcap import read_frames
from dro.errors import ConfigError, DecodeError
from dro.loop import Loop
from dro.pattern_groups import is_joinable
from dro.patterns import PCRE, REGEX, Pattern, PatternLimit, joined
from portals.decisions.messages import PORTAL_MESSAGES
from router.route_info import NEIGHBOURS_MAX, is_repeat, read_head, read_record, with_ttl, write_route
from router.topology import DroRecord, Hotlink, Neighbour
from supervisor.admin.server import AdminServer, Arguments, Reply
from tests.builders.dro_file import HOST, parse_dro
from tests.builders.udp_capture import Datagram, read_udp, write_udp
from tests.config.resolvers.test_lbmrd_file import NAT
from tests.fuzz.seeds import CAPTURE, examples, published, vectors
from tests.fuzz.target import Target

# route information


def route_seeds() -> list[bytes]:
    """Of DROs with few and many neighbours, with a name, hotlinks and a method of sharing."""
    dro = 1 << 63
    plain = DroRecord(dro | 7, (Neighbour(1, 1, 1), Neighbour(dro | 8, 2, 3)), version=1, name="G7")
    many = DroRecord(dro | 9, tuple(Neighbour(n, 1, n) for n in range(1, 60)), (Hotlink(3, 1), Hotlink(5, 2)), 4, "", 1)
    return [
        write_route(record, sqn=1, ttl=9, topology=5, configuration=6, gateway_version=7)
        for record in (plain, many, DroRecord(dro | 1, (), version=65535))
    ]


def _route(data: bytes) -> Hashable:
    head = read_head(data)
    record = read_record(data)
    assert is_repeat(data, with_ttl(data, head.ttl & 1))
    assert len(record.neighbours) <= NEIGHBOURS_MAX
    made = write_route(record, sqn=head.sqn, ttl=head.ttl, topology=head.topology, configuration=0, gateway_version=0)
    assert read_head(made) == head
    if "\ufffd" not in record.name and len(record.name.encode()) <= 251:
        assert read_record(made) == record
    return len(record.neighbours), len(record.hotlinks), record.sharing, bool(record.name)


# messages between processes


def _example(hint: Any, depth: int = 0) -> Any:  # noqa: ANN401  any field of a message
    """A value for a field of a message."""
    if (supertype := getattr(hint, "__supertype__", None)) is not None:
        return _example(supertype, depth)
    if get_origin(hint) is tuple:
        return (_example(get_args(hint)[0], depth + 1),) * (2 if depth < 2 else 1)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(*(_example(hints[f.name], depth + 1) for f in fields_of(hint)))  # type: ignore[operator]  # a class
    if isinstance(hint, type):
        return next(iter(hint)) if issubclass(hint, IntEnum) else hint(7) if hint is int else hint()
    return _example(next(kind for kind in get_args(hint) if kind is not type(None)), depth)


def _bus_seeds(codec: Codec[Any]) -> Callable[[], list[bytes]]:
    return lambda: [codec.encode(_example(kind)) for kind in codec._tags]


def _bus(codec: Codec[Any]) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        many: list[Any] = []
        with contextlib.suppress(DecodeError):
            many += codec.decode_all(data)
        message = codec.decode(data)
        assert [repr(one) for one in many] == [repr(message)]
        made = codec.encode(message)
        assert codec.encode(codec.decode(made)) == made
        return type(message).__name__

    return check


# patterns

_TOPICS: Final = (b"quotes/europe/fx.1", b"a" * 55 + b"b", b"", b"\xff\0\n" * 40)
_PATTERNS: Final = (
    rb"^quotes/.*", rb"(a+)+$", rb"[[:alpha:]_-]+(?:x|y){2,5}", rb"\Qa.b\E\d\x{41}", rb"(?i)(?<n>a)\k<n>(?=b)(?!c)",
    rb"a{1,30}b{0,3}(c|d|e)*", rb"(?<=aa)b|\bword\b", rb"[^\]a-z\\]", rb"(a|aa)+\1", rb"(?#note)x(?x) a # b", rb".*+a",
)  # fmt: skip
_POSIX: Final = (
    rb"^a(b|c)*d$",
    rb"[[:digit:]]{2,3}",
    rb"\<word\>",
    rb"(a)\1+?",
    rb"[]a^-]\.",
    rb"(a{,3}){2}*",
    rb"\w\W\`\'",
)


def _pattern(kind: int) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        limits: list[bytes] = []
        pattern = Pattern(data, kind, limits.append)
        found = tuple([pattern(topic) for topic in _TOPICS])
        together = joined((pattern.pcre, b"neverneverever")) if is_joinable(pattern.pcre) else None
        if together is not None and not limits:
            with contextlib.suppress(PatternLimit):  # its limit is another one
                assert tuple([together(topic) for topic in _TOPICS]) == found
        return found, bool(limits)

    return check


# configuration


def _silent(_: str) -> None:
    """Warnings do not matter here."""


def _um_text(data: bytes) -> Hashable:
    options = parse_um_text(data.decode("utf-8", "replace"), _silent, lookup=HOST)
    return len(options.explicit)


def _um_text_seeds() -> list[bytes]:
    """Some lines of all."""
    lines = sorted({line for data in examples("*/*.cfg", 40)() for line in data.split(b"\n") if line.strip()})
    return [b"\n".join(lines[at::60]) for at in range(20)]


def _um_xml(data: bytes) -> Hashable:
    document = parse_um_xml(data, "um.xml", Problems(_silent), HOST)
    return len(document.templates), len(document.applications)


def _dro_xml(data: bytes) -> Hashable:
    config = parse_dro(data, "nowhere/dro.xml", warn=_silent, lookup=HOST, environ={})
    return len(config.portals), len(config.peers)


_UM_XML: Final = b"""<um-configuration version="1.0"><templates><template name="base">
<options type="context"><option name="default_interface" default-value="127.0.0.1"/>
<option name="request_tcp_port_low" default-value="15300"/></options>
<options type="source"><option name="transport" default-value="tcp" order="deny,allow"><allow>tcp</allow></option>
</options>
</template></templates>
<applications><application name="desk" template="base"><contexts order="allow,deny">
<context name="fast" rule="allow"><options type="context"><option name="request_tcp_port_low" default-value="15310"/>
</options><sources template="base"><topic topicname="quotes/slow"><options type="source">
<option name="late_join" default-value="0"/></options></topic><topic pattern="^q.*" rule="deny"/></sources>
<receivers><topic topicname="x"/></receivers><wildcard-receivers><wildcard-receiver pattern="a.*" pattern-type="pcre"/>
</wildcard-receivers></context><context><sources/></context></contexts></application></applications></um-configuration>
"""


def _dro_seeds() -> list[bytes]:
    """Short ones, and one with lists, intervals and a link with everything."""
    rich = b"""<tnw-gateway version="1.0"><daemon><name>G1</name><lbm-license-file>a</lbm-license-file>
<log type="file" size="1">a.log</log><web-monitor>*:8080</web-monitor></daemon>
<portals><endpoint><name>P1</name><domain-id>1</domain-id><cost>2</cost>
<acl><inbound><ace match="accept"><pcre-pattern>^a.*</pcre-pattern><topic>b</topic></ace>
<ace match="reject"><topic>c</topic></ace></inbound></acl>
<lbm-attributes><option scope="context" name="request_tcp_port_high" value="15000"/></lbm-attributes>
<topic-resolution><remote-topic-interest min-interval="1000" max-interval="60000"/></topic-resolution></endpoint>
<peer><name>L</name><cost>3</cost><sourcemap size="131111"/><single-tcp><interface>127.0.0.1</interface><nodelay/>
<initiator><address>127.0.0.1</address><port>4444</port></initiator></single-tcp></peer></portals></tnw-gateway>"""
    option = rb'<option scope="context" name="resolver_multicast_port" value="15\1"/>'
    channel = b"<lbm-attributes>%b</lbm-attributes>" % option
    plain = [re.sub(rb"<lbm-config>trd(\d+)[^<]*</lbm-config>", channel, data) for data in examples("*/dro-*.xml")()]
    return [*plain, rich]


# captures


def _dissect(proto: str) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        got = dissect.fields(proto, data)
        if got.error is not None and not got.values:
            raise got.error
        return tuple(got.values)[:12], got.error and got.error.where

    return check


@cache
def capture_seeds() -> list[bytes]:
    """Frames of the recorded source, and of all published packets from one host."""
    recorded = read_udp(CAPTURE)
    packets = [*vectors("lbmr")[::9], *vectors("transports", "lbtrm")[::5]]
    made = [Datagram(n, n * 1000, "10.0.0.1", 12965, "224.9.10.11", 12965, data) for n, data in enumerate(packets)]
    found = []
    with tempfile.TemporaryDirectory(prefix="dro-fuzz-") as name:
        for datagrams in (recorded[:8], recorded[60:66], made[:12]):
            write_udp(path := Path(name) / "a.pcap", datagrams)
            found.append(path.read_bytes())
    return [*found, _as_pcapng(found[0])]


def _as_pcapng(classic: bytes) -> bytes:
    """The frames of a classic capture in blocks."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    made = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)) + block(1, struct.pack("<HHI", 1, 0, 0))
    at = 24
    while at < len(classic):
        size = struct.unpack_from("<I", classic, at + 8)[0]
        made += block(6, struct.pack("<IIIII", 0, 0, 5, size, size) + classic[at + 16 : at + 16 + size])
        at += 16 + size
    return made


def _capture(data: bytes) -> Hashable:
    capture = Capture(Directory())
    packets: list[UmPacket] = []
    try:
        packets += capture.packets(read_frames(io.BytesIO(data)))
    except DecodeError:
        if not packets:
            raise
    packets += capture.finish()
    for packet in packets:
        dissect.fields(packet.proto, packet.data)
    return min(len(packets), 9), tuple({packet.proto for packet in packets}), min(capture.frames, 9)


# requests of operators


@cache
def _server() -> AdminServer:
    log = logging.getLogger("tests.fuzz.admin")
    log.propagate = False
    log.addHandler(logging.NullHandler())
    log.setLevel(logging.CRITICAL)
    server = AdminServer(Loop(), log)

    def status(arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        reply.ok({"up": True})

    def drain(arguments: Arguments, reply: Reply) -> None:
        limit = arguments.number("limit", 1.0, minimum=0, maximum=60)
        reply.ok({"name": arguments.text("name"), "all": arguments.flag("all"), "limit": limit})

    server.add("status", status, looks=True)
    server.add("drain", drain)
    return server


def _admin(data: bytes) -> Hashable:
    """One answer to each request, and never an internal error."""
    answers: list[Any] = []
    _server().handle(data, Reply(answers.append), {"pid": 1, "uid": 0})
    (answer,) = answers
    assert "internal error" not in str(answer)
    if not answer["ok"]:
        raise DecodeError(" ".join(str(answer["error"]["what"]).split()[:3]), "refused")
    return tuple(answer)


def _admin_seeds() -> list[bytes]:
    return [
        b'{"command": "status"}', b'{"command": "drain", "name": "P1", "all": true, "limit": 3.5}',
        b'{"command": "drain", "name": "\\u00e9", "all": false, "limit": null, "more": [1, {"a": -1e99}]}',
    ]  # fmt: skip


_CODECS: Final[dict[str, Codec[Any]]] = {
    "parent": PARENT_MESSAGES,
    "reports": WORKER_REPORTS,
    "routes": ROUTE_MESSAGES,
    "portals": PORTAL_MESSAGES,
}
_CONFIG: Final = (ConfigError,)


def _lbmrd_xml(data: bytes) -> Hashable:
    config = read_lbmrd(parse_xml(data, "lbmrd.xml"), "lbmrd.xml", lambda _: None)
    return len(config.translation.networks), len(config.translation.rules)


def _targets() -> Iterator[Target]:
    yield Target("route-info", route_seeds, _route, form="lbmc")
    for name, codec in _CODECS.items():
        yield Target(f"bus-{name}", _bus_seeds(codec), _bus(codec))
    yield Target("pattern-pcre", lambda: list(_PATTERNS), _pattern(PCRE), _CONFIG, "text", limit_s=0.1)
    yield Target("pattern-posix", lambda: list(_POSIX), _pattern(REGEX), _CONFIG, "text", limit_s=0.1)
    yield Target("um-text", _um_text_seeds, _um_text, _CONFIG, "text")
    yield Target("um-xml", lambda: [_UM_XML], _um_xml, _CONFIG, "xml")
    yield Target("dro-xml", _dro_seeds, _dro_xml, _CONFIG, "xml", short=100)
    yield Target("lbmrd-xml", lambda: [NAT.encode()], _lbmrd_xml, _CONFIG, "xml")
    for proto in ("lbmr", "lbmc"):
        yield Target(f"dissect-{proto}", published(proto), _dissect(proto), short=200)
    for proto in ("lbtrm", "lbtru", "lbttcp"):
        yield Target(f"dissect-{proto}", published("transports", proto), _dissect(proto), short=200)
    yield Target("capture", capture_seeds, _capture, short=80)
    yield Target("admin-request", _admin_seeds, _admin, form="text")


TARGETS: Final = tuple(_targets())

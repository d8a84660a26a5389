"""What the table cannot express of `<peer>` and its content: values with special syntax, and rules.

Source: DRO guide, chapters 2.1 and 7.3, elements of these names. Guess: `<udp>` is accepted next to `<single-tcp>`, as
in the DTD, and inside it, as in one place of the text; a keepalive gap below two seconds is worth a warning.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import Final

from dro.config.dro_xml.ciphers import TLS13_OFFERED, TLS13_SUITES, known_suite
from dro.config.dro_xml.elements import portal_fields
from dro.config.dro_xml.model import (
    CanaryConfig,
    FastKeepaliveConfig,
    GatewayKeepaliveConfig,
    InitiatorConfig,
    PeerConfig,
    PeerTcpConfig,
    PeerUdpConfig,
    TlsConfig,
)
from dro.config.reading.reader import ElementReader
from dro.config.reading.record import check, read_record
from dro.config.um.interfaces import ANY, Lookup, resolve_interface
from dro.config.um.sources import Reading
from dro.errors import ConfigError, HostError

TLS_MAX_DATAGRAM: Final = 16348
_KEEPALIVE_ADVISED_MS: Final = 2000
_HOST: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*)(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*\.?")
_NO_TCP: Final = PeerTcpConfig(ANY, 0, 0, False, False, "", None, None, 0)


def read_peer(el: ElementReader, reading: Reading) -> PeerConfig:
    """`<peer>` with the UM options of its files and attributes."""
    single = el.child("single-tcp")
    udp_el = find_udp(el, single)
    tcp = read_single_tcp(single, reading.lookup) if single.is_present else _NO_TCP
    old = el.child("tcp")
    if old.is_present:
        old.error("this form of the peer link does not exist any more", remedy="use <single-tcp>")
    elif not single.is_present:
        el.error("<single-tcp> is missing", remedy="add <single-tcp>")
    udp = read_record(udp_el, PeerUdpConfig) if udp_el.is_present else None
    return read_record(
        el,
        PeerConfig,
        tcp=tcp,
        udp=udp,
        sourcemap_size=read_sourcemap(el.child("sourcemap")),
        max_datagram_bytes=read_max_datagram(el.child("max-datagram"), is_small=bool(udp and tcp.tls)),
        **portal_fields(el, reading),
    )


def find_udp(el: ElementReader, single: ElementReader) -> ElementReader:
    """`<udp>`, wherever it stands."""
    udp = el.child("udp")
    if not single.has("udp"):
        return udp
    stray = single.child("udp")
    stray.warning("belongs beside <single-tcp>, taken as if it were there")
    if udp.is_present:
        stray.error("given here and beside <single-tcp>", remedy="keep the one beside <single-tcp>")
        return udp
    return stray


def read_single_tcp(el: ElementReader, lookup: Lookup) -> PeerTcpConfig:
    """`<single-tcp>`: exactly one of `<initiator>` and `<acceptor>`."""
    initiator, acceptor = el.child("initiator"), el.child("acceptor")
    if initiator.is_present == acceptor.is_present:
        what = "both <initiator> and <acceptor>" if initiator.is_present else "neither <initiator> nor <acceptor>"
        el.error(what, remedy="one side of the link has <initiator>, the other <acceptor>")
    interface = read_interface(el.child("interface"), lookup)
    return read_record(
        el, PeerTcpConfig, interface=interface, tls=read_tls(el.child("tls")), initiator=read_initiator(initiator)
    )


def _is_dotted(text: str) -> bool:
    try:
        return bool(IPv4Address(text))
    except ValueError:
        return False


def read_interface(el: ElementReader, lookup: Lookup) -> str:
    """`<interface>`: the dotted local address that it stands for; `0.0.0.0` when absent.

    A dotted address that no device has may come later, as the link is tried again and again: a warning.
    """
    written = el.text()
    el.done()
    if not el.is_present:
        return ANY
    try:
        return resolve_interface(written, lookup)
    except ConfigError as e:
        if isinstance(e, HostError) and _is_dotted(written.strip()):
            el.warning(f"{e.what}; it is waited for; {e.remedy}")
            return written.strip()
        el.error(e.what, remedy=e.remedy)
        return ANY


def read_initiator(el: ElementReader) -> InitiatorConfig | None:
    """`<initiator>`; None when absent."""
    if not el.is_present:
        return None
    return read_record(el, InitiatorConfig, address=read_host(el.required_child("address")))


def read_host(el: ElementReader) -> str:
    """`<address>`: a dotted address, or a name that is looked up at each attempt to connect."""
    host = el.text()
    el.done()
    if el.is_present:
        is_address = all(c in "0123456789." for c in host)
        try:
            fits = bool(IPv4Address(host)) if is_address else _HOST.fullmatch(host) is not None
        except ValueError:
            fits = False
        if not fits:
            el.error(f"{host[:60]!r} is neither an address nor a host name", remedy="write it as in 192.0.2.1")
    return host


def read_tls(el: ElementReader) -> TlsConfig | None:
    """`<tls>`; None when absent. The files are opened by the portal."""
    if not el.is_present:
        return None
    return read_record(el, TlsConfig, cipher_suites=read_cipher_suites(el.child("cipher-suites")))


def read_cipher_suites(el: ElementReader) -> tuple[str, ...]:
    """`<cipher-suites>`: OpenSSL names; names in the form of the standards are translated."""
    suites: dict[str, None] = {}
    for written in el.text().split(","):
        name = written.strip()
        if not name:
            continue
        suite = known_suite(name)
        if suite is None:
            el.warning(f"cipher suite {name[:60]!r} is not known here, ignored")
        else:
            suites[suite] = None
    if TLS13_SUITES & suites.keys() and not suites.keys() >= TLS13_OFFERED:
        el.warning("with TLS 1.3 its usual suites are all offered, whichever are named")
    if el.is_present and not suites:
        el.error("no usable cipher suite", remedy="write OpenSSL names with commas between, or remove it")
    el.done()
    return tuple(suites)


def read_sourcemap(el: ElementReader) -> int:
    """`<sourcemap>`: a power of two; 0 stands for the default, other numbers go up to the next power of two."""
    size = el.integer("size")
    el.done()
    made = size
    if size == 0:
        made = int(el.spec.attributes["size"].default or 0)
    elif size & (size - 1):
        made = 1 << size.bit_length()
    if made != size:
        el.warning(f"size {size} is not a power of two, {made} is used")
        el.effective(str(made), "size")
    return made


def read_max_datagram(el: ElementReader, *, is_small: bool) -> int:
    """`<max-datagram>`: with TLS on a UDP link the datagrams are small."""
    size = el.integer()
    el.done()
    if is_small and size > TLS_MAX_DATAGRAM:
        if el.is_present:
            el.error(f"{size} is above {TLS_MAX_DATAGRAM}, the limit with <tls> and <udp>", remedy="lower it")
        size = TLS_MAX_DATAGRAM
        el.effective(str(size))
    return size


@check.register
def _keepalive(keepalive: GatewayKeepaliveConfig, el: ElementReader) -> None:
    if 0 < keepalive.interval_ms < _KEEPALIVE_ADVISED_MS:
        el.warning(f"interval {keepalive.interval_ms} is short, {_KEEPALIVE_ADVISED_MS} or more is advised")
    if 0 < keepalive.timeout_ms <= keepalive.interval_ms:
        el.warning(f"timeout {keepalive.timeout_ms} is not above interval {keepalive.interval_ms}")


@check.register(FastKeepaliveConfig)
@check.register(CanaryConfig)
def _gap_and_timeout(record: FastKeepaliveConfig | CanaryConfig, el: ElementReader) -> None:
    if record.timeout_ms <= record.interval_ms:
        el.warning(f"timeout {record.timeout_ms} is not above interval {record.interval_ms}")


@check.register
def _udp(udp: PeerUdpConfig, el: ElementReader) -> None:
    if udp.sm_min_interval_ms > udp.sm_max_interval_ms:
        what = f"min-interval {udp.sm_min_interval_ms} exceeds max-interval {udp.sm_max_interval_ms}"
        el.child("session-message").error(what, remedy="lower min-interval")

"""`<peer>` and everything in it but what it shares with endpoints: element in, record out.

Source: DRO guide, chapters 2.1 and 7.3, elements of these names. Guess: `<udp>` is taken beside `<single-tcp>`, as in
the DTD, and inside it, as in one place of the text; a keepalive gap below two seconds is worth a warning.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import Final

from dro.config.ciphers import known_suite
from dro.config.elements import (
    read_context_name,
    read_context_query,
    read_portal_name,
    read_publishing,
    read_sqn_window,
)
from dro.config.elements_acl import read_acl
from dro.config.elements_daemon import read_path
from dro.config.interfaces import ANY, Lookup, resolve_interface
from dro.config.model import (
    GatewayKeepaliveConfig,
    InitiatorConfig,
    PeerConfig,
    PeerTcpConfig,
    PeerUdpConfig,
    TlsConfig,
)
from dro.config.reader import ElementReader
from dro.config.um_sources import Reading, read_portal_um
from dro.errors import ConfigError

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
    udp = read_udp(udp_el)
    source_name = read_context_name(el.child("source-context-name"))
    receiver_name = read_context_name(el.child("receiver-context-name"))
    um = read_portal_um(el, reading, source_name, receiver_name)
    batching = el.child("batching")
    peer = PeerConfig(
        name=read_portal_name(el.required_child("name")),
        cost=el.integer_of("cost"),
        sourcemap_size=read_sourcemap(el.child("sourcemap")),
        tcp=tcp,
        udp=udp,
        source_deletion_delay_ms=el.integer_of("source-deletion-delay"),
        max_queue_bytes=el.integer_of("max-queue"),
        smart_batch=el.flag_of("smart-batch"),
        max_datagram_bytes=read_max_datagram(el.child("max-datagram"), is_small=bool(udp and tcp.tls)),
        batch_min_bytes=batching.integer_of("min-length"),
        batch_interval_ms=batching.integer_of("batch-interval"),
        lbm_config=um.paths,
        acl=read_acl(el.child("acl")),
        source_context_name=source_name,
        receiver_context_name=receiver_name,
        sqn_window=read_sqn_window(el.child("sqn-window")),
        context_query=read_context_query(el.child("context-query")),
        keepalive=read_keepalive(el.child("gateway-keepalive")),
        publishing=read_publishing(el.child("publishing-interval"), in_portal=True),
        um=um.um,
        sending=um.sending,
        receiving=um.receiving,
        line=el.line,
        file=el.file,
    )
    batching.done()
    el.done()
    return peer


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
    compression = el.child("compression")
    tcp = PeerTcpConfig(
        interface=read_interface(el.child("interface"), lookup),
        receive_buffer_bytes=el.integer_of("receive-buffer", 0),
        send_buffer_bytes=el.integer_of("send-buffer", 0),
        keepalive=el.presence_of("keepalive"),
        nodelay=el.presence_of("nodelay"),
        compression=compression.content_choice(),
        tls=read_tls(el.child("tls")),
        initiator=read_initiator(initiator),
        listen_port=read_acceptor(acceptor),
    )
    compression.done()
    el.done()
    return tcp


def read_interface(el: ElementReader, lookup: Lookup) -> str:
    """`<interface>`: the dotted local address that it stands for; `0.0.0.0` when absent."""
    written = el.content_text()
    el.done()
    if not el.is_present:
        return ANY
    try:
        return resolve_interface(written, lookup)
    except ConfigError as e:
        el.error(e.what, remedy=e.remedy)
        return ANY


def read_initiator(el: ElementReader) -> InitiatorConfig | None:
    """`<initiator>`; None when absent."""
    if not el.is_present:
        return None
    initiator = InitiatorConfig(
        address=read_host(el.required_child("address")),
        port=_required_port(el, "port"),
        reconnect_interval_ms=el.integer("reconnect-interval"),
    )
    el.done()
    return initiator


def read_acceptor(el: ElementReader) -> int:
    """`<acceptor>`: the port to listen on; 0 when absent."""
    if not el.is_present:
        return 0
    port = _required_port(el, "listen-port")
    el.done()
    return port


def _required_port(el: ElementReader, name: str) -> int:
    child = el.required_child(name)
    port = child.content_integer()
    child.done()
    return port


def read_host(el: ElementReader) -> str:
    """`<address>`: a dotted address, or a name that is looked up at each attempt to connect."""
    host = el.content_text()
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
    suites = el.child("cipher-suites")
    tls = TlsConfig(
        certificate=read_path(el.required_child("certificate")),
        certificate_key=read_path(el.required_child("certificate-key")),
        certificate_key_password=el.text_of("certificate-key-password"),
        trusted_certificates=read_path(el.child("trusted-certificates")),
        cipher_suites=read_cipher_suites(suites),
    )
    el.done()
    return tls


def read_cipher_suites(el: ElementReader) -> tuple[str, ...]:
    """`<cipher-suites>`: OpenSSL names; names in the form of the standards are translated."""
    suites: dict[str, None] = {}
    for written in el.content_text().split(","):
        name = written.strip()
        if not name:
            continue
        suite = known_suite(name)
        if suite is None:
            el.warning(f"cipher suite {name[:60]!r} is not known here, ignored")
        else:
            suites[suite] = None
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
    size = el.content_integer()
    el.done()
    if is_small and size > TLS_MAX_DATAGRAM:
        if el.is_present:
            el.error(f"{size} is above {TLS_MAX_DATAGRAM}, the limit with <tls> and <udp>", remedy="lower it")
        size = TLS_MAX_DATAGRAM
        el.effective(str(size))
    return size


def read_keepalive(el: ElementReader) -> GatewayKeepaliveConfig:
    """`<gateway-keepalive>`."""
    keepalive = GatewayKeepaliveConfig(
        only_when_idle=el.yes_no("idle"),
        interval_ms=el.integer("interval"),
        timeout_ms=el.integer("timeout"),
    )
    if 0 < keepalive.interval_ms < _KEEPALIVE_ADVISED_MS:
        el.warning(f"interval {keepalive.interval_ms} is short, {_KEEPALIVE_ADVISED_MS} or more is advised")
    if 0 < keepalive.timeout_ms <= keepalive.interval_ms:
        el.warning(f"timeout {keepalive.timeout_ms} is not above interval {keepalive.interval_ms}")
    el.done()
    return keepalive


def read_udp(el: ElementReader) -> PeerUdpConfig | None:
    """`<udp>`; None when absent."""
    if not el.is_present:
        return None
    window, rates = el.child("transmission-window"), el.child("peer-rate-limit")
    naks, sessions, connect = el.child("nak-handling"), el.child("session-message"), el.child("connect")
    udp = PeerUdpConfig(
        port=_required_port(el, "port"),
        receive_buffer_bytes=el.integer_of("receive-buffer", 8_388_608),
        send_buffer_bytes=el.integer_of("send-buffer", 1_048_576),
        datagrams_per_read=el.integer_of("multiple-receive-max-datagrams"),
        coalesce_threshold=el.integer_of("coalesce-threshold"),
        window_size_bytes=window.integer("size"),
        window_limit_bytes=window.integer("limit"),
        data_rate_bps=rates.integer("data"),
        retransmit_rate_bps=rates.integer("retransmit"),
        rate_interval_ms=rates.integer("interval"),
        nak_initial_backoff_ms=naks.integer("initial-backoff-interval"),
        nak_backoff_ms=naks.integer("backoff-interval"),
        nak_suppress_ms=naks.integer("suppress-interval"),
        nak_generation_ms=naks.integer("generation-interval"),
        send_naks=naks.yes_no("send-naks"),
        ignore_interval_ms=naks.integer("ignore-interval"),
        sm_min_interval_ms=sessions.integer("min-interval"),
        sm_max_interval_ms=sessions.integer("max-interval"),
        activity_timeout_ms=sessions.integer("activity-timeout"),
        connect_interval_ms=connect.integer("attempt-interval"),
        connect_attempts=connect.integer("max-attempts"),
    )
    if udp.sm_min_interval_ms > udp.sm_max_interval_ms:
        what = f"min-interval {udp.sm_min_interval_ms} exceeds max-interval {udp.sm_max_interval_ms}"
        sessions.error(what, remedy="lower min-interval")
    for part in (window, rates, naks, sessions, connect):
        part.done()
    el.done()
    return udp

"""Lint of several DROs of one network: options that are correct in each file and do not fit together.

Applied when `tnwgd -v` gets several files. Two files of one name are taken for two versions of one DRO and not
compared. Endpoints with the same domain id are taken for portals of one TRD, an initiator and the acceptor that listens
on its port for the two ends of a link. Source: DRO guide, chapters 2.1, 3.8 and 7.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations

from dro.config.dro_xml.model import DroConfig
from dro.config.lint.finding import CTX, EndpointView, Finding, Machine, PeerView, View, hint, seconds, view_of, warning
from dro.config.lint.network import are_one_network, channels_of, interface_of, servers_by_place
from dro.config.lint.transport import UDP, datagram_size, session_life, window_time
from dro.config.um.interfaces import ANY

Findings = Iterator[Finding]


def lint_together(configs: Sequence[DroConfig], machine: Machine | None = None) -> list[Finding]:
    """Return what to change in files that load, each found on its own by `lint`; in the order of the files."""
    views = [view_of(config, Machine.of_system() if machine is None else machine) for config in configs]
    found: dict[Finding, None] = {}
    for one, other in combinations(views, 2):
        for finding in _pair(one, other):
            found[finding] = None
    for finding in _links(views):
        found[finding] = None
    return list(found)


def _is_same(one: View, other: View) -> bool:
    return bool(one.config.daemon.name) and one.config.daemon.name == other.config.daemon.name


def _pair(one: View, other: View) -> Findings:
    if _is_same(one, other):
        name = other.config.daemon.name
        yield hint(
            other.element("name"), "<name>", f"{one.config.file} has the DRO name {name} as well",
            "two running DROs of one name cannot be told apart", "give each DRO its own name",
            rule="dro-name",
        )  # fmt: skip
        return
    for p in one.endpoints:
        for q in other.endpoints:
            for finding in _endpoints(one, other, p, q):
                yield replace(finding, portal=q.config.name)


def _where(v: View, p: EndpointView | PeerView) -> str:
    return f"portal {p.config.name} of {v.config.file}"


def _endpoints(one: View, other: View, p: EndpointView, q: EndpointView) -> Findings:
    first, second = channels_of(p.receiving), channels_of(q.receiving)
    if not first or not second:
        return
    shared, same_id = first & second, p.config.domain_id == q.config.domain_id
    option = next(iter(servers_by_place(q.receiving).values()), "resolver_multicast_address")
    if shared and not same_id:
        # the default channel is used in many networks that do not meet, so the interface has to agree
        if shared & servers_by_place(q.receiving).keys() or are_one_network(
            interface_of(p.receiving, one.machine), interface_of(q.receiving, other.machine), one.machine
        ):
            group, port = min(shared)
            yield warning(
                q.element("domain-id"), "<domain-id>",
                f"{q.config.domain_id}, but {_where(one, p)} gives the TRD at {group}:{port} the id "
                f"{p.config.domain_id}",
                "each DRO drops what the other says, and nothing is routed",
                f"use one id, or another {option} at {q.config.name}",
                rule="one-trd-two-ids",
            )  # fmt: skip
    elif same_id and not shared:
        told = ", ".join(f"{group}:{port}" for group, port in sorted(second))
        there = ", ".join(f"{group}:{port}" for group, port in sorted(first))
        yield warning(
            q.receiving.place((CTX, "resolver_multicast_port"), (CTX, option)),
            f"context {option}",
            f"{told}, but {_where(one, p)} has {there} in the TRD with the same domain id {p.config.domain_id}",
            "the two never hear each other, and both answer for that domain",
            "use the same for both, or another <domain-id>",
            rule="one-id-two-trds",
        )  # fmt: skip
    elif same_id:
        for (v, a), (w, b) in permutations(((one, p), (other, q))):
            yield from _one_trd(v, a, w, b)


def _one_trd(v: View, a: EndpointView, w: View, b: EndpointView) -> Findings:
    """Compare what `a` sends with what `b` makes of it."""
    for transport in UDP:
        sends, takes = datagram_size(a.sending, transport, "source"), datagram_size(b.receiving, transport, "receiver")
        keys = tuple((CTX, f"transport_{transport}_{name}datagram_max_size") for name in ("", "receiver_", "source_"))
        if sends > takes:
            yield warning(
                b.receiving.place(*keys), " ".join(keys[0]),
                f"takes {takes} bytes, but {_where(v, a)} sends up to {sends} in the same TRD",
                "larger datagrams are lost for good", f"set both to {sends}",
                rule="own-size",
            )  # fmt: skip
    for name, announced, kept in (
        ("remote-topic", a.config.topic_resolution.remote_topic_interest, b.config.remote_topic),
        ("remote-pattern", a.config.topic_resolution.remote_pattern_interest, b.config.remote_pattern),
    ):
        most_ms = announced.max_interval_ms
        if kept.timeout_ms < 2 * most_ms:
            tell = warning if kept.timeout_ms <= most_ms else hint
            yield tell(
                b.element(name), f"<{name}>",
                f"timeout {seconds(kept.timeout_ms)}, but {_where(v, a)} repeats interest every {seconds(most_ms)}",
                "interest that is alive is dropped", f'set timeout="{5 * most_ms}"',
                rule="remote-interest",
            )  # fmt: skip


# peer links


def _links(views: Sequence[View]) -> Findings:
    """Check initiators with the acceptors that they reach, as far as the files say which."""
    peers = [(v, p) for v in views for p in v.peers]
    taken: dict[int, tuple[View, PeerView]] = {}
    for v, a in peers:
        start = a.config.tcp.initiator
        if start is None:
            continue
        ends = [
            (w, b)
            for w, b in peers
            if w is not v
            and not _is_same(v, w)
            and b.config.tcp.listen_port == start.port
            and b.config.tcp.interface in (start.address, ANY)
        ]
        if len(ends) != 1:
            continue  # its companion is in none of these files, or cannot be told
        w, b = ends[0]
        before = taken.setdefault(id(b), (v, a))
        if before[1] is not a:
            yield warning(
                a.element("single-tcp", "initiator"), "<initiator>",
                f"{_where(w, b)} is the companion of {_where(*before)} already",
                "an acceptor has one companion", "add another <peer> with a <listen-port> of its own there",
                rule="companions", portal=a.config.name,
            )  # fmt: skip
            continue
        for finding in _link(v, a, w, b):
            yield replace(finding, portal=a.config.name)
        for (x, c), (_, d) in permutations(((v, a), (w, b))):
            for finding in _one_way(x, c, d):
                yield replace(finding, portal=d.config.name)


def _link(v: View, a: PeerView, w: View, b: PeerView) -> Findings:
    """Check what both ends must have alike."""
    pairs = (
        ("<tls>", bool(a.config.tcp.tls), bool(b.config.tcp.tls), ("single-tcp", "tls")),
        ("<compression>", a.config.tcp.compression or False, b.config.tcp.compression or False,
         ("single-tcp", "compression")),
        ("<udp>", a.config.udp is not None, b.config.udp is not None, ("udp",)),
    )  # fmt: skip
    for name, here, there, path in pairs:
        if here != there:
            has = "is here and not there" if here and not there else "is there and not here"
            what = f"{has}: the companion is {_where(w, b)}"
            if here and there:
                what = f"{here} here, {there} at {_where(w, b)}"
            at = a.element(*path)
            yield warning(at, name, what, "the link does not come up", "make both ends alike", rule="companions")


def _one_way(v: View, a: PeerView, b: PeerView) -> Findings:
    """Compare what `a` sends with how long `b` waits for it."""
    interval_ms, timeout_ms = a.config.keepalive.interval_ms, b.config.keepalive.timeout_ms
    if 0 < timeout_ms < 2 * interval_ms:
        yield warning(
            b.element("gateway-keepalive"), "<gateway-keepalive>",
            f"timeout {seconds(timeout_ms)}, but {_where(v, a)} sends every {seconds(interval_ms)}",
            "an idle link is ended for no reason", f'set timeout="{3 * interval_ms}"',
            rule="keepalive",
        )  # fmt: skip
    if a.config.udp is not None and b.config.udp is not None:
        waits = {name: getattr(b.config.udp, name) for name in ("nak_generation_ms", "activity_timeout_ms")}
        together = replace(a.config.udp, **waits)
        if together == a.config.udp:
            return  # then its own file says it
        at, names = b.element("udp"), ("<session-message> activity-timeout", "<session-message> max-interval")
        for rule, findings in (
            ("window-time", window_time(together, a.element("udp"), "<transmission-window>")),
            ("session-life", session_life(together, at, *names)),
        ):
            for finding in findings:
                yield replace(finding, rule=rule)

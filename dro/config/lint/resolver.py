"""Lint of topic resolution: impossible phases, limits that delay it, multicast that does not leave the host, servers.

Source: topic resolution notes; UM Configuration Guide, options `resolver_*`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dro.config.lint.finding import CTX, RCV, SRC, WRCV, EndpointView, Finding, hint, rate, warning
from dro.config.um.interfaces import ANY
from dro.config.um.sets import ResolverServiceOptions, servers_of, unicast_places, uses_multicast

Findings = Iterator[Finding]
LOOPBACK: Final = "127."


def resolver_phases(p: EndpointView) -> Findings:
    """Advertisements and queries: phases that cannot be, and resolution that is switched off altogether."""
    pairs = (
        (p.sending, SRC, "resolver_advertisement_minimum_initial_interval",
         "resolver_advertisement_maximum_initial_interval"),
        (p.receiving, RCV, "resolver_query_minimum_initial_interval", "resolver_query_maximum_initial_interval"),
        (p.receiving, WRCV, "resolver_query_minimum_interval", "resolver_query_maximum_interval"),
    )  # fmt: skip
    for options, scope, low_name, high_name in pairs:
        keys = ((scope, low_name), (scope, high_name))
        low, high = (options.ms(*key) for key in keys)
        if options.differs(*keys) and low > high > 0:
            yield warning(
                options.place(*keys), " ".join(keys[1]), f"{high} is below the shortest interval, {low}",
                "the intervals cannot grow as they should", f"set it to {max(10 * low, 200)}",
            )  # fmt: skip
    advertised = any(
        p.sending.ms(SRC, f"resolver_advertisement_{name}") for name in ("maximum_initial_interval", "sustain_interval")
    )
    queried = any(
        p.receiving.ms(RCV, f"resolver_query_{name}") for name in ("maximum_initial_interval", "sustain_interval")
    )
    if not advertised and not queried:
        keys = ((SRC, "resolver_advertisement_maximum_initial_interval"),
                (SRC, "resolver_advertisement_sustain_interval"))  # fmt: skip
        yield warning(
            p.sending.place(*keys), " ".join(keys[1]), "neither advertisements nor queries are sent",
            "receivers never find a source", "leave one of the two phases at its default",
        )  # fmt: skip


def resolver_rates(p: EndpointView) -> Findings:
    """A limit below one datagram in a second holds resolution up for seconds."""
    size = p.sending.number(CTX, "resolver_datagram_max_size")
    for name in ("initial_advertisement", "sustain_advertisement", "initial_query", "sustain_query", "wildcard_query"):
        key = (CTX, f"resolver_{name}_bps")
        bps = p.sending.number(*key)
        if p.sending.differs(key) and 0 < bps < 8 * size:
            yield hint(
                p.sending.place(key), " ".join(key), f"{rate(bps)} is below one datagram of {size} bytes in a second",
                "topics are found late", f"set it to {max(1_000_000, 16 * size)}",
            )  # fmt: skip


def resolver_ttl(p: EndpointView) -> Findings:
    key = (CTX, "resolver_multicast_ttl")
    interface = p.sending.um.get_interface(CTX, "resolver_multicast_interface")
    if uses_multicast(p.receiving.um) and p.sending.number(*key) == 0 and not interface.startswith("127."):
        yield warning(
            p.sending.place(key), " ".join(key), "0 keeps multicast on this host",
            "no other host hears this portal", "set it to 1, or to more across routers",
        )  # fmt: skip


def resolver_daemons(p: EndpointView) -> Findings:
    """Unicast resolver daemons that count as silent while they answer, or that applications speak to late."""
    options = p.receiving
    if not unicast_places(options.um):
        return
    daemons = (CTX, "resolver_unicast_daemon"), (CTX, "resolver_unicast_address")
    keepalive, activity, check = (
        (CTX, f"resolver_unicast_{name}") for name in ("keepalive_interval", "activity_timeout", "check_interval")
    )
    every, timeout, look = (options.ms(*key) for key in (keepalive, activity, check))
    if timeout and not every:
        yield warning(
            options.place(keepalive), " ".join(keepalive), "0 sends no keepalives, and daemons answer nothing else",
            "daemons count as silent, and forget who is there", "set it to 500",
        )  # fmt: skip
    elif timeout and timeout < 2 * every:
        yield warning(
            options.place(keepalive, activity), " ".join(activity),
            f"{timeout} ms is below two keepalive intervals of {every} ms",
            "a daemon counts as silent when one answer is late or lost", f"set it to {2 * every} or more",
        )  # fmt: skip
    if 0 < timeout < 5 * look:
        yield hint(
            options.place(check, activity), " ".join(check),
            f"{look} ms is above a fifth of the activity timeout, {timeout} ms", "a silent daemon is noticed late",
            f"set it to {max(1, timeout // 5)} or less",
        )  # fmt: skip
    if not options.number(CTX, "resolver_unicast_force_alive"):
        yield hint(
            options.place(*daemons), "context resolver_unicast_force_alive",
            "applications of the TRD do not speak to a daemon before they have a source or receiver",
            "they learn the domain id late, and the first messages do not cross the DRO", "set it to 1",
        )  # fmt: skip


def resolver_services(p: EndpointView) -> Findings:
    """Topic resolution over TCP alone without an SRS, or without a place to keep what SRSes tell once."""
    options, service = p.receiving, ResolverServiceOptions.of(p.receiving.um)
    udp, cache = (CTX, "resolver_disable_udp_topic_resolution"), (CTX, "resolver_cache")
    if service.is_udp_off and not service.services:
        yield warning(
            options.place(udp), " ".join(udp), "1 switches topic resolution off, as there is no resolver_service",
            "the portal hears nobody, and nobody hears it", "list an SRS in resolver_service, or set it to 0",
        )  # fmt: skip
    elif service.services and not options.number(*cache):
        yield warning(
            options.place(cache), " ".join(cache), "0 keeps no advertisements, and SRSes tell each source once",
            "receivers that come later do not find it", "set it to 1",
        )  # fmt: skip


def resolver_reach(p: EndpointView) -> Findings:
    """Servers on the loopback interface of a portal whose TRD has other hosts."""
    options = p.receiving
    interface = options.um.get_interface(CTX, "default_interface")
    if interface == ANY or interface.startswith(LOOPBACK):
        return
    for name, servers in servers_of(options.um).items():
        for server in servers:
            if server.address.startswith(LOOPBACK):
                yield warning(
                    options.place((CTX, name)), f"context {name}",
                    f"{server} is on this host alone, the portal is at {interface}",
                    "contexts of other hosts cannot reach it, and are not heard",
                    f"start it at {interface} or another address that they reach, and name that in all files",
                )  # fmt: skip


def resolver_transport(p: EndpointView) -> Findings:
    """Data by multicast in a TRD that has servers in place of multicast."""
    if uses_multicast(p.receiving.um) or not servers_of(p.receiving.um):
        return
    mim = (CTX, "mim_incoming_address"), (CTX, "mim_outgoing_address")
    if p.sending.differs(*mim):
        yield hint(
            p.sending.place(*mim), " ".join(mim[0]), "a group for immediate messages, where topics need no multicast",
            "where no multicast passes, as in a cloud, they do not arrive", "leave it out, unless there is multicast",
        )  # fmt: skip
    key = (SRC, "transport")
    if p.sending.um.get_str(*key) == "lbtrm":
        yield hint(
            p.sending.place(key), " ".join(key), "lbtrm sends to groups, and topics are not resolved by multicast here",
            "where no multicast passes, as in a cloud, sources are found and their data does not arrive",
            "set it to tcp or lbtru, unless the TRD has multicast",
        )  # fmt: skip

"""Lint of topic resolution: impossible phases, limits that delay it, multicast that does not leave the host.

Source: topic resolution notes; UM Configuration Guide, options `resolver_*`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dro.config.lint.finding import CTX, RCV, SRC, WRCV, EndpointView, Finding, hint, rate, warning

Findings = Iterator[Finding]


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
    if p.sending.number(*key) == 0 and not interface.startswith("127."):
        yield warning(
            p.sending.place(key), " ".join(key), "0 keeps multicast on this host",
            "no other host hears this portal", "set it to 1, or to more across routers",
        )  # fmt: skip

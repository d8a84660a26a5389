"""Makes what lists of both kinds of portals share: interest, proxies, and a topic with all patterns that find it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from dro.bus.actor import WorkerContext
from dro.bus.listing import TOPICS_MAX, InterestRow, Listings, ProxyRow, Row, TopicRow
from dro.bus.messages import ListRows, Rows
from dro.proto.interest.events import Symbol
from dro.table import Table
from portals.datapath.outgoing import ProxySource
from portals.decisions.core import PortalCore
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX
from portals.shell.matchers import Matchers, shown

KINDS: Final = {PATTERN_NONE: "topic", PATTERN_PCRE: "pcre", PATTERN_REGEX: "regex"}
DOMAINS_MAX: Final = 256  # in one row: strangers decide how many there are

P = TypeVar("P")
Lists = Mapping[str, Callable[[bytes], Iterator[Row | None]]]
"""By name: the rows for a text, and None for each entry that does not count."""


def serve(ctx: WorkerContext, lists: Lists) -> None:
    """Answer for these from now on."""
    listings = Listings(time.monotonic_ns)

    def answer(question: ListRows) -> Rows:
        if question.what not in lists:
            return Rows(question.serial, "[]", 0, f"{ctx.name} lists no {question.what}")
        return listings.page(question, lambda: lists[question.what](question.text.encode()))

    ctx.on_list = answer


def interest_rows(core: PortalCore, portal: str, domain_id: int, text: bytes) -> Iterator[InterestRow | None]:
    """Recorded at the portal; `domain_id` is that of its TRD, 0 for a peer."""
    for key in core.recorded.domains.snapshot():
        if text not in key[0]:
            yield None
            continue
        rejected = key[1] == PATTERN_NONE and key[0] in core.recorded.withheld
        for domain in sorted(core.recorded.domains.get(key, ())):
            via = "local" if domain == domain_id else "remote"
            yield InterestRow(portal, *symbol_of(key), domain, via, rejected)


def proxy_rows(
    ctx: WorkerContext, core: PortalCore, proxies: Table[bytes, P], show: Callable[[P], tuple[str, int]], text: bytes
) -> Iterator[ProxyRow | None]:
    """List proxy receivers and sources; `show` tells of a source where it sends and what it has taken."""
    for key in core.proxy_receivers.snapshot():
        domains = domains_of(core.proxy_receivers.get(key, ()))
        yield ProxyRow(ctx.name, "receiver", *symbol_of(key), domains) if domains and text in key[0] else None
    for otid in proxies.snapshot():
        found, wanted = proxies.get(otid), core.proxies.get(otid)
        if found is None or wanted is None or text not in wanted.topic:
            yield None
            continue
        feeder = "" if wanted.feeder is None else ctx.name_of(wanted.feeder[0])
        topic, origin, (where, taken) = shown(wanted.topic), (wanted.domain_id,), show(found)
        yield ProxyRow(ctx.name, "source", topic, "topic", origin, otid.hex(), where, feeder, taken)


def topic_row(core: PortalCore, portal: str, topic: bytes, sources: int, joined: int, proxies: int) -> TopicRow:
    key = (topic, PATTERN_NONE)
    wanted_by = core.recorded.interested(topic) | set(core.recorded.domains.get(key, ()))
    verdicts = (("inbound", key in core.receivers.refused), ("outbound", topic in core.recorded.withheld))
    return TopicRow(
        portal, shown(topic), sources, joined, domains_of(wanted_by), domains_of(core.proxy_receivers.get(key, ())),
        proxies, " and ".join(name for name, is_rejected in verdicts if is_rejected),
    )  # fmt: skip


def asked_by_patterns(core: PortalCore, topic: bytes, matchers: Matchers) -> Iterator[set[int] | None]:
    """Domains for which a pattern that finds the topic is asked for; None for everything else that is."""
    for key in core.proxy_receivers.snapshot():
        matcher = matchers(*key) if key[1] != PATTERN_NONE else None
        found = core.proxy_receivers.get(key) if matcher is not None and matcher(topic) else None
        yield set(found) if found else None


def one_topic(row: TopicRow, by_patterns: Iterable[set[int] | None]) -> Iterator[TopicRow | None]:
    """The row of a topic that is asked for by name, patterns included."""
    asked_for = set(row.asked_for)
    for domains in by_patterns:
        asked_for |= domains or set()
        yield None
    yield TopicRow(
        row.portal, row.topic, row.sources, row.joined, row.wanted_by, domains_of(asked_for), row.proxies, row.rejected
    )


def some_topics(proxies: Iterable[ProxySource], text: bytes, found: list[str]) -> Iterator[None]:
    """Put the first topics with the text in them into `found`, one look after the other."""
    for proxy in proxies:
        if text in proxy.topic:
            found.append(shown(proxy.topic))
            if len(found) == TOPICS_MAX:
                return
        yield None


def symbol_of(key: Symbol) -> tuple[str, str]:
    return shown(key[0]), KINDS.get(key[1], str(key[1]))


def domains_of(domains: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(domains)[:DOMAINS_MAX])

"""One `read_<element>()` for each element of the DRO XML file that has a meaning here: element in, record out.

Names, units, limits and defaults come from the table in `schema.py`; here stands what the table cannot say: defaults
that depend on the parent, and rules that join several values. Source: DRO guide, chapter 7.3, elements of these names.
"""

from __future__ import annotations

import re
from typing import Final

from dro.config.elements_acl import read_acl
from dro.config.model import (
    AnnouncementConfig,
    ContextQueryConfig,
    EndpointConfig,
    InitialRequestConfig,
    PublishingConfig,
    RateLimit,
    RemoteInterestConfig,
    SqnWindowConfig,
    TopicResolutionConfig,
    UseQueryConfig,
)
from dro.config.reader import ElementReader
from dro.config.um_sources import Reading, read_portal_um

MAX_NAME_BYTES: Final = 127  # Guess: over-long names are errors, the limit is not documented
_USE_QUERY_LIMIT: Final = RateLimit(bps=500_000, objects_per_second=500)
_INTEREST_LIMIT: Final = RateLimit(bps=500_000, objects_per_second=0)
_DOMAIN_ROUTE_LIMIT: Final = RateLimit(bps=0, objects_per_second=50)
PROCESS_NAMES: Final = frozenset({"route-manager"})
"""Of processes of the DRO that are no portals: commands and the log would not know which one is meant."""
_CONTEXT_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,127}")


def read_name(el: ElementReader) -> str:
    """`<name>` of the daemon or a portal; empty when absent."""
    name = el.content_text()
    if el.is_present:
        if not name:
            el.error("is empty", remedy="write a name")
        elif len(name.encode()) > MAX_NAME_BYTES:
            el.error(f"longer than {MAX_NAME_BYTES} bytes", remedy="shorten it")
        elif not name.isprintable():
            el.error(f"{name!r} has characters that do not print", remedy="leave them out")
    el.done()
    return name


def read_portal_name(el: ElementReader) -> str:
    """`<name>` of a portal."""
    name = read_name(el)
    if name in PROCESS_NAMES:
        el.error(f"{name!r} is the name of another process of the DRO", remedy="choose another name")
    return name


def read_endpoint(el: ElementReader, reading: Reading) -> EndpointConfig:
    """`<endpoint>` with the UM options of its files and attributes."""
    name = read_portal_name(el.required_child("name"))
    domain_id = el.required_child("domain-id")
    cost = el.integer_of("cost")
    source_name = read_context_name(el.child("source-context-name"))
    receiver_name = read_context_name(el.child("receiver-context-name"))
    um = read_portal_um(el, reading, source_name, receiver_name)
    endpoint = EndpointConfig(
        name=name,
        domain_id=domain_id.content_integer(default=0),  # 0 only when that is an error already
        cost=cost,
        source_deletion_delay_ms=el.integer_of("source-deletion-delay"),
        max_queue_bytes=el.integer_of("max-queue"),
        smart_batch=el.flag_of("smart-batch"),
        lbm_config=um.paths,
        topic_resolution=read_topic_resolution(el.child("topic-resolution")),
        remote_topic=read_remote_interest(el.child("remote-topic"), "max-topics"),
        remote_pattern=read_remote_interest(el.child("remote-pattern"), "max-patterns"),
        sqn_window=read_sqn_window(el.child("sqn-window")),
        context_query=read_context_query(el.child("context-query")),
        um=um.um,
        sending=um.sending,
        receiving=um.receiving,
        hotlink_index=el.integer_of("hotlink-index"),
        acl=read_acl(el.child("acl")),
        source_context_name=source_name,
        receiver_context_name=receiver_name,
        publishing=read_publishing(el.child("publishing-interval"), in_portal=True),
        line=el.line,
        file=el.file,
    )
    domain_id.done()
    el.done()
    return endpoint


def read_context_name(el: ElementReader) -> str:
    """`<source-context-name>` or `<receiver-context-name>`; empty when absent."""
    name = el.content_text()
    if el.is_present and not _CONTEXT_NAME.fullmatch(name):
        el.error(f"{name[:40]!r} is not a context name", remedy="write 1 to 127 of A-Z a-z 0-9 - _")
    el.done()
    return name


def read_publishing(el: ElementReader, *, in_portal: bool = False) -> PublishingConfig | None:
    """`<publishing-interval>`: the last setting of a group holds. A portal has no group `gateway-config`."""
    if not el.is_present:
        return None
    intervals: dict[str, int] = {}
    groups = el.children("group")
    for group in groups:
        name, interval_s = group.choice("name"), group.integer("ivl")
        group.done()
        if in_portal and name == "gateway-config":
            group.warning("gateway-config has no function in a portal, ignored")
        elif name:
            intervals[name] = interval_s
    if not groups:
        el.error("<group> is missing", remedy="add <group>")
    el.done()
    return PublishingConfig(tuple(intervals.items()))


def read_topic_resolution(el: ElementReader) -> TopicResolutionConfig:
    """`<topic-resolution>`."""
    resolution = TopicResolutionConfig(
        topic_use_query=read_use_query(el.child("topic-use-query")),
        pattern_use_query=read_use_query(el.child("pattern-use-query")),
        remote_topic_interest=read_announcement(el.child("remote-topic-interest"), _INTEREST_LIMIT),
        remote_pattern_interest=read_announcement(el.child("remote-pattern-interest"), _INTEREST_LIMIT),
        domain_route=read_announcement(el.child("domain-route"), _DOMAIN_ROUTE_LIMIT),
        initial_request=read_initial_request(el.child("initial-request")),
    )
    el.done()
    return resolution


def read_use_query(el: ElementReader) -> UseQueryConfig:
    """`<topic-use-query>` and `<pattern-use-query>`."""
    query = UseQueryConfig(
        timeout_ms=el.integer("timeout"),
        max=el.integer("max"),
        periodic_interval_ms=el.integer("periodic-interval"),
        rate_limit=read_rate_limit(el.child("rate-limit"), _USE_QUERY_LIMIT),
    )
    el.done()
    return query


def read_announcement(el: ElementReader, limit: RateLimit) -> AnnouncementConfig:
    """`<remote-topic-interest>`, `<remote-pattern-interest>` and `<domain-route>`.

    Guess: the guide wants the shortest gap below the longest for interest only; equal gaps are fine for routes.
    """
    announcement = AnnouncementConfig(
        min_interval_ms=el.integer("min-interval"),
        max_interval_ms=el.integer("max-interval"),
        rate_limit=read_rate_limit(el.child("rate-limit"), limit),
    )
    low, high = announcement.min_interval_ms, announcement.max_interval_ms
    if low > high or (low == high and el.name != "domain-route"):
        el.error(f"min-interval {low} is not below max-interval {high}", remedy="lower min-interval")
    el.done()
    return announcement


def read_rate_limit(el: ElementReader, default: RateLimit) -> RateLimit:
    """`<rate-limit>`; its defaults depend on the element around it."""
    limit = RateLimit(
        bps=el.integer("bps", default.bps),
        objects_per_second=el.integer("objects-per-second", default.objects_per_second),
    )
    el.done()
    return limit


def read_initial_request(el: ElementReader) -> InitialRequestConfig:
    """`<initial-request>`. The guide shows a rate limit inside it in one place; it has no function there."""
    request = InitialRequestConfig(
        periodic_interval_ms=el.integer("periodic-interval"),
        duration_s=el.integer("duration"),
    )
    el.ignore("rate-limit", "has no function here, ignored")
    el.done()
    return request


def read_remote_interest(el: ElementReader, max_attribute: str) -> RemoteInterestConfig:
    """`<remote-topic>` and `<remote-pattern>`, which name their limit differently."""
    remote = RemoteInterestConfig(
        check_interval_ms=el.integer("check-interval"),
        max=el.integer(max_attribute),
        timeout_ms=el.integer("timeout"),
    )
    el.done()
    return remote


def read_sqn_window(el: ElementReader) -> SqnWindowConfig:
    """`<sqn-window>`: the increment divides the size and is smaller."""
    window = SqnWindowConfig(size=el.integer("size"), increment=el.integer("increment"))
    if window.increment >= window.size:
        el.error(f"increment {window.increment} is not below size {window.size}", remedy="lower the increment")
    elif window.size % window.increment:
        el.error(f"increment {window.increment} does not divide size {window.size}", remedy="use a divisor of size")
    el.done()
    return window


def read_context_query(el: ElementReader) -> ContextQueryConfig:
    """`<context-query>`."""
    query = ContextQueryConfig(
        periodic_interval_ms=el.integer("periodic-interval"),
        max_contexts=el.integer("max-contexts"),
        interval_ms=el.integer("interval"),
        timeout_s=el.integer("timeout"),
    )
    el.done()
    return query

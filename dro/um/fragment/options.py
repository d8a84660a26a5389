"""Options of a context as its engine takes them, and those of the objects of a context."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from dro.clock import s
from dro.config.um.interfaces import multicast_interface
from dro.config.um.options import UmOptions
from dro.config.um.sets import (
    CTX,
    AdvertisingOptions,
    DeliveryOptions,
    QueryOptions,
    ResolverOptions,
    WildcardOptions,
)
from dro.log.events import configuration_warning
from dro.proto.resolver import schedule
from dro.proto.resolver.core import ResolverConfig
from dro.proto.resolver.output import ResolverRates
from dro.proto.resolver.record_queue import Rate
from dro.table import Table
from dro.wire.lbmr import packet as lbmr

MERGED_MAX: Final = 256

log = logging.getLogger(__name__)


def with_interface(options: UmOptions) -> UmOptions:
    """Multicast needs one address: "any" becomes the first interface that can do multicast."""
    given = options.get_interface(CTX, "resolver_multicast_interface")
    chosen = multicast_interface(given, warn=configuration_warning(log))
    return options if chosen == given else options.with_(CTX, "resolver_multicast_interface", chosen)


def resolver_config(
    o: ResolverOptions, source_id: bytes, source_type: int, domain_id: int, *, tells_once: bool = False
) -> ResolverConfig:
    """Take over what the resolver reads."""
    caps = (o.initial_advertisement, o.sustain_advertisement, o.initial_query, o.sustain_query, o.wildcard_query)
    propagation_s = o.domain_id_active_propagation_timeout_s
    return ResolverConfig(
        source_id,
        source_type,
        domain_id=domain_id,
        domain_propagation_ns=propagation_s if propagation_s <= 0 else s(propagation_s),
        answers_use_queries=source_type != lbmr.SenderType.DRO,
        hears_itself=source_type != lbmr.SenderType.DRO,
        tells_once=tells_once,
        datagram_max_bytes=min(o.source_datagram_max_bytes, o.receiver_datagram_max_bytes),
        rates=ResolverRates(*(Rate(cap.bps, cap.records_per_second) for cap in caps)),
    )


def query_options(options: UmOptions, *, uses_hotlinks: bool) -> schedule.QueryOptions:
    """`uses_hotlinks`: as `use_hotlink` says; False: never, as in a DRO."""
    queries = QueryOptions.filling(schedule.QueryOptions, options)
    if uses_hotlinks and DeliveryOptions.of(options).use_hotlink:
        return replace(queries, use_hotlink=True)
    return queries


def wildcard_options(options: UmOptions) -> schedule.WildcardQueryOptions:
    return WildcardOptions.filling(schedule.WildcardQueryOptions, options)


def advertising_options(options: UmOptions) -> schedule.AdvertisingOptions:
    return AdvertisingOptions.filling(schedule.AdvertisingOptions, options)


class ObjectOptions:
    """Options of the objects of one context, and of the topics that its receivers want."""

    def __init__(self, options: UmOptions) -> None:
        self._options = options
        self._merged: dict[UmOptions, UmOptions] = {}  # options of objects -> those with the context's
        self.by_topic: Table[bytes, UmOptions] = (
            Table()
        )  # those of the first receiver; None where only patterns want it

    def merged(self, options: UmOptions | None) -> UmOptions:
        """The options of this context, overwritten by those of one object; equal ones are one object."""
        if options is None or not options.explicit:
            return self._options
        merged = self._merged.get(options)
        if merged is None:
            if len(self._merged) >= MERGED_MAX:
                self._merged.clear()
            merged = self._merged[options] = self._options.merged(options)
        return merged

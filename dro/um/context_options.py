"""Option sets of the configuration as the resolver core takes them. No state; called by the context."""

from __future__ import annotations

import logging

from dro.clock import s
from dro.config.interfaces import multicast_interface
from dro.config.options import UmOptions
from dro.config.um_sets import CTX, AdvertisingOptions, QueryOptions, RateCap, ResolverOptions
from dro.config.um_sets import WildcardOptions as WildcardSet
from dro.proto import schedule
from dro.proto.resolver import ResolverConfig
from dro.proto.resolver_output import ResolverRates
from dro.proto.trlimit import Rate
from dro.wire import lbmr

log = logging.getLogger(__name__)


def with_interface(options: UmOptions) -> UmOptions:
    """Multicast needs one address: "any" becomes the first interface that can do multicast."""
    given = options.get_interface(CTX, "resolver_multicast_interface")
    chosen = multicast_interface(given, warn=log.warning)
    return options if chosen == given else options.with_(CTX, "resolver_multicast_interface", chosen)


def _rate(cap: RateCap) -> Rate:
    return Rate(cap.bps, cap.records_per_second)


def resolver_config(o: ResolverOptions, source_id: bytes, source_type: int, domain_id: int) -> ResolverConfig:
    propagation_s = o.domain_id_active_propagation_timeout_s
    return ResolverConfig(
        source_id,
        source_type,
        domain_id=domain_id,
        domain_propagation_ns=propagation_s if propagation_s <= 0 else s(propagation_s),
        answers_use_queries=source_type != lbmr.SenderType.DRO,
        hears_itself=source_type != lbmr.SenderType.DRO,
        datagram_max_bytes=min(o.source_datagram_max_bytes, o.receiver_datagram_max_bytes),
        rates=ResolverRates(
            _rate(o.initial_advertisement),
            _rate(o.sustain_advertisement),
            _rate(o.initial_query),
            _rate(o.sustain_query),
            _rate(o.wildcard_query),
        ),
    )


def advertising_options(o: AdvertisingOptions) -> schedule.AdvertisingOptions:
    return schedule.AdvertisingOptions(
        send_initial=o.send_at_creation,
        minimum_initial_interval_ns=o.initial_min_ns,
        maximum_initial_interval_ns=o.initial_max_ns,
        minimum_initial_duration_ns=o.initial_duration_ns,
        sustain_interval_ns=o.sustain_interval_ns,
        minimum_sustain_duration_ns=o.sustain_duration_ns,
        send_immediate_response=o.immediate_response,
    )


def query_options(o: QueryOptions) -> schedule.QueryOptions:
    return schedule.QueryOptions(
        minimum_initial_interval_ns=o.initial_min_ns,
        maximum_initial_interval_ns=o.initial_max_ns,
        minimum_initial_duration_ns=o.initial_duration_ns,
        sustain_interval_ns=o.sustain_interval_ns,
        minimum_sustain_duration_ns=o.sustain_duration_ns,
        source_threshold=o.sources_threshold,
        no_source_threshold=o.no_source_threshold,
    )


def wildcard_options(o: WildcardSet) -> schedule.WildcardQueryOptions:
    return schedule.WildcardQueryOptions(
        minimum_interval_ns=o.query_min_ns,
        maximum_interval_ns=o.query_max_ns,
        minimum_duration_ns=o.query_duration_ns,
        no_source_linger_ns=o.no_source_linger_ns,
    )

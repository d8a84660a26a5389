"""Options of a context as the resolver core takes them. No state; called by the context."""

from __future__ import annotations

import logging

from dro.clock import s
from dro.config.um.interfaces import multicast_interface
from dro.config.um.options import UmOptions
from dro.config.um.sets import CTX, ResolverOptions
from dro.log.events import configuration_warning
from dro.proto.resolver.core import ResolverConfig
from dro.proto.resolver.output import ResolverRates
from dro.proto.resolver.record_queue import Rate
from dro.wire.lbmr import packet as lbmr

log = logging.getLogger(__name__)


def with_interface(options: UmOptions) -> UmOptions:
    """Multicast needs one address: "any" becomes the first interface that can do multicast."""
    given = options.get_interface(CTX, "resolver_multicast_interface")
    chosen = multicast_interface(given, warn=configuration_warning(log))
    return options if chosen == given else options.with_(CTX, "resolver_multicast_interface", chosen)


def resolver_config(o: ResolverOptions, source_id: bytes, source_type: int, domain_id: int) -> ResolverConfig:
    caps = (o.initial_advertisement, o.sustain_advertisement, o.initial_query, o.sustain_query, o.wildcard_query)
    propagation_s = o.domain_id_active_propagation_timeout_s
    return ResolverConfig(
        source_id,
        source_type,
        domain_id=domain_id,
        domain_propagation_ns=propagation_s if propagation_s <= 0 else s(propagation_s),
        answers_use_queries=source_type != lbmr.SenderType.DRO,
        hears_itself=source_type != lbmr.SenderType.DRO,
        datagram_max_bytes=min(o.source_datagram_max_bytes, o.receiver_datagram_max_bytes),
        rates=ResolverRates(*(Rate(cap.bps, cap.records_per_second) for cap in caps)),
    )

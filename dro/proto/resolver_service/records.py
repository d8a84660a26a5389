"""Records of topic resolution over UDP as records of SRS, and back.

A source record of SRS says what an advertisement says but for: hops since the origin, hotlink index, windows of late
join, stores, and the context that owns the source, where a DRO advertises it. Guess: the context instance and type of a
record are those of the context that advertises, as in packets over UDP; one hop stands for a DRO. A record about
interest has no type of pattern: all are PCRE.

Source: wire notes LBMSRS 3.4 and 3.6.
"""

from __future__ import annotations

from dro.errors import DecodeError
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import ContextInstance
from dro.wire.source_string import format_source, parse_source
from dro.wire.srs.messages import SourceInfo


def source_info(tir: lbmr.Tir, instance: bytes, context_type: int, domain_id: int) -> SourceInfo | None:
    """Write an advertisement of the context `instance`; None for one without OTID, which SRS cannot name."""
    options = tir.options or lbmr.TirOptions()
    if options.otid is None:
        return None
    extended = options.extended or lbmr.ExtendedFunctionality(0, 0)
    ulb = options.first(lbmr.Ulb)
    return SourceInfo(
        options.otid,
        tir.topic,
        format_source(tir.transport, tir.topic_index).encode(),
        tir.topic_index,
        getattr(tir.transport, "host_id", 0),
        functionality=extended.flags,
        request_ip=extended.ip,
        request_port=extended.port,
        domain_id=options.domain_id or domain_id,
        ulb_source_id=ulb.ulb_source_id if ulb else 0,
        ulb_queue_id=ulb.queue_id if ulb else 0,
        ulb_registration_id=ulb.registration_id if ulb else 0,
        context_instance=instance,
        context_type=context_type,
        version_flags=0,
        ttl=lbmr.TIR_TTL,
        cost=options.cost.cost if options.cost else 0,
    )


def advertisement(info: SourceInfo) -> lbmr.Tir:
    """Write a source record as an advertisement. Raises: DecodeError for a source string that names no session."""
    try:
        source = parse_source(info.source.decode("ascii"), info.host_id)
    except ValueError as e:
        raise DecodeError("sir.source", f"{info.source!r} is no source string") from e
    items: list[lbmr.TirOption] = []
    if info.context_type == lbmr.SenderType.DRO or info.cost:
        items.append(lbmr.Cost(1, info.cost))
    items.append(lbmr.OtidOption(info.otid))
    if info.context_type != lbmr.SenderType.DRO:
        items.append(ContextInstance(info.context_instance))
    if info.domain_id:
        items.append(lbmr.DomainId(info.domain_id))
    items.append(lbmr.ExtendedFunctionality(info.request_port, info.request_ip, info.functionality))
    return lbmr.Tir(info.topic, source.address, info.ttl, info.topic_index, lbmr.TirOptions(tuple(items)))

"""Whom the receivers of a source ask for its messages: what its advertisement says of its origin.

No state. Source: client library notes, sections 5 and 6; wire notes LBMR, section 6. A DRO passes these options on, so
that they say of a proxy source what its origin says. Guess: the late join option goes before the extended functionality
flag, which needs the transport index of the OTID; the topic index at the origin is that of the OTID.
"""

from __future__ import annotations

from dataclasses import dataclass

from dro.errors import DecodeError
from dro.wire import otid as otid_codec
from dro.wire.lbmc.headers import ContextAddress
from dro.wire.lbmr.options import ExtendedFunctionality, Functionality, LateJoin, TirOption, TirOptions, Ume, UmeStore


@dataclass(frozen=True, slots=True)
class RetainingOrigin:
    """A source that retains messages, as it is asked. `is_persistent`: it has stores."""

    address: ContextAddress
    transport_index: int
    topic_index: int
    is_persistent: bool = False


def origin_of(options: TirOptions | None, otid: bytes) -> RetainingOrigin | None:
    """Return whom to ask; None when the source offers no late join, or says too little."""
    if options is None:
        return None
    extended, offered = options.extended, options.first(LateJoin)
    flags = extended.flags if extended is not None else 0
    if offered is None and not flags & Functionality.LATE_JOIN:
        return None
    try:
        known = otid_codec.decode(otid)
    except DecodeError:
        return None
    asked = offered if offered is not None and offered.port else extended
    if asked is None or not asked.ip or not asked.port:
        return None
    return RetainingOrigin(
        ContextAddress(options.domain_id or 0, asked.ip, asked.port),
        known.transport_index if offered is None else offered.transport_index,
        known.topic_index,
        bool(flags & Functionality.UME) or options.first(Ume) is not None or options.first(UmeStore) is not None,
    )


def offer(ip: int, port: int, transport_index: int) -> tuple[TirOption, ...]:
    """Return what a source that retains messages is advertised with.

    Guess: the option is written once, when nothing has been sent, as UM reads the range that counts from its answers.
    """
    return (
        LateJoin(port=port, ip=ip, transport_index=transport_index, high_sqn=0xFFFFFFFF, low_sqn=0),
        ExtendedFunctionality(port=port, ip=ip, flags=Functionality.LATE_JOIN),
    )

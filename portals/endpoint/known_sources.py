"""How a portal has joined a source, in bytes that siblings keep and give back to its next incarnation.

With them the next incarnation joins the session at once, without having heard an advertisement. What the advertisement
said besides is in `SourceSeen`; the first one that is heard corrects what has changed. No state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct, error
from typing import Any, Final

from dro.errors import DecodeError
from dro.proto.context.sources import BoundSource
from dro.wire.cursor import Reader
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import read_tir_options
from dro.wire.lbmr.records import read_transport, write_transport
from portals.decisions.advertisement import pass_through_of
from portals.decisions.messages import SourceSeen
from portals.endpoint.join_rules import cost_through

_JOIN_INFO: Final = Struct("!IIB8sB")  # topic index, who advertises: address, is a DRO, source id; transport code
_NO_ID: Final = bytes(8)


@dataclass(frozen=True, slots=True)
class JoinedAs:
    """A source as it was joined, and by whom it was advertised."""

    tir: lbmr.Tir
    is_from_dro: bool
    source_id: bytes | None
    source_ip: int


def seen_here(source: BoundSource[Any], own_cost: int) -> tuple[int, int, bytes, bytes]:
    """Return hop count, cost with that of this portal, the options that cross the DRO, and how it is joined."""
    cost = source.tir.options.cost if source.tir.options else None
    return *cost_through(cost, own_cost), pass_through_of(source.tir), join_info_of(source)


def join_info_of(source: BoundSource[Any]) -> bytes:
    code, body = write_transport(source.address)
    source_id = (source.source_id or _NO_ID).ljust(8, b"\0")[:8]
    return _JOIN_INFO.pack(source.topic_index, source.source_ip, source.is_from_dro, source_id, code) + body


@lru_cache(maxsize=1024)  # sources of one origin have the same
def _passed_through(options: bytes) -> tuple[lbmr.TirOption, ...]:
    return read_tir_options(Reader(options)).items if options else ()


def known_source(seen: SourceSeen, portal_cost: int) -> JoinedAs:
    """`portal_cost`: of the portal that had joined it. Raises: DecodeError for what no portal wrote."""
    try:
        index, source_ip, is_from_dro, source_id, code = _JOIN_INFO.unpack_from(seen.join_info)
    except error as e:
        raise DecodeError("way", f"{len(seen.join_info)} bytes") from e
    address = read_transport(code, seen.join_info[_JOIN_INFO.size :])
    items: tuple[lbmr.TirOption, ...] = (lbmr.OtidOption(seen.otid), lbmr.DomainId(seen.domain_id))
    if seen.hop_count or seen.cost != portal_cost:
        items = (lbmr.Cost(hop_count=seen.hop_count, cost=max(0, seen.cost - portal_cost)), *items)
    items += _passed_through(seen.pass_through)
    tir = lbmr.Tir(seen.topic, address, lbmr.TIR_TTL, index, lbmr.TirOptions(items))
    return JoinedAs(tir, bool(is_from_dro), source_id if source_id != _NO_ID else None, source_ip)

"""The advertisement of a proxy source, made from that of its origin.

OTID and originating domain stay; cost grows by the cost of both portals, the hop count by one. Queues and load
balancing are left out: a DRO does not carry them. All other options are kept unchanged, so that receivers send their
requests for late join and recovery to the origin, through the DROs. A portal with a `<hotlink-index>` adds it, so that
receivers join the proxy sources of all such portals; it does not cross the next DRO. Source: wire notes LBMR section 6;
topic resolution notes 4.1, rule 6; DRO guide 3.6.3 and 3.9. Guess: the place of the index.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr import options as lbmr
from dro.wire.lbmr.options import Cost, DomainId, OtidOption, TirOption, TirOptions
from dro.wire.lbmr.packet import NAME_MAX, Tir
from portals.decisions.messages import SourceSeen

_REMADE = (OtidOption, Cost, DomainId)
NOT_SERVED: Final = (lbmr.UmqRcrIndex, lbmr.UmqQueueInfo, lbmr.QueueContextInstance, lbmr.Ulb)
_NOT_SERVED_FLAGS: Final = lbmr.Functionality.UMQ | lbmr.Functionality.ULB
MAX_HOPS: Final = 255
MAX_COST: Final = 0x7FFFFFFF


def pass_through_of(tir: Tir) -> bytes:
    """The options of `tir` that cross a DRO unchanged, encoded; empty when there are none."""
    if tir.options is None:
        return b""
    kept = tuple(served(item) for item in tir.options.items if not isinstance(item, (*_REMADE, *NOT_SERVED)))
    return lbmr.write_tir_options(TirOptions(kept)) if kept else b""


def served(item: TirOption) -> TirOption:
    """The option as a DRO passes it on."""
    if isinstance(item, lbmr.ExtendedFunctionality):
        return replace(item, flags=item.flags & ~_NOT_SERVED_FLAGS, reserved=0)
    return item


def proxy_options(seen: SourceSeen, portal_cost: int, hotlink_index: int = 0) -> tuple[TirOption, ...]:
    """Options of the proxy source's advertisement next to its OTID. Cost and index are those of the egress portal.

    Raises: DecodeError when a sibling sent options that do not decode.
    """
    return _options(seen.pass_through, seen.hop_count, seen.cost + portal_cost, seen.domain_id, hotlink_index)


@lru_cache(maxsize=1024)  # sources of one origin have the same
def _options(
    pass_through: bytes, hop_count: int, cost: int, domain_id: int, hotlink_index: int
) -> tuple[TirOption, ...]:
    kept = lbmr.read_tir_options(Reader(pass_through)).items if pass_through else ()
    if hop_count >= MAX_HOPS:
        raise DecodeError("tir.cost", f"hop count {hop_count}")
    cost = min(max(0, cost), MAX_COST)  # a sum of strangers' figures: never FINAL_COST by accident
    if hotlink_index:
        extended = TirOptions(kept).extended or lbmr.ExtendedFunctionality(port=0, ip=0)
        kept = TirOptions(kept).replacing(replace(extended, reserved=hotlink_index)).items
    return (Cost(hop_count=hop_count + 1, cost=cost), DomainId(domain_id), *kept)


def is_name(symbol: bytes) -> bool:
    """Say whether it can be a topic or pattern of ours. Counted fields may hold what a NUL-ended name cannot."""
    return 0 < len(symbol) <= NAME_MAX and b"\0" not in symbol

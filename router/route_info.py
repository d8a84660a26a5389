"""ROUTE, the message in which a DRO describes itself: ROUTE_INFO [GATEWAY_NAME] ROUTE_INFO_NEIGHBOR ... [EXTOPT].

Source: wire notes of the peer link, sections 4, 6 and 7. Guess: ROUTE_INFO is the first block. Ours: hotlink indexes
travel in EXTOPT blocks of subtype 0xF005 with both ignore bits, pairs of u32 domain id and u16 index, as many whole
pairs in each block as fit it; who does not know the subtype skips it. Readiness for equal-cost sharing is a block of
subtype 0xF00B likewise, with a byte for the method; a longer one is another method, by its first byte. The last block
of a signed message is one of subtype 0xF00E, with the signature.

Most messages repeat what is known, so the head is read by itself, and what is passed on is the message as it came.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.wire.lbmc.block import HEAD_SIZE, RawBlock
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import END_NONE, MINIMAL_HEADER_SIZE, BlockType, MessageType
from dro.wire.lbmc.dro_blocks import GatewayName, RouteInfo, RouteInfoNeighbor
from dro.wire.lbmc.message import control_message, decode, encode
from router.topology import VERSION_MASK, DroRecord, Hotlink, Neighbour, is_domain

SQN_MASK: Final = 0xFFFF
TTL_MAX: Final = 0xFF
COST_MAX: Final = 0x7FFF_FFFF  # that of the configuration
HOTLINK_SUBTYPE: Final = 0xF005
SHARING_SUBTYPE: Final = 0xF00B
SIGNATURE_SUBTYPE: Final = 0xF00E
SIGNATURE_SIZE: Final = 16
NEIGHBOURS_MAX: Final = 2_400
"""Of one DRO: so many fit a message, 65,535 bytes, with its name and an index for each. The blocks alone would allow
3,273."""

_EXTOPT: Final = Struct("!BBHH")  # flags, id, subtype, offset of the piece
_EXTOPT_IGNORE: Final = 0xC0
_EXTOPT_MORE: Final = 0x20
_PAIR: Final = Struct("!IH")
_PAIRS_MAX: Final = 41
_NAME_MAX: Final = 251
_HEAD: Final = Struct("!BBHBBHIIQIHHB")
_BLOCK_SIZE: Final = 32
_BEFORE_SIGNATURE: Final = bytes([END_NONE, HEAD_SIZE + _EXTOPT.size + SIGNATURE_SIZE]) + _EXTOPT.pack(
    _EXTOPT_IGNORE, 0, SIGNATURE_SUBTYPE, 0
)
_TOPOLOGY_AT: Final = 24
_VERSION_AT: Final = 28
_SQN_AT: Final = 30
_TTL_AT: Final = 32


@dataclass(frozen=True, slots=True)
class RouteHead:
    """The fields of a ROUTE that change from one to the next, and whose it is."""

    node_id: int
    topology: int
    version: int
    sqn: int
    ttl: int


class RefusedRouteError(DecodeError):
    """A well-formed ROUTE that describes what cannot be."""


def read_head(data: bytes) -> RouteHead:
    """Read the head of a ROUTE. Raises: DecodeError when it is none."""
    if len(data) < MINIMAL_HEADER_SIZE + _BLOCK_SIZE:
        raise DecodeError("route", f"{len(data)} bytes, it has {MINIMAL_HEADER_SIZE + _BLOCK_SIZE} at least")
    first, code, length, _, size, _, _, _, node_id, topology, version, sqn, ttl = _HEAD.unpack_from(data)
    if first != MessageType.CONTROL or code != BlockType.ROUTE_INFO or size < _BLOCK_SIZE:
        raise DecodeError("route", f"begins with type {first:#04x}, block {code:#04x} of {size} bytes")
    if length != len(data):
        raise DecodeError("route.msglen", f"{length} bytes, there are {len(data)}")
    return RouteHead(node_id, topology, version, sqn, ttl)


def is_repeat(data: bytes, known: bytes) -> bool:
    """Whether two of them say the same of a DRO: all is equal but for sqn, ttl, and the signatures."""
    return (
        data[:_TOPOLOGY_AT] == known[:_TOPOLOGY_AT]
        and data[_VERSION_AT:_SQN_AT] == known[_VERSION_AT:_SQN_AT]
        and data[_TTL_AT + 1 : _end(data)] == known[_TTL_AT + 1 : _end(known)]
    )


def _end(data: bytes) -> int:
    """Find where the signature begins, if there is one."""
    at = len(data) - SIGNATURE_SIZE
    return at if data.endswith(_BEFORE_SIGNATURE, _TTL_AT + 1, at) else len(data)


def is_signed(data: bytes) -> bool:
    return _end(data) < len(data)


def split_signature(data: bytes) -> tuple[bytes, bytes]:
    """Split what is signed, with a ttl of 0, from the signature, which is empty when there is none."""
    end = _end(data)
    return b"%b\0%b" % (data[:_TTL_AT], data[_TTL_AT + 1 : end]), data[end:]


def with_ttl(data: bytes, ttl: int) -> bytes:
    return b"%b%c%b" % (data[:_TTL_AT], ttl, data[_TTL_AT + 1 :])


def read_record(data: bytes) -> DroRecord:
    """Read a record. Raises: DecodeError, of which `RefusedRouteError` is about a message that is well formed."""
    message = decode(data)
    if message.must_drop:
        raise RefusedRouteError("route", "has a block that is not known and must not be skipped")
    info, name = message.get(RouteInfo), message.get(GatewayName)
    assert info is not None  # `read_head` has seen it
    if is_domain(info.node_id):
        raise RefusedRouteError("route.node_id", f"{info.node_id} is the id of a domain")
    neighbours: dict[int, Neighbour] = {}
    hotlinks: dict[int, Hotlink] = {}
    sharing = 0
    for block in message.blocks:
        if isinstance(block, RouteInfoNeighbor):
            _add(neighbours, info.node_id, Neighbour(block.node_id, block.ingress_cost, block.egress_cost))
        elif block.code == BlockType.EXTOPT:
            option = block.body()
            hotlinks.update((hotlink.domain_id, hotlink) for hotlink in _hotlinks(option))
            sharing = _sharing(option) or sharing
    if not hotlinks.keys() <= neighbours.keys():
        raise RefusedRouteError("route.hotlink", "an index is of a domain that is not its neighbour")
    return DroRecord(
        info.node_id,
        tuple(sorted(neighbours.values())),
        tuple(sorted(hotlinks.values())),
        info.version,
        "" if name is None else name.name.decode("utf-8", "replace"),
        sharing,
    )


def _add(neighbours: dict[int, Neighbour], own: int, new: Neighbour) -> None:
    if new.node_id in (0, own):
        raise RefusedRouteError("route.neighbour", f"{new.node_id} cannot be its neighbour")
    if new.node_id in neighbours:
        raise RefusedRouteError("route.neighbour", f"{new.node_id} twice")
    for cost in (new.ingress_cost, new.egress_cost):
        if not 1 <= cost <= COST_MAX:
            raise RefusedRouteError("route.cost", f"{cost} to {new.node_id}, costs are from 1 to {COST_MAX}")
    if len(neighbours) >= NEIGHBOURS_MAX:
        raise RefusedRouteError("route.neighbour", f"more than {NEIGHBOURS_MAX}")
    neighbours[new.node_id] = new


def _hotlinks(option: bytes) -> list[Hotlink]:
    """Read hotlinks from the body of an EXTOPT block; none when its subtype is another."""
    if len(option) < _EXTOPT.size or _EXTOPT.unpack_from(option)[2] != HOTLINK_SUBTYPE:
        return []
    pairs = option[_EXTOPT.size :]
    if len(pairs) % _PAIR.size:
        raise DecodeError("route.hotlink", f"{len(pairs)} bytes are no pairs of {_PAIR.size}")
    return [Hotlink(domain, index) for domain, index in _PAIR.iter_unpack(pairs) if index]


def _sharing(option: bytes) -> int:
    """Read the sharing method from the body of an EXTOPT block; 0 when its subtype is another."""
    if len(option) < _EXTOPT.size or _EXTOPT.unpack_from(option)[2] != SHARING_SUBTYPE:
        return 0
    if len(option) == _EXTOPT.size:
        raise DecodeError("route.sharing", "no method")
    return option[_EXTOPT.size]


def write_route(
    record: DroRecord, *, sqn: int, ttl: int, topology: int, configuration: int, gateway_version: int,
    has_signature: bool = False,
) -> bytes:  # fmt: skip
    """`record` has `NEIGHBOURS_MAX` neighbours at most. `has_signature`: with room for one, to be filled in."""
    info = RouteInfo(
        record.node_id, record.version & VERSION_MASK, sqn & SQN_MASK, min(ttl, TTL_MAX), topology, configuration,
        gateway_version,
    )  # fmt: skip
    blocks: list[AnyBlock] = [info]
    if record.name:
        blocks.append(GatewayName(record.name.encode()[:_NAME_MAX]))
    blocks += [RouteInfoNeighbor(n.node_id, n.ingress_cost, n.egress_cost) for n in record.neighbours]
    blocks += _hotlink_options(record.hotlinks)
    if record.sharing:
        option = _EXTOPT.pack(_EXTOPT_IGNORE, 0, SHARING_SUBTYPE, 0) + bytes([record.sharing])
        blocks.append(RawBlock(BlockType.EXTOPT, option))
    if has_signature:
        blocks.append(RawBlock(BlockType.EXTOPT, _BEFORE_SIGNATURE[HEAD_SIZE:] + bytes(SIGNATURE_SIZE)))
    return encode(control_message(*blocks))


def _hotlink_options(hotlinks: tuple[Hotlink, ...]) -> list[AnyBlock]:
    made: list[AnyBlock] = []
    for at in range(0, len(hotlinks), _PAIRS_MAX):
        piece = hotlinks[at : at + _PAIRS_MAX]
        flags = _EXTOPT_IGNORE | (_EXTOPT_MORE if at + _PAIRS_MAX < len(hotlinks) else 0)
        head = _EXTOPT.pack(flags, 0, HOTLINK_SUBTYPE, at * _PAIR.size)
        made.append(RawBlock(BlockType.EXTOPT, head + b"".join(_PAIR.pack(h.domain_id, h.index) for h in piece)))
    return made

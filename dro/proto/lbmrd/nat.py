"""Network address translation of advertisements: which network domain an address is in, and other addresses in TIRs.

A datagram is changed in place: the address and the port of each TIR that a rule matches, nothing else. That is the
address of the source and, of LBT-RM, the port that NAKs go to. TIR options and OTIDs stay as they are.

Source: public manual, lbmrd configuration file; wire notes LBMR section 5. Guess: the first matching rule is applied,
and where networks of two domains contain an address, that with the longest prefix counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr.packet import HEADER_SIZE, NAME_MAX, PacketType
from dro.wire.source_string import TransportCode

_TIR_FIXED: Final = Struct("!BBHI")
_LENGTH_OPTION: Final = Struct("!BBH")
_HAS_OPTIONS: Final = 0x80
_BODY_SIZES: Final[Mapping[int, tuple[int, ...]]] = {
    TransportCode.TCP: (6, 10), TransportCode.LBTRU: (6, 10), TransportCode.LBTRM: (16,), TransportCode.RDMA: (10,),
}  # fmt: skip
"""Those that begin with an IPv4 address and end with the port that belongs to it."""


@dataclass(frozen=True, slots=True)
class NatRule:
    """One rule of a transform; None matches any value, or keeps it."""

    match_ip: int | None
    match_port: int | None
    ip: int | None
    port: int | None


@dataclass(frozen=True, slots=True)
class Translation:
    """`<domains>` and `<transformations>`: networks with the domain of each, and rules by source and destination.

    A datagram that a client in one domain has sent is translated for each other domain for which there are rules.
    """

    networks: tuple[tuple[IPv4Network, str], ...] = ()
    rules: Mapping[tuple[str, str], tuple[NatRule, ...]] = field(default_factory=dict)

    def domain_of(self, ip: int) -> str:
        """The network domain of an address; empty for one that is in none."""
        found, longest = "", -1
        for network, domain in self.networks:
            if network.prefixlen > longest and ip & int(network.netmask) == int(network.network_address):
                found, longest = domain, network.prefixlen
        return found


def translated(data: bytes, rules: Sequence[NatRule]) -> bytes:
    """A datagram of type 0 or 1 with what `rules` say of its TIRs. Raises: DecodeError when they cannot be found."""
    r = Reader(data, HEADER_SIZE)
    changed: bytearray | None = None
    for _ in range(data[1]):
        if data[0] & 0x07 == PacketType.WILDCARD:
            r.u8("wildcard_tqr.type")
        r.cstring("tqr.topic", NAME_MAX)
    for _ in range(data[2] << 8 | data[3]):
        at, end = _read_body(r)
        if at == end:
            continue
        ip, port = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[end - 2 : end], "big")
        rule = next((rule for rule in rules if rule.match_ip in (None, ip) and rule.match_port in (None, port)), None)
        if rule is None:
            continue
        changed = bytearray(data) if changed is None else changed
        if rule.ip is not None:
            changed[at : at + 4] = rule.ip.to_bytes(4, "big")
        if rule.port is not None:
            changed[end - 2 : end] = rule.port.to_bytes(2, "big")
    return data if changed is None else bytes(changed)


def _read_body(r: Reader) -> tuple[int, int]:
    """Pass one TIR; where its transport body begins and ends, or twice the same when that has no port to replace."""
    r.cstring("tir.topic", NAME_MAX)
    code, length, _, _ = r.unpack("tir", _TIR_FIXED)
    if code & _HAS_OPTIONS:
        kind, size, total = r.unpack("tir.options", _LENGTH_OPTION)
        if (kind, size) != (0, _LENGTH_OPTION.size) or total < size:
            raise DecodeError("tir.options", "no length option in front", r.pos - size)
        r.take("tir.options", total - size)
    at = r.pos
    r.take("tir.transport", length)
    sizes = _BODY_SIZES.get(code & ~_HAS_OPTIONS)
    if sizes is None:
        return at, at
    if length not in sizes:
        raise DecodeError("tir.transport", f"{length} bytes, not {sizes}", at)
    return at, r.pos

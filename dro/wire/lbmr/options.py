"""Options of a TIR and of a whole LBMR packet, as records.

Fields stand in wire order, flags and reserved words are keywords with the value a sender wants, so `Cost(2, 11)` is
complete. IPv4 addresses are u32 ints. Source: wire notes LBMR sections 6 and 10; order and flags of what we send as
UM does in the real capture (sections 2 and A26).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias, TypeVar

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr.tlv import IGNORE16, Flags8, Flags16, OptionTable, UnknownOption, kind

FINAL_COST: Final = -1
"""Cost of a final advertisement: the source is gone (A14)."""

VERSION_6_17: Final = 0x06110000
"""The library version that we name ourselves: major, minor, maintenance, patch, a byte each."""


# TIR options


@dataclass(frozen=True, slots=True)
class Ume(Flags16):
    """Persistence with one store, and the sequence numbers it has. Flags: 0x4000 late join, 0x2000 store(s),
    0x1000 quorum capable, 0x0800 acknowledgements go to the source."""

    store_port: int
    source_port: int
    store_ip: int
    source_ip: int
    registration_id: int
    transport_index: int
    high_sqn: int
    low_sqn: int


@dataclass(frozen=True, slots=True)
class UmeStore(Flags8):
    """One store of a source; repeats."""

    group_index: int
    store_port: int
    store_index: int
    store_ip: int
    registration_id: int


@dataclass(frozen=True, slots=True)
class UmeStoreGroup(Flags8):
    """One group of stores; repeats."""

    group_index: int
    group_size: int
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class LateJoin(Flags16):
    """Where to ask for messages sent before a receiver came, and which there are. Flag 0x4000: acknowledge to
    the source."""

    port: int
    reserved: int = field(default=0, kw_only=True)
    ip: int
    transport_index: int
    high_sqn: int
    low_sqn: int


@dataclass(frozen=True, slots=True)
class UmqRcrIndex(Flags16):
    """Receiver control record index of a queue."""

    index: int


@dataclass(frozen=True, slots=True)
class UmqQueueInfo(Flags16):
    """A queue and what the source is to it: flags 0x4000 queue, 0x2000 receiver listen, 0x1000 control,
    0x0800 source receiver listen, 0x0400 participants only."""

    queue: bytes


@dataclass(frozen=True, slots=True)
class Cost(Flags8):
    """DROs passed since the origin and the sum of portal costs; `cost` is signed, `FINAL_COST` ends the source."""

    hop_count: int
    cost: int

    @property
    def is_final(self) -> bool:
        return self.cost == FINAL_COST


@dataclass(frozen=True, slots=True)
class OtidOption(Flags16):
    """The originating transport id, 32 bytes, copied unchanged from DRO to DRO."""

    otid: bytes


@dataclass(frozen=True, slots=True)
class ContextInstance(Flags8):
    """The context that owns the originating source, 8 bytes."""

    reserved: int = field(default=0, kw_only=True)
    instance: bytes


@dataclass(frozen=True, slots=True)
class StoreContextInstance(Flags8):
    """Context instance of the store at `index`; repeats."""

    index: int
    instance: bytes


@dataclass(frozen=True, slots=True)
class QueueContextInstance(Flags8):
    """Context instance of the queue at `index`; repeats."""

    index: int
    instance: bytes


@dataclass(frozen=True, slots=True)
class Ulb(Flags16):
    """Ultra load balancing without a broker: not forwarded by a DRO."""

    queue_id: int
    registration_id: int
    ulb_source_id: int
    ip: int
    port: int
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class DomainId(Flags16):
    """The TRD where the source originates."""

    domain_id: int


class Functionality(IntEnum):
    """Bits of `ExtendedFunctionality.flags`."""

    LATE_JOIN = 0x1
    UME = 0x2
    UMQ = 0x4
    ULB = 0x8


@dataclass(frozen=True, slots=True)
class ExtendedFunctionality(Flags16):
    """Request address of the originating context and what the source offers; `flags` are `Functionality` bits.

    `reserved`: Guess: of a proxy source, the `<hotlink-index>` of the portal that advertises it, in the word that
    domain routes have in the same place (A17); 0: none.
    """

    port: int
    reserved: int = field(default=0, kw_only=True)
    ip: int
    flags: int = 0


TirOption: TypeAlias = (
    Ume
    | UmeStore
    | UmeStoreGroup
    | LateJoin
    | UmqRcrIndex
    | UmqQueueInfo
    | Cost
    | OtidOption
    | ContextInstance
    | StoreContextInstance
    | Ulb
    | QueueContextInstance
    | DomainId
    | ExtendedFunctionality
    | UnknownOption
)

TIR_OPTIONS: Final = OptionTable[TirOption](
    "tir.option",
    (
        kind(0x01, Ume, "HHHIIIIII"),
        kind(0x02, UmeStore, "BBHHII"),
        kind(0x03, UmeStoreGroup, "BBHH"),
        kind(0x04, LateJoin, "HHHIIII"),
        kind(0x05, UmqRcrIndex, "HI"),
        kind(0x06, UmqQueueInfo, "H*"),
        kind(0x07, Cost, "BBi"),
        kind(0x08, OtidOption, "H32s"),
        kind(0x09, ContextInstance, "BB8s"),
        kind(0x0A, StoreContextInstance, "BB8s"),
        kind(0x0B, Ulb, "HIQIIHH"),
        kind(0x0C, QueueContextInstance, "BB8s"),
        kind(0x0D, DomainId, "HI"),
        kind(0x0E, ExtendedFunctionality, "HHHII"),
    ),
    UnknownOption,
)

K = TypeVar("K", bound=TirOption)


@dataclass(frozen=True, slots=True)
class TirOptions:
    """The options of one TIR in wire order; the length option is made when writing.

    Properties give the first option of a kind, or None.
    """

    items: tuple[TirOption, ...] = ()

    def all(self, record: type[K]) -> tuple[K, ...]:
        return tuple(item for item in self.items if isinstance(item, record))

    def first(self, record: type[K]) -> K | None:
        for item in self.items:
            if isinstance(item, record):
                return item
        return None

    def replacing(self, option: TirOption) -> TirOptions:
        """A copy in which `option` stands for the first of its kind, or is put where its code belongs."""
        for at, item in enumerate(self.items):
            if type(item) is type(option):
                return TirOptions((*self.items[:at], option, *self.items[at + 1 :]))
        code = TIR_OPTIONS.code(option)
        later = (at for at, item in enumerate(self.items) if TIR_OPTIONS.code(item) > code)
        at = next(later, len(self.items))
        return TirOptions((*self.items[:at], option, *self.items[at:]))

    @property
    def otid(self) -> bytes | None:
        found = self.first(OtidOption)
        return found.otid if found else None

    @property
    def cost(self) -> Cost | None:
        return self.first(Cost)

    @property
    def is_final(self) -> bool:
        """A final advertisement: the source is gone."""
        cost = self.cost
        return cost is not None and cost.is_final

    @property
    def domain_id(self) -> int | None:
        found = self.first(DomainId)
        return found.domain_id if found else None

    @property
    def context_instance(self) -> bytes | None:
        found = self.first(ContextInstance)
        return found.instance if found else None

    @property
    def extended(self) -> ExtendedFunctionality | None:
        return self.first(ExtendedFunctionality)

    @property
    def hotlink_index(self) -> int:
        """Return the index of the portal that advertises, 0 for none."""
        found = self.extended
        return found.reserved if found else 0

    @property
    def unknown(self) -> tuple[UnknownOption, ...]:
        return self.all(UnknownOption)


_TIR_LENGTH: Final = Struct("!BBH")


def read_tir_options(r: Reader) -> TirOptions:
    """The option block of a TIR or QIR, whose first option counts the whole block.

    Raises: DecodeError on a bad length option, a bad or unknown option, or a total that is not the exact sum.
    """
    at = r.pos
    code, length, total = r.unpack("tir.options", _TIR_LENGTH)
    if code != 0 or length != 4 or total < 4:
        raise DecodeError("tir.options", "does not begin with a length option", at)
    return TirOptions(TIR_OPTIONS.read_all(r.sub("tir.options", total - 4)))


def write_tir_options(options: TirOptions) -> bytes:
    """Write the options of a TIR. Raises: DecodeError when a value does not fit."""
    block = TIR_OPTIONS.write_all(options.items)
    if len(block) > 0xFFFF - 4:
        raise DecodeError("tir.options", f"{len(block)} bytes of options")
    return _TIR_LENGTH.pack(0, 4, 4 + len(block)) + block


# packet options


class SenderType(IntEnum):
    """What sent a packet."""

    APPLICATION = 0
    DRO = 1
    STORE = 2


@dataclass(frozen=True, slots=True)
class SourceId(Flags16):
    """Context instance of the sender, 8 bytes."""

    source_id: bytes


@dataclass(frozen=True, slots=True)
class SourceType(Flags8):
    """A `SenderType`, or a number that is not known."""

    source_type: int


@dataclass(frozen=True, slots=True)
class SenderVersion:
    """Library version of the sender. Flags: 0x0001 UME capable, 0x0002 UMQ capable."""

    option_flags: int = field(default=IGNORE16 | 0x0001, kw_only=True)
    version: int


@dataclass(frozen=True, slots=True)
class LocalDomain(Flags16):
    """The TRD in which the packet travels; 0 while the sender knows none."""

    domain_id: int


PacketOption: TypeAlias = SourceId | SourceType | SenderVersion | LocalDomain | UnknownOption

PACKET_OPTIONS: Final = OptionTable[PacketOption](
    "packet.option",
    (
        kind(0x81, SourceId, "H8s"),
        kind(0x82, SourceType, "BB"),
        kind(0x83, SenderVersion, "HI"),
        kind(0x84, LocalDomain, "HI"),
    ),
    UnknownOption,
)
PACKET_LENGTH_CODE: Final = 0x80


@dataclass(frozen=True, slots=True)
class PacketOptions:
    """The options of one packet in wire order; the length option at the end is made when writing."""

    items: tuple[PacketOption, ...] = ()

    @property
    def source_id(self) -> bytes | None:
        return next((item.source_id for item in self.items if isinstance(item, SourceId)), None)

    @property
    def source_type(self) -> int | None:
        return next((item.source_type for item in self.items if isinstance(item, SourceType)), None)

    @property
    def is_from_dro(self) -> bool:
        return self.source_type == SenderType.DRO

    @property
    def version(self) -> int | None:
        return next((item.version for item in self.items if isinstance(item, SenderVersion)), None)

    @property
    def local_domain(self) -> int | None:
        """Return the domain as sent: 0 says that the sender knows no domain."""
        return next((item.domain_id for item in self.items if isinstance(item, LocalDomain)), None)


def standard_options(source_id: bytes, source_type: int, domain_id: int) -> PacketOptions:
    """Return what goes on every packet we send: source id, source type, version 6.17, local domain (0: not known)."""
    return PacketOptions(
        (SourceId(source_id), SourceType(source_type), SenderVersion(VERSION_6_17), LocalDomain(domain_id))
    )


_PACKET_LENGTH: Final = Struct("!BBH")


def read_packet_options(data: bytes, header_size: int) -> tuple[PacketOptions, int]:
    """The options at the end of a packet, and where they begin, which is where the body ends.

    Raises: DecodeError when the last four bytes are not a length option, its total does not fit behind the header, or
    an option is bad; nothing of the packet can be used then.
    """
    if len(data) < header_size + 4:
        raise DecodeError("packet.options", "no room for the length option", len(data))
    code, length, total = _PACKET_LENGTH.unpack_from(data, len(data) - 4)
    start = len(data) - total
    if code != PACKET_LENGTH_CODE or length != 4:
        raise DecodeError("packet.options", "does not end with a length option", len(data) - 4)
    if total < 4 or start < header_size:
        raise DecodeError("packet.options", f"total length {total}", len(data) - 4)
    return PacketOptions(PACKET_OPTIONS.read_all(Reader(data, start, len(data) - 4))), start


def write_packet_options(options: PacketOptions) -> bytes:
    """Write the options of a packet. Raises: DecodeError when a value does not fit."""
    block = PACKET_OPTIONS.write_all(options.items)
    if len(block) > 0xFFFF - 4:
        raise DecodeError("packet.options", f"{len(block)} bytes of options")
    return block + _PACKET_LENGTH.pack(PACKET_LENGTH_CODE, 4, 4 + len(block))

"""What a scripted store and its clients have in common, and what they need of a context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol

from dro.clock import ms
from dro.config.um.options import UmOptions
from dro.errors import DecodeError
from dro.proto.context.sources import BoundSource
from dro.proto.unicast.messages import Retransmission
from dro.sqn import MASK
from dro.um.message.events import Data
from dro.wire import otid as otid_codec
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc import ume_blocks as ume
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.data_blocks import Destination
from dro.wire.lbmc.headers import ContextAddress
from dro.wire.lbmr.options import (
    ExtendedFunctionality,
    Functionality,
    StoreContextInstance,
    TirOption,
    Ume,
    UmeStore,
    UmeStoreGroup,
)

NOTHING: Final = UmOptions({}, {})
STEP_NS: Final = ms(100)
REPEAT_NS: Final = ms(500)
KEEPALIVE_NS: Final = ms(1000)
SILENT_NS: Final = ms(4000)
"""Without a word from the store a client registers again."""
LIFETIME_MS: Final = 3000
CLIENTS_MAX: Final = 256
KEPT_MAX_BYTES: Final = 1 << 24
SQN_MAX: Final = 1 << 31
AT_ONCE: Final = 10
PRIMARY: Final = 1
_TIR_STORES: Final = 0x2000

NO_PATTERN, UNKNOWN_SOURCE, OF_RECEIVER, OTHER_TOPIC, IN_USE, DIFFERS = range(1, 7)
"""Errors of a registration."""

Place = tuple[bytes, int, int]
"""Topic, transport index, topic index."""


class PartyHost(Protocol):
    """Does for a party what needs a context."""

    @property
    def now_ns(self) -> int: ...
    @property
    def own(self) -> ContextAddress: ...
    def send_control(self, to: ContextAddress, *blocks: AnyBlock) -> None: ...
    def send_again(self, to: ContextAddress, message: lbmc.Message, request_index: int) -> None: ...
    def open_source(self, topic: bytes) -> PartySource: ...
    def open_receiver(self, topic: bytes, on_data: Callable[[Data], object]) -> object: ...
    def bound(self, topic: bytes) -> list[BoundSource[Any]]: ...


class PartySource(Protocol):
    """Is a source of the host."""

    otid: bytes

    def advertise(self, options: Iterable[TirOption]) -> None: ...
    def send(self, data: bytes, sqn: int) -> None: ...
    def send_information(self, *blocks: AnyBlock) -> None: ...
    def close(self) -> None: ...


def index_of(otid: bytes) -> tuple[int, int]:
    """Transport index and topic index of a source at its origin; zeros when it does not say."""
    with suppress(DecodeError):
        known = otid_codec.decode(otid)
        return known.transport_index, known.topic_index
    return 0, 0


class PersistenceParty:
    """What the three have in common."""

    def __init__(self, host: PartyHost) -> None:
        self.host = host
        self.lose = 0
        """So many of the next control messages get lost."""
        self.sent = {"control": 0, "again": 0}
        self.came = 0
        self._sent_to: Counter[int] = Counter()  # by domain
        self.heard: dict[str, int] = {}
        """Control messages that came, by the name of their first block."""
        self.handlers: dict[type[AnyBlock], Callable[[Any, lbmc.Message, ContextAddress], object]] = {}

    def sent_to(self, domain_id: int) -> int:
        """Count the messages that were sent to contexts of a domain."""
        return self._sent_to[domain_id]

    def tell(self, to: ContextAddress, *blocks: AnyBlock) -> None:
        if self.lose:
            self.lose -= 1
            return
        self.sent["control"] += 1
        self._sent_to[to.domain_id] += 1
        self.host.send_control(to, *blocks)

    def tell_again(self, to: ContextAddress, message: lbmc.Message, request_index: int) -> None:
        self.sent["again"] += 1
        self._sent_to[to.domain_id] += 1
        self.host.send_again(to, message, request_index)

    def on_control(self, block: AnyBlock, message: lbmc.Message) -> None:
        """Take a control message; without an address to answer to, or of another kind, it is left."""
        self.came += 1
        way = message.get(Destination)
        handler = self.handlers.get(type(block))
        if way is None or not way.origin_port or not way.origin_ip or handler is None:
            return
        name = type(block).__name__
        self.heard[name] = self.heard.get(name, 0) + 1
        handler(block, message, ContextAddress(way.origin_domain_id, way.origin_ip, way.origin_port))

    def on_again(self, sent: Retransmission) -> bool:
        """Take a message that was sent again to this context."""
        return False

    def on_information(self, source: BoundSource[Any], message: lbmc.Message) -> None:
        """Take a control message on the session of a source."""

    def on_last_sqn(self, source: BoundSource[Any], sqn: int) -> None:
        """Take the last sqn of a source, from its TSNI."""

    def step(self) -> None:
        """Do what is due."""


def persistence(
    store: ContextAddress, source: ContextAddress, reg_id: int, otid: bytes, instance: bytes
) -> tuple[TirOption, ...]:
    """Return what a source with one store is advertised with."""
    return (
        Ume(store.port, source.port, store.ip, source.ip, reg_id, index_of(otid)[0], MASK, 0,
            option_flags=_TIR_STORES),
        UmeStore(0, store.port, 0, store.ip, reg_id),
        UmeStoreGroup(0, 1),
        *((StoreContextInstance(0, instance),) if instance else ()),
        ExtendedFunctionality(port=source.port, ip=source.ip, flags=Functionality.UME),
    )  # fmt: skip


def information(store: ContextAddress, reg_id: int, low: int, high: int) -> tuple[AnyBlock, ...]:
    """Return the blocks of source registration information: where the store is, with its domain."""
    return (
        ume.Sri(1, low & MASK, high & MASK, flags=ume.SRI_ACK_TO_SOURCE),
        ume.UmeStoreGroup(0, 1),
        ume.UmeStoreInfoExt(0, 0, store.ip, store.port, reg_id, store.domain_id, 1),
    )

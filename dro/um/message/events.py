"""Events of sources and receivers for the application, and the errors of the client library.

No state. Topics are text (UTF-8, other bytes as surrogates), payloads bytes. Source: client library notes, sections 2
and 3; values of flags are those of the C API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from dro.errors import DroError, ResourceError
from dro.wire.lbmc.failover import HotFailover

FLAG_START_BATCH: Final = 0x1
FLAG_END_BATCH: Final = 0x2
FLAG_HF_PASS_THROUGH: Final = 0x4
FLAG_RETRANSMIT: Final = 0x8
FLAG_IMMEDIATE: Final = 0x10
FLAG_HF_DUPLICATE: Final = 0x20
FLAG_TOPICLESS: Final = 0x100
FLAG_HF_OPTIONAL: Final = 0x400
FLAG_HF_32: Final = 0x800
FLAG_HF_64: Final = 0x1000
FLAG_OTR: Final = 0x2000


# receivers


@dataclass(frozen=True, slots=True)
class Data:
    """A message. `sqn` is the topic sqn of its last fragment, `source` the source string, `otid` names the origin."""

    topic: str
    source: str
    sqn: int
    data: bytes
    flags: int = 0
    otid: bytes = b""
    properties: Mapping[str, bool | int | float | str] | None = None
    channel: int | None = None
    failover: HotFailover | None = None

    @property
    def has_headers(self) -> bool:
        return self.properties is not None or self.channel is not None or self.failover is not None

    @property
    def hf_sqn(self) -> int | None:
        """The number of hot failover."""
        return None if self.failover is None else self.failover.number


class Responding(Protocol):
    """Responds to a request; see `dro.um.message.requests.Response`."""

    def send(self, data: bytes) -> None: ...

    def serialize(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class RequestMsg(Data):
    """A message that wants a response; an application may send several, or none."""

    response: Responding = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class BOS:
    """First activity on the session of a source.

    With hotlinks `source` is that of the origin, here as in all events, and `proxy_source` that of the session, if it
    is another; there are several sessions then.
    """

    topic: str
    source: str
    proxy_source: str = ""
    flags: int = 0


@dataclass(frozen=True, slots=True)
class EOS:
    """A source ended: its session did, or a final advertisement said so. May come without a `BOS`.

    `proxy_source`: as in `BOS`; with hotlinks the source goes on if another of its sessions does.
    """

    topic: str
    source: str
    proxy_source: str = ""
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Loss:
    """One topic sqn was given up; at a receiver for hot failover one number, which no source could supply."""

    topic: str
    source: str
    sqn: int


@dataclass(frozen=True, slots=True)
class LossBurst:
    """`count` sqns from `sqn` on were given up at once; numbers as in `Loss`."""

    topic: str
    source: str
    sqn: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class NoSource:
    """So many queries for the topic were not answered (`resolution_no_source_notification_threshold`)."""

    topic: str
    flags: int = 0


@dataclass(frozen=True, slots=True)
class HFReset:
    """Hot failover numbers begin anew; a receiver that does not join the sources hears it of each of them."""

    topic: str
    source: str
    generation: int = 0


Event: TypeAlias = Data | BOS | EOS | Loss | LossBurst | NoSource | HFReset


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one source that came in a row, in order; message i has topic sqn `first_sqn` + i (32 bits)."""

    topic: str
    source: str
    first_sqn: int
    payloads: list[bytes]
    otid: bytes


@dataclass(frozen=True, slots=True)
class ResponseMsg:
    """A response to a request of ours. `source`: target of the context that sent it."""

    data: bytes
    source: str
    properties: Mapping[str, bool | int | float | str] | None = None


# sources


@dataclass(frozen=True, slots=True)
class Connect:
    """A receiver connected to the session; sessions without connections (LBT-RM) have none of these."""

    client: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    client: str


@dataclass(frozen=True, slots=True)
class Wakeup:
    """Sending is possible again, after a `WouldBlock`."""


SourceEvent: TypeAlias = Connect | Disconnect | Wakeup


@dataclass(frozen=True, slots=True)
class SqnRange:
    """Topic sqns of one message: one per fragment, `first` to `last`."""

    first: int
    last: int


# errors


class WouldBlock(DroError):
    """The session takes nothing at the moment; a `Wakeup` event follows."""


class UsageError(DroError):
    """The application called something in a wrong state: closed, not empty, or from the wrong thread."""


def check_data(data: object) -> None:
    """Refuse what is no data of a message. Raises: UsageError."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"data of a message has to be bytes, this is {type(data).__name__}; encode it first")


class NoRoute(ResourceError):
    """No DRO offers the domain of a target."""

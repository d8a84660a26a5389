"""Messages between `tnwgdctl doctor` and its responder, as bytes: signals, sized datagrams and requests. Pure.

*Signals* use the groups and ports of the TRD itself, so that whatever blocks UM there blocks them too. They are packets
that every UM application ignores: a topic resolution packet with neither query nor advertisement, and an LBT-RM session
message of a session that nobody has joined. *Sized datagrams* go to the same groups and a port of their own. *Requests*
are JSON by unicast, to and from that port; the responder serves only a doctor that has its cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import Final, TypeAlias, get_args

from dro.bus.codec import JsonObject, from_json
from dro.errors import DecodeError
from dro.wire import lbtrm
from dro.wire.lbmr import packet as lbmr

PROBE_PORT: Final = 14499  # no default of UM
MEETING_GROUP: Final = "239.255.144.99"  # site-local; here doctors and responders find each other
MAX_MESSAGE: Final = 4096
SIZED_HEADER: Final = 16
MAX_SIZED: Final = 65507
FROM_DOCTOR: Final = ord("q")
FROM_RESPONDER: Final = ord("a")
_TOKEN: Final = b"dP"
_SIZED: Final = b"DROdoc1\0"
_MESSAGE: Final = b"DROdoc1 "


@dataclass(frozen=True, slots=True)
class GroupAddress:
    group: str
    port: int


# signals and sized datagrams


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe that came in. `size` is 0 for a signal."""

    sender_kind: int
    nonce: int
    size: int = 0
    is_whole: bool = False  # sent with the don't-fragment bit


def write_tr_signal(sender_kind: int, nonce: int) -> bytes:
    """An LBMR packet without a record; the token stands where contexts put their instance."""
    token = _TOKEN + bytes((sender_kind, 0)) + nonce.to_bytes(4, "big")
    options = lbmr.PacketOptions((lbmr.SourceId(source_id=token), lbmr.SourceType(source_type=0)))
    return lbmr.encode(lbmr.Packet(lbmr.VERSION, options, lbmr.Queries()))


def read_tr_signal(packet: lbmr.Packet) -> Probe | None:
    """The signal that an LBMR packet is; None when it is none."""
    token = packet.options.source_id if packet.options is not None else None
    if token is None or token[:2] != _TOKEN or packet.body != lbmr.Queries():
        return None
    return Probe(token[2], int.from_bytes(token[4:], "big"))


def write_data_signal(sender_kind: int, nonce: int) -> bytes:
    """An LBT-RM session message of the session `nonce`."""
    return lbtrm.encode(lbtrm.SessionMessage(PROBE_PORT, nonce, 0, sender_kind, sender_kind))


def read_data_signal(data: bytes) -> Probe | None:
    """The signal that an LBT-RM datagram is; None when it is none."""
    try:
        packet = lbtrm.decode(data)
    except DecodeError:
        return None
    match packet:
        case lbtrm.SessionMessage(ucast_port=port, session_id=nonce, lead=kind, trail=trail):
            return Probe(kind, nonce) if port == PROBE_PORT and kind == trail else None
    return None


SIGNALS: Final = {"tr": write_tr_signal, "data": write_data_signal}


def write_sized(sender_kind: int, nonce: int, size: int, *, is_whole: bool) -> bytes:
    """A datagram of `size` bytes of UDP payload. Raises: ValueError for a size that is none."""
    if not SIZED_HEADER <= size <= MAX_SIZED:
        raise ValueError(f"a datagram cannot have {size} bytes")
    return (_SIZED + bytes((sender_kind, is_whole, 0, 0)) + nonce.to_bytes(4, "big")).ljust(size, b".")


def read_sized(data: bytes) -> Probe | None:
    """None when it is no sized datagram."""
    if len(data) < SIZED_HEADER or data[:8] != _SIZED:
        return None
    return Probe(data[8], int.from_bytes(data[12:16], "big"), len(data), bool(data[9]))


# requests


@dataclass(frozen=True, slots=True)
class Hello:
    """Is there a responder? Sent to the meeting group and to addresses that the operator names."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """Here is one. `cookie` must come back with every message; `clock_ns` is the responder's wall clock."""

    nonce: int
    cookie: str
    clock_ns: int


@dataclass(frozen=True, slots=True)
class Beacon:
    """A responder is here, by multicast: received also where `Hello` does not get through."""

    version: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Join these groups and count what comes of `nonce`. `data` are those with LBT-RM signals."""

    nonce: int
    cookie: str
    tr: tuple[GroupAddress, ...] = ()
    data: tuple[GroupAddress, ...] = ()
    sized: tuple[GroupAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Send to a group: signals (`what` `tr` or `data`), or one datagram of each size."""

    nonce: int
    cookie: str
    what: str
    place: GroupAddress
    ttl: int
    count: int = 1
    sizes: tuple[int, ...] = ()
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What has come of `nonce`?"""

    nonce: int
    cookie: str


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to `Watch` and `Send`; `problem` is empty when it was done."""

    nonce: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """The answer to `Report`: how many, by `key_of`."""

    nonce: int
    received: dict[str, int]


DoctorMessage: TypeAlias = Hello | Welcome | Beacon | Watch | Send | Report | Done | Counts
_KINDS: Final[dict[str, type[DoctorMessage]]] = {kind.__name__.lower(): kind for kind in get_args(DoctorMessage)}


def key_of(place: GroupAddress, received: Probe) -> str:
    """Return what a probe is counted under."""
    how = f" {received.size}{' whole' if received.is_whole else ''}" if received.size else ""
    return f"{place.group}:{place.port}{how}"


def write_message(message: DoctorMessage) -> bytes:
    body = {"message": type(message).__name__.lower(), **asdict(message)}
    return _MESSAGE + json.dumps(body, separators=(",", ":")).encode()


def read_message(data: bytes) -> DoctorMessage:
    """Read a message. Raises: DecodeError, nothing else."""
    if not data.startswith(_MESSAGE) or len(data) > MAX_MESSAGE:
        raise DecodeError("message", "not one of ours")
    try:
        body: JsonObject = json.loads(data[len(_MESSAGE) :])
    except (ValueError, RecursionError) as e:
        raise DecodeError("message", "not JSON") from e
    kind = _KINDS.get(str(body.get("message"))) if isinstance(body, dict) else None
    if kind is None:
        raise DecodeError("message", "of an unknown kind")
    return from_json(kind, body)


def cookie_of(secret: bytes, address: str) -> str:
    """Return what a responder gives to that address, and to nobody else."""
    return hmac.new(secret, address.encode(), hashlib.sha256).hexdigest()[:32]


# verdicts


def mtu_sizes(low: int, high: int, steps: int = 12) -> tuple[int, ...]:
    """Sizes to try between one that passes and one that does not, both left out; common ones first of all."""
    common = (8972, 4324, 1472, 1464, 1444, 1430, 1422, 1408, 1392, 1372, 1322, 1252, 1172, 996)
    inside = [size for size in common if low < size < high]
    if not inside or high - low <= 2 * steps:
        width = max(1, (high - low) // (steps + 1))
        inside = list(range(low + width, high, width))
    return tuple(sorted(set(inside)))


def narrowed(low: int, high: int, passed: set[int], tried: tuple[int, ...]) -> tuple[int, int]:
    """The largest size that passes and the smallest above it that does not, after one more round."""
    best = max([low, *passed])
    return best, min([high, *(size for size in tried if size > best)])

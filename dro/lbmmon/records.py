"""Holds what packets of statistics say, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dro.lbmmon.made import Made


@dataclass(frozen=True, slots=True)
class MonitorSender:
    """Names who sent a message, and when (s since 1970). `object_id`: the same for an object while it lives."""

    time_s: int
    application: str
    host: str
    pid: int
    object_id: int
    is_mim: bool = False  # of the session for multicast immediate messages
    context_instance: bytes = b""
    domain_id: int = 0


@dataclass(frozen=True, slots=True)
class LibraryStats:
    """Holds what the UM library counted for one object of a context, by names of the protobuf form: `lbtrm.msgs_sent`.

    `kind`: `source_transport`, `receiver_transport`, `event_queue` or `context`; `source`: of a transport session, as
    UM has it.
    """

    sender: MonitorSender
    kind: str
    source: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DroStats:
    """One message of a DRO: a `DROMonMsg`."""

    sender: MonitorSender
    message: Made


@dataclass(frozen=True, slots=True)
class ReportedSource:
    """One source of a receiver's topic. `otid`: hexadecimal; `state`, `time_us`: what happened and when, pb alone."""

    source: str
    otid: str
    topic_index: int
    state: str = ""
    time_us: int = 0


@dataclass(frozen=True, slots=True)
class TopicReport:
    """Says which sources a receiver's topic has."""

    sender: MonitorSender
    topic: str
    sources: tuple[ReportedSource, ...]


@dataclass(frozen=True, slots=True)
class PatternReport:
    """Names the pattern of a wildcard receiver."""

    sender: MonitorSender
    pattern: str
    type: int


@dataclass(frozen=True, slots=True)
class Unread:
    """Says what could not be read: where and why."""

    what: str


Message = DroStats | LibraryStats | TopicReport | PatternReport | Unread

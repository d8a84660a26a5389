"""Writes and reads statistics as protobuf messages: `UMSMonMsg` of the UM library, `DROMonMsg` of a DRO.

Source: UM operations guide, monitoring, format module pb; `um_mon` definitions in `data/fields.csv`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from google.protobuf import message as protobuf

from dro.errors import DecodeError, LocalProtocolError
from dro.lbmmon.fields import CONTEXT, EVENT_QUEUE, KINDS, NO_SAMPLE, RECEIVER, SOURCE, TRANSPORTS, message_class
from dro.lbmmon.made import Made
from dro.lbmmon.records import (
    DroStats,
    LibraryStats,
    Message,
    MonitorSender,
    PatternReport,
    ReportedSource,
    TopicReport,
)

_FLAG: Final = "source_flag"
US_PER_S: Final = 1_000_000
_PLACES: Final[Mapping[str, str]] = {
    KINDS[RECEIVER]: "receiver_transports", KINDS[SOURCE]: "source_transports", KINDS[EVENT_QUEUE]: "event_queues",
}  # fmt: skip


def transport_of(stats: LibraryStats) -> str:
    """Name the transport of a session as the fields do: by its values, or its source string if it has none."""
    name = next((name.partition(".")[0] for name in stats.values if "." in name), "")
    name = name or stats.source.partition(":")[0].replace("-", "").lower()
    if name not in TRANSPORTS.values():
        raise LocalProtocolError(f"a session {stats.source!r} of a transport without statistics")
    return name


def dro_bytes(stats: DroStats) -> bytes:
    """Make the message of a DRO with its sender."""
    made = message_class("DROMonMsg")()
    made.CopyFrom(stats.message)
    put_sender(made.attributes, stats.sender)
    return bytes(made.SerializeToString())


def library_bytes(stats: LibraryStats) -> bytes:
    """Make the message of one object of the library."""
    made = message_class("UMSMonMsg")()
    put_sender(made.attributes, stats.sender)
    of = made.stats
    counted = of.context if stats.kind == KINDS[CONTEXT] else getattr(of, _PLACES[stats.kind]).add()
    if stats.kind in (KINDS[SOURCE], KINDS[RECEIVER]):
        counted.source_string, counted.source_flag = stats.source, int(stats.sender.is_mim)
        counted = getattr(counted, transport_of(stats))
    counted.SetInParent()
    values = {name.rpartition(".")[2]: value for name, value in stats.values.items()}
    for field in counted.DESCRIPTOR.fields:
        value = values.get(field.name, NO_SAMPLE if field.name.endswith("_min") else 0)
        setattr(counted, field.name, value & NO_SAMPLE)
    return bytes(made.SerializeToString())


def put_sender(told: Made, sender: MonitorSender) -> None:
    """Fill the attributes of a message."""
    told.sender_ipv4_address, told.timestamp, told.application_id = sender.host, sender.time_s, sender.application
    told.object_id, told.process_id, told.domain_id = sender.object_id, sender.pid, sender.domain_id
    told.context_instance = sender.context_instance


def parsed(name: str, data: bytes) -> Made:
    """Read a message of a class. Raises: DecodeError."""
    made = message_class(name)()
    try:
        made.ParseFromString(data)
    except (protobuf.DecodeError, ValueError) as e:
        raise DecodeError(f"lbmmon.{name}", "it is no protobuf message of this kind") from e
    return made


def with_attributes(name: str, data: bytes) -> Made | None:
    """Read a message that says who sent it; None if it is none."""
    try:
        made = parsed(name, data)
    except DecodeError:
        return None
    return made if made.HasField("attributes") else None


def messages_of(made: Made, sender: MonitorSender | None = None) -> Iterator[Message]:
    """Yield what a message says; `sender` counts if it does not tell who sent it."""
    told = made.attributes
    if sender is None or made.HasField("attributes"):
        sender = MonitorSender(
            told.timestamp, told.application_id, told.sender_ipv4_address, told.process_id, told.object_id,
            sender is not None and sender.is_mim, told.context_instance, told.domain_id,
        )  # fmt: skip
    if made.DESCRIPTOR.name == "DROMonMsg":
        yield DroStats(sender, made)
        return
    if made.stats.HasField("context"):
        yield LibraryStats(sender, KINDS[CONTEXT], "", flat(made.stats.context))
    for kind, place in _PLACES.items():
        for one in getattr(made.stats, place):
            values = flat(one)
            by = replace(sender, is_mim=bool(values.pop(_FLAG, sender.is_mim)))
            yield LibraryStats(by, kind, getattr(one, "source_string", ""), values)
    for topic in made.events.receiver_topics:
        yield TopicReport(sender, topic.topic, tuple(map(_source, topic.sources)))
    for pattern in made.events.wildcard_receivers:
        yield PatternReport(sender, pattern.pattern, pattern.type)


def _source(told: Made) -> ReportedSource:
    states = told.DESCRIPTOR.enum_types_by_name["SourceState"].values_by_number
    state = states[told.source_state].name if told.source_state in states else str(told.source_state)
    time_us = told.timestamp_sec * US_PER_S + told.timestamp_usec
    return ReportedSource(told.source_string, told.otid, told.topic_idx, state, time_us)


def flat(message: Made, prefix: str = "") -> dict[str, int]:
    """All whole numbers of a message, those of messages inside as `name.name`; also what is 0."""
    found: dict[str, int] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if hasattr(value, "DESCRIPTOR"):
            if message.HasField(field.name):
                found |= flat(value, f"{prefix}{field.name}.")
        elif isinstance(value, int):
            found[f"{prefix}{field.name}"] = value
    return found

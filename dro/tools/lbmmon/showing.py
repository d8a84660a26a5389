"""Shows what statistics say: as text, a heading and a line for each figure, or as an object of JSON on a line.

JSON is that of protobuf for `UMSMonMsg` and `DROMonMsg`, whichever format a packet had: names in lowerCamelCase,
integers of 64 bits as strings. Binary statistics have the names of their structures, and integers as numbers.
Source: UM operations guide, monitoring.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from google.protobuf import json_format

from dro.clock import NS_PER_S
from dro.lbmmon import pb_form
from dro.lbmmon.binary import BinaryMessage
from dro.lbmmon.fields import NO_SAMPLE, message_class
from dro.lbmmon.made import Made
from dro.lbmmon.records import DroStats, LibraryStats, PatternReport, TopicReport
from dro.tools.text import shown, time_text

Shown = LibraryStats | DroStats | TopicReport | PatternReport | BinaryMessage
_KINDS: Final = {DroStats: "dro", TopicReport: "receiver_topic", PatternReport: "wildcard_receiver"}


def text_of(record: Shown) -> str:
    """Write a record as lines."""
    return "".join(f"{line}\n" for line in (_heading(record), *(f"  {line}" for line in _figures(record))))


def json_of(record: Shown) -> str:
    """Write a record as one line of JSON."""
    if isinstance(record, BinaryMessage):
        found = {_camel(name): value for name, value in asdict(record).items()} | {"options": dict(record.options)}
    else:
        found = json_format.MessageToDict(message_of(record), always_print_fields_with_no_presence=True)
    return f"{json.dumps(found)}\n"


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _heading(record: Shown) -> str:
    if isinstance(record, BinaryMessage):
        order = "big" if record.is_big_endian else "little"
        seconds, rest_us = divmod(record.time_us, pb_form.US_PER_S)
        at = f"{_time(seconds)[:-1]}.{rest_us:06d}Z"
        return f"{at} {record.name} version {record.version} {record.length} bytes {order}-endian"
    sender = record.sender
    kind = record.kind if isinstance(record, LibraryStats) else _KINDS[type(record)]
    parts = [
        _time(sender.time_s), kind, f'"{shown(sender.application)}"', f"at {shown(sender.host) or 'unknown'}",
        f"process {sender.pid}", f"object {sender.object_id:#x}",
    ]  # fmt: skip
    if sender.context_instance:
        parts.append(f"context {sender.context_instance.hex()}")
    if sender.domain_id:
        parts.append(f"domain {sender.domain_id}")
    if sender.is_mim:
        parts.append("immediate messages")
    return " ".join(parts)


def _time(time_s: int) -> str:
    return f"{time_text(time_s * NS_PER_S).partition('.')[0]}Z"


def _figures(record: Shown) -> Iterator[str]:
    match record:
        case LibraryStats():
            if record.source:
                yield f"source {shown(record.source)}"
            for name, value in record.values.items():
                yield f"{name} {_figure(name, value)}"
        case DroStats():
            yield from lines_of(record.message, ("attributes",))
        case TopicReport():
            yield f"topic {shown(record.topic)}"
            yield from lines_of(message_of(record).events.receiver_topics[0], ("topic",))
        case BinaryMessage():
            for name, member in record.values.items():
                yield f"{name} {_figure(name, member) if isinstance(member, int) else shown(member)}"
            for name, text in record.options:
                yield f"option {shown(name)} {shown(text)}"
            yield from (f"text {shown(line)}" for line in record.text.splitlines())
        case PatternReport():
            yield f"pattern {shown(record.pattern)}"
            yield f"type {record.type}"


def _figure(name: str, value: int) -> str:
    """Write a number; a minimum before the first sample is none."""
    return "-" if value == NO_SAMPLE and name.endswith("_min") else str(value)


def lines_of(message: Made, left_out: tuple[str, ...] = (), prefix: str = "") -> Iterator[str]:
    """Write all values of a message, with those of messages inside, each behind its path."""
    for field in message.DESCRIPTOR.fields:
        if field.name in left_out:
            continue
        value = getattr(message, field.name)
        name = f"{prefix}{field.name}"
        if field.message_type is None:
            yield f"{name} {_value(field, value)}"
        elif hasattr(value, "DESCRIPTOR"):
            if message.HasField(field.name):
                yield from lines_of(value, prefix=f"{name}.")
        else:
            for nth, one in enumerate(value):
                yield from lines_of(one, prefix=f"{name}[{nth}].")


def _value(field: Any, value: Any) -> str:  # noqa: ANN401  a description of protobuf, and what it describes
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return str(names[value].name) if value in names else str(value)
    if isinstance(value, int):
        return _figure(field.name, value)
    return value.hex() if isinstance(value, bytes) else shown(str(value))


def message_of(record: LibraryStats | DroStats | TopicReport | PatternReport) -> Made:
    """Make the protobuf message of a record."""
    if isinstance(record, DroStats):
        return record.message
    if isinstance(record, LibraryStats):
        return pb_form.parsed("UMSMonMsg", pb_form.library_bytes(record))
    made = message_class("UMSMonMsg")()
    pb_form.put_sender(made.attributes, record.sender)
    if isinstance(record, PatternReport):
        made.events.wildcard_receivers.add(pattern=record.pattern, type=record.type)
        return made
    topic = made.events.receiver_topics.add(topic=record.topic)
    for one in record.sources:
        topic.sources.add(
            source_string=one.source, otid=one.otid, topic_idx=one.topic_index, source_state=one.state or 0,
            timestamp_sec=one.time_us // pb_form.US_PER_S, timestamp_usec=one.time_us % pb_form.US_PER_S,
        )  # fmt: skip
    return made

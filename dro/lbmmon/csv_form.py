"""Writes and reads statistics as csv text: hexadecimal numbers, quoted texts, the number of the transport in decimal.

Source: UM operations guide, monitoring, format module csv; version 5, of which older ones have fewer fields.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from dro.errors import DecodeError
from dro.lbmmon.fields import (
    KINDS,
    NO_SAMPLE,
    RECEIVER,
    RECEIVER_TOPIC,
    SOURCE,
    TRANSPORTS,
    WILDCARD_RECEIVER,
    csv_orders,
)
from dro.lbmmon.pb_form import transport_of
from dro.lbmmon.records import LibraryStats, Message, MonitorSender, PatternReport, ReportedSource, TopicReport

_FIRST: Final = re.compile(r"""[ \t]*(?:"[^"]*"|'[^']*'|[0-9A-Fa-f]*)([ \t]*)(.?)""", re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9A-Fa-f]{1,16}")
_TOPIC_PARTS: Final = 3  # of each source
_KINDS: Final = {name: number for number, name in KINDS.items()}
_CODES: Final = {name: number for number, name in TRANSPORTS.items()}


def library_text(stats: LibraryStats, separator: str) -> str:
    """Make the text; a number that was not counted is 0, a minimum of nothing is the highest."""
    kind, transport, head = _KINDS[stats.kind], "", list[str]()
    if kind in (SOURCE, RECEIVER):
        transport = transport_of(stats)
        head = [str(_CODES[transport]), '"{}"'.format(stats.source.replace('"', "'"))]
    numbers = [
        stats.values.get(f"{transport}.{name}" if transport else name, NO_SAMPLE if name.endswith("_min") else 0)
        for name in csv_orders()[kind, transport]
    ]
    return separator.join([*head, *(f"{number & NO_SAMPLE:x}" for number in numbers)])


def message(kind: int, text: str, sender: MonitorSender, separator: str = "") -> Message:
    """Read a text of a packet type that has one. Raises: DecodeError."""
    fields = _fields(text.rstrip("\0"), separator)
    if kind == RECEIVER_TOPIC:
        return _topic(fields, sender)
    if kind == WILDCARD_RECEIVER:
        _need(fields, 2)
        return PatternReport(sender, fields[0], _number(fields[1]))
    transport = source = ""
    if kind in (SOURCE, RECEIVER):
        _need(fields, 2)
        (code, source), fields = fields[:2], fields[2:]
        transport = TRANSPORTS.get(int(code), "") if code.isascii() and code.isdigit() and len(code) < 4 else ""
        if not transport:
            raise DecodeError("lbmmon.csv", f"transport {code[:40]!r} is not known")
    prefix = f"{transport}." if transport else ""
    names = csv_orders()[kind, transport]
    values = {f"{prefix}{name}": _number(one) for name, one in zip(names, fields, strict=False) if name != "reserved"}
    return LibraryStats(sender, KINDS[kind], source, values)


def _topic(fields: list[str], sender: MonitorSender) -> TopicReport:
    _need(fields, 2)
    count = _number(fields[1])
    _need(fields, 2 + _TOPIC_PARTS * count)
    sources = [
        ReportedSource(fields[at], fields[at + 1], _number(fields[at + 2]))
        for at in range(2, 2 + _TOPIC_PARTS * count, _TOPIC_PARTS)
    ]
    return TopicReport(sender, fields[0], tuple(sources))


def _need(fields: list[str], count: int) -> None:
    if len(fields) < count:
        raise DecodeError("lbmmon.csv", f"{count} fields are needed, {len(fields)} are there")


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise DecodeError("lbmmon.csv", f"{text[:40]!r} is no hexadecimal number of 64 bits")
    return int(text, 16)


@cache
def _pattern(separator: str) -> re.Pattern[str]:
    end = re.escape(separator)
    return re.compile(rf"""[ \t]*(?:"([^"]*)"|'([^']*)'|((?:(?!{end})[^"'])*))[ \t]*(?:{end}|$)""", re.DOTALL)


def _fields(text: str, separator: str) -> list[str]:
    """Split a text; without a separator, it is what follows the first field, blanks only if nothing else does."""
    if not separator:
        first = _FIRST.match(text)
        blanks, follows = first.groups() if first else ("", "")
        separator = blanks[:1] if blanks and (not follows or follows in "0123456789abcdefABCDEF\"'") else follows
    pattern, at, found = _pattern(separator or ","), 0, list[str]()
    while at <= len(text):
        one = pattern.match(text, at)
        if one is None:
            raise DecodeError("lbmmon.csv", "a text is not closed", at)
        double, single, plain = one.groups()
        found.append(double if double is not None else single if single is not None else plain.strip())
        if one.end() == len(text):
            return found
        at = one.end()
    return found

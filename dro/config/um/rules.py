"""Valid values of UM options: one `ValueRule` per option, built from columns of the table.

A rule turns text into the stored value (`int`, `str` or a tuple of list entries) or reports what is wrong with it.
Source: UM configuration file rules, section 3.3 "Value formats" and 3.4 "lists".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from ipaddress import IPv4Address
from typing import Final

from dro.config.um.interfaces import ANY, Lookup, resolve_host, resolve_interface
from dro.errors import ConfigError

Value = int | str | tuple[str, ...]

INT32_MAX: Final = 2**31 - 1
MAX_TEXT_LEN: Final = 4096
_INTEGER: Final = re.compile(r"-?[0-9]{1,80}")
_ANY_BASE: Final = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,22}")
_RESOLVER_ENTRY: Final = re.compile(
    r"(?:(?P<iface>[^:>\s]+)(?::(?P<sport>\d{1,5}))?->)?(?P<host>[^:>\s]+):(?P<port>\d{1,5})"
)


class Kind(Enum):
    """The kinds of values."""

    INTEGER = "integer"
    WORD = "word"
    TEXT = "text"
    ADDRESS = "address"
    INTERFACE = "interface"
    LIST = "list"
    API = "api"


@dataclass(frozen=True, slots=True)
class ValueRule:
    """Limits of one option's value; the fields that do not fit its kind are empty."""

    kind: Kind
    ranges: tuple[tuple[int, int], ...] = ()  # INTEGER: inclusive, any of them
    any_base: bool = False
    power_of_two: bool = False
    round_up: bool = False  # a number that is no power of two is raised to the next one, with a notice
    multiple_of: int = 1
    words: Mapping[str, str] = field(default_factory=dict)  # WORD: lower-case spelling -> canonical spelling
    deprecated_words: frozenset[str] = frozenset()
    multicast: bool = False  # ADDRESS: must be a group
    allow_any: bool = False  # ADDRESS: 0.0.0.0 has a meaning
    pattern: str = ""  # TEXT: the whole value matches
    null_is_empty: bool = False
    clear: str = ""  # LIST: the entry that empties it
    max_entries: int = 0

    def describe(self) -> str:
        """The permitted values, for a remedy."""
        match self.kind:
            case Kind.INTEGER:
                spans = [str(a) if a == b else f"{a}.." if b >= INT32_MAX else f"{a}..{b}" for a, b in self.ranges]
                extra = " (a power of two)" if self.power_of_two else ""
                extra += f" (a multiple of {self.multiple_of})" if self.multiple_of > 1 else ""
                return "use " + " or ".join(spans) + extra
            case Kind.WORD:
                return "use one of " + ", ".join(dict.fromkeys(self.words.values()))
            case Kind.ADDRESS:
                return "use a multicast group (224.0.0.0 to 239.255.255.255)" if self.multicast else "use an address"
            case Kind.LIST:
                return "write [interface[:port]->]address:port"
            case _:
                return f"it must match {self.pattern}" if self.pattern else ""

    def parse(self, text: str, lookup: Lookup) -> tuple[Value, str]:
        """The value that `text` stands for and a notice (empty if there is none). Raises: ConfigError."""
        match self.kind:
            case Kind.INTEGER:
                return self._integer(text)
            case Kind.WORD:
                return self._word(text)
            case Kind.ADDRESS:
                return self._address(text, lookup), ""
            case Kind.INTERFACE:
                return resolve_interface(text, lookup), ""
            case Kind.LIST:
                return self._entries(text, lookup), ""
            case Kind.API:
                raise ConfigError("can be set by a program only", remedy="remove the line")
            case Kind.TEXT:
                return self._text(text), ""

    def _integer(self, text: str) -> tuple[int, str]:
        if self.any_base and _ANY_BASE.fullmatch(text):
            try:
                octal = text.startswith("0") and text.isdigit() and len(text) > 1
                value = int(text, 8) if octal else int(text, 0)
            except ValueError as e:
                raise ConfigError(f"{text!r} is not a number", remedy="write decimal, 0x hexadecimal or 0 octal") from e
        elif _INTEGER.fullmatch(text):
            value = int(text)
        else:
            is_long = text.isascii() and text.isdigit()
            what = f"a number of {len(text)} digits is too large" if is_long else f"{text[:80]!r} is not a whole number"
            raise ConfigError(what, remedy=self.describe())
        notice = ""
        if self.round_up and value > 0 and value & (value - 1):
            raised = 1 << value.bit_length()
            notice = f"{value} is no power of two, {raised} is used"
            value = raised
        if not any(low <= value <= high for low, high in self.ranges):
            last = self.ranges[-1][1]
            is_open = value > last >= INT32_MAX  # `describe` does not name that end
            raise ConfigError(f"{value} is out of range", remedy=f"use {last} or less" if is_open else self.describe())
        if self.power_of_two and (value <= 0 or value & (value - 1)):
            raise ConfigError(f"{value} is not a power of two", remedy=self.describe())
        if value % self.multiple_of:
            raise ConfigError(f"{value} is not a multiple of {self.multiple_of}", remedy=self.describe())
        return value, notice

    def _word(self, text: str) -> tuple[str, str]:
        word = self.words.get(text.lower())
        if word is None:
            raise ConfigError(f"{text[:80]!r} is not a known value", remedy=self.describe())
        return word, f"the value {word} is deprecated, but in effect" if word in self.deprecated_words else ""

    def _address(self, text: str, lookup: Lookup) -> str:
        address = resolve_host(text, lookup)
        if address == ANY:
            if not self.allow_any:
                raise ConfigError(f"{ANY} is not allowed here", remedy=self.describe())
        elif self.multicast and not IPv4Address(address).is_multicast:
            raise ConfigError(f"{address} is not a multicast group", remedy=self.describe())
        return address

    def _text(self, text: str) -> str:
        if len(text) > MAX_TEXT_LEN:
            raise ConfigError(f"longer than {MAX_TEXT_LEN} characters", remedy="shorten it")
        if self.null_is_empty and text == "NULL":
            return ""
        if self.pattern and not re.fullmatch(self.pattern, text, re.ASCII):
            raise ConfigError(f"{text[:80]!r} is not allowed", remedy=self.describe())
        return text

    def _entries(self, text: str, lookup: Lookup) -> tuple[str, ...]:
        """Split one setting into entries; the entry that empties the list stays in, `append` acts on it."""
        entries = []
        for piece in re.split(r"[,;]", text):
            entry = piece.strip()
            if not entry:
                continue
            if self.pattern == "" and entry != self.clear:
                entry = _resolver_entry(entry, lookup)
            entries.append(entry)
        if not entries:
            raise ConfigError("no entry", remedy=self.describe())
        return tuple(entries)

    def append(self, old: Value, new: Value) -> tuple[Value, str]:
        """`old` with `new` added (lists are additive); every other kind is replaced. The second is a notice."""
        if self.kind is not Kind.LIST:
            return new, ""
        assert isinstance(old, tuple)
        assert isinstance(new, tuple)
        entries = list(old)
        for entry in new:
            if entry == self.clear:
                entries.clear()
            elif entry not in entries:
                entries.append(entry)
        if self.max_entries and len(entries) > self.max_entries:
            return tuple(entries[: self.max_entries]), f"more than {self.max_entries} entries, the others are dropped"
        return tuple(entries), ""


def _resolver_entry(entry: str, lookup: Lookup) -> str:
    """Write `[Iface[:SrcPort]->]Host:Port` in canonical form. Raises: ConfigError."""
    found = _RESOLVER_ENTRY.fullmatch(entry)
    if found is None:
        raise ConfigError(f"{entry[:80]!r} is not an entry", remedy="write [interface[:port]->]address:port")
    for port in (found["port"], found["sport"]):
        if port is not None and not 1 <= int(port) <= 65535:
            raise ConfigError(f"{entry[:80]!r}: port {port} is out of range", remedy="use 1..65535")
    tail = f"{resolve_host(found['host'], lookup)}:{int(found['port'])}"
    if found["iface"] is None:
        return tail
    source_port = f":{int(found['sport'])}" if found["sport"] is not None else ""
    return f"{resolve_interface(found['iface'], lookup)}{source_port}->{tail}"


_KINDS: Final[Mapping[str, ValueRule]] = {  # as in the column `kind`
    "integer": ValueRule(Kind.INTEGER),
    "integer in any base": ValueRule(Kind.INTEGER, any_base=True),
    "power of two": ValueRule(Kind.INTEGER, power_of_two=True),
    "next power of two": ValueRule(Kind.INTEGER, power_of_two=True, round_up=True),
    "multiple of 8": ValueRule(Kind.INTEGER, multiple_of=8),
    "word": ValueRule(Kind.WORD),
    "text": ValueRule(Kind.TEXT),
    "address": ValueRule(Kind.ADDRESS),
    "address or any": ValueRule(Kind.ADDRESS, allow_any=True),
    "group": ValueRule(Kind.ADDRESS, multicast=True),
    "group or any": ValueRule(Kind.ADDRESS, multicast=True, allow_any=True),
    "interface": ValueRule(Kind.INTERFACE),
    "list": ValueRule(Kind.LIST, pattern=".+"),
    "resolvers": ValueRule(Kind.LIST),
    "5 resolvers": ValueRule(Kind.LIST, max_entries=5),
    "api": ValueRule(Kind.API),
}


def rule_for(kind: str, values: str, default: str) -> ValueRule:
    """The rule that three columns of the option table stand for.

    `values` has the ranges of a number (`0 500..65535`), the spellings of words (`tcp lbtrm=lbt-rm`, the canonical one
    first), the pattern of a text, or the entry that empties a list.
    """
    rule = _KINDS[kind]
    match rule.kind:
        case Kind.INTEGER:
            ends = [part.partition("..") for part in values.split()]
            return replace(rule, ranges=tuple((int(low), int(high or low)) for low, _, high in ends))
        case Kind.WORD:
            spellings = [part.removesuffix(_DEPRECATED).split("=") for part in values.split()]
            deprecated = [
                part.partition("=")[0].removesuffix(_DEPRECATED) for part in values.split() if _DEPRECATED in part
            ]
            words = {spelling: names[0] for names in spellings for spelling in names}
            return replace(rule, words=words, deprecated_words=frozenset(deprecated))
        case Kind.TEXT:
            return replace(rule, pattern=values, null_is_empty=default == "NULL")
        case Kind.LIST:
            return replace(rule, clear=values)
        case _:
            return rule


_DEPRECATED: Final = "(deprecated)"

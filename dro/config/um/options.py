"""The table of UM options, and `UmOptions`: the values that hold for one context, source or receiver.

`UmOptions` is immutable and holds explicit values only; other options have their default from the table. Layers are
built with `with_` and `merged`: defaults < files < overrides of the program < options of one object.

Sources: `data/um-options.csv` (names, scopes, types, defaults, limits), UM configuration file rules, sections 3.3
to 3.4 and 5.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

from dro.clock import NS_PER_MS, NS_PER_S, NS_PER_US
from dro.config.um.interfaces import ANY, SYSTEM, Lookup
from dro.config.um.rules import Kind, Value, ValueRule, rule_for
from dro.errors import ConfigError, LocalProtocolError

OptionKey = tuple[str, str]  # scope, name; both in lower case

SCOPES: Final = ("context", "source", "receiver", "wildcard_receiver", "event_queue", "hfx", "xsp")
_SETS_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "resolver_multicast_address": ("resolver_multicast_incoming_address", "resolver_multicast_outgoing_address"),
    "resolver_multicast_port": ("resolver_multicast_incoming_port", "resolver_multicast_outgoing_port"),
    "mim_address": ("mim_incoming_address", "mim_outgoing_address"),
    "mim_destination_port": ("mim_incoming_destination_port", "mim_outgoing_destination_port"),
}
_PROTECTING: Final = frozenset({"Encrypted TCP"})  # groups of the table
_UNIT_NS: Final = {"milliseconds": NS_PER_MS, "seconds": NS_PER_S, "microseconds": NS_PER_US}


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. `relevance` is `yes`, `ignored` (accepted, no effect) or `no` (outside this project).

    `protects`: about the confidentiality, integrity or authenticity of what is sent.
    """

    scope: str
    name: str
    rule: ValueRule
    unit: str
    default: Value
    is_deprecated: bool
    protects: bool
    relevance: str

    def __reduce__(self) -> tuple[Callable[[str, str], Option], tuple[str, str]]:
        """To another process goes the name; it has the same table."""
        return _known, (self.scope, self.name)

    @property
    def key(self) -> OptionKey:
        return self.scope, self.name

    @property
    def sets_also(self) -> tuple[OptionKey, ...]:
        """Options of the same scope that a convenience option stands for."""
        return tuple((self.scope, name) for name in _SETS_ALSO.get(self.name, ()))


@dataclass(frozen=True, slots=True)
class Parsed:
    """One setting that a rule has read; where it was written takes no part in comparisons."""

    option: Option
    value: Value
    origin: str = field(default="", compare=False)


def _default(text: str, rule: ValueRule) -> Value:
    """Convert the default column to a value. Guess: an empty number column means 0."""
    match rule.kind:
        case Kind.INTEGER:
            return int(text or 0)
        case Kind.LIST:
            return ()
        case Kind.WORD:
            return rule.words[text.lower()]
        case Kind.API:
            return ""
        case Kind.TEXT:
            return "" if text == "NULL" else text
        case Kind.ADDRESS | Kind.INTERFACE:
            return text


@cache
def option_table() -> Mapping[OptionKey, Option]:
    """All options, by scope and name; read once from the CSV."""
    table: dict[OptionKey, Option] = {}
    with files("dro.config.data").joinpath("um-options.csv").open(encoding="utf-8") as f:
        for row in csv.DictReader(f):
            name = row["name"].lower()
            rule = rule_for(row["kind"], row["values"], row["default"])
            option = Option(
                row["scope"], name, rule, row["unit"], _default(row["default"], rule),
                row["group"] == "Deprecated", row["group"] in _PROTECTING, row["dro_relevant"],
            )  # fmt: skip
            table[option.key] = option
    return table


def find_option(scope: str, name: str) -> Option | None:
    """The option of that scope and name, in any letter case; None if there is none."""
    return option_table().get((scope.lower(), name.lower()))


def scopes_of(name: str) -> tuple[str, ...]:
    """The scopes in which an option of that name exists."""
    return tuple(scope for scope in SCOPES if (scope, name.lower()) in option_table())


def _known(scope: str, name: str) -> Option:
    option = option_table().get((scope, name))
    if option is None:
        raise LocalProtocolError(f"there is no UM option {scope} {name}")
    return option


@dataclass(frozen=True, slots=True)
class UmOptions:
    """Values of UM options: what was set, and behind it the defaults of the table.

    Scope and name of the `get_*` questions are written in lower case by the code that asks; an unknown pair is a bug
    there (LocalProtocolError), as is a question of the wrong type.
    """

    explicit: Mapping[OptionKey, Value] = field(default_factory=dict)
    origins: Mapping[OptionKey, str] = field(default_factory=dict, compare=False, repr=False)  # where each was set
    made: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)  # for `OptionSet`

    def __reduce__(self) -> tuple[Callable[..., UmOptions], tuple[object, ...]]:
        """To another process goes what was set, without what was made of it."""
        return UmOptions, (self.explicit, self.origins)

    def __hash__(self) -> int:
        return hash(frozenset(self.explicit.items()))

    def is_set(self, scope: str, name: str) -> bool:
        """Whether the value was set by somebody; False means that it is the default of the table."""
        return _known(scope, name).key in self.explicit

    def value(self, scope: str, name: str) -> Value:
        option = _known(scope, name)
        return self.explicit.get(option.key, option.default)

    def get_int(self, scope: str, name: str) -> int:
        """A number in the unit of the option."""
        value = self.value(scope, name)
        if not isinstance(value, int):
            raise LocalProtocolError(f"UM option {scope} {name} is not a number")
        return value

    def get_bool(self, scope: str, name: str) -> bool:
        """A switch: any number but 0 is on."""
        return self.get_int(scope, name) != 0

    def get_ns(self, scope: str, name: str) -> int:
        """A duration, in nanoseconds whatever the unit of the option is."""
        factor = _UNIT_NS.get(_known(scope, name).unit)
        if factor is None:
            raise LocalProtocolError(f"UM option {scope} {name} is not a duration")
        return self.get_int(scope, name) * factor

    def get_str(self, scope: str, name: str) -> str:
        """A text, or the canonical lower-case spelling of an enumerated value."""
        value = self.value(scope, name)
        if not isinstance(value, str):
            raise LocalProtocolError(f"UM option {scope} {name} is not a text")
        return value

    def get_interface(self, scope: str, name: str) -> str:
        """The dotted local address of an interface option; unset, that of `default_interface`; else `0.0.0.0`."""
        if not self.is_set(scope, name):
            return self.get_str("context", "default_interface")
        return self.get_str(scope, name) or ANY

    def get_list(self, scope: str, name: str) -> tuple[str, ...]:
        """The entries of an additive list."""
        value = self.value(scope, name)
        if not isinstance(value, tuple):
            raise LocalProtocolError(f"UM option {scope} {name} is not a list")
        return value

    def origin(self, key: OptionKey) -> str:
        """Return where a value was set, as `file:line`; empty for a default, and for what a program set."""
        return self.origins.get(key, "")

    def holding(self, key: OptionKey) -> str:
        """The value that was set, and where, or that it is the default."""
        return f"{self.explicit[key]} of {self.origin(key)}" if key in self.explicit else "the default"

    def error(self, key: OptionKey, what: str, remedy: str = "") -> ConfigError:
        """An error at the place where that option was set."""
        file, line = place_of(self.origin(key))
        return ConfigError(what, file=file, line=line, element=" ".join(key), remedy=remedy)

    def with_(self, scope: str, name: str, value: int | str, *, lookup: Lookup = SYSTEM, origin: str = "") -> UmOptions:
        """These options with one more setting, written as in a file. Raises: ConfigError."""
        text = str(int(value)) if isinstance(value, int) else value
        return self.with_parsed([parse_setting(scope, name, text, lookup, origin)[0]])

    def with_parsed(self, settings: Iterable[Parsed]) -> UmOptions:
        """These options with settings that a rule has read before, in order."""
        explicit, origins = dict(self.explicit), dict(self.origins)
        for setting in settings:
            add_setting(explicit, origins, setting)
        return UmOptions(explicit, origins)

    def merged(self, over: UmOptions) -> UmOptions:
        """These options, overwritten by what `over` sets explicitly."""
        if not over.explicit:
            return self
        return UmOptions({**self.explicit, **over.explicit}, {**self.origins, **over.origins})


def place_of(origin: str) -> tuple[str, int]:
    """File and line of the origin of a value; line 0 for what is no file, such as a variable."""
    file, _, line = origin.partition(" (template ")[0].rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (origin, 0)


def parse_setting(scope: str, name: str, text: str, lookup: Lookup, origin: str = "") -> tuple[Parsed, str]:
    """One setting and a notice (empty if there is none). Raises: ConfigError with `scope name` as its element."""
    option = find_option(scope, name)
    if option is None:
        where = ", ".join(scopes_of(name))
        remedy = f"it exists in scope {where}" if where else "see the list of UM options"
        raise ConfigError("unknown UM option", element=f"{scope} {name}", remedy=remedy)
    try:
        value, notice = option.rule.parse(text, lookup)
    except ConfigError as e:
        raise type(e)(e.what, element=f"{option.scope} {option.name}", remedy=e.remedy) from e
    return Parsed(option, value, origin), notice


def add_setting(explicit: dict[OptionKey, Value], origins: dict[OptionKey, str], setting: Parsed) -> str:
    """Put a setting, with all that it stands for, into what is set already; the result is a notice, or empty."""
    option = setting.option
    value, notice = option.rule.append(explicit.get(option.key, option.default), setting.value)
    for key in (option.key, *option.sets_also):
        explicit[key] = value
        origins[key] = setting.origin
    return notice


DEFAULTS: Final = UmOptions()

"""UM options that are set and that this release does not honour: those that stop a program, and those that do nothing.

One answer for the DRO, the tools and the client library. The typed sets (`used`) define what is honoured, the option
table what protects data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from dro.config.reading.problems import ConfigErrors
from dro.config.um.options import OptionKey, UmOptions, option_table
from dro.config.um.rules import Kind, Value
from dro.config.um.used import MONITORING, transports, used_options
from dro.errors import ConfigError, HostError

TRANSPORT: Final = ("source", "transport")
TRANSPORTS: Final = transports()
_DONE_ANYWAY: Final[Mapping[OptionKey, Value]] = {
    ("source", "use_hotlink"): 1,  # OTID and topic sqn, which every message has, tell copies apart
}
"""Values of options that nothing asks for and that describe what happens all the same."""
_INSTEAD: Final[Mapping[OptionKey, str]] = {
    ("context", "compression"): "TCP is not compressed",
}
"""Says what happens on the wire although the option asks for something else."""
IDLE_IN_PORTALS: Final = frozenset({("source", "implicit_batching_interval")})
"""Used elsewhere; a portal holds nothing back."""
_WORD: Final = re.compile(r"\w+")
_CHOOSES_TRD: Final = re.compile(r"resolver_(multicast|unicast)_(\w+_)?(address|port|interface)")
_DAEMONS: Final = frozenset({"resolver_unicast_daemon", "resolver_service"})
"""Options that name hosts: without one that has no address nobody would be heard."""


def is_refused(key: OptionKey) -> bool:
    """Whether a value other than the default stops every program of this release."""
    return option_table()[key].protects and key not in used_options()


@cache
def _vital_names() -> tuple[frozenset[str], frozenset[str]]:
    """List options that protect, and those that choose the TRD or network of what is sent, by name."""
    table = option_table().items()
    choose = {key[1] for key, o in table if o.rule.kind is Kind.INTERFACE or _CHOOSES_TRD.fullmatch(key[1])}
    return frozenset(key[1] for key, o in table if o.protects), frozenset(choose)


def must_count(text: str, why_not: ConfigError) -> bool:
    """Whether a setting that cannot be read stops a DRO, too: it would send in plain text, or in another TRD.

    `text` names the option. A file may ask for interfaces that only another host has.
    """
    protect, choose = _vital_names()
    names = protect | (_DAEMONS if isinstance(why_not, HostError) else choose | _DAEMONS)
    return not names.isdisjoint(_WORD.findall(text.lower()))


def names_protection(text: str) -> bool:
    """Whether the name of an option, in whatever scope, is that of one that protects."""
    return not _vital_names()[0].isdisjoint(_WORD.findall(text.lower()))


def refusals(options: UmOptions) -> list[ConfigError]:
    """Return what must stop a program, each at the place where it was set."""
    found = []
    for key, value in sorted(options.explicit.items()):
        if is_refused(key) and value != option_table()[key].default:
            what = "encryption is not supported yet, all would be sent as plain text"
            found.append(options.error(key, what, "remove it, if that is acceptable"))
    return found


@cache
def _ranges() -> tuple[tuple[OptionKey, OptionKey, str], ...]:
    """List ranges by their ends, with the word for what lies in them."""
    words = {"_port_low": "port", "_id_low": "transport id"}
    ends = (
        (key, (key[0], key[1].removesuffix("low") + "high"), word)
        for key in option_table()
        for end, word in words.items()
        if key[1].endswith(end)
    )
    return tuple((low, high, word) for low, high, word in ends if high in option_table())


def empty_ranges(options: UmOptions) -> list[ConfigError]:
    """Return ranges without a number, each at the place of an end that was set; `options` are all that hold."""
    found = []
    for low, high, word in _ranges():
        first, last = options.get_int(*low), options.get_int(*high)
        if first > last:
            what = f"no {word} lies in the range from {first} to {last}"
            remedy = f"set {low[1]} to {last} or less, or {high[1]} to {first} or more"
            found.append(options.error(high if options.is_set(*high) else low, what, remedy))
    return found


def _hotlinked_failover(options: UmOptions) -> list[ConfigError]:
    """Refuse hot failover with hotlinks, which exclude each other (DRO guide 3.6.5); `options` are all that hold."""
    hot_failover, hotlink = ("wildcard_receiver", "hf_receiver"), ("receiver", "use_hotlink")
    if not (options.get_int(*hot_failover) and options.get_int(*hotlink)):
        return []
    return [options.error(hot_failover, "hot failover cannot be combined with use_hotlink", "set one of both to 0")]


def check(options: UmOptions, *, is_whole: bool = False) -> None:
    """Raises: ConfigErrors with all `refusals`; `is_whole`: they are all that hold, so what contradicts itself counts,
    too."""
    found = refusals(options) + (empty_ranges(options) + _hotlinked_failover(options) if is_whole else [])
    if found:
        raise ConfigErrors(found)


def check_transport(options: UmOptions) -> None:
    """Check the transport of sources. Raises: ConfigError for one that no source can use yet."""
    transport = options.get_str(*TRANSPORT)
    if transport not in TRANSPORTS:
        remedy = f"use {', '.join(TRANSPORTS[:-1])} or {TRANSPORTS[-1]}"
        raise options.error(TRANSPORT, f"{transport} is not supported yet", remedy)


def without_effect(*given: UmOptions, in_portals: bool = False) -> tuple[str, str]:
    """The options that do nothing, with their places: a line of those to come, one of those outside this product.

    Empty where there are none. A portal forwards fragments as they are, so options about order and delivery are not
    for it; they are left out, since the files that portals and applications share are full of them.
    """
    used, done = used_options(), _DONE_ANYWAY
    if in_portals:
        used = (used - IDLE_IN_PORTALS).union(MONITORING)
    to_come: dict[str, None] = {}
    outside: dict[str, None] = {}
    for options in given:
        for key, name in _idle(options, used, done):
            (to_come if option_table()[key].relevance == "yes" else outside)[name] = None
    return _line(to_come, "yet"), _line(outside, "here")


def _idle(
    options: UmOptions, used: frozenset[OptionKey], done: Mapping[OptionKey, Value]
) -> Iterator[tuple[OptionKey, str]]:
    origin = options.origin
    implied = {(also, origin(key)) for key in options.explicit for also in option_table()[key].sets_also}
    for key, value in sorted(options.explicit.items()):
        if (key, origin(key)) in implied:
            continue
        if key not in used and not is_refused(key) and value not in (option_table()[key].default, done.get(key)):
            about = ": ".join(filter(None, (origin(key), _INSTEAD.get(key))))
            yield key, " ".join(key) + (f" ({about})" if about else "")


def _line(names: dict[str, None], when: str) -> str:
    return f"{len(names)} UM options without effect {when}: {', '.join(names)}" if names else ""

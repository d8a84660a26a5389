"""Topic patterns of configuration files, by the PCRE2 library itself; POSIX extended expressions, put into its syntax.

A pattern is searched in a topic, not anchored, over bytes and case-sensitive. The library bounds the work of one
search; a search that comes to that bound raises PatternLimit, and whoever asked must then take the safe answer.

Source: DRO guide, elements `pcre-pattern` and `regex-pattern`. Guess: bytes and not characters, as topics have no
charset; in a POSIX expression a backslash before a letter or digit stands for that letter or digit, as before anything.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Final

from dro.errors import ConfigError

MAX_PATTERN_BYTES: Final = 4096
Matcher = Callable[[str], bool]
_SPECIAL: Final = frozenset("\\^$.[]|()?*+{}")


class PatternLimit(Exception):
    """A search was too long; nothing is known about the topic."""


@lru_cache(maxsize=1)
def _library() -> ModuleType:
    try:
        return importlib.import_module("pcre2")
    except ImportError as e:
        raise ConfigError("patterns need the package pcre2", remedy="install it: pip install pcre2") from e


def is_available() -> bool:
    """Whether the library is installed."""
    try:
        _library()
    except ConfigError:
        return False
    return True


@lru_cache(maxsize=4096)
def compile_pcre(pattern: str) -> Matcher:
    """Whether the pattern occurs anywhere in a topic.

    Raises: ConfigError for a pattern that is none, or when the library is missing. The matcher raises PatternLimit.
    """
    library = _library()
    raw = pattern.encode("utf-8", "surrogateescape")
    if len(raw) > MAX_PATTERN_BYTES:
        raise ConfigError(f"the pattern is longer than {MAX_PATTERN_BYTES} bytes", remedy="shorten it")
    try:
        return _matcher(library, raw)
    except (library.PatternError, library.LibraryError, ValueError) as e:
        raise ConfigError(f"{pattern[:60]!r} is not a pattern: {e}", remedy="see the syntax of PCRE2") from e


def compile_joined(patterns: Sequence[str]) -> Matcher | None:
    """Whether one of many valid patterns occurs in a topic; None when they are too much for one expression.

    It is for the caller to know that they mean the same beside each other.
    """
    library = _library()
    try:
        return _matcher(library, "|".join(f"(?:{p})" for p in patterns).encode("utf-8", "surrogateescape"))
    except (library.PatternError, library.LibraryError, ValueError):
        return None


def _matcher(library: ModuleType, raw: bytes) -> Matcher:
    search = library.compile(raw).search
    too_long = library.LibraryError

    def matches(topic: str) -> bool:
        try:
            return search(topic.encode("utf-8", "surrogateescape")) is not None
        except too_long as e:
            raise PatternLimit(str(e)) from e

    return matches


@lru_cache(maxsize=1024)
def compile_posix(pattern: str) -> Matcher:
    """`compile_pcre` for a POSIX extended expression. Raises: ConfigError."""
    return compile_pcre(posix_to_pcre(pattern))


def posix_to_pcre(pattern: str) -> str:
    """A POSIX extended expression in the syntax of PCRE2. Raises: ConfigError."""
    made = ["(?s)"]
    groups: list[int] = []
    atom: int | None = None  # where in `made` the thing begins that a repetition would repeat
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char in "*+?" or (char == "{" and pattern[at : at + 1].isdigit()):
            if atom is None:
                what = f"{pattern[:60]!r}: nothing to repeat before {char!r}"
                raise ConfigError(what, remedy="put a backslash before it")
            end = pattern.find("}", at) + 1 if char == "{" else at
            if end == 0:
                raise ConfigError(f"{pattern[:60]!r}: a brace does not close", remedy="add }")
            made.insert(atom, "(?:")  # a second repetition repeats the first, it does not modify it
            made.append(f"{pattern[at - 1 : end]})")
            at = end
            continue
        begin = len(made)
        if char == "\\":
            if at == len(pattern):
                raise ConfigError(f"{pattern[:60]!r} ends with a backslash", remedy="write two for a real one")
            made.append(_literal(pattern[at]))
            at += 1
        elif char == "[":
            text, at = _bracket(pattern, at)
            made.append(text)
        else:
            made.append({"$": "\\z", "^": "\\A", "{": "\\{", "}": "\\}", "]": "\\]"}.get(char, char))
        if char == "(":
            groups.append(begin)
        elif char == ")" and groups:
            begin = groups.pop()
        atom = None if char in "(|^$" else begin
    return "".join(made)


def _literal(char: str) -> str:
    return f"\\{char}" if char in _SPECIAL else char


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """A bracket expression from behind its `[`, and the place behind it; a backslash in it is an ordinary character."""
    made = ["["]
    if pattern[at : at + 1] == "^":
        made.append("^")
        at += 1
    first = at
    while at < len(pattern):
        char = pattern[at]
        if char == "]" and at > first:
            return "".join(made) + "]", at + 1
        if char == "[" and pattern[at + 1 : at + 2] == ":":
            end = pattern.find(":]", at)
            if end > 0:
                made.append(pattern[at : end + 2])
                at = end + 2
                continue
        made.append(f"\\{char}" if char in "\\[]" else char)
        at += 1
    raise ConfigError(f"{pattern[:60]!r}: a bracket does not close", remedy="add ]")

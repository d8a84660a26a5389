"""Wildcard matching, the one engine: PCRE2 for wildcard receivers, interest of DROs, access control and UM XML.

A pattern is searched in a topic, not anchored, over bytes and case-sensitive. Any application in the TRD can send one,
so its length is bounded, and so is the work of one search: the library applies its limits anew at each position of a
topic, therefore `.*?` is put in front and the whole search is one attempt with one limit. Syntax of the library that is
incompatible with this is refused: verbs such as `(*LIMIT_MATCH=...)` and `(*PRUNE)`, and recursion of the whole
pattern.

POSIX extended expressions are translated to PCRE2, with the escapes that glibc adds.

Source: DRO guide, elements `pcre-pattern` and `regex-pattern`; client library notes, section 10; regcomp of glibc.
Guess: bytes and not characters, as topics have no charset; `{,3}` is no repetition in PCRE, as in the library that UM
was made with (PCRE2 knows it since 10.43), and is one in POSIX expressions, as in glibc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import pcre2

from dro.errors import ConfigError

PCRE: Final = 1  # the pattern types of topic resolution
REGEX: Final = 2
PATTERN_MAX_BYTES: Final = 1024
_JOINED_LIMIT: Final = b"(*LIMIT_MATCH=20000)"
_LEAST_STEPS: Final = 100
_COUNT_OF_GROUP: Final = re.compile(rb"\)\{(\d*),?(\d*)\}")
_COUNT: Final = re.compile(rb"\{(\d*),?(\d*)\}")
_LOOKBEHIND: Final = re.compile(rb"\(\?<[=!]")  # tries all lengths that it can have

Search = Callable[[bytes], bool]


class PatternError(ConfigError):
    """A pattern that cannot be used."""


class PatternLimit(Exception):
    """A search was given up at its limit; nothing is known about the topic."""


def _ignore(pattern: bytes) -> None:
    pass


class Pattern:
    """Whether the pattern occurs anywhere in a topic. `pcre` is the pattern in the syntax of PCRE2."""

    __slots__ = ("__weakref__", "_match", "_on_limit", "_text", "pcre")

    def __init__(self, pattern: bytes, kind: int, on_limit: Callable[[bytes], object] = _ignore) -> None:
        """`kind` is `PCRE` or `REGEX` (POSIX extended); `on_limit` is called when a search counts as no match.

        Raises: PatternError with what is wrong.
        """
        if len(pattern) > PATTERN_MAX_BYTES:
            what = f"{len(pattern)} bytes, at most {PATTERN_MAX_BYTES} are taken"
            raise _error(pattern, what, "shorten it, or make several of it")
        if kind not in (PCRE, REGEX):
            raise _error(pattern, f"pattern type {kind} is not known")
        self._text = pattern
        self._on_limit = on_limit
        self.pcre = _checked(pattern) if kind == PCRE else posix_to_pcre(pattern)
        self._match = _compiled(pattern, self.pcre).match

    def search(self, topic: bytes) -> bool:
        """Say whether the pattern occurs in a topic. Raises: PatternLimit."""
        try:
            return self._match(topic) is not None
        except pcre2.LibraryError as e:
            raise PatternLimit(str(e)) from e

    def __call__(self, topic: bytes) -> bool:
        """`search`, where a search that was given up counts as no match."""
        try:
            return self._match(topic) is not None
        except pcre2.LibraryError:
            self._on_limit(self._text)
            return False


def joined(patterns: Sequence[bytes]) -> Search | None:
    """Search for any of many valid patterns in the syntax of PCRE2; None when one expression cannot hold them all.

    The caller knows that they mean the same beside each other. The search raises PatternLimit.
    """
    try:
        find = pcre2.compile(_JOINED_LIMIT + b"|".join(b"(?:%s)" % p for p in patterns)).search
    except pcre2.LibraryError:
        return None

    def search(topic: bytes) -> bool:
        try:
            return find(topic) is not None
        except pcre2.LibraryError as e:
            raise PatternLimit(str(e)) from e

    return search


def _error(pattern: bytes, what: str, remedy: str = "") -> PatternError:
    return PatternError(f"pattern {pattern[:60].decode('utf-8', 'replace')!r}: {what}", remedy=remedy)


def _limits(pattern: bytes, pcre: bytes) -> bytes:
    """Choose limits that keep a search below 1 ms; heap in KiB. Raises: PatternError when too few steps are left.

    A longer pattern gets fewer steps, as each may take longer, and more for its alternatives, of which each takes one.
    """
    size = len(pcre)
    for counts in (_COUNT if _LOOKBEHIND.search(pcre) else _COUNT_OF_GROUP).findall(pcre):
        size *= max(1, *(int(count[:6] or b"0") for count in counts))
    steps = 400_000 // (100 + size) + 40 * pcre.count(b"|")
    if steps < _LEAST_STEPS:
        raise _error(pattern, "too large once its repetitions are written out", "repeat fewer groups, less often")
    return b"(*LIMIT_MATCH=%d)(*LIMIT_HEAP=256)" % steps


def _compiled(pattern: bytes, pcre: bytes) -> pcre2.Pattern:
    try:
        pcre2.compile(pcre, jit=False)  # alone: what is put around it could complete it
        limits = _limits(pattern, pcre)
        if pcre.startswith(b".*") and pcre[2:3] not in (b"*", b"+", b"?", b"{"):
            pcre = pcre[2:]  # the same to find, and without a try of every length at every place
        try:
            return pcre2.compile(b"%s(?s:.*?)(?:%s\\E)" % (limits, pcre), jit=False)
        except pcre2.LibraryError:
            return pcre2.compile(b"%s(?s:.*?)(?:%s\n)" % (limits, pcre), jit=False)  # it ends in a comment
    except pcre2.LibraryError as e:
        raise _error(pattern, f"not a pattern: {e}", "see the syntax of PCRE2") from e


# PCRE

_ESCAPE: Final = rb"\\Q.*?(?:\\E|\Z)|\\x(?P<code>\{[^}]*\}|[0-9A-Fa-f]{0,2})|(?P<never>\\[uUX])|\\c?."
_CLASS: Final = rb"(?:\\[dDwWsShHvV]|\[:\^?\w+:\])"
_IN_SET: Final = re.compile(rb"(?P<hyphen>%s-|-(?=%s))|" % (_CLASS, _CLASS) + _ESCAPE, re.DOTALL)  # never a range
_OUTSIDE: Final = re.compile(
    rb"(?P<set>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\\\]])*+\])|(?P<refused>\(\*|\(\?(?:R|[-+]?0+)\)|\\g[<'][-+]?0+[>'])|"
    rb"\\[gkopPN]\{[^}]*\}|(?P<brace>\{(?!\d+(?:,\d*)?\}))|" + _ESCAPE, re.DOTALL
)  # fmt: skip
_HEX: Final = re.compile(rb"\{[0-9A-Fa-f]+\}|[0-9A-Fa-f]*")


def _checked(pattern: bytes) -> bytes:
    """Spell what the package or its library reads in a way of their own so that the pattern means the same."""

    def spelt(found: re.Match[bytes]) -> bytes:
        match found.lastgroup:
            case None:
                return found[0]
            case "set":
                return _IN_SET.sub(spelt, found[0])
            case "brace" | "hyphen":
                return found[0][:-1] + b"\\" + found[0][-1:]
            case "code" if len(found["code"]) <= 8 and _HEX.fullmatch(found["code"]):
                return b"\\o{%o}" % int(found["code"].strip(b"{}") or b"0", 16)
        what = f"{found[0].decode('utf-8', 'replace')!r} is not supported"
        raise _error(pattern, what, "write the pattern without it")

    return _OUTSIDE.sub(spelt, pattern)


# POSIX extended

_TOKEN: Final = re.compile(
    rb"(?P<plain>(?:(?:[\w.][*+?]?|\\[^\w<>`'][*+?]?|\|)(?![*+?{]))+)|(?P<bar>\|)|"
    rb"(?P<dot>\.)|(?P<open>\()|(?P<close>\))|(?P<place>[$^]|\\[bB<>`'])|"
    rb"(?P<set>\[\^?\]?(?:\[:(?:al(?:num|pha)|blank|cntrl|x?digit|graph|lower|print|punct|space|upper):\]|"
    rb"(?!\[[:.=])[^\]])*+\])|(?P<repeat>[*+?]|\{(?:\d+(?:,\d*)?|,\d*)\})|(?P<class>\\[wWsS])|\\(?P<group>[1-9])|"
    rb"(?P<half>[\[{]|\\\Z)|\\?(?P<other>.)", re.DOTALL
)  # fmt: skip
_PLACES: Final = {
    b"^": rb"\A",
    b"$": rb"\z",
    rb"\<": rb"\b(?=\w)",
    rb"\>": rb"\b(?<=\w)",
    rb"\`": rb"\A",
    rb"\'": rb"\z",
}
_MEMBER: Final = re.compile(rb"(?!\A)(?:(\[:\w+:\])|[\\\[]|\](?!\Z))")


def posix_to_pcre(pattern: bytes) -> bytes:
    """A POSIX extended expression in the syntax of PCRE2. Raises: PatternError."""
    made = [b"(?s)"]
    opened: list[tuple[int, int]] = []  # number and begin in `made` of the groups around
    closed: set[int] = set()
    atom: int | None = None  # where in `made` the thing begins that a repetition would repeat
    for found in _TOKEN.finditer(pattern):
        token, kind, begin = found[0], found.lastgroup, len(made)
        if kind == "repeat":
            if atom is None:
                raise _error(pattern, f"nothing to repeat before {token.decode()!r}", "put a backslash before it")
            made.insert(atom, b"(?:")  # a second repetition repeats the first, it does not modify it
            made.append(token.replace(b"{,", b"{0,") + b")")
            continue
        atom = begin
        match kind:
            case "bar" | "open":
                if kind == "open":
                    opened.append((len(opened) + len(closed) + 1, begin))
                atom = None
            case "close" if opened:
                number, atom = opened.pop()
                closed.add(number)
            case "place":
                token = _PLACES.get(token, token)
                atom = None
            case "set":
                token = _MEMBER.sub(lambda member: member[0] if member[1] else b"\\" + member[0], token)
            case "group" if int(found["group"]) not in closed:
                raise _error(pattern, f"no group ends before {token.decode()!r}")
            case "half" | "close":
                raise _error(pattern, f"{token.decode()!r} is not complete", "put a backslash before it")
            case "other":
                token = re.escape(found["other"])
        made.append(token)
    return b"".join(made)

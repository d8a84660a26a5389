"""Topic patterns: made once, asked for each topic. DRO and client library use the same matcher.

A pattern comes from anybody in the TRD, so no pattern may cost more than a bounded time per topic:

    cheap by backtracking          Python's `re`
    else, an automaton can do it   `Automaton`, time proportional to the topic
    else                           refused: it looks around, refers back or is possessive, and could take too long

Source: client library notes, section 10. Guess: "cheap" is at most `COST_MAX_BITS` doublings for a topic of 256 bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

from dro.um.pattern_search import Automaton
from dro.um.pattern_syntax import (
    Alt,
    At,
    Atomic,
    BackReference,
    Capture,
    Chars,
    Greed,
    Look,
    Node,
    PatternError,
    PcreParser,
    PosixParser,
    Repeat,
    Seq,
    Where,
)

__all__ = ["PCRE", "REGEX", "PatternError", "compile_pattern"]

PCRE: Final = 1
REGEX: Final = 2
PATTERN_MAX_BYTES: Final = 1024
COST_MAX_BITS: Final = 20
_TOPIC_BITS: Final = 8  # a topic has fewer than 256 bytes

Matcher = Callable[[bytes], bool]


def compile_pattern(pattern: bytes, kind: int) -> Matcher:
    """Whether the pattern occurs anywhere in a topic; case-sensitive. `kind` is `PCRE` or `REGEX` (POSIX extended).

    Raises: PatternError with what is wrong, or what is not supported.
    """
    if len(pattern) > PATTERN_MAX_BYTES:
        raise PatternError(f"the pattern has {len(pattern)} bytes, at most {PATTERN_MAX_BYTES} are taken")
    if kind == PCRE:
        tree = PcreParser(pattern).parse()
    elif kind == REGEX:
        tree = PosixParser(pattern).parse()
    else:
        raise PatternError(f"pattern type {kind} is not known")
    if _cost(tree) + (0 if _is_anchored(tree) else _TOPIC_BITS) <= COST_MAX_BITS:
        return _by_backtracking(tree)
    if _needs_backtracking(tree):
        raise PatternError(
            "the pattern could take too long to match; use fewer repetitions beside look-arounds, references, atomic"
            " groups and possessive quantifiers"
        )
    return Automaton(tree).search


def _by_backtracking(tree: Node) -> Matcher:
    try:
        search = re.compile(_spell(tree), re.DOTALL).search
    except (re.error, OverflowError, RecursionError) as e:
        raise PatternError(str(e)) from e
    return lambda topic: search(topic) is not None


# cost


def _cost(node: Node) -> float:
    """Upper bound of the ways to try at one place of a topic, as a power of two; infinite for nested repetitions."""
    match node:
        case Seq(items):
            so_far = most = 0.0
            for item in items:
                cost = _cost(item)
                most = max(most, so_far + cost)
                if not isinstance(item, Look | Atomic):  # once over, these are not tried again in another way
                    so_far += cost
            return max(most, so_far)
        case Alt(branches):
            return math.log2(len(branches)) + max(map(_cost, branches))
        case Repeat(item, low, high, _):
            cost = _cost(item)
            if high is None:
                return _TOPIC_BITS + low * cost if cost == 0 else math.inf
            return high * cost + math.log2(high - low + 1)
        case Capture(item) | Atomic(item) | Look(item, _, _):
            return _cost(item)
        case Chars() | At() | BackReference():
            return 0.0


def _is_anchored(node: Node) -> bool:
    """Can it match at the start of the topic only?"""
    match node:
        case At(Where.START):
            return True
        case Seq(items):
            return bool(items) and _is_anchored(items[0])
        case Alt(branches):
            return all(map(_is_anchored, branches))
        case Capture(item) | Atomic(item):
            return _is_anchored(item)
    return False


def _needs_backtracking(node: Node) -> bool:
    match node:
        case Seq(items) | Alt(items):
            return any(map(_needs_backtracking, items))
        case Repeat(item, _, _, greed):
            return greed is Greed.POSSESSIVE or _needs_backtracking(item)
        case Capture(item):
            return _needs_backtracking(item)
        case Atomic() | Look() | BackReference():
            return True
        case Chars() | At():
            return False


# in the syntax of Python

_PLACES: Final = {
    Where.START: b"\\A",
    Where.LINE_START: b"(?m:^)",
    Where.END: b"\\Z",
    Where.END_OR_NEWLINE: b"(?=\\n?\\Z)",
    Where.LINE_END: b"(?m:$)",
    Where.WORD_EDGE: b"\\b",
    Where.NO_WORD_EDGE: b"(?!\\b)",
}


def _spell(node: Node) -> bytes:
    match node:
        case Chars(mask):
            return _spell_set(mask)
        case At(where):
            return _PLACES[where]
        case Seq(items):
            return b"".join(map(_spell, items))
        case Alt(branches):
            return b"(?:" + b"|".join(map(_spell, branches)) + b")"
        case Repeat(item, low, high, greed):
            bounds = b"{%d,}" % low if high is None else b"{%d,%d}" % (low, high)
            return b"(?:" + _spell(item) + b")" + bounds + greed.value.encode()
        case Capture(item):
            return b"(" + _spell(item) + b")"
        case Atomic(item):
            return b"(?>" + _spell(item) + b")"
        case Look(item, is_behind, is_negative):
            return b"(?" + (b"<" if is_behind else b"") + (b"!" if is_negative else b"=") + _spell(item) + b")"
        case BackReference(group):
            return b"(?:\\%d)" % group


def _spell_set(mask: int) -> bytes:
    if mask == 0:
        return b"(?!)"
    ranges = bytearray()
    byte = 0
    while mask >> byte:
        if not mask >> byte & 1:
            byte += 1
            continue
        end = byte
        while mask >> (end + 1) & 1:
            end += 1
        ranges += b"\\x%02x" % byte if end == byte else b"\\x%02x-\\x%02x" % (byte, end)
        byte = end + 1
    return b"[" + bytes(ranges) + b"]"

"""How `umdump` writes times, addresses and bytes that came from outside."""

from __future__ import annotations

import time
from functools import lru_cache

from dro.clock import NS_PER_S


@lru_cache(maxsize=64)
def _second_text(seconds: int) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return str(seconds)


def time_text(time_ns: int) -> str:
    """Nanoseconds since the epoch as ISO 8601 in UTC, with all nine decimals; plain seconds when out of range."""
    seconds, rest = divmod(time_ns, NS_PER_S)
    return f"{_second_text(seconds)}.{rest:09d}Z"


def shown(text: str) -> str:
    """Text for a terminal: what does not print is written as an escape, so a packet cannot drive the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_text(data: bytes) -> str | None:
    """The bytes as text without trailing NULs, or None when they are no printable text."""
    try:
        text = data.rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c in "\t\r\n" for c in text) else None

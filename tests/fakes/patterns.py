"""Patterns for cores that are given a compiler of them."""

from __future__ import annotations

import re
from collections.abc import Callable


def compile_pattern(pattern: bytes, kind: int) -> Callable[[bytes], bool] | None:
    """A search by `re`, whatever the kind; None for what does not compile."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        return None
    return lambda topic: compiled.search(topic) is not None

"""Says what is wrong with a history as a whole."""

from __future__ import annotations


class HistoryError(Exception):
    """Names what is wrong with a history, and the remedy."""


def first_line(error: Exception) -> str:
    """Give the first line of what an error says, or its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)

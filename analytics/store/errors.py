"""Says what is wrong with a history as a whole."""

from __future__ import annotations


class HistoryError(Exception):
    """Names what is wrong with a history, and the remedy."""


def of_store(error: OSError) -> HistoryError:
    """Say what a store could not do."""
    return HistoryError(f"{error.filename}: {error.strerror}; nothing is lost: mend it, and run it again")

"""Routes of a portal as tests write them: without shares, so that each holds for all trees."""

from __future__ import annotations

from collections.abc import Iterable

from dro.shares import ALL_SHARES
from portals.decisions.routes import Entry


def whole(entries: Iterable[tuple[int, int, int, int]]) -> list[Entry]:
    """`entries`: (source domain, interested domain, ingress worker, egress worker)."""
    return [(*entry, ALL_SHARES) for entry in entries]

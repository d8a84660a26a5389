"""Routes of a portal as tests write them: without shares, so that each holds for all trees."""

from __future__ import annotations

from collections.abc import Iterable

from dro.bus.messages import Route


def whole(entries: Iterable[tuple[int, int, int, int]]) -> list[Route]:
    """`entries`: (source domain, interested domain, ingress worker, egress worker)."""
    return [Route((source,), *others) for source, *others in entries]

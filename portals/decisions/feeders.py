"""What feeds a proxy source: a sibling that offers the source, with the handle that the source has there."""

from __future__ import annotations

from dataclasses import dataclass

from portals.decisions.siblings import Offer


@dataclass(slots=True)
class WantedProxy:
    """One wanted proxy source; `feeder` is (worker, handle), None while it waits for its deletion.

    `before`: the feeder that a route change took off, which feeds it for a while yet.
    """

    topic: bytes
    domain_id: int
    feeder: tuple[int, int] | None
    before: tuple[int, int] | None = None


def cheapest(offer: Offer) -> tuple[int, int, int, int]:
    """The least of several is the way to take: lowest cost, fewest hops, lowest worker.

    Of two offers of one sibling the newer is the living one: handles grow with time.
    """
    return offer.source.cost, offer.source.hop_count, offer.worker, -offer.source.handle

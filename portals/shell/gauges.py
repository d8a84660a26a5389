"""Shows a portal's core, and the interest that it hears, on its page; the rest comes from the link."""

from __future__ import annotations

from typing import Final

from dro.bus.counters import CounterPage
from dro.metrics.slots import Slot
from dro.proto.interest.events import InterestEvent, InterestGained
from dro.samples import Samples
from portals.decisions.core import PortalCore
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX

_INTEREST_CHANGES: Final = {  # (is it more?, is it a topic?)
    (True, True): Slot.INTEREST_TOPICS_ADDED,
    (True, False): Slot.INTEREST_PATTERNS_ADDED,
    (False, True): Slot.INTEREST_TOPICS_REMOVED,
    (False, False): Slot.INTEREST_PATTERNS_REMOVED,
}


def count_interest(event: InterestEvent, page: CounterPage) -> None:
    """Count a topic or pattern that came to the interest that the portal hears, or left it."""
    page.add(_INTEREST_CHANGES[isinstance(event, InterestGained), event.symbol[1] == PATTERN_NONE])


def show_core(core: PortalCore, page: CounterPage) -> None:
    """The gauges that come from the core; the others come from the link."""
    kinds = core.receivers.kinds
    page.set(Slot.PROXY_RECEIVERS, len(core.proxy_receivers))
    page.set(Slot.RECEIVER_TOPICS, kinds[PATTERN_NONE])
    page.set(Slot.RECEIVER_PCRE, kinds[PATTERN_PCRE])
    page.set(Slot.RECEIVER_REGEX, kinds[PATTERN_REGEX])
    page.set(Slot.TOPICS_NOT_OUT, len(core.recorded.withheld))
    page.set(Slot.TOPICS_NOT_IN, len(core.receivers.refused))
    page.set(Slot.PATTERNS_WAITING, len(core.recorded.waiting))


def extent(name: str, samples: Samples) -> dict[Slot, int]:
    """Give least, mean and most to three slots. `name`: of these, with a place for MIN, MEAN and MAX."""
    values = {"MIN": samples.minimum, "MEAN": samples.mean, "MAX": samples.maximum}
    return {Slot[name.format(part)]: value for part, value in values.items()}

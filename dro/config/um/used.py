"""The UM options that this program uses: those that the sets declare, and a few more.

Called before a start, so that an option without effect is reported by name.
"""

from __future__ import annotations

from functools import cache

from dro.config.um import sets as um_sets
from dro.config.um.options import OptionKey, option_table
from dro.config.um.sets import OptionSet

# Asked for elsewhere than in the sets.
_ELSEWHERE: frozenset[OptionKey] = frozenset(
    {
        ("context", "context_name"),
        ("context", "default_interface"),
        ("source", "transport"),
    }
)


# A portal forwards fragments as they come: it neither gathers messages nor puts them into order, and it repeats what
# the origin says about its last message.
_OF_APPLICATIONS: tuple[type[OptionSet], ...] = (
    um_sets.BatchingOptions,
    um_sets.DeliveryOptions,
    um_sets.TsniReceiverOptions,
    um_sets.TsniSourceOptions,
)


@cache
def used_options(*, in_portals: bool = False) -> frozenset[OptionKey]:
    """Scope and name of all options with an effect, convenience options included; `in_portals`: in a DRO."""
    made = [one for one in vars(um_sets).values() if isinstance(one, type) and issubclass(one, OptionSet)]
    asked = _ELSEWHERE.union(*(one.keys() for one in made if not (in_portals and one in _OF_APPLICATIONS)))
    return asked | {key for key, option in option_table().items() if asked.intersection(option.sets_also)}

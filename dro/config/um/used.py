"""The UM options that this program uses: those that the sets declare, and a few more.

Called before a start, so that an option without effect is reported by name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dro.config.um import sets as um_sets
from dro.config.um.options import OptionKey, option_table
from dro.config.um.sets import OptionSet

FOLDERS: Final = [str(Path(__file__).parents[2] / "transport")]
"""With a folder for each kind of transport."""
# Asked for elsewhere than in the sets.
_ELSEWHERE: frozenset[OptionKey] = frozenset(
    {
        ("context", "context_name"),
        ("context", "default_interface"),
        ("source", "transport"),
    }
)
STATISTICS_CONTEXT: Final = "29west_statistics_context"
"""Name of the context that sends or hears statistics, for UM XML files."""
STATISTICS_TOPIC: Final = "/29west/statistics"
MONITORING: Final[tuple[OptionKey, ...]] = tuple(
    ("context", f"monitor_{name}") for name in ("interval", "transport", "transport_opts", "format", "format_opts")
)
"""Of portals; they switch on the statistics of a DRO, which has them for all of it."""

# A portal forwards fragments as they come: it neither gathers messages nor puts them into order, and it repeats what
# the origin says about its last message.
_OF_APPLICATIONS: tuple[type[OptionSet], ...] = (
    um_sets.BatchingOptions,
    um_sets.DeliveryOptions,
    um_sets.ImmediateDeliveryOptions,
    um_sets.TsniReceiverOptions,
    um_sets.TsniSourceOptions,
)


def transports() -> list[str]:
    """Return the names of all kinds of transport, TCP first."""
    found = {path.parent.name for folder in FOLDERS for path in Path(folder).glob("*/kind.py")}
    return sorted(found, reverse=True)


def _sets() -> Iterator[type[OptionSet]]:
    """Yield the sets of `dro.config.um.sets`, and those in the module `options` of a kind of transport."""
    modules = [um_sets]
    for folder in pkgutil.iter_modules(FOLDERS):
        name = f"dro.transport.{folder.name}"
        if folder.ispkg and find_spec(f"{name}.options"):
            modules.append(import_module(f"{name}.options"))
    for module in modules:
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, OptionSet):
                yield one


@cache
def used_options(*, in_portals: bool = False) -> frozenset[OptionKey]:
    """Scope and name of all options with an effect, convenience options included; `in_portals`: in a DRO."""
    asked = _ELSEWHERE.union(*(one.keys() for one in _sets() if not (in_portals and one in _OF_APPLICATIONS)))
    asked = asked.union(MONITORING) if in_portals else asked
    return asked | {key for key, option in option_table().items() if asked.intersection(option.sets_also)}

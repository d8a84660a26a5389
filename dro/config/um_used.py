"""Which UM options something in this program asks for: found by asking the typed sets with a note-taking `UmOptions`.

Called before a start, so that an option that exists and changes nothing yet is told by name.
"""

from __future__ import annotations

from functools import cache

from dro.config import um_sets
from dro.config.options import OptionKey, UmOptions, find_option, option_table
from dro.config.rules import Value

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
_OF_APPLICATIONS: tuple[type, ...] = (
    um_sets.BatchingOptions,
    um_sets.DeliveryOptions,
    um_sets.TsniReceiverOptions,
    um_sets.TsniSourceOptions,
)

_KEPT: dict[OptionKey, Value] = {("source", "implicit_batching_minimum_length"): 1}
"""What portals do whatever is set: a proxy source sends each fragment at once."""


class _Notes(UmOptions):
    """The defaults; keeps what it was asked for."""

    asked: set[OptionKey] = set()  # noqa: RUF012  # one for the class: the records around it are frozen

    def is_set(self, scope: str, name: str) -> bool:
        self.asked.add((scope, name))
        return super().is_set(scope, name)

    def value(self, scope: str, name: str) -> Value:
        self.asked.add((scope, name))
        return super().value(scope, name)


def used_by(*sets: type) -> frozenset[OptionKey]:
    """Scope and name of the options that these sets ask for."""
    notes = _Notes()
    notes.asked.clear()
    for made in sets:
        read = getattr(made, "of", None)
        if callable(read):
            read(notes)
    return frozenset(notes.asked)


@cache
def used_options(*, in_portals: bool = False) -> frozenset[OptionKey]:
    """Scope and name of all options with an effect, convenience options included; `in_portals`: in a DRO."""
    sets = [made for made in vars(um_sets).values() if isinstance(made, type) and made.__module__ == um_sets.__name__]
    asked = used_by(*(made for made in sets if not (in_portals and made in _OF_APPLICATIONS))) | _ELSEWHERE
    return asked | {key for key, option in option_table().items() if asked.intersection(option.sets_also)}


def unused(options: UmOptions) -> list[str]:
    """`scope name` of the options that are set to something else than their default and that a portal cannot honour.

    Those about order and delivery are left out as well: a portal that forwards fragments as they come does not break
    them, and files that portals and applications share are full of them.

    Options that mean nothing to a DRO are left out: they are told when they are read, or known to be without effect.
    """
    found = []
    used = used_options() - used_by(um_sets.BatchingOptions)
    for key, value in sorted(options.explicit.items()):
        option = find_option(*key)
        if (
            option is not None
            and option.relevance == "yes"
            and key not in used
            and value not in (option.default, _KEPT.get(key))
        ):
            found.append(f"{key[0]} {key[1]}")
    return found

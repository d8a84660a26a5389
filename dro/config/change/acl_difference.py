"""Changes of access control lists: entries added, removed or changed.

Called by the comparison of whole configurations. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from typing import Final

from dro.config.change.element_difference import Change
from dro.config.change.reload_class import reload_class_at
from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig


def acl_changes(old: AclConfig | None, new: AclConfig | None, path: str, portal: str) -> Iterator[Change]:
    for direction, entries_of in _DIRECTIONS:
        before, after = (entries_of(acl) if acl is not None else None for acl in (old, new))
        at = f"{path}/acl/{direction}"
        if before is not None and after is not None:
            yield from _entries_changes(before, after, at, portal)
        elif before is not None or after is not None:
            shown, places = _both(before, after, lambda side: f"{len(side)} {'entry' if len(side) == 1 else 'entries'}")
            yield Change(at, portal, shown[0], shown[1], reload_class_at(("endpoint", "acl")), places[1], places[0])


def _both(
    old: tuple[AceConfig, ...] | None, new: tuple[AceConfig, ...] | None, text: Callable[[tuple[AceConfig, ...]], str]
) -> tuple[list[str | None], list[str]]:
    """Return text and place of the old and of the new entries; None and empty where there are none."""
    return (
        [None if side is None else text(side) for side in (old, new)],
        [f"{side[0].file}:{side[0].line}" if side else "" for side in (old, new)],
    )


_DIRECTIONS: Final[tuple[tuple[str, Callable[[AclConfig], tuple[AceConfig, ...] | None]], ...]] = (
    ("inbound", lambda acl: acl.inbound),
    ("outbound", lambda acl: acl.outbound),
)


def _entries_changes(
    old: tuple[AceConfig, ...], new: tuple[AceConfig, ...], path: str, portal: str
) -> Iterator[Change]:
    """Yield entries that came, went or became others; their order counts, that of their conditions does not."""
    cls = reload_class_at(("endpoint", "acl", "inbound", "ace"))
    keys = [[(ace.accept, frozenset(ace.conditions)) for ace in side] for side in (old, new)]
    for tag, a, a_end, b, b_end in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        for step in range(0 if tag == "equal" else max(a_end - a, b_end - b)):
            before = (old[a + step],) if a + step < a_end else None
            after = (new[b + step],) if b + step < b_end else None
            number = b + step + 1 if after is not None else a + step + 1
            shown, places = _both(before, after, lambda side: ace_text(side[0]))
            yield Change(f"{path}/ace[{number}]", portal, shown[0], shown[1], cls, places[1], places[0])


def ace_text(ace: AceConfig) -> str:
    """An entry in words."""
    return f"{'accept' if ace.accept else 'reject'} {' and '.join(map(condition_text, ace.conditions))}"


def condition_text(condition: ConditionConfig) -> str:
    comparison = "" if condition.kind in ("topic", "pcre-pattern", "regex-pattern") else f" {condition.comparison}"
    return f"{condition.kind}{comparison} {condition.value}"

"""Changes of single elements: where two trees of one configuration file differ.

Called by the comparison of whole configurations, for elements whose records differ. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dro.config.change.reload_class import ReloadClass, reload_class_at
from dro.config.change.um_difference import HIDDEN
from dro.config.reading.reader import Node, NodeValue
from dro.config.reading.schema import elements, fields_of

PRESENT: Final = "present"
_SECRETS: Final = frozenset({"certificate-key-password"})


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs. None for `old` or `new`: it is not there.

    `path` leads from `daemon` or a portal to the element, an attribute behind `@`; `origin` and `was` are the places
    of the new and of the old value, empty for defaults.
    """

    path: str
    portal: str  # its name; empty for the daemon
    old: str | None
    new: str | None
    reload: ReloadClass
    origin: str = ""
    was: str = ""


def element_changes(
    element: str, records: tuple[object, object], nodes: tuple[Node, Node], path: tuple[str, ...], portal: str
) -> Iterator[Change]:
    """The changes in one child of the daemon or of a portal; none unless the fields that it fills differ."""
    old, new = ([getattr(record, name) for name in fields_of(element)] for record in records)
    if old == new:
        return
    before, after = (_only(node, element) for node in nodes)
    found = list(_node_changes(before, after, (*path, element), portal))
    if found:
        yield from found
        return
    # the text is the same and stands for something else now, or the other way round
    was, now = (_shown(element, ", ".join(map(str, values))) for values in (old, new))
    if was == now:  # what a file has that may not be shown
        was = now = HIDDEN
    yield _change((*path, element), portal, was, now, _place(after), _place(before))


def _only(node: Node, name: str) -> Node | None:
    found = [child for child in node.children if child.name == name]
    return next((child for child in found if child.is_present), found[0] if found else None)


def _change(
    path: tuple[str, ...], portal: str, old: str | None, new: str | None, origin: str, was: str, attribute: str = ""
) -> Change:
    steps = [step.partition("[")[0] for step in path]
    shown = "/".join(path) + (f"@{attribute}" if attribute else "")
    return Change(shown, portal, old, new, reload_class_at(steps), origin, was)


def _place(node: Node | None) -> str:
    return f"{node.file}:{node.line}" if node is not None and node.is_present else ""


def _shown(element: str, text: str) -> str:
    return HIDDEN if element in _SECRETS and text else text


def _node_changes(old: Node | None, new: Node | None, path: tuple[str, ...], portal: str) -> Iterator[Change]:
    """Yield what differs between two nodes of one name, values first, then what is below them."""
    found = False
    for change in _value_changes(old, new, path, portal):
        found = True
        yield change
    for before, after, step in _pairs(old, new):
        for change in _node_changes(before, after, (*path, step), portal):
            found = True
            yield change
    was, now = (PRESENT if node is not None and node.is_present else None for node in (old, new))
    if not found and was != now and _presence_counts(old, new):
        yield _change(path, portal, was, now, _place(new), _place(old))


def _presence_counts(old: Node | None, new: Node | None) -> bool:
    """Say whether an element with defaults alone is more than none: a flag, or one that is not read when absent."""
    node = old or new
    assert node is not None
    spec = elements()[node.name]
    is_flag = not (spec.attributes or spec.content or spec.children)
    sides = [(set(_values(side)), {child.name for child in side.children} if side else set()) for side in (old, new)]
    return is_flag or sides[0] != sides[1]


def _value_changes(old: Node | None, new: Node | None, path: tuple[str, ...], portal: str) -> Iterator[Change]:
    sides = [_values(node) for node in (old, new)]
    element = path[-1].partition("[")[0]
    for attribute in sorted({*sides[0], *sides[1]}):
        before, after = (side.get(attribute) for side in sides)
        if (before.text if before else None) == (after.text if after else None):
            continue
        if (before is None and not (after and after.line)) or (after is None and not (before and before.line)):
            continue  # a default of something that was not asked for
        origin, was = (
            f"{node.file}:{value.line}" if node is not None and value is not None and value.line else ""
            for node, value in ((new, after), (old, before))
        )
        shown = [_shown(element, value.text) if value is not None else None for value in (before, after)]
        yield _change(path, portal, shown[0], shown[1], origin, was, attribute)


def _values(node: Node | None) -> dict[str, NodeValue]:
    """Return attributes by name, the content by an empty one."""
    if node is None:
        return {}
    content = {"": node.content} if node.content is not None else {}
    return {**dict(node.attributes), **content}


def _pairs(old: Node | None, new: Node | None) -> Iterator[tuple[Node | None, Node | None, str]]:
    """Yield children that belong together: by name, groups of statistics by the name that they give."""
    sides = [{_key(child): child for child in node.children} if node is not None else {} for node in (old, new)]
    for key in [*sides[0], *(key for key in sides[1] if key not in sides[0])]:
        yield sides[0].get(key), sides[1].get(key), key


def _key(node: Node) -> str:
    return f"{node.name}[{node.text('name')}]" if node.name == "group" else node.name

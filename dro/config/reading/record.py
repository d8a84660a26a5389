"""Records built from elements: the rows of the table say which value fills which field, the record gives its type.

An element with a record of its own becomes one, recursively; one without a field of its own passes its content to the
record around it. What a row cannot express is given by a reader as a keyword (values with special syntax) or checked by
a rule (values that depend on each other). Called by the readers in `dro_xml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache, singledispatch
from types import NoneType
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

from dro.config.reading.reader import ElementReader
from dro.config.reading.schema import elements, fields_of

R = TypeVar("R")
_hints: Final[Callable[[type], Mapping[str, Any]]] = cache(get_type_hints)


@singledispatch
def check(record: object, el: ElementReader) -> None:
    """The rules of a record made from `el`: none, unless its module registers some."""


def read_record(el: ElementReader, kind: type[R], **given: object) -> R:
    """The record of an element; `given` are the fields that have been read already."""
    values = dict(given)
    _collect(el, _hints(kind), values)
    record = cast("Callable[..., R]", kind)(**values)
    check(record, el)
    el.done()
    return record


def _collect(el: ElementReader, hints: Mapping[str, Any], values: dict[str, object]) -> None:
    """Read what is not in `values` yet, here and in elements without a field of their own."""
    for field in el.spec.attributes.values():
        if field.field and field.field not in values:
            values[field.field] = el.value(field, hints[field.field])
    for name in el.spec.children:
        if all(field in values for field in fields_of(name, el.spec.table)):
            continue
        own = elements(el.spec.table)[name].row.field
        if own:
            values[own] = _read_child(el, name, hints[own])
        else:
            part = el.child(name)
            _collect(part, hints, values)
            part.done()


def _read_child(el: ElementReader, name: str, hint: Any) -> object:  # noqa: ANN401  # an annotation
    content = elements(el.spec.table)[name].content
    child = el.required_child(name) if el.is_present and content and content.is_required else el.child(name)
    record = next((kind for kind in get_args(hint) or (hint,) if isinstance(kind, type) and is_dataclass(kind)), None)
    if record is None:
        value = child.value(content, hint) if content else child.is_present
        child.done()
        return value
    return read_record(child, record) if child.is_present or NoneType not in get_args(hint) else None

"""Frozen dataclasses as JSON objects and back: the answers of a running DRO to `tnwgdctl`.

Fields are str, int, float, bool, `X | None`, `tuple[X, ...]`, `dict[str, X]` and other such dataclasses. A reader
ignores fields that it does not know and uses the default of a missing one, so that a tool of one release can talk to a
daemon of another.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from dro.errors import DecodeError

JsonObject = dict[str, Any]


class Record(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


R = TypeVar("R", bound=Record)


def to_json(record: Record) -> JsonObject:
    """Field names to values; tuples become arrays when they are written."""
    return asdict(record)


def read_record(kind: type[R], value: object) -> R:
    """Raises: DecodeError when `value` is not what `kind` says, nothing else."""
    record = _record(kind, value, kind.__name__)
    assert isinstance(record, kind)
    return record


def _record(kind: type[Any], value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise DecodeError(where, "not an object")
    hints = _hints(kind)  # type: ignore[arg-type]  # a type can be hashed
    found = {}
    for field in fields(kind):
        if field.name in value:
            found[field.name] = _value(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise DecodeError(f"{where}.{field.name}", "missing")
    return kind(**found)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, value: object, where: str) -> object:  # noqa: ANN401 - a type annotation of any form
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(next(a for a in args if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise DecodeError(where, "not an array")
        return tuple([_value(args[0], item, where) for item in value])
    if origin is dict:
        if not isinstance(value, dict):
            raise DecodeError(where, "not an object")
        return {str(key): _value(args[1], item, where) for key, item in value.items()}
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return _record(hint, value, where)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise DecodeError(where, f"not {getattr(hint, '__name__', hint)}")
    return value

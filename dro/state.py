"""The state of cores as plain values, so that a new process goes on where another has stopped.

`snapshot` takes the state of a core; `restore` gives it to a core that was just made with the same configuration, which
then does the same as the old one would have done at the same times. Callbacks, random numbers and configuration are
those that the new core was made with. A `StateLayout` below a class names the attributes that are its state, with
their types; an attribute that has another form there is a property with a setter.

Plain values are what msgpack can carry: an object is a list that begins with its class and version. A state that is not
as the layout says is refused as a whole.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final, NamedTuple, NewType, TypeAlias, Union, get_args, get_origin, get_type_hints

from dro.errors import DecodeError, LocalProtocolError

BigInt = NewType("BigInt", int)
"""Of any size, not negative."""
Outside = NewType("Outside", object)
"""An object that is no part of the state: travels as its place among those that the caller names."""
Same = NewType("Same", object)
"""An object that has a layout, or is a dataclass, and stays the same object, as others know it."""

Snapshot: TypeAlias = list[Any]
Values: TypeAlias = dict[str, Any]

INT_MIN: Final = -(1 << 63)
INT_END: Final = 1 << 64


class _StateShape(NamedTuple):
    """How values of one type travel; the second argument is what the caller names."""

    write: Callable[[Any, Sequence[object]], object]
    read: Callable[[Any, Sequence[object]], Any]


class StateLayout:
    """The attributes of a class that are its state, in order. `version` changes when one of them gets another sense."""

    def __init__(self, kind: type, version: int, **forms: object) -> None:
        self.kind = kind
        self.title = f"{kind.__name__} {version}"
        self._forms = forms
        LAYOUTS[kind] = self

    @cached_property
    def shapes(self) -> Mapping[str, _StateShape | None]:
        """How each attribute travels, None for the same object."""
        name = self.kind.__name__
        return {at: None if form is Same else _shape_of(form, f"{name}.{at}") for at, form in self._forms.items()}

    def write(self, core: object, outside: Sequence[object]) -> Snapshot:
        values = [(getattr(core, at), shape) for at, shape in self.shapes.items()]
        return [self.title, *(_write(v, outside) if shape is None else shape.write(v, outside) for v, shape in values)]

    def read(self, core: object, state: object, outside: Sequence[object]) -> Values:
        """Read what is to be set. Raises: DecodeError, nothing else."""
        where = self.kind.__name__
        items = _items(state, where)
        if not items or items[0] != self.title:
            raise DecodeError(where, f"{items[0] if items else 'nothing'!r}, not {self.title!r}")
        if len(items) != len(self.shapes) + 1:
            raise DecodeError(where, f"{len(items) - 1} attributes, not {len(self.shapes)}")
        return {
            at: _read(getattr(core, at), item, outside) if shape is None else shape.read(item, outside)
            for (at, shape), item in zip(self.shapes.items(), items[1:], strict=True)
        }


LAYOUTS: Final[dict[type, StateLayout]] = {}
"""Those of cores, as they are imported; those of dataclasses follow from their fields, when they are needed."""


def snapshot(core: object, outside: Sequence[object] = ()) -> Snapshot:
    """Return the state of a core as plain values. Raises: LocalProtocolError if it knows an object not in `outside`."""
    return _write(core, outside)


def restore(core: object, state: object, outside: Sequence[object] = ()) -> None:
    """Give a core a state, with objects in the order in which `snapshot` got them.

    Raises: DecodeError for a state of another layout or version; the core is as before then.
    """
    values = _read(core, state, outside)
    before = _read(core, _write(core, outside), outside)
    try:
        _set(core, values)
    except (ValueError, LookupError, TypeError, OverflowError) as e:
        _set(core, before)
        raise DecodeError(type(core).__name__, str(e)) from e


def _layout(kind: type) -> StateLayout:
    if kind not in LAYOUTS:
        if not is_dataclass(kind):
            raise LocalProtocolError(f"{kind.__name__} has no state that can be handed on")
        hints = get_type_hints(kind)
        StateLayout(kind, 1, **{field.name: hints[field.name] for field in fields(kind)})
    return LAYOUTS[kind]


def _write(core: object, outside: Sequence[object]) -> Snapshot:
    return _layout(type(core)).write(core, outside)


def _read(core: object, state: object, outside: Sequence[object]) -> Values:
    return _layout(type(core)).read(core, state, outside)


def _set(core: object, values: Values) -> None:
    """Set what `_read` gave. Setters may raise ValueError, LookupError, TypeError and OverflowError alone."""
    shapes = _layout(type(core)).shapes
    for at, value in values.items():
        if shapes[at] is None:
            _set(getattr(core, at), value)
        else:
            setattr(core, at, value)


# the forms


def _shape_of(form: Any, where: str) -> _StateShape:  # noqa: ANN401  a type of any form
    """Find how values of a type travel. Raises: LocalProtocolError when they cannot."""
    origin, args = get_origin(form), get_args(form)
    if origin in (Union, types.UnionType):
        return _union_shape([arg for arg in args if arg not in (bytearray, memoryview)], where)
    if origin is tuple and args[1:] != (Ellipsis,):
        return _tuple_shape([_shape_of(arg, where) for arg in args], where)
    if origin in (tuple, Sequence, list, deque):
        write, read = _shape_of(args[0], where)
        make = tuple if origin is Sequence else origin
        return _StateShape(
            lambda v, o: [write(x, o) for x in v], lambda v, o: make(read(x, o) for x in _items(v, where))
        )
    if origin is dict:
        write, read = _tuple_shape([_shape_of(arg, where) for arg in args], where)
        return _StateShape(
            lambda v, o: [write(item, o) for item in v.items()], lambda v, o: dict(read(x, o) for x in _items(v, where))
        )
    if form is Outside:
        return _StateShape(lambda v, o: _place(v, o, where), lambda v, o: o[_whole(v, where, 0, len(o))])
    if form is BigInt:
        return _StateShape(
            lambda v, _: v.to_bytes(v.bit_length() + 7 >> 3), lambda v, _: int.from_bytes(_check(v, bytes, where))
        )
    if form is bytes:
        return _StateShape(lambda v, _: bytes(v), lambda v, _: _check(v, bytes, where))
    if form is float:
        return _StateShape(lambda v, _: float(v), lambda v, _: _check(v, float, where))
    if form is int:
        return _StateShape(lambda v, _: v, lambda v, _: _whole(v, where))
    if form in (bool, str):
        return _StateShape(lambda v, _: v, lambda v, _: _check(v, form, where))
    if issubclass(form, Enum):
        return _StateShape(lambda v, _: v.value, lambda v, _: _member(v, form, where))
    return _record_shape([form], where)


def _tuple_shape(shapes: Sequence[_StateShape], where: str) -> _StateShape:
    def read_all(value: object, outside: Sequence[object]) -> object:
        items = _items(value, where)
        if len(items) != len(shapes):
            raise DecodeError(where, f"{len(items)} values, not {len(shapes)}")
        return tuple([shape.read(item, outside) for shape, item in zip(shapes, items, strict=True)])

    return _StateShape(lambda v, o: [shape.write(x, o) for shape, x in zip(shapes, v, strict=True)], read_all)


def _union_shape(forms: Sequence[Any], where: str) -> _StateShape:
    some = [form for form in forms if form is not types.NoneType]
    write, read = _shape_of(some[0], where) if len(some) == 1 else _record_shape(some, where)
    if len(some) == len(forms):
        return _StateShape(write, read)
    return _StateShape(lambda v, o: None if v is None else write(v, o), lambda v, o: None if v is None else read(v, o))


def _record_shape(kinds: Iterable[type], where: str) -> _StateShape:
    """Make the shape of dataclasses, one of several."""
    layouts = {layout.title: layout for layout in map(_layout, kinds)}

    def read_record(value: object, outside: Sequence[object]) -> object:
        items = _items(value, where)
        layout = layouts.get(items[0]) if items and isinstance(items[0], str) else None
        if layout is None:
            raise DecodeError(where, f"not one of {', '.join(layouts)}")
        return layout.kind(**layout.read(None, value, outside))

    return _StateShape(_write, read_record)


def _items(value: object, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise DecodeError(where, f"{type(value).__name__}, not a list")
    return value


def _check(value: Any, kind: type, where: str) -> Any:  # noqa: ANN401  as its type says
    if type(value) is not kind:
        raise DecodeError(where, f"{type(value).__name__}, not {kind.__name__}")
    return value


def _whole(value: object, where: str, least: int = INT_MIN, end: int = INT_END) -> int:
    number: int = _check(value, int, where)
    if not least <= number < end:
        raise DecodeError(where, f"{number} is not in {least} .. {end - 1}")
    return number


def _place(value: object, outside: Sequence[object], where: str) -> int:
    try:
        return outside.index(value)
    except ValueError:
        raise LocalProtocolError(f"{where}: {type(value).__name__} is not among the objects outside") from None


def _member(value: object, kind: type[Enum], where: str) -> Enum:
    """Return the member of an enumeration with that value."""
    try:
        return kind(value)
    except ValueError as e:
        raise DecodeError(where, str(e)) from e

"""The one codec of all actor messages: frozen dataclasses as msgpack arrays `[tag, fields...]`.

A field is an int, str, bytes, bool, float or IntEnum, a `tuple[X, ...]` or `X | None` of those, or another frozen
dataclass, which becomes an array of its fields. Annotations are read once, when the codec is created, so a message that
cannot be encoded is detected at import and not at run time. A message that repeats itself travels as another dataclass.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from msgpack import Packer, Unpacker, UnpackException, unpackb

from dro.errors import DecodeError, LocalProtocolError


class Message(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


M = TypeVar("M", bound=Message)
F = TypeVar("F", bound=Message)


class _MisfitError(Exception):
    """A value does not have the shape of its field; never leaves this module."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one annotated type travels: `pack` is None when msgpack takes the value as it is."""

    pack: Callable[[object], object] | None
    read: Callable[[object], object]
    scalar: type | None = None
    """The type of the value, when nothing else is to be looked at."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The fields of one dataclass in order."""

    kind: type[Message]
    names: tuple[str, ...]
    shapes: tuple[_Shape, ...]
    scalars: tuple[type, ...] | None
    """Types of the fields, when each of them travels as it is."""

    def pack(self, message: object) -> list[object]:
        if self.scalars is not None:
            return [getattr(message, name) for name in self.names]
        return [
            getattr(message, name) if shape.pack is None else shape.pack(getattr(message, name))
            for name, shape in zip(self.names, self.shapes, strict=True)
        ]

    def read(self, values: tuple[object, ...]) -> Message:
        if len(values) != len(self.shapes):
            raise _MisfitError
        try:
            if self.scalars is not None:
                if tuple(map(type, values)) != self.scalars:
                    raise _MisfitError
                return self.kind(*values)
            return self.kind(*(shape.read(value) for shape, value in zip(self.shapes, values, strict=True)))
        except ValueError as e:  # a record that checks itself
            raise _MisfitError from e


@dataclass(frozen=True, slots=True)
class Form(Generic[M, F]):
    """Another dataclass as which a message travels. `read` raises ValueError for one that no message is sent as."""

    kind: type[F]
    pack: Callable[[M], F]
    read: Callable[[F], M]


@dataclass(frozen=True, slots=True)
class _FormLayout:
    """Like `_Layout`, of a message that has another form."""

    kind: type[Message]
    layout: _Layout
    form: Form[Any, Any]

    def pack(self, message: object) -> list[object]:
        return self.layout.pack(self.form.pack(message))

    def read(self, values: tuple[object, ...]) -> Message:
        message: Message = self.form.read(self.layout.read(values))
        return message


def _layout_of(kind: type[Message]) -> _Layout:
    hints = get_type_hints(kind)
    names = tuple(f.name for f in fields(kind))
    shapes = tuple(_shape_of(hints[name], f"{kind.__name__}.{name}") for name in names)
    scalars = tuple(shape.scalar for shape in shapes if shape.scalar is not None)
    return _Layout(kind, names, shapes, scalars if len(scalars) == len(shapes) else None)


def _shape_of(hint: object, where: str) -> _Shape:
    """Raises: TypeError when the annotation is none that this codec can carry."""
    while (supertype := getattr(hint, "__supertype__", None)) is not None:  # typing.NewType
        hint = supertype
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _tuple_shape(_shape_of(args[0], where))
    if origin in (Union, types.UnionType) and len(args) == 2 and type(None) in args:
        return _optional_shape(_shape_of(next(a for a in args if a is not type(None)), where))
    if isinstance(hint, type):
        if hint in (int, str, bytes, bool, float):
            return _scalar_shape(hint)
        if issubclass(hint, IntEnum):
            return _enum_shape(hint)
        if is_dataclass(hint):
            return _record_shape(_layout_of(hint))
    raise TypeError(f"{where}: a message cannot carry {hint}")


def _scalar_shape(kind: type) -> _Shape:
    def read(value: object) -> object:
        if type(value) is not kind:
            raise _MisfitError
        return value

    return _Shape(None, read, kind)


def _enum_shape(kind: type[IntEnum]) -> _Shape:
    def read(value: object) -> object:
        if type(value) is not int:
            raise _MisfitError
        return kind(value)  # ValueError for a stranger

    return _Shape(None, read)


def _tuple_shape(item: _Shape) -> _Shape:
    pack, read = item.pack, item.read

    def pack_all(value: object) -> object:
        assert pack is not None
        assert isinstance(value, tuple)
        return [pack(v) for v in value]

    def read_all(value: object) -> object:
        if type(value) is not tuple:
            raise _MisfitError
        return tuple([read(v) for v in value])

    return _Shape(None if pack is None else pack_all, read_all)


def _optional_shape(item: _Shape) -> _Shape:
    pack, read = item.pack, item.read

    def pack_some(value: object) -> object:
        assert pack is not None
        return None if value is None else pack(value)

    def read_some(value: object) -> object:
        return None if value is None else read(value)

    return _Shape(None if pack is None else pack_some, read_some)


def _record_shape(layout: _Layout) -> _Shape:
    def read(value: object) -> object:
        if type(value) is not tuple:
            raise _MisfitError
        return layout.read(value)

    return _Shape(layout.pack, read)


NO_FORMS: Final[Mapping[Any, Form[Any, Any]]] = types.MappingProxyType({})


class Codec(Generic[M]):
    """Messages of one union <-> bytes. `kinds` gives every message its tag; tags are never used twice."""

    def __init__(self, kinds: Mapping[int, type[M]], forms: Mapping[type[M], Form[Any, Any]] = NO_FORMS) -> None:
        self._layouts: dict[int, _Layout | _FormLayout] = {
            tag: _layout_of(kind) if kind not in forms else _FormLayout(kind, _layout_of(forms[kind].kind), forms[kind])
            for tag, kind in kinds.items()
        }
        self._packer = Packer()
        self._tags: dict[type[M], int] = {kind: tag for tag, kind in kinds.items()}
        if len(self._tags) != len(kinds):
            raise TypeError("a message has two tags")

    def encode(self, message: M) -> bytes:
        """Raises: LocalProtocolError when the message is not of this union or a field is not what it claims."""
        try:
            tag = self._tags[type(message)]
            return self._packer.pack([tag, *self._layouts[tag].pack(message)])
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, AssertionError) as e:
            raise LocalProtocolError(f"cannot send {type(message).__name__}: {e}") from e

    def decode(self, frame: bytes | memoryview) -> M:
        """Raises: DecodeError, nothing else."""
        try:
            array = unpackb(frame, use_list=False)
        except (ValueError, TypeError, UnpackException) as e:
            raise DecodeError("actor message", "not msgpack") from e
        return self._read(array)

    def decode_all(self, frame: bytes) -> Iterator[M]:
        """Messages that were encoded one by one and joined; each is read when it is asked for.

        Raises: DecodeError, nothing else; also for a frame that ends within a message.
        """
        unpacker = Unpacker(use_list=False, max_buffer_size=len(frame))
        unpacker.feed(frame)
        while unpacker.tell() < len(frame):
            try:
                array = unpacker.unpack()
            except (ValueError, TypeError, UnpackException) as e:  # OutOfData is an UnpackException
                raise DecodeError("actor message", "not msgpack") from e
            yield self._read(array)

    def _read(self, array: object) -> M:
        if type(array) is not tuple or not array or type(array[0]) is not int:
            raise DecodeError("actor message", "not [tag, fields...]")
        layout = self._layouts.get(array[0])
        if layout is None:
            raise DecodeError("actor message", f"unknown tag {array[0]}")
        try:
            message = layout.read(array[1:])
        except (_MisfitError, ValueError) as e:
            raise DecodeError("actor message", f"wrong fields for {layout.kind.__name__}") from e
        return message  # type: ignore[return-value]  # the layout was made from a type[M]

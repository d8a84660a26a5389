"""The one codec of records: frozen dataclasses as msgpack arrays `[tag, fields...]`, and read from JSON objects.

A field is an int, str, bool, float or IntEnum, another frozen dataclass, or a `tuple[X, ...]` or `X | None` of those;
in msgpack also bytes, in JSON also a `dict[str, X]`. A value has the very type of its field, only JSON may have an int
for a float. An array has all fields. Of an object, unknown fields are ignored and missing ones get their default, so
that a tool of one release can talk to a daemon of another. Annotations are read once, for a `Codec` when it is created,
so a message that cannot be encoded is detected at import. A message that repeats itself travels as another dataclass.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cache
from hashlib import sha256
from operator import attrgetter
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)  # fmt: skip

from msgpack import Packer, Unpacker, UnpackException, unpackb

from dro.errors import DecodeError, LocalProtocolError

JsonObject = dict[str, Any]


class Record(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


M = TypeVar("M", bound=Record)
F = TypeVar("F", bound=Record)


class _Shape(NamedTuple):
    """How one annotated type travels: `pack` is None if msgpack takes a value as it is; `read` raises DecodeError."""

    pack: Callable[[Any], object] | None
    read: Callable[[Any], object]
    scalar: type | None = None
    """The type of the value, when nothing else is to be looked at."""


class _Layout:
    """The fields of one dataclass in order."""

    def __init__(self, kind: type[Record], is_json: bool = False) -> None:
        hints = get_type_hints(kind)
        self.kind = kind
        self._fields = [(f, _shape_of(hints[f.name], f"{kind.__name__}.{f.name}", is_json)) for f in fields(kind)]
        names = [field.name for field, _ in self._fields]
        self._values = attrgetter(*names) if len(names) > 1 else lambda message: [getattr(message, n) for n in names]
        self._packs = [(n, shape.pack) for n, (_, shape) in enumerate(self._fields) if shape.pack is not None]
        self._reads = [shape.read for _, shape in self._fields]
        scalars = [shape.scalar for _, shape in self._fields]
        self._scalars = None if None in scalars else scalars  # when nothing but types is to be looked at

    def pack(self, message: object) -> list[object]:
        values = list(self._values(message))
        for place, pack in self._packs:
            values[place] = pack(values[place])
        return values

    def read(self, values: list[object]) -> Record:
        """Read a record from its fields. Raises: DecodeError, which names the field."""
        if list(map(type, values)) != self._scalars:
            if len(values) != len(self._reads):
                raise DecodeError(self.kind.__name__, f"{len(values)} fields, not {len(self._reads)}")
            values = [read(value) for read, value in zip(self._reads, values, strict=True)]
        try:
            return self.kind(*values)
        except ValueError as e:  # a record that checks itself
            raise DecodeError(self.kind.__name__, str(e)) from e

    def read_object(self, value: JsonObject) -> Record:
        """Read a record from a JSON object. Raises: DecodeError, which names the field."""
        found = {}
        try:
            for field, shape in self._fields:
                if field.name in value:
                    found[field.name] = shape.read(value[field.name])
                elif field.default is MISSING and field.default_factory is MISSING:
                    raise DecodeError(f"{self.kind.__name__}.{field.name}", "missing")
            return self.kind(**found)
        except (ValueError, OverflowError) as e:  # a record that checks itself, or an int that no float can hold
            raise DecodeError(self.kind.__name__, str(e)) from e


@dataclass(frozen=True, slots=True)
class Form(Generic[M, F]):
    """Another dataclass as which a message travels. `read` raises ValueError for one that no message is sent as."""

    kind: type[F]
    pack: Callable[[M], F]
    read: Callable[[F], M]


class _FormLayout(_Layout):
    """The layout of a message that has another form."""

    def __init__(self, form: Form[Any, Any]) -> None:
        super().__init__(form.kind)
        self._form = form

    def pack(self, message: object) -> list[object]:
        return super().pack(self._form.pack(message))

    def read(self, values: list[object]) -> Record:
        try:
            message: Record = self._form.read(super().read(values))
        except ValueError as e:
            raise DecodeError(self.kind.__name__, str(e)) from e
        return message


def _shape_of(hint: Any, where: str, is_json: bool) -> _Shape:  # noqa: ANN401 - a type annotation of any form
    """Find how values of an annotation are packed and read. Raises: TypeError when this codec cannot carry it."""
    while (supertype := getattr(hint, "__supertype__", None)) is not None:  # typing.NewType
        hint = supertype
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and args[1:] == (Ellipsis,):
        return _tuple_shape(_shape_of(args[0], where, is_json), where)
    if origin is dict and is_json:
        item = _shape_of(args[1], where, is_json).read
        return _Shape(None, lambda value: {key: item(v) for key, v in _typed(value, dict, where).items()})
    if origin in (Union, types.UnionType) and len(args) == 2 and type(None) in args:
        pack, read, _ = _shape_of(next(a for a in args if a is not type(None)), where, is_json)
        pack_some = pack and (lambda value: None if value is None else pack(value))
        return _Shape(pack_some, lambda value: None if value is None else read(value))
    if isinstance(hint, type):
        if hint is float and is_json:
            return _Shape(None, lambda value: float(value if type(value) is int else _typed(value, float, where)))
        if hint in (int, str, bool, float) or (hint is bytes and not is_json):
            return _Shape(None, lambda value: _typed(value, hint, where), hint)
        if issubclass(hint, IntEnum):
            return _Shape(None, lambda value: _enum(value, hint, where))
        if is_dataclass(hint) and is_json:
            return _Shape(None, lambda value: from_json(hint, value, where))
        if is_dataclass(hint):
            layout = _Layout(hint)
            return _Shape(layout.pack, lambda value: layout.read(_typed(value, list, where)))
    raise TypeError(f"{where}: a message cannot carry {hint}")


def _typed(value: Any, kind: type, where: str) -> Any:  # noqa: ANN401 - as its field says
    if type(value) is not kind:
        raise DecodeError(where, f"not {kind.__name__}")
    return value


def _enum(value: object, kind: type[IntEnum], where: str) -> object:
    try:
        return kind(_typed(value, int, where))
    except ValueError as e:
        raise DecodeError(where, str(e)) from e


def _tuple_shape(item: _Shape, where: str) -> _Shape:
    pack, read, scalar = item

    def read_all(value: object) -> object:
        values = _typed(value, list, where)
        return tuple(values if set(map(type, values)) == {scalar} else [read(v) for v in values])

    return _Shape(pack and (lambda value: [pack(v) for v in value]), read_all)


_object_layout: Final = cache(lambda kind: _Layout(kind, is_json=True))


def from_json(kind: type[M], value: object, where: str = "") -> M:
    """Read a record, whose place in another one is `where`, from parsed JSON. Raises: DecodeError, nothing else."""
    record = _object_layout(kind).read_object(_typed(value, dict, where or kind.__name__))
    assert isinstance(record, kind)
    return record


def _fields_of(hint: Any) -> object:  # noqa: ANN401 - a type annotation of any form
    """Describe how values of an annotation travel, down to plain types."""
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        return [(field.name, _fields_of(hints[field.name])) for field in fields(hint)]
    if args := get_args(hint):
        return [str(get_origin(hint)), *map(_fields_of, args)]
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return [(member.name, int(member)) for member in hint]
    return getattr(hint, "__name__", str(hint))


NO_FORMS: Final[Mapping[Any, Form[Any, Any]]] = types.MappingProxyType({})


class Codec(Generic[M]):
    """Messages of one union <-> bytes. `kinds` gives every message its tag; tags are never used twice."""

    def __init__(self, kinds: Mapping[int, type[M]], forms: Mapping[type[M], Form[Any, Any]] = NO_FORMS) -> None:
        self._layouts = {t: _FormLayout(forms[k]) if k in forms else _Layout(k) for t, k in kinds.items()}
        self._packer = Packer()
        self._tags: dict[type[M], int] = {kind: tag for tag, kind in kinds.items()}
        if len(self._tags) != len(kinds):
            raise TypeError("a message has two tags")

    def layout(self) -> str:
        """Describe tags and fields in one word: two codecs with the same one read what the other has written."""
        kinds = {tag: _fields_of(layout.kind) for tag, layout in sorted(self._layouts.items())}
        return sha256(repr(kinds).encode()).hexdigest()[:16]

    def encode(self, message: M) -> bytes:
        """Encode a message. Raises: LocalProtocolError if it is not of this union or a field is not what it claims."""
        try:
            tag = self._tags[type(message)]
            return self._packer.pack([tag, *self._layouts[tag].pack(message)])
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as e:
            raise LocalProtocolError(f"cannot send {type(message).__name__}: {e}") from e

    def decode(self, frame: bytes | memoryview) -> M:
        """Decode a message. Raises: DecodeError, nothing else."""
        try:
            array = unpackb(frame)
        except (ValueError, TypeError, UnpackException) as e:
            raise DecodeError("actor message", "not msgpack") from e
        return self._read(array)

    def decode_all(self, frame: bytes) -> Iterator[M]:
        """Messages that were encoded one by one and joined; each is read when it is asked for.

        Raises: DecodeError, nothing else; also for a frame that ends within a message.
        """
        unpacker = Unpacker(max_buffer_size=len(frame))
        unpacker.feed(frame)
        while unpacker.tell() < len(frame):
            try:
                array = unpacker.unpack()
            except (ValueError, TypeError, UnpackException) as e:  # OutOfData is an UnpackException
                raise DecodeError("actor message", "not msgpack") from e
            yield self._read(array)

    def _read(self, array: object) -> M:
        if type(array) is not list or not array or type(array[0]) is not int:
            raise DecodeError("actor message", "not [tag, fields...]")
        layout = self._layouts.get(array[0])
        if layout is None:
            raise DecodeError("actor message", f"unknown tag {array[0]}")
        return layout.read(array[1:])  # type: ignore[return-value]  # the layout was made from a type[M]

"""Makes protobuf message classes from a table of fields, so that no generated code is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES: Final = descriptor_pb2.FieldDescriptorProto.Type.items()
_SCALARS: Final[Mapping[str, int]] = {name.removeprefix("TYPE_").lower(): number for name, number in _TYPES}
ENUM_VALUE: Final = "enum value"
Made = Any
"""A class or a description made at run time."""


class MessageField(NamedTuple):
    """One field. `message`: the message that has it, with those around it: `Outer.Inner`."""

    message: str
    name: str
    number: int
    type: str  # scalar, or the name of a message or enumeration; ENUM_VALUE: `message` is an enumeration that has it
    is_repeated: bool = False
    oneof: str = ""  # the group of fields of which one at most is set


def message_classes(package: str, fields: Iterable[MessageField]) -> dict[str, Made]:
    """All messages by name. A type is looked for among the messages inside its own, then outwards."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    fields = list(fields)
    made: dict[str, Made] = {}
    enums: dict[str, Made] = {}

    def message(path: str) -> Made:
        if path not in made:
            outer, _, name = path.rpartition(".")
            made[path] = (message(outer).nested_type if outer else file.message_type).add(name=name)
        return made[path]

    for field in fields:
        if field.type == ENUM_VALUE:
            outer, _, name = field.message.rpartition(".")
            if field.message not in enums:
                enums[field.message] = message(outer).enum_type.add(name=name)
            enums[field.message].value.add(name=field.name, number=field.number)
        else:
            message(field.message)
    for field in (field for field in fields if field.type != ENUM_VALUE):
        kind = descriptor_pb2.FieldDescriptorProto
        around, oneof = field.message, {}
        if field.oneof:
            groups = message(around).oneof_decl
            if field.oneof not in [group.name for group in groups]:
                groups.add(name=field.oneof)
            oneof["oneof_index"] = [group.name for group in groups].index(field.oneof)
        added = message(around).field.add(
            name=field.name, number=field.number,
            label=kind.LABEL_REPEATED if field.is_repeated else kind.LABEL_OPTIONAL, **oneof,
        )  # fmt: skip
        if field.type in _SCALARS:
            added.type = _SCALARS[field.type]
            continue
        while (path := f"{around}.{field.type}".lstrip(".")) not in made.keys() | enums.keys():
            around = around.rpartition(".")[0]
        added.type = kind.TYPE_ENUM if path in enums else kind.TYPE_MESSAGE
        added.type_name = f".{package}.{path}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {path: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{path}")) for path in made}

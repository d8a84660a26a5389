"""Decodes statistics by the published tables alone: protobuf messages by their fields, structures by their offsets."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

GOLDEN: Final = Path(__file__).parents[1] / "golden"
ATTRIBUTES: Final = "um_mon_attributes.proto"
_KIND: Final = descriptor_pb2.FieldDescriptorProto


def proto_rows() -> list[dict[str, str]]:
    return list(csv.DictReader((GOLDEN / "proto-fields.csv").read_text().splitlines()))


@cache
def published_class(name: str) -> Any:  # noqa: ANN401  made at run time
    """A message class: a file of definitions for each file of the table, and a message for each of its paths."""
    rows = proto_rows()
    enums = {row["message path"] for row in rows if row["type"] == "enum value"}
    known = {row["message path"] for row in rows}
    known |= {path.rpartition(".")[0] for path in known if "." in path}
    files: dict[str, Any] = {}
    for row in rows:
        file = files.setdefault(row["file"], descriptor_pb2.FileDescriptorProto(name=row["file"], package="lbmmon"))
        file.syntax = "proto3"
        *outer, last = row["message path"].split(".")
        at: Any = file
        for part in outer if row["message path"] in enums else [*outer, last]:
            inside = at.message_type if at is file else at.nested_type
            at = next((one for one in inside if one.name == part), None) or inside.add(name=part)
        if row["message path"] in enums:
            enum = next((one for one in at.enum_type if one.name == last), None) or at.enum_type.add(name=last)
            enum.value.add(name=row["field name"], number=int(row["number"]))
            continue
        field = at.field.add(name=row["field name"], number=int(row["number"]))
        field.label = _KIND.LABEL_REPEATED if row["label"] == "repeated" else _KIND.LABEL_OPTIONAL
        if row["label"].startswith("oneof "):
            group = row["label"].split()[1]
            if not at.oneof_decl:
                at.oneof_decl.add(name=group)
            field.oneof_index = 0
        scalar = f"TYPE_{row['type'].upper()}"
        if scalar in _KIND.Type.keys():  # noqa: SIM118  no mapping
            field.type = _KIND.Type.Value(scalar)
            continue
        scopes = row["message path"].split(".")
        paths = [".".join([*scopes[:n], row["type"]]) for n in range(len(scopes), -1, -1)]
        path = next(path for path in paths if path in known)
        field.type = _KIND.TYPE_ENUM if path in enums else _KIND.TYPE_MESSAGE
        field.type_name = f".lbmmon.{path}"
    pool = descriptor_pool.DescriptorPool()
    for file_name in sorted(files, key=lambda name: name != ATTRIBUTES):
        if file_name in ("dro_mon.proto", "ums_mon.proto"):
            files[file_name].dependency.append(ATTRIBUTES)
        pool.Add(files[file_name])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"lbmmon.{name}"))


@cache
def structures() -> Mapping[str, list[dict[str, str]]]:
    """The members of each structure; the first row has its size, and its alignment for an offset."""
    found = defaultdict(list)
    for row in csv.DictReader((GOLDEN / "daemon-stats-binary.csv").read_text().splitlines()):
        found[row["structure"]].append(row)
    return found


def size_of(structure: str) -> int:
    return int(structures()[structure][0]["size"])


def members(structure: str, at: int = 0, prefix: str = "") -> Iterator[tuple[str, str, int, int]]:
    """Name, type, offset and size of each number and text, those of structures inside as `name.name`."""
    for row in structures()[structure][1:]:
        name, offset = f"{prefix}{row['member']}", at + int(row["offset"])
        if row["type"] in structures():
            yield from members(row["type"], offset, f"{name}.")
        else:
            yield name, row["type"], offset, int(row["size"])


def read_structure(structure: str, data: bytes, at: int, order: str) -> dict[str, int | str]:
    """Read a structure; `order` as `int.from_bytes` has it. Padding is checked to be 0."""
    found: dict[str, int | str] = {}
    for name, kind, offset, size in members(structure):
        raw = data[at + offset : at + offset + size]
        assert len(raw) == size
        if "padding" in name:
            assert raw == bytes(size)
        elif kind.startswith("char"):
            text, nul, rest = raw.partition(b"\0")
            assert nul and not rest.strip(b"\0")  # noqa: PT018  one rule
            found[name] = text.decode()
        else:
            found[name] = int.from_bytes(raw, order)  # type: ignore[arg-type]  # little or big
    return found

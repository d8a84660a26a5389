"""The elements and attributes of the XML files of daemons: each is one row of a table, `data/dro-xml.csv` of the DRO.

    parent(s), cardinality         where an element stands; its place among its siblings is that of its row
    type, unit, default,           what a value may be; a default may depend on the parent: `0 in a b; 7 in c`
    valid_values, min, max
    deprecated                     no, yes, or eliminated: has no function any more
    effect                         what it means, for the reference
    field                          of the record around it that it fills; an element without a field passes on what
                                   it holds to the record around it
    reload                         how a change comes into force; empty: as for the element around it
    sample                         a value for examples, or the children that an example shows
    used_by                        which part of the program takes the value; empty: none does

Reading, comparing, live changes, the reference and the examples in it come from here. Other daemons have tables of
their own (`data/lbmrd-xml.csv`), for reading and for the DTD.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from ipaddress import IPv4Address
from typing import Final

from dro.errors import ConfigError

DRO: Final = "dro"
"""The table that is meant where none is named."""
XML_SPACE: Final = "xml:space"
UINT32_MAX: Final = 2**32 - 1
INT64_MAX: Final = 2**63 - 1
_WIDE_UNITS: Final = frozenset({"bytes", "bits per second"})
_NO_DEFAULT: Final = frozenset(
    {"", "(none)", "(empty)", "(required)", "(unchanged)", "(off)", "(any)", "absent = off", "system store"}
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,80}")


@dataclass(frozen=True, slots=True)
class Field:
    """One row: an element and its content (`attribute` is empty), or one of its attributes.

    `default` is None when the table gives none, or one that depends on the parent element; `default_text` is what it
    says.
    """

    element: str
    attribute: str
    type: str
    unit: str
    default: str | None
    default_text: str
    valid: str
    minimum: int
    maximum: int
    is_required: bool
    meaning: str
    field: str
    sample: str
    used_by: str

    def default_in(self, parent: str) -> str | None:
        """The default below an element of that name."""
        if " in " not in self.default_text:
            return self.default
        given = (part.partition(" in ") for part in self.default_text.split("; "))
        return next(value for value, _, parents in given if parent in parents.split())

    @property
    def choices(self) -> Mapping[str, str]:
        """Spellings of an enumeration and the canonical one each stands for; `=` joins spellings in the table."""
        return _choices(self.valid)

    def parse_integer(self, text: str) -> int:
        """Read a whole number. Raises: ConfigError with what and remedy only."""
        unit = f" ({self.unit})" if self.unit else ""
        span = f"{self.minimum} or more" if self.maximum >= UINT32_MAX else f"{self.minimum} to {self.maximum}"
        if _INTEGER.fullmatch(text) is None:
            if text.isascii() and text.isdigit():
                what, span = f"a number of {len(text)} digits is too large", f"{self.minimum} to {self.maximum}"
            else:
                what = f"{text[:40]!r} is not a whole number"
            raise ConfigError(what, remedy=f"write {span}{unit}")
        value = int(text)
        if not self.minimum <= value <= self.maximum:
            bound = f"{self.minimum} to {self.maximum}"
            raise ConfigError(f"{value} is out of range", remedy=f"write {bound}{unit}")
        if self.valid.startswith("multiple of 8") and value % 8:
            raise ConfigError(
                f"{value} is not a multiple of 8", remedy=f"write {value - value % 8} or {value + 8 - value % 8}"
            )
        if re.fullmatch(r"\d+( \| \d+)+", self.valid) and text not in self.choices:
            raise ConfigError(f"{value} is not allowed", remedy=f"write one of {', '.join(self.choices)}")
        return value

    def parse_choice(self, text: str) -> str:
        """Read one of the choices. Raises: ConfigError with what and remedy only."""
        canonical = self.choices.get(text)
        if canonical is None:
            known = ", ".join(dict.fromkeys(self.choices.values()))
            raise ConfigError(f"{text[:40]!r} is not allowed", remedy=f"write one of {known}")
        return canonical

    def check(self, text: str) -> None:
        """Whether `text` fits the type. Raises: ConfigError with what and remedy only."""
        match self.type:
            case "integer" | "port":
                self.parse_integer(text)
            case "enum" | "boolean":
                self.parse_choice(text)
            case "IPv4":
                try:
                    IPv4Address(text)
                except ValueError as e:
                    raise ConfigError(f"{text[:40]!r} is not an IPv4 address", remedy="write it as in 192.0.2.1") from e
            case "regex":
                pass  # the pattern's own reader compiles it
            case "path":
                if not text and self.default_text != "(empty)":
                    raise ConfigError("is empty", remedy="write the name of a file, or remove it")
            case _:
                if not text and self.is_required:
                    raise ConfigError("is empty", remedy="write a value")


@dataclass(frozen=True, slots=True)
class ElementSpec:
    """One element; `status` is the column `deprecated`."""

    table: str
    name: str
    row: Field
    parents: tuple[str, ...]
    children: tuple[str, ...]
    cardinality: str
    is_ordered: bool
    is_repeatable: bool
    content: Field | None
    attributes: Mapping[str, Field]
    status: str
    reload: str


@cache
def elements(table: str = DRO) -> Mapping[str, ElementSpec]:
    """All elements of a daemon's file by name; read once from the CSV."""
    with files("dro.config.data").joinpath(f"{table}-xml.csv").open(encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    attributes: dict[str, dict[str, Field]] = {}
    children: dict[str, list[str]] = {}
    for row in rows:
        if row["attribute"]:
            attributes.setdefault(row["element"], {})[row["attribute"]] = _field(row)
        for parent in row["parent(s)"].split():
            children.setdefault(parent, []).append(row["element"])
    return {
        row["element"]: ElementSpec(
            table=table,
            name=row["element"],
            row=_field(row),
            parents=tuple(row["parent(s)"].split()),
            children=tuple(children.get(row["element"], ())),
            cardinality=row["cardinality"],
            is_ordered="in this order" in row["valid_values"],
            is_repeatable="..n" in row["cardinality"],
            content=None if row["type"] in ("container", "empty", "flag") else _field(row),
            attributes=attributes.get(row["element"], {}),
            status=row["deprecated"],
            reload=row["reload"],
        )
        for row in rows
        if not row["attribute"]
    }


@cache
def fields_of(element: str, table: str = DRO) -> tuple[str, ...]:
    """The fields of the record around it that an element fills: its own, or those of what it holds."""
    spec = elements(table)[element]
    if spec.row.field or spec.status == "eliminated":
        return (spec.row.field,) if spec.row.field else ()
    own = (field.field for field in spec.attributes.values() if field.field)
    return (*own, *(name for child in spec.children for name in fields_of(child, table)))


@cache
def is_used(element: str) -> bool:
    """Whether any value of an element, or of what it holds, has an effect."""
    spec = elements()[element]
    return any(row.used_by for row in (spec.row, *spec.attributes.values())) or any(map(is_used, spec.children))


def _field(row: Mapping[str, str]) -> Field:
    default = row["default"]
    widest = INT64_MAX if row["unit"] in _WIDE_UNITS else UINT32_MAX
    return Field(
        element=row["element"],
        attribute=row["attribute"],
        type=row["type"],
        unit=row["unit"],
        default=None if default in _NO_DEFAULT or " " in default else default,
        default_text=default,
        valid=row["valid_values"],
        minimum=int(row["min"] or 0),
        maximum=int(row["max"] or widest),
        is_required=default == "(required)",
        meaning=row["effect"],
        field=row["field"],
        sample=row["sample"],
        used_by=row["used_by"],
    )


@cache
def _choices(valid: str) -> Mapping[str, str]:
    found = {}
    for choice in valid.split(" | "):
        canonical, *aliases = choice.split("=")
        found.update(dict.fromkeys((canonical, *aliases), canonical))
    return found

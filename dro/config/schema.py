"""The elements and attributes of the DRO XML file as a table: names, order, types, units, limits, defaults.

Read once from `data/dro-xml.csv`, the single place where they are written down; the readers in `elements.py` name an
element or attribute and get its default and limits from here.
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

XML_SPACE: Final = "xml:space"
UINT32_MAX: Final = 2**32 - 1
INT64_MAX: Final = 2**63 - 1
_MAX_COST: Final = 2**31 - 1  # the cost option of an advertisement is a signed 32-bit number
_WIDE_UNITS: Final = frozenset({"bytes", "bits per second"})
_NO_DEFAULT: Final = frozenset(
    {"", "(none)", "(empty)", "(required)", "(unchanged)", "(off)", "(any)", "absent = off", "system store"}
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,80}")


@dataclass(frozen=True, slots=True)
class Field:
    """One value: the content of an element (`attribute` is empty) or one of its attributes.

    `default` is None when the table gives none, or one that depends on the parent element.
    """

    element: str
    attribute: str
    type: str
    unit: str
    default: str | None
    valid: str
    minimum: int
    maximum: int
    is_required: bool

    @property
    def choices(self) -> Mapping[str, str]:
        """Spellings of an enumeration and the canonical one each stands for; `=` joins spellings in the table."""
        found = {}
        for choice in self.valid.split(" | "):
            canonical, *aliases = choice.split("=")
            found.update(dict.fromkeys((canonical, *aliases), canonical))
        return found

    def parse_integer(self, text: str) -> int:
        """Raises: ConfigError with what and remedy only."""
        unit = f" ({self.unit})" if self.unit else ""
        span = f"{self.minimum} or more" if self.maximum >= UINT32_MAX else f"{self.minimum} to {self.maximum}"
        if _INTEGER.fullmatch(text) is None:
            raise ConfigError(f"{text[:40]!r} is not a whole number", remedy=f"write {span}{unit}")
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
        """Raises: ConfigError with what and remedy only."""
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
            case _:
                if not text and self.is_required:
                    raise ConfigError("is empty", remedy="write a value")


@dataclass(frozen=True, slots=True)
class ElementSpec:
    """One element. `status` says whether it is deprecated: `no`, `yes` or `eliminated` (has no function any more)."""

    name: str
    parents: tuple[str, ...]
    children: tuple[str, ...]
    is_ordered: bool
    is_repeatable: bool
    content: Field | None
    attributes: Mapping[str, Field]
    status: str


@cache
def elements() -> Mapping[str, ElementSpec]:
    """All elements by name; read once from the CSV."""
    with files("dro.config.data").joinpath("dro-xml.csv").open(encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    attributes: dict[str, dict[str, Field]] = {}
    for row in rows:
        if row["attribute"]:
            attributes.setdefault(row["element"], {})[row["attribute"]] = _field(row)
    return {
        row["element"]: ElementSpec(
            name=row["element"],
            parents=tuple(row["parent(s)"].split()),
            children=_children(row["valid_values"]) if row["type"] == "container" else (),
            is_ordered="in this order" in row["valid_values"],
            is_repeatable="..n" in row["cardinality"],
            content=None if row["type"] in ("container", "empty", "flag") else _field(row),
            attributes=attributes.get(row["element"], {}),
            status=row["deprecated"],
        )
        for row in rows
        if not row["attribute"]
    }


def _children(text: str) -> tuple[str, ...]:
    return tuple(name for name in re.split(r", | or ", text.partition(": ")[2]) if name)


def _field(row: Mapping[str, str]) -> Field:
    default = row["default"]
    widest = INT64_MAX if row["unit"] in _WIDE_UNITS else UINT32_MAX
    if row["element"] == "cost":
        widest = _MAX_COST
    return Field(
        element=row["element"],
        attribute=row["attribute"],
        type=row["type"],
        unit=row["unit"],
        default=None if default in _NO_DEFAULT or ";" in default or " " in default else default,
        valid=row["valid_values"],
        minimum=int(row["min"] or 0),
        maximum=int(row["max"] or widest),
        is_required=default == "(required)",
    )

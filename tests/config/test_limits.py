"""Defaults and limits of both tables, written down once more: `tests/golden/um-limits.csv` and `element-limits.csv`.

A figure that changes by mistake in the tables of the program would otherwise show in the generated reference alone.
The files name what existed when they were written; a new option or element needs no line here.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dro.config.reading.schema import XML_SPACE, elements
from dro.config.um.options import option_table
from dro.config.um.rules import Kind, ValueRule
from dro.config.um.used import used_options

GOLDEN = Path(__file__).parents[1] / "golden"
Line = tuple[str, str, str, str]


def lines(name: str) -> list[Line]:
    with (GOLDEN / name).open(encoding="utf-8", newline="") as f:
        return [(first, second, default, permitted) for first, second, default, permitted in csv.reader(f)]


def permitted(rule: ValueRule) -> str:
    match rule.kind:
        case Kind.INTEGER:
            extra = " power of two" if rule.power_of_two else ""
            return " ".join(f"{low}..{high}" for low, high in rule.ranges) + extra
        case Kind.WORD:
            return " ".join(sorted(set(rule.words.values())))
        case _:
            return str(rule.kind.value)


@pytest.mark.parametrize("line", lines("um-limits.csv"), ids=lambda line: f"{line[0]}-{line[1]}")
def test_an_option_of_the_um_library(line: Line) -> None:
    scope, name, default, values = line
    option = option_table()[scope, name]
    assert (",".join(option.default) if isinstance(option.default, tuple) else str(option.default)) == default
    assert permitted(option.rule) == values


@pytest.mark.parametrize("line", lines("element-limits.csv"), ids=lambda line: f"{line[0]}-{line[1]}")
def test_a_value_of_the_dro_file(line: Line) -> None:
    element, attribute, default, values = line
    spec = elements()[element]
    field = spec.attributes[attribute] if attribute else spec.content
    assert field is not None
    assert (field.default or "") == default
    is_number = field.type in ("integer", "port")
    assert (f"{field.minimum}..{field.maximum}" if is_number else " ".join(field.choices)) == values


def test_enough_is_written_down() -> None:
    """Every option that had an effect, and every number, word and switch of the DRO file."""
    assert len(set(lines("um-limits.csv"))) == 120
    assert {line[:2] for line in lines("um-limits.csv")} <= set(used_options())
    assert len(set(lines("element-limits.csv"))) == 118
    assert not [line for line in lines("element-limits.csv") if line[1] == XML_SPACE]

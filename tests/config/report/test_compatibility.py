"""The guide to compatibility has all elements and options, and says of each what happens to it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dro.config.report.compatibility import Fate, fate_of, fates, section
from dro.config.um.honoured import refusals, without_effect
from dro.config.um.options import option_table
from dro.config.um.rules import Kind, ValueRule
from dro.config.um.text_file import parse_um_text

GUIDE = Path(__file__).parents[3] / "docs" / "compatibility.md"


def other_value(rule: ValueRule, default: object) -> str | None:
    """A value that is not the default, where the rule names some."""
    if rule.kind is Kind.INTEGER:
        tried = [*(first for first, _ in rule.ranges), 1024, *(last for _, last in rule.ranges)]
        return next((str(one) for one in tried if one != default and any(a <= one <= b for a, b in rule.ranges)), None)
    if rule.kind is Kind.WORD:
        return next((word for word, value in rule.words.items() if value != default), None)
    return None


def test_the_section_is_up_to_date() -> None:
    assert GUIDE.read_text(encoding="utf-8").endswith("\n" + section()), (
        "run: python -m dro.config.report.compatibility docs/compatibility.md"
    )


def test_every_option_has_one_fate() -> None:
    assert Counter(key for keys in fates().values() for key in keys) == Counter(list(option_table()))


@pytest.mark.parametrize("fate", [Fate.USED, Fate.OF_APPLICATIONS, Fate.YET, Fate.OUTSIDE])
def test_what_is_said_of_options_happens(fate: Fate) -> None:
    tried = 0
    for (scope, name), option in option_table().items():
        value = other_value(option.rule, option.default)
        if fate_of((scope, name)) is not fate or value is None:
            continue
        if name in ("use_hotlink",):
            continue  # the other value asks for what happens all the same: nothing is said of it
        set_ = parse_um_text(f"{scope} {name} {value}", lambda _: None, file="a.cfg")
        yet, outside = without_effect(set_, in_portals=True)
        assert (bool(yet), bool(outside)) == (fate is Fate.YET, fate is Fate.OUTSIDE), (scope, name, value)
        assert not refusals(set_)
        tried += 1
    assert tried

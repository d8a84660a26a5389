"""Each row of the feature table has tests that exist, or a reason; the guide says the same."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache

import pytest

from tests.builders.features import CLASSES, ROOT, Feature, features, guide, table

TABLE = table()
ALL = features()


@cache
def cases_of(path: str) -> frozenset[str]:
    """Names of the test functions that an ordinary run has of a module, `Class::name` in classes. Raises: OSError."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        functions = (
            one
            for one in members
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            and not any(ast.unparse(mark) == "pytest.mark.long" for mark in one.decorator_list)
        )
        found |= {prefix + one.name for one in functions if one.name.startswith("test_")}
    return frozenset(found)


def test_the_table_is_whole() -> None:
    assert [row.number for row in TABLE] == list(range(1, 138))
    assert {row.rank for row in TABLE} == CLASSES.keys()
    assert all(row.section and row.name for row in TABLE)


def test_every_row_of_the_table_is_spoken_of() -> None:
    numbers = {feature.row for feature in ALL} - {None}
    assert numbers == {row.number for row in TABLE}, "a row without an entry, or an entry of no row"


@pytest.mark.parametrize("feature", ALL, ids=lambda feature: f"{feature.row or 'beyond'}: {feature.name}")
def test_a_feature_has_tests_that_exist_or_a_reason(feature: Feature) -> None:
    assert feature.name
    assert feature.reason or feature.is_black_box, "no test with real processes, and no reason why"
    assert len(set(feature.tests)) == len(feature.tests)
    for test in feature.tests:
        path, _, name = test.partition("::")
        assert path.endswith(".py"), test
        assert cases_of(path), test
        assert not name or name in cases_of(path), test


def test_no_feature_is_listed_twice() -> None:
    names = Counter((feature.row, feature.name.lower()) for feature in ALL)
    assert [name for name, times in names.items() if times > 1] == []


def test_the_guide_is_up_to_date() -> None:
    assert (ROOT / "docs" / "features.md").read_text() == guide(), (
        "run: python -m tests.builders.features > docs/features.md"
    )

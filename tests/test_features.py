"""Each row of the feature table has tests that exist, or a reason; the guide says the same."""

from __future__ import annotations

import ast
import functools
import importlib
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import pytest
from _pytest.mark import ParameterSet

from tests.builders.features import CLASSES, ROOT, Feature, features, guide, table

TABLE = table()
ALL = features()


@dataclass(frozen=True, slots=True)
class Module:
    """What an ordinary run has of a module of tests: names, `Class::name` in classes, with `[id]` for each case."""

    functions: frozenset[str]
    cases: frozenset[str]
    in_parts: frozenset[str]
    """Those of which only a long run has all cases."""


def is_long(marks: Iterable[pytest.Mark | pytest.MarkDecorator]) -> bool:
    return any(mark.name == "long" for mark in marks)


def marks_of(thing: object) -> list[pytest.Mark]:
    marks: list[pytest.Mark] | pytest.Mark = getattr(thing, "pytestmark", [])
    return marks if isinstance(marks, list) else [marks]


def case_of(names: str | Sequence[str], given: object) -> ParameterSet:
    """One case of a list, with its name as pytest makes it."""
    is_single = isinstance(names, str) and "," not in names
    made = ParameterSet.extract_from(given, force_tuple=is_single)
    return made._replace(id=made.id or "-".join(str(getattr(value, "__name__", value)) for value in made.values))


def follows_effort(code: ast.FunctionDef | ast.AsyncFunctionDef, constants: Container[str]) -> bool:
    """Whether the list of cases is a shorter one in an ordinary run."""
    lists = [mark.args[1] for mark in code.decorator_list if isinstance(mark, ast.Call) and len(mark.args) > 1]
    return any(isinstance(part, ast.Name) and part.id in constants for one in lists for part in ast.walk(one))


@cache
def read(path: str) -> Module:
    """Look at a module of tests. Raises: ImportError."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    constants, code = {"IS_LONG"}, {}
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(p, ast.Name) and p.id in constants for p in ast.walk(node)):
            constants |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for one in members:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_"):
                code[prefix + one.name] = one
    functions, cases, in_parts = set(), set(), set()
    for name, node in code.items():
        function = functools.reduce(getattr, name.split("::"), module)
        marks = marks_of(function)
        if is_long([*marks, *marks_of(module)]):
            continue
        lists = [[case_of(mark.args[0], one) for one in mark.args[1]] for mark in marks if mark.name == "parametrize"]
        left = [[one.id for one in cases if not is_long(one.marks)] for cases in lists]
        if not all(left):
            continue
        functions.add(name)
        if any(is_long(one.marks) for one in chain(*lists)) or follows_effort(node, constants):
            in_parts.add(name)
        cases |= {f"{name}[{one}]" for one in chain(*left)}
    return Module(frozenset(functions), frozenset(cases), frozenset(in_parts))


def test_the_table_is_whole() -> None:
    assert [row.number for row in TABLE] == list(range(1, 140))
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
        module = read(path)
        assert module.functions, test
        assert not name or name in module.functions | module.cases, f"{test}: not in an ordinary run"
        assert name not in module.in_parts, f"{test}: say which case, an ordinary run has only some"


def test_no_feature_is_listed_twice() -> None:
    names = Counter((feature.row, feature.name.lower()) for feature in ALL)
    assert [name for name, times in names.items() if times > 1] == []


def test_the_guide_is_up_to_date() -> None:
    assert (ROOT / "docs" / "features.md").read_text() == guide(), (
        "run: python -m tests.builders.features > docs/features.md"
    )

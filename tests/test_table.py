"""`dro.table`, compiled and plain: what a dict does, in parts."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.table import PARTS, SPLIT, Table


def plain_form() -> type[Table[Any, Any]]:
    spec = spec_from_file_location("plain_table", Path(__file__).parents[1] / "dro" / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    made: type[Table[Any, Any]] = module.Table
    return made


FORMS = pytest.mark.parametrize("kind", [Table, plain_form()], ids=["chosen", "plain"])
KEYS = st.one_of(st.integers(0, 12), st.binary(max_size=1), st.tuples(st.integers(0, 3), st.integers(0, 3)))
STEPS = st.lists(
    st.tuples(st.sampled_from(("set", "del", "pop", "setdefault", "clear")), KEYS, st.integers()), max_size=60
)


@FORMS
@settings(deadline=None)
@given(steps=STEPS, is_split=st.booleans())
def test_it_is_a_dict(kind: type[Table[Any, Any]], steps: list[tuple[str, Any, int]], is_split: bool) -> None:
    table = kind()
    model: dict[Any, int] = {}
    if is_split:
        for n in range(SPLIT + 1):
            table[-1 - n] = model[-1 - n] = n
    for what, key, value in steps:
        match what:
            case "set":
                table[key] = model[key] = value
            case "del":
                if key in model:
                    del table[key], model[key]
                else:
                    with pytest.raises(KeyError):
                        del table[key]
            case "pop":
                assert table.pop(key, None) == model.pop(key, None)
            case "setdefault":
                assert table.setdefault(key, value) == model.setdefault(key, value)
            case _:
                table.clear()
                model.clear()
        assert (key in table, table.get(key), table.get(key, -1)) == (key in model, model.get(key), model.get(key, -1))
    assert (len(table), bool(table)) == (len(model), bool(model))
    assert table == model
    assert sorted(map(repr, table.items())) == sorted(map(repr, model.items()))
    assert sorted(table.values()) == sorted(model.values())
    assert table == set(model)
    assert [table[key] for key in model] == list(model.values())
    with pytest.raises(KeyError):
        table.pop("nothing")


@FORMS
@pytest.mark.parametrize("keys", ["numbers", "names", "pairs"])
def test_parts_are_about_equal(kind: type[Table[Any, Any]], keys: str) -> None:
    """So that none is copied with more than its share."""
    count = 200_000
    make: dict[str, Callable[[int], Any]] = {
        "numbers": lambda n: (7 << 24) + n,
        "names": lambda n: b"topic.%d" % n,
        "pairs": lambda n: (b"%d" % n, 0),
    }
    table: Table[Any, Any] = kind()
    for n in range(count):
        table[make[keys](n)] = None
    sizes = [len(part) for part in table._parts]
    assert (len(sizes), sum(sizes)) == (PARTS, count)
    assert max(sizes) < 2 * count / PARTS


@FORMS
@pytest.mark.parametrize("count", [10, 3 * SPLIT])
def test_a_snapshot_goes_on_while_others_come_and_go(kind: type[Table[Any, Any]], count: int) -> None:
    table = kind()
    for i in range(count):
        table[b"%d" % i] = i
    met = []
    for key in table.snapshot():
        met.append(key)
        table.pop(key)
        table[b"new " + key] = 0
        table.pop(b"new %d" % (count - 1), None)
    old = [key for key in met if not key.startswith(b"new")]
    assert sorted(old) == sorted(b"%d" % i for i in range(count)), "each of those that stay, once"
    assert len(met) == len(set(met))
    assert not any(key in table for key in old)


@FORMS
def test_a_small_one_keeps_the_order_and_is_one_dict(kind: type[Table[Any, Any]]) -> None:
    table = kind()
    for n in range(SPLIT, 0, -1):
        table.setdefault(n, None)
    assert (list(table), len(table._parts)) == (list(range(SPLIT, 0, -1)), 1)
    table.setdefault(0, None)
    assert (len(table._parts), len(table), 0 in table) == (PARTS, SPLIT + 1, True)
    assert repr(kind()) == "Table({})"

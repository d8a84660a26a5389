"""The catalogue of public ids against the published list, and against the calls in the program that it names."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dro.config.schema import elements
from dro.log_ids import DEPRECATED_ELEMENTS, PUBLIC_LINES, PublicLine, public_line

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("dro", "portals", "router", "supervisor")
SEVERITY_OF_CALL: Final = {
    "debug": "debug",
    "info": "information",
    "told": "information",
    "warning": "warning",
    "limited": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
SEVERITY_OF_LEVEL: Final = {"INFO": "information", "WARNING": "warning", "ERROR": "error", "CRITICAL": "critical"}


@dataclass(frozen=True)
class Call:
    """One call that logs."""

    place: str
    text: str
    severity: str
    fields: frozenset[str]


def published() -> dict[str, str]:
    """Severity by id. Source: the list of the monitoring reference."""
    with (ROOT / "tests" / "golden" / "log-ids.csv").open(newline="") as file:
        return {row["id"]: row["severity"] for row in csv.DictReader(file)}


class Module:
    """What one file logs."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.relative_to(ROOT))
        self.tree = ast.parse(path.read_text())
        self.functions = {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}

    def calls(self) -> Iterator[Call]:
        for function in self.functions.values():
            names: dict[str, ast.expr] = {}
            nodes = [node for node in ast.walk(function) if isinstance(node, (ast.Assign, ast.Call))]
            for node in sorted(nodes, key=lambda node: (node.lineno, -node.col_offset)):
                if isinstance(node, ast.Assign):
                    names |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
                elif isinstance(node.func, ast.Attribute):
                    yield from self._call(node, node.func.attr, names)

    def _call(self, node: ast.Call, method: str, names: dict[str, ast.expr]) -> Iterator[Call]:
        if method not in SEVERITY_OF_CALL:
            return
        severity = SEVERITY_OF_CALL[method]
        args = [names.get(arg.id, arg) if isinstance(arg, ast.Name) else arg for arg in node.args]
        texts = [arg.value for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if args and ast.unparse(args[0]) == "effect.what":
            texts = CHANGES
        extra = args[1] if method == "told" and len(args) > 1 else None
        for keyword in node.keywords:
            if keyword.arg == "extra":
                extra = keyword.value
            elif keyword.arg == "level":
                severity = SEVERITY_OF_LEVEL[ast.unparse(keyword.value).rpartition(".")[2]]
        for text in texts:
            yield Call(f"{self.name}:{node.lineno}", text, severity, self._keys(extra, names))

    def _keys(self, node: ast.expr | None, names: dict[str, ast.expr]) -> frozenset[str]:
        """Names of the fields that an expression for `extra` has in any case."""
        match node:
            case ast.Dict():
                return frozenset(key.value for key in node.keys if isinstance(key, ast.Constant))  # type: ignore[misc]
            case ast.BinOp():
                return self._keys(node.left, names) | self._keys(node.right, names)
            case ast.Name() if node.id in names:
                return self._keys(names[node.id], names)
            case ast.Call(func=ast.Name(id=name)) if name in self.functions:
                returns = [n for n in ast.walk(self.functions[name]) if isinstance(n, ast.Return)]
                return frozenset.intersection(*(self._keys(n.value, {}) for n in returns))
            case _:
                return frozenset()


def modules() -> list[Module]:
    return [Module(path) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def changes() -> list[str]:
    """The route manager's core says in words what has changed, and its shell logs that."""
    tree = ast.parse((ROOT / "router" / "core.py").read_text())
    told = [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_changed"
    ]
    either = [[node.body, node.orelse] if isinstance(node, ast.IfExp) else [node] for node in told]
    return [str(ast.literal_eval(node)) for nodes in either for node in nodes]


CHANGES: Final = changes()


@pytest.fixture(scope="module")
def calls() -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for module in modules():
        for call in module.calls():
            found.setdefault(call.text, []).append(call)
    return found


def test_the_scan_finds_calls_of_every_kind(calls: dict[str, list[Call]]) -> None:
    assert len(calls) > 60
    (told,) = calls["proxy source deleted"]
    assert (told.severity, sorted(told.fields)) == ("information", ["otid", "topic"])
    (size,) = calls["fragment larger than the datagram size of the transport"]
    assert (size.severity, sorted(size.fields)) == ("error", ["bytes", "limit", "topic"])


@pytest.mark.parametrize("text", PUBLIC_LINES)
def test_an_entry_is_published_and_logged_as_it_says(text: str, calls: dict[str, list[Call]]) -> None:
    line = PUBLIC_LINES[text]
    severity = published()[line.id]
    assert calls.get(text), f"nothing logs {text!r}"
    for call in calls[text]:
        assert call.severity == severity, call
        assert line.fields <= call.fields | {"process"}, call


def test_an_id_stands_for_one_event() -> None:
    ids = [line.id for line in [*PUBLIC_LINES.values(), *DEPRECATED_ELEMENTS.values()]]
    assert len(ids) == len(set(ids))


def test_deprecated_elements() -> None:
    for name, line in DEPRECATED_ELEMENTS.items():
        assert published()[line.id] == "warning"
        assert name in elements()
        assert public_line(f"/etc/dro: <a>.xml:17: <{name}>: deprecated, ignored") == line
        assert public_line(f"dro.xml:17: <{name} period>: deprecated, ignored") is None
    assert public_line("dro.xml:17: <name>: deprecated, ignored") is None


def test_the_operations_guide_explains_every_id() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    explained: set[str] = set()
    for row in re.findall(r"^\| ((?:Core|Gwd|GwdApi)-[^|]+) \|", text, re.MULTILINE):
        first, *more = row.split(", ")
        stem = first[: first.index("-", first.index("-") + 1)]
        for part in [first[len(stem) :], *more]:
            low, _, high = part.partition(" to ")
            width = len(low) - 1
            numbers = range(int(low[1:]), int(high[1:] or 0) + 1) if high else [int(low[1:])]
            explained |= {f"{stem}-{number:0{width}d}" for number in numbers}
    assert {line.id for line in [*PUBLIC_LINES.values(), *DEPRECATED_ELEMENTS.values()]} == explained


def test_shapes_show_their_fields() -> None:
    line = PublicLine("Gwd-1-1", "Portal [{process}] has {n} of {n}")
    assert line.fields == {"process", "n"}
    assert line.render({"process": "a{n}", "n": "3", "more": "x"}) == "Portal [a{n}] has 3 of 3"
    with pytest.raises(KeyError):
        line.render({"n": "3"})

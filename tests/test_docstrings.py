"""Docstrings can be read alone: the first line of a public class or function has a verb, or names what the thing is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.test_layers import PACKAGES, ROOT

# What begins so goes on with a sentence that stands elsewhere, or has no verb.
NO_BEGINNING: Final = {"Of", "Those", "Likewise", "As", "It", "They", "Its"}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(node: ast.AST) -> Iterator[Documented]:
    """A module or class, and the public classes and functions in it; what lies in a function is its own affair."""
    if isinstance(node, Documented):
        yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for child in ast.iter_child_nodes(node):
        if not getattr(child, "name", "").startswith("_"):
            yield from public(child)


def first_lines(source: str) -> Iterator[tuple[Documented, str]]:
    for node in public(ast.parse(source)):
        if text := ast.get_docstring(node):
            yield node, text.splitlines()[0]


def wrong(source: str) -> list[str]:
    """First lines without a verb; a noun clause says enough of a class, not of a call."""
    return [
        line
        for node, line in first_lines(source)
        if (word := line.split()[0].strip(".,:;`")) in NO_BEGINNING
        or (word == "What" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_given(node))
    ]


def is_given(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.returns is not None and ast.unparse(node.returns) != "None"


def test_first_lines_have_a_verb() -> None:
    found, lines = {}, 0
    for package in (*PACKAGES, "deploy"):
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            lines += sum(1 for _ in first_lines(source))
            if bad := wrong(source):
                found[str(path.relative_to(ROOT))] = bad
    assert lines > 1500  # the tree was found and read
    assert found == {}


def test_the_checker_objects() -> None:
    source = '''
"""Likewise."""
class Route:
    """Of a domain."""
    def next(self) -> int:
        """What comes next."""
    def drop(self) -> None:
        """What waits is dropped."""
    def _own(self) -> None:
        """It is private."""
class Hop:
    """What a path consists of."""
'''
    assert wrong(source) == ["Likewise.", "Of a domain.", "What comes next."]

"""Docstrings can be read alone: the first line has a verb, or names what the thing is; private calls begin with one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.test_layers import PACKAGES, ROOT

# What begins so goes on with a sentence that stands elsewhere, or has no verb.
NO_BEGINNING: Final = {"Of", "Those", "Likewise", "As", "It", "They", "Its"}
# What a private function or method does, in the imperative; a verb that is missing can be added.
_VERBS: Final = """
    Abort Accept Add Advertise Announce Answer Apply Ask Begin Bind Blank Break Bring Build Carry Catch Change
    Check Choose Close Collect Compare Compile Compress Convert Copy Count Cut Decide Decode Describe Digest
    Discard Do Draw Drop Encode End Estimate Explain Fill Find Finish Follow Forget Fork Freeze Get Give Go
    Greet Group Hand Have Hold Ignore Join Keep Learn Leave Let List Lock Log Look Make Map Mark Measure Merge
    Move Name Note Open Order Pass Print Probe Push Put Query Raise Read Receive Refuse Relay Remove Repeat
    Report Restart Retransmit Return Run Say Search Send Serve Set Settle Share Show Sort Spell Split Start
    Stay Stop Sum Take Tell Try Turn Wait Watch Write Yield
    """
VERBS: Final = frozenset(_VERBS.split())
Call = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Call


def documented(node: ast.AST) -> Iterator[Documented]:
    """Yield a module or class, and the classes and functions in it; what lies in a function is its own affair."""
    if isinstance(node, Documented):
        yield node
    if isinstance(node, Call):
        return
    for child in ast.iter_child_nodes(node):
        if not getattr(child, "name", "").startswith("__"):
            yield from documented(child)


def first_lines(source: str) -> Iterator[tuple[Documented, str]]:
    for node in documented(ast.parse(source)):
        if text := ast.get_docstring(node):
            yield node, text.splitlines()[0]


def wrong(source: str) -> list[str]:
    """First lines without a verb; a noun clause says enough of a class or property, not of a call."""
    return [
        line
        for node, line in first_lines(source)
        if (word := line.split()[0].strip(".,:;`")) in NO_BEGINNING
        or (word == "What" and isinstance(node, Call) and is_given(node))
        or (isinstance(node, Call) and node.name.startswith("_") and not is_property(node) and not is_order(line))
    ]


def is_order(line: str) -> bool:
    """Say whether a line is a verb in the imperative and its object."""
    verb, _, rest = line.partition(" ")
    return verb in VERBS and bool(rest)


def is_property(node: Call) -> bool:
    return any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list)


def is_given(node: Call) -> bool:
    return node.returns is not None and ast.unparse(node.returns) != "None"


def test_first_lines_have_a_verb() -> None:
    found, lines = {}, 0
    for package in (*PACKAGES, "deploy"):
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            lines += sum(1 for _ in first_lines(source))
            if bad := wrong(source):
                found[str(path.relative_to(ROOT))] = bad
    assert lines > 2500  # the tree was found and read
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
    def _cost(self) -> int:
        """The cost of all portals."""
    def _show(self) -> None:
        """Name, and cost."""
    def _drop(self) -> None:
        """Drop what waits."""
    @property
    def _hops(self) -> int:
        """Portals on the way."""
    def __init__(self, name: str) -> None:
        """`name`: for the log."""
class _Hop:
    """What a path consists of."""
class _Way:
    """As a path."""
'''
    assert wrong(source) == [
        "Likewise.",
        "Of a domain.",
        "What comes next.",
        "It is private.",
        "The cost of all portals.",
        "Name, and cost.",
        "As a path.",
    ]

"""Mutants of one Python file: each is the file with one small change of meaning, found in its syntax tree."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COMPARE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.Mod: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the line (from 1), what was there and what stands there now, the whole new text of the file."""

    line: int
    before: str
    after: str
    text: str
    statement: range  # lines of the statement around it, without the statements inside


def mutants_of(source: str) -> Iterator[Mutant]:
    """All mutants of a file, in the order of the file. Docstrings, annotations and imports are left alone."""
    tree = ast.parse(source)
    skipped = set(_without_behaviour(tree))
    statements = {id(inner): stmt for stmt in ast.walk(tree) if isinstance(stmt, ast.stmt) for inner in ast.walk(stmt)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        for changed in _changes(node):
            text = _replaced(source, node, changed)
            if text is not None:
                stmt = statements[id(node)]
                line: int = node.lineno  # type: ignore[attr-defined]  # located
                yield Mutant(line, _short(node), _short(changed), text, _own_lines(stmt))


def _without_behaviour(tree: ast.Module) -> Iterator[int]:
    """Nodes whose change says nothing: types, docstrings, imports, decorators, names of slots, texts for developers."""
    for node in ast.walk(tree):
        roots: list[ast.AST | None] = []
        match node:
            case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")) | ast.FunctionDef(name="__repr__" | "__str__"):
                roots = [node]
            case ast.AnnAssign(annotation=annotation):
                roots = [annotation]
            case ast.arg(annotation=annotation):
                roots = [annotation]
            case ast.FunctionDef(returns=returns, decorator_list=decorators):
                roots = [returns, *decorators]
            case ast.ClassDef(decorator_list=decorators):
                roots = [*decorators]
            case ast.Expr(value=ast.Constant() as constant):
                roots = [node, constant]
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="debug" | "info"))) | ast.Assert() | ast.Raise():
                roots = [node]
            case ast.Assign(value=ast.BinOp(op=ast.BitOr()) as value) if _is_union(value):
                roots = [value]
            case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
                roots = [node]
            case _:
                pass
        yield from (id(inner) for root in roots if root is not None for inner in ast.walk(root))


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    match node:
        case ast.Compare(ops=[operator, *rest]) if type(operator) in _COMPARE:
            yield _with(node, ops=[_COMPARE[type(operator)](), *rest])
        case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC:
            yield _with(node, op=_ARITHMETIC[type(operator)]())
        case ast.AugAssign(op=operator) if type(operator) in _ARITHMETIC:
            yield _with(node, op=_ARITHMETIC[type(operator)]())
        case ast.BoolOp(op=operator):
            yield _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.UnaryOp | ast.Compare):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Expr(value=ast.Call()) | ast.Assign() | ast.AugAssign() | ast.Delete() if node.col_offset > 0:
            yield ast.Pass()
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case _:
            pass


def _is_union(node: ast.expr) -> bool:
    """`X | Y` of types, which only a type checker reads."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_union(left) and _is_union(right)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name[0].isupper() and not name.isupper()
        case _:
            return False


def _own_lines(stmt: ast.stmt) -> range:
    if isinstance(stmt, ast.Match):
        end = stmt.cases[0].pattern.lineno
    else:
        body: list[ast.stmt] = getattr(stmt, "body", [])
        end = body[0].lineno if body else (stmt.end_lineno or stmt.lineno) + 1
    return range(stmt.lineno, max(end, stmt.lineno + 1))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _replaced(source: str, node: ast.AST, changed: ast.AST) -> str | None:
    """The source with the text of `node` replaced; comments and lines elsewhere stay. None when it does not compile."""
    assert isinstance(node, ast.expr | ast.stmt)
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    new = ast.unparse(ast.fix_missing_locations(changed))
    new = f"({new})" if isinstance(node, ast.expr) else new.replace("\n", "\n" + " " * node.col_offset)
    text = (source.encode()[:start] + new.encode() + source.encode()[end:]).decode()
    try:
        compile(text, "mutant", "exec")
    except (SyntaxError, ValueError):
        return None
    return text


def _short(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())[:90]

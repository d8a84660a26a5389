"""The layers of the code: every import of the runtime packages, read with `ast`, points down.

wire <- proto <- um <- tools; `config` serves um, tools and the processes above; `bus` serves the processes alone;
modules directly under `dro` (errors, clock, timers, loop, log, ...) are the floor; portals and router are siblings;
the supervisor stands on top; analytics reads files and shares no code with the rest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
FLOOR: Final = "dro"  # the package itself and the modules directly in it
_BELOW_UM: Final = frozenset({FLOOR, "dro.wire", "dro.proto", "dro.config"})
_BELOW_PROCESSES: Final = _BELOW_UM | {"dro.um", "dro.bus"}

# layer -> layers that it may import besides itself
LAYERS: Final[Mapping[str, frozenset[str]]] = {
    FLOOR: frozenset(),
    "dro.wire": frozenset({FLOOR}),
    "dro.proto": frozenset({FLOOR, "dro.wire"}),
    "dro.config": frozenset({FLOOR}),
    "dro.bus": frozenset({FLOOR}),
    "dro.um": _BELOW_UM,
    "dro.tools": _BELOW_UM | {"dro.um"},
    "portals": _BELOW_PROCESSES,
    "router": _BELOW_PROCESSES,
    "supervisor": _BELOW_PROCESSES | {"dro.tools", "portals", "router"},
    "analytics": frozenset(),
}
PACKAGES: Final = ("dro", "portals", "router", "supervisor", "analytics")

# wire and proto are told the time and the bytes: nothing that waits, opens, or draws random numbers by itself
SANS_IO: Final = ("dro.wire", "dro.proto")
IO_MODULES: Final = frozenset(
    {"asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "secrets", "select", "selectors", "shutil",
     "signal", "socket", "socketserver", "ssl", "subprocess", "sys", "tempfile", "threading", "time",
     "zmq", "msgpack", "lxml", "networkx"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Import:
    importer: str
    imported: str  # a module of the tree, or the dotted name of a module elsewhere
    line: int
    is_typing: bool = False  # under `if TYPE_CHECKING`: never runs, so it makes no circle

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def layer_of(module: str) -> str | None:
    """The layer that a module of the tree belongs to; None for a package that nobody has put into a layer yet."""
    parts = module.split(".")
    if parts[0] != "dro":
        return parts[0] if parts[0] in LAYERS else None
    if len(parts) == 1:
        return FLOOR
    name = f"dro.{parts[1]}"
    if name in LAYERS:
        return name
    return None if len(parts) > 2 else FLOOR


def modules_of(root: Path, packages: Iterable[str] = PACKAGES) -> dict[str, Path]:
    """Module name -> file, of all Python files of the packages."""
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path, modules: Mapping[str, Path]) -> Iterator[Import]:
    """All imports of a file: at the top, in functions, for type checkers only, and by `import_module("...")`."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(module, alias.name, node.lineno, id(node) in typing)
            case ast.ImportFrom(module=name, names=names, level=level):
                base = name or ""
                if level:
                    up = package.split(".")[: len(package.split(".")) - level + 1]
                    base = ".".join([*up, *([name] if name else [])])
                inner = [f"{base}.{alias.name}" for alias in names]
                for target in dict.fromkeys(name if name in modules else base for name in inner):
                    yield Import(module, target, node.lineno, id(node) in typing)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(module, name, node.lineno)
            case _:
                pass


def wrong_imports(imports: Iterable[Import], modules: Mapping[str, Path]) -> list[str]:
    """What points up or sideways, leaves the layers, or opens what a core must not open."""
    wrong = []
    for item in imports:
        own = layer_of(item.importer)
        if own is None:
            wrong.append(f"{item.importer} belongs to no layer")
            continue
        top = item.imported.partition(".")[0]
        if top == "tests":
            wrong.append(f"{item}: a test")
        elif top in LAYERS:
            other = layer_of(item.imported)
            if item.imported not in modules:
                wrong.append(f"{item}: no such module")
            elif other != own and other not in LAYERS[own]:
                wrong.append(f"{item}: {own} must not know {other}")
        elif own in SANS_IO and top in IO_MODULES:
            wrong.append(f"{item}: {own} is sans-IO")
    return wrong


def circles(imports: Iterable[Import], modules: Mapping[str, Path]) -> list[tuple[str, ...]]:
    """Modules that import each other when they run, directly or on the way: connected groups, each sorted."""
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for item in imports:
        if item.imported in graph and item.imported != item.importer and not item.is_typing:
            graph[item.importer].add(item.imported)
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:  # Tarjan
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            at = stack.index(node)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(tuple(sorted(group)))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return sorted(found)


def read_tree(root: Path, packages: Iterable[str] = PACKAGES) -> tuple[dict[str, Path], list[Import]]:
    modules = modules_of(root, packages)
    return modules, [item for name, path in modules.items() for item in imports_of(name, path, modules)]


def test_imports_point_down() -> None:
    modules, imports = read_tree(ROOT)
    assert len(imports) > 300  # the tree was found and read
    assert {name.partition(".")[0] for name in modules} >= {"dro", "portals", "router", "supervisor"}
    assert wrong_imports(imports, modules) == []


def test_no_modules_import_each_other() -> None:
    modules, imports = read_tree(ROOT)
    assert circles(imports, modules) == []


def test_every_module_has_a_layer() -> None:
    assert [name for name in modules_of(ROOT) if layer_of(name) is None] == []


# The checker itself, on trees made for it.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("dro", "dro/wire", "dro/proto", "dro/um", "dro/tools", "dro/config", "dro/bus",
                 "portals", "portals/endpoint", "router", "supervisor", "analytics"):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    for name in ("dro/clock", "dro/wire/lbmr", "dro/proto/order", "dro/um/context", "dro/tools/lbmsrc",
                 "dro/config/lbm", "dro/bus/ring", "portals/core", "portals/endpoint/core", "router/core",
                 "supervisor/main", "analytics/job"):  # fmt: skip
        (tmp_path / f"{name}.py").touch()
    return tmp_path


def put(tree: Path, module: str, text: str) -> None:
    (tree / f"{module.replace('.', '/')}.py").write_text(text)


def verdict(tree: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    modules, imports = read_tree(tree)
    return wrong_imports(imports, modules), circles(imports, modules)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("dro.clock", "from dro.wire import lbmr"),
        ("dro.clock", "import dro.bus.ring"),
        ("dro.wire.lbmr", "from dro.proto.order import x"),
        ("dro.wire.lbmr", "from dro.config import lbm"),
        ("dro.proto.order", "import dro.um.context as c"),
        ("dro.proto.order", "from dro.bus.ring import x"),
        ("dro.config.lbm", "import dro.wire.lbmr"),
        ("dro.bus.ring", "from dro.config.lbm import x"),
        ("dro.um.context", "from dro.tools import lbmsrc"),
        ("dro.um.context", "import dro.bus.ring"),
        ("dro.tools.lbmsrc", "import portals.core"),
        ("dro.tools.lbmsrc", "import dro.bus.ring"),
        ("portals.core", "import router.core"),
        ("router.core", "from portals.core import x"),
        ("router.core", "import supervisor.main"),
        ("portals.core", "from dro.tools import lbmsrc"),
        ("analytics.job", "import dro.clock"),
        ("supervisor.main", "import analytics.job"),
        ("supervisor.main", "from tests.fakes.wire import Wire"),
        ("dro.wire.lbmr", "import dro.nowhere"),
        ("dro.wire.lbmr", "import socket"),
        ("dro.proto.order", "from time import monotonic_ns"),
        ("dro.wire.lbmr", "def f():\n    import dro.um.context"),
        ("dro.wire.lbmr", "if TYPE_CHECKING:\n    from dro.um.context import Context"),
        ("dro.wire.lbmr", "import importlib\nimportlib.import_module('dro.um.context')"),
        ("dro.wire.lbmr", "from ..um import context"),
        ("dro.wire.lbmr", "from .. import um"),
        ("portals.endpoint.core", "import router.core"),
    ],
)
def test_the_checker_objects(tree: Path, module: str, text: str) -> None:
    put(tree, module, text)
    wrong, _ = verdict(tree)
    assert len(wrong) == 1
    assert module in wrong[0]


def test_the_checker_accepts_what_points_down(tree: Path) -> None:
    put(tree, "dro.wire.lbmr", "import struct\nfrom dro import clock")
    put(tree, "dro.proto.order", "from ..wire import lbmr\nimport dro.clock")
    put(tree, "dro.um.context", "import dro.proto.order, dro.wire.lbmr, dro.config.lbm\nimport socket, asyncio")
    put(tree, "dro.tools.lbmsrc", "import dro.um.context\nfrom dro.config import lbm")
    put(tree, "portals.core", "import dro.um.context, dro.bus.ring\nimport portals.endpoint.core")
    put(tree, "router.core", "import dro.bus.ring, networkx")
    put(tree, "supervisor.main", "import portals.core, router.core, dro.bus.ring, dro.um.context")
    assert verdict(tree) == ([], [])


@pytest.mark.parametrize(
    "edges",
    [
        {"dro.um.context": "import dro.um.source", "dro.um.source": "from dro.um.context import Context"},
        {
            "dro.um.context": "import dro.um.source",
            "dro.um.source": "from . import receiver",
            "dro.um.receiver": "def f():\n    from dro.um import context",
        },
    ],
)
def test_the_checker_finds_circles(tree: Path, edges: dict[str, str]) -> None:
    for module, text in edges.items():
        put(tree, module, text)
    assert verdict(tree) == ([], [tuple(sorted(edges))])


def test_a_circle_for_type_checkers_alone_is_none(tree: Path) -> None:
    put(tree, "dro.um.context", "import dro.um.source")
    put(tree, "dro.um.source", "if TYPE_CHECKING:\n    from dro.um.context import Context")
    assert verdict(tree) == ([], [])


def test_the_checker_wants_a_layer_for_a_new_package(tree: Path) -> None:
    (tree / "dro/extra").mkdir()
    put(tree, "dro.extra.thing", "import struct")
    assert verdict(tree) == (["dro.extra.thing belongs to no layer"], [])

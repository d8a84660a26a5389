"""The rooms of the code: every import of the runtime packages, read with `ast`, points down.

A room is a folder. `ROOMS` says which other rooms each may know; what is not said is refused, so nothing imports upward
or sideways, the dissector serves `umdump` alone, and nobody imports `analytics`
but its objects in stores.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
FLOOR: Final = ("dro", "dro.kept", "dro.log", "dro.metrics", "dro.shared_memory")

# room -> rooms that it may import besides itself; "x.*" stands for x and every room inside it
ROOMS: Final[Mapping[str, tuple[str, ...]]] = {
    "dro": (),
    "dro.kept": ("dro",),
    "dro.log": ("dro",),
    "dro.lbmmon": ("dro",),
    "dro.metrics": ("dro",),
    "dro.metrics.data": (),
    "dro.shared_memory": ("dro",),
    "dro.wire": ("dro",),
    "dro.wire.lbmc": ("dro", "dro.wire"),
    "dro.wire.lbmr": ("dro", "dro.wire"),
    "dro.wire.srs": ("dro", "dro.wire", "dro.wire.lbmr"),
    "dro.dissect": ("dro", "dro.wire.*"),
    "dro.proto": ("dro",),
    "dro.proto.delivery": ("dro", "dro.wire.*", "dro.proto"),
    "dro.proto.interest": ("dro", "dro.wire.*", "dro.proto", "dro.proto.resolver"),
    "dro.proto.peerlink": ("dro", "dro.wire.*", "dro.proto", "dro.proto.interest", "dro.proto.repair"),
    "dro.proto.resolver_service": ("dro", "dro.wire.*", "dro.proto"),
    "dro.proto.repair": ("dro", "dro.wire.*", "dro.proto"),
    "dro.proto.unicast": ("dro", "dro.wire.*", "dro.proto", "dro.proto.delivery"),
    "dro.proto.resolver": ("dro", "dro.wire.*", "dro.proto"),
    "dro.proto.context": ("dro", "dro.wire.*", "dro.proto", "dro.proto.resolver"),
    "dro.proto.lbmrd": ("dro", "dro.wire.*"),
    "dro.proto.srs": ("dro", "dro.wire.*", "dro.proto"),
    "dro.proto.stream": ("dro", "dro.wire.*", "dro.proto", "dro.proto.delivery", "dro.proto.context"),
    **{  # of a kind of transport
        f"dro.proto.{folder.name}": ("dro", "dro.wire.*", "dro.proto", "dro.proto.repair")
        for folder in (ROOT / "dro/proto").iterdir()
        if (ROOT / "dro/transport" / folder.name / "kind.py").exists()
    },
    "dro.config": (),
    "dro.config.data": (),
    "dro.config.reading": ("dro",),
    "dro.config.um": ("dro", "dro.config.reading"),
    "dro.config.dro_xml": ("dro", "dro.config.reading", "dro.config.um"),
    "dro.config.resolvers": (
        "dro", "dro.config.reading", "dro.config.dro_xml", "dro.proto.lbmrd", "dro.proto.srs",
    ),
    "dro.config.change": ("dro", "dro.config.reading", "dro.config.um", "dro.config.dro_xml"),
    "dro.config.lint": ("dro", "dro.bus", "dro.config.reading", "dro.config.um", "dro.config.dro_xml"),
    "dro.config.report": ("dro", "dro.config.reading", "dro.config.um", "dro.config.dro_xml", "dro.config.change"),
    "dro.transport": (*FLOOR, "dro.wire.*", "dro.proto.*", "dro.config.um"),
    "dro.transport.datagrams": (*FLOOR, "dro.wire.*", "dro.proto.*", "dro.transport"),
    **{  # a kind of transport is a folder with a module `kind`; none knows another
        f"dro.transport.{kind.parent.name}": (
            *FLOOR, "dro.wire.*", "dro.proto.*", "dro.config.um", "dro.transport", "dro.transport.datagrams",
        )
        for kind in (ROOT / "dro/transport").glob("*/kind.py")
    },
    "dro.um.fragment": (*FLOOR, "dro.wire.*", "dro.proto.*", "dro.config.um", "dro.transport.*"),
    "dro.um.message": (*FLOOR, "dro.wire.*", "dro.proto.*", "dro.config.um", "dro.transport.*", "dro.um.fragment"),
    "dro.devices": (*FLOOR, "dro.transport"),
    "dro.um": (*FLOOR, "dro.devices", "dro.config.um", "dro.transport.*", "dro.um.fragment", "dro.um.message"),
    "dro.bus": FLOOR,
    "dro.tools": FLOOR,
    "dro.tools.lbm": (*FLOOR, "dro.proto.*", "dro.config.um", "dro.tools", "dro.transport.*", "dro.um.*"),
    "dro.tools.immediate": (
        *FLOOR, "dro.config.um", "dro.tools", "dro.tools.lbm", "dro.um.*", "dro.wire.lbmr",
    ),
    "dro.tools.lbmmon": (
        *FLOOR, "dro.lbmmon", "dro.config.um", "dro.tools", "dro.tools.lbm", "dro.transport", "dro.um.*",
    ),
    "dro.tools.umdump": (*FLOOR, "dro.wire.*", "dro.config.reading", "dro.config.um", "dro.tools", "dro.dissect"),
    "portals": (),
    "portals.datapath": (*FLOOR, "dro.bus", "dro.wire.lbmc", "dro.proto.context", "dro.transport"),
    "portals.decisions": (
        *FLOOR, "dro.bus", "dro.wire.*", "dro.proto.interest", "dro.proto.unicast", "dro.config.um",
        "dro.config.dro_xml", "portals.datapath",
    ),
    "portals.decisions.immediate": (
        "dro", "dro.bus", "dro.wire.*", "dro.proto.unicast", "dro.config.dro_xml",
    ),
    "portals.shell": (
        *FLOOR, "dro.bus", "dro.wire.lbmc", "dro.proto", "dro.proto.context", "dro.proto.interest", "dro.proto.unicast",
        "dro.config.dro_xml", "dro.config.change", "dro.transport",
        "portals.datapath", "portals.decisions.*",
    ),
    "portals.endpoint": (
        *FLOOR, "dro.bus", "dro.devices", "dro.wire.*", "dro.proto.*",
        "dro.config.um", "dro.config.dro_xml", "dro.config.change",
        "dro.transport.*", "dro.um.fragment", "portals.datapath", "portals.decisions.*", "portals.shell",
    ),
    "portals.peer": (
        "dro", "dro.log", "dro.bus", "dro.wire.*", "dro.proto.*", "dro.config.dro_xml", "portals.decisions",
    ),
    "portals.peer.stream": (
        *FLOOR, "dro.bus", "dro.wire.*", "dro.proto.*", "dro.config.dro_xml", "dro.transport", "portals.peer",
    ),
    "portals.peer.datagrams": (
        *FLOOR, "dro.bus", "dro.wire.*", "dro.proto.*", "dro.config.dro_xml", "dro.transport",
        "portals.shell", "portals.peer", "portals.peer.stream",
    ),
    "portals.peer.process": (
        *FLOOR, "dro.bus", "dro.devices", "dro.wire.*", "dro.proto.*", "dro.config.dro_xml", "dro.transport",
        "portals.datapath",
        "portals.decisions.*", "portals.shell", "portals.peer", "portals.peer.stream", "portals.peer.datagrams",
    ),
    "router": (*FLOOR, "dro.bus", "dro.wire.*", "dro.config.dro_xml"),
    "supervisor": (*FLOOR, "supervisor.host", "supervisor.start"),
    "supervisor.host": FLOOR,
    "supervisor.admin": (*FLOOR, "dro.bus", "dro.config.reading", "supervisor.host"),
    "supervisor.samples": (*FLOOR, "dro.bus", "dro.config.dro_xml", "supervisor.admin"),
    "supervisor.history": (
        *FLOOR, "dro.bus", "dro.config.um", "dro.config.dro_xml", "dro.lbmmon", "dro.um", "dro.um.message",
        "supervisor.admin", "supervisor.samples", "analytics.store",
    ),
    "supervisor.statistics": (
        *FLOOR, "dro.bus", "dro.lbmmon", "dro.transport", "dro.um", "dro.um.message", "dro.config.um",
        "dro.config.dro_xml", "dro.config.report", "supervisor.admin", "supervisor.samples",
    ),
    "supervisor.explain": (*FLOOR, "dro.bus", "supervisor.admin"),
    "supervisor.monitor.known": (*FLOOR, "dro.bus", "supervisor.admin", "supervisor.samples"),
    "supervisor.monitor.answers": (
        *FLOOR, "dro.bus", "supervisor.admin", "supervisor.samples", "supervisor.explain", "supervisor.monitor.known",
    ),
    "supervisor.monitor.pages": (
        *FLOOR, "dro.bus", "supervisor.admin", "supervisor.samples", "supervisor.explain", "supervisor.monitor.known",
        "supervisor.monitor.answers",
    ),
    "supervisor.monitor": (
        *FLOOR, "dro.bus", "dro.config.dro_xml", "supervisor.admin", "supervisor.samples",
        "supervisor.monitor.known", "supervisor.monitor.answers", "supervisor.monitor.pages",
    ),
    "supervisor.parent": (
        *FLOOR, "dro.bus", "dro.devices", "dro.config.reading", "dro.config.dro_xml", "dro.config.change",
        "portals.endpoint", "portals.peer.process", "router",
        "supervisor.host", "supervisor.admin", "supervisor.history", "supervisor.monitor", "supervisor.statistics",
    ),
    "supervisor.reload": (
        *FLOOR, "dro.bus", "dro.config.reading", "dro.config.um", "dro.config.dro_xml", "dro.config.change",
        "dro.transport", "portals.datapath", "supervisor.host", "supervisor.admin", "supervisor.parent",
    ),
    "supervisor.commands": (
        *FLOOR, "dro.bus", "dro.config.reading", "dro.config.um", "dro.config.dro_xml", "dro.config.change",
        "dro.config.report", "portals.datapath", "portals.decisions", "supervisor.host", "supervisor.admin",
        "supervisor.samples", "supervisor.parent", "supervisor.reload",
    ),
    "supervisor.upgrade": (
        *FLOOR, "dro.bus", "dro.config.dro_xml", "portals.decisions", "supervisor.host", "supervisor.admin",
        "supervisor.parent", "supervisor.reload",
    ),
    "supervisor.resolvers": (
        *FLOOR, "dro.bus", "dro.config.reading", "dro.config.um", "dro.config.dro_xml", "dro.config.resolvers",
        "dro.proto.lbmrd", "dro.proto.srs", "dro.transport", "supervisor.host", "supervisor.parent",
    ),
    "supervisor.tools": (),
    "supervisor.tools.doctor": (
        *FLOOR, "dro.bus", "dro.wire.*", "dro.config.reading", "dro.config.um", "dro.config.dro_xml", "dro.config.lint",
        "dro.proto.resolver_service", "dro.transport", "supervisor.host", "supervisor.admin",
    ),
    "supervisor.tools.ctl": (
        *FLOOR, "dro.bus", "dro.config.reading", "dro.config.dro_xml", "supervisor.host", "supervisor.admin",
        "supervisor.samples", "supervisor.explain", "supervisor.reload", "supervisor.commands",
        "supervisor.tools.doctor",
    ),
    "supervisor.tools.top": (
        *FLOOR, "dro.bus", "supervisor.host", "supervisor.admin", "supervisor.samples", "supervisor.explain",
    ),
    "supervisor.tools.init": (*FLOOR, "dro.config.reading", "dro.config.um", "dro.config.dro_xml"),
    "supervisor.tools.demo": (*FLOOR, "dro.bus", "dro.um", "dro.um.message", "supervisor.admin", "supervisor.samples"),
    "supervisor.tools.simulate": (
        *FLOOR, "dro.bus", "dro.wire.*", "dro.proto.*", "dro.config.reading", "dro.config.um", "dro.config.dro_xml",
        "dro.um.fragment", "portals.datapath", "portals.decisions.*", "portals.endpoint", "portals.peer", "router",
    ),
    "supervisor.start": (
        *FLOOR, "dro.config.reading", "dro.config.dro_xml", "dro.config.lint", "dro.config.report", "dro.transport",
        "supervisor.host", "supervisor.history", "supervisor.parent", "supervisor.reload", "supervisor.commands",
        "supervisor.upgrade", "supervisor.tools.init", "supervisor.tools.simulate",
    ),
    "analytics": ("analytics.store",),
    "analytics.store": (),
}  # fmt: skip
PACKAGES: Final = ("dro", "portals", "router", "supervisor", "analytics")
LARGEST_ROOM: Final = 17  # modules
LARGEST_MODULE: Final = 500  # lines

# these rooms are told the time and the bytes: nothing that waits, opens, or draws random numbers by itself
SANS_IO: Final = (
    *(room for room in ROOMS if room.startswith(("dro.wire", "dro.proto"))),
    "dro.lbmmon", "portals.decisions.immediate", "portals.peer",
)  # fmt: skip
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


def room_of(module: str, modules: Mapping[str, Path]) -> str:
    """The folder of a module of the tree, dotted; a package is in its own room."""
    is_package = modules[module].name == "__init__.py"
    return module if is_package else module.rpartition(".")[0]


def may_know(own: str, other: str) -> bool:
    """Whether modules of the room `own` may import from the room `other`."""
    return own == other or any(
        other == allowed or (allowed.endswith(".*") and f"{other}.".startswith(allowed[:-1])) for allowed in ROOMS[own]
    )


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
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, str(path))
    for node, is_typing in _import_statements(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(module, alias.name, node.lineno, is_typing)
            case ast.ImportFrom(module=name, names=names, level=level):
                base = name or ""
                if level:
                    up = package.split(".")[: len(package.split(".")) - level + 1]
                    base = ".".join([*up, *([name] if name else [])])
                inner = [f"{base}.{alias.name}" for alias in names]
                for target in dict.fromkeys(name if name in modules else base for name in inner):
                    yield Import(module, target, node.lineno, is_typing)
    for call in ast.walk(tree) if "import_module(" in text or "__import__(" in text else ():
        match call:
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(module, name, call.lineno)


def _import_statements(node: ast.AST, is_typing: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Find import statements without looking into expressions, and whether they are for type checkers only."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, is_typing
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = is_typing or (
            field == "body" and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        statements = getattr(node, field, ())
        for statement in statements if isinstance(statements, list) else ():  # a lambda has an expression as its body
            yield from _import_statements(statement, inner)


def wrong_imports(imports: Iterable[Import], modules: Mapping[str, Path]) -> list[str]:
    """What points up or sideways, leaves the rooms, or opens what a core must not open."""
    wrong = []
    for item in imports:
        own = room_of(item.importer, modules)
        if own not in ROOMS:
            wrong.append(f"{item.importer} is in no room")
            continue
        top = item.imported.partition(".")[0]
        if top == "tests":
            wrong.append(f"{item}: a test")
        elif top in PACKAGES:
            if item.imported not in modules:
                wrong.append(f"{item}: no such module")
            elif not may_know(own, other := room_of(item.imported, modules)):
                wrong.append(f"{item}: {own} must not know {other}")
        if own in SANS_IO and _is_impure(item.imported):
            wrong.append(f"{item}: {own} is sans-IO")
    return wrong


def circles(
    imports: Iterable[Import], modules: Mapping[str, Path], *, with_typing: bool = False
) -> list[tuple[str, ...]]:
    """Find modules that import each other when they run, or for type checkers too: connected groups, each sorted."""
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for item in imports:
        if item.imported in graph and item.imported != item.importer and (with_typing or not item.is_typing):
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


Read: TypeAlias = tuple[dict[str, Path], list[Import]]


@pytest.fixture(scope="module")
def read() -> Read:
    """The modules and imports of this tree; nobody changes them."""
    return read_tree(ROOT)


def test_imports_point_down(read: Read) -> None:
    modules, imports = read
    assert len(imports) > 300  # the tree was found and read
    assert {name.partition(".")[0] for name in modules} >= {"dro", "portals", "router", "supervisor"}
    assert wrong_imports(imports, modules) == []


def test_no_modules_import_each_other(read: Read) -> None:
    modules, imports = read
    assert circles(imports, modules) == []


def test_types_make_no_circles(read: Read) -> None:
    modules, imports = read
    assert circles(imports, modules, with_typing=True) == []


def test_every_module_is_in_a_room_and_every_room_is_there() -> None:
    modules = modules_of(ROOT)
    assert {room_of(name, modules) for name in modules} == set(ROOMS)


def test_no_room_is_crowded() -> None:
    modules = modules_of(ROOT)
    sizes = Counter(room_of(name, modules) for name, path in modules.items() if path.name != "__init__.py")
    assert {room: size for room, size in sizes.items() if size > LARGEST_ROOM} == {}


def test_no_module_is_too_long_to_read() -> None:
    sizes = {name: len(path.read_text().splitlines()) for name, path in modules_of(ROOT).items()}
    assert {name: size for name, size in sizes.items() if size > LARGEST_MODULE} == {}


def impure_cores(modules: Mapping[str, Path], imports: Iterable[Import]) -> list[str]:
    """List what modules import that define a class called Core or Engine, which own no socket, clock or logger."""
    core = re.compile(r"^class [A-Z]\w*(Core|Engine)\b", re.MULTILINE)
    cores = {name for name, path in modules.items() if core.search(path.read_text(encoding="utf-8"))}
    return [str(item) for item in imports if item.importer in cores and _is_impure(item.imported)]


def _is_impure(module: str) -> bool:
    """Names of log events are words; writing them is not a core's."""
    is_log = module.startswith("dro.log.") and module != "dro.log.events"
    return module.partition(".")[0] in IO_MODULES or module == "dro.loop" or is_log


def test_a_core_touches_no_socket_clock_or_logger(read: Read) -> None:
    assert impure_cores(*read) == []


# The checker itself, on trees made for it.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ROOMS:
        folder = tmp_path / name.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
        (folder / "thing.py").touch()
    for name in ("dro/loop.py", "dro/log/limits.py"):
        (tmp_path / name).touch()
    return tmp_path


def put(tree: Path, module: str, text: str) -> None:
    (tree / f"{module.replace('.', '/')}.py").write_text(text)


def verdict(tree: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    modules, imports = read_tree(tree)
    return wrong_imports(imports, modules), circles(imports, modules)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("dro.thing", "from dro.wire import thing"),
        ("dro.thing", "import dro.bus.thing"),
        ("dro.wire.thing", "import dro.wire.lbmr.thing"),
        ("dro.wire.lbmr.thing", "import dro.wire.lbmc.thing"),
        ("dro.wire.lbmr.thing", "from dro.proto.delivery.thing import x"),
        ("dro.wire.lbmr.thing", "from dro.config.um import thing"),
        ("dro.proto.repair.thing", "import dro.proto.tcp.thing"),
        ("dro.proto.peerlink.thing", "import dro.proto.tcp.thing"),
        ("dro.transport.tcp.thing", "import dro.transport.lbtrm.thing"),
        ("portals.peer.thing", "import dro.transport.lbtrm.thing"),
        ("dro.proto.delivery.thing", "import dro.um.fragment.thing as c"),
        ("dro.proto.delivery.thing", "from dro.bus.thing import x"),
        ("dro.config.reading.thing", "import dro.config.um.thing"),
        ("dro.config.um.thing", "import dro.config.dro_xml.thing"),
        ("dro.config.um.thing", "import dro.wire.thing"),
        ("dro.bus.thing", "from dro.config.um.thing import x"),
        ("dro.um.fragment.thing", "from dro.tools.lbm import thing"),
        ("dro.um.fragment.thing", "import dro.um.message.thing"),
        ("dro.um.fragment.thing", "import dro.bus.thing"),
        ("dro.um.fragment.thing", "import dro.dissect.thing"),
        ("dro.tools.lbm.thing", "import dro.dissect.thing"),
        ("dro.tools.lbm.thing", "import portals.endpoint.thing"),
        ("dro.tools.lbm.thing", "import dro.bus.thing"),
        ("portals.datapath.thing", "import portals.decisions.thing"),
        ("portals.decisions.thing", "import portals.endpoint.thing"),
        ("portals.endpoint.thing", "import router.thing"),
        ("router.thing", "from portals.decisions.thing import x"),
        ("router.thing", "import supervisor.thing"),
        ("portals.decisions.thing", "from dro.tools.lbm import thing"),
        ("supervisor.admin.thing", "import supervisor.parent.thing"),
        ("analytics.thing", "import dro.thing"),
        ("supervisor.thing", "import analytics.thing"),
        ("supervisor.thing", "from tests.fakes.wire import Wire"),
        ("dro.wire.lbmr.thing", "import dro.nowhere"),
        ("dro.wire.lbmr.thing", "import socket"),
        ("dro.proto.context.thing", "from dro.loop import Loop"),
        ("portals.peer.thing", "from dro.log.limits import LimitedLogger"),
        ("dro.proto.delivery.thing", "from time import monotonic_ns"),
        ("dro.wire.lbmr.thing", "def f():\n    import dro.um.fragment.thing"),
        ("dro.wire.lbmr.thing", "if TYPE_CHECKING:\n    from dro.um.fragment.thing import Context"),
        ("dro.wire.lbmr.thing", "import importlib\nimportlib.import_module('dro.um.fragment.thing')"),
        ("dro.wire.lbmr.thing", "from ...um.fragment import thing"),
        ("dro.wire.thing", "from .. import um"),
    ],
)
def test_the_checker_objects(tree: Path, module: str, text: str) -> None:
    put(tree, module, text)
    wrong, _ = verdict(tree)
    assert len(wrong) == 1
    assert module in wrong[0]


def test_the_checker_accepts_what_points_down(tree: Path) -> None:
    put(tree, "dro.wire.lbmr.thing", "import struct\nfrom dro import thing")
    put(tree, "dro.proto.delivery.thing", "from ...wire.lbmr import thing\nimport dro.thing")
    put(tree, "dro.proto.tcp.thing", "import dro.proto.repair.thing")
    put(tree, "dro.um.fragment.thing", "import dro.proto.repair.thing, dro.wire.thing\nimport socket, asyncio")
    put(tree, "dro.tools.lbm.thing", "import dro.um.thing\nfrom dro.config.um import thing")
    put(tree, "dro.tools.umdump.thing", "import dro.dissect.thing")
    put(tree, "portals.endpoint.thing", "import dro.um.fragment.thing, dro.bus.thing\nimport portals.decisions.thing")
    put(tree, "router.thing", "import dro.bus.thing, networkx")
    put(tree, "supervisor.parent.thing", "import portals.endpoint.thing, router.thing, dro.bus.thing")
    assert verdict(tree) == ([], [])


@pytest.mark.parametrize("text", ["import time", "import dro.log.thing", "from dro.loop import Loop", "import zmq"])
def test_the_checker_objects_to_a_core_with_io(tree: Path, text: str) -> None:
    put(tree, "router.thing", f"{text}\nclass _HelperCore: ...")
    assert impure_cores(*read_tree(tree)) == []
    put(tree, "router.thing", f"{text}\nclass RouteCore(Base): ...")
    assert len(impure_cores(*read_tree(tree))) == 1


@pytest.mark.parametrize(
    "edges",
    [
        {"dro.bus.one": "import dro.bus.two", "dro.bus.two": "from dro.bus.one import Thing"},
        {
            "dro.bus.one": "import dro.bus.two",
            "dro.bus.two": "from . import three",
            "dro.bus.three": "def f():\n    from dro.bus import one",
        },
    ],
)
def test_the_checker_finds_circles(tree: Path, edges: dict[str, str]) -> None:
    for module, text in edges.items():
        put(tree, module, text)
    assert verdict(tree) == ([], [tuple(sorted(edges))])


def test_a_circle_for_type_checkers_alone_is_none(tree: Path) -> None:
    put(tree, "dro.bus.one", "import dro.bus.two")
    put(tree, "dro.bus.two", "if TYPE_CHECKING:\n    from dro.bus.one import Thing")
    assert verdict(tree) == ([], [])
    modules, imports = read_tree(tree)
    assert circles(imports, modules, with_typing=True) == [("dro.bus.one", "dro.bus.two")]


def test_the_checker_wants_a_room_for_a_new_package(tree: Path) -> None:
    (tree / "dro/extra").mkdir()
    put(tree, "dro.extra.thing", "import struct")
    assert verdict(tree) == (["dro.extra.thing is in no room"], [])

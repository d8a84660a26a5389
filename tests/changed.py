"""Which tests a change can reach: `python -m tests.changed [BASE]` prints their paths or node ids.

Tests that start no process are followed through all imports. Of those that do, a module is taken that imports a changed
one by itself, or through modules of tests; what they reach otherwise, also in programs that they start, was recorded
once by coverage: `tests/golden/reached.json` names for each module of the product tests that run all its lines that any
such test runs, and for all modules together a few that any change has to pass (`tests/reached.py`).

A changed file that is no module counts as a change of the modules that mention its name, a conftest as one of every
test in its folder.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.lanes import Lane, lane_of_id
from tests.reached import Reached
from tests.test_layers import PACKAGES, ROOT, imports_of, modules_of

EVERY: Final = (*PACKAGES, "deploy", "tests")
DELIVERED: Final = ("deploy/", "analytics/", "docs/", "pyproject.toml", "setup.py", "MANIFEST.in", "mkdocs.yml")


def changed_files(base: str) -> list[str]:
    """Tracked and new files that differ from where this branch left `base`, relative to the root.

    Raises: ValueError when there is no such commit.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    try:
        left = git("merge-base", base, "HEAD").strip()
    except (OSError, subprocess.CalledProcessError) as e:
        raise ValueError(f"no such commit, or none of this history: {base!r}; give BASE=...") from e
    return [*git("diff", "--name-only", left).splitlines(), *git("ls-files", "-o", "--exclude-standard").splitlines()]


@dataclass
class Tree:
    """The modules of a checkout, and who imports whom, as far as the importers are in these packages."""

    root: Path = ROOT
    packages: tuple[str, ...] = EVERY
    modules: dict[str, Path] = field(init=False)
    importers: defaultdict[str, set[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.modules = modules_of(self.root, EVERY)
        self.importers = defaultdict(set)
        for name, path in self.modules.items():
            if name.partition(".")[0] in self.packages:
                for item in imports_of(name, path, self.modules):
                    self.importers[item.imported].add(name)

    def changed(self, files: Iterable[str]) -> set[str]:
        """Find the modules that count as changed."""
        return {name for file in files for name in self._changed(file)}

    def _changed(self, file: str) -> Iterator[str]:
        changed = self.root / file
        for name, path in self.modules.items():
            if path == changed:
                yield name
            elif changed.name == "conftest.py":
                if path.is_relative_to(changed.parent):
                    yield name
            elif changed.suffix != ".py" and changed.name in path.read_text(encoding="utf-8"):
                yield name

    def reached(self, modules: Iterable[str], *, through: tuple[str, ...] = ("",)) -> set[str]:
        """Find these modules and those that import them, directly or through modules whose names begin so."""
        reached: set[str] = set()
        pending = list(modules)
        first = set(pending)
        while pending:
            if (name := pending.pop()) not in reached:
                reached.add(name)
                if name in first or name.startswith(through):
                    pending += self.importers[name]
        return reached

    def tests(self, modules: Iterable[str]) -> dict[str, Lane]:
        """Find the paths of those that are modules of tests, and their lanes."""
        paths = (self.modules[name].relative_to(self.root).as_posix() for name in modules)
        return {path: lane_of_id(path) for path in paths if Path(path).name.startswith("test_")}


def reaches_delivery(files: Iterable[str], root: Path = ROOT) -> bool:
    """Tell whether a change can reach what is delivered: it, what it imports, or its tests."""
    files = list(files)
    if any(file.startswith(DELIVERED) for file in files):
        return True
    if not files:
        return False
    is_tested = any(file.startswith("tests/") for file in files)
    tree = Tree(root, ("deploy", "analytics", *["tests"] * is_tested))
    changed = tree.changed(files)
    near = {importer.partition(".")[0] for name in changed for importer in tree.importers[name]}
    tests = tree.tests(tree.reached((name for name in changed if name.startswith("tests.")), through=("tests.",)))
    return not near.isdisjoint(("deploy", "analytics")) or Lane.DELIVERY in tests.values()


def reached_tests(files: Iterable[str], tree: Tree, reached: Reached) -> list[str]:
    """List paths of test modules, relative to the root, and node ids of single tests, that a change can reach."""
    files = list(files)
    changed = tree.changed(files)
    lanes = tree.tests(tree.reached(changed))
    near = tree.tests(tree.reached(changed, through=("tests.",))).keys()
    delivers = reaches_delivery(files, tree.root)
    whole = {
        path
        for path, lane in lanes.items()
        if lane < Lane.PROCESSES
        or (lane is Lane.PROCESSES and (path in near or path not in reached.modules))
        or (lane is Lane.DELIVERY and delivers)
    }
    products = [name for name in changed if not name.startswith("tests.")]
    single = reached.tests_of(products) if products else ()
    return sorted(whole) + sorted(test for test in single if test.partition("::")[0] not in whole)


def main(base: str = "main") -> int:
    """Print the paths; what is no path goes to standard error."""
    try:
        files = changed_files(base)
    except ValueError as e:
        print(e, file=sys.stderr)
        return 1
    reached = Reached.read()
    tests = reached_tests(files, Tree(), reached)
    if not tests:
        print(f"no test is reached by what differs from {base}", file=sys.stderr)
    if notice := reached.age():
        print(notice, file=sys.stderr)
    print(*tests, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

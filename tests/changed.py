"""Which test modules a change can reach through imports: `python -m tests.changed [BASE]` prints their paths.

A changed file that is no module counts as a change of the modules that mention its name, a conftest as one of every
test in its folder. What a test reaches only by starting a program is not followed: `make test` runs everything.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.test_layers import PACKAGES, ROOT, read_tree


def changed_files(base: str) -> list[str]:
    """Tracked and new files that differ from where this branch left `base`, relative to the root.

    Raises: ValueError when there is no such commit.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    try:
        left = git("merge-base", base, "HEAD").strip()
    except subprocess.CalledProcessError as e:
        raise ValueError(f"no such commit, or none of this history: {base!r}; give BASE=...") from e
    return [*git("diff", "--name-only", left).splitlines(), *git("ls-files", "-o", "--exclude-standard").splitlines()]


def _directly(file: str, modules: dict[str, Path], root: Path) -> Iterator[str]:
    changed = root / file
    for name, path in modules.items():
        if path == changed:
            yield name
        elif changed.name == "conftest.py":
            if path.is_relative_to(changed.parent):
                yield name
        elif changed.suffix != ".py" and changed.name in path.read_text(encoding="utf-8"):
            yield name


def reached_tests(files: Iterable[str], root: Path = ROOT) -> list[str]:
    """Paths of the test modules, relative to the root, that import a changed file directly or through others."""
    modules, imports = read_tree(root, (*PACKAGES, "deploy", "tests"))
    importers = defaultdict(set)
    for item in imports:
        importers[item.imported].add(item.importer)
    reached: set[str] = set()
    pending = [name for file in files for name in _directly(file, modules, root)]
    while pending:
        if (name := pending.pop()) not in reached:
            reached.add(name)
            pending += importers[name]
    paths = {str(modules[name].relative_to(root)) for name in reached}
    return sorted(path for path in paths if Path(path).name.startswith("test_"))


def main(base: str = "main") -> int:
    """Print the paths; what is no path goes to standard error."""
    try:
        tests = reached_tests(changed_files(base))
    except ValueError as e:
        print(e, file=sys.stderr)
        return 1
    if not tests:
        print(f"no test is reached by what differs from {base}", file=sys.stderr)
    print(*tests, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

"""`make bench`: every bench, one after another, or those that are named; the rest of the arguments go to a single one.

`python -m tests.bench [NAME...]`, `python -m tests.bench throughput --sizes 64`. Each is a module with a `main` that
can be run alone as well.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

BENCHES: Final[dict[str, tuple[str, ...]]] = {
    "throughput": (),
    "mix": ("--rounds", "3"),
    "links": ("--rounds", "3"),
    "resets": ("--resets", "100"),
    "scale": (),
    "chain": (),
    "hub": ("--neighbours", "10"),
    "isolation": (),
    "portal_recovery": (),
    "message_recovery": (),
    "going_on": ("--kills", "30"),
    "wan": (),
    "faults": (),
    "drains": (),
    "upgrade": (),
    "churn": (),
    "reload": (),
    "resolvers": (),
    "route_tables": (),
    "instructions": ("--messages", "300"),
    "access": (),
    "log": (),
    "monitor": ("--rounds", "3"),
    "statistics": ("--rounds", "2"),
    "metrics": ("--portals", "20"),
    "umdump": (),
    "history": ("--rows", "1000000"),
    "operator_stress": ("--seconds", "60"),
    "soak": ("--seconds", "120", "--warm-up", "30"),
}
"""In the order in which they run, with arguments that keep the long ones short."""


def commands(words: Sequence[str]) -> list[list[str]]:
    """Module and arguments of each bench that is to run. Raises: ValueError for a name that is none."""
    names = list(takewhile(lambda word: not word.startswith("-"), words))
    rest = list(words[len(names) :])
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        raise ValueError(f"no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    if rest and len(names) != 1:
        raise ValueError(f"{' '.join(rest)}: arguments go to one bench; name it first")
    return [[f"tests.bench.{name}", *(rest or BENCHES[name])] for name in names or BENCHES]


def main(words: Sequence[str]) -> int:
    try:
        chosen = commands(words)
    except ValueError as e:
        print(f"bench: {e}", file=sys.stderr)
        return 2
    failed = []
    for module, *arguments in chosen:
        print(f"== {module.rpartition('.')[2]} {' '.join(arguments)}".rstrip(), flush=True)
        if subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode:
            failed.append(module)
    if failed and len(chosen) > 1:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

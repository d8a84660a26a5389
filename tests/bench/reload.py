"""What a reload costs by the size of the configuration: reading, comparing, pickling, and what the parent does of it.

`python -m tests.bench.reload` prints a table; times are the best of three, in milliseconds of CPU.
"""

from __future__ import annotations

import gc
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from dro.config.change.difference import differences
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.log.handler import Settings
from supervisor.reload.plan import part_for, plan_reload
from supervisor.reload.trial import Situation, compare

SIZES: Final = ((3, 0), (3, 1000), (50, 20), (255, 0), (255, 100))  # portals, entries of each list
HEAD: Final = ("portals", "entries", "load", "same", "differ", "pickle", "kB", "answer", "part kB", "part")
T = TypeVar("T")


def write(folder: Path, portals: int, entries: int, cost: int) -> str:
    """A file with that many portals, each with a UM file of its own."""
    made = []
    for n in range(1, portals + 1):
        um = folder / f"trd{n}.cfg"
        um.write_text(f"context resolver_multicast_port {15000 + n}\nsource transport lbtrm\n" * 3)
        aces = "".join(f'<ace match="accept"><pcre-pattern>^T{n}/{e}\\.</pcre-pattern></ace>\n' for e in range(entries))
        acl = f"<acl><inbound>{aces}</inbound></acl>" if entries else ""
        made.append(f"<endpoint><name>P{n}</name><domain-id>{n}</domain-id><cost>{cost}</cost>"
                    f"<lbm-config>{um}</lbm-config>{acl}</endpoint>")  # fmt: skip
    path = folder / f"dro{cost}.xml"
    path.write_text(f'<tnw-gateway version="1.0"><portals>{"".join(made)}</portals></tnw-gateway>')
    return str(path)


def best(work: Callable[[], T]) -> tuple[float, T]:
    times = []
    for _ in range(3):
        began = time.process_time()
        result = work()
        times.append(time.process_time() - began)
    return min(times) * 1000, result


def load(path: str) -> DroConfig:
    return load_dro(path, warn=lambda _: None)


def measure(folder: Path, portals: int, entries: int) -> tuple[float, ...]:
    """The columns of `HEAD` behind the sizes."""
    first, second = write(folder, portals, entries, 1), write(folder, portals, entries, 2)
    load_ms, old = best(lambda: load(first))
    again, new = load(first), load(second)
    same_ms, nothing = best(lambda: differences(old, again))
    assert not nothing
    differ_ms, plan = best(lambda: plan_reload(old, new))
    assert len(plan.changes) == portals
    names = frozenset(portal.name for portal in old.portals)
    trial = compare(Situation(old, names, frozenset(), folder, Settings()), second)
    pickle_ms, answer = best(lambda: pickle.dumps((True, trial), pickle.HIGHEST_PROTOCOL))
    answer_ms, _ = best(lambda: pickle.loads(answer))
    part = pickle.dumps(part_for(new, frozenset({"P1"})), pickle.HIGHEST_PROTOCOL)
    part_ms, _ = best(lambda: pickle.loads(part))
    return load_ms, same_ms, differ_ms, pickle_ms, len(answer) / 1000, answer_ms, len(part) / 1000, part_ms


def main() -> None:
    gc.disable()  # as in the child, and while its answer is read
    print(("{:>10}" * len(HEAD)).format(*HEAD))
    for portals, entries in SIZES:
        with tempfile.TemporaryDirectory() as name:
            row = measure(Path(name), portals, entries)
        print(f"{portals:10}{entries:10}" + "".join(f"{value:10.1f}" for value in row))


if __name__ == "__main__":
    main()

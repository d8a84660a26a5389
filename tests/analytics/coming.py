"""Histories whose files come one after another, and what gold has of them."""

from __future__ import annotations

import random
from pathlib import Path

from analytics.store.manifest import Manifests, read_rows
from analytics.store.objects import ObjectStore
from tests.analytics.scenes import Scene
from tests.builders.histories import write


class Coming:
    """A history by chance, whose samples of portals come with one file after the other, some of them late."""

    def __init__(self, chance: random.Random, count: int, days: float = 2.2) -> None:
        self._scene = Scene(seed=chance.randrange(1 << 30), days=days, step_s=600, dros=2)
        self._rows = self._scene.tables["portal"] + self._scene.late
        self._shares: list[list[int]] = [[] for _ in range(count)]
        for nth in range(len(self._rows)):
            share = nth * count / len(self._rows) + chance.random() * 2
            self._shares[min(int(share), count - 1)].append(nth)

    def write(self, folder: Path, nth: int) -> None:
        """Write what comes with one file; what DROs and pairs count with the first."""
        for table in ("dro", "pair") if nth == 0 else ():
            write(folder, table, self._scene.tables[table])
        write(folder, "portal", [self._rows[at] for at in self._shares[nth]], str(nth))


def gold(history: Path | ObjectStore) -> dict[str, list[str]]:
    """All rows of all tables, in an order of their own."""
    store = history if isinstance(history, ObjectStore) else ObjectStore(str(history))
    found: dict[str, list[str]] = {}
    for day, manifest in Manifests(store).of.items():
        for table, file in manifest.tables.items():
            rows = read_rows(store, file.path).to_pylist() if file.path else []
            found.setdefault(table, []).extend(f"{day} {sorted(row.items())}" for row in rows)
    return {table: sorted(rows) for table, rows in found.items()}

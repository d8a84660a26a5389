"""The feature table of the DRO guide, `feature-table.csv`, what shows each row, `features.csv`, and the guide of both.

`python -m tests.builders.features > docs/features.md` writes the guide.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = ROOT / "tests" / "golden"
ROW_COLUMNS: Final = ["row", "section", "feature", "class"]
COLUMNS: Final = ["row", "feature", "tests", "reason"]
BLACK_BOX: Final = (
    "tests/analytics/",
    "tests/daemon/",
    "tests/netns/",
    "tests/network/",
    "tests/portals/endpoint/test_acl_traffic.py",
    "tests/portals/endpoint/test_um_layers.py",
    "tests/portals/endpoint/test_unicast.py",
    "tests/tools/",
    "tests/supervisor/tools/demo/",
    "tests/supervisor/history/",
    "tests/supervisor/host/",
    "tests/supervisor/start/",
)
"""Where tests have real processes, or whole DROs with real sockets."""
CLASSES: Final = {"M": "needed", "S": "should be there", "L": "later", "-": "another product"}
_HEAD: Final = """# Features

What of the features of the DRO guide works, and which test shows it: each row of `tests/golden/feature-table.csv`, with
what `tests/golden/features.csv` says about it; made by `python -m tests.builders.features > docs/features.md`.
Supported: `yes` when tests show it, among them one with real processes or whole DROs; `yes, in parts` when they show
only a part of it, or only parts of the program; `no` when it is not in this release, or no test shows it.
"""
_BEYOND: Final = "\n## Beyond the guide\n\n| feature | supported | tests |\n|---|---|---|\n"


@dataclass(frozen=True, slots=True)
class Row:
    """One of the feature table."""

    number: int
    section: str
    name: str
    rank: str


@dataclass(frozen=True, slots=True)
class Feature:
    """What shows a row of the table, or a part of it; without a row it is beyond the guide."""

    row: int | None
    name: str
    tests: tuple[str, ...]
    reason: str

    @property
    def is_black_box(self) -> bool:
        return any(test.startswith(BLACK_BOX) for test in self.tests)

    @property
    def supported(self) -> str:
        if not self.tests:
            return "no"
        return "yes" if self.is_black_box and not self.reason else "yes, in parts"

    @property
    def cells(self) -> str:
        """Of the columns `supported` and `tests`."""
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in self.tests)
        return f"{f'{self.supported}: {self.reason}' if self.reason else self.supported} | {tests}"


def _read(name: str, columns: list[str]) -> list[list[str]]:
    with (GOLDEN / name).open(newline="") as file:
        first, *rows = csv.reader(file)
    assert first == columns
    return rows


def table() -> list[Row]:
    rows = _read("feature-table.csv", ROW_COLUMNS)
    return [Row(int(number), section, name, rank) for number, section, name, rank in rows]


def features() -> list[Feature]:
    rows = _read("features.csv", COLUMNS)
    return [Feature(int(row) if row else None, name, tuple(tests.split()), reason) for row, name, tests, reason in rows]


def guide() -> str:
    shown: defaultdict[int | None, list[Feature]] = defaultdict(list)
    for feature in features():
        shown[feature.row].append(feature)
    text = _HEAD
    for section, rows in groupby(table(), lambda row: row.section):
        text += f"\n## {section}\n\n| | feature | | what | supported | tests |\n|---|---|---|---|---|---|\n"
        for row in rows:
            for one in shown[row.number]:
                text += f"| {row.number} | {row.name} | {CLASSES[row.rank]} | {one.name} | {one.cells} |\n"
    return text + _BEYOND + "".join(f"| {one.name} | {one.cells} |\n" for one in shown[None])


if __name__ == "__main__":
    print(guide(), end="")

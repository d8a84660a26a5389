"""The list of features with their tests, `tests/golden/features.csv`, and the guide that is made of it.

`python -m tests.builders.features > docs/features.md` writes the guide.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT / "tests" / "golden" / "features.csv"
COLUMNS: Final = ["section", "feature", "class", "tests", "reason"]
BLACK_BOX: Final = (
    "tests/analytics/",
    "tests/daemon/",
    "tests/netns/",
    "tests/network/",
    "tests/tools/",
    "tests/supervisor/demo/",
    "tests/supervisor/history/",
    "tests/supervisor/host/",
    "tests/supervisor/start/",
)
"""Where tests have real processes, or whole DROs with real sockets."""
CLASSES: Final = {"M": "needed", "S": "should be there"}
NOT_YET: Final = "not on main yet"
_HEAD: Final = """# Features

What of the features of the DRO guide works, and which test shows it; made of `tests/golden/features.csv` by
`python -m tests.builders.features > docs/features.md`. Supported: `yes` when a test with real processes or whole DROs
shows it; `yes, in parts` when only parts are tested together; `no` when it is not in this release.
"""


@dataclass(frozen=True, slots=True)
class Feature:
    section: str
    name: str
    rank: str
    tests: tuple[str, ...]
    reason: str

    @property
    def is_black_box(self) -> bool:
        return any(test.startswith(BLACK_BOX) for test in self.tests)

    @property
    def supported(self) -> str:
        if not self.tests or self.reason == NOT_YET:
            return "no"
        return "yes" if self.is_black_box and not self.reason else "yes, in parts"


def features() -> list[Feature]:
    with TABLE.open(newline="") as file:
        first, *rows = csv.reader(file)
    assert first == COLUMNS
    return [Feature(section, name, rank, tuple(tests.split()), reason) for section, name, rank, tests, reason in rows]


def guide() -> str:
    text = _HEAD
    for section, found in groupby(features(), lambda feature: feature.section):
        text += f"\n## {section}\n\n| feature | | supported | tests |\n|---|---|---|---|\n"
        for one in found:
            tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in one.tests)
            reason = "not in this release yet" if one.reason == NOT_YET else one.reason
            told = f"{one.supported}: {reason}" if reason else one.supported
            text += f"| {one.name} | {CLASSES[one.rank]} | {told} | {tests} |\n"
    return text


if __name__ == "__main__":
    print(guide(), end="")

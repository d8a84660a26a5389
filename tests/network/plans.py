"""Small networks that are joined by peer links alone."""

from __future__ import annotations

from typing import Final, TypeAlias

Links: TypeAlias = dict[str, list[int | str]]
PAIR: Final[Links] = {"A": [1, "B"], "B": [2, "A"]}
CHAIN: Final[Links] = {"A": [1, "B"], "B": [2, "A", "C"], "C": [3, "B"]}
TRIANGLE: Final[Links] = {"A": [1, "B", "C"], "B": [2, "A", "C"], "C": [3, "A", "B"]}
RING: Final[Links] = {"A": [1, "B", "D"], "B": [2, "A", "C"], "C": [3, "B", "D"], "D": [4, "C", "A"]}
STAR: Final[Links] = {"A": [1, "H"], "B": [2, "H"], "C": [3, "H"], "H": ["A", "B", "C"]}
SPUR: Final[Links] = RING | {"C": [3, "B", "D", "E"], "E": [5, "C"]}
ALL: Final = {"pair": PAIR, "chain": CHAIN, "triangle": TRIANGLE, "ring": RING, "star": STAR, "spur": SPUR}

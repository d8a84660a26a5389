"""Tables of states as `docs/architecture.md` draws them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

DOCS: Final = Path(__file__).parents[2] / "docs" / "architecture.md"
S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def drawn_table(heading: str, states: type[S], events: type[E]) -> dict[tuple[S, E], S]:
    """The first table below a heading, with the columns event, states, next state."""
    lines = DOCS.read_text().partition(f"### {heading}\n")[2].splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {(states(state), events(event)): states(to) for event, before, to in rows for state in before.split(", ")}

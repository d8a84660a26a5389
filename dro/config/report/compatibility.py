"""Lists what becomes of each element and UM option, as the last section of the guide to compatibility, from the tables.

`python -m dro.config.report.compatibility docs/compatibility.md` writes it anew below the heading; a test fails when
that is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from dro.config.reading.schema import elements
from dro.config.report.reference import state
from dro.config.um.honoured import IDLE_IN_PORTALS, is_refused
from dro.config.um.options import OptionKey, option_table
from dro.config.um.rules import Kind
from dro.config.um.used import used_options

HEADING: Final = "## Each element and option\n"
_IN_EFFECT: Final = "in effect"
_INTRODUCTION: Final = """
From the tables of the program, by `python -m dro.config.report.compatibility docs/compatibility.md`; values, limits and
meanings are in [configuration.md](configuration.md).
"""


class Fate(Enum):
    """Names what a DRO does with a UM option that is set to something else than its default."""

    USED = "used by a DRO"
    OF_APPLICATIONS = "used by tools and the client library, not by a DRO, which says nothing about it"
    REFUSED = "refused: no DRO, tool or application of the library starts with it"
    YET = "ignored, named in the warning `UM options without effect yet`"
    OUTSIDE = "ignored, named in the information `UM options without effect here`"
    OF_CODE = "set by code alone: unknown in a file"


def fate_of(key: OptionKey) -> Fate:
    """Tell what becomes of an option of the table. Raises: KeyError."""
    option = option_table()[key]
    if option.rule.kind is Kind.API:
        return Fate.OF_CODE
    if is_refused(key):
        return Fate.REFUSED
    if key in used_options(in_portals=True):
        return Fate.USED
    if key in used_options() and key not in IDLE_IN_PORTALS:
        return Fate.OF_APPLICATIONS
    return Fate.YET if option.relevance == "yes" else Fate.OUTSIDE


def fates() -> Mapping[Fate, list[OptionKey]]:
    """All options of the table, by what becomes of them."""
    found: dict[Fate, list[OptionKey]] = {fate: [] for fate in Fate}
    for key in sorted(option_table()):
        found[fate_of(key)].append(key)
    return found


def _elements() -> Iterator[str]:
    yield "| elements of the DRO file | state |"
    yield "|---|---|"
    found: dict[str, list[str]] = {}
    for spec in elements().values():
        found.setdefault(state(spec), []).append(f"`{spec.name}`")
    for text, names in found.items():
        shown = f"all {len(names)} others" if text == _IN_EFFECT else ", ".join(names)
        yield f"| {shown} | {text} |"


def _options() -> Iterator[str]:
    for fate, keys in fates().items():
        yield f"\n### {len(keys)} UM options: {fate.value}\n"
        for scope in sorted({scope for scope, _ in keys}):
            yield f"* {scope}: {', '.join(f'`{name}`' for one, name in keys if one == scope)}"


def section() -> str:
    """The whole section with its heading."""
    return "\n".join([HEADING + _INTRODUCTION, *_elements(), *_options(), ""])


def main() -> None:
    """Replace the section in the file that is named."""
    path = Path(sys.argv[1])
    path.write_text(path.read_text(encoding="utf-8").partition(HEADING)[0] + section(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Code blocks of the guides, for tests that run what a reader would paste."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"


def blocks(guide: str, heading: str, language: str) -> list[str]:
    """Those of one language below a heading of `docs/<guide>`, up to the next heading. Raises: LookupError if none."""
    text = (DOCS / guide).read_text(encoding="utf-8")
    pattern = rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ [^\n]*\n|\Z)"
    sections = re.findall(pattern, re.sub(r"(?m)^(```\w*\n(?:.*\n)*?```\n)", _hide, text), re.DOTALL | re.MULTILINE)
    found = [_show(one) for section in sections for one in re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)]
    if not found:
        raise LookupError(f"{guide}: no block of {language} below {heading}")
    return found


def _hide(match: re.Match[str]) -> str:
    """A comment of a script is no heading."""
    return re.sub(r"(?m)^#", "\0", match[1])


def _show(text: str) -> str:
    return text.replace("\0", "#")

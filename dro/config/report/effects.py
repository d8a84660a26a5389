"""The effect of each value of the DRO file in this release: one answer for every row of the table of elements.

The column `used_by` names the part of the program that uses the value; a test builds that part from two files that
differ in the value. A value without an entry there is refused or warned about (`unsupported.py`), is deprecated, or is
a container. Called by the reference of the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dro.config.dro_xml.unsupported import SOME, limit_of
from dro.config.reading.schema import XML_SPACE, elements, is_used

Row = tuple[str, str]
"""Element and attribute; the attribute is empty for the content or the element itself."""


class EffectKind(Enum):
    """What becomes of a value."""

    USED = "used"
    REFUSED = "refused"
    WARNED = "warned about"
    IGNORED = "ignored with a warning"
    HOLDS = "counts by what it holds"


@dataclass(frozen=True, slots=True)
class Effect:
    """`text` says what uses the value, or why nothing does."""

    kind: EffectKind
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.kind.value


def effect_of(element: str, attribute: str) -> Effect:
    """Find the effect of a row of the table. Raises: LookupError for a row without one, which a test rules out."""
    spec = elements()[element]
    if spec.status == "eliminated" and "tcp" in (element, *spec.parents[:1]):
        return Effect(EffectKind.REFUSED, "refused: use `<single-tcp>`")
    limit = limit_of(element)
    if not limit or limit.startswith(SOME):
        row = spec.attributes[attribute] if attribute else spec.row
        if row.used_by:
            return Effect(EffectKind.USED, row.used_by)
        if attribute == XML_SPACE and spec.row.used_by:
            return Effect(EffectKind.USED, "reader: white space of the content")
        if limit and not attribute and spec.content is None:
            return Effect(EffectKind.HOLDS)
    if limit:
        return Effect(EffectKind.REFUSED if "refused" in limit.partition(":")[0] else EffectKind.WARNED, limit)
    if spec.status != "no" and not is_used(element):
        return Effect(EffectKind.IGNORED)
    if not attribute and spec.content is None:
        return Effect(EffectKind.HOLDS)
    raise LookupError(f"<{element}> {attribute}: neither used nor refused nor warned about")


def rows() -> list[Row]:
    """All rows of the table in its order."""
    return [(spec.name, attribute) for spec in elements().values() for attribute in ("", *spec.attributes)]

"""`<topic-purge>` and the other elements of a DRO file without a function: they are named in a warning and ignored.

Which they are says the column `deprecated` of `dro/config/data/dro-xml.csv`; `dro.config.reading.reader` warns of them,
and `dro.log.events` has the public id of each warning.
"""

from __future__ import annotations


class DeprecatedElement(str):
    """The warning about an element of a configuration that has no function any more; `place` is `file:line`."""

    place: str
    element: str

    def __new__(cls, place: str, element: str) -> DeprecatedElement:
        made = super().__new__(cls, f"{place}: <{element}>: deprecated, ignored")
        made.place = place
        made.element = element
        return made

    def __reduce__(self) -> tuple[type[DeprecatedElement], tuple[str, str]]:
        return DeprecatedElement, (self.place, self.element)

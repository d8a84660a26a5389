"""The DTD of a daemon's configuration file, made from its table. Called for `--dump-dtd`.

A file is read by the table itself, which says more: types, limits, places.
"""

from __future__ import annotations

from collections.abc import Iterator

from dro.config.reading.schema import ElementSpec, Field, elements


def dtd_of(table: str) -> str:
    """The text of the DTD."""
    return "".join(line for spec in elements(table).values() for line in _declared(spec))


def _declared(spec: ElementSpec) -> Iterator[str]:
    yield f"<!ELEMENT {spec.name} {_content(spec)}>\n"
    for field in spec.attributes.values():
        yield f"<!ATTLIST {spec.name} {field.attribute} {_values(field)}>\n"


def _content(spec: ElementSpec) -> str:
    if spec.content is not None:
        return "(#PCDATA)"
    if not spec.children:
        return "EMPTY"
    if not spec.is_ordered:
        return f"({' | '.join(spec.children)})*"
    marks = {"1": "", "0..1": "?", "1..n": "+", "0..n": "*"}
    known = elements(spec.table)
    return f"({', '.join(name + marks[known[name].cardinality] for name in spec.children)})"


def _values(field: Field) -> str:
    kind = f"({' | '.join(field.choices)})" if field.type == "enum" else "CDATA"
    if field.is_required:
        return f"{kind} #REQUIRED"
    return f'{kind} "{field.default}"' if field.default is not None else f"{kind} #IMPLIED"

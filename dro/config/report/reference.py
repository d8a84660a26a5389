"""The reference of the configuration, as Markdown: every element, attribute and UM option, from the tables.

`python -m dro.config.report.reference > docs/configuration.md` regenerates it; a test fails when that is needed.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from dro.config.change.reload_class import reload_class
from dro.config.dro_xml.unsupported import limit_of
from dro.config.reading.schema import UINT32_MAX, XML_SPACE, ElementSpec, Field, elements
from dro.config.report import effects
from dro.config.report.effects import effect_of
from dro.config.um.honoured import is_refused
from dro.config.um.options import Option, option_table
from dro.config.um.rules import INT32_MAX, Kind
from dro.config.um.used import used_options

_HEAD: Final = """# Configuration reference

Generated from the tables of the program by `python -m dro.config.report.reference`; do not edit.

A DRO is configured by one XML file, `tnwgd FILE`. `tnwgd -v FILE...` checks files, `tnwgd --print-config FILE` prints
the effective configuration, each value with its origin. Numbers are decimal integers. The column *reload* says how a
changed value takes effect: `live`, with a restart of the portal, or with a restart of the daemon. The column *used by*
names the part of the program that uses the value; a `refused` value stops the start with file and line, one that is
`warned about` is named in the log and has no effect.
"""
_UM_HEAD: Final = """## UM options

Options of the UM library in `<lbm-config>`, `<lbm-attributes>` and `<xml-config>`, in rising precedence. Those in the
table have a meaning for a DRO; a change of one that it uses restarts the portal. Unknown options and bad values are
warnings with file and line, and the DRO runs, unless the option protects data, or chooses the TRD or an interface.
"""


@cache
def _notes() -> Mapping[tuple[str, str], str]:
    with files("dro.config.data").joinpath("um-options.csv").open(encoding="utf-8") as f:
        return {(row["scope"], row["name"].lower()): row["note"] for row in csv.DictReader(f)}


def _cell(text: str) -> str:
    """Write the cell of a table; what stands between backticks is shown as it is."""
    parts = text.replace("|", "\\|").replace("\n", " ").split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def _row(*cells: str) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _span(field: Field) -> str:
    """Describe the permitted values of a field."""
    if field.type in ("integer", "port"):
        if " | " in field.valid:
            return ", ".join(field.choices)
        upper = "" if field.maximum >= UINT32_MAX else str(field.maximum)
        extra = f" ({field.valid})" if field.valid.startswith(("multiple", "power")) else ""
        return f"{field.minimum}..{upper}{extra}"
    if field.type in ("enum", "boolean"):
        return field.valid.replace(" | ", ", ").replace("=", " or ")
    return field.valid


def _default(field: Field) -> str:
    if field.is_required:
        return "required"
    return field.default_text


def sample(field: Field) -> str:
    """A value that fits, for an example."""
    least = min(field.choices) if field.type in ("enum", "boolean") else str(field.minimum)
    return field.sample or field.default or least


def example(name: str) -> str:
    """An element with all its attributes; a container with the elements that it needs, or that show what it is for."""
    return "\n".join(_example_lines(name))


def _example_lines(name: str) -> Iterator[str]:
    spec = elements()[name]
    attributes = "".join(
        f" {field.attribute}={quoteattr(sample(field))}"
        for field in spec.attributes.values()
        if field.attribute != XML_SPACE
    )
    if spec.content is not None:
        yield f"<{name}{attributes}>{escape(sample(spec.content))}</{name}>"
    elif not spec.children:
        yield f"<{name}{attributes}/>"
    else:
        yield f"<{name}{attributes}>"
        for child in spec.row.sample.split():
            yield from (f"  {line}" for line in _example_lines(child))
        yield f"</{name}>"


def state(spec: ElementSpec) -> str:
    """Whether an element has an effect in this release."""
    every = [effect_of(spec.name, ""), *(effect_of(spec.name, attribute) for attribute in spec.attributes)]
    first = every[0]
    is_used = any(one.kind is effects.EffectKind.USED for one in every)
    if first.kind is effects.EffectKind.HOLDS and not is_used and len(every) > 1:
        return str(every[1])
    if first.kind is effects.EffectKind.HOLDS or is_used:
        limit = limit_of(spec.name)
        return f"in effect{', deprecated' if spec.status == 'yes' else ''}{limit and f'; {limit}'}"
    return str(first)


@cache
def _published() -> frozenset[str]:
    """Read the elements of the published DTD."""
    dtd = files("dro.config.data").joinpath("dro-config.dtd").read_text(encoding="utf-8")
    return frozenset(re.findall(r"<!ELEMENT (\S+)", dtd))


def _element(spec: ElementSpec) -> Iterator[str]:
    yield f"### `<{spec.name}>`"
    yield ""
    yield f"{spec.row.meaning}."
    yield ""
    if spec.parents:
        yield f"* in: {', '.join(f'`<{p}>`' for p in spec.parents)}"
    if spec.children:
        order = ", in this order" if spec.is_ordered and len(spec.children) > 1 else ""
        yield f"* holds{order}: {', '.join(f'`<{c}>`' for c in spec.children)}"
    if spec.name not in _published():
        yield "* an extension: not in the published DTD, which `tnwgd -d` prints"
    yield f"* state: {state(spec)}; reload: {reload_class(spec.name).value}"
    yield ""
    fields = [*([spec.content] if spec.content is not None else []), *spec.attributes.values()]
    if fields:
        yield _row("value", "type", "unit", "permitted", "default", "meaning", "used by")
        yield _row(*["---"] * 7)
        for field in fields:
            shown = f"`{field.attribute}`" if field.attribute else "content"
            meaning = field.meaning if field.attribute else ""
            used_by = str(effect_of(spec.name, field.attribute))
            yield _row(shown, field.type, field.unit, _span(field), _default(field), meaning, used_by)
        yield ""
    yield "```xml"
    yield example(spec.name)
    yield "```"
    yield ""


def _permitted(option: Option) -> str:
    rule = option.rule
    match rule.kind:
        case Kind.INTEGER:
            spans = [str(a) if a == b else f"{a}.." if b >= INT32_MAX else f"{a}..{b}" for a, b in rule.ranges]
            return ", ".join(spans)
        case Kind.WORD:
            return ", ".join(dict.fromkeys(rule.words.values()))
        case _:
            return str(rule.kind.value)


def _um() -> Iterator[str]:
    yield _UM_HEAD
    yield _row("option", "scope", "permitted", "unit", "default", "effect")
    yield _row(*["---"] * 6)
    table = sorted(option_table().values(), key=lambda option: (option.name, option.scope))
    for option in table:
        if option.relevance == "yes" and option.rule.kind is not Kind.API:
            default = "" if isinstance(option.default, tuple) else str(option.default)
            note = _notes()[option.key]
            if is_refused(option.key):
                note = f"not used yet, refused; {note}"
            elif option.key not in used_options():
                note = f"not used yet; {note}"
            elif option.key not in used_options(in_portals=True):
                note = f"used by applications, not by a DRO; {note}"
            yield _row(f"`{option.name}`", option.scope, _permitted(option), option.unit, default, note)
    yield ""
    yield "Accepted and without effect here:"
    yield ""
    others: dict[str, list[str]] = {}
    for option in table:
        if option.relevance != "yes":
            others.setdefault(option.scope, []).append(option.name)
    for scope, names in sorted(others.items()):
        yield f"* {scope}: {', '.join(f'`{name}`' for name in names)}"


def configuration_reference() -> str:
    """The whole reference."""
    lines = [_HEAD, "## Elements", "", _row("element", "state", "reload"), _row("---", "---", "---")]
    for spec in elements().values():
        anchor = f"[`{spec.name}`](#{spec.name})"
        lines.append(_row(anchor, state(spec), reload_class(spec.name).value))
    lines.append("")
    for spec in elements().values():
        lines += _element(spec)
    lines += _um()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(configuration_reference())

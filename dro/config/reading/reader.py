"""Typed reading of XML elements: every problem is reported with file, line, element and remedy, and reading continues.

An `ElementReader` wraps one element; accessors record what was read, and `done()` reports everything else: unknown
names, deprecated elements such as `<topic-purge>` (ignored), repeated ones, and a changed order (a warning, since the
guide's own examples do it). Invalid values are reported and replaced by their default. Every value is kept as text with
its place, for `node()`. Bytes become elements in `xml_file.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lxml import etree

from dro.config.reading.problems import DeprecatedElement, Problems
from dro.config.reading.schema import DRO, XML_SPACE, ElementSpec, Field, elements
from dro.config.reading.xml_file import FILE_ATTRIBUTE, line_of
from dro.errors import ConfigError, LocalProtocolError

_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_SPACE_ATTRIBUTE: Final = "{http://www.w3.org/XML/1998/namespace}space"
_ALIASES: Final = {"lbn-config": "lbm-config", "lbn-license-file": "lbm-license-file", "sourcecemap": "sourcemap"}
GUIDE: Final = "6.17"
"""Release of the guide whose names are known."""
NEWER: Final = frozenset({"route-group"})
"""Names of later releases that somebody may have."""
_VALUE_ALIASES: Final = {("transport-module", "module", "lbn"): "lbm"}
_NO_ATTRIBUTE_CHECK: Final = frozenset({XML_SPACE})


@dataclass(frozen=True, slots=True)
class NodeValue:
    """The text of one value; `line` is 0 when it is the default."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Node:
    """What was read of one element, present or absent: the effective configuration as a tree."""

    name: str
    is_present: bool
    file: str
    line: int
    attributes: tuple[tuple[str, NodeValue], ...]
    content: NodeValue | None
    children: tuple[Node, ...]

    def find(self, *path: str) -> list[Node]:
        """All nodes below this one at a path of element names."""
        found = [self]
        for name in path:
            found = [child for node in found for child in node.children if child.name == name]
        return found

    def text(self, attribute: str = "") -> str:
        """The text of an attribute, or of the content; empty when nobody asked for it."""
        value = dict(self.attributes).get(attribute) if attribute else self.content
        return value.text if value is not None else ""


class ElementReader:
    """One element of the file, or the place where an optional one is absent (all answers are defaults then)."""

    def __init__(
        self,
        element: etree._Element | None,
        name: str,
        file: str,
        problems: Problems,
        line: int = 0,
        parent: str = "",
        table: str = DRO,
    ) -> None:
        self._element = element
        self._parent = parent
        self._file = file if element is None else element.get(FILE_ATTRIBUTE, file)
        self._problems = problems
        self._claimed: set[str] = set()
        self._values: dict[str, NodeValue] = {}
        self._readers: list[ElementReader] = []
        self._single: dict[str, ElementReader] = {}
        self.name = name
        self.line = line if element is None else line_of(element, line)
        self.spec: ElementSpec = elements(table)[name]
        self._children = self._sort_children()

    # --- structure ---------------------------------------------------------------------------------------------

    @property
    def is_present(self) -> bool:
        return self._element is not None

    @property
    def file(self) -> str:
        """The file that this element stands in."""
        return self._file

    def node(self) -> Node:
        """Return what was read so far, here and below."""
        values = dict(self._values)
        content = values.pop("", None)
        children = tuple(reader.node() for reader in self._readers)
        return Node(self.name, self.is_present, self._file, self.line, tuple(values.items()), content, children)

    def has(self, name: str) -> bool:
        """Whether there is a child of that name; nobody is taken to have read it."""
        return name in self._children

    def gives(self, attribute: str) -> bool:
        """Whether the file has that attribute."""
        return self._element is not None and attribute in self._element.attrib

    def child(self, name: str) -> ElementReader:
        """The child of that name, present or absent; always the same."""
        self._claimed.add(name)
        if name not in self._single:
            found = self._children.get(name)
            self._single[name] = self._reader(found[0] if found else None, name)
        return self._single[name]

    def required_child(self, name: str) -> ElementReader:
        """`child`, with an error when it is absent."""
        child = self.child(name)
        if not child.is_present:
            self.error(f"<{name}> is missing", remedy=f"add <{name}>")
        return child

    def children(self, *names: str) -> list[ElementReader]:
        """All children of these names, in file order."""
        self._claimed.update(names)
        if self._element is None:
            return []
        wanted = [(element, name) for name in names for element in self._children.get(name, [])]
        order = {id(element): at for at, element in enumerate(self._element)}
        return [self._reader(element, name) for element, name in sorted(wanted, key=lambda pair: order[id(pair[0])])]

    def ignore(self, name: str, why: str) -> None:
        """Warn about children of that name, if there are any, and read them no further."""
        self._claimed.add(name)
        for element in self._children.get(name, []):
            child = self._reader(element, name)
            child.warning(why)
            child.check_all()

    def check_all(self) -> None:
        """Check names, types and limits of this element and everything below it, without using any of it."""
        for name in self.spec.attributes:
            if name not in _NO_ATTRIBUTE_CHECK:
                self._parsed(self._field(name))
        if self.spec.content is not None:
            self._parsed(self.spec.content)
        self._claimed.update(self.spec.children)
        for child in self.children(*self.spec.children):
            child.check_all()
        self.done()

    def done(self) -> None:
        """Report everything in this element that no accessor asked for."""
        if self._element is None:
            return
        for raw, value in self._element.attrib.items():
            if raw == FILE_ATTRIBUTE:
                continue
            name = XML_SPACE if raw == _SPACE_ATTRIBUTE else str(raw)
            if name not in self.spec.attributes:
                shown = f'<{self.name} {name}="{str(value)[:40]}">'
                known = [n for n in self.spec.attributes if n != XML_SPACE]
                self._report("unknown attribute", self._problems.suggestion(name, known, "remove it"), shown)
        for name, found in self._children.items():
            self._check_children(name, found)
        if self.spec.is_ordered:
            self._check_order()
        if self.spec.content is None and self._raw_text().strip(" \t\r\n"):
            self.error("text is not allowed here", remedy="remove it, or put it into an element")

    # --- values ------------------------------------------------------------------------------------------------

    def value(self, field: Field, kind: object) -> bool | int | str | None:
        """Return what a record keeps of an attribute or of the content, as `bool`, `str`, `int` or `int | None`.

        Words come in their canonical spelling, numbers in the unit of the table; an absent text is empty.
        """
        text = self._parsed(field)
        if kind is bool or kind is str:
            word = field.choices[text] if text is not None and field.type in ("enum", "boolean") else text
            found = self._noted(field, word or None)
            return found in ("yes", "1") if kind is bool else found
        if text is None and kind is not int:
            return None
        return int(self._noted(field, None if text is None else str(int(text))) or 0)

    def text(self, attribute: str = "") -> str:
        """An attribute, or the content, as text: squeezed, or as typed under xml:space="preserve"."""
        return str(self.value(self._field(attribute), str))

    def integer(self, attribute: str = "") -> int:
        """An attribute, or the content, as a number. A required one that is missing has been reported and is 0."""
        value = self.value(self._field(attribute), int)
        assert isinstance(value, int)
        return value

    def effective(self, text: str, attribute: str = "") -> None:
        """Say what a value came to, where a rule beyond the table changed it."""
        self._values[attribute] = NodeValue(text, self._values[attribute].line)

    # --- reporting ---------------------------------------------------------------------------------------------

    def error(self, what: str, *, remedy: str = "") -> None:
        """Report an error of this element."""
        self._report(what, remedy, f"<{self.name}>")

    def warning(self, what: str) -> None:
        """Pass on a warning about this element."""
        self._problems.warning(f"{self._file}:{self.line}: <{self.name}>: {what}")

    def _report(self, what: str, remedy: str, shown: str) -> None:
        self._problems.error(ConfigError(what, file=self._file, line=self.line, element=shown, remedy=remedy))

    # --- inner workings ----------------------------------------------------------------------------------------

    def _reader(self, element: etree._Element | None, name: str) -> ElementReader:
        reader = ElementReader(element, name, self._file, self._problems, self.line, self.name, self.spec.table)
        self._readers.append(reader)
        return reader

    def _noted(self, field: Field, text: str | None) -> str:
        """Return `text`, or the default of the table, and keep it for `node()`."""
        value = field.default_in(self._parent) or "" if text is None else text
        self._values[field.attribute] = NodeValue(value, 0 if text is None else self.line)
        return value

    def _sort_children(self) -> dict[str, list[etree._Element]]:
        """Sort child elements by name; aliases are put under the name that they stand for."""
        found: dict[str, list[etree._Element]] = {}
        for child in self._element if self._element is not None else ():
            if isinstance(child.tag, str):
                name = child.tag
                if name in _ALIASES and _ALIASES[name] in self.spec.children:
                    self._problems.warning(f"{self._file}:{line_of(child)}: <{name}>: taken as <{_ALIASES[name]}>")
                    name = _ALIASES[name]
                found.setdefault(name, []).append(child)
            elif isinstance(child, etree._Entity):
                line = line_of(child, self.line)
                where, remedy = f"<{self.name}>", "write the text itself"
                error = ConfigError("entity reference", file=self._file, line=line, element=where, remedy=remedy)
                self._problems.error(error)
        return found

    def _check_children(self, name: str, found: list[etree._Element]) -> None:
        line = line_of(found[0], self.line)
        if name not in self.spec.children:
            if name in self._claimed:
                return
            if name in NEWER:
                what, remedy = f"not supported: newer than the guide ({GUIDE}) that this release follows", "remove it"
            else:
                what = f"unknown element in <{self.name}>"
                otherwise = f"remove it; names that are newer than the guide ({GUIDE}) are not supported"
                remedy = self._problems.suggestion(name, self.spec.children, otherwise)
            shown = f"<{re.sub('{.*}', '', name)[:60]}>"
            self._problems.error(ConfigError(what, file=self._file, line=line, element=shown, remedy=remedy))
            return
        if len(found) > 1 and not elements(self.spec.table)[name].is_repeatable:
            line = line_of(found[1], line)
            what = f"given {len(found)} times in <{self.name}>, first in line {line_of(found[0])}"
            error = ConfigError(what, file=self._file, line=line, element=f"<{name}>", remedy="keep one")
            self._problems.error(error)
        if name in self._claimed:
            return
        for element in found:
            child = self._reader(element, name)
            if child.spec.status == "no":
                child.error("not supported yet", remedy="remove it")
            else:
                text = DeprecatedElement(f"{self._file}:{child.line}", name)
                self._problems.warning(text, once=f"deprecated <{name}>")
            child.check_all()

    def _check_order(self) -> None:
        place = {name: at for at, name in enumerate(self.spec.children)}
        latest, latest_name = -1, ""
        for element in self._element if self._element is not None else ():
            name = _ALIASES.get(element.tag, element.tag) if isinstance(element.tag, str) else ""
            at = place.get(name, -1)
            if at < 0:
                continue
            if at < latest:
                what = f"should stand before <{latest_name}>"
                error = ConfigError(what, file=self._file, line=line_of(element), element=f"<{name}>")
                self._problems.warning(str(error))
            else:
                latest, latest_name = at, name

    def _field(self, attribute: str) -> Field:
        field = self.spec.attributes.get(attribute) if attribute else self.spec.content
        if field is None:
            raise LocalProtocolError(f"<{self.name}> has no {attribute or 'content'} in the table")
        return field

    def _raw_text(self) -> str:
        """Return the character data of this element, without comments and child elements."""
        if self._element is None:
            return ""
        return (self._element.text or "") + "".join(child.tail or "" for child in self._element)

    def _parsed(self, field: Field) -> str | None:
        """Return the text of a value that fits its type; None when it is absent or (then reported) does not fit."""
        if self._element is None:
            return None
        if field.attribute:
            given = self._element.get(field.attribute)
            if given is None:
                if field.is_required:
                    self.error(f"attribute {field.attribute} is missing", remedy=f'add {field.attribute}="..."')
                return None
            text, shown = given, f'<{self.name} {field.attribute}="{given[:40]}">'
            meant = _VALUE_ALIASES.get((self.name, field.attribute, given))
            if meant is not None:
                self._problems.warning(f"{self._file}:{self.line}: {shown}: taken as {meant}")
                return meant
        else:
            text, shown = self._squeezed(), f"<{self.name}>"
        if field.type in ("integer", "port"):
            text = text.strip(" \t\r\n")
        try:
            field.check(text)
        except ConfigError as e:
            self._report(e.what, e.remedy, shown)
            return None
        return text

    def _squeezed(self) -> str:
        assert self._element is not None
        space = self._element.get(_SPACE_ATTRIBUTE, "default")
        if XML_SPACE in self.spec.attributes and space not in ("default", "preserve"):
            self._report(
                f"{space[:40]!r} is not allowed", "write default or preserve", f'<{self.name} xml:space="{space[:40]}">'
            )
        text = self._raw_text()
        return text if space == "preserve" else _BLANKS.sub(" ", text).strip(" ")

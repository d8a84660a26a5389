"""From bytes to the elements of an XML file: bounded size and depth, no entities, no DTD, no network; XInclude.

Called by the loaders of DRO files and of UM XML files. Files named by `xi:include` are parsed by the same rules and
put in the place of the element; a bounded number of them, to a bounded depth, never in a circle. Elements that came
from another file carry its name in `FILE_ATTRIBUTE`, so that messages name the right place.

Source: DRO guide, chapter 7.2. Guess: relative names count from the including file.
"""

from __future__ import annotations

import re
from typing import Final

from lxml import etree

from dro.config.reading.fetch import beside, read_bytes
from dro.errors import ConfigError

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_ATTRIBUTES: Final = 1000
MAX_INCLUDES: Final = 100
MAX_DEPTH: Final = 10
MAX_TOTAL_BYTES: Final = 4 * MAX_FILE_BYTES
FILE_ATTRIBUTE: Final = "{urn:open-dro}file"
_INCLUDE: Final = re.compile(r"\{http://www\.w3\.org/200[13]/XInclude\}include")
_HINT_FOR_PROGRAMMERS: Final = re.compile(r",? (?:use XML_PARSE_HUGE option|see xml\w+\.?)")
_REMEDIES: Final = {
    "Excessive depth": "put fewer elements into each other",
    "entity": "write the text itself, without entities",
}
_BASE_ATTRIBUTE: Final = "{http://www.w3.org/XML/1998/namespace}base"


def read_xml_file(path: str) -> etree._Element:
    """The root element of a file, with everything that it includes. Raises: ConfigError."""
    return parse_xml(read_bytes(path, MAX_FILE_BYTES, "the configuration file"), path)


def parse_xml(raw: bytes, file: str) -> etree._Element:
    """The root element of a document in hand, with what it includes; `file` names it in messages.

    Raises: ConfigError.
    """
    root = _parse(raw, file)
    return _Includer(file, len(raw)).resolve(root)


def line_of(element: etree._Element, otherwise: int = 0) -> int:
    """The line in which an element starts."""
    line = element.sourceline
    return line if isinstance(line, int) else otherwise


def _parse(raw: bytes, file: str) -> etree._Element:
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"larger than {MAX_FILE_BYTES} bytes", file=file, remedy="is this a configuration file?")
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, attribute_defaults=False,
        huge_tree=False,
    )  # fmt: skip
    try:
        root = etree.fromstring(raw, parser)
    except etree.XMLSyntaxError as e:
        why = _HINT_FOR_PROGRAMMERS.sub("", e.msg or "syntax error")
        remedy = next((remedy for part, remedy in _REMEDIES.items() if part in why), "correct the XML")
        raise ConfigError(f"not well-formed XML: {why[:200]}", file=file, line=e.lineno or 1, remedy=remedy) from e
    except (ValueError, LookupError) as e:  # encodings that the parser does not know
        raise ConfigError(f"not readable as XML: {str(e)[:200]}", file=file, remedy="save the file as UTF-8") from e
    declared = root.getroottree().docinfo.internalDTD
    if declared is not None and any(declared.iterentities()):  # type: ignore[union-attr]  # missing from the stubs
        raise ConfigError("declares entities, which are not allowed", file=file, line=1, remedy="write the text itself")
    for element in root.iter(etree.Element):
        if (count := len(element.attrib)) > MAX_ATTRIBUTES:  # reading them takes time with the square of their number
            what = f"<{str(element.tag)[:60]}> has {count} attributes, at most {MAX_ATTRIBUTES} are read"
            raise ConfigError(what, file=file, line=line_of(element, 1), remedy="is this a configuration file?")
        element.attrib.pop(FILE_ATTRIBUTE, "")
    return root


class _Includer:
    """Puts included files in place of their `xi:include`; lives for one document."""

    def __init__(self, file: str, size: int) -> None:
        self._file = file
        self._bytes = size
        self._count = 0

    def resolve(self, root: etree._Element) -> etree._Element:
        """Include files, and those that they include. Raises: ConfigError."""
        return self._resolve(root, (self._file,))

    def _resolve(self, root: etree._Element, files: tuple[str, ...]) -> etree._Element:
        wanted = [e for e in root.iter() if isinstance(e.tag, str) and _INCLUDE.fullmatch(e.tag)]
        for element in wanted:
            if element is not root and element.getparent() is None:
                continue  # went with an include around it
            included = self._included(element, files)
            parent = element.getparent()
            if parent is None:
                root = included
            else:
                included.tail = element.tail
                parent.replace(element, included)
        return root

    def _included(self, element: etree._Element, files: tuple[str, ...]) -> etree._Element:
        def refuse(what: str, remedy: str) -> ConfigError:
            return ConfigError(what, file=files[-1], line=line_of(element), element="<include>", remedy=remedy)

        href = element.get("href", "").strip()
        if not href:
            raise refuse("attribute href is missing", 'add href="..."')
        if element.get("parse", "xml") != "xml" or "xpointer" in element.attrib:
            raise refuse("only whole XML files can be included", "remove the attributes parse and xpointer")
        name = beside(href, files[-1])
        if name in files:
            raise refuse(f"{href[:200]!r} includes itself", "remove the circle")
        self._count += 1
        if len(files) > MAX_DEPTH or self._count > MAX_INCLUDES:
            limits = f"at most {MAX_DEPTH} deep and {MAX_INCLUDES} in all"
            raise refuse("too many includes", limits)
        try:
            raw = read_bytes(name, MAX_FILE_BYTES, "the included file")
        except ConfigError as e:
            raise refuse(str(e), "") from e
        self._bytes += len(raw)
        if self._bytes > MAX_TOTAL_BYTES:
            raise refuse(f"more than {MAX_TOTAL_BYTES} bytes with all includes", "include less")
        root = self._resolve(_parse(raw, name), (*files, name))
        root.attrib.pop(_BASE_ATTRIBUTE, "")
        if FILE_ATTRIBUTE not in root.attrib:
            root.set(FILE_ATTRIBUTE, name)
        for child in root.iterdescendants():
            if isinstance(child.tag, str):
                child.attrib.pop(_BASE_ATTRIBUTE, "")
        return root

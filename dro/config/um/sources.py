"""The UM options of a portal: from its files, its attributes and the XML file of the daemon.

`Reading` is the state of one load; the readers of elements pass it on. Mistakes in UM files are warnings, as the guide
says, but for options that protect or choose the TRD; a file that cannot be read or does not fit its DTD, and mistakes
in the DRO file itself, are errors, since the portal would otherwise join the default group.

Source: DRO guide, chapter 4.4 and elements `lbm-config`, `lbm-attributes`, `xml-config`; UM configuration file rules,
sections 2, 4.6 and 5.1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dro.config.reading.fetch import is_url
from dro.config.reading.problems import Problems
from dro.config.reading.reader import ElementReader
from dro.config.um.honoured import empty_ranges, must_count
from dro.config.um.interfaces import Lookup
from dro.config.um.layers import ContextOptions, Layer, PlainLayer, XmlLayer, find_application, overridden
from dro.config.um.options import DEFAULTS, Parsed, UmOptions, option_table, parse_setting, scopes_of
from dro.config.um.program import APPID_VARIABLE, XML_FILE_VARIABLE, environment_options
from dro.config.um.text_file import is_xml, parse_um_lines, read_text
from dro.config.um.xml_document import Application, UmDocument, parse_um_xml
from dro.errors import ConfigError, HostError
from dro.start_folder import shown_folder


class ValuePlace(Protocol):
    """Where a value was written, and where problems with it go."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    def error(self, what: str, *, remedy: str = "") -> None: ...
    def warning(self, what: str) -> None: ...


@dataclass(slots=True)
class Reading:
    """One load: where problems go, whom to ask for names and interfaces, and what was found so far."""

    problems: Problems
    lookup: Lookup
    environ: Mapping[str, str]
    daemon_name: str = ""
    document: UmDocument | None = None
    application: Application | None = None
    base: UmOptions = field(default=DEFAULTS)

    def read_environment(self) -> None:
        """Put the options of the environment into `base`."""
        if self.environ.get(XML_FILE_VARIABLE):
            self.problems.warning(f"{XML_FILE_VARIABLE}: has no effect in a DRO, <xml-config> names the file")
        if self.environ.get(APPID_VARIABLE):
            self.problems.warning(f"{APPID_VARIABLE}: has no effect in a DRO, its portals have ids of their own")
        given = {name: value for name, value in self.environ.items() if name != APPID_VARIABLE}
        self.base = environment_options(given, self.problems, self.lookup)

    def read_document(self, path: str) -> tuple[UmDocument, Application] | None:
        """A UM XML file and the application of this DRO in it; None after an error."""
        try:
            text = read_text(path)
            document = parse_um_xml(text.encode(), path, self.problems, self.lookup)
            return document, find_application(document, self.daemon_name, self.environ)
        except ConfigError as e:
            self.problems.error(e)
            return None

    def read_xml_config(self, path: str, el: ElementReader) -> None:
        """Read the file of `<xml-config>`."""
        if not os.path.exists(path) and not is_url(path):
            el.error(f"file {path!r} does not exist", remedy=f"looked in {shown_folder()} and beside {el.file}")
            return
        found = self.read_document(path)
        if found is not None:
            self.document, self.application = found


@dataclass(frozen=True, slots=True)
class PortalUm:
    """The options of a portal: of its two contexts, and `um`, both in one.

    `um` has those of the receiving context, and in the scope `source` those of the sending one.
    """

    paths: tuple[str, ...]
    sending: ContextOptions
    receiving: ContextOptions
    um: UmOptions


def read_portal_um(el: ElementReader, reading: Reading, source_name: str = "", receiver_name: str = "") -> PortalUm:
    """`<lbm-config>`, over it `<lbm-attributes>`, over both the XML file of the daemon."""
    paths, base, file_document = _read_lbm_config(el.child("lbm-config"), reading)
    attributes, elements = _read_attributes(el, reading)
    own_name = base.with_parsed(attributes.settings).get_str("context", "context_name")

    def options(name: str) -> ContextOptions:
        layers: list[Layer] = []
        if file_document is not None:
            layers.append(XmlLayer(*file_document, name or own_name))
        if attributes.settings:
            layers.append(attributes)
        if reading.document is not None and reading.application is not None:
            layers.append(XmlLayer(reading.document, reading.application, name or own_name))
        return ContextOptions(base, tuple(layers))

    sending, receiving = options(source_name), options(receiver_name)
    try:
        um = merged_um(sending.context(), receiving.context())
    except ConfigError as e:
        reading.problems.error(e)
        return PortalUm(paths, sending, receiving, DEFAULTS)
    for error in (*empty_ranges(sending.context()), *empty_ranges(receiving.context())):
        reading.problems.error(error)
    for key in overridden(attributes, um):
        option = elements[key]
        option.warning(f"{key[0]} {key[1]}: has no effect, {um.origin(key) or 'another layer'} says otherwise")
    transport = ("source", "transport")
    if any(um.origin(transport) == "fixed by the DRO" for um in (sending.context(), receiving.context())):
        el.warning("proxy sources cannot use LBT-SMX or LBT-RDMA, TCP is used")
    return PortalUm(paths, sending, receiving, um)


def merged_um(sending: UmOptions, receiving: UmOptions) -> UmOptions:
    """One set of options for a portal whose contexts share a socket: see `PortalUm`."""
    explicit = {key: value for key, value in receiving.explicit.items() if key[0] != "source"}
    explicit |= {key: value for key, value in sending.explicit.items() if key[0] == "source"}
    origins = {key: (sending if key[0] == "source" else receiving).origin(key) for key in explicit}
    return UmOptions(explicit, origins)


def _read_lbm_config(
    el: ElementReader, reading: Reading
) -> tuple[tuple[str, ...], UmOptions, tuple[UmDocument, Application] | None]:
    """Return the path that was opened; options of a plain-text file over the base, or the document of an XML file."""
    written = el.text()
    el.done()
    if not written:
        return (), reading.base, None
    path = find_um_file(written, el.file, el)
    el.effective(path)
    if not os.path.exists(path) and not is_url(path):
        el.error(f"file {written!r} does not exist", remedy=f"looked in {shown_folder()} and beside {el.file}")
        return (path,), reading.base, None
    try:
        text = read_text(path)
    except ConfigError as e:
        reading.problems.error(e)
        return (path,), reading.base, None
    if is_xml(text):
        return (path,), reading.base, reading.read_document(path)
    return (path,), parse_um_lines(text, path, reading.problems, reading.lookup, reading.base), None


def _read_attributes(el: ElementReader, reading: Reading) -> tuple[PlainLayer, dict[tuple[str, str], ElementReader]]:
    """Read `<lbm-attributes>`: its settings, and the element of each."""
    settings: list[Parsed] = []
    elements: dict[tuple[str, str], ElementReader] = {}
    if "lbm-attributes" not in el.spec.children:
        return PlainLayer(()), elements
    attributes = el.child("lbm-attributes")
    written = attributes.children("option")
    if attributes.is_present and not written:
        attributes.error("<option> is missing", remedy="add <option>, or remove it")
    for option in written:
        scope, name, text = option.text("scope"), option.text("name"), option.text("value")
        option.done()
        if not (scope and name and text):
            continue
        try:
            setting, notice = parse_setting(scope, name, text, reading.lookup, f"{option.file}:{option.line}")
        except HostError as e:
            error = HostError(e.what, file=option.file, line=option.line, element=e.element, remedy=e.remedy)
            reading.problems.setting_ignored(error, must_count=must_count(name, e))
            continue
        except ConfigError as e:
            names = [] if scopes_of(name) else [n for s, n in option_table() if s == scope]
            remedy = reading.problems.suggestion(name, names, e.remedy) if names else e.remedy
            option.error(f"{e.element}: {e.what}", remedy=remedy)
            continue
        if notice:
            option.warning(f"{scope} {name}: {notice}")
        settings.append(setting)
        elements[setting.option.key] = option
    attributes.done()
    return PlainLayer(tuple(settings)), elements


def find_um_file(written: str, file: str, place: ValuePlace) -> str:
    """The path to open for a name in `<lbm-config>`: relative names count from the working directory of the process.

    Guess: when nothing is there, the file of that name beside the DRO file is taken, with a warning, so that a DRO
    can be started from anywhere.
    """
    if is_url(written) or os.path.isabs(written) or os.path.exists(written):
        return written
    beside = Path(file).parent / written
    if beside.exists():
        place.warning(f"{written!r} is not in the working directory, using {beside}")
        return str(beside)
    return written

"""The UM options of a portal: what its files, its attributes and the XML file of the daemon come to.

`Reading` is the state of one load; the readers of elements pass it on. Mistakes inside UM files are warnings, as the
guide says; a file that cannot be read or does not fit its DTD, and mistakes in the DRO file itself, are errors, since
the portal would otherwise join the default group.

Source: DRO guide, chapter 4.4 and elements `lbm-config`, `lbm-attributes`, `xml-config`; UM configuration file rules,
sections 2, 4.6 and 5.1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dro.config.fetch import is_url
from dro.config.interfaces import Lookup
from dro.config.lbm import is_xml, parse_um_lines, read_text
from dro.config.options import DEFAULTS, Parsed, UmOptions, find_option, option_table, scopes_of
from dro.config.problems import Problems
from dro.config.reader import ElementReader
from dro.config.rules import Value
from dro.config.um_layers import (
    ContextOptions,
    Layer,
    PlainLayer,
    XmlLayer,
    find_application,
    overridden,
)
from dro.config.um_xml import Application, UmDocument, parse_um_xml
from dro.errors import ConfigError

DEFAULT_FILE_VARIABLE: Final = "LBM_DEFAULT_CONFIG_FILE"
_MONITOR_VARIABLES: Final = {
    "LBM_MONITOR_INTERVAL": "monitor_interval",
    "LBM_MONITOR_TRANSPORT": "monitor_transport",
    "LBM_MONITOR_TRANSPORT_OPTS": "monitor_transport_opts",
    "LBM_MONITOR_FORMAT": "monitor_format",
    "LBM_MONITOR_FORMAT_OPTS": "monitor_format_opts",
    "LBM_MONITOR_APPID": "monitor_appid",
}


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
        for variable, name in _MONITOR_VARIABLES.items():
            value = self.environ.get(variable, "")
            for scope in ("context", "event_queue") if value else ():
                try:
                    self.base = self.base.with_(scope, name, value, lookup=self.lookup, origin=variable)
                except ConfigError as e:
                    self.problems.warning(f"{variable}: {e.what}, ignored")
        path = self.environ.get(DEFAULT_FILE_VARIABLE, "")
        if path:
            try:
                text = read_text(path)
            except ConfigError as e:
                self.problems.error(e)
                return
            self.base = self.base.merged(parse_um_lines(text, path, self.problems, self.lookup))

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
            el.error(f"file {path!r} does not exist", remedy=f"looked in {os.getcwd()} and beside {el.file}")
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
    attributes, elements = _read_attributes(el, reading, base)
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
        um = both(sending.context(), receiving.context())
    except ConfigError as e:
        reading.problems.error(e)
        return PortalUm(paths, sending, receiving, DEFAULTS)
    for key in overridden(attributes, um):
        option = elements[key]
        option.warning(f"{key[0]} {key[1]}: has no effect, {um.origin(key) or 'another layer'} says otherwise")
    transport = ("source", "transport")
    if any(um.origin(transport) == "fixed by the DRO" for um in (sending.context(), receiving.context())):
        el.warning("proxy sources cannot use LBT-SMX or LBT-RDMA, TCP is used")
    return PortalUm(paths, sending, receiving, um)


def both(sending: UmOptions, receiving: UmOptions) -> UmOptions:
    """One set of options for a portal whose contexts share a socket: see `PortalUm`."""
    explicit = {key: value for key, value in receiving.explicit.items() if key[0] != "source"}
    explicit |= {key: value for key, value in sending.explicit.items() if key[0] == "source"}
    origins = {key: (sending if key[0] == "source" else receiving).origin(key) for key in explicit}
    return UmOptions(explicit, origins)


def _read_lbm_config(
    el: ElementReader, reading: Reading
) -> tuple[tuple[str, ...], UmOptions, tuple[UmDocument, Application] | None]:
    """The path that was opened; options of a plain-text file over the base, or the document of an XML file."""
    written = el.content_text()
    el.done()
    if not written:
        if el.is_present:
            el.error("is empty", remedy="write the name of a UM configuration file, or remove it")
        return (), reading.base, None
    path = find_um_file(written, el.file, el)
    el.effective(path)
    if not os.path.exists(path) and not is_url(path):
        el.error(f"file {written!r} does not exist", remedy=f"looked in {os.getcwd()} and beside {el.file}")
        return (path,), reading.base, None
    try:
        text = read_text(path)
    except ConfigError as e:
        reading.problems.error(e)
        return (path,), reading.base, None
    if is_xml(text):
        return (path,), reading.base, reading.read_document(path)
    lines = parse_um_lines(text, path, reading.problems, reading.lookup)
    return (path,), reading.base.merged(lines), None


def _read_attributes(
    el: ElementReader, reading: Reading, base: UmOptions
) -> tuple[PlainLayer, dict[tuple[str, str], ElementReader]]:
    """`<lbm-attributes>`: its settings, and the element of each."""
    settings: list[Parsed] = []
    elements: dict[tuple[str, str], ElementReader] = {}
    if "lbm-attributes" not in el.spec.children:
        return PlainLayer(()), elements
    attributes = el.child("lbm-attributes")
    written = attributes.children("option")
    if attributes.is_present and not written:
        attributes.error("<option> is missing", remedy="add <option>, or remove it")
    for option in written:
        scope, name, text = option.choice("scope"), option.string("name"), option.string("value")
        option.done()
        if not (scope and name and text):
            continue
        known = find_option(scope, name)
        try:
            base.with_(scope, name, text, lookup=reading.lookup)  # for the errors, also of what is not known
        except ConfigError as e:
            names = [] if known is not None or scopes_of(name) else [n for s, n in option_table() if s == scope]
            remedy = reading.problems.suggestion(name, names, e.remedy) if names else e.remedy
            option.error(f"{e.element}: {e.what}", remedy=remedy)
            continue
        assert known is not None
        value: Value = known.rule.parse(text, reading.lookup)[0]
        settings.append(Parsed(known, value, f"{option.file}:{option.line}"))
        elements[known.key] = option
    attributes.done()
    return PlainLayer(tuple(settings)), elements


def find_um_file(written: str, file: str, el: ElementReader) -> str:
    """The path to open for a name in `<lbm-config>`: relative names count from the working directory of the process.

    Guess: when nothing is there, the file of that name beside the DRO file is taken, with a warning, so that a DRO
    can be started from anywhere.
    """
    if is_url(written) or os.path.isabs(written) or os.path.exists(written):
        return written
    beside = Path(file).parent / written
    if beside.exists():
        el.warning(f"{written!r} is not in the working directory, using {beside}")
        return str(beside)
    return written

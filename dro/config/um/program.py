"""The UM options of a program other than a DRO: from its environment and its files of either kind.

Later plain-text files override earlier ones, and all of them override XML files; what XML files forbid is forbidden
wherever it is set. A program has one application name for all its XML files.

Source: UM configuration file rules, sections 2, 4.2 and 5.2.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dro.config.reading.problems import Problems, Warn
from dro.config.um.interfaces import SYSTEM, Lookup
from dro.config.um.layers import APPLICATION_VARIABLE, Asked, XmlLayer
from dro.config.um.options import DEFAULTS, UmOptions
from dro.config.um.text_file import is_xml, parse_um_lines, read_text
from dro.config.um.xml_document import Application, UmDocument, parse_um_xml
from dro.errors import ConfigError

DEFAULT_FILE_VARIABLE: Final = "LBM_DEFAULT_CONFIG_FILE"
XML_FILE_VARIABLE: Final = "LBM_XML_CONFIG_FILENAME"
APPID_VARIABLE: Final = "LBM_MONITOR_APPID"
_SERVER_VARIABLE: Final = "LBM_UMM_INFO"
_PORTS_VARIABLE: Final = "LBM_USE_ORIG_DEFAULT_PORTS"
_MONITOR_VARIABLES: Final = {
    "LBM_MONITOR_INTERVAL": "monitor_interval",
    "LBM_MONITOR_TRANSPORT": "monitor_transport",
    "LBM_MONITOR_TRANSPORT_OPTS": "monitor_transport_opts",
    "LBM_MONITOR_FORMAT": "monitor_format",
    "LBM_MONITOR_FORMAT_OPTS": "monitor_format_opts",
    APPID_VARIABLE: "monitor_appid",
}
StrPath = str | os.PathLike[str]


def environment_options(environ: Mapping[str, str], problems: Problems, lookup: Lookup) -> UmOptions:
    """Return what the variables of the UM library set, for a DRO and for other programs."""
    options = DEFAULTS
    if environ.get(_SERVER_VARIABLE):
        remedy = f"unset it, and name a file in {DEFAULT_FILE_VARIABLE}"
        problems.error(ConfigError("configuration servers are not supported", element=_SERVER_VARIABLE, remedy=remedy))
    if environ.get(_PORTS_VARIABLE, "0") != "0":
        problems.warning(f"{_PORTS_VARIABLE}: has no effect, default ports are those since version 3.3")
    for variable, name in _MONITOR_VARIABLES.items():
        value = environ.get(variable, "")
        try:
            options = options.with_("context", name, value, lookup=lookup, origin=variable) if value else options
        except ConfigError as e:
            problems.warning(f"{variable}: {e.what}, ignored")
    path = environ.get(DEFAULT_FILE_VARIABLE, "")
    if path:
        try:
            options = options.merged(parse_um_lines(read_text(path), path, problems, lookup))
        except ConfigError as e:
            problems.error(e)
    return options


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """`plain`: what plain-text files and the program have set. `documents`: its XML files, later ones above."""

    plain: UmOptions = DEFAULTS
    documents: tuple[tuple[UmDocument, Application], ...] = ()

    def of(self, asked: Asked, own: UmOptions = DEFAULTS) -> UmOptions:
        """The options of one object, with those of its context; `own` are set by the program for this one.

        Raises: ConfigError when the object, or one of its values, is not permitted.
        """
        over = self.plain.merged(own)
        made = DEFAULTS
        for document, application in self.documents:
            layer = XmlLayer(document, application, over.get_str("context", "context_name"))
            made = layer.apply(made, asked, over)
        return made.merged(over)


def load_program(
    files: Iterable[StrPath],
    warn: Warn,
    *,
    application: str = "",
    environ: Mapping[str, str] = os.environ,
    lookup: Lookup = SYSTEM,
) -> ProgramOptions:
    """Read the environment and the files. `application`: its name in XML files, else that of the environment.

    Raises: ConfigErrors with all bad lines, and for files that cannot be read.
    """
    problems = Problems(warn, strict=True)
    name = application or environ.get(APPLICATION_VARIABLE, "")
    plain = environment_options(environ, problems, lookup)
    documents: list[tuple[UmDocument, Application]] = []
    xml_file = environ.get(XML_FILE_VARIABLE, "")
    for path in (*([xml_file] if xml_file else ()), *(os.fspath(file) for file in files)):
        try:
            text = read_text(path)
            if is_xml(text):
                document = parse_um_xml(text.encode(), path, problems, lookup)
                documents.append((document, _application(document, name)))
            else:
                plain = plain.merged(parse_um_lines(text, path, problems, lookup, plain))
        except ConfigError as e:
            problems.error(e)
    problems.raise_if_any()
    return ProgramOptions(plain, tuple(documents))


def _application(document: UmDocument, name: str) -> Application:
    """Find the application of exactly that name; a program without a name has the one without. Raises: ConfigError."""
    for application in document.applications:
        if application.name == name:
            return application
    if not document.applications:
        remedy = "add <application> with what the program is to use"
        raise ConfigError("there is no <application> in the file", file=document.file, line=1, remedy=remedy)
    have = ", ".join(repr(application.name) for application in document.applications if application.name) or "none"
    what = f"no application named {name!r}" if name else "no application without a name"
    remedy = f"set {APPLICATION_VARIABLE} to one of its names: {have}"
    raise ConfigError(what, file=document.file, line=1, remedy=remedy)

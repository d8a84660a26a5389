"""Options of the client library as an application holds them: files, settings by name, settings of one object.

Wraps `UmOptions`. Source: UM configuration file rules; client library notes, section 1.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from dro.config.um.honoured import check, names_protection, without_effect
from dro.config.um.layers import Asked
from dro.config.um.options import DEFAULTS, UmOptions, find_option
from dro.config.um.program import ProgramOptions, StrPath, load_program
from dro.config.um.text_file import parse_um_text
from dro.config.um.xml_document import Application, UmDocument
from dro.log.events import LogEvent, configuration_warning

log = logging.getLogger(__name__)

OptionValue = int | str


@dataclass(frozen=True, slots=True)
class Config:
    """Immutable; every change is a new one, and names what it sets without effect.

    `options` are those of plain-text files and of the program itself; XML files fill in the rest for each object.
    Raises: ConfigErrors for options that protect and cannot be honoured, and for others that must stop a program.
    """

    options: UmOptions = field(default_factory=UmOptions)
    documents: tuple[tuple[UmDocument, Application], ...] = ()

    def __post_init__(self) -> None:
        check(self.options)

    @classmethod
    def load(cls, *files: StrPath, application: str = "") -> Config:
        """The environment, and configuration files of either kind; later ones win, plain-text ones over XML.

        `application` is the name in XML files, by default that of `LBM_XML_CONFIG_APPNAME`.
        Raises: ConfigError with all bad lines.
        """
        found = load_program(files, configuration_warning(log), application=application)
        name_without_effect(found.plain)
        return cls(found.plain, found.documents)

    @classmethod
    def parse(cls, text: str) -> Config:
        """The lines of a plain-text file in hand, and nothing of the environment. Raises: ConfigError."""
        options = parse_um_text(text, configuration_warning(log))
        name_without_effect(options)
        return cls(options)

    def with_(self, scope: str, name: str, value: OptionValue) -> Config:
        """Return it with one more setting. Raises: ConfigError."""
        name_without_effect(UmOptions().with_(scope, name, value))
        return replace(self, options=self.options.with_(scope, name, value))

    def of(self, asked: Asked, own: UmOptions = DEFAULTS) -> UmOptions:
        """The options of one object with those of its context. Raises: ConfigError, also when it is not permitted."""
        made = ProgramOptions(self.options, self.documents).of(asked, own)
        check(made, is_whole=True)
        return made


def name_without_effect(options: UmOptions) -> None:
    """Log the options that are set and do nothing."""
    to_come, outside = without_effect(options)
    if to_come:
        log.warning(LogEvent.CONFIG_WARNING, to_come)
    if outside:
        log.info(LogEvent.CONFIG_WARNING, outside)


def object_options(scope: str, settings: dict[str, OptionValue]) -> UmOptions:
    """Settings of one object by bare option name; `scope` first, else that of the context.

    Raises: ConfigError, also for options that must stop a program.
    """
    options = UmOptions()
    for name, value in settings.items():
        is_of_context = find_option(scope, name) is None and find_option("context", name) is not None
        options = options.with_("context" if is_of_context else scope, name, value)
        if names_protection(name):  # sessions are shared: what one object asks for could be sent in plain text
            what = f"it protects all connections of a context, and is no setting of one {scope}"
            raise options.error(("context", name), what, "set it in the configuration of the context")
    check(options)
    return options

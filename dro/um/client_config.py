"""Options of the client library as an application holds them: files, settings by name, settings of one object.

Wraps `UmOptions`. Source: UM configuration file rules; client library notes, section 1.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from dro.config.lbm import StrPath, load_um, parse_um_text
from dro.config.options import UmOptions, find_option, scopes_of
from dro.errors import ConfigError

log = logging.getLogger(__name__)

OptionValue = int | str


def _warn(text: str) -> None:
    log.warning(text)


@dataclass(frozen=True, slots=True)
class Config:
    """Immutable; every change is a new one."""

    options: UmOptions = field(default_factory=UmOptions)

    @classmethod
    def load(cls, *files: StrPath) -> Config:
        """Plain-text configuration files, later ones win. Raises: ConfigError with all bad lines."""
        return cls(load_um(files, _warn))

    @classmethod
    def parse(cls, text: str) -> Config:
        """The same for text in hand. Raises: ConfigError."""
        return cls(parse_um_text(text, _warn))

    def with_(self, scope: str, name: str, value: OptionValue) -> Config:
        """With one more setting. Raises: ConfigError."""
        return Config(self.options.with_(scope, name, value))


def object_options(scope: str, settings: dict[str, OptionValue]) -> UmOptions:
    """Settings of one object by bare option name; `scope` first, else the one scope that has the name.

    Raises: ConfigError.
    """
    options = UmOptions()
    for name, value in settings.items():
        chosen = scope
        if find_option(scope, name) is None:
            scopes = [other for other in scopes_of(name) if other == "context"]
            if not scopes:
                where = ", ".join(scopes_of(name))
                remedy = f"it exists in scope {where}" if where else "see the list of UM options"
                raise ConfigError("unknown UM option", element=f"{scope} {name}", remedy=remedy)
            chosen = scopes[0]
        options = options.with_(chosen, name, value)
    return options

"""UM options from several settings at once."""

from __future__ import annotations

from collections.abc import Iterable

from dro.config.um.interfaces import SYSTEM, Lookup
from dro.config.um.options import UmOptions


def with_all(
    options: UmOptions, settings: Iterable[tuple[str, str, int | str]], *, lookup: Lookup = SYSTEM
) -> UmOptions:
    """`with_` for several settings, in order. Raises: ConfigError."""
    for scope, name, value in settings:
        options = options.with_(scope, name, value, lookup=lookup)
    return options

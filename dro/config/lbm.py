"""UM plain-text configuration files: `scope option value` lines, layered by reading several files in order.

A bad line never stops the reading. What becomes of it depends on who reads: a DRO warns and goes on with the old
value, a program gets all bad lines as one `ConfigErrors`. Unknown options are a warning for both, one for each
option. A file that cannot be read is an error for both: a portal without its file would join the default group.

Sources: UM configuration file rules, section 3; DRO guide, element `lbm-config`. Guess: UTF-8, byte order mark and
CR LF accepted; the value is the rest of the line and may hold inner blanks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from dro.config.fetch import read_bytes
from dro.config.interfaces import SYSTEM, Lookup
from dro.config.options import (
    DEFAULTS,
    SCOPES,
    Option,
    UmOptions,
    apply_setting,
    find_option,
    option_table,
    scopes_of,
)
from dro.config.problems import Problems, Warn
from dro.errors import ConfigError

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
StrPath = str | os.PathLike[str]


def load_um(
    paths: Iterable[StrPath],
    warn: Warn,
    *,
    base: UmOptions = DEFAULTS,
    strict: bool = True,
    lookup: Lookup = SYSTEM,
) -> UmOptions:
    """The options of `base`, overwritten by the files in order.

    With `strict`, bad lines are raised together as ConfigErrors; without, each is passed to `warn` and skipped.
    Raises: ConfigErrors, in both cases for a file that is missing or unreadable.
    """
    problems = Problems(warn)
    options = base
    for path in paths:
        options = read_um_file(path, options, problems, strict=strict, lookup=lookup)
    problems.raise_if_any()
    return options


def read_um_file(
    path: StrPath, base: UmOptions, problems: Problems, *, strict: bool = True, lookup: Lookup = SYSTEM
) -> UmOptions:
    """`load_um` for one file of a larger load, reporting into its `problems` instead of raising."""
    name = os.fspath(path)
    try:
        text = read_text(name)
    except ConfigError as e:
        problems.error(e)
        return base
    if is_xml(text):
        problems.error(
            ConfigError("XML UM configuration files are not supported yet", file=name, line=1,
                        remedy="write the options as a plain-text file")
        )  # fmt: skip
        return base
    return _Parser(name, base, problems, strict, lookup).parse(text)


def is_xml(text: str) -> bool:
    """Whether a UM file is of the XML kind."""
    return text.lstrip().startswith("<")


def parse_um_lines(text: str, file: str, problems: Problems, lookup: Lookup) -> UmOptions:
    """The options of a plain-text file in hand, for a DRO: bad lines are warnings."""
    return _Parser(file, DEFAULTS, problems, False, lookup).parse(text)


def parse_um_text(
    text: str,
    warn: Warn,
    *,
    file: str = "options",
    base: UmOptions = DEFAULTS,
    strict: bool = True,
    lookup: Lookup = SYSTEM,
) -> UmOptions:
    """`load_um` for text in hand; `file` names it in messages. Raises: ConfigErrors."""
    problems = Problems(warn)
    options = _Parser(file, base, problems, strict, lookup).parse(text)
    problems.raise_if_any()
    return options


def read_text(name: str) -> str:
    """The text of a file or address. Raises: ConfigError."""
    raw = read_bytes(name, MAX_FILE_BYTES, "the UM configuration file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise ConfigError("not UTF-8 text", file=name, line=line, remedy="save the file as UTF-8") from e


class _Parser:
    """Reads the lines of one file into `explicit`."""

    def __init__(self, file: str, base: UmOptions, problems: Problems, strict: bool, lookup: Lookup) -> None:
        self._file = file
        self._explicit = dict(base.explicit)
        self._origins = dict(base.origins)
        self._problems = problems
        self._strict = strict
        self._lookup = lookup

    def parse(self, text: str) -> UmOptions:
        for number, line in enumerate(text.split("\n"), start=1):
            content = line.partition("#")[0].strip()
            if content:
                self._line(number, content)
        return UmOptions(self._explicit, self._origins)

    def _line(self, number: int, content: str) -> None:
        fields = content.split(None, 2)
        if len(fields) < 3:
            self._bad(
                number, ConfigError(f"{content[:80]!r} has fewer than three fields", remedy="write: scope option value")
            )
            return
        scope, name, value = fields[0].lower(), fields[1].lower(), fields[2]
        if scope not in SCOPES:
            remedy = self._problems.suggestion(scope, SCOPES, "scopes are " + ", ".join(SCOPES))
            self._bad(number, ConfigError(f"unknown scope {fields[0][:80]!r}", remedy=remedy))
            return
        option = find_option(scope, name)
        if option is None:
            self._unknown(number, scope, name)
            return
        try:
            notice = apply_setting(self._explicit, option, value, self._lookup)
        except ConfigError as e:
            self._bad(number, e)
            return
        for key in (option.key, *option.sets_also):
            self._origins[key] = f"{self._file}:{number}"
        self._notices(number, option, notice)

    def _unknown(self, number: int, scope: str, name: str) -> None:
        where = scopes_of(name)
        if where:
            what, remedy = "is not an option of this scope", "it exists in scope " + ", ".join(where)
        else:
            known = [key[1] for key in option_table() if key[0] == scope]
            what, remedy = "is not a known UM option", self._problems.suggestion(name, known, "remove the line")
        error = ConfigError(
            f"{what}, ignored", file=self._file, line=number, element=f"{scope} {name[:80]}", remedy=remedy
        )
        self._problems.warning(str(error), once=f"unknown {scope} {name}")

    def _notices(self, number: int, option: Option, notice: str) -> None:
        place, subject = f"{self._file}:{number}", f"{option.scope} {option.name}"
        if notice:
            self._problems.warning(f"{place}: {subject}: {notice}")
        if option.is_deprecated:
            self._problems.warning(f"{place}: {subject}: deprecated", once=f"deprecated {subject}")
        elif option.relevance == "no" and self._explicit[option.key] != option.default:
            text = f"{place}: {subject}: has no effect in this implementation"
            self._problems.warning(text, once=f"no effect {subject}")

    def _bad(self, number: int, e: ConfigError) -> None:
        error = ConfigError(e.what, file=self._file, line=number, element=e.element, remedy=e.remedy)
        if self._strict:
            self._problems.error(error)
        else:
            self._problems.setting_ignored(error)

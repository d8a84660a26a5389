"""UM plain-text configuration files: `scope option value` lines, layered by reading several files in order.

A bad line never stops the reading. A DRO warns and keeps the old value; other programs get all bad lines as one
`ConfigErrors`. Unknown options are a warning in both cases, one for each option. Bad lines about options that protect
or choose the TRD (`must_count`) are always errors, as is a file that cannot be read: a portal without its file would
join the default group.

Sources: UM configuration file rules, section 3; DRO guide, element `lbm-config`. Guess: UTF-8, byte order mark and
CR LF accepted; the value is the rest of the line and may hold inner blanks.
"""

from __future__ import annotations

from typing import Final

from dro.config.reading.fetch import read_bytes
from dro.config.reading.problems import Problems, Warn
from dro.config.um.honoured import must_count, names_protection
from dro.config.um.interfaces import SYSTEM, Lookup
from dro.config.um.options import (
    DEFAULTS,
    SCOPES,
    Option,
    UmOptions,
    add_setting,
    find_option,
    option_table,
    parse_setting,
    scopes_of,
)
from dro.errors import ConfigError

MAX_FILE_BYTES: Final = 4 * 1024 * 1024


def is_xml(text: str) -> bool:
    """Whether a UM file is of the XML kind."""
    return text.lstrip().startswith("<")


def parse_um_lines(
    text: str, file: str, problems: Problems, lookup: Lookup = SYSTEM, base: UmOptions = DEFAULTS
) -> UmOptions:
    """The options of `base`, overwritten by a plain-text file in hand."""
    return _Parser(file, base, problems, lookup).parse(text)


def parse_um_text(
    text: str, warn: Warn, *, file: str = "options", strict: bool = True, lookup: Lookup = SYSTEM
) -> UmOptions:
    """The same with problems of its own. Raises: ConfigErrors with all bad lines, if `strict`."""
    problems = Problems(warn, strict=strict)
    options = parse_um_lines(text, file, problems, lookup)
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

    def __init__(self, file: str, base: UmOptions, problems: Problems, lookup: Lookup) -> None:
        self._file = file
        self._explicit = dict(base.explicit)
        self._origins = dict(base.origins)
        self._problems = problems
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
            error = ConfigError(f"{content[:80]!r} has fewer than three fields", remedy="write: scope option value")
            self._bad(number, error, content)
            return
        scope, name, value = fields[0].lower(), fields[1].lower(), fields[2]
        if scope not in SCOPES:
            remedy = self._problems.suggestion(scope, SCOPES, "scopes are " + ", ".join(SCOPES))
            self._bad(number, ConfigError(f"unknown scope {fields[0][:80]!r}", remedy=remedy), content)
            return
        option = find_option(scope, name)
        if option is None:
            self._unknown(number, scope, name)
            return
        try:
            setting, notice = parse_setting(scope, name, value, self._lookup, f"{self._file}:{number}")
        except ConfigError as e:
            self._bad(number, e, name, UmOptions(self._explicit, self._origins).holding(option.key))
            return
        dropped = add_setting(self._explicit, self._origins, setting)
        self._notices(number, option, notice or dropped)

    def _unknown(self, number: int, scope: str, name: str) -> None:
        where = scopes_of(name)
        if where:
            what, remedy = "is not an option of this scope", "it exists in scope " + ", ".join(where)
        else:
            known = [key[1] for key in option_table() if key[0] == scope]
            what, remedy = "is not a known UM option", self._problems.suggestion(name, known, "remove the line")
        element = f"{scope} {name[:80]}"
        if names_protection(name):
            self._problems.error(ConfigError(what, file=self._file, line=number, element=element, remedy=remedy))
            return
        error = ConfigError(f"{what}, ignored", file=self._file, line=number, element=element, remedy=remedy)
        self._problems.warning(str(error), once=f"unknown {scope} {name}")

    def _notices(self, number: int, option: Option, notice: str) -> None:
        place, subject = f"{self._file}:{number}", f"{option.scope} {option.name}"
        if notice:
            self._problems.warning(f"{place}: {subject}: {notice}")
        if option.is_deprecated and option.relevance == "yes":
            self._problems.warning(f"{place}: {subject}: deprecated, but in effect", once=f"deprecated {subject}")

    def _bad(self, number: int, e: ConfigError, subject: str, holds: str = "") -> None:
        error = type(e)(e.what, file=self._file, line=number, element=e.element, remedy=e.remedy)
        self._problems.setting_ignored(error, must_count=must_count(subject, e), holds=holds)

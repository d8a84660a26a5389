"""Problems of a configuration: errors are collected, so that one run reports all of them.

A `Problems` object serves one load. Readers report to it and continue with a default; the loader calls `raise_if_any()`
at the end. Warnings are passed at once to the caller's `warn`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final

from dro.errors import ConfigError, HostError

Warn = Callable[[str], None]
OnIgnored = Callable[[ConfigError], None]
"""The error names file and line; its element is `scope name`."""
MAX_ERRORS: Final = 100  # a file that is wrong throughout is not worth a longer list
MAX_WARNINGS: Final = 1000
SIMILAR: Final = 0.7  # of 1, for a name to be suggested: with 0.6 it is another word as often as a slip
MAX_SUGGESTIONS: Final = 100  # each takes a search among all names


class DeprecatedElement(str):
    """The warning about an element that has no function any more; `place` is `file:line`."""

    place: str
    element: str

    def __new__(cls, place: str, element: str) -> DeprecatedElement:
        made = super().__new__(cls, f"{place}: <{element}>: deprecated, ignored")
        made.place, made.element = place, element
        return made

    def __reduce__(self) -> tuple[type[DeprecatedElement], tuple[str, str]]:
        return DeprecatedElement, (self.place, self.element)


class ConfigErrors(ConfigError):
    """One or more errors of a configuration, in the order in which they were found. The text has one line for each."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        super().__init__(first.what, file=first.file, line=first.line, element=first.element, remedy=first.remedy)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class Problems:
    """Collects errors and passes warnings on; each distinct text is reported once.

    In a strict load, that of a program, settings whose value is bad are errors; a daemon goes on without them.
    """

    def __init__(self, warn: Warn, *, strict: bool = False, ignored: OnIgnored | None = None) -> None:
        """`ignored` is told, instead of `warn`, of each setting of a UM file that does not count: its value is bad."""
        self._warn = warn
        self._ignored = self.error if strict else ignored
        self._seen: set[str] = set()
        self._warned: set[str] = set()
        self._suggestions = 0
        self.errors: list[ConfigError] = []

    def error(self, error: ConfigError) -> None:
        text = str(error)
        if text not in self._seen and len(self.errors) < MAX_ERRORS:
            self._seen.add(text)
            self.errors.append(error)

    def warning(self, text: str, *, once: str = "") -> None:
        """Pass `text` on, unless a warning with the same `once` (default: the text itself) was passed on before."""
        key = once or text
        if key not in self._warned and len(self._warned) <= MAX_WARNINGS:
            self._warned.add(key)
            self._warn(text if len(self._warned) <= MAX_WARNINGS else "more warnings are not shown")

    def setting_ignored(
        self, error: ConfigError, text: str = "", *, must_count: bool, holds: str = "an earlier value or the default"
    ) -> None:
        """A setting whose value is bad: the old value `holds`, but for one that `must_count`, which is an error.

        `text`: the warning, where it is not the error's.
        """
        if must_count:
            self.error(error)
        elif self._ignored is not None:
            self._ignored(error)
        else:
            lost = f" ({holds} holds, which may be in another network)" if isinstance(error, HostError) else ""
            self.warning((text or f"{error} (line ignored)") + lost)

    def suggestion(self, name: str, known: Sequence[str], otherwise: str) -> str:
        """`did_you_mean`, a bounded number of times in one load."""
        self._suggestions += 1
        return did_you_mean(name, known, otherwise) if self._suggestions <= MAX_SUGGESTIONS else otherwise

    def raise_if_any(self) -> None:
        """Raise the errors that were reported. Raises: ConfigErrors when there is at least one."""
        if self.errors:
            raise ConfigErrors(self.errors)


def did_you_mean(name: str, known: Sequence[str], otherwise: str) -> str:
    """A remedy that names the nearest known name, or `otherwise`."""
    near = get_close_matches(name[:100], known, n=1, cutoff=SIMILAR)
    return f"did you mean {near[0]}?" if near else otherwise

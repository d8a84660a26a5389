"""The exception tree of the project; each exception carries fields, and its text is made from them.

Codecs raise `DecodeError`, cores that detect an internal error `LocalProtocolError`, configuration readers
`ConfigError`, shells `ResourceError`, handlers of an operator's orders `RefusedError`.
"""

from __future__ import annotations


class DroError(Exception):
    """Root of every exception that this project raises on purpose."""


class DecodeError(DroError):
    """Bytes from outside do not follow their layout.

    `where` names the record and field (`tir.topic`), `why` the rule that was broken, `offset` the byte in the
    packet, or -1 when no single byte is to blame.
    """

    def __init__(self, where: str, why: str, offset: int = -1) -> None:
        at = f" at byte {offset}" if offset >= 0 else ""
        super().__init__(f"{where}: {why}{at}")
        self.where = where
        self.why = why
        self.offset = offset


class LocalProtocolError(DroError):
    """This program broke its own rules: a bug, never caught."""


class ConfigError(DroError):
    """A configuration file or argument cannot be used.

    The text reads `file:line: <element>: what is wrong; remedy`; parts that are not known are left out.
    """

    def __init__(self, what: str, *, file: str = "", line: int = 0, element: str = "", remedy: str = "") -> None:
        place = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        subject = f"{element}: " if element else ""
        advice = f"; {remedy}" if remedy else ""
        super().__init__(f"{place}{subject}{what}{advice}")
        self.what = what
        self.file = file
        self.line = line
        self.element = element
        self.remedy = remedy


class HostError(ConfigError):
    """A name or an interface that this host does not have; on another one the same configuration may be right."""


class ResourceError(DroError):
    """The operating system refused something: a port, a group, memory, a file. `remedy` names what to change."""

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class RefusedError(DroError):
    """An operator asked a running DRO for what cannot be done, or not now; nothing has changed."""

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy

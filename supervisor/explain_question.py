"""From the arguments of an `explain` request to its question. Called by the DRO and, for files, by `tnwgdctl`."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import AddressValueError, IPv4Address

from dro.config.elements_acl import NUMBER_KINDS
from dro.config.schema import UINT32_MAX
from dro.errors import RefusedError
from supervisor.admin import Arguments
from supervisor.explain import SESSION_PARTS, TRANSPORTS, Question


def question_of(arguments: Arguments) -> Question:
    """Raises: RefusedError for what is no question."""
    topic = arguments.text("topic")
    source, interested = (_whole(arguments, name, None, UINT32_MAX) for name in ("from_domain", "to_domain"))
    written = arguments.text("transport", "")
    transport = next((known for known in TRANSPORTS if known == written), None)
    if written and transport is None:
        raise RefusedError(f"there is no transport {written[:40]!r}", remedy=f"write one of {', '.join(TRANSPORTS)}")
    given: dict[str, int] = {}
    for kind in SESSION_PARTS:
        if kind in NUMBER_KINDS:
            number = _whole(arguments, kind, -1, 65535)
            if number >= 0:
                given[kind] = number
        elif address := arguments.text(kind, ""):
            given[kind] = _address(kind, address)
    arguments.done()
    if given and transport is None:
        raise RefusedError(f"{next(iter(given))} needs the transport", remedy=f"name one of {', '.join(TRANSPORTS)}")
    return Question(topic, source, interested, transport, given)


def _whole(arguments: Arguments, name: str, default: int | None, maximum: int) -> int:
    """Raises: RefusedError."""
    number = arguments.number(name, default, minimum=1 if default is None else default, maximum=maximum)
    if number != int(number):
        raise RefusedError(f"{name!r} has to be a whole number")
    return int(number)


def checked_question(values: Mapping[str, object]) -> Question:
    """`question_of` for arguments that no request carried."""
    return question_of(Arguments(values))


def _address(kind: str, text: str) -> int:
    try:
        return int(IPv4Address(text))
    except AddressValueError as e:
        raise RefusedError(f"{kind}: {text[:40]!r} is not an IPv4 address", remedy="write it as in 192.0.2.1") from e

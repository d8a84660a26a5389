"""Arguments that the sending and receiving tools share: configuration files, rates, sizes, unsupported options.

An option of the Ultra Messaging tools that this release does not support is refused by name, so a script fails at start
and not by its results. Source: client library behaviour, section 15.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dro.command_line import Parser, add_version
from dro.tools.lbm.ending import EXIT_RESOURCE

Setting = tuple[str, str, int | str]  # scope, option, value
_FACTORS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)", re.IGNORECASE | re.ASCII)
_UDP: Final = {"U": "lbtru", "M": "lbtrm"}
"""Letters of transports, in rates and sizes."""
_DATAGRAM_MIN: Final = 500
_DATAGRAM_MAX: Final = 65535


class _NotYet(argparse.Action):
    """Refuses an option of the original tools that this release does not have."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, nargs: int | str | None, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=nargs, help=help)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string or self.dest} ({self.help}) is not supported yet; leave it out")


def is_not_yet(action: argparse.Action) -> bool:
    """Say whether this option only says that it is not supported yet."""
    return isinstance(action, _NotYet)


@dataclass(frozen=True, slots=True)
class NotYet:
    """One such option: its spellings, what it is about, and whether a value follows it."""

    flags: tuple[str, ...]
    what: str
    takes_value: bool = True


_MONITORING: Final = tuple(
    NotYet((f"--monitor-{name}",), "monitoring", takes_value=name != "evq")
    for name in ("ctx", "src", "rcv", "transport", "transport-opts", "format", "format-opts", "appid", "evq")
)


class CommonOptions(argparse.Namespace):
    """What every tool has."""

    config: list[str]
    verbose: int


def new_parser(prog: str, description: str) -> Parser:
    """A parser with the common options."""
    parser = Parser(prog=prog, description=description, allow_abbrev=False)
    parser.status_of_lost_output = EXIT_RESOURCE
    add_version(parser)
    parser.add_argument("-c", "--config", action="append", default=[], metavar="FILE",
                        help="UM configuration file; may be given several times, later files win")  # fmt: skip
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more; may be given several times")
    return parser


def add_not_yet(parser: Parser, options: Iterable[NotYet]) -> None:
    """Options to refuse, those of monitoring among them."""
    group = parser.add_argument_group("not supported yet")
    for option in (*options, *_MONITORING):
        group.add_argument(*option.flags, action=_NotYet, nargs="?" if option.takes_value else 0, help=option.what)


def _wrong(text: str, shape: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} is not {shape}")


def _scaled(text: str) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    whole, _, decimals = match[1].partition(".")
    factor = _FACTORS[match[2].lower()]
    return int(whole) * factor + int(decimals or "0") * factor // int(f"1{'0' * len(decimals)}")


def count(text: str) -> int:
    """A number of things, with an optional suffix k, m or g (powers of 1000). Raises: ArgumentTypeError."""
    value = _scaled(text)
    if value is None:
        raise _wrong(text, "a number such as 1000 or 10k")
    return value


def positive(text: str) -> int:
    """`count` of at least one."""
    value = count(text)
    if not value:
        raise argparse.ArgumentTypeError("0 is too few; give 1 or more")
    return value


def at_most(limit: int) -> Callable[[str], int]:
    """Make a `count` that ends there."""

    def limited(text: str) -> int:
        value = count(text)
        if value > limit:
            raise argparse.ArgumentTypeError(f"{value} is too many; give {limit} or less")
        return value

    return limited


def seconds(text: str) -> float:
    """A duration of zero or more, decimals allowed. Raises: ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise _wrong(text, "a number of seconds such as 5 or 0.5")
    return value


def milliseconds(text: str) -> float:
    """Like `seconds`, for options that count in milliseconds; the value is in seconds."""
    try:
        return seconds(text) / 1000
    except argparse.ArgumentTypeError:
        raise _wrong(text, "a number of milliseconds such as 20 or 0.5") from None


def percent(text: str) -> float:
    """0 to 100, with or without the sign. Raises: ArgumentTypeError."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise _wrong(text, "a percentage from 0 to 100")
    return value


def rates(text: str) -> tuple[Setting, ...]:
    """`[UM]DATA/RETR` as settings: the transport, its limit for data and, if given, for retransmissions, bits/s.

    U is LBT-RU; without a letter LBT-RM is meant. Raises: ArgumentTypeError. Guess: suffixes are powers of 1000, as
    rates are.
    """
    letter, rest = _letter(text)
    data_text, slash, retransmit_text = rest.partition("/")
    data, retransmit = _scaled(data_text), _scaled(retransmit_text)
    if data is None or (slash and retransmit is None):
        raise _wrong(text, "a rate such as 10m/5m or U500k")
    transport = _UDP[letter or "M"]
    settings: list[Setting] = [
        ("source", "transport", transport),
        ("context", f"transport_{transport}_data_rate_limit", data),
    ]
    if retransmit is not None:
        settings.append(("context", f"transport_{transport}_retransmit_rate_limit", retransmit))
    return tuple(settings)


def retention(text: str) -> tuple[Setting, ...]:
    """The size of a retention buffer in bytes as settings of a source that offers late join."""
    return (
        ("source", "late_join", 1),
        ("source", "retransmit_retention_size_threshold", count(text)),
    )


def source_datagram_max(text: str) -> tuple[Setting, ...]:
    """`[UM]NUM` of a sender as settings; without a letter TCP is meant."""
    return _datagram_max(text, "source")


def receiver_datagram_max(text: str) -> tuple[Setting, ...]:
    """`[UM]NUM` of a receiver as settings. A TCP receiver has no limit of its own."""
    return _datagram_max(text, "receiver")


def _datagram_max(text: str, side: str) -> tuple[Setting, ...]:
    letter, rest = _letter(text)
    if not rest.isascii() or not rest.isdigit() or not _DATAGRAM_MIN <= int(rest) <= _DATAGRAM_MAX:
        raise _wrong(text, f"a size such as M1472; sizes are {_DATAGRAM_MIN} to {_DATAGRAM_MAX} bytes")
    kind = f"{_UDP[letter]}_{side}" if letter else "tcp"
    return (("context", f"transport_{kind}_datagram_max_size", int(rest)),)


def _letter(text: str) -> tuple[str, str]:
    first = text[:1].upper()
    return (first, text[1:]) if first in _UDP else ("", text)

"""Option strings of the modules that statistics travel by: `name=value` pairs between semicolons, and pairs of a scope.

Source: UM operations guide, monitoring, transport modules `lbm`, `lbmsnmp` and `udp`, format modules `csv` and `pb`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from dro.config.um.interfaces import ANY, resolve_interface
from dro.config.um.used import STATISTICS_TOPIC
from dro.errors import ConfigError
from dro.lbmmon.fields import CSV, PB
from dro.log.events import LogEvent
from dro.um.message.client_config import Config
from dro.um.statistics import statistics_config

log = logging.getLogger(__name__)

UDP: Final = "udp"
TRANSPORTS: Final = ("lbm", "lbmsnmp", UDP)
FORMATS: Final = {"csv": CSV, "pb": PB}
UDP_PORT: Final = 2933
_OF_SENDERS: Final = {UDP: ("address", "bcaddress", "ttl"), "lbm": ("allow_debug",), "lbmsnmp": ("allow_debug",)}
_SCOPES: Final = ("context", "receiver", "wildcard_receiver")


@dataclass(frozen=True, slots=True)
class UmPlace:
    """Statistics are heard on a topic, or on those that match a pattern if that is not empty."""

    config: Config
    topic: str = STATISTICS_TOPIC
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class UdpPlace:
    """Statistics come as datagrams to a port, of a group if that is not empty."""

    port: int = UDP_PORT
    interface: str = ANY
    group: str = ""


def place_of(transport: str, text: str, files: Sequence[str]) -> UmPlace | UdpPlace:
    """Read the options of a transport module; `files` are below those that they name. Raises: ConfigError."""
    pairs = list(_pairs(text))
    known = ("port", "interface", "mcgroup") if transport == UDP else ("config", "topic", "wctopic")
    values: dict[str, str] = {}
    settings: list[tuple[str, str, str]] = []
    for name, value in pairs:
        scope, bar, option = name.partition("|")
        if name in known:
            values[name] = value
        elif bar and transport != UDP and scope in _SCOPES:
            settings.append((scope, option, value))
        elif name in _OF_SENDERS[transport] or (bar and transport != UDP and scope in ("source", "event_queue")):
            _warn(f"{name} has no effect in a receiver")
        elif bar and transport != UDP:
            raise _error(f"{scope[:40]!r} is not a scope of a receiver", f"write one of {', '.join(_SCOPES)}")
        else:
            _warn(f"{name[:40]!r} is not known, ignored")
    if transport == UDP:
        return _udp(values)
    config = statistics_config([*files, *([values["config"].strip()] if "config" in values else [])])
    for setting in settings:
        config = config.with_(*setting)
    return UmPlace(config, values.get("topic", STATISTICS_TOPIC), values.get("wctopic", ""))


def separator_of(form: str, text: str) -> str:
    """Read the options of a format module: the separator of csv, or nothing if none is given. Raises: ConfigError."""
    separator = ""
    for name, value in _pairs(text):
        if name != "separator" or form == "pb":
            _warn(f"{name[:40]!r} is not known, ignored")
        elif len(value) != 1 or not value.isascii():
            raise _error(f"separator {value[:40]!r} is not one ASCII character", "write one, as in ,")
        else:
            separator = value
    return separator


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(";"):
        name, equals, value = part.partition("=")
        if equals and name.strip():
            yield name.strip().lower(), value
        elif part.strip():
            raise _error(f"{part.strip()[:40]!r} is not name=value", "write options as name=value;name=value")


def _udp(values: dict[str, str]) -> UdpPlace:
    written = values.get("port", str(UDP_PORT)).strip()
    port = int(written) if written.isascii() and written.isdigit() and len(written) <= 5 else -1
    if not 0 < port <= 0xFFFF:
        raise _error(f"port {written[:40]!r} is out of range", "write 1 to 65535")
    group = values.get("mcgroup", "").strip()
    try:
        is_group = not group or IPv4Address(group).is_multicast
    except ValueError:
        is_group = False
    if not is_group:
        raise _error(f"mcgroup {group[:40]!r} is not a multicast group", "write one, as in 239.1.1.1")
    return UdpPlace(port, resolve_interface(values.get("interface", ANY)), group)


def _error(what: str, remedy: str) -> ConfigError:
    return ConfigError(what, element="module options", remedy=remedy)


def _warn(what: str) -> None:
    log.warning(LogEvent.CONFIG_WARNING, f"module options: {what}")

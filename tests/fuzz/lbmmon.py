"""Targets in `dro/lbmmon`: what decodes is encoded again, and means the same then."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any, Final

from dro.lbmmon.binary import (
    GATEWAYCFG,
    MALLOC_INFO,
    PORTAL_STATS,
    PORTCFG,
    TOPOLOGY,
    binary_messages,
    decode_binary,
    gateway_config,
    layout,
    portal_config,
    type_of,
)
from dro.lbmmon.control import MAX_REQUEST, MonitorCommand, decode_command, encode_command, parse_request
from dro.lbmmon.fields import CSV, KINDS, PB, TRANSPORTS
from dro.lbmmon.packet import decode, encode
from dro.lbmmon.records import DroStats, LibraryStats, MonitorSender
from tests.builders.statistics import dro_message
from tests.fuzz.target import Target

_SENDER: Final = MonitorSender(1_700_000_000, "app", "10.0.0.1", 77, 1 << 40, True, b"instance", 5)


def _library(kind: int) -> Iterator[LibraryStats]:
    for transport in TRANSPORTS.values() if kind < 2 else ("",):
        yield LibraryStats(_SENDER, KINDS[kind], f"{transport}:10.0.0.1:14390" if transport else "", {})


def _packet_seeds(module: int) -> list[bytes]:
    found: list[LibraryStats | DroStats] = [stats for kind in KINDS for stats in _library(kind)]
    if module == PB:
        found.append(DroStats(_SENDER, dro_message()))
    return [encode(stats, module) for stats in found]


def _packet(module: int, data: bytes) -> Hashable:
    """What the library counts stays what it is in the other format; a host is text in one, a number in the other."""
    found = list(decode(data))
    signs = []
    for one in found:
        signs.append((type(one).__name__, getattr(one, "kind", "")))
        if isinstance(one, LibraryStats) and module == CSV and one.values:
            values = {name: value for name, value in one.values.items() if value}
            (again,) = decode(encode(one, CSV))
            assert isinstance(again, LibraryStats)
            assert (again.kind, again.source) == (one.kind, one.source.replace('"', "'"))
            assert values.items() <= again.values.items()
        elif isinstance(one, DroStats):
            (again,) = decode(encode(replace(one, sender=_SENDER), PB))
            assert isinstance(again, DroStats)
            assert again.message.stats.SerializeToString() == one.message.stats.SerializeToString()
    return tuple(signs[:4])


def _binary_seeds() -> list[bytes]:
    stats, found = dro_message(), []
    for order in "<>":
        for group in (TOPOLOGY, PORTAL_STATS, MALLOC_INFO):
            found += [one for _, one in binary_messages(stats, group, time_ns=10**18, order=order)]
        found.append(gateway_config("<tnw-gateway/>", 10**18, order))
        found.append(portal_config(1, 0, "P", "source", [("transport", "tcp"), ("a", "")], 10**18, order))
    return found


def _binary(data: bytes) -> Hashable:
    read = decode_binary(data)
    assert read.kind == type_of(data)
    order, time_ns = "<>"[read.is_big_endian], read.time_us * 1000
    made = b""
    if read.kind == GATEWAYCFG:
        made = gateway_config(read.text, time_ns, order)
    elif read.kind == PORTCFG:
        values: Any = read.values
        made = portal_config(
            values["portal_num"], values["portal_type"], values["portal_name"], values["attr_type"], read.options,
            time_ns, order,
        )  # fmt: skip
    if made and "\ufffd" not in f"{read.text}{read.values}{read.options}":
        again = decode_binary(made)
        full = {member.name: member.size for member in layout("portal_config").members if member.is_text}
        expected = {
            name: value.encode()[: full[name] - 1].decode(errors="replace") if isinstance(value, str) else value
            for name, value in read.values.items()
        }  # what others write may have no NUL in the end
        assert (again.values, again.text, again.options) == (expected, read.text, read.options)
    return read.name, read.is_big_endian, len(read.options), len(read.values)


def _request(data: bytes) -> Hashable:
    request = parse_request(data)
    assert len(data) <= MAX_REQUEST
    assert request.seconds is None or request.verb == "interval"
    return request.verb, request.group, request.portal is None


def _command(data: bytes) -> Hashable:
    command = decode_command(data)
    assert decode_command(encode_command(command)) == command
    return command.command, command.node_type


_REQUESTS: Final = (b"version", b"snap\0", b"snap ri", b'"P 1" snap pcfg', b'"P" pstat 5', b" mallinfo\t30 ", b"gcfg 0")
_COMMANDS: Final = (
    MonitorCommand("SNAP"), MonitorCommand("SET_INTERVAL", "GATEWAY", "dro1", "5"),
    MonitorCommand("SET_FILTER_OPTIONS", "CONTEXT", "", "a"),
)  # fmt: skip
TARGETS: Final = (
    Target("lbmmon-csv", lambda: _packet_seeds(CSV), lambda data: _packet(CSV, data)),
    Target("lbmmon-pb", lambda: _packet_seeds(PB), lambda data: _packet(PB, data)),
    Target("lbmmon-binary", _binary_seeds, _binary),
    Target("lbmmon-request", lambda: list(_REQUESTS), _request, form="text"),
    Target("lbmmon-command", lambda: [encode_command(command) for command in _COMMANDS], _command),
)

"""Reads control requests: short texts to the daemon statistics of a DRO, and packets to a statistics context.

Source: DRO guide, 8.3; UM operations guide, monitoring, control messages; `um_mon_control` definitions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dro.errors import DecodeError
from dro.lbmmon.fields import CONTROL, PB, message_class
from dro.lbmmon.packet import attribute_table, format_attribute, framed, split
from dro.lbmmon.pb_form import parsed

MAX_REQUEST: Final = 255
"""Bytes, with a NUL at the end if there is one."""
SECONDS_MAX: Final = (1 << 31) - 1
OF_PORTALS: Final = ("pcfg", "pstat")
GROUPS: Final = ("ri", "gcfg", *OF_PORTALS, "mallinfo")
_REQUEST: Final = re.compile(rb'[ \t]*(?:"([^"\0]{1,255})"[ \t]+)?([^"\0]*?)[ \t]*\0?', re.DOTALL)
_BLANKS: Final = re.compile(r"[ \t]+")
_WITH_DATA: Final = ("SET_INTERVAL", "SET_FILTER_OPTIONS", "SET_DEBUG_INFO")


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """Asks a daemon for its `version`, for a snapshot now (`snap`), or for another `interval` of a group.

    An empty group is all of them; `portal`: of this one alone; `seconds`: of an interval.
    """

    verb: str
    group: str = ""
    portal: str | None = None
    seconds: int | None = None


def parse_request(body: bytes) -> ControlRequest:
    """Read the text of a request. Raises: DecodeError, whose `why` is for the reply."""
    if len(body) > MAX_REQUEST:
        raise DecodeError("request", "request too long")
    found = _REQUEST.fullmatch(body)
    if found is None:
        raise DecodeError("request", "unknown request")
    portal = None if found[1] is None else found[1].decode(errors="replace")
    groups = GROUPS if portal is None else OF_PORTALS
    match _BLANKS.split(found[2].decode("latin-1")):
        case ["version" | "snap" as verb] if portal is None:
            return ControlRequest(verb)
        case ["snap", group] if group in groups:
            return ControlRequest("snap", group, portal)
        case [group, *seconds] if group in groups:
            return ControlRequest("interval", group, portal, _seconds(seconds[0] if len(seconds) == 1 else ""))
    raise DecodeError("request", "unknown request")


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_REQUEST and int(text) <= SECONDS_MAX):
        raise DecodeError("request", "bad interval")
    return int(text)


@dataclass(frozen=True, slots=True)
class MonitorCommand:
    """Tells a statistics context what to do: names of `UMMonControlMsg`; an empty application is all of them."""

    command: str
    node_type: str = "ALL_NODES"
    application: str = ""
    data: str = ""


def encode_command(command: MonitorCommand) -> bytes:
    """Make its packet."""
    made = message_class("UMMonControlMsg")(
        command=command.command, node_type=command.node_type, application_id=command.application, data=command.data
    )
    return framed(CONTROL, attribute_table(format_attribute(PB)), made.SerializeToString())


def decode_command(packet: bytes) -> MonitorCommand:
    """Read a packet of this type. Raises: DecodeError."""
    kind, _, data = split(packet)
    if kind != CONTROL:
        raise DecodeError("lbmmon.control", "no control message")
    made = parsed("UMMonControlMsg", data)
    names = []
    for name in ("command", "node_type"):
        value = made.DESCRIPTOR.fields_by_name[name].enum_type.values_by_number.get(getattr(made, name))
        if value is None:
            raise DecodeError("lbmmon.control", f"{name} {getattr(made, name)} is not known")
        names.append(value.name)
    if made.data and names[0] not in _WITH_DATA:
        raise DecodeError("lbmmon.control", f"{names[0]} has no data")
    if names[0] == "SET_INTERVAL" and not _seconds(made.data):
        raise DecodeError("lbmmon.control", "an interval of 0 is CLEAR_INTERVAL")
    return MonitorCommand(names[0], names[1], made.application_id, made.data)

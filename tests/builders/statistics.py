"""Statistics with every number another one, and by chance."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import strategies as st

from dro.lbmmon.fields import KINDS, TRANSPORTS, csv_orders, message_class
from dro.lbmmon.records import LibraryStats, MonitorSender

U64 = (1 << 64) - 1


def fill(message: Any, number: Callable[[], int], *, is_peer: bool = False) -> Any:  # noqa: ANN401  made at run time
    """Set every field, of a oneof the first, of portals of DROs the second if it `is_peer`, and give the message."""
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and field != oneof.fields[is_peer]:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and hasattr(value, "add"):
            for _ in range(2):
                fill(value.add(), number, is_peer=is_peer)
        elif field.message_type is not None:
            value.SetInParent()
            fill(value, number, is_peer=is_peer)
        elif isinstance(value, str):
            setattr(message, field.name, f"{field.name} {number() % 1000}")
        elif isinstance(value, bytes):
            setattr(message, field.name, number().to_bytes(8, "big"))
        else:
            setattr(message, field.name, number() & (U64 if field.type == field.TYPE_UINT64 else 0xFFFFFFFF))
    return message


def dro_message(number: Callable[[], int] | None = None) -> Any:  # noqa: ANN401  a message
    """A `DROMonMsg` with two endpoint portals, two peer portals, and other DROs with neighbours of both kinds."""
    number = number or count(1).__next__
    made = fill(message_class("DROMonMsg")(), number)
    for _ in range(2):
        fill(made.stats.portals.add(), number, is_peer=True)
        other = fill(made.stats.other_gateways.add(), number)
        fill(other.other_portals.add(), number, is_peer=True)
    for n, portal in enumerate(made.stats.portals):
        portal.portal_index, portal.portal_name = n, f"P{n}"
    return made


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\"'"), max_size=40)
NUMBERS = st.integers(0, U64)
SENDERS = st.builds(
    MonitorSender, st.integers(0, 0xFFFFFFFF), _TEXT, st.ip_addresses(v=4).map(str), NUMBERS, NUMBERS, st.booleans(),
    st.one_of(st.just(b""), st.binary(min_size=8, max_size=8)), st.integers(0, 0xFFFFFFFF),
)  # fmt: skip


@st.composite
def library_stats(draw: st.DrawFn) -> LibraryStats:
    """All numbers of one object that csv has as well."""
    kind = draw(st.sampled_from(list(KINDS)))
    transport = draw(st.sampled_from(list(TRANSPORTS.values()))) if kind < 2 else ""
    prefix = f"{transport}." if transport else ""
    names = [f"{prefix}{name}" for name in csv_orders()[kind, transport] if name != "reserved"]
    source = f"{transport.upper()}:{draw(_TEXT)}" if transport else ""
    return LibraryStats(draw(SENDERS), KINDS[kind], source, {name: draw(NUMBERS) for name in names})

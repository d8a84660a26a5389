"""Named, printed fields of a decoded packet: what every dissector writes and `umdump` prints.

A name is a tshark display-filter name and a value the text tshark prints for it, so that a packet shown here can be
compared with the standard dissectors field by field. Nothing here knows a protocol; the per-protocol modules
(`lbmr`, `lbmc`, `transport`) decide names and forms, `dissect.fields()` calls them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dro.errors import DecodeError


class FieldList:
    """Fields in the order in which they were met; a name may be added many times."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {}

    def add(self, name: str, value: str) -> None:
        self._values.setdefault(name, []).append(value)

    def __len__(self) -> int:
        """How many values were added, repeats included."""
        return sum(map(len, self._values.values()))

    def as_dict(self) -> dict[str, str | list[str]]:
        """Name to text, or to a list of texts when the name occurred more than once; order of first appearance."""
        return {name: texts[0] if len(texts) == 1 else texts for name, texts in self._values.items()}


@dataclass(frozen=True, slots=True)
class Fields:
    """What could be read of one packet: `values` holds the fields before `error`, which is None for a sound packet."""

    values: dict[str, str | list[str]] = field(default_factory=dict)
    error: DecodeError | None = None


def hexint(value: int, width: int) -> str:
    """`0x` and the number in lower-case hex, padded to `width` digits."""
    return f"0x{value:0{width}x}"


def colon_hex(data: bytes) -> str:
    """Bytes as `68:65:6c`; the empty string for none."""
    return data.hex(":")


def ip4(address: int | bytes) -> str:
    """An IPv4 address as a dotted quad; an int is in host order, 4 bytes are in network order."""
    number = int.from_bytes(address, "big") if isinstance(address, bytes) else address
    return f"{number >> 24 & 255}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def flag(value: int | bool) -> str:
    """`1` for a bit that is set, `0` for one that is not; any non-zero number counts as set."""
    return "1" if value else "0"

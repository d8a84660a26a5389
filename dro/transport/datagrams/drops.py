"""Counts datagrams that were dropped, under the names of UM statistics."""

from __future__ import annotations

from dataclasses import dataclass

from dro.wire.transport import DropReason


@dataclass(slots=True)
class DroppedDatagrams:
    """Datagrams of one socket that were dropped, by reason."""

    unknown_msgs_rcved: int = 0
    dgrams_dropped_size: int = 0
    dgrams_dropped_version: int = 0
    dgrams_dropped_type: int = 0
    dgrams_dropped_hdr: int = 0
    dgrams_dropped_other: int = 0

    def dropped(self, reason: DropReason) -> None:
        match reason:
            case DropReason.SIZE:
                self.dgrams_dropped_size += 1
            case DropReason.VERSION:
                self.dgrams_dropped_version += 1
            case DropReason.TYPE:
                self.dgrams_dropped_type += 1
            case DropReason.HEADER:
                self.dgrams_dropped_hdr += 1
            case _:
                self.dgrams_dropped_other += 1

    @property
    def bad(self) -> int:
        """Datagrams that break their layout."""
        of_layout = self.dgrams_dropped_size + self.dgrams_dropped_version + self.dgrams_dropped_type
        return of_layout + self.dgrams_dropped_hdr + self.dgrams_dropped_other

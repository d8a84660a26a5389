"""The source side of one LBT-IPC session: who reads it, how far they are, and when a message of life is due.

Source: transport notes, section 9. Numbers are those of records (`dro.shared_memory.records`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dro.clock import s


@dataclass(frozen=True, slots=True)
class IpcSourceConfig:
    """Source options. Guess: an interval of 0 is none."""

    is_receiver_paced: bool = False
    maximum_receivers: int = 20
    sm_interval_ns: int = s(10)


@dataclass(slots=True)
class IpcSourceStats:
    """Statistics of one session of a source, under the names of the C API."""

    num_clients: int = 0
    msgs_sent: int = 0
    bytes_sent: int = 0


class IpcSourceCore:
    """One session of our own; `clients` are numbers that the shell gives."""

    __slots__ = ("_cfg", "_positions", "_sm_ns", "stats")

    def __init__(self, cfg: IpcSourceConfig, now_ns: int) -> None:
        self._cfg = cfg
        self._positions: dict[int, int] = {}
        self._sm_ns = now_ns + cfg.sm_interval_ns
        self.stats = IpcSourceStats()

    @property
    def is_receiver_paced(self) -> bool:
        return self._cfg.is_receiver_paced

    @property
    def is_full(self) -> bool:
        """No further receiver may join."""
        return len(self._positions) >= self._cfg.maximum_receivers

    def on_joined(self, client: int, at: int) -> None:
        """A receiver reads from that record on."""
        self._positions[client] = at
        self.stats.num_clients = len(self._positions)

    def on_position(self, client: int, at: int, count: int) -> None:
        """A receiver has read what lies in front of a record, of `count` that there are; it does not go back."""
        if client in self._positions and self._positions[client] <= at <= count:
            self._positions[client] = at

    def on_gone(self, client: int) -> None:
        """A receiver reads no more."""
        self._positions.pop(client, None)
        self.stats.num_clients = len(self._positions)

    def position(self, client: int) -> int:
        """Return the record that a receiver reads next, as far as it has said."""
        return self._positions[client]

    def oldest(self, count: int) -> int:
        """Return the first record that has to stay; `count` when none has to."""
        if not self._cfg.is_receiver_paced:
            return count
        return min(self._positions.values(), default=count)

    def next_deadline(self) -> int | None:
        return self._sm_ns if self._cfg.sm_interval_ns else None

    def is_life_due(self, now_ns: int) -> bool:
        """Say whether a message of life is due; the next one follows an interval later, whatever is sent."""
        if not self._cfg.sm_interval_ns or now_ns < self._sm_ns:
            return False
        late_ns = now_ns - self._sm_ns
        self._sm_ns += self._cfg.sm_interval_ns * (1 + late_ns // self._cfg.sm_interval_ns)
        return True

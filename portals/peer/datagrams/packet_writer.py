"""Data packets of a peer link on their way to the socket: numbered, sealed if that was agreed, within the rate limit.

What was taken leaves in order; while something waits, for the limit or for room in the socket, nothing more is taken.
Control messages whose place is behind data are held back until that data has left, and then go by TCP.

Source: peer link notes, section 15; DRO guide, `<peer-rate-limit>`. Guess: the bytes of a datagram count, seal and all.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from dro.clock import ms
from dro.loop import Loop
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.source import SourceSession
from dro.sqn import HALF, MASK
from dro.timers import Timer
from dro.transport.trains import Trains
from dro.wire.peer_datagram import DatagramWriter
from portals.peer.stream.link_frames import PACKET_HEADER, write_packets
from portals.peer.stream.writer import LinkWriter

RETRY_NS: Final = ms(1)  # a device without buffers leaves the socket writable


@dataclass(slots=True)
class _Batch:
    """Packets, up to each of `ends`, and the datagrams that they are sent as; the same bytes if nothing is done."""

    packets: bytearray
    ends: list[int]
    datagrams: bytearray
    sizes: list[int]

    def drop(self, count: int) -> None:
        at, to = self.ends[count - 1], sum(self.sizes[:count])
        is_same = self.packets is self.datagrams
        self.packets = self.packets[at:]
        self.datagrams = self.packets if is_same else self.datagrams[to:]
        self.ends = [end - at for end in self.ends[count:]]
        del self.sizes[:count]


class PacketWriter:
    """Packets of one connection that wait; `is_open` once packets get through."""

    def __init__(
        self,
        loop: Loop,
        core: SourceSession,
        session_id: int,
        limiter: RateLimiter,
        codec: DatagramWriter | None,
        control: LinkWriter,
        on_room: Callable[[], object],
        on_error: Callable[[OSError, int], object],
    ) -> None:
        """`codec` is None for packets that are sent as they are; `on_error` gets how many datagrams were refused."""
        self.core = core
        self.is_open = False
        self.unsent: list[tuple[bytearray, list[int]]] = []
        """Batches, and where their packets end, that waited when it was closed."""
        self._loop = loop
        self._session_id = session_id
        self._limiter = limiter
        self._codec = codec
        self._control = control
        self._on_room = on_room
        self._on_error = on_error
        self._socket: socket.socket | None = None
        self._waiting: deque[_Batch | bytes] = deque()
        self._unsent = 0  # packets in that
        self._wake: Timer | None = None
        self._is_full = False

    @property
    def overhead(self) -> int:
        """Bytes that are added to a packet at most."""
        return self._codec.overhead if self._codec is not None else 0

    def open(self, sock: socket.socket, interface: str) -> None:
        self._socket = sock
        self._trains = Trains(sock, interface)
        self._trains.on_error = self._on_error

    def on_up(self) -> None:
        self.is_open = True
        self._on_room()

    def close(self) -> None:
        self.is_open = False
        self.unsent = [(batch.packets, batch.ends) for batch in self._waiting if isinstance(batch, _Batch)]
        for message in self._waiting:
            if isinstance(message, bytes):
                self._control.control.on_lost(len(message))
        self._waiting.clear()
        self._unsent = 0
        self._stop_waiting()
        self._limiter.release(self)

    def _stop_waiting(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        if self._is_full and self._socket is not None:
            self._loop.remove_writer(self._socket)
        self._is_full = False

    @property
    def has_room(self) -> bool:
        return self.is_open and not self._waiting

    def mark(self) -> int:
        """Mark all that was put so far, for `has_sent`."""
        return self.core.next_sqn + self._unsent & MASK

    def has_sent(self, mark: int) -> bool:
        return (self.core.next_sqn - mark) & MASK < HALF

    # what is to be sent

    def put(self, packets: bytearray, ends: list[int]) -> None:
        """Packets back to back, up to each of `ends`, each with room for its header in front."""
        write_packets(packets, [0, *ends[:-1]], self._session_id, self.mark(), self.core.trail)
        if self._codec is None:
            datagrams, sizes = packets, [end - start for start, end in zip([0, *ends], ends, strict=False)]
        else:
            view, write = memoryview(packets), self._codec.write
            made = [write(bytes(view[start:end])) for start, end in zip([0, *ends], ends, strict=False)]
            datagrams, sizes = bytearray().join(made), [*map(len, made)]
        self._unsent += len(ends)
        self._waiting.append(_Batch(packets, ends, datagrams, sizes))
        if len(self._waiting) == 1:
            self._write()

    def put_control(self, message: bytes) -> bool:
        """Put a message for TCP, once all that was put before has left. As `LinkWriter.put`."""
        if self._waiting:
            self._waiting.append(message)
            return True
        return self._control.put(message)

    # sending

    def _write(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, bytes):
                if not self._control.put(first):
                    self._control.control.on_lost(len(first))
            elif not self._send(first):
                return
            self._waiting.popleft()

    def _send(self, batch: _Batch) -> bool:
        """Send a batch; False when a part is left, which waits."""
        now_ns, offered = self._loop.now_ns(), len(batch.sizes)
        allowed = self._limiter.take_sizes(batch.sizes, now_ns, self)
        sent = 0
        if allowed:
            sizes = batch.sizes[:allowed]
            sent = self._trains.send_sizes(batch.datagrams, sizes, [*accumulate(sizes)])
        if sent:
            self._note(batch, sent, now_ns)
        if sent == offered:
            return True
        if sent:
            batch.drop(sent)
        if sent < allowed:
            self._wait_for_room()
        else:
            self._wake = self._loop.call_at(self._limiter.hold(self, batch.sizes[0], now_ns), self._go_on)
        return False

    def _note(self, batch: _Batch, sent: int, now_ns: int) -> None:
        """Give the core what has left. Guess: all of a packet but its header is payload, of `<transmission-window>`."""
        ends = batch.ends[:sent]
        payloads = [end - start - PACKET_HEADER for start, end in zip([0, *ends], ends, strict=False)]
        packets = batch.packets if sent == len(batch.ends) else batch.packets[: ends[-1]]
        self._unsent -= sent
        self.core.on_sent_mixed(ends, payloads, packets, now_ns)

    def _wait_for_room(self) -> None:
        if self._trains.busy == errno.ENOBUFS:
            self._wake = self._loop.call_later(RETRY_NS, self._go_on)
        else:
            assert self._socket is not None
            self._is_full = True
            self._loop.add_writer(self._socket, self._go_on)

    def _go_on(self) -> None:
        self._stop_waiting()
        self._write()
        if not self._waiting:
            self._limiter.release(self)
            self._on_room()

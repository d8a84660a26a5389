"""The data of a peer link with `<udp>`: fragments of all sources, in packets.

As `LinkSender`, but what leaves together is several packets. Guess: fragments share a packet as long as it fits the
interface without being divided on its way, as the loss of one part would be that of all; a longer fragment has a
datagram of its own. `<max-datagram>` bounds packets too.

Source: DRO guide, 2.1.1; peer link notes, section 15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro.proto.peerlink.resume import LinkPiece
from dro.wire.peer_datagram import FORM_BYTES, SEAL_BYTES
from portals.peer.datagrams.packet_writer import PacketWriter
from portals.peer.stream.link_frames import PACKET_HEADER, SRCIDX_BYTES
from portals.peer.stream.sender import LinkSender

DATAGRAM_MAX: Final = 65507
"""What UDP over IPv4 carries."""
UDP_IP_HEADERS: Final = 28


class PacketSender(LinkSender):
    """See the module text."""

    header_bytes = PACKET_HEADER
    fragment_max_bytes = DATAGRAM_MAX - PACKET_HEADER - SRCIDX_BYTES - FORM_BYTES - SEAL_BYTES
    datagram_max_bytes = fragment_max_bytes
    _packets: PacketWriter | None = None
    _packet_max = 0

    linger_ns = 0
    """How long the companion may ask for repairs."""

    def attach_packets(self, packets: PacketWriter, mtu: int) -> None:
        self._packets = packets
        self._packet_max = min(mtu - UDP_IP_HEADERS, DATAGRAM_MAX) - packets.overhead

    @property
    def _has_room(self) -> bool:
        return self._packets is not None and self.is_up and self._packets.has_room

    def on_down(self) -> None:
        super().on_down()
        self._packets = None

    def _unsent(self) -> list[LinkPiece]:
        return [*self._packets.unsent] if self._packets is not None else []

    @property
    def most_bytes(self) -> int:
        return min(self.batching.max_bytes, self._packet_max)

    @property
    def held_bytes(self) -> int:
        return len(self._batch) - (self._cuts[-1] if self._cuts else 0)

    def _add(self, data: bytearray, cuts: list[int], counts: list[int]) -> None:
        base = len(self._batch)
        self._cuts = [*self._cuts, *[base + cut for cut in cuts]]
        self._join(data, 0, len(data), counts[-1])

    def _hand_over(self, batch: bytearray, ends: list[int]) -> None:
        if self._packets is not None:
            self._packets.put(batch, ends)
            if self._companion:
                self.sent.put((batch, ends))

    def _send(self, message: bytes) -> bool:
        self.end_batch()
        return self._packets is not None and self._packets.put_control(message)

    def send_canary(self, message: bytes) -> None:
        if not self.is_blocked:
            self.end_batch()
            packet = bytearray(PACKET_HEADER) + message
            self._note(lambda log: log.note(packet, [], begins=True))
            self._hand_over(packet, [len(packet)])

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool) -> Callable[[int], bool]:
        """Once the companion can miss nothing of it any more."""
        self.end_batch()
        packets = self._packets
        if packets is None:
            return lambda _: True
        mark, linger_ns = packets.mark(), max(linger_ns, self.linger_ns)
        until: list[int] = []

        def is_settled(now_ns: int) -> bool:
            if not until and not self._kept and packets.has_sent(mark):
                until.append(packets.core.busy_until(now_ns, linger_ns))
            return bool(until) and now_ns >= until[0]

        return is_settled

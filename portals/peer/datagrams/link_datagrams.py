"""The UDP part of one connection of a peer link: its sockets, and packets to and from the cores.

One socket hears everything that comes to the port, for as long as the link lasts; a second one on the same port is
connected to the companion, so that trains can leave by it. The companion is who the TCP connection leads to; its port
may be another one than it told, if a NAT on the way changes ports. What is no packet of this connection is dropped,
counted by reason and logged at a limited rate.

Source: peer link notes, section 15; DRO guide, 2.1.1, 4.6.2 and `<udp>`. Guess: `<multiple-receive-max-datagrams>` of
0 reads as many as fit (64), as one by one would only cost more.
"""

from __future__ import annotations

import operator
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

from dro.config.dro_xml.model import PeerUdpConfig
from dro.errors import DecodeError
from dro.loop import Loop
from dro.proto.peerlink.datagram_session import DatagramSession, DatagramsUp, GivenUp, SendPacket
from dro.proto.peerlink.early_data import EarlyData
from dro.proto.peerlink.session import CloseLink
from dro.proto.peerlink.source_order import SourceOrder
from dro.proto.repair.effects import Retransmit
from dro.sqn import MASK, ahead
from dro.timers import Timer
from dro.transport import mmsg, sockets
from dro.transport.runs import (
    FRAGMENTS,
    KIND_DATA,
    KIND_SHIFT,
    KIND_TSNI,
    MINIMAL_BYTES,
    ROW,
    SQN,
    TYPE_CONTROL,
    RunTable,
)
from dro.transport.scan import Stream
from dro.transport.session import SessionSink
from dro.transport.stream import nothing
from dro.wire import lbtru
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import BlockType
from dro.wire.peer_datagram import DatagramDrop, DatagramReader, DatagramWriter
from dro.wire.transport import TransportDecodeError
from portals.peer.datagrams.gauges import SESSION
from portals.peer.datagrams.packet_writer import PacketWriter
from portals.peer.stream.link_frames import (
    SRCIDX_BYTES,
    scan_link,
    scan_packets,
    stream_key,
    take_topic_control,
)
from portals.peer.stream.receiver import LinkReceiver

BATCHES_PER_TURN: Final = 4
REST_TURNS: Final = 64
"""When the link is over: as much as the default buffer holds."""
LINK_ENDED: Final = "link ended"
REMEDIES: Final = {
    "foreign": "nothing else may send to the port; if the companion does by another address, give <interface> there",
    "session": "none, if the link has just been made anew",
    DatagramDrop.FORGED.value: "somebody changes datagrams, or sends others",
    DatagramDrop.REPLAYED.value: "the network repeats datagrams, or somebody does",
    DatagramDrop.LATE.value: "the network holds datagrams back for very long",
}
_OTHER_REMEDY: Final = "check that a DRO of the same version and nothing else sends to the port"
_SRCIDX: Final = int(BlockType.SRCIDX)
_TRAIL: Final = Struct("!I")
_RETRANSMISSION: Final = lbtru.FLAG_RETRANSMISSION >> 8


@dataclass(frozen=True, slots=True)
class DatagramAddresses:
    """`local_ip` and `port`: where this side listens; `ip` and `peer_port`: where the companion does."""

    local_ip: str
    port: int
    ip: str
    peer_port: int


class DatagramOwner(Protocol):
    """What takes what the datagrams report."""

    def on_datagrams_up(self) -> None: ...

    def on_datagrams_over(self, over: CloseLink) -> None: ...

    def on_given_up(self, receiver: LinkReceiver, count: int, cause: str) -> None: ...

    def on_dropped(self, reason: str, address: str, remedy: str) -> None: ...

    def is_known(self, number: int) -> bool:
        """Say whether the companion has told what source that is."""

    def on_canary(self, raw: bytes) -> bool:
        """A control message that is not about a source. False: it is no canary."""


def _messages(row: tuple[int, ...], view: memoryview) -> Iterator[tuple[int, bytes]]:
    """Yield each message of a row: its sqn, and a record of it, which is a row of its own and the bytes."""
    number, sqn, fragments, offset, length, stride, shape = row
    for at in range(fragments):
        begin = offset + at * stride
        alone = ROW.pack(number, sqn + at & MASK, 1, 0, length, length, shape & ~0xFF)
        yield sqn + at & MASK, alone + bytes(view[begin : begin + length])


def _made(udp: PeerUdpConfig) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sockets.set_buffer(sock, socket.SO_RCVBUF, udp.receive_buffer_bytes)
    sockets.set_buffer(sock, socket.SO_SNDBUF, udp.send_buffer_bytes)
    return sock


class LinkDatagrams:
    """Made when both have said who they are."""

    def __init__(
        self,
        loop: Loop,
        udp: PeerUdpConfig,
        place: DatagramAddresses,
        core: DatagramSession,
        codec: tuple[DatagramWriter, DatagramReader] | None,
        writer: PacketWriter,
        receiver: LinkReceiver,
        sink: SessionSink,
        owner: DatagramOwner,
    ) -> None:
        """`codec` is None for packets that are sent as they are. Raises: OSError."""
        self.core = core
        self._loop = loop
        self._codec = codec
        self._writer = writer
        self.receiver = receiver
        self._sink = sink
        self._owner = owner
        self._place = place
        self._ip = int.from_bytes(socket.inet_aton(place.ip), "little")  # as in raw addresses
        self._stream = Stream(stream_key(core.ids.companion))
        self._batch = mmsg.DatagramBatch()
        self._most = min(udp.datagrams_per_read or mmsg.BATCH, mmsg.BATCH)
        self._early = EarlyData()
        self._order = SourceOrder()
        self.on_data: Callable[[], object] = nothing
        """Something may have been handed up."""
        self._whole = 0  # so many datagrams were there, and none was missing, after the last batch
        self._final: int | None = None  # what had been handed up when it was closed
        self._is_disordered = False  # a datagram is missing, or one has come late in this batch
        self._timer: Timer | None = None
        self._is_over = False
        self._bound = _made(udp)
        self._connected = _made(udp)
        try:
            self._bound.bind((place.local_ip, place.port))
            for sock in (self._bound, self._connected):  # only now, so that nobody else has the port
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._connected.bind((place.local_ip, place.port))
            self._connected.connect((place.ip, place.peer_port))
            for sock in (self._bound, self._connected):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError:
            self._bound.close()
            self._connected.close()
            raise
        writer.open(self._connected, place.local_ip)

    def start(self) -> None:
        self._loop.add_reader(self._connected, lambda: self._on_readable(self._connected))
        self._loop.add_reader(self._bound, lambda: self._on_readable(self._bound))
        self._arm()

    def close(self, *, resumes: bool = False) -> None:
        """Nothing more is reported, but for what has come by then. `resumes`: what waits stays, for `give_up`."""
        self.core.close()
        for sock in (self._bound, self._connected):
            for _ in range(REST_TURNS):
                if not self._on_readable(sock):
                    break
        self._final = self.handed_up()
        self._is_over = True
        if not resumes:
            self.give_up(self.receiver)
        self._writer.close()
        if self._timer is not None:
            self._timer.cancel()
        for sock in (self._bound, self._connected):
            self._loop.remove_reader(sock)
            sock.close()

    def give_up(self, receiver: LinkReceiver) -> None:
        """What is missing will not come: hand up what waits for it. `receiver`: which has the sources now."""
        self.receiver = receiver
        self._early.drop_all()
        self._hand_up_dropped()
        self._hand_up_records(self._order.release_all(), self._loop.now_ns())
        if missing := self.core.receiver.missing:
            self.core.counts.unrecoverable += missing
            self._owner.on_given_up(receiver, missing, LINK_ENDED)

    def handed_up(self) -> int:
        """Count the datagrams from the first on of which everything has been handed up."""
        if self._final is not None:
            return self._final
        floors = (self._whole, self._order.floor, self._early.floor)
        return min([floor for floor in floors if floor is not None])

    # in

    def _on_readable(self, sock: socket.socket) -> bool:
        for _ in range(BATCHES_PER_TURN):
            if self._is_over:
                return False
            try:
                count = self._batch.receive(sock.fileno(), self._most)
            except OSError:  # what an earlier send has led to; it is cleared by that
                return False
            if not count:
                return False
            self._on_batch(self._loop.now_ns())
            if count < self._most:
                return False
        return not self._is_over

    def _on_batch(self, now_ns: int) -> None:
        batch = self._batch
        offsets, lengths, senders = batch.offsets, batch.lengths, batch.senders
        view = batch.view
        if any(sender >> 32 != self._ip for sender in senders):
            mine = [at for at, sender in enumerate(senders) if sender >> 32 == self._ip]
            foreign = next(sender for sender in senders if sender >> 32 != self._ip)
            for _ in range(len(senders) - len(mine)):
                self._drop("foreign", mmsg.address_of(foreign))
            offsets, lengths = [offsets[at] for at in mine], [lengths[at] for at in mine]
        if self._codec is not None:
            view, offsets, lengths = self._opened(view, offsets, lengths)
        stream, at, count = self._stream, 0, len(lengths)
        self._follow()
        while not self._is_over:
            at, rest = scan_packets(view, offsets, lengths, at, stream)
            if at == count:
                break
            end = offsets[at] + lengths[at]
            if rest:
                self._take(view, rest, end)
            else:
                self._on_packet(view, offsets[at], lengths[at], now_ns)
            at += 1
        if not self._is_over:
            self._hand_up(view, now_ns)
            self._perform()

    def _opened(
        self, view: memoryview, offsets: list[int], lengths: list[int]
    ) -> tuple[memoryview, list[int], list[int]]:
        """Open sealed and compressed datagrams; their packets, back to back."""
        assert self._codec is not None
        packets: list[bytes] = []
        for offset, length in zip(offsets, lengths, strict=True):
            found = self._codec[1].read(bytes(view[offset : offset + length]))
            if isinstance(found, DatagramDrop):
                self._drop(found.value)
            else:
                packets.append(found)
        ends, end = [0], 0
        for packet in packets:
            end += len(packet)
            ends.append(end)
        return memoryview(bytearray().join(packets)), ends[:-1], [*map(len, packets)]

    def _drop(self, reason: str, address: tuple[int, int] | None = None) -> None:
        ip, port = address if address is not None else (sockets.ip_number(self._place.ip), self._place.peer_port)
        self.core.counts.drop(reason)
        self._owner.on_dropped(reason, f"{sockets.ip_text(ip)}:{port}", REMEDIES.get(reason, _OTHER_REMEDY))

    def _on_packet(self, view: memoryview, offset: int, length: int, now_ns: int) -> None:
        """Take a packet that is not data in order."""
        self._settle(now_ns)
        try:
            packet = lbtru.decode(bytes(view[offset : offset + length]))
        except TransportDecodeError as e:
            self._drop(e.reason.name.lower())
            return
        except DecodeError:
            self._drop("layout")
            return
        core = self.core
        if not core.is_mine(packet):
            self._drop(SESSION)
        elif not isinstance(packet, lbtru.Data):
            core.on_packet(packet, now_ns)
        else:
            is_repair = bool(packet.flags & lbtru.FLAG_RETRANSMISSION)
            self._is_disordered = True
            if core.receiver.on_data(packet.sqn, packet.trail, is_repair, now_ns, length):
                if self._stream.table.room * (MINIMAL_BYTES + SRCIDX_BYTES) < length:
                    self._hand_up(view, now_ns)
                self._take(view, offset + length - len(packet.payload), offset + length)
        self._follow()

    def _take(self, view: memoryview, pos: int, end: int) -> None:
        """Take the messages of one packet: data of sources, and control messages of sources."""
        stream = self._stream
        table = stream.table
        while True:
            pos, messages = scan_link(view, pos, end, table)
            stream.messages += messages
            if end - pos < MINIMAL_BYTES:
                return
            kind, head, length = lbmc.MINIMAL.unpack_from(view, pos)
            is_whole = kind == TYPE_CONTROL and MINIMAL_BYTES <= length <= end - pos
            if is_whole and head != _SRCIDX and self._owner.on_canary(bytes(view[pos : pos + length])):
                pos += length
                continue
            if not is_whole or head != _SRCIDX or not table.room:
                self._drop("content")
                return
            try:
                take_topic_control(view, pos, length, table)
            except DecodeError:
                self._drop("content")
                return
            pos += length

    def _settle(self, now_ns: int) -> None:
        """Give the core the packets in order that the scan found."""
        stream = self._stream
        if stream.datagrams:
            self.core.receiver.on_run(stream.first, stream.datagrams, stream.trail, now_ns, stream.nbytes)
            self.receiver.msgs_rcved += stream.messages
            self.receiver.bytes_rcved += stream.nbytes
            stream.datagrams = stream.nbytes = stream.messages = 0

    def _follow(self) -> None:
        expected = self.core.receiver.expected
        self._stream.expected = -1 if expected is None else expected

    def _hand_up(self, view: memoryview, now_ns: int) -> None:
        self._settle(now_ns)
        table, known = self._stream.table, self.receiver.sources
        if self._is_disordered or self._order.is_waiting:
            self._put_in_order(view, now_ns)
        elif table.rows:
            if not set(table.column(0)) <= known.keys():
                self._hold_back(view, now_ns)
            behind = map(operator.add, table.column(SQN), table.column(FRAGMENTS))
            self._order.note(table.column(0), behind, known)
            self._sink.on_fragments(view, [(self.receiver, table)], now_ns)
            table.clear()
        self._hand_up_dropped()
        whole = self.core.receiver.contiguous + 1 & MASK  # the first datagram has the number 0
        self._whole += ahead(whole, self._whole & MASK)
        self.on_data()

    def _put_in_order(self, view: memoryview, now_ns: int) -> None:
        """Put messages in order while a datagram is missing, or one has come late."""
        receiver, order, known = self.core.receiver, self._order, self.receiver.sources
        newest = (receiver.expected or 0) - 1 & MASK
        records: list[bytes] = []
        for row in ROW.iter_unpack(bytes(self._stream.table.tobytes())):
            is_known = row[0] in known or self._owner.is_known(row[0])
            for sqn, record in _messages(row, view):
                if not is_known:
                    self._early.put(row[0], record, now_ns, self._whole)
                else:
                    records += self._ordered(row[0], sqn, row[-1] >> KIND_SHIFT, record, newest, self._whole)
        self._stream.table.clear()
        records += order.release(receiver.contiguous)
        self._is_disordered = receiver.contiguous != newest
        self._hand_up_records(records, now_ns)

    def _ordered(self, number: int, sqn: int, kind: int, record: bytes, newest: int, floor: int) -> list[bytes]:
        if kind == KIND_DATA:
            return self._order.put(number, sqn, record, newest, floor)
        return [] if kind == KIND_TSNI and self._order.is_known_already(number, sqn) else [record]

    def _hand_up_records(self, records: list[bytes], now_ns: int) -> None:
        if not records:
            return
        table, data = RunTable(len(records)), bytearray()
        for record in records:
            number, sqn, _, _, length, stride, shape = ROW.unpack_from(record)
            is_tsni = shape >> KIND_SHIFT == KIND_TSNI
            table.put(number, sqn, 1, 0 if is_tsni else len(data), length, stride, shape)
            data += record[ROW.size :]
        self._sink.on_fragments(memoryview(data), [(self.receiver, table)], now_ns)

    # data before its source

    def _hold_back(self, view: memoryview, now_ns: int) -> None:
        """Take what is of sources that were not told yet out of the table."""
        table, known, is_known = self._stream.table, self.receiver.sources, self._owner.is_known
        kept = []
        for row in ROW.iter_unpack(bytes(table.tobytes())):
            if row[0] in known or is_known(row[0]):
                kept.append(row)
                continue
            for _, record in _messages(row, view):
                self._early.put(row[0], record, now_ns, self._whole)
        table.clear()
        for row in kept:
            table.put(*row)

    def _hand_up_dropped(self) -> None:
        """Hand up data of sources that were not told in time: the sink finds and counts them as unknown."""
        self._hand_up_records(self._early.take_dropped(), self._loop.now_ns())

    def on_source(self, number: int) -> None:
        """Known from now on: what came before goes on."""
        floor = self._early.floor_of(number)
        if not (early := self._early.take(number)):
            return
        receiver, records = self.core.receiver, []
        newest = (receiver.expected or 0) - 1 & MASK
        for record in early:
            row = ROW.unpack_from(record)
            records += self._ordered(number, row[1], row[-1] >> KIND_SHIFT, record, newest, floor)
        self._is_disordered = True
        self._hand_up_records(records + self._order.release(receiver.contiguous), self._loop.now_ns())

    # out

    def _send(self, packet: bytes) -> bool:
        """Send a packet ahead of data. What cannot leave now is lost, as on the network."""
        datagram = packet if self._codec is None else self._codec[0].write(packet)
        try:
            self._connected.send(datagram)
        except OSError:
            return False
        return True

    def _repair(self, repair: Retransmit) -> None:
        packet = bytearray(repair.buffer[repair.offset : repair.offset + repair.length])
        packet[2] |= _RETRANSMISSION
        _TRAIL.pack_into(packet, 8, self.core.source.trail)
        if not self._send(bytes(packet)):
            self.core.source.on_send_failed(repair.sqn, repair.length)

    def _perform(self) -> None:
        """Do what the core wants, and set the timer to its next time."""
        self.core.settle()
        for effect in self.core.take_effects():
            match effect:
                case SendPacket(packet=packet):
                    self._send(packet)
                case Retransmit():
                    self._repair(effect)
                case DatagramsUp():
                    self._writer.on_up()
                    self._owner.on_datagrams_up()
                case GivenUp(count=count, cause=cause):
                    self._owner.on_given_up(self.receiver, count, cause)
                case CloseLink():
                    self._owner.on_datagrams_over(effect)
            if self._is_over:
                return
        self._arm()

    # time

    def _arm(self) -> None:
        deadlines = [self.core.next_deadline(), self._early.next_deadline()]
        due_ns = min([deadline for deadline in deadlines if deadline is not None], default=None)
        timer = self._timer
        if due_ns is None or (timer is not None and timer.is_pending and timer.when_ns <= due_ns):
            return  # a timer that is early finds out
        if timer is not None:
            timer.cancel()
        self._timer = self._loop.call_at(due_ns, self._on_timer)

    def _on_timer(self) -> None:
        now_ns = self._loop.now_ns()
        self.core.on_timer(now_ns)
        self._early.on_timer(now_ns)
        self._hand_up(memoryview(b""), now_ns)
        self._perform()

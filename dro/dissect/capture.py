"""From captured frames to Ultra Messaging packets: the reading side of `umdump`, without any printing.

Connects the parts: frames (`pcap`), IPv4 (`ipv4`), TCP (`tcpstream`, `lbmcstream`, `lbmsrs`) and recognition
(`follow`). A packet here is a UDP payload, or the LBMC messages or frames of topic resolution that a TCP segment
completed. Owns the tables of its parts, each of which is bounded, so a capture of any length can be read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from dro.dissect.follow import LBMR, LBMSRS, LBTTCP, Directory
from dro.dissect.ipv4 import UDP, Decapsulator, Segment
from dro.dissect.lbmcstream import LbmcStream
from dro.dissect.lbmsrs import SrsStream
from dro.dissect.pcap import Frame
from dro.dissect.tcpstream import MAX_DIRECTIONS, Flow, Missing, Opened, Piece, TcpStreams
from dro.errors import DecodeError
from dro.wire.lbmc.codes import BlockType, MessageType

_SID_SIZE: Final = 12


class UmPacket(NamedTuple):
    """One packet to show or count."""

    frame: int
    time_ns: int
    src: int
    sport: int
    dst: int
    dport: int
    proto: str  # as dissect.fields() takes it
    data: bytes
    cut: int  # bytes at the end of the payload that the capture did not keep
    lost: int  # TCP: bytes missing in the stream just before, -1 when unknown
    error: DecodeError | None  # TCP: the stream cannot be read on after `data`


class Capture:
    """One pass over one or several capture files."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.frames = 0
        self.bytes = 0
        self.cut_frames = 0
        self.first_ns = 0  # the earliest and the latest frame; files may come in any order
        self.last_ns = 0
        self.foreign_streams = 0
        self.ip = Decapsulator()
        self.tcp = TcpStreams()
        self._streams: OrderedDict[Flow, LbmcStream | SrsStream] = OrderedDict()

    def packets(self, frames: Iterable[Frame]) -> Iterator[UmPacket]:
        """Packets in the order in which the frames complete them. Raises: what iterating `frames` raises."""
        directory = self.directory
        segment_of = self.ip.segment
        other = self.ip.other
        for frame in frames:
            if not self.frames or frame.time_ns < self.first_ns:
                self.first_ns = frame.time_ns
            self.last_ns = max(self.last_ns, frame.time_ns)
            self.frames += 1
            self.bytes += frame.wire_len
            if len(frame.data) < frame.wire_len:
                self.cut_frames += 1
            segment = segment_of(frame)
            if segment is None:
                continue
            number, time_ns, protocol, src, sport, dst, dport, payload, cut, _, _, _ = segment
            if protocol == UDP:
                proto = directory.udp_proto(src, sport, dst, dport)
                if proto is None:
                    other["udp"] += 1
                    continue
                if proto == LBMR and not cut:
                    directory.on_lbmr(payload)
                yield UmPacket(number, time_ns, src, sport, dst, dport, proto, payload, cut, 0, None)
            elif directory.tcp_proto(src, sport, dst, dport) is None:
                other["tcp"] += 1
            else:
                yield from self._on_tcp(segment)

    def learn(self, frames: Iterable[Frame]) -> None:
        """Read only the advertisements: a first pass, so that sessions are known before they are advertised."""
        ip = Decapsulator()
        for frame in frames:
            segment = ip.segment(frame)
            if segment is None or segment.protocol != UDP or segment.cut:
                continue
            if self.directory.udp_proto(segment.src, segment.sport, segment.dst, segment.dport) == LBMR:
                self.directory.on_lbmr(segment.payload)

    def finish(self) -> Iterator[UmPacket]:
        """Yield what is left when the last frame has been read."""
        for flow, pieces in self.tcp.finish():
            yield from self._on_pieces(flow, pieces, self.frames, self.last_ns)

    def _on_tcp(self, segment: Segment) -> Iterator[UmPacket]:
        for flow, pieces in self.tcp.on_segment(segment):
            yield from self._on_pieces(flow, pieces, segment.frame, segment.time_ns)

    def _on_pieces(self, flow: Flow, pieces: list[Piece], frame: int, time_ns: int) -> Iterator[UmPacket]:
        stream = self._streams.get(flow)
        if stream is None:
            is_srs = self.directory.tcp_proto(*flow) == LBMSRS
            is_named = self.directory.has_rule_for_tcp(flow[1], flow[3])
            stream = self._streams[flow] = SrsStream() if is_srs else LbmcStream(is_named=is_named)
            while len(self._streams) > MAX_DIRECTIONS:
                self._streams.popitem(last=False)
        else:
            self._streams.move_to_end(flow)
        proto = LBMSRS if isinstance(stream, SrsStream) else LBTTCP
        was_foreign = stream.is_foreign
        data = b""
        lost = 0
        for piece in pieces:
            run = stream.on_piece(piece)
            if run is None:
                continue
            if data and (run.lost or isinstance(piece, Missing | Opened)):
                yield UmPacket(frame, time_ns, *flow, proto, data, 0, lost, None)
                data = b""
            if not data:
                lost = run.lost
            data += run.data
            if run.error is not None:
                yield UmPacket(frame, time_ns, *flow, proto, data, 0, lost, run.error)
                data = b""
        if data:
            if proto == LBTTCP:
                self._note_session(flow, data)
            yield UmPacket(frame, time_ns, *flow, proto, data, 0, lost, None)
        if stream.is_foreign and not was_foreign:
            self.foreign_streams += 1

    def _note_session(self, flow: Flow, data: bytes) -> None:
        """Note the session id in the control message with which a receiver opens a connection."""
        if len(data) >= _SID_SIZE and data[0] == MessageType.CONTROL and data[1] == BlockType.TCP_SID:
            self.directory.on_tcp_sid(flow, int.from_bytes(data[8:12], "big"))

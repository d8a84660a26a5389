"""Streams of sources without a loop: sessions that say what they are told to say, and what their streams say then."""

from __future__ import annotations

from dro.clock import NS_PER_MS, NS_PER_S
from dro.proto.context.sources import BoundSource
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.order import DeliveryEvent, Lost
from dro.proto.delivery.reassembly import Delivered
from dro.proto.stream.stream import Carrier, SourceStream, SourceStreams, StreamEvent
from dro.wire.lbmr.packet import Cost, Tir
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress
from tests.builders.tir_options import tir_options
from tests.fakes.session_view import ToldSession

OTID = bytes(range(32))
GENERATION_NS = 10 * NS_PER_S


def lbtrm(session: int) -> LbtrmAddress:
    return LbtrmAddress(0x0A000001, 0xE00A0A0A, session, 14400, 14390)


class StreamScene:
    """The streams of one context, with sessions on which messages are put by hand."""

    def __init__(self, options: DeliveryConfig | None = None, *, use_hotlink: bool = False) -> None:
        self.streams = SourceStreams()
        self.now_ns = NS_PER_S
        self.events: list[StreamEvent | DeliveryEvent] = []
        self.sqns: list[int] = []
        self.lost: list[int] = []
        self._options = options or DeliveryConfig()
        self._use_hotlink = use_hotlink

    def bind(
        self,
        session: ToldSession | TransportAddress,
        topic_index: int = 1,
        otid: bytes = OTID,
        cost: Cost | None = None,
    ) -> Carrier:
        if not isinstance(session, ToldSession):
            is_tcp = isinstance(session, TcpAddress)
            session = ToldSession(session, generation_ns=0 if is_tcp else GENERATION_NS, is_in_order=is_tcp)
        tir = Tir(b"t", session.address, 60, topic_index, tir_options(otid=otid, cost=cost))
        source: Carrier = BoundSource(b"t", otid, topic_index, session, tir, False)
        self._take(self.streams.on_bound(source, self._options, self.now_ns, use_hotlink=self._use_hotlink))
        return source

    def unbind(self, source: Carrier, *, ended: bool = True) -> None:
        stream = self.streams.on_unbound(source, ended=ended, now_ns=self.now_ns)
        assert stream is not None
        self._take(stream)

    def begin(self, source: Carrier) -> None:
        stream = stream_of(source)
        stream.on_began(source)
        self._take(stream)

    def data(self, source: Carrier, *sqns: int) -> None:
        """Let messages come as runs of one."""
        stream = stream_of(source)
        for sqn in sqns:
            if stream.live is not source:
                self.begin(source)
            controller = stream.controller
            if controller.accept_run(sqn, 1):
                self._note(Delivered(sqn, sqn, b"", 0))
            elif stream.planes is None or not controller.drop_run(sqn, 1):
                controller.on_fragment(sqn, None, b"", self.now_ns)
            if stream.takeover is not None or stream.planes is not None:
                stream.on_run(source, sqn, 1)
            self._take(stream)

    def tsni(self, source: Carrier, sqn: int) -> None:
        stream = stream_of(source)
        stream.on_tsni(source, sqn, self.now_ns)
        self._take(stream)

    def run(self, milliseconds: int) -> None:
        """Let so much time pass, and each deadline on its time."""
        end_ns = self.now_ns + milliseconds * NS_PER_MS
        while (deadline := self.streams.next_deadline()) is not None and deadline <= end_ns:
            self.now_ns = deadline
            for stream in self.streams.on_timer(deadline):
                self._take(stream)
        self.now_ns = end_ns

    def _take(self, stream: SourceStream) -> None:
        for event in (*stream.take_events(), *stream.controller.take_events()):
            self._note(event)
        if stream.controller.is_waiting or stream.due_ns is not None:
            self.streams.set_due(stream)

    def _note(self, event: StreamEvent | DeliveryEvent) -> None:
        match event:
            case Delivered(sqn=sqn):
                self.sqns.append(sqn)
            case Lost(sqn=sqn):
                self.lost.append(sqn)
        self.events.append(event)


def stream_of(source: Carrier) -> SourceStream:
    assert source.user is not None
    return source.user


def session_of(source: Carrier) -> ToldSession:
    assert isinstance(source.transport, ToldSession)
    return source.transport

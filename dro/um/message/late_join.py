"""Late join and off-transport recovery of one context, both sides: who asks whom, and who answers.

State: the sources that retain messages, by what requests name; the streams that may ask, by the number that answers
carry. Requests and answers are unicast messages; what is asked for and what is kept decide `dro.proto.stream.recovery`
and `dro.proto.stream.retention`. A request for what is not retained is counted and not answered: who asks gives up by
itself. Source: client library notes, sections 5 and 6.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dro.clock import ms
from dro.config.um.application_options import LateJoinOptions, OtrOptions, RetentionOptions
from dro.config.um.options import UmOptions
from dro.config.um.sets import DeliveryOptions, TsniReceiverOptions
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.proto.stream.asks import NOTHING, AskAgain, AskLimits, AskNewest, AskRetained, RecoveryConfig
from dro.proto.stream.origin import RetainingOrigin, offer, origin_of
from dro.proto.stream.retention import Retention, RetentionConfig
from dro.proto.stream.stream import SourceStream
from dro.proto.unicast.messages import ControlMessage, Retransmission
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.events import FLAG_OTR, FLAG_RETRANSMIT
from dro.um.message.unicast import UnicastMessages
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.data_blocks import (
    LJI_RX_REQ_MAX,
    LJI_RX_REQ_OUTSTANDING_MAX,
    RXREQ_TSNI,
    LjiReq,
    UmeLjInfo,
    UmeRxReq,
)
from dro.wire.lbmc.headers import ContextAddress, is_request_port

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

TSNI_PAUSE_NS: Final = ms(100)
"""Between two that were asked for."""
_U32: Final = 0xFFFFFFFF


class RetainingSource(Protocol):
    """A source that answers requests."""

    fragments: FragmentSource
    retention: Retention | None

    def send_tsni(self) -> bool:
        """Tell receivers the newest sqn; False when the session is blocked."""


class RecoveringStreams(Protocol):
    """Takes for the streams what has come for them."""

    def on_sent_again(self, stream: SourceStream, message: lbmc.Message) -> bool: ...

    def on_retained(self, stream: SourceStream, low: int, high: int) -> None: ...


@dataclass(slots=True, eq=False)
class _AskingStream:
    """One stream as it asks."""

    stream: SourceStream
    origin: RetainingOrigin
    alert_cooldown_ns: int
    alert_ns: int = 0  # no warning before


class OriginRequests:
    """See the module text."""

    def __init__(self, loop: Loop, unicast: UnicastMessages, rng: random.Random, streams: RecoveringStreams) -> None:
        self.not_retained = 0  # requests for what is not kept
        self.not_sent = 0  # answers that did not leave
        self.resent = 0
        self._loop = loop
        self._unicast = unicast
        self._rng = rng
        self._streams = streams
        self._sources: dict[tuple[int, int], RetainingSource] = {}
        self._askers: dict[int, _AskingStream] = {}
        self._indexes: dict[SourceStream, int] = {}
        self._tsni_ns: dict[tuple[int, int], int] = {}  # when a TSNI may be sent again
        unicast.take_control(LjiReq, self._on_info_request)
        unicast.take_control(UmeRxReq, self._on_request)
        unicast.take_control(UmeLjInfo, self._on_info)
        unicast.on_retransmission = self._on_sent_again

    # sources

    def retention_of(self, options: UmOptions) -> Retention | None:
        """Make what a source with these options keeps; None if it keeps nothing."""
        o = RetentionOptions.of(options)
        if not o.late_join:
            return None
        if not self._unicast.own_address.port:
            log.warning(LogEvent.LATE_JOIN_WITHOUT_PORT, extra={"remedy": "set request_tcp_bind_request_port to 1"})
            return None
        config = o.fill(RetentionConfig, limit_bytes=RetentionOptions.limit_bytes(options))
        return Retention(config)

    def advertise(self, source: FragmentSource) -> None:
        """Let a source, which is silent yet, offer late join. Raises: DecodeError."""
        own = self._unicast.own_address
        source.update(offer(own.ip, own.port, source.transport.transport_index))

    def add_source(self, source: RetainingSource) -> None:
        self._sources[_key(source.fragments)] = source

    def remove_source(self, source: RetainingSource) -> None:
        key = _key(source.fragments)
        self._sources.pop(key, None)
        self._tsni_ns.pop(key, None)

    def _on_info_request(self, asked: LjiReq, message: ControlMessage) -> None:
        source = self._find(asked.transport_index, asked.topic_index, asked.ip, asked.port)
        if source is None:
            return
        retention = source.retention
        assert retention is not None
        answer = UmeLjInfo(retention.low_sqn, (retention.next_sqn - 1) & _U32, asked.request_index)
        self._unicast.send_control(_to(message, asked.ip, asked.port), answer, on_failed=self._on_not_sent)

    def _on_request(self, asked: UmeRxReq, message: ControlMessage) -> None:
        source = self._find(asked.transport_index, asked.id_2, asked.ip, asked.port)
        if source is None:
            return
        if asked.flags & RXREQ_TSNI:
            self._send_tsni(source)
            return
        assert source.retention is not None
        sent = source.retention.find(asked.sqn)
        if sent is None:
            self.not_retained += 1
            return
        self.resent += 1
        self._unicast.send_again(
            _to(message, asked.ip, asked.port), sent, asked.request_index, on_failed=self._on_not_sent
        )

    def _find(self, transport_index: int, topic_index: int, ip: int, port: int) -> RetainingSource | None:
        """Find a source for a request whose answer goes there; one that cannot be answered counts as any other."""
        source = self._sources.get((transport_index, topic_index)) if is_request_port(ip, port) else None
        if source is None:
            self.not_retained += 1
        return source

    def _send_tsni(self, source: RetainingSource) -> None:
        now_ns, key = self._loop.now_ns(), _key(source.fragments)
        if now_ns >= self._tsni_ns.get(key, 0) and source.send_tsni():
            self._tsni_ns[key] = now_ns + TSNI_PAUSE_NS

    def _on_not_sent(self, _why: str, _remedy: str) -> None:
        self.not_sent += 1

    # streams

    def config_of(self, source: BoundSource[SourceStream], options: UmOptions) -> RecoveryConfig:
        """Return what the stream of a source may ask for."""
        late, otr = LateJoinOptions.of(options), OtrOptions.of(options)
        origin = origin_of(source.tir.options, source.otid)
        has_otr = otr.use == 1 or (otr.use == 2 and origin is not None and origin.is_persistent)
        if origin is None or not (late.is_used or has_otr) or not self._unicast.own_address.port:
            return NOTHING
        tsni = TsniReceiverOptions.of(options)
        return RecoveryConfig(
            late_join=late.fill(AskLimits, interval_max_ns=late.interval_ns, flag=FLAG_RETRANSMIT)
            if late.is_used
            else None,
            otr=otr.fill(AskLimits, flag=FLAG_OTR) if has_otr else None,
            info_interval_ns=late.info_interval_ns,
            info_max=late.info_max,
            request_max=late.request_max,
            proximity=late.proximity,
            held_max=DeliveryOptions.of(options).map_limit,
            asks_silent=late.asks_silent,
            silent_interval_ns=tsni.request_interval_ns,
            silent_max=tsni.request_maximum,
            otr_delay_ns=otr.otr_delay_ns,
            otr_threshold=otr.otr_threshold,
        )

    def on_bound(self, stream: SourceStream, source: BoundSource[SourceStream], options: UmOptions) -> None:
        """Note whom a stream asks, which may be elsewhere than before."""
        origin = origin_of(source.tir.options, source.otid)
        if origin is None or not stream.recovery.is_on:
            return
        index = self._indexes.get(stream)
        if index is not None:
            self._askers[index].origin = origin
            return
        while not index or index in self._askers:
            index = self._rng.getrandbits(32)
        self._indexes[stream] = index
        self._askers[index] = _AskingStream(stream, origin, OtrOptions.of(options).alert_cooldown_ns)

    def forget(self, stream: SourceStream) -> None:
        index = self._indexes.pop(stream, None)
        if index is not None:
            del self._askers[index]

    def ask(self, stream: SourceStream) -> None:
        """Send what the stream asks for."""
        asks, stream.recovery.asks = stream.recovery.asks, []
        index = self._indexes.get(stream)
        if index is None:
            return
        asker = self._askers[index]
        make = self._request_maker(index, asker)
        for ask in asks:
            if isinstance(ask, AskAgain) and ask.is_otr:
                self._alert(asker, ask.sqn)
            self._unicast.send_control(asker.origin.address, make(ask))

    def _request_maker(
        self, index: int, asker: _AskingStream
    ) -> Callable[[AskRetained | AskNewest | AskAgain], AnyBlock]:
        own, origin = self._unicast.own_address, asker.origin
        config = asker.stream.recovery.config

        def make(ask: AskRetained | AskNewest | AskAgain) -> AnyBlock:
            match ask:
                case AskRetained():
                    return LjiReq(
                        index, origin.transport_index, origin.topic_index, own.ip, own.port,
                        flags=LJI_RX_REQ_MAX | LJI_RX_REQ_OUTSTANDING_MAX,
                        rx_req_max=min(config.request_max, _U32),
                        rx_req_outstanding_max=min(config.late_join.outstanding_max if config.late_join else 0, _U32),
                    )  # fmt: skip
                case AskNewest():
                    sqn, flags = 0, RXREQ_TSNI
                case AskAgain():
                    sqn, flags = ask.sqn, 0
            return UmeRxReq(index, origin.transport_index, origin.topic_index, sqn, own.ip, own.port, flags=flags)

        return make

    def _alert(self, asker: _AskingStream, sqn: int) -> None:
        """Log a recovery, but not each of them."""
        now_ns = self._loop.now_ns()
        if now_ns >= asker.alert_ns:
            asker.alert_ns = now_ns + asker.alert_cooldown_ns
            extra = {"topic": asker.stream.topic.decode("utf-8", "backslashreplace"), "source": asker.stream.source}
            limited(LogEvent.OTR_STARTED, extra={**extra, "sqn": sqn})

    def _on_info(self, info: UmeLjInfo, _message: ControlMessage) -> None:
        asker = self._askers.get(info.request_index)
        if asker is not None:
            self._streams.on_retained(asker.stream, info.low_sqn, info.high_sqn)

    def _on_sent_again(self, record: Retransmission) -> bool:
        asker = self._askers.get(record.request_index)
        return asker is not None and self._streams.on_sent_again(asker.stream, record.message)


def _key(source: FragmentSource) -> tuple[int, int]:
    return source.transport.transport_index, source.topic_index


def _to(message: ControlMessage, ip: int, port: int) -> ContextAddress:
    """Return where an answer goes: the address in the request, in the domain that it comes from."""
    return ContextAddress(message.origin.domain_id if message.origin is not None else 0, ip, port)

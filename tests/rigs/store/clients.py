"""The scripted source and receiver of a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dro.proto.context.sources import BoundSource
from dro.proto.unicast.messages import Retransmission
from dro.sqn import MASK
from dro.um.message.events import Data
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc import ume_blocks as ume
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import Stream, TopicName, UmeRxReq
from dro.wire.lbmc.headers import ContextAddress
from dro.wire.lbmr.options import Ume
from tests.rigs.store.party import (
    AT_ONCE,
    KEEPALIVE_NS,
    LIFETIME_MS,
    PRIMARY,
    REPEAT_NS,
    SILENT_NS,
    SQN_MAX,
    PartyHost,
    PersistenceParty,
    index_of,
    information,
    persistence,
)

CONFIRMED_MAX = 1 << 14  # by one message


@dataclass
class Registration:
    """What a client has with a store. `reg_id` 0: the store is to choose one; `error`: it was refused, for good."""

    store: ContextAddress
    flags: int
    session_id: int
    reg_id: int = 0
    is_valid: bool = False
    error: int = 0
    heard_ns: int = 0
    asked_ns: int = -REPEAT_NS
    alive_ns: int = 0

    def step(self, party: PersistenceParty, marker: int, topic: bytes, index: tuple[int, int], source_id: int) -> bool:
        """Ask for it until it is there, and keep it; whether it is there."""
        now_ns, own = party.host.now_ns, party.host.own
        if self.error or not own.port or (self.store.domain_id and not own.domain_id):
            return False
        if self.is_valid and now_ns - self.heard_ns > SILENT_NS:
            self.is_valid = False
        if not self.is_valid:
            if now_ns - self.asked_ns >= REPEAT_NS:
                self.asked_ns = now_ns
                self.ask(party, marker, topic, index, source_id)
        elif now_ns - self.alive_ns >= KEEPALIVE_NS:
            self.alive_ns = now_ns
            self._keep_alive(party, marker, index)
        return self.is_valid

    def ask(
        self, party: PersistenceParty, marker: int, topic: bytes, index: tuple[int, int], source_id: int, more: int = 0
    ) -> None:
        own = party.host.own
        flags = self.flags | more
        preg = ume.UmePreg(marker, self.reg_id, *index, source_id, own.ip, own.port, flags=flags)
        extra = (
            ume.UmeCapability(flags=ume.CAPABILITY_QUORUM | ume.CAPABILITY_CLIENT_LIFETIME),
            ume.UmeClientLifetime(LIFETIME_MS, LIFETIME_MS, 0),
            ume.UmeStoreDomain(self.store.domain_id),
            *((ume.UmeSid(self.session_id),) if self.session_id else ()),
        )
        party.tell(self.store, preg, TopicName(topic), *extra)

    def _keep_alive(self, party: PersistenceParty, marker: int, index: tuple[int, int]) -> None:
        """A receiver with a session id has a block of its own for it."""
        if self.session_id and not marker & ume.MARKER_SOURCE:
            party.tell(self.store, ume.UmeRcvKeepalive(self.reg_id, self.session_id, bytes(8)))
        else:
            sender = 2 if marker & ume.MARKER_SOURCE else 1
            alive = ume.UmeKeepalive(sender, *index, self.reg_id, flags=ume.KEEPALIVE_ANSWER_WANTED)
            party.tell(self.store, alive)

    def take(self, answer: ume.UmePregResp, now_ns: int) -> bool:
        """Take an answer of the store; whether it is one that lets the client go on."""
        if answer.flags & ume.PREG_RESP_ERROR:
            self.error = answer.flags & 0xF
            return False
        if answer.flags & ume.PREG_RESP_DEREGISTER:
            self.is_valid = False
            return False
        self.reg_id, self.heard_ns, self.is_valid = answer.reg_id, now_ns, True
        return True


class ScriptedSource(PersistenceParty):
    """A source with one store. It sends when it is registered, and again to the store what that does not have."""

    MARKER = ume.MARKER_SOURCE | PRIMARY

    def __init__(
        self,
        host: PartyHost,
        topic: bytes,
        store: ContextAddress,
        *,
        session_id: int = 0,
        reg_id: int = 0,
        is_paced: bool = False,
        wants_proxy: bool = False,
    ) -> None:
        super().__init__(host)
        self.topic, self.opened = topic, host.open_source(topic)
        flags = ume.PREG_RECEIVER_PACED * is_paced | ume.PREG_PROXY_SOURCE * wants_proxy
        self.registration = Registration(store, flags, session_id, reg_id)
        self.next_sqn: int | None = None
        self.unstable: dict[int, tuple[bytes, int]] = {}  # and when it was sent last
        self.confirmed: set[tuple[int, int]] = set()
        """Registration ids of receivers, and the sqn that each has."""
        self.handlers = {
            ume.UmePregResp: self._on_answer,
            ume.UmeAck: self._on_ack,
            ume.UmeKeepalive: self._on_alive,
            ume.SriReq: self._on_information_wanted,
        }

    @property
    def is_ready(self) -> bool:
        return self.registration.is_valid

    def send(self, data: bytes) -> int:
        """Send a message; its sqn. Only when it `is_ready`."""
        assert self.next_sqn is not None
        sqn, self.next_sqn = self.next_sqn, self.next_sqn + 1
        self.unstable[sqn] = data, self.host.now_ns
        self.opened.send(data, sqn)
        return sqn

    def leave(self) -> None:
        """Take the registration back."""
        more = ume.PREG_DEREGISTER
        self.registration.ask(self, self.MARKER, self.topic, index_of(self.opened.otid), 0, more)

    def _on_answer(self, answer: ume.UmePregResp, message: lbmc.Message, _origin: ContextAddress) -> None:
        if answer.marker != self.MARKER or (answer.transport_index, answer.topic_index) != index_of(self.opened.otid):
            return
        if self.registration.take(answer, self.host.now_ns):
            if self.next_sqn is None:
                self.next_sqn = (answer.high_sqn + 1) & MASK
            store, sender = self.registration.store, message.get(Stream)
            instance = sender.ctxinst if sender is not None else b""
            self.opened.advertise(
                persistence(store, self.host.own, self.registration.reg_id, self.opened.otid, instance)
            )

    def _on_ack(self, ack: ume.UmeAck, message: lbmc.Message, _origin: ContextAddress) -> None:
        if (ack.transport_index, ack.id_2) != index_of(self.opened.otid):
            return
        ranged = message.get(ume.UmeRangedAck)
        first, last = (ranged.first_sqn, ranged.last_sqn) if ranged is not None else (ack.sqn, ack.sqn)
        if ack.ack_type == ume.ACK_STABLE:
            for sqn in [sqn for sqn in self.unstable if first <= sqn <= last]:
                del self.unstable[sqn]
        elif self.next_sqn is not None:
            end = min(last + 1, self.next_sqn)
            self.confirmed |= {(ack.receiver_reg_id, sqn) for sqn in range(max(first, end - CONFIRMED_MAX), end)}

    def _on_alive(self, _alive: ume.UmeKeepalive, _message: lbmc.Message, origin: ContextAddress) -> None:
        if origin == self.registration.store:
            self.registration.heard_ns = self.host.now_ns

    def _on_information_wanted(self, asked: ume.SriReq, _message: lbmc.Message, _origin: ContextAddress) -> None:
        if self.is_ready and (asked.transport_index, asked.topic_index) == index_of(self.opened.otid):
            high = ((self.next_sqn or 0) - 1) & MASK
            registration = self.registration
            self.opened.send_information(*information(registration.store, registration.reg_id, 0, high))

    def step(self) -> None:
        index = index_of(self.opened.otid)
        if not self.registration.step(self, self.MARKER, self.topic, index, 0):
            return
        now_ns = self.host.now_ns
        late = [sqn for sqn, (_, sent_ns) in self.unstable.items() if now_ns - sent_ns >= REPEAT_NS]
        for sqn in late[:AT_ONCE]:
            data = self.unstable[sqn][0]
            self.unstable[sqn] = data, now_ns
            message = lbmc.Message(MessageType.MESSAGE, index[1], sqn, (), data)
            self.tell_again(self.registration.store, message, self.registration.reg_id)


@dataclass
class ReceivedStream:
    """The messages of one source, by whichever session they come. `next_sqn`: None until the store has said it."""

    source_id: int
    registration: Registration
    source: ContextAddress
    index: tuple[int, int]
    next_sqn: int | None = None
    high: int = -1
    begin: int = 0
    held: dict[int, bytes] = field(default_factory=dict)
    asked_ns: dict[int, int] = field(default_factory=dict)


class ScriptedReceiver(PersistenceParty):
    """A receiver of a topic: it finds the stores of the sources, and gets from them what it has missed."""

    HELD_MAX = 10_000

    def __init__(
        self, host: PartyHost, topic: bytes, *, session_id: int = 0, is_paced: bool = False, reg_id: int = 0
    ) -> None:
        super().__init__(host)
        self.topic = topic
        self.got: list[bytes] = []
        self.recovered = 0
        self.streams: dict[tuple[ContextAddress, int], ReceivedStream] = {}
        self._of_source: dict[bytes, ReceivedStream] = {}  # by OTID
        self._asked_ns: dict[bytes, int] = {}
        self._early: dict[bytes, dict[int, bytes]] = {}
        self._session_id, self._reg_id = session_id, reg_id
        self._flags = ume.PREG_RECEIVER_PACED * is_paced
        self.handlers = {ume.UmePregResp: self._on_answer, ume.UmeKeepalive: self._on_alive}
        host.open_receiver(topic, self._on_data)

    @property
    def errors(self) -> list[int]:
        return [stream.registration.error for stream in self.streams.values()]

    # which stores

    def on_information(self, source: BoundSource[Any], message: lbmc.Message) -> None:
        """Take what a source says of its store: it alone has the domain."""
        told = message.get(ume.UmeStoreInfoExt)
        options = source.tir.options
        if told is None or source.topic != self.topic or options is None or options.extended is None:
            return
        store = ContextAddress(told.domain_id, told.ip, told.port)
        extended = options.extended
        origin = ContextAddress(options.domain_id or 0, extended.ip, extended.port)
        stream = self.streams.get((store, told.source_reg_id))
        if stream is None:
            registration = Registration(store, self._flags, self._session_id, self._reg_id)
            stream = ReceivedStream(told.source_reg_id, registration, origin, index_of(source.otid))
            self.streams[store, told.source_reg_id] = stream
        stream.source, stream.index = origin, index_of(source.otid)
        self._of_source[source.otid] = stream
        for sqn, data in self._early.pop(source.otid, {}).items():
            self._take(stream, sqn, data)

    def step(self) -> None:
        now_ns = self.host.now_ns
        for source in self.host.bound(self.topic):
            options = source.tir.options
            offered = options.first(Ume) if options is not None else None
            if options is None or offered is None or not offered.registration_id or options.extended is None:
                continue
            stream = self._of_source.get(source.otid)
            if stream is not None and stream.source_id == offered.registration_id:
                continue
            if now_ns - self._asked_ns.get(source.otid, -REPEAT_NS) >= REPEAT_NS:
                self._asked_ns[source.otid] = now_ns
                to = ContextAddress(options.domain_id or 0, options.extended.ip, options.extended.port)
                self.tell(to, ume.SriReq(*index_of(source.otid)))
        for stream in self.streams.values():
            before_ns = stream.registration.alive_ns
            if stream.registration.step(self, PRIMARY, self.topic, stream.index, stream.source_id):
                self._fetch(stream, now_ns)
                if stream.registration.alive_ns != before_ns:
                    self._acknowledge(stream, stream.begin)  # one may have been lost

    # registration

    def _on_answer(self, answer: ume.UmePregResp, _message: lbmc.Message, origin: ContextAddress) -> None:
        for stream in self.streams.values():
            registration = stream.registration
            if registration.store != origin or answer.marker != PRIMARY or (
                answer.transport_index, answer.topic_index
            ) != stream.index:  # fmt: skip
                continue
            if registration.take(answer, self.host.now_ns):
                if answer.high_sqn < SQN_MAX:
                    stream.high = max(stream.high, answer.high_sqn)
                if stream.next_sqn is None and answer.low_sqn <= SQN_MAX:
                    stream.next_sqn = stream.begin = answer.low_sqn
                self._hand_up(stream)

    def _on_alive(self, _alive: ume.UmeKeepalive, _message: lbmc.Message, origin: ContextAddress) -> None:
        for stream in self.streams.values():
            if stream.registration.store == origin:
                stream.registration.heard_ns = self.host.now_ns

    def leave(self) -> None:
        """Take the registrations back."""
        for stream in self.streams.values():
            stream.registration.ask(self, PRIMARY, self.topic, stream.index, stream.source_id, ume.PREG_DEREGISTER)

    # messages

    def _on_data(self, data: Data) -> None:
        stream = self._of_source.get(data.otid)
        if stream is not None:
            self._take(stream, data.sqn, data.data)
        else:
            self._early.setdefault(data.otid, {})[data.sqn] = data.data

    def on_last_sqn(self, source: BoundSource[Any], sqn: int) -> None:
        """Fetch what was lost at the end as well."""
        stream = self._of_source.get(source.otid)
        if stream is not None and sqn < SQN_MAX:
            stream.high = max(stream.high, sqn)

    def on_again(self, sent: Retransmission) -> bool:
        """Take a message from the store; the index of the request is the registration id of the source."""
        for stream in self.streams.values():
            sqn = sent.message.sqn
            if stream.source_id == sent.request_index and sqn is not None and sqn in stream.asked_ns:
                self.recovered += stream.next_sqn is not None and sqn >= stream.next_sqn and sqn not in stream.held
                self._take(stream, sqn, bytes(sent.message.payload))
                return True
        return False

    def _take(self, stream: ReceivedStream, sqn: int, data: bytes) -> None:
        if sqn < (stream.next_sqn or 0) or len(stream.held) >= self.HELD_MAX:
            return
        stream.held[sqn] = data
        stream.high = max(stream.high, sqn)
        self._hand_up(stream)

    def _hand_up(self, stream: ReceivedStream) -> None:
        """Hand up what is in order, and acknowledge it."""
        if stream.next_sqn is None:
            return
        first = stream.next_sqn
        for sqn in [sqn for sqn in stream.held if sqn < first]:
            del stream.held[sqn]
        while (data := stream.held.pop(stream.next_sqn, None)) is not None:
            self.got.append(data)
            stream.asked_ns.pop(stream.next_sqn, None)
            stream.next_sqn += 1
        if stream.next_sqn > first:
            self._acknowledge(stream, first)

    def _acknowledge(self, stream: ReceivedStream, first: int) -> None:
        """Tell the store, and the source."""
        registration, last = stream.registration, (stream.next_sqn or 0) - 1
        if last < first or not registration.is_valid:
            return
        transport_index, topic_index = stream.index
        for to, number in ((registration.store, stream.source_id), (stream.source, topic_index)):
            ack = ume.UmeAck(ume.ACK_DELIVERED, transport_index, number, registration.reg_id, last)
            self.tell(to, ack, ume.UmeRangedAck(first, last))

    def _fetch(self, stream: ReceivedStream, now_ns: int) -> None:
        """Ask for the oldest that are missing."""
        if stream.next_sqn is None:
            return
        own = self.host.own
        wanted = range(stream.next_sqn, min(stream.high + 1, stream.next_sqn + self.HELD_MAX))
        missing = [sqn for sqn in wanted if sqn not in stream.held][:AT_ONCE]
        for sqn in missing:
            if now_ns - stream.asked_ns.get(sqn, -REPEAT_NS) >= REPEAT_NS:
                stream.asked_ns[sqn] = now_ns
                asked = UmeRxReq(
                    stream.source_id, stream.index[0], stream.source_id, sqn, own.ip, own.port, flags=PRIMARY
                )
                self.tell(stream.registration.store, asked)

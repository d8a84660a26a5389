"""The scripted store: registrations, the messages that it keeps, and its proxy sources."""

from __future__ import annotations

from dataclasses import dataclass, field

from dro.clock import ms
from dro.proto.unicast.messages import Retransmission
from dro.sqn import MASK
from dro.um.message.events import Data
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc import ume_blocks as ume
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import TopicName, UmeRxReq
from dro.wire.lbmc.headers import ContextAddress
from tests.rigs.store.party import (
    CLIENTS_MAX,
    DIFFERS,
    IN_USE,
    KEPT_MAX_BYTES,
    LIFETIME_MS,
    NO_PATTERN,
    OF_RECEIVER,
    OTHER_TOPIC,
    SQN_MAX,
    UNKNOWN_SOURCE,
    PartyHost,
    PartySource,
    PersistenceParty,
    Place,
    index_of,
    information,
    persistence,
)


@dataclass
class StoreClient:
    """One registration, of a source or of a receiver. `acked`: the last sqn that a receiver has acknowledged."""

    reg_id: int
    place: Place
    address: ContextAddress
    session_id: int
    is_paced: bool = False
    wants_proxy: bool = False
    lifetime_ms: int = LIFETIME_MS
    heard_ns: int = 0
    source_reg_id: int = 0
    acked: int | None = None
    is_forwarding: bool = True


@dataclass
class StoreState:
    """All that a store has to know after a restart. `messages`: by the registration id of their source, by sqn."""

    sources: dict[int, StoreClient] = field(default_factory=dict)
    receivers: dict[int, StoreClient] = field(default_factory=dict)
    messages: dict[int, dict[int, bytes]] = field(default_factory=dict)
    high: dict[int, int] = field(default_factory=dict)
    last_id: int = 0
    kept_bytes: int = 0


class ScriptedStore(PersistenceParty):
    """See the module text. `topics`: how those begin that it takes; `takes_paced`: receiver-paced sources."""

    def __init__(
        self,
        host: PartyHost,
        kept: StoreState | None = None,
        *,
        topics: bytes = b"",
        takes_paced: bool = True,
        first_id: int = 0,
    ) -> None:
        super().__init__(host)
        self.kept = kept or StoreState(last_id=first_id)
        self.proxies: dict[int, PartySource] = {}
        self.reclaimed = 0
        self._topics, self._takes_paced = topics, takes_paced
        self._open: dict[bytes, object] = {}
        self.handlers = {
            ume.UmePreg: self._on_registration,
            ume.UmeAck: self._on_ack,
            ume.UmeKeepalive: self._on_keepalive,
            ume.UmeRcvKeepalive: self._on_receiver_alive,
            UmeRxReq: self._on_request,
            ume.SriReq: self._on_information_wanted,
        }
        for client in self.kept.sources.values():
            client.heard_ns = host.now_ns
            self._listen(client.place[0])

    def _listen(self, topic: bytes) -> None:
        if topic not in self._open:
            self._open[topic] = self.host.open_receiver(topic, lambda data: self._on_data(topic, data))

    # registrations

    def _on_registration(self, asked: ume.UmePreg, message: lbmc.Message, origin: ContextAddress) -> None:
        name, sid, life = message.get(TopicName), message.get(ume.UmeSid), message.get(ume.UmeClientLifetime)
        if name is None:
            return
        is_source = bool(asked.marker & ume.MARKER_SOURCE)
        wanted = StoreClient(
            asked.reg_id,
            (name.topic, asked.transport_index, asked.topic_index),
            origin,
            sid.session_id if sid is not None else 0,
            bool(asked.flags & ume.PREG_RECEIVER_PACED),
            bool(asked.flags & ume.PREG_PROXY_SOURCE),
            life.lifetime if life is not None else LIFETIME_MS,
            self.host.now_ns,
            asked.source_reg_id,
            is_forwarding=not asked.flags & ume.PREG_NO_ACK_FORWARD,
        )
        table = self.kept.sources if is_source else self.kept.receivers
        known = self._known(table, wanted)
        error = self._refusal(wanted, known, is_source=is_source)
        flags, low, high = ume.PREG_RESP_ERROR | error, 0, 0
        if not error:
            flags = ume.PREG_RESP_KNOWN if known is not None else 0
            flags |= ume.PREG_RESP_RECEIVER_PACED if wanted.is_paced else 0
            if asked.flags & ume.PREG_DEREGISTER:
                flags |= ume.PREG_RESP_DEREGISTER
                wanted.reg_id = known.reg_id if known is not None else 0
                self._forget(table, wanted.reg_id)
            else:
                self._enter(table, wanted, known)
                low, high = self._range(wanted, is_source=is_source)
        self.tell(origin, ume.UmePregResp(
            asked.marker, wanted.reg_id, asked.transport_index, asked.topic_index, low, high, flags=flags
        ))  # fmt: skip

    def _known(self, table: dict[int, StoreClient], wanted: StoreClient) -> StoreClient | None:
        """Find a client by its id, or else by its session id."""
        if wanted.reg_id:
            return table.get(wanted.reg_id)
        return next(
            (c for c in table.values() if c.session_id == wanted.session_id != 0 and c.place[0] == wanted.place[0]
             and c.source_reg_id == wanted.source_reg_id), None,
        )  # fmt: skip

    def _refusal(self, wanted: StoreClient, known: StoreClient | None, *, is_source: bool) -> int:
        kept = self.kept
        if not wanted.place[0].startswith(self._topics):
            return NO_PATTERN
        if (wanted.reg_id if is_source else wanted.source_reg_id) in kept.receivers:
            return OF_RECEIVER
        if known is not None and known.place[0] != wanted.place[0]:
            return OTHER_TOPIC
        if is_source:
            if known is not None and known.session_id != wanted.session_id:
                return IN_USE
            return DIFFERS if wanted.is_paced and not self._takes_paced else 0
        source = kept.sources.get(wanted.source_reg_id)
        if source is None or (len(kept.receivers) >= CLIENTS_MAX and known is None):
            return UNKNOWN_SOURCE
        if source.place[0] != wanted.place[0]:
            return OTHER_TOPIC
        return DIFFERS if source.is_paced != wanted.is_paced else 0

    def _enter(self, table: dict[int, StoreClient], wanted: StoreClient, known: StoreClient | None) -> None:
        if known is not None:
            wanted.reg_id, wanted.acked = known.reg_id, known.acked
        elif not wanted.reg_id:
            self.kept.last_id += 1
            wanted.reg_id = self.kept.last_id
        if len(table) >= CLIENTS_MAX and known is None:
            self._forget(table, next(iter(table)))
        table[wanted.reg_id] = wanted
        if table is self.kept.sources:
            self.kept.messages.setdefault(wanted.reg_id, {})
            self.kept.high.setdefault(wanted.reg_id, -1)
            proxy = self.proxies.pop(wanted.reg_id, None)
            if proxy is not None:
                proxy.close()
            self._listen(wanted.place[0])

    def _range(self, client: StoreClient, *, is_source: bool) -> tuple[int, int]:
        """Of a source what is kept; of a receiver where it begins, and the end."""
        source_id = client.reg_id if is_source else client.source_reg_id
        messages, high = self.kept.messages[source_id], self.kept.high[source_id]
        low = min(messages, default=high + 1)
        if not is_source and client.acked is not None:
            low = max(low, client.acked + 1)
        return low & MASK, high & MASK

    def _forget(self, table: dict[int, StoreClient], reg_id: int) -> None:
        if table.pop(reg_id, None) is None or table is self.kept.receivers:
            return
        self.kept.kept_bytes -= sum(map(len, self.kept.messages.pop(reg_id).values()))
        del self.kept.high[reg_id]
        proxy = self.proxies.pop(reg_id, None)
        if proxy is not None:
            proxy.close()

    # messages

    def _on_data(self, topic: bytes, data: Data) -> None:
        place = (topic, *index_of(data.otid))
        for source in self.kept.sources.values():
            if source.place == place:
                self._keep(source, data.sqn, data.data)

    def on_again(self, sent: Retransmission) -> bool:
        source = self.kept.sources.get(sent.request_index)
        if source is None or sent.message.sqn is None:
            return False
        self._keep(source, sent.message.sqn, bytes(sent.message.payload))
        return True

    def _keep(self, source: StoreClient, sqn: int, data: bytes) -> None:
        """Keep a message and say that it is stable; what does not fit is not acknowledged."""
        messages = self.kept.messages[source.reg_id]
        if sqn not in messages and not self._is_reclaimed(source, sqn):
            if self.kept.kept_bytes + len(data) > KEPT_MAX_BYTES or sqn >= SQN_MAX:
                return
            messages[sqn] = data
            self.kept.kept_bytes += len(data)
            self.kept.high[source.reg_id] = max(sqn, self.kept.high[source.reg_id])
        self.tell(
            source.address,
            ume.UmeAck(ume.ACK_STABLE, source.place[1], source.place[2], 0, sqn),
            ume.UmeRangedAck(sqn, sqn),
        )

    def _is_reclaimed(self, source: StoreClient, sqn: int) -> bool:
        acked = self._acked_by_all(source)
        return acked is not None and sqn <= acked

    def _acked_by_all(self, source: StoreClient) -> int | None:
        """Find the last sqn that nobody needs any more; None where that is not asked for."""
        if not source.is_paced:
            return None
        acked = [c.acked for c in self.kept.receivers.values() if c.source_reg_id == source.reg_id]
        return min((-1 if sqn is None else sqn for sqn in acked), default=None)

    def _on_ack(self, ack: ume.UmeAck, message: lbmc.Message, origin: ContextAddress) -> None:
        receiver, source = self.kept.receivers.get(ack.receiver_reg_id), self.kept.sources.get(ack.id_2)
        if receiver is None or source is None or receiver.source_reg_id != ack.id_2 or ack.ack_type:
            return
        receiver.heard_ns = self.host.now_ns
        ranged = message.get(ume.UmeRangedAck)
        last = min(ranged.last_sqn if ranged is not None else ack.sqn, self.kept.high[source.reg_id])
        receiver.acked = max(last, -1 if receiver.acked is None else receiver.acked)
        acked = self._acked_by_all(source)
        messages = self.kept.messages[source.reg_id]
        for sqn in [sqn for sqn in messages if acked is not None and sqn <= acked]:
            self.kept.kept_bytes -= len(messages.pop(sqn))
            self.reclaimed += 1

    def _on_request(self, asked: UmeRxReq, _message: lbmc.Message, origin: ContextAddress) -> None:
        """Send a message again; `id_2` is the registration id of the source."""
        source = self.kept.sources.get(asked.id_2)
        data = self.kept.messages.get(asked.id_2, {}).get(asked.sqn)
        if source is not None and data is not None and asked.ip and asked.port:
            kept = lbmc.Message(MessageType.MESSAGE, source.place[2], asked.sqn, (), data)
            self.tell_again(ContextAddress(origin.domain_id, asked.ip, asked.port), kept, asked.request_index)

    # life

    def _on_keepalive(self, alive: ume.UmeKeepalive, _message: lbmc.Message, origin: ContextAddress) -> None:
        client = (self.kept.sources if alive.sender == 2 else self.kept.receivers).get(alive.reg_id)
        self._answer_alive(client, origin)

    def _on_receiver_alive(self, alive: ume.UmeRcvKeepalive, _message: lbmc.Message, origin: ContextAddress) -> None:
        client = self.kept.receivers.get(alive.receiver_reg_id)
        self._answer_alive(client if client is not None and client.session_id == alive.session_id else None, origin)

    def _answer_alive(self, client: StoreClient | None, origin: ContextAddress) -> None:
        """Without an answer a client registers again."""
        if client is not None and client.address == origin:
            client.heard_ns = self.host.now_ns
            self.tell(origin, ume.UmeKeepalive(0, *client.place[1:], client.reg_id))

    def _on_information_wanted(self, asked: ume.SriReq, _message: lbmc.Message, _origin: ContextAddress) -> None:
        """Of a proxy source, which is a source as any other one."""
        for reg_id, proxy in self.proxies.items():
            if index_of(proxy.otid) == (asked.transport_index, asked.topic_index):
                high = self.kept.high[reg_id]
                proxy.send_information(*information(self.host.own, reg_id, high, high))

    def step(self) -> None:
        """Forget clients that are silent for longer than they said; a source that wants it gets a proxy source."""
        now_ns = self.host.now_ns
        for table in (self.kept.sources, self.kept.receivers):
            for reg_id, client in list(table.items()):
                if now_ns - client.heard_ns < ms(client.lifetime_ms):
                    continue
                if table is self.kept.sources:
                    if client.wants_proxy and reg_id not in self.proxies:
                        self.proxies[reg_id] = proxy = self.host.open_source(client.place[0])
                        proxy.advertise(persistence(self.host.own, self.host.own, reg_id, proxy.otid, b""))
                elif not client.session_id:
                    self._forget(table, reg_id)  # one with a session id comes back

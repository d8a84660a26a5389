"""A target that is the scripted parties of persistence: arbitrary control messages and messages sent again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from dro.clock import ms
from dro.errors import DecodeError
from dro.proto.context.sources import BoundSource
from dro.proto.unicast.messages import Retransmission
from dro.um.message.events import Data
from dro.wire import otid as otid_codec
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc import ume_blocks as ume
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import END_DATA, MessageType
from dro.wire.lbmc.data_blocks import Destination, Stream, TopicName, UmeRxReq
from dro.wire.lbmc.headers import ContextAddress
from dro.wire.lbmr.options import TirOption
from dro.wire.source_string import TcpAddress
from tests.fuzz.mutate import script, steps_of
from tests.fuzz.target import Target
from tests.rigs.store.clients import ReceivedStream, Registration, ScriptedReceiver, ScriptedSource
from tests.rigs.store.keeper import ScriptedStore
from tests.rigs.store.party import CLIENTS_MAX, KEPT_MAX_BYTES, PersistenceParty, information

_TOPIC: Final = b"topic"
_OTID: Final = otid_codec.encode(TcpAddress(1, 2, 3), 5, 6, 7)
_PLACE: Final = (7, 5)
_STORE: Final = ContextAddress(1, 1, 1)
_WAY: Final = (Destination(1, 1, 1, 2, 2, 2), Stream(1, 1, bytes(8)))


class _WrittenSource:
    otid = _OTID

    def advertise(self, options: Iterable[TirOption]) -> None:
        tuple(options)

    def send(self, data: bytes, sqn: int) -> None: ...

    def send_information(self, *blocks: AnyBlock) -> None:
        lbmc.encode(lbmc.control_message(*blocks))

    def close(self) -> None: ...


class _WritingHost:
    """Writes what a party sends, so what cannot be written is seen."""

    own = ContextAddress(2, 2, 2)

    def __init__(self) -> None:
        self.now_ns = ms(1000)
        self.on_data: list[Callable[[Data], object]] = []

    def send_control(self, to: ContextAddress, *blocks: AnyBlock) -> None:
        lbmc.encode(lbmc.control_message(*blocks, Destination(to.domain_id, to.ip, to.port, 2, 2, 2)))

    def send_again(self, to: ContextAddress, message: lbmc.Message, request_index: int) -> None:
        lbmc.encode(message)

    def open_source(self, topic: bytes) -> _WrittenSource:
        return _WrittenSource()

    def open_receiver(self, topic: bytes, on_data: Callable[[Data], object]) -> None:
        self.on_data.append(on_data)

    def bound(self, topic: bytes) -> list[BoundSource[Any]]:
        return []


def _parties(host: _WritingHost) -> list[PersistenceParty]:
    receiver = ScriptedReceiver(host, _TOPIC, session_id=4)
    receiver.streams[_STORE, 1] = ReceivedStream(1, Registration(_STORE, 0, 4), ContextAddress(2, 2, 3), _PLACE)
    source = ScriptedSource(host, _TOPIC, _STORE, session_id=3, wants_proxy=True)
    return [ScriptedStore(host), source, receiver]


def _check(data: bytes) -> Hashable:
    """All hear all of it; what they keep is bounded, and the store's books are right."""
    host = _WritingHost()
    parties = _parties(host)
    store, source, receiver = parties
    assert isinstance(store, ScriptedStore)
    assert isinstance(source, ScriptedSource)
    assert isinstance(receiver, ScriptedReceiver)
    taken, why = 0, DecodeError("script", "no message")
    for after_ms, packet in steps_of(data):
        host.now_ns += ms(min(after_ms, 10_000))
        try:
            message = lbmc.decode(packet)
        except DecodeError as e:
            why = e
            continue
        taken += 1
        for party in parties:
            for block in message.blocks:
                party.on_control(block, message)
            if message.end == END_DATA:
                party.on_again(Retransmission(message.topic_index or 0, message))
            party.step()
        if source.is_ready and len(source.unstable) < 20:
            sqn = source.send(b"x")
            for on_data in host.on_data:
                on_data(Data("topic", "", sqn, b"x", 0, _OTID))
    if not taken:
        raise why
    kept = store.kept
    held = sum(sum(map(len, messages.values())) for messages in kept.messages.values())
    assert held == kept.kept_bytes <= KEPT_MAX_BYTES
    assert set(kept.sources) == set(kept.messages) == set(kept.high)
    assert max(len(kept.sources), len(kept.receivers)) <= CLIENTS_MAX
    assert set(store.proxies) <= set(kept.sources)
    heard = tuple(tuple(sorted(party.heard)) for party in parties)
    return heard, bool(held), source.is_ready, bool(source.registration.error), bool(receiver.got)


def _seeds() -> list[bytes]:
    def control(*blocks: AnyBlock) -> bytes:
        return lbmc.encode(lbmc.control_message(*blocks, *_WAY))

    def from_store(*blocks: AnyBlock) -> bytes:
        return lbmc.encode(lbmc.control_message(*blocks, Destination(2, 2, 2, 1, 1, 1), Stream(1, 1, bytes(8))))

    def again(sqn: int) -> bytes:
        return lbmc.encode(lbmc.Message(MessageType.RETRANSMISSION, 1, sqn, _WAY, b"%d" % sqn))

    marker = ScriptedSource.MARKER
    as_source = control(ume.UmePreg(marker, 0, *_PLACE, 0, 2, 2), TopicName(_TOPIC), ume.UmeSid(3))
    as_receiver = control(ume.UmePreg(1, 0, *_PLACE, 1, 2, 2), TopicName(_TOPIC), ume.UmeClientLifetime(1, 500, 0))
    leaving = control(ume.UmePreg(marker, 1, *_PLACE, 0, 2, 2, flags=ume.PREG_DEREGISTER), TopicName(_TOPIC))
    acks = [control(ume.UmeAck(kind, *_PLACE, 2, 1), ume.UmeRangedAck(0, 1)) for kind in (0, 1)]
    asked = control(UmeRxReq(1, 7, 1, 0, 2, 2))
    answers = [from_store(ume.UmePregResp(kind, 1, *_PLACE, 0, 1)) for kind in (marker, 1)]
    alive = [control(ume.UmeKeepalive(2, *_PLACE, 1)), control(ume.UmeRcvKeepalive(2, 4, bytes(8)))]
    told = [control(ume.SriReq(*_PLACE)), control(*information(_STORE, 1, 0, 1))]
    all_of_it = [as_source, again(0), again(1), as_receiver, *answers, asked, *acks, *alive, *told, leaving]
    return [script([(100, packet) for packet in all_of_it]), *(script([(10, packet)]) for packet in all_of_it)]


TARGETS: Final = [Target("persistence", _seeds, _check, form="script")]

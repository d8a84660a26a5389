"""A scripted party on a context of the client library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from dro.config.um.options import UmOptions
from dro.proto.context.sources import BoundSource
from dro.proto.unicast.messages import ControlMessage, Retransmission
from dro.timers import Timer
from dro.transport.runs import KIND_CONTROL, KIND_TSNI, RunTable
from dro.transport.session import ReceiverTransport
from dro.um.message.context import MessageContext
from dro.um.message.events import Data, Event, WouldBlock
from dro.um.message.receiver import CallbackListener, MessageReceiver
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.data_blocks import TopicIdx
from dro.wire.lbmc.headers import ContextAddress
from dro.wire.lbmr.options import TirOption
from tests.rigs.store.party import STEP_NS, PersistenceParty

NOTHING = UmOptions({}, {})


class ContextSource:
    """Implements `PartySource`."""

    def __init__(self, context: MessageContext, topic: bytes) -> None:
        self._context = context
        self._source = context.source(topic.decode(), NOTHING)
        self.otid = self._source.fragments.otid

    def advertise(self, options: Iterable[TirOption]) -> None:
        self._source.fragments.update(options)

    def send(self, data: bytes, sqn: int) -> None:
        self._source._next_sqn = sqn
        with suppress(WouldBlock):  # the store gets it when it is sent again
            self._source.send(data)

    def send_information(self, *blocks: AnyBlock) -> None:
        fragments = self._source.fragments
        message = lbmc.control_message(TopicIdx(fragments.topic_index), *blocks)
        fragments.transport.send_message(lbmc.encode(message), self._context.loop.now_ns())

    def close(self) -> None:
        self._source.close()


class ContextHost:
    """Implements `PartyHost`, and calls the party."""

    def __init__(self, context: MessageContext) -> None:
        self.context = context
        self._loop = context.loop
        self._timer: Timer | None = None
        self.receivers: list[MessageReceiver] = []

    @property
    def now_ns(self) -> int:
        return self._loop.now_ns()

    @property
    def own(self) -> ContextAddress:
        return self.context.unicast.own_address

    def send_control(self, to: ContextAddress, *blocks: AnyBlock) -> None:
        self.context.unicast.send_control(to, *blocks)

    def send_again(self, to: ContextAddress, message: lbmc.Message, request_index: int) -> None:
        self.context.unicast.send_again(to, lbmc.encode(message), request_index)

    def open_source(self, topic: bytes) -> ContextSource:
        return ContextSource(self.context, topic)

    def open_receiver(self, topic: bytes, on_data: Callable[[Data], object]) -> None:
        def on_event(event: Event) -> None:
            if isinstance(event, Data):
                on_data(event)

        self.receivers.append(self.context.receiver(topic.decode(), CallbackListener(on_event), NOTHING))

    def bound(self, topic: bytes) -> list[BoundSource[Any]]:
        return [session for stream in self.context.delivery._streams.of_topic(topic) for session in stream.sessions]

    def start(self, party: PersistenceParty) -> None:
        """Give the party what comes, and its steps."""
        unicast = self.context.unicast

        def on_control(block: AnyBlock, record: ControlMessage) -> None:
            party.on_control(block, record.message)

        for kind in party.handlers:
            unicast.take_control(kind, on_control)  # type: ignore[type-var]  # the raw block is none of them

        def on_again(sent: Retransmission) -> bool:
            party.came += 1
            return party.on_again(sent)

        unicast.on_retransmission = on_again
        hand_on = self.context.delivery.on_fragments

        def on_fragments(view: memoryview, parts: Sequence[tuple[ReceiverTransport, RunTable]], now_ns: int) -> None:
            for transport, table in parts:
                for run in table:
                    bound = transport.sources.get(run.topic_index)
                    if bound is None:
                        continue
                    if run.kind == KIND_CONTROL:
                        party.on_information(bound, lbmc.decode(bytes(view[run.offset : run.offset + run.length])))
                    elif run.kind == KIND_TSNI:
                        party.on_last_sqn(bound, run.first_sqn)
            hand_on(view, parts, now_ns)

        self.context.delivery.on_fragments = on_fragments  # type: ignore[method-assign]
        self._step(party)

    def _step(self, party: PersistenceParty) -> None:
        party.step()
        self._timer = self._loop.call_later(STEP_NS, lambda: self._step(party))

    def pause(self) -> None:
        """Do nothing more of its own."""
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """End as a program that is killed does: nobody is told, but that its sockets close."""
        self.pause()
        for source in list(self.context._sources):
            source.close(final=False)
        self.context.close_children()
        self.context.close()

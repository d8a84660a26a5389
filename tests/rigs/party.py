"""A context of one TRD in the process of the test, for what an application can send to a DRO and hear of it."""

from __future__ import annotations

from dro.loop import Loop
from dro.transport import sockets
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.client_config import Config
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import Destination, Request, Stream
from tests.fakes.um_contexts import RecordingSink
from tests.rigs.immediate import Immediate
from tests.rigs.network import Plan

LOOPBACK = sockets.ip_number("127.0.0.1")
NOBODY = 9  # a port on which nobody listens


class Party:
    """It does something only in `turn`, so one that is not turned does not read either."""

    def __init__(self, plan: Plan, trd: int) -> None:
        self.trd = trd
        self._loop = Loop()
        self.sink = RecordingSink()
        self.context = FragmentContext(Config.load(plan.config(trd)).options, self._loop, sink=self.sink)
        self.immediate = Immediate(self.context)
        self.offers: dict[int, tuple[int, int]] = {}
        """By domain, the DRO that takes unicast messages for it."""
        self.unicasts = 0
        self.is_reading = True
        self._sqn: dict[FragmentSource, int] = {}
        self._stream = 0
        self.context.on_unicast = lambda *_: self._on_unicast()
        self.context.on_domain_route = lambda domains, ip, port: self.offers.update(dict.fromkeys(domains, (ip, port)))

    def _on_unicast(self) -> None:
        self.unicasts += 1

    def turn(self) -> None:
        if self.is_reading:
            self._loop.run_once(0)

    def close(self) -> None:
        self.context.close()
        self._loop.close()

    def has_heard(self, topic: bytes) -> bool:
        return any(name == topic for name, _, _ in self.sink.fragments)

    # sources

    def source(self, topic: bytes) -> FragmentSource:
        source = self.context.open_source(topic)
        self._sqn[source] = 0
        return source

    def send(self, source: FragmentSource, *blocks: AnyBlock, size: int = 20, is_again: bool = False) -> None:
        """A message, or with `is_again` one with the number of that before."""
        self._sqn[source] += not is_again
        message = lbmc.Message(MessageType.MESSAGE, source.topic_index, self._sqn[source] - 1, blocks, bytes(size))
        self._put(source, lbmc.encode(message))

    def send_control(self, source: FragmentSource, *blocks: AnyBlock) -> None:
        self._put(source, lbmc.encode(lbmc.control_message(*blocks)))

    def request(self) -> Request:
        return Request(1, *self.context.request_address)

    def _put(self, source: FragmentSource, message: bytes) -> None:
        assert source.transport.send_message(message, self._loop.now_ns())

    # unicast messages

    def destination(self, domain_id: int, ip: int = LOOPBACK, port: int = NOBODY) -> Destination:
        return Destination(domain_id, ip, port, self.trd, *self.context.request_address)

    def stream(self) -> Stream:
        self._stream += 1
        return Stream(5, self._stream - 1, self.context.context_instance)

    def send_unicast(self, via: int, *blocks: AnyBlock, is_control: bool = False, size: int = 10) -> None:
        """To the DRO that takes them for domain `via`."""
        self.context.send_unicast(*self.offers[via], unicast(*blocks, is_control=is_control, size=size))


def unicast(*blocks: AnyBlock, is_control: bool = False, size: int = 10) -> bytes:
    """A unicast message."""
    if is_control:
        return lbmc.encode(lbmc.control_message(*blocks))
    return lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, blocks, bytes(size)))

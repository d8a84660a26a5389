"""The application side of multicast immediate messages, as small as it can be: who sends, and who keeps what comes."""

from __future__ import annotations

from dro.proto.unicast.connections import Outcome
from dro.um.fragment.context import FragmentContext
from dro.wire import otid
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import Block
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import ODomain, OtidBlock, Request, TopicName
from tests.rigs.network import Plan


def give_groups(plan: Plan) -> None:
    """Immediate messages on a group of each TRD, on the port of its other data."""
    for trd in plan.trds:
        path = plan.config(trd)
        words = [line.split() for line in path.read_text().splitlines()]
        option = {name: value for _, name, value in words}
        net = option["resolver_multicast_address"].rpartition(".")[0]
        with path.open("a") as file:
            file.write(f"context mim_address {net}.31\n")
            file.write(f"context mim_destination_port {option['transport_lbtrm_destination_port']}\n")


class Immediate:
    """What one context sends and hears. Messages are numbered in the session, as UM does."""

    def __init__(self, context: FragmentContext) -> None:
        self._context = context
        self._sqn = 0
        self.outcomes: list[Outcome] = []
        self.heard: list[lbmc.Message] = []
        context.immediate.listen(lambda message, _: self.heard.append(lbmc.decode(message)))

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload or b"" for message in self.heard]

    def blocks(
        self, domain_id: int, topic: bytes = b"", *, has_otid: bool = True, is_request: bool = False
    ) -> list[Block]:
        """Those that UM puts into one of its messages."""
        made: list[Block] = [TopicName(topic)] if topic else []
        made.append(ODomain(domain_id))
        if is_request:
            made.append(Request(1, *self._context.request_address))
        if has_otid:
            sender = self._context.immediate.session()
            made.append(OtidBlock(otid.encode(sender.address, 0, self._context.context_id, sender.transport_index)))
        return made

    def send(self, payload: bytes, blocks: list[Block]) -> None:
        message = lbmc.Message(MessageType.MESSAGE, 0, self._sqn, tuple(blocks), payload)
        self._sqn += 1
        self._context.immediate.send(lbmc.encode(message), self.outcomes.append)

"""Unicast messages through a real DRO: its processes, and a context in each of two TRDs."""

from __future__ import annotations

from pathlib import Path

from dro.loop import Loop
from dro.um.fragment.context import FragmentContext
from dro.um.message.client_config import Config
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import Destination, Stream
from tests.fakes.um_contexts import RecordingSink, turn_until
from tests.rigs.site import Site, running

COUNT = 200


class Context:
    """A context in a TRD, the DRO that it knows for the other one, and what came."""

    def __init__(self, site: Site, trd: int, loop: Loop) -> None:
        self.made = FragmentContext(Config.load(site.config(trd)).options, loop, sink=RecordingSink())
        self.trd = trd
        self.offers: dict[int, tuple[int, int]] = {}
        self.got: list[lbmc.Message] = []
        self.made.on_unicast = lambda data, _: self.got.append(lbmc.decode(data))
        self.made.on_domain_route = lambda domains, ip, port: self.offers.update(dict.fromkeys(domains, (ip, port)))

    def send(self, to: Context, sqn: int) -> None:
        there, here = to.made.request_address, self.made.request_address
        blocks = (Destination(to.trd, *there, self.trd, *here), Stream(1, sqn, self.made.context_instance))
        message = lbmc.Message(MessageType.MESSAGE, 0, 0, blocks, b"%d" % sqn)
        self.made.send_unicast(*self.offers[to.trd], lbmc.encode(message))


def test_messages_and_answers_cross_in_order_and_are_counted(tmp_path: Path) -> None:
    loop = Loop()
    with running(Site(tmp_path, 2)) as site:
        one, two = Context(site, 1, loop), Context(site, 2, loop)
        turn_until(loop, lambda: 2 in one.offers and 1 in two.offers)
        for sqn in range(COUNT):
            one.send(two, sqn)
            turn_until(loop, lambda: len(two.got) > sqn - 32)  # noqa: B023 - called at once
        turn_until(loop, lambda: len(two.got) == COUNT)
        two.send(one, 0)
        turn_until(loop, lambda: len(one.got) == 1)
        assert [message.payload for message in two.got] == [b"%d" % sqn for sqn in range(COUNT)]
        assert [destination.hops_taken for m in two.got if (destination := m.get(Destination))] == [1] * COUNT
        one.made.close()
        two.made.close()
    loop.close()

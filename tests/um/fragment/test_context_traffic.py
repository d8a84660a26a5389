"""What a context does not look at, and what it says in one datagram."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dro.config.um.sets import ResolverOptions
from dro.um.fragment.context import ContextSettings, FragmentContext
from dro.um.message.client_config import Config
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TcpAddress
from tests.fakes.um_contexts import RecordingSink, Stepper

TIR = lbmr.Tir(b"t", TcpAddress(0x7F000001, 14371, 1), lbmr.TIR_TTL, 7, lbmr.TirOptions((lbmr.OtidOption(bytes(32)),)))
STRANGER = lbmr.standard_options(b"stranger", 0, 0)


class Wire:
    """Contexts of one TRD, and a stranger's socket into its channel."""

    def __init__(self, config: Config, stepper: Stepper, stack: ExitStack) -> None:
        self._config = config
        self._stack = stack
        self.stepper = stepper
        o = ResolverOptions.of(config.options)
        self._socket = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        self._socket.connect((o.outgoing_address, o.outgoing_port))

    def context(self, *, hears_sources: bool = True) -> FragmentContext:
        core = FragmentContext(
            self._config.options,
            self.stepper.loop,
            sink=RecordingSink(),
            rng=random.Random(),
            settings=ContextSettings(hears_sources=hears_sources),
        )
        self._stack.callback(core.close)
        return core

    def say(self, body: lbmr.Body, options: lbmr.PacketOptions = STRANGER) -> None:
        self.say_raw(lbmr.encode(lbmr.Packet(lbmr.VERSION, options, body)))

    def say_raw(self, datagram: bytes) -> None:
        self._socket.send(datagram)


@pytest.fixture
def wire(um_config: Config, stepper: Stepper) -> Iterator[Wire]:
    with ExitStack() as stack:
        yield Wire(um_config, stepper, stack)


def heard_by(core: FragmentContext) -> list[lbmr.Body]:
    bodies: list[lbmr.Body] = []
    core.on_tr_packet = lambda packet, _ip, _now: bodies.append(packet.body)
    return bodies


def test_a_context_of_sources_looks_at_no_packet_that_only_advertises(wire: Wire) -> None:
    heard, all_heard = heard_by(wire.context(hears_sources=False)), heard_by(wire.context())
    wire.say(lbmr.Queries(tirs=(TIR,)))
    wire.say(lbmr.Queries(tqrs=(b"t",), tirs=(TIR,)))
    wire.say(lbmr.Queries(tqrs=(b"t",)))
    wire.say(lbmr.TopicResolutionRequest(lbmr.RequestFlag.QUERY))
    wire.stepper.until(lambda: len(all_heard) == 4)
    assert heard == all_heard[1:]


def test_packets_of_an_ignored_context_are_not_even_decoded(wire: Wire) -> None:
    core = wire.context()
    heard = heard_by(core)
    core.ignore_source_ids.add(b"ignored!")
    ignored = lbmr.standard_options(b"ignored!", 0, 0)
    wire.say(lbmr.Queries(tqrs=(b"a",)), ignored)
    wire.say_raw(b"no packet, but of the ignored!")
    wire.say(lbmr.Queries(tqrs=(b"b",)))
    wire.stepper.until(lambda: bool(heard))
    assert (heard, core.stats.tr_dgrams_dropped_own) == ([lbmr.Queries(tqrs=(b"b",))], 2)
    assert core.stats.tr_dgrams_dropped_malformed == 0


def test_an_own_packet_is_known_in_whatever_order_its_options_stand(wire: Wire) -> None:
    core = wire.context()
    heard = heard_by(core)
    own = lbmr.standard_options(core.context_instance, 0, 0)
    wire.say(lbmr.Queries(tqrs=(b"a",)), lbmr.PacketOptions(own.items[::-1]))
    wire.say(lbmr.Queries(tqrs=(b"b",)))
    wire.stepper.until(lambda: bool(heard))
    assert (heard, core.stats.tr_dgrams_dropped_own) == ([lbmr.Queries(tqrs=(b"b",))], 1)


def test_what_is_wanted_together_is_asked_for_together(wire: Wire) -> None:
    core, other = wire.context(), wire.context()
    heard = heard_by(other)
    with core.together():
        for n in range(20):
            core.want_topic(b"topic.%d" % n)
        with core.together():
            core.want_topic(b"another")
    wire.stepper.until(lambda: bool(heard))
    assert isinstance(heard[0], lbmr.Queries)
    assert len(heard[0].tqrs) == 21

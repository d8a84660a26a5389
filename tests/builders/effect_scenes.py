"""Scenes in which a value of the DRO file can show: real parts of the program, built from a file, and what they do.

A scene takes a configuration (or a folder and a text) and returns plain data. Equal files give equal data, so two
files whose data differ show that the difference between them reached the part.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

from dro.bus.messages import ROUTE_MESSAGES, PortalUp
from dro.clock import ms, s
from dro.config.dro_xml.model import DroConfig, EndpointConfig
from dro.metrics.slots import Slot
from dro.proto.unicast.contexts import KnownContexts
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.tnwg import InterestRecord, TnwgInterest
from dro.wire.source_string import IpcAddress, LbtrmAddress, LbtruAddress, TcpAddress
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.immediate.contexts import ContextQuestions
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE
from portals.endpoint.interest import TrdInterest
from router.core import RouteManagerCore
from router.route_info import write_route
from router.settings import exchange_timing_of, own_dro, timing_of
from router.topology import DroRecord, Neighbour
from supervisor.parent.process_plan import plan_of
from tests.fakes.channel import packet
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import ROUTE_MANAGER, OneProcess
from tests.rigs.site import Site

MANY = 60
TRD_SECONDS = 45
LOOPBACK = 0x7F000001
GROUP = 0xEF010101


def trd(config: EndpointConfig) -> object:
    """A portal's interest and what it says in its TRD: 60 topics and 60 patterns of each kind, 45 seconds."""
    options = packet(lbmr.ReceiverAlive(), source_type=1).options
    assert options is not None
    interest = TrdInterest(config, options, 8192, (LOOPBACK, 14391), random.Random(1), 0)
    names = [b"%03d" % n for n in range(MANY)]
    patterns = tuple(lbmr.WildcardTqr(PATTERN_PCRE, name) for name in names)
    interest.on_packet(packet(lbmr.Queries(tuple(names))), LOOPBACK, 0)
    interest.on_packet(packet(lbmr.WildcardQueries(patterns)), LOOPBACK, 0)
    remote = [InterestRecord(3, name) for name in names]
    remote += [InterestRecord(3, name, lbmr.InterestFlag.PATTERN, PATTERN_PCRE) for name in names]
    interest.on_packet(packet(TnwgInterest(tuple(remote)), source_id=b"neighbor", source_type=1), LOOPBACK, 0)
    for name in names:
        interest.on_wanted(name, PATTERN_NONE, (2,), (), 0)
        interest.on_wanted(name, PATTERN_PCRE, (2,), (), 0)
    interest.on_routes(set(range(10, 10 + MANY)), 0)
    said: list[object] = []
    now_ns = 0
    while True:
        said += [(now_ns, change) for change in interest.take_events()]
        said += [(now_ns, lbmr.decode(datagram).body) for datagram in interest.take_datagrams(now_ns)]
        due = interest.next_deadline()
        if due is None or due > s(TRD_SECONDS):
            return said
        now_ns = max(due, now_ns)
        interest.on_timer(now_ns)


SESSIONS = (
    TcpAddress(LOOPBACK, 14371, 1),
    TcpAddress(LOOPBACK + 9, 14399, 1),
    LbtrmAddress(LOOPBACK, GROUP, 1, 14400, 12090),
    LbtrmAddress(LOOPBACK + 9, GROUP + 9, 1, 14500, 12190),
    LbtruAddress(LOOPBACK, 14380, 1),
    LbtruAddress(LOOPBACK + 9, 14390, 1),
    IpcAddress(1, 1, 20000),
    IpcAddress(1, 1, 20009),
)
TOPICS = (b"A", b"AB", b"A  B", b"A B", b"B")


def contexts(config: EndpointConfig) -> object:
    """Questions for 60 contexts that nobody answers: when how many are asked, until all are forgotten."""
    core = ContextQuestions(config.context_query, KnownContexts())
    for number in range(MANY):
        core.on_unknown(b"inst%04d" % number, 0)
    asked: list[tuple[int, int]] = []
    while (due := core.next_deadline()) is not None and due <= s(2000):
        core.on_timer(due)
        asked.append((due, len(core.take_effects())))
    return asked


def access(config: EndpointConfig) -> object:
    """What may pass the portal: five topics, eight sessions."""
    judge = AclEnforcement(config.acl, sending=config.sending, receiving=config.receiving)
    return (
        [judge.may_leave(topic) for topic in TOPICS],
        [judge.may_ask(topic, PATTERN_NONE) for topic in TOPICS],
        [judge.may_enter(topic, session) for topic in TOPICS for session in SESSIONS],
    )


def routes(config: DroConfig) -> object:
    """The route manager: two portals and another DRO come, one portal changes until it has to warn."""
    me = own_dro(config, 1 << 63 | 5)
    core = RouteManagerCore(me, timing_of(config), exchange_timing_of(config), incarnation=1, now_ns=0)
    other = DroRecord(1 << 63 | 6, (Neighbour(1, 1, 1), Neighbour(9, 1, 1)))
    message = write_route(other, sqn=1, ttl=9, topology=0, configuration=0, gateway_version=0)
    said: list[object] = []

    def run(until_ns: int) -> None:
        while (due := core.next_deadline()) is not None and due <= until_ns:
            core.on_timer(due)
            said.extend((due, effect) for effect in core.take_effects())

    for portal in (1, 2):
        core.on_portal_up(PortalUp(portal, portal, 1), 0)
    core.on_route_info(1, message, 0)
    run(s(20))
    for n in range(60):
        at = s(20) + n * ms(500)
        core.on_portal_up(PortalUp(3, 3, 2 + n), at)
        run(at + ms(499))
    run(s(100))
    return said


def processes(config: DroConfig) -> object:
    return [worker.name for worker in plan_of(config)]


def dro(folder: Path, text: str) -> dict[str, object]:
    """A whole DRO between TRDs 1 and 2 of a site in `folder`: one source crosses it, then goes.

    In `text`, `{folder}` and `{port}` (a free one of TRD 2) are filled in.
    """
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        site = Site(folder, 2)
        stack.callback(site.close)
        (folder / "dro.xml").write_text(text.replace("{folder}", str(folder)).replace("{port}", str(site.port(2) + 10)))
        for name in ("tcp", "lbtrm"):
            (folder / f"{name}.cfg").write_text(site.config(2).read_text() + f"source transport {name}\n")
            (folder / f"{name}.xml").write_text(_um_xml(name, name, site))
        (folder / "contexts.xml").write_text(_um_xml("tcp", "lbtrm", site))
        stepper = Stepper()
        stack.callback(stepper.loop.close)
        made = OneProcess(site, stepper)
        stack.callback(made.close)
        return _look(made, stepper)


def _um_xml(first: str, second: str, site: Site) -> str:
    """Contexts A and B with transports and request ports of their own."""
    contexts = "".join(
        f'<context name="{name}"><options type="context">'
        f'<option name="request_tcp_port_low" default-value="{site.port(2) + low}"/>'
        f'<option name="request_tcp_port_high" default-value="{site.port(2) + 43}"/></options>'
        f'<sources><topic><options type="source"><option name="transport" default-value="{kind}"/></options></topic>'
        f"</sources><receivers/><wildcard-receivers/></context>"
        for name, kind, low in (("A", first, 1), ("B", second, 10))
    )
    return (
        '<um-configuration version="1.0"><applications><application>'
        f"<contexts>{contexts}</contexts></application></applications></um-configuration>"
    )


def _look(made: OneProcess, stepper: Stepper) -> dict[str, object]:
    sender, receiver = made.application(1), made.application(2)
    source = sender.source(b"T")
    receiver.context.want_topic(b"T")
    made.until(lambda: bool(receiver.bound(b"T")))
    stepper.run(500)
    sender.send(source, 3)
    made.until(lambda: bool(receiver.heard(b"T")))
    [bound] = receiver.bound(b"T")
    options = bound.tir.options
    [(_, proxy)] = made.portals[2].sources.by_otid.values()
    for sqn in range(90_000, 100_000, 2):  # more gaps than are remembered below the window
        proxy.window.take_run(sqn, 1)
    window = [bool(proxy.window.take_run(sqn, 1)) for sqn in range(90_001, 99_999, 2)]
    told = [ROUTE_MESSAGES.decode(frame) for to, frame in made.workers[1].channels.sent if to == ROUTE_MANAGER]
    source.close(final=True, linger_ns=0)
    began_ns = stepper.clock.time_ns
    made.until(lambda: not receiver.bound(b"T"))
    return {
        "told the route manager": [
            (up.domain_id, up.cost, up.hotlink_index) for up in told if isinstance(up, PortalUp)
        ],
        "advertised": None if options is None else (options.cost, options.domain_id, options.hotlink_index),
        "session": (type(bound.address).__name__, getattr(bound.address, "ip", 0)),
        "room": made.workers[2].counters[Slot.QUEUE_LIMIT],
        "ring": (made.folder / f"{made.workers[2].name}.ring").stat().st_size,
        "window": window,
        "fills datagrams": proxy.transport.packs_all,
        "deletion after half seconds": (stepper.clock.time_ns - began_ns) // ms(500),
        "request ports": [
            [context.request_address[1] - made.site.port(2) for context in (portal.sending, portal.receiving)]
            for portal in (made.portals[2],)
        ],
    }

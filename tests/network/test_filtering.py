"""Source-side filtering on each hop: what a session does not bring to who has not asked for it."""

from __future__ import annotations

from dro.clock import ms
from dro.metrics.slots import Slot
from dro.proto.tcp.filter_requests import EXCLUDE_AFTER_NS
from dro.transport.tcp.receiver import TcpReceiver
from dro.transport.tcp.sender import TcpSender
from dro.um.fragment.own_source import FragmentSource
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.data_blocks import SsfCreq
from tests.network.conftest import Make
from tests.network.plans import PAIR
from tests.rigs.network import Application, Network

INCLUSION = "source transport_source_side_filtering_behavior inclusion\nsource transport_tcp_port 0\n"
ONE_PORT = "context transport_tcp_maximum_ports 1\n"
WANTED, OTHER, LATER = b"quotes", b"trades", b"news"


def filtered(make: Make) -> Network:
    """Two TRDs whose sources filter, the proxy sources of the DRO between them as well, on one session each."""
    net = make(PAIR, transport="tcp", um=INCLUSION + ONE_PORT)
    net.start()
    return net


def session_of(source: FragmentSource) -> TcpSender:
    assert isinstance(source.transport, TcpSender)
    return source.transport


def topics_asked(source: FragmentSource) -> list[set[int]]:
    """Of the session of a source, by receiver."""
    filtering = session_of(source).core._filter
    assert filtering is not None
    return list(filtering.wanted.values())


def unwanted(application: Application) -> int:
    """Messages on its sessions that nobody wanted."""
    return sum(session.lbm_msgs_no_topic_rcved for session in application.context.joined.sessions())


def test_a_dro_gets_the_topics_that_are_wanted_behind_it(make: Make) -> None:
    net = filtered(make)
    sender, receiver = net.application(1), net.application(2)
    wanted, other = sender.source(WANTED), sender.source(OTHER)
    assert session_of(wanted) is session_of(other)
    receiver.context.want_topic(WANTED)
    net.until(lambda: topics_asked(wanted) == [{wanted.topic_index}])
    net.until(lambda: bool(receiver.bound(WANTED)))
    net.run(500)
    for _ in range(100):
        sender.send(wanted)
        sender.send(other)
    net.until(lambda: receiver.got(wanted) == [*range(100)])
    dro = net.dros["A"]
    assert (dro.page(1, Slot.TOPIC_RCVD), dro.page(1, Slot.UNKNOWN_SOURCE), unwanted(receiver)) == (100, 0, 0)
    assert session_of(wanted).core.stats.msgs_sent == 200, "of the session"


def test_a_receiver_gets_one_of_two_topics_of_proxy_sources(make: Make) -> None:
    net = filtered(make)
    sender, one, both = net.application(1), net.application(2), net.application(2)
    wanted, other = sender.source(WANTED), sender.source(OTHER)
    for application, topics in ((one, [WANTED]), (both, [WANTED, OTHER])):
        for topic in topics:
            application.context.want_topic(topic)
    net.until(lambda: all((one.bound(WANTED), both.bound(WANTED), both.bound(OTHER))))
    net.run(500)
    for _ in range(100):
        sender.send(wanted)
        sender.send(other)
    net.until(lambda: all(both.got(source) == [*range(100)] for source in (wanted, other)))
    assert one.got(wanted) == [*range(100)]
    assert (one.got(other), unwanted(one), unwanted(both)) == ([], 0, 0)
    proxies = [source for source, _ in net.dros["B"].endpoints[2].sources.by_otid.values()]
    assert sorted(map(len, topics_asked(proxies[0]))) == [1, 2]


def test_topics_come_and_go_on_a_session_without_loss(make: Make) -> None:
    """The numbers that a receiver hears begin anywhere, and from there on none is missing."""
    net = filtered(make)
    sender, receiver = net.application(1), net.application(2)
    wanted, other = sender.source(WANTED), sender.source(OTHER)
    receiver.context.want_topic(WANTED)
    net.until(lambda: bool(receiver.bound(WANTED)))
    net.run(500)

    def send(count: int) -> None:
        for _ in range(count):
            for source in (wanted, other):
                sender.send(source)
                assert source.send_tsni(sender.sent(source) - 1, net.loop.now_ns())

    send(50)
    receiver.context.want_topic(OTHER)
    net.until(lambda: topics_asked(wanted) == [{wanted.topic_index, other.topic_index}])
    net.until(lambda: bool(receiver.bound(OTHER)))
    later = sender.source(LATER)
    receiver.context.want_topic(LATER)
    net.until(lambda: bool(receiver.bound(LATER)))
    net.run(500)
    sender.send(later, 10)
    send(50)
    net.until(lambda: receiver.got(other) == [*range(50, 100)])
    assert receiver.got(later) == [*range(10)]
    receiver.context.unwant_topic(OTHER)
    net.until(lambda: topics_asked(wanted) == [{wanted.topic_index, later.topic_index}])
    before = net.dros["A"].page(1, Slot.TOPIC_RCVD)
    send(50)
    net.until(lambda: receiver.got(wanted) == [*range(150)])
    assert net.dros["A"].page(1, Slot.TOPIC_RCVD) - before == 50
    assert receiver.got(other) == [*range(50, 100)]
    net.run(1000)
    receiver.context.want_topic(OTHER)
    net.until(lambda: bool(receiver.bound(OTHER)))
    net.run(500)
    send(10)
    net.until(lambda: receiver.got(other) == [*range(50, 100), *range(150, 160)])
    later.close(final=True, linger_ns=0)
    filtering = session_of(wanted).core._filter
    assert filtering is not None
    assert filtering.topics == {wanted.topic_index, other.topic_index}
    net.until(lambda: topics_asked(wanted) == [filtering.topics], limit_ms=5000)


def test_a_receiver_that_comes_back_at_once_misses_nothing(make: Make) -> None:
    net = filtered(make)
    sender, receiver = net.application(1), net.application(1)
    wanted, other = sender.source(WANTED), sender.source(OTHER)
    for topic in (WANTED, OTHER):
        receiver.context.want_topic(topic)
    net.until(lambda: any(len(topics) == 2 for topics in topics_asked(wanted)))
    for _ in range(5):
        receiver.context.unwant_topic(OTHER)
        sender.send(other)
        net.run(EXCLUDE_AFTER_NS // ms(2))
        receiver.context.want_topic(OTHER)
        net.until(lambda: bool(receiver.bound(OTHER)))
        sender.send(other, 3)
        net.until(lambda: receiver.last_sqn() == sender.sent(other) - 1)
    assert receiver.got(other) == [sqn for sqn in range(20) if sqn % 4]


def test_a_connection_that_breaks_is_asked_anew(make: Make) -> None:
    net = filtered(make)
    sender, receiver = net.application(1), net.application(2)
    wanted = sender.source(WANTED)
    receiver.context.want_topic(WANTED)
    net.until(lambda: bool(receiver.bound(WANTED)) and topics_asked(wanted) == [{wanted.topic_index}])
    (session,) = net.dros["A"].endpoints[1].receiving.joined.sessions()
    assert isinstance(session, TcpReceiver)
    session._lost(net.loop.now_ns())
    net.until(lambda: topics_asked(wanted) == [])
    net.until(lambda: topics_asked(wanted) == [{wanted.topic_index}])
    net.until(lambda: bool(receiver.bound(WANTED)))
    net.run(500)
    sender.send(wanted, 10)
    net.until(lambda: receiver.got(wanted) == [*range(10)])


def test_a_dro_that_starts_again_asks_again(make: Make) -> None:
    net = filtered(make)
    sender, receiver = net.application(1), net.application(2)
    wanted, other = sender.source(WANTED), sender.source(OTHER)
    receiver.context.want_topic(WANTED)
    net.until(lambda: topics_asked(wanted) == [{wanted.topic_index}])
    net.kill("A")
    net.until(lambda: topics_asked(wanted) == [])
    net.start("A")
    net.until(lambda: topics_asked(other) == [{wanted.topic_index}], limit_ms=60_000)


def test_requests_of_strangers_change_nothing_and_are_counted(make: Make) -> None:
    net = filtered(make)
    sender, receiver = net.application(1), net.application(2)
    wanted = sender.source(WANTED)
    receiver.context.want_topic(WANTED)
    net.until(lambda: bool(receiver.bound(WANTED)) and topics_asked(wanted) == [{wanted.topic_index}])
    (proxy, _) = next(iter(net.dros["B"].endpoints[2].sources.by_otid.values()))
    net.until(lambda: topics_asked(proxy) == [{proxy.topic_index}])
    index = session_of(proxy).transport_index
    stranger = net.application(2).context
    for request in [SsfCreq(1, index, proxy.topic_index, number) for number in range(100)]:
        message = lbmc.encode(lbmc.control_message(request))
        stranger.send_unicast(*net.dros["B"].endpoints[2].sending.request_address, message)
    net.until(lambda: net.dros["B"].page(2, Slot.UNICAST_CONTROL_UNHANDLED) == 100)
    assert topics_asked(proxy) == [{proxy.topic_index}]

"""Whatever is said, cut and killed: in the end each context has been told what holds, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from dro.wire.lbmr import packet as lbmr
from tests.fakes.srs_network import SrsNetwork
from tests.proto.resolver_service.test_client import tir

TOPICS = (b"a1", b"a2", b"b1")
PATTERN = lbmr.WildcardTqr(lbmr.PatternType.PCRE, b"^a")


class World:
    """Two contexts with sources, one with receivers, a DRO; and what each was told."""

    def __init__(self, servers: int) -> None:
        self.net = SrsNetwork(servers)
        self.senders = [self.net.context(b"one"), self.net.context(b"two")]
        self.receiver = self.net.context(b"receiver")
        self.dro = self.net.dro(b"dro", 7)
        self.sources: set[tuple[int, bytes]] = set()
        self.wanted: set[bytes] = set()
        self.heard: set[bytes] = set()  # OTIDs
        self.interest: set[bytes] = set()

    def source(self, sender: int, topic: int) -> lbmr.Tir:
        return tir(TOPICS[topic], 10 * sender + topic)

    def switch_source(self, sender: int, topic: int) -> None:
        one, key = self.source(sender, topic), (sender, TOPICS[topic])
        (self.senders[sender].end if key in self.sources else self.senders[sender].advertise)(one)
        self.sources ^= {key}

    def switch_interest(self, topic: int) -> None:
        name = (*TOPICS, PATTERN.pattern)[topic]
        is_pattern = name == PATTERN.pattern
        if name in self.wanted:
            flags = lbmr.TmrFlag.PCRE if is_pattern else 0
            self.receiver.say(lbmr.TopicManagement((lbmr.Tmr(lbmr.TmrType.LEAVE, flags, name),)))
        else:
            self.receiver.say(lbmr.WildcardQueries((PATTERN,)) if is_pattern else lbmr.Queries((name,)))
        self.wanted ^= {name}

    def cut(self, context: int, server: int) -> None:
        one = (*self.senders, self.receiver, self.dro)[context]
        if (one, server) in self.net.connections:
            self.net.cut(one, server)

    def switch_server(self, server: int) -> None:
        (self.net.start if self.net.servers[server] is None else self.net.kill)(server)

    def listen(self) -> None:
        for packet in self.receiver.take():
            for one in packet.body.tirs if isinstance(packet.body, lbmr.Queries | lbmr.WildcardQueries) else ():
                assert one.otid is not None
                (self.heard.discard if one.is_final else self.heard.add)(one.otid)
        for packet in self.dro.take():
            match packet.body:
                case lbmr.Queries(tqrs):
                    self.interest.update(tqrs)
                case lbmr.WildcardQueries(patterns):
                    self.interest.update(query.pattern for query in patterns)
                case lbmr.TopicManagement(records):
                    self.interest.difference_update(tmr.name for tmr in records)
                case _:
                    pass


def _of(name: str, *numbers: int) -> st.SearchStrategy[tuple[str, tuple[int, ...]]]:
    return st.tuples(st.just(name), st.tuples(*(st.integers(0, most) for most in numbers)))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2),
    st.lists(
        st.tuples(
            st.one_of(_of("switch_source", 1, 2), _of("switch_interest", 3), _of("cut", 3, 1), _of("switch_server", 1)),
            st.sampled_from((0, 10, 300, 2000)),
        ),
        max_size=25,
    ),
)
def test_in_the_end_everybody_knows_what_holds(
    servers: int, steps: list[tuple[tuple[str, tuple[int, ...]], int]]
) -> None:
    world = World(servers)
    for (name, numbers), wait_ms in steps:
        if name in ("cut", "switch_server") and numbers[-1] >= servers:
            continue
        act: Callable[..., None] = getattr(world, name)
        act(*numbers)
        world.net.run(wait_ms, 50)
        world.listen()
    for server in range(servers):
        if world.net.servers[server] is None:
            world.net.start(server)
    world.net.run(35_000, 500)
    world.listen()
    wanted = {topic for topic in TOPICS if topic in world.wanted or (b"^a" in world.wanted and topic[:1] == b"a")}
    expected = {world.source(sender, TOPICS.index(topic)).otid for sender, topic in world.sources if topic in wanted}
    assert world.heard == expected
    assert world.interest == world.wanted

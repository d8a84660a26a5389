"""Source-side filtering, the sending half: what receivers ask for, what they get, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest

from dro.proto.tcp.filters import EXCLUDE, INCLUDE, Selection, SessionFilter, SourceFilters, requests_in
from dro.proto.tcp.source import SlowReceiver, TcpSourceConfig, TcpSourceCore
from dro.state import restore, snapshot
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import SSF_DEFAULT_EXCLUDE, SsfCreq, SsfInit, TopicIdx
from dro.wire.lbmc.message import HEADER
from dro.wire.lbmc.ume_blocks import Sri

ADDRESS = (0x7F000001, 14391)
SESSION = 77


def data(topic: int, sqn: int, size: int = 40) -> bytes:
    return HEADER.pack(0, 0, size, topic, sqn) + bytes([sqn]) * (size - HEADER.size)


def control(topic: int) -> bytes:
    return lbmc.encode(lbmc.control_message(TopicIdx(topic), Sri(1, 0, 0)))


def tsni(*topics: int) -> bytes:
    return lbmc.encode(lbmc.tsni_message([(topic, 5) for topic in topics]))


@pytest.fixture
def filters() -> SourceFilters:
    made = SourceFilters()
    made.request_address = ADDRESS
    return made


def numbers() -> Iterator[int]:
    """The first two are the same."""
    yield 1
    yield from count(1)


@pytest.fixture
def session(filters: SourceFilters) -> SessionFilter:
    drawn = numbers()
    made = filters.open(SESSION, lambda: next(drawn))
    for topic in (10, 20, 30):
        filters.add_topic(SESSION, topic)
    return made


class Source:
    """A filtered session whose receivers take everything at once, or nothing."""

    def __init__(self, filtering: SessionFilter, config: TcpSourceConfig = TcpSourceConfig()) -> None:  # noqa: B008
        self.core = TcpSourceCore(config, Random(1).random, filtering)

    def join(self, client: int) -> int:
        """Connect; the number in the offer."""
        assert self.core.on_connected(client, 0)
        offer = lbmc.decode(self.got(client)).get(SsfInit)
        assert offer is not None
        assert (offer.flags, offer.transport, offer.transport_index) == (SSF_DEFAULT_EXCLUDE, 0, SESSION)
        assert (offer.ip, offer.port) == ADDRESS
        return offer.client_index

    def got(self, client: int) -> bytes:
        taken = b"".join(self.core.pending(client))
        self.core.on_written(client, len(taken), 0)
        return taken

    def send(self, *messages: bytes, start: int = 0) -> int:
        ends, end = [], start
        for message in messages:
            end += len(message)
            ends.append(end)
        return self.core.send_run(bytes(start) + b"".join(messages), start, ends, 0)


def ask(filters: SourceFilters, number: int, *topics: int, mode: int = INCLUDE) -> str:
    return filters.on_requests([SsfCreq(mode, SESSION, topic, number) for topic in topics])


def test_receivers_get_the_topics_that_they_ask_for(filters: SourceFilters, session: SessionFilter) -> None:
    source = Source(session)
    one, two, three = (source.join(client) for client in (101, 102, 103))
    assert len({one, two, three}) == 3
    assert not source.core.is_heard
    messages = [data(10, 1), data(20, 1), data(20, 2), tsni(30), control(20), data(10, 2), tsni(10, 30)]
    assert source.send(*messages, start=3) == 7
    assert [source.got(client) for client in (101, 102, 103)] == [tsni(10, 30)] * 3, "what is of several topics"
    assert not ask(filters, one, 10)
    assert not ask(filters, two, 20, 30)
    assert source.core.is_heard
    assert source.send(*messages, start=3) == 7
    assert source.got(101) == b"".join((messages[0], messages[5], messages[6]))
    assert source.got(102) == b"".join(messages[1:5] + messages[6:])
    assert source.got(103) == messages[6]
    assert not ask(filters, one, 10, mode=EXCLUDE)
    assert not ask(filters, one, 20, 30)
    assert not ask(filters, three, 10, 20, 30)
    source.send(*messages)
    assert source.got(101) == source.got(102)
    assert source.got(103) == b"".join(messages)
    assert source.core.stats.msgs_sent == 21
    assert source.core.stats.bytes_buffered == 0


def test_receivers_that_get_the_same_share_the_bytes() -> None:
    messages = [data(10, 1), data(20, 1), data(10, 2)]
    chosen = Selection(memoryview(b"".join(messages)), 0, [40, 80, 120])
    assert chosen.of({10, 99})[0] is chosen.of({10})[0]
    assert chosen.of({10, 20})[0].nbytes == 120
    assert chosen.of(set())[3] == 0


def test_a_message_that_cannot_be_read_is_for_all() -> None:
    broken = bytes.fromhex("0820000a0003000000000000")[:10]
    assert Selection(memoryview(broken), 0, [len(broken)]).of(set())[3] == 1


def test_what_was_never_offered_is_refused(filters: SourceFilters, session: SessionFilter) -> None:
    number = Source(session).join(101)
    assert ask(filters, number + 1, 10) == "no such receiver"
    assert ask(filters, number, 99) == "no such topic"
    assert ask(filters, number, 10, mode=2) == "unknown mode"
    assert filters.on_requests([SsfCreq(INCLUDE, 5, 10, number)]) == "no such session"
    assert not session.wanted[number]
    assert ask(filters, number, 99, 10) == "no such topic", "the first of several, and the others are done"
    assert session.wanted[number] == {10}
    assert not ask(filters, number, 99, mode=EXCLUDE), "its source was closed meanwhile"
    filters.close(SESSION)
    filters.close(SESSION)
    filters.add_topic(SESSION, 40)
    filters.remove_topic(SESSION, 40)
    assert ask(filters, number, 10) == "no such session"


def test_a_flood_of_topics_takes_no_memory(filters: SourceFilters, session: SessionFilter) -> None:
    number = Source(session).join(101)
    for topic in range(10_000):
        ask(filters, number, topic)
    assert session.wanted[number] == {10, 20, 30}
    for topic in (10, 20, 30):
        filters.remove_topic(SESSION, topic)
    assert len(session.wanted[number]) == 3, "their last data may wait"
    filters.add_topic(SESSION, 40)
    ask(filters, number, 40)
    assert session.wanted[number] == {40}


def test_a_receiver_that_goes_is_forgotten(filters: SourceFilters, session: SessionFilter) -> None:
    source = Source(session)
    number = source.join(101)
    source.core.on_disconnected(101, 0)
    assert ask(filters, number, 10) == "no such receiver"
    assert not session.wanted


@pytest.mark.parametrize("behavior", SlowReceiver)
def test_a_slow_receiver_is_charged_with_its_topics_alone(
    filters: SourceFilters, session: SessionFilter, behavior: SlowReceiver
) -> None:
    source = Source(session, TcpSourceConfig(behavior, 100))
    one, two = source.join(101), source.join(102)
    source.join(103)
    ask(filters, one, 10)
    ask(filters, two, 20)
    assert source.send(data(10, 1)) == 1
    assert source.send(data(20, 1)) == 1
    assert [source.core.pending_bytes(client) for client in (101, 102, 103)] == [40, 40, 0]
    taken = {SlowReceiver.NORMAL: 0, SlowReceiver.SOURCE_PACED: 2, SlowReceiver.BOUNDED_LATENCY: 1}
    assert source.send(data(20, 2), data(20, 3)) == taken[behavior]
    assert source.core.pending_bytes(101) == 40


def test_a_new_core_goes_on_with_what_was_asked_for(filters: SourceFilters, session: SessionFilter) -> None:
    old, new_filter = Source(session), filters.open(SESSION, lambda: 50)
    numbers_of = {client: old.join(client) for client in (101, 102)}
    session.on_request(SsfCreq(INCLUDE, SESSION, 10, numbers_of[101]))
    old.send(data(10, 1), data(20, 1))
    new = Source(new_filter)
    restore(new.core, snapshot(old.core))
    filters.add_topic(SESSION, 20)
    assert not ask(filters, numbers_of[101], 20)
    assert not ask(filters, numbers_of[102], 20)
    new.send(data(20, 2))
    assert (new.got(101), new.got(102)) == (data(10, 1) + data(20, 2), data(20, 2))
    new.core.on_disconnected(101, 0)
    assert list(new_filter.wanted) == [numbers_of[102]]


def test_requests_are_found_in_whole_control_messages_alone() -> None:
    one, two = SsfCreq(0, 1, 2, 3), SsfCreq(1, 1, 4, 3)
    message = lbmc.encode(lbmc.control_message(TopicIdx(1), one, two))
    assert requests_in(message) == [one, two]
    assert requests_in(lbmc.encode(lbmc.control_message(TopicIdx(1)))) == []
    assert requests_in(lbmc.encode(lbmc.Message(MessageType.MESSAGE, 1, 2, (one,)))) == []
    assert requests_in(message[:13] + b"\xff" + message[14:]) == []
    assert requests_in(bytes.fromhex("0811000cff08000000000000")) == []

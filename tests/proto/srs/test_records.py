"""Who is told which source and whose interest, when records end, and what is refused; on a fake clock."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from random import Random

import pytest

from dro.clock import NS_PER_S
from dro.proto.srs.settings import SrsLimits, SrsSettings, SrsTimes
from dro.proto.srs.tables import Roster, RosterNode
from dro.wire.srs.messages import (
    END_COST,
    InterestInfo,
    InterestMode,
    MessageId,
    SourceDelete,
    SourceInfo,
    SourceLeave,
    SrsRecord,
    encode,
)
from dro.wire.srs.rsocket import UNBOUNDED_N, FrameType, KeepaliveFrame, RequestFrame, RequestNFrame
from tests.fakes.srs import STREAM, FakeSrsClient, SrsSite, deletions, kinds, source

RIR, RDR, RER, WIR, WDR, WER = range(MessageId.RECEIVER_INFO, MessageId.SOURCE_LEAVE)


def limited(**limits: int) -> SrsSite:
    return SrsSite(SrsSettings(limits=SrsLimits(**limits)))


# sources


def test_a_client_that_filters_is_told_what_it_wants() -> None:
    site = SrsSite()
    teller, client = site.client(1), site.client(2)
    teller.tell(source(b"A", 1), source(b"B", 2), source(b"C1", 3))
    assert client.take() == []
    client.want(b"A", b"none")
    assert client.take() == [source(b"A", 1)]
    client.want_pattern(b"^C")
    assert client.take() == [source(b"C1", 3)]
    teller.tell(source(b"A", 4), source(b"B", 5), source(b"C2", 6), source(b"xC", 7), source(b"none", 8))
    assert client.take_topics() == [b"A", b"C2", b"none"]
    client.want_no_more(b"A")
    teller.tell(source(b"A", 9))
    assert client.take() == []
    client.tell(client.interest(WDR, b"^C"))
    teller.tell(source(b"C3", 10))
    assert client.take() == []


def test_interest_that_is_told_before_the_stream_is_opened_counts_once() -> None:
    site = SrsSite()
    site.client(1).tell(source(b"A", 1), source(b"B", 2))
    client = FakeSrsClient(site, 2)
    client.register()
    client.want(b"A")
    client.want(b"A", domain_id=5)
    client.want_pattern(b"^B$")
    assert client.take() == []
    client.open_stream()
    assert client.take_topics() == [b"A", b"B"]


def test_interest_that_comes_right_behind_the_stream_request_counts_once() -> None:
    site = SrsSite()
    site.client(1).tell(source(b"A", 1), source(b"B", 2))
    client = FakeSrsClient(site, 2)
    client.register()
    client.open_stream()
    client.want(b"A", b"B")
    assert client.take_topics() == [b"A", b"B"]


def test_what_is_wanted_is_listed_when_it_is_walked() -> None:
    site = SrsSite()
    site.client(1).tell(*(source(b"T%d" % number, number) for number in range(20_000)))
    client = FakeSrsClient(site, 2)
    client.register()
    client.want(*(b"T%d" % number for number in range(20_000)))
    records, known = site.server.records, site.server._client_of[client.connection]
    tracemalloc.start()
    try:
        records.open_stream(known, client.connection)
        assert tracemalloc.get_traced_memory()[1] < 10_000
        next(client.connection.walks["names"])
        assert tracemalloc.get_traced_memory()[1] < 20_000 * 10  # a reference for each
    finally:
        tracemalloc.stop()


def test_interest_that_ends_before_it_is_walked_is_told_nothing() -> None:
    site = SrsSite()
    site.client(1).tell(*(source(b"T%d" % number, number) for number in range(1000)))
    client, other = FakeSrsClient(site, 2), site.client(3)
    topics = [b"T%d" % number for number in range(1000)]
    other.want(*topics)
    client.register()
    client.want(*topics)
    client.open_stream(0)
    site.settle()
    for topic in topics[-300:]:
        client.want_no_more(topic)
    client.send(RequestNFrame(STREAM, UNBOUNDED_N))
    assert client.take_topics() == topics[:-300]


def test_a_client_that_floods_is_told_all_but_its_own() -> None:
    site = SrsSite()
    teller = site.client(1)
    teller.tell(source(b"A", 1), source(b"B", 2))
    client = site.client(2, InterestMode.FLOOD)
    client.tell(source(b"mine", 3))
    assert client.take_topics() == [b"A", b"B"]
    teller.tell(source(b"C", 4))
    assert client.take_topics() == [b"C"]


def test_own_sources_are_not_told_back_to_a_client_that_wants_them() -> None:
    site = SrsSite()
    client = site.client(1)
    client.want(b"A")
    client.want_pattern(b"A")
    client.tell(source(b"A", 1))
    client.tell(SourceDelete(source(b"A", 1).otid, b"A"))
    site.wait(1)
    assert client.take() == []


def test_a_mode_that_is_not_known_filters() -> None:
    site = SrsSite()
    client = site.client(1, 9)
    site.client(2).tell(source(b"A"))
    assert client.take() == []
    client.want(b"A")
    assert client.take_topics() == [b"A"]


def test_a_source_that_is_told_again_is_told_on_only_when_it_has_changed() -> None:
    site = SrsSite()
    teller, client = site.client(1), site.client(2, InterestMode.FLOOD)
    teller.tell(source(b"A"), source(b"A"))
    assert client.take() == [source(b"A")]
    teller.tell(source(b"A", cost=3))
    assert client.take() == [source(b"A", cost=3)]
    assert site.server.records.source_count == 1


def test_an_end_is_told_after_the_back_off_in_the_form_it_came_in() -> None:
    site = SrsSite()
    teller, client = site.client(1), site.client(2)
    client.want(b"A", b"B")
    teller.tell(source(b"A", 1), source(b"B", 2), source(b"C", 3))
    client.take()
    ends: list[SrsRecord] = [
        SourceDelete(source(b"A", 1).otid, b"A"),
        source(b"B", 2, cost=END_COST),
        source(b"C", 3, cost=END_COST),
    ]
    teller.tell(*ends)
    site.wait(0.4)
    assert client.take() == []
    site.wait(0.2)
    assert client.take() == ends[:2]
    assert site.server.records.source_count == 0
    assert site.server.records.record_bytes == 2 * (28 + 2 + 512)


def test_an_end_is_of_what_was_told_whatever_else_it_says() -> None:
    site = SrsSite()
    teller, client = site.client(1), site.client(2, InterestMode.FLOOD)
    one, other = source(b"A", 1), source(b"B", 2)
    teller.tell(one, other)
    client.take()
    teller.tell(
        replace(one, topic=b"C", source=b"elsewhere", context_instance=b"OTHERINS", topic_index=9, cost=END_COST),
        SourceDelete(other.otid, b"C"),
    )
    site.wait(1)
    assert client.take() == [replace(one, cost=END_COST), SourceDelete(other.otid, b"B")]


def test_a_source_that_is_back_within_the_back_off_has_not_been_away() -> None:
    site = SrsSite()
    teller, client = site.client(1), site.client(2, InterestMode.FLOOD)
    end = SourceDelete(source(b"A").otid, b"A")
    teller.tell(source(b"A"))
    client.take()
    for _ in range(5):
        teller.tell(end)
        site.wait(0.3)
        teller.tell(source(b"A"))
    site.wait(2)
    assert client.take() == []
    teller.tell(end)
    site.wait(0.3)
    teller.tell(end)
    site.wait(0.3)
    assert client.take() == []
    site.wait(0.3)
    assert client.take() == [end]


def test_without_a_back_off_an_end_is_told_at_once() -> None:
    site = SrsSite(SrsSettings(SrsTimes(source_leave_backoff_ns=0)))
    teller, client = site.client(1), site.client(2, InterestMode.FLOOD)
    teller.tell(source(b"A"), SourceDelete(source(b"A").otid, b"A"))
    assert client.take() == [source(b"A"), SourceDelete(source(b"A").otid, b"A")]


def test_ends_of_what_is_not_there_and_of_others_are_nothing() -> None:
    site = SrsSite()
    teller, other, client = site.client(1), site.client(2), site.client(3, InterestMode.FLOOD)
    teller.tell(source(b"A"))
    client.take()
    other.tell(SourceDelete(source(b"A").otid, b"A"), SourceDelete(bytes(32), b"B"), source(b"C", 9, cost=END_COST))
    other.want_no_more(b"nothing")
    site.wait(2)
    assert client.take() == []
    assert site.server.records.source_count == 1


def test_two_clients_may_tell_one_otid_and_the_end_of_one_is_not_that_of_both() -> None:
    site = SrsSite()
    first, second, client = site.client(1), site.client(2), site.client(3, InterestMode.FLOOD)
    one, other, end = source(b"A", ip=1), source(b"A", ip=2), SourceDelete(source(b"A").otid, b"A")
    first.tell(one)
    second.tell(other)
    assert client.take() == [one, other]
    first.tell(end)
    site.wait(1)
    assert client.take() == [replace(one, cost=END_COST)]
    first.tell(other)
    client.take()
    first.tell(end)
    site.wait(1)
    assert client.take() == []  # the second has the same
    second.tell(end)
    site.wait(1)
    assert client.take() == [end]


def test_an_otid_belongs_to_one_topic() -> None:
    site = SrsSite()
    first, second, client = site.client(1), site.client(2), site.client(3, InterestMode.FLOOD)
    first.tell(source(b"A"), source(b"B"))
    second.tell(source(b"C"))
    assert client.take_topics() == [b"A"]
    assert site.server.records.counts.other_topic == 2


def test_a_source_leave_is_counted_and_not_told() -> None:
    site = SrsSite()
    client = site.client(1, InterestMode.FLOOD_AND_FORWARD)
    site.client(2).tell(SourceLeave(bytes(32), b"A", b"TCP:10.0.0.1:14371[1]"))
    assert client.take() == []
    assert site.server.counts.source_leaves == 1


# interest


def test_interest_of_others_is_forwarded_to_who_asks_for_it() -> None:
    site = SrsSite()
    early, app = site.client(1, InterestMode.FILTER_AND_FORWARD), site.client(2)
    app.want(b"A")
    app.want_pattern(b"^B", domain_id=7)
    late = site.client(3, InterestMode.FLOOD_AND_FORWARD)
    for client in (early, late):
        assert kinds(client.take()) == [(RIR, b"A", 0), (WIR, b"^B", 7)]
    app.want(b"A")
    assert early.take() == []
    app.want_no_more(b"A")
    app.tell(app.interest(WDR, b"^B", 7))
    ends = [(RDR, b"A", 0), (RER, b"A", 0), (WDR, b"^B", 7), (WER, b"^B", 7)]
    assert kinds(early.take()) == kinds(late.take()) == ends
    assert app.take() == []


def test_own_interest_is_not_told_back() -> None:
    site = SrsSite()
    dro = site.client(1, InterestMode.FILTER_AND_FORWARD)
    dro.want(b"A", domain_id=5)
    dro.want_no_more(b"A", domain_id=5)
    assert dro.take() == []
    dro.want(b"B", domain_id=5)
    dro.connect()
    dro.register()
    dro.open_stream()
    assert dro.take() == []


def test_the_end_is_told_when_the_last_of_a_domain_is_gone() -> None:
    site = SrsSite()
    dro, first, second = site.client(1, InterestMode.FILTER_AND_FORWARD), site.client(2), site.client(3)
    first.want(b"A")
    second.want(b"A")
    second.want(b"A", domain_id=9)
    dro.take()
    first.want_no_more(b"A")
    assert kinds(dro.take()) == [(RDR, b"A", 0)]
    second.want_no_more(b"A", domain_id=9)
    assert kinds(dro.take()) == [(RDR, b"A", 9), (RER, b"A", 9)]
    second.want_no_more(b"A")
    assert kinds(dro.take()) == [(RDR, b"A", 0), (RER, b"A", 0)]
    assert site.server.records.interest_count == 0
    assert site.server.records.record_bytes == 0


def test_interest_in_a_second_domain_lasts_when_that_in_the_first_ends() -> None:
    site = SrsSite()
    dro, teller = site.client(1), site.client(2)
    dro.want(b"A", domain_id=5)
    dro.want(b"A", domain_id=6)
    dro.want_no_more(b"A", domain_id=5)
    teller.tell(source(b"A"))
    assert dro.take_topics() == [b"A"]


def test_patterns_that_cannot_be_used_are_refused_and_counted() -> None:
    site = limited(client_patterns=2, patterns=3)
    first, second, dro = site.client(1), site.client(2), site.client(3, InterestMode.FILTER_AND_FORWARD)
    first.want_pattern(b"(", b"a", b"b", b"c")
    second.want_pattern(b"c", b"d")
    assert [name for _, name, _ in kinds(dro.take())] == [b"a", b"b", b"c"]
    assert site.server.records.counts.refused_patterns == 3
    first.tell(first.interest(WDR, b"a"))
    first.want_pattern(b"e")
    assert site.server.records.interest_count == 3


def test_a_pattern_that_always_takes_too_long_is_given_up() -> None:
    site = SrsSite()
    client, teller = site.client(1), site.client(2)
    client.want_pattern(b"(a|aa)+$", b"^z")
    names = [b"a" * 60 + b"b%d" % number for number in range(30)]
    teller.tell(*(source(name, number) for number, name in enumerate(names)), source(b"z", 99))
    assert client.take_topics() == [b"z"]
    assert site.server.records.counts.given_up_patterns == 1
    client.tell(client.interest(WDR, b"(a|aa)+$"))
    assert site.server.records.interest_count == 1


# what is lost, and comes again


def test_the_records_of_a_lost_client_stay_for_their_lifetimes() -> None:
    times = SrsTimes(source_state_ns=100 * NS_PER_S, interest_state_ns=200 * NS_PER_S)
    site = SrsSite(SrsSettings(times))
    teller, dro = site.client(1), site.client(2, InterestMode.FLOOD_AND_FORWARD)
    teller.tell(source(b"A"))
    teller.want(b"B")
    dro.take()
    teller.lose()
    site.wait(99)
    assert dro.take() == []
    assert site.client(3, InterestMode.FLOOD).take_topics() == [b"A"]
    site.wait(2)
    assert deletions(dro.take()) == [b"A"]
    assert len(site.server.clients.lost) == 1
    site.wait(100)
    assert kinds(dro.take()) == [(RDR, b"B", 0), (RER, b"B", 0)]
    assert len(site.server.clients.lost) == 0
    assert len(site.server.clients) == 2
    assert site.server.records.record_bytes == 0


def test_a_client_that_is_lost_again_and_again_is_remembered_once() -> None:
    site = SrsSite()
    teller, dro = site.client(1), site.client(2, InterestMode.FLOOD_AND_FORWARD)
    for _ in range(50):
        teller.tell(source(b"A"))
        teller.want(b"B")
        teller.lose()
        teller.connect()
        teller.register()
        teller.open_stream()
    assert len(dro.take()) == 2
    teller.tell(source(b"A"))
    teller.lose()
    clients = site.server.clients
    assert (len(clients), len(clients._source_ends), len(clients._interest_ends)) == (2, 1, 1)
    site.wait(31)
    assert kinds(dro.take()) == [(RDR, b"B", 0), (RER, b"B", 0)]
    dro.lose()
    site.wait(86_300)
    assert len(clients) == 1
    site.wait(100)
    assert (len(clients), len(clients._source_ends), len(clients._interest_ends)) == (0, 0, 0)


def test_a_lifetime_of_nothing_is_for_ever() -> None:
    site = SrsSite(SrsSettings(SrsTimes(source_state_ns=0, interest_state_ns=0)))
    teller = site.client(1)
    teller.tell(source(b"A"))
    teller.lose()
    site.now_ns += 10**9 * NS_PER_S
    site.server.on_timer(site.now_ns)
    site.settle()
    assert site.client(3, InterestMode.FLOOD).take_topics() == [b"A"]


def test_what_came_before_the_end_of_a_connection_counts() -> None:
    site = SrsSite()
    teller, client = site.client(1), site.client(2, InterestMode.FLOOD)
    teller.tell(*(source(b"T%d" % number, number) for number in range(1000)))
    assert len(client.take_topics()) == 1000
    ends = [SourceDelete(source(b"", number).otid, b"T%d" % number) for number in range(1000)]
    for end in ends:
        teller.send(RequestFrame(5, FrameType.REQUEST_FNF, encode(end)))
    teller.lose()
    site.wait(1)
    assert client.take() == ends
    assert len(site.server.clients) == 1


def test_a_client_that_comes_again_takes_its_records_over() -> None:
    site = SrsSite()
    teller, dro = site.client(1), site.client(2, InterestMode.FLOOD_AND_FORWARD)
    teller.tell(source(b"A", 1), source(b"B", 2), source(b"C", 3))
    teller.want(b"X", b"Y")
    dro.take()
    teller.lose()
    site.wait(1000)
    teller.connect()
    teller.register()
    teller.open_stream()
    teller.tell(source(b"A", 1), source(b"B", 2, cost=5))
    teller.want(b"X")
    assert dro.take() == [source(b"B", 2, cost=5)]
    site.wait(29)
    assert dro.take() == []
    site.wait(2)
    told = dro.take()
    assert deletions(told) == [b"C"]
    assert kinds(told) == [(RDR, b"Y", 0), (RER, b"Y", 0)]
    site.wait(90_000)
    assert dro.take() == []
    assert site.server.clients.counts.returned == 1


def test_a_client_that_is_lost_again_keeps_what_it_has_told_before_for_the_grace_alone() -> None:
    site = SrsSite()
    teller, client = site.client(1), site.client(2, InterestMode.FLOOD)
    teller.tell(source(b"A"))
    client.take()
    for _ in range(3):
        teller.lose()
        site.wait(1)
        teller.connect()
        teller.register()
        site.settle()
    site.wait(31)
    assert deletions(client.take()) == [b"A"]


def test_a_client_that_is_back_again_and_again_has_one_grace() -> None:
    site = SrsSite()
    teller, client = site.client(1), site.client(2, InterestMode.FLOOD_AND_FORWARD)
    teller.tell(source(b"A", 1), source(b"B", 2))
    teller.want(b"X", b"Y")
    client.take()
    for _ in range(50):
        teller.lose()
        teller.connect()
        teller.register()
        site.settle()
    teller.tell(source(b"A", 1))
    teller.want(b"X")
    server = site.server
    due_ns = server.clients.next_deadline()
    assert due_ns is not None
    site.now_ns = due_ns
    for one in (teller, client):
        one.send(KeepaliveFrame(False))
    site.settle()
    server.on_timer(due_ns)
    assert len(server._chores) == 2
    site.settle()
    told = client.take()
    assert deletions(told) == [b"B"]
    assert kinds(told) == [(RDR, b"Y", 0), (RER, b"Y", 0)]
    assert server.clients.next_deadline() is None


def test_what_is_forgotten_is_not_copied_before() -> None:
    site = SrsSite()
    teller = site.client(1)
    teller.tell(*(source(b"T%d" % number, number) for number in range(20_000)))
    teller.want(*(b"T%d" % number for number in range(20_000)))
    records, client = site.server.records, site.server._client_of[teller.connection]
    begun = [forget(client, 2) for forget in (records.forget_sources, records.forget_all_interest) for _ in range(10)]
    tracemalloc.start()
    try:
        for steps in begun:
            next(steps)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_client_without_records_is_forgotten_at_once() -> None:
    site = SrsSite()
    site.client(1).lose()
    assert len(site.server.clients) == 0


# bounds


def test_what_a_client_tells_is_bounded_in_bytes_and_ends_give_them_back() -> None:
    site = limited(client_record_bytes=10_000)
    teller, other, client = site.client(1), site.client(2), site.client(3, InterestMode.FLOOD)
    teller.tell(*(source(b"T%d" % number, number) for number in range(50)))
    kept = client.take_topics()
    assert 5 < len(kept) < 10
    assert site.server.records.counts.refused_bytes == 50 - len(kept)
    other.tell(source(b"other", 100))
    assert client.take_topics() == [b"other"]
    teller.tell(*(SourceDelete(source(b"", number).otid, b"T%d" % number) for number in range(3)))
    site.wait(1)
    assert len(deletions(client.take())) == 3
    teller.tell(*(source(b"T%d" % number, number) for number in range(3)))
    assert len(client.take_topics()) == 3


def test_lost_clients_make_room_for_those_that_are_there() -> None:
    site = limited(record_bytes=100_000)
    client = site.client(1, InterestMode.FLOOD)
    for number in range(2, 40):
        teller = site.client(number)
        teller.tell(*(source(b"T%d.%d" % (number, index), number * 100 + index) for index in range(10)))
        told = client.take()
        assert len([one for one in told if isinstance(one, SourceInfo)]) == 10
        teller.lose()
    assert site.server.records.record_bytes < 100_000
    assert site.server.clients.counts.forgotten > 25


def test_a_walk_meets_what_was_there_and_still_is() -> None:
    roster: Roster[RosterNode] = Roster()
    nodes = [RosterNode() for _ in range(6)]
    for node in nodes[:4]:
        roster.add(node)
    walk = roster.walk()
    assert next(walk) is nodes[0]
    assert next(walk) is nodes[1]
    for node in (nodes[1], nodes[2], nodes[0]):
        roster.remove(node)
    roster.add(nodes[4])
    assert [node for node in walk if node] == [nodes[3], nodes[4]]
    roster.remove(nodes[4])
    roster.add(nodes[5])
    assert list(roster.walk()) == [nodes[3], nodes[5]]


def test_what_was_removed_is_held_only_where_a_walk_stands() -> None:
    roster: Roster[RosterNode] = Roster()
    nodes = [RosterNode() for _ in range(6)]
    for node in nodes:
        roster.add(node)
    walks = [roster.walk(), roster.walk()]
    for walk in walks:
        assert next(walk) is nodes[0]
    for node in nodes[:5]:
        roster.remove(node)
    assert nodes[0].after is nodes[5]
    assert all(node.before is node.after is None for node in nodes[1:5])
    assert next(walks[0]) is nodes[5]
    assert nodes[5].before is nodes[0]
    del walk
    walks.pop()  # nobody goes on with it
    assert nodes[5].before is nodes[0].after is None
    assert list(roster.walk()) == [nodes[5]]
    assert list(walks[0]) == []


@pytest.mark.parametrize("kind", [RIR, WIR])
def test_interest_that_is_gone_is_walked_no_more(kind: int) -> None:
    site = SrsSite()
    site.client(1).tell(*(source(b"T%d" % number, number) for number in range(1000)))
    slow = FakeSrsClient(site, 2)
    slow.register()
    slow.open_stream(0)
    slow.want_pattern(b"^T")
    assert len(slow.connection.walks) == 1
    end = RDR if kind == RIR else WDR
    for _ in range(100):
        slow.tell(slow.interest(kind, b"T1$"), slow.interest(end, b"T1$"))
    slow.tell(slow.interest(kind, b"T9"))
    assert list(slow.connection.walks) == [(True, b"^T"), (kind == WIR, b"T9")]
    slow.tell(slow.interest(WDR, b"^T"))
    slow.send(RequestNFrame(STREAM, UNBOUNDED_N))
    assert 500 < len(slow.take_topics()) < 1000
    assert not slow.connection.walks


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_clients_know_what_there_is(seed: int) -> None:
    """What a client of each kind has put together from what it was told is what the others tell, at the end."""
    random = Random(seed)
    site = SrsSite()
    tellers = [site.client(number) for number in range(1, 5)]
    flood, dro = site.client(10, InterestMode.FLOOD), site.client(11, InterestMode.FILTER_AND_FORWARD)
    dro.want(b"T0", b"T3")
    dro.want_pattern(b"[45]$")
    truth: dict[int, dict[bytes, SourceInfo]] = {number: {} for number in range(4)}
    wanted: dict[int, set[bytes]] = {number: set() for number in range(4)}
    for _ in range(150):
        at = random.randrange(4)
        teller, own, names = tellers[at], truth[at], wanted[at]
        topic = b"T%d" % random.randrange(8)
        one = source(topic, 100 * at + topic[-1], ip=at + 1, cost=random.randrange(3))
        match random.randrange(6):
            case 0 | 1:
                teller.tell(one)
                own[one.otid] = one
            case 2:
                teller.tell(SourceDelete(one.otid, topic))
                own.pop(one.otid, None)
            case 3:
                teller.want(topic)
                names.add(topic)
            case 4:
                teller.want_no_more(topic)
                names.discard(topic)
            case _:
                teller.lose()
                teller.connect()
                teller.register()
                teller.open_stream()
                teller.tell(*own.values(), *(teller.interest(RIR, name) for name in names))
        site.wait(random.choice([0, 0.1, 0.6]))
    site.wait(60)
    there = {one for own in truth.values() for one in own.values()}
    assert known(flood) == there
    assert known(dro) == {one for one in there if one.topic in (b"T0", b"T3") or one.topic[-1:] in b"45"}
    told: dict[tuple[bytes, bytes], bool] = {}
    for record in dro.records:
        if isinstance(record, InterestInfo) and record.kind != RER:
            told[record.context_instance, record.name] = record.is_wanted
    expected = {(tellers[at].instance, name) for at, names in wanted.items() for name in names}
    assert {key for key, is_wanted in told.items() if is_wanted} == expected
    for teller in (*tellers, flood, dro):
        teller.tell(*(SourceDelete(one.otid, one.topic) for one in there))
        for name in [b"T%d" % number for number in range(8)]:
            teller.want_no_more(name)
    dro.tell(dro.interest(WDR, b"[45]$"))
    site.wait(1)
    assert site.server.records.record_bytes == 0
    assert site.server.records.source_count == site.server.records.interest_count == 0


def known(client: FakeSrsClient) -> set[SourceInfo]:
    found: dict[bytes, SourceInfo] = {}
    for record in client.records:
        if isinstance(record, SourceInfo):
            found[record.otid] = record
        elif isinstance(record, SourceDelete):
            found.pop(record.otid, None)
    return set(found.values())

"""The cache of heard sources: what is kept when it is full, and which of equals is better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dro.clock import NS_PER_S
from dro.proto.new_entries import NewEntryRate
from dro.proto.resolver.cache import CachedSource, Learned, TopicCache, address_rank
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import TirOptions
from dro.wire.lbmr.tlv import UnknownOption
from dro.wire.source_string import (
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    TcpAddress,
    TransportAddress,
    UnknownTransport,
)
from tests.fakes.channel import tir


def learn(cache: TopicCache, record: lbmr.Tir, at_ns: int = 0) -> tuple[Learned, CachedSource | None]:
    return cache.learn(record, source_ip=1, from_dro=False, source_id=None, now_ns=at_ns)


def topics(cache: TopicCache) -> bytes:
    return b"".join(sorted(cache.topics()))


def fill(cache: TopicCache, names: bytes, *, joined: bytes = b"") -> None:
    for n, name in enumerate(names):
        outcome, entry = learn(cache, tir(bytes((name,)), otid=n))
        assert outcome is Learned.NEW
        assert entry is not None
        entry.is_joined = name in joined


def test_a_full_cache_forgets_what_was_not_heard_for_longest() -> None:
    cache = TopicCache(3)
    fill(cache, b"123")
    assert learn(cache, tir(b"1", otid=0))[0] is Learned.KNOWN
    assert learn(cache, tir(b"4"))[0] is Learned.NEW
    assert (topics(cache), len(cache)) == (b"134", 3)


def test_a_full_cache_keeps_what_is_joined() -> None:
    cache = TopicCache(3)
    fill(cache, b"123", joined=b"12")
    assert learn(cache, tir(b"4"))[0] is Learned.NEW
    assert topics(cache) == b"124"


def test_a_cache_full_of_joined_sources_takes_no_more() -> None:
    cache = TopicCache(2)
    fill(cache, b"12", joined=b"12")
    assert learn(cache, tir(b"4")) == (Learned.FULL, None)
    assert topics(cache) == b"12"


def test_only_so_many_joined_sources_are_passed_over_at_once() -> None:
    cache = TopicCache(65)
    fill(cache, bytes(range(65)), joined=bytes(range(64)))
    assert learn(cache, tir(b"new")) == (Learned.FULL, None)
    assert learn(cache, tir(b"new"))[0] is Learned.NEW, "the search goes on where it ended"


@pytest.mark.parametrize(("most", "kept"), [(0, b"123"), (1, b"3"), (2, b"23")])
def test_a_bound_of_zero_is_none(most: int, kept: bytes) -> None:
    cache = TopicCache(most)
    fill(cache, b"123")
    assert topics(cache) == kept
    assert cache.refused == 0


def test_of_too_many_ways_to_one_source_the_oldest_is_forgotten_unless_it_is_joined() -> None:
    cache = TopicCache(0)
    for port in range(64):
        _, entry = learn(cache, tir(port=port), at_ns=1000 - port)
        assert entry is not None
        entry.is_joined = port == 63
    assert len(cache) == 64
    assert learn(cache, tir(port=100), at_ns=2000)[0] is Learned.NEW
    known = {session.tir.transport for session in cache.sessions(b"AAA", (1).to_bytes(32, "big"))}
    assert known == {tir(port=port).transport for port in (*range(62), 63, 100)}
    assert len(cache) == 64


@pytest.mark.parametrize(
    "record",
    [
        lbmr.Tir(b"AAA", UnknownTransport(0x11, b"abc"), 60, 1),
        lbmr.Tir(b"AAA", TcpAddress(1, 2), 60, 1 << 32),  # no OTID can be made of it
    ],
)
def test_what_cannot_be_joined_is_not_kept(record: lbmr.Tir) -> None:
    cache = TopicCache(0)
    assert learn(cache, record) == (Learned.UNUSABLE, None)
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("address", "rank"),
    [
        (TcpAddress(1, 2, 3), (1, 2, 3)),
        (LbtruAddress(1, 2, 3), (1, 2, 3)),
        (RdmaAddress(1, 2, 3), (1, 2, 3)),
        (LbtrmAddress(1, 9, 3, 9, 2), (1, 2, 3)),
        (IpcAddress(1, 3, 2), (1, 2, 3)),
        (SmxAddress(1, 3, 2), (1, 2, 3)),
        (UnknownTransport(0x11, b""), (0x11, 0, 0)),
    ],
)
def test_equals_are_decided_by_address_port_and_session(address: TransportAddress, rank: tuple[int, int, int]) -> None:
    assert address_rank(address) == rank


def test_new_sources_are_taken_at_a_rate_known_ones_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.proto.resolver.cache.NEW_SOURCES", NewEntryRate(in_all=3, of_one=2))
    cache = TopicCache(0)
    heard = [(b"A", 1), (b"B", 1), (b"C", 1), (b"A", 1), (b"D", 2), (b"E", 3)]
    outcomes = [
        cache.learn(tir(topic), source_ip=ip, from_dro=False, source_id=None, now_ns=0)[0] for topic, ip in heard
    ]
    new, known, limited = Learned.NEW, Learned.KNOWN, Learned.LIMITED
    assert outcomes == [new, new, limited, known, new, limited]
    assert (len(cache), cache.limited, cache.turned_away) == (3, 2, 0)
    assert learn(cache, tir(b"C"), at_ns=NS_PER_S)[0] is new


def test_what_finds_no_room_is_counted() -> None:
    cache = TopicCache(2)
    fill(cache, b"12", joined=b"12")
    for _ in range(3):
        assert learn(cache, tir(b"new")) == (Learned.FULL, None)
    assert (cache.turned_away, cache.limited) == (3, 0)


def with_options(name: bytes, otid: int, count: int, nbytes: int) -> lbmr.Tir:
    """Unknown options that may be skipped, of so many bytes each, after those of the usual kind."""
    usual = tir(name, otid=otid)
    assert usual.options is not None
    unknown = tuple(UnknownOption(0x7A, b"\x80" + bytes(nbytes - 3)) for _ in range(count))
    return replace(usual, options=TirOptions((*usual.options.items, *unknown)))


def test_sources_that_nobody_has_joined_are_bounded_by_their_memory() -> None:
    """A review: 44 MB of advertisements cost 1.1 GB, far below the bound of entries."""
    cache = TopicCache(0, bytes_max=1 << 20)
    for n in range(3000):
        learn(cache, with_options(b"topic.%d" % n, n, 10, 250), n)
    assert 100 < len(cache) <= (1 << 20) // 5000
    assert cache.source_count(b"topic.2999"), "the newest is there"
    assert cache.turned_away == 0


def test_what_is_joined_does_not_count_and_does_when_it_is_left() -> None:
    cache = TopicCache(0, bytes_max=1 << 20)
    for n in range(600):
        entry = learn(cache, tir(b"wanted.%d" % n, otid=n))[1]
        assert entry is not None
        entry.is_joined = True
    for n in range(3000):
        assert learn(cache, tir(b"topic.%d" % n, otid=n), n)[0] is Learned.NEW
    assert sum(cache.source_count(b"wanted.%d" % n) for n in range(600)) == 600
    for n in range(600):
        cache.leave_topic(b"wanted.%d" % n)
        learn(cache, tir(b"wanted.%d" % n, otid=n), 4000)
    for n in range(3000):
        learn(cache, tir(b"topic.%d" % n, otid=n), 5000)
    assert len(cache) <= (1 << 20) // 1700 + 1


@pytest.mark.parametrize(("count", "nbytes"), [(100, 4), (60, 250), (2000, 4)])
def test_a_source_with_too_many_options_is_turned_away_and_counted(count: int, nbytes: int) -> None:
    cache = TopicCache(0)
    assert learn(cache, with_options(b"T", 1, count, nbytes)) == (Learned.TOO_LARGE, None)
    assert (len(cache), cache.turned_away) == (0, 1)
    assert learn(cache, with_options(b"T", 1, 20, 20))[0] is Learned.NEW

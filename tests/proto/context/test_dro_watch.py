"""When DROs of a TRD were heard, and how many of them are remembered."""

from __future__ import annotations

import pytest

from dro.clock import s
from dro.proto.context.dro_watch import REMEMBERED_MAX, SILENT_NS, DroWatch

HOST, OTHER_HOST = 0x0A0000AA, 0x0A0000BB
OLD, NEW = b"old ctx.", b"new ctx."


def test_contexts_and_hosts_are_compared_by_when_they_were_heard() -> None:
    watch = DroWatch()
    watch.on_packet(HOST, OLD, 10)
    watch.on_packet(HOST, NEW, 20)
    assert watch.has_succeeded(NEW, OLD)
    assert not watch.has_succeeded(OLD, NEW)
    assert not watch.has_succeeded(None, OLD)
    assert not watch.has_succeeded(NEW, None)
    watch.on_packet(HOST, OLD, 20)
    assert not watch.has_succeeded(NEW, OLD), "at the same moment"
    assert not watch.has_succeeded(b"unknown", OLD)
    assert watch.has_succeeded(NEW, b"unknown")
    watch.on_packet(HOST, NEW, 30)
    assert not watch.has_succeeded(NEW, OLD), "it appeared before, however often it is heard"
    watch.on_packet(OTHER_HOST, b"first", 0)
    watch.on_packet(OTHER_HOST, b"second", 1)
    assert not watch.has_succeeded(b"unknown", b"first")
    assert watch.has_succeeded(b"second", b"unknown")
    watch.on_packet(HOST, None, 20)
    assert not watch.is_host_silent(HOST, 20 + s(11))
    assert watch.is_host_silent(HOST, 21 + s(11))
    assert not watch.is_host_silent(0x0A0000CC, s(11))
    assert watch.is_host_silent(0x0A0000CC, s(11) + 1)


def test_the_least_recently_heard_of_too_many_is_forgotten() -> None:
    watch = DroWatch()
    for number in range(REMEMBERED_MAX):
        watch.on_packet(number, b"%d" % number, s(100))
    watch.on_packet(0, b"0", s(101))
    watch.on_packet(5000, None, s(101))
    assert not watch.is_host_silent(0, s(101))
    assert watch.is_host_silent(1, s(101)), "as one that was never heard"
    assert not watch.is_host_silent(2, s(101))
    watch.on_packet(5001, b"late", s(101))
    assert [watch.has_succeeded(name, b"unknown") for name in (b"0", b"1", b"2", b"late")] == [True, False, True, True]


@pytest.mark.parametrize(("passed_ns", "is_silent"), [(0, False), (SILENT_NS, False), (SILENT_NS + 1, True)])
@pytest.mark.parametrize("source_id", [None, OLD])
def test_a_host_is_heard_by_whatever_it_says(passed_ns: int, is_silent: bool, source_id: bytes | None) -> None:
    watch = DroWatch()
    watch.on_packet(HOST, source_id, s(100))
    assert watch.is_host_silent(HOST, s(100) + passed_ns) is is_silent


def test_contexts_that_are_heard_again_are_the_last_to_be_forgotten() -> None:
    watch = DroWatch()
    for number in range(REMEMBERED_MAX):
        watch.on_packet(HOST, b"%d" % number, 10)
    watch.on_packet(HOST, b"0", 20)
    for number in range(REMEMBERED_MAX - 1):
        watch.on_packet(HOST, b"new %d" % number, 30)
    assert watch.has_succeeded(b"0", b"unknown")
    assert not watch.has_succeeded(b"1", b"unknown")
    assert watch.has_succeeded(b"new 0", b"0")
    watch.on_packet(HOST, b"one more", 30)
    assert not watch.has_succeeded(b"0", b"unknown")


def test_packets_that_name_no_context_leave_the_contexts_alone() -> None:
    watch = DroWatch()
    watch.on_packet(HOST, OLD, 10)
    watch.on_packet(HOST, None, 20)
    watch.on_packet(HOST, NEW, 15)
    assert watch.has_succeeded(NEW, OLD), "the old one was last heard at 10"

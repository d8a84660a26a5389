"""The table of clients and what each client gets, on a fake clock."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Final

import pytest

from dro.clock import ms, s
from dro.proto.lbmrd.daemon import (
    ANSWER,
    DATAGRAM_SENDS,
    NOTES_MAX,
    SHARE,
    WAITING_BYTES_MAX,
    WAITING_SENDS_MAX,
    ClientSend,
    LbmrdCore,
    NoteKind,
)
from dro.proto.lbmrd.nat import NatRule, Translation
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TcpAddress, ip_text

RECEIVER_ALIVE: Final = bytes((0x12, 0, 0, 0))
SOURCE_ALIVE: Final = bytes((0x03, 0, 0, 0))
QUERY: Final = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((b"AAA",))))
TTL_NS: Final = s(60)


def key(ip: str, port: int) -> int:
    return int.from_bytes(struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(ip), "little")


OWN: Final = key("127.0.0.1", 15380)
A, B, C = (key("127.0.0.1", port) for port in (1, 2, 3))


def core_of(translation: Translation | None = None, clients_max: int = 100) -> LbmrdCore:
    return LbmrdCore(
        translation or Translation(), own=OWN, ttl_ns=TTL_NS, activity_ns=s(10), clients_max=clients_max, now_ns=0
    )


def told(sends: Sequence[ClientSend]) -> dict[int, bytes]:
    """Datagram by address; nobody is told twice."""
    found = [(s.group.addresses[2 * at], s.data) for s in sends for at in range(s.start, s.stop)]
    assert len(dict(found)) == len(found)
    return dict(found)


def say(core: LbmrdCore, packet: bytes, sender: int, now_ns: int) -> Sequence[ClientSend]:
    """What is sent for a datagram, at once and in its turn."""
    sends = [*core.on_datagram(packet, sender, now_ns)]
    while (more := core.next_sends()) is not None:
        sends += more
    return sends


def kinds(core: LbmrdCore) -> list[NoteKind]:
    return [note.kind for note in core.take_notes()]


def test_a_tr_datagram_goes_to_all_but_its_sender() -> None:
    core = core_of()
    assert told(say(core, QUERY, A, 0)) == {}
    assert told(say(core, QUERY, B, 0)) == {A: QUERY}
    assert told(say(core, QUERY, C, 0)) == {A: QUERY, B: QUERY}
    assert told(say(core, QUERY, B, 0)) == {A: QUERY, C: QUERY}
    assert core.counts.tr_datagrams == 4


def test_who_stands_behind_the_sender_comes_first() -> None:
    """A full send buffer does not always cost the same clients."""
    core = core_of()
    for client in (A, B, C):
        say(core, RECEIVER_ALIVE, client, 0)
    assert list(told(say(core, QUERY, B, 0))) == [C, A]


@pytest.mark.parametrize("keepalive", [RECEIVER_ALIVE, SOURCE_ALIVE, ANSWER, b"\0\0\0\0", b"\x18\0\0\0\x80\x04\0\x04"])
def test_a_keepalive_registers_and_is_answered_to_its_sender(keepalive: bytes) -> None:
    core = core_of()
    say(core, RECEIVER_ALIVE, B, 0)
    assert told(say(core, keepalive, A, 0)) == {A: ANSWER}
    assert lbmr.decode(ANSWER) == lbmr.Packet(1, None, lbmr.Queries())
    assert core.client_count == 2


@pytest.mark.parametrize(
    "packet",
    [
        b"\x11\0\0\0",  # no wildcard query either
        b"\x14\0\0\0\0\x04\0\0",
        b"\x16\0\0\0",
        *(bytes((0x17, kind, 0, 0)) for kind in lbmr.ExtendedType),
        b"\x10\0\0\x01 not a whole advertisement",
    ],
)
def test_all_else_is_passed_on_as_it_is(packet: bytes) -> None:
    core = core_of()
    say(core, RECEIVER_ALIVE, A, 0)
    assert told(say(core, packet, B, 0)) == {A: packet}


@pytest.mark.parametrize("packet", [b"", b"\x10\0\0", b"\x20\0\0\0", b"\xf2\0\0\0", b"\x15\0\0\0", b"\x17\0\0\0"])
def test_what_is_not_lbmr_is_counted_and_registers_nobody(packet: bytes) -> None:
    core = core_of()
    say(core, RECEIVER_ALIVE, A, 0)
    assert not say(core, packet, B, 0)
    assert (core.client_count, core.counts.malformed) == (1, 1)
    assert kinds(core) == [NoteKind.REGISTERED, NoteKind.MALFORMED]


def test_the_daemon_is_no_client_of_its_own() -> None:
    core = core_of()
    assert not say(core, QUERY, OWN, 0)
    assert core.client_count == 0


def test_two_daemons_do_not_answer_each_other_without_end() -> None:
    """Somebody sends a keepalive to one in the name of the other."""
    one, other = core_of(), core_of()
    packet, now_ns, passes = RECEIVER_ALIVE, 0, 0
    ends = [(one, A), (other, B)]
    while passes < 10:
        core, sender = ends[passes % 2]
        sends = say(core, packet, sender, now_ns)
        passes, now_ns = passes + 1, now_ns + ms(1)
        if not sends:
            break
        packet = sends[0].data
    assert passes == 3


def test_answers_of_type_0_are_answered_again_after_a_while() -> None:
    core = core_of()
    assert say(core, ANSWER, A, 0)
    assert not say(core, ANSWER, A, ms(249))
    assert say(core, ANSWER, A, ms(250))
    assert all(say(core, RECEIVER_ALIVE, A, ms(250)) for _ in range(3))


def test_a_silent_client_is_removed_and_others_take_its_place() -> None:
    core = core_of()
    for client in (A, B, C):
        say(core, RECEIVER_ALIVE, client, 0)
    for client in (B, C):
        say(core, RECEIVER_ALIVE, client, s(1))
    assert core.next_deadline() == s(10)
    core.on_timer(TTL_NS - 1)
    assert core.client_count == 3
    core.on_timer(TTL_NS)
    assert core.next_deadline() == TTL_NS + s(10)
    assert core.client_count == 2
    assert core.counts.expired == 1
    assert told(say(core, QUERY, B, TTL_NS)) == {C: QUERY}
    assert told(say(core, QUERY, C, TTL_NS)) == {B: QUERY}
    assert told(say(core, RECEIVER_ALIVE, C, TTL_NS)) == {C: ANSWER}
    core.on_timer(s(1000))
    assert core.client_count == 0
    assert not say(core, QUERY, A, s(1000))


def test_a_full_table_refuses_newcomers_and_keeps_who_speaks() -> None:
    core = core_of(clients_max=2)
    say(core, RECEIVER_ALIVE, A, 0)
    say(core, RECEIVER_ALIVE, B, 0)
    core.take_notes()
    assert say(core, QUERY, C, s(1)) == []
    assert say(core, RECEIVER_ALIVE, C, s(1)) == []
    assert (core.counts.refused, core.client_count) == (2, 2)
    assert kinds(core) == [NoteKind.REFUSED] * 2
    say(core, RECEIVER_ALIVE, B, s(9))
    assert not say(core, RECEIVER_ALIVE, C, s(10) - 1)  # A has been silent, not for long enough
    assert told(say(core, RECEIVER_ALIVE, C, s(11))) == {C: ANSWER}
    assert told(say(core, QUERY, C, s(11))) == {B: QUERY}


def test_ten_thousand_forged_senders_and_one_that_is_real() -> None:
    core = core_of(clients_max=5_000)
    say(core, RECEIVER_ALIVE, A, 0)
    for n in range(10_000):
        say(core, QUERY if n % 2 else RECEIVER_ALIVE, key(f"10.0.{n >> 8}.{n & 255}", 14402), n)
    assert (core.client_count, core.counts.refused) == (5_000, 5_001)
    assert len(core.take_notes()) == NOTES_MAX
    say(core, RECEIVER_ALIVE, A, s(59))
    core.on_timer(s(61))
    assert core.client_count == 1
    assert {(len(g.clients), len(g.addresses)) for g in core.groups.values()} == {(1, 2)}
    assert told(say(core, QUERY, B, s(61))) == {A: QUERY}


INSIDE, OUTSIDE, ELSEWHERE = key("10.1.0.5", 14402), key("10.2.0.5", 14402), key("10.3.0.5", 14402)
NAT: Final = Translation(
    ((IPv4Network("10.0.0.0/8"), ""), (IPv4Network("10.1.0.0/16"), "in"), (IPv4Network("10.2.0.0/16"), "out")),
    {("in", "out"): (NatRule(0x0A010005, None, 0x0A0200FE, None),)},
)


def advertised(data: bytes) -> list[str]:
    body = lbmr.decode(data).body
    assert isinstance(body, lbmr.Queries)
    return [ip_text(tir.transport.ip) for tir in body.tirs if isinstance(tir.transport, TcpAddress)]


def test_advertisements_are_translated_for_the_other_domain_alone() -> None:
    core = core_of(NAT)
    other_inside = key("10.1.0.6", 14402)
    for client in (INSIDE, other_inside, OUTSIDE, ELSEWHERE):
        say(core, RECEIVER_ALIVE, client, 0)
    tir = lbmr.Tir(b"AAA", TcpAddress(0x0A010005, 14371, 1), 60, 7)
    packet = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((), (tir, tir))))
    found = told(say(core, packet, INSIDE, 0))
    assert {client: advertised(data) for client, data in found.items()} == {
        other_inside: ["10.1.0.5"] * 2, OUTSIDE: ["10.2.0.254"] * 2, ELSEWHERE: ["10.1.0.5"] * 2,
    }  # fmt: skip
    assert core.counts.translated == 1
    assert set(told(say(core, packet, OUTSIDE, 0)).values()) == {packet}


def test_an_advertisement_that_cannot_be_translated_stays_in_its_domain() -> None:
    core = core_of(NAT)
    for client in (INSIDE, OUTSIDE, ELSEWHERE):
        say(core, RECEIVER_ALIVE, client, 0)
    core.take_notes()
    packet = b"\x10\0\0\x01AAA"
    assert told(say(core, packet, INSIDE, 0)) == {ELSEWHERE: packet}
    assert core.counts.untranslated == 1
    assert kinds(core) == [NoteKind.UNTRANSLATED]


def test_keepalives_pass_what_waits_and_a_client_fills_no_queue() -> None:
    core = core_of()
    for client in (A, B):
        core.on_datagram(RECEIVER_ALIVE, client, 0)
    most = WAITING_SENDS_MAX // (2 + DATAGRAM_SENDS)
    for _ in range(most):
        assert core.on_datagram(QUERY, A, s(2)) == ()
    assert core.counts.overload == most - most // SHARE
    assert told(core.on_datagram(RECEIVER_ALIVE, B, s(2))) == {B: ANSWER}
    core.on_datagram(QUERY, B, s(2))
    sends = [told(core.next_sends() or ()) for _ in range(most // SHARE + 1)]
    assert sends == [{B: QUERY}, {A: QUERY}] + [{B: QUERY}] * (most // SHARE - 1)
    assert core.next_sends() is None
    assert NoteKind.OVERLOAD in kinds(core)


def test_clients_of_which_something_waits_take_turns() -> None:
    core = core_of()
    for client in (A, B, C):
        core.on_datagram(RECEIVER_ALIVE, client, 0)
    said = {client: [QUERY + bytes((n,)) for n in range(4)] for client in (A, B, C)}
    for client, count in ((A, 4), (B, 2), (C, 1)):
        for packet in said[client][:count]:
            core.on_datagram(packet, client, s(2))
    turns = []
    while (sends := core.next_sends()) is not None:
        (client,) = {A, B, C} - told(sends).keys()
        assert sends[0].data == said[client].pop(0)
        turns.append(client)
    assert turns == [A, B, C, A, B, A, A]
    core.on_datagram(QUERY, B, s(2))
    assert told(core.next_sends() or ()).keys() == {A, C}


@pytest.mark.parametrize("packet", [QUERY, QUERY + bytes(60_000)])
def test_many_clients_that_flood_leave_room_for_another(packet: bytes) -> None:
    core = core_of()
    senders = [key("127.0.0.1", port) for port in range(1, 22)]
    for client in senders:
        core.on_datagram(RECEIVER_ALIVE, client, 0)
    *floods, other = senders
    for n in range(20_000):
        core.on_datagram(packet, floods[n % 20], s(2))
    overload = core.counts.overload
    core.on_datagram(packet, other, s(2))
    assert 0 < overload == core.counts.overload
    heard = [told(core.next_sends() or ()).keys() for _ in senders]
    assert [set(senders) - clients for clients in heard] == [{client} for client in senders]


def test_a_small_table_has_no_long_queue() -> None:
    """A datagram costs something beside its sends."""
    core = core_of()
    for _ in range(WAITING_SENDS_MAX):
        core.on_datagram(QUERY, A, 0)
    assert WAITING_SENDS_MAX - core.counts.overload == WAITING_SENDS_MAX // (1 + DATAGRAM_SENDS) // SHARE


def test_clients_that_are_known_go_before_newcomers() -> None:
    core = core_of()
    core.on_datagram(RECEIVER_ALIVE, A, 0)
    for sender in (B, C, A):
        core.on_datagram(QUERY, sender, s(1))
    assert [told(core.next_sends() or ()).keys() for _ in range(3)] == [{B, C}, {A, C}, {A, B}]


def test_bytes_of_a_client_that_wait_are_bounded() -> None:
    core = core_of()
    core.on_datagram(RECEIVER_ALIVE, A, 0)
    large = QUERY + bytes(60_000)
    for _ in range(200):
        core.on_datagram(large, A, 0)
    assert core.counts.overload == 200 - WAITING_BYTES_MAX // len(large) // SHARE
    core.on_datagram(large, B, 0)
    assert core.counts.overload == 200 - WAITING_BYTES_MAX // len(large) // SHARE


def test_what_a_removed_client_has_said_is_passed_on() -> None:
    core = core_of()
    for client in (A, B, C):
        core.on_datagram(RECEIVER_ALIVE, client, 0)
    core.on_datagram(QUERY, A, 0)
    for client in (B, C):
        core.on_datagram(RECEIVER_ALIVE, client, s(1))
    core.on_timer(TTL_NS)
    assert told(core.next_sends() or ()) == {B: QUERY, C: QUERY}

"""The clients of a unicast topic resolution daemon, and who gets which datagram.

`LbmrdCore` has the table of clients, all of which are forgotten when they are silent; it keeps no topics. Clients of
one network domain make a group, whose addresses stand one behind the other as a send call takes them, so one datagram
for all of them is one effect.

Keepalives are answered at once. What is passed on waits for its turn, since it costs a send for each client: in two
queues that are bounded by the work in them, those of clients that are known for a while first. In a queue clients take
turns. So neither a flood of datagrams nor one of forged senders keeps clients from their answers, and whoever floods
delays himself.

Source: topic resolution notes, section 2.2; wire notes LBMR sections 3 and 12. Guesses, in docs/decisions.md: no copy
goes back to the sender, keepalives are answered by an empty packet, the domain of a TIR is that of the client that sent
it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from dro.clock import ms, s
from dro.errors import DecodeError
from dro.proto.lbmrd.nat import NatRule, Translation, translated
from dro.wire.lbmr.packet import HEADER_SIZE, VERSION, ExtendedType, PacketType

ANSWER: Final = bytes((VERSION << 4 | PacketType.NORMAL, 0, 0, 0))
ANSWER_PAUSE_NS: Final = ms(250)
"""Between two answers to keepalives of type 0, which are answers themselves: two daemons must not answer each other."""
QUIET_NS: Final = s(10)
"""Twice the longest keepalive interval of clients: who is silent for longer makes room when the table is full."""
CLEARING_PAUSE_NS: Final = s(1)
"""Between two searches for clients that make room."""
WAITING_SENDS_MAX: Final = 300_000
"""In each queue, with `DATAGRAM_SENDS`: about what a second is needed for."""
DATAGRAM_SENDS: Final = 10
"""What a datagram costs beside its sends, in sends."""
WAITING_LEAST: Final = 64
"""Datagrams that may wait in each queue, however many clients there are."""
WAITING_BYTES_MAX: Final = 8 << 20
"""In each queue."""
SHARE: Final = 4
"""One client may fill one part in so many of a queue, when nothing of others waits."""
KNOWN_NS: Final = s(1)
"""A client that has been one for as long goes before others."""
NOTES_MAX: Final = 1000
"""Notes that wait to be taken; more are left out, the counts are whole."""
_TYPES: Final = frozenset(PacketType)
_EXTENDED_TYPES: Final = frozenset(ExtendedType)
_KEEPALIVES: Final = (PacketType.RECEIVER_ALIVE, PacketType.SOURCE_ALIVE)


class ClientGroup:
    """The clients of one network domain; number i has `addresses[2 * i]`, and 0 behind it: a `sockaddr_in`."""

    __slots__ = ("addresses", "clients", "domain")

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.addresses = array("Q")
        self.clients: list[LbmrdClient] = []


class LbmrdClient:
    """Says where a client stands in its group (-1: nowhere any more), and when it was heard and answered last."""

    __slots__ = ("answered_ns", "group", "heard_ns", "place", "since_ns")

    def __init__(self, group: ClientGroup, now_ns: int) -> None:
        self.group = group
        self.place = len(group.clients)
        self.heard_ns = self.since_ns = now_ns
        self.answered_ns = now_ns - ANSWER_PAUSE_NS


class ClientSend(NamedTuple):
    """A datagram for the clients of a group from number `start` to `stop`, which is not included."""

    data: bytes
    group: ClientGroup
    start: int
    stop: int


class _Waiting(NamedTuple):
    """A datagram that is to be passed on."""

    data: bytes
    client: LbmrdClient
    sender: int
    has_tirs: bool


class _WaitingLine:
    """Keeps what waits of one client."""

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.size = 0


class WaitingQueue:
    """Holds as many datagrams as there is time for in a second; their senders take turns."""

    def __init__(self) -> None:
        self._lines: OrderedDict[int, _WaitingLine] = OrderedDict()  # by sender; whose turn is next stands first
        self._count = self._size = 0

    def put(self, waiting: _Waiting, clients: int) -> bool:
        """Add one to those of its sender; False when there is no room, for that client or at all."""
        most = max(WAITING_LEAST, WAITING_SENDS_MAX // (clients + DATAGRAM_SENDS))
        size = len(waiting.data)
        line = self._lines.get(waiting.sender) or _WaitingLine()
        if not _has_room(len(line.waiting) + 1, self._count + 1, most):
            return False
        if not _has_room(line.size + size, self._size + size, WAITING_BYTES_MAX):
            return False
        self._lines[waiting.sender] = line
        line.waiting.append(waiting)
        line.size += size
        self._count += 1
        self._size += size
        return True

    def take(self) -> _Waiting | None:
        """Return the first one of the sender whose turn it is, if there is any."""
        if not self._lines:
            return None
        sender, line = self._lines.popitem(last=False)
        waiting = line.waiting.popleft()
        if line.waiting:
            self._lines[sender] = line
        size = len(waiting.data)
        line.size -= size
        self._count -= 1
        self._size -= size
        return waiting


def _has_room(own: int, of_all: int, most: int) -> bool:
    """Tell if one client may have `own` of what waits: as much as leaves `SHARE - 1` times that to others.

    So several that flood do not fill the queue either.
    """
    return own * (SHARE - 1) + of_all <= most


class NoteKind(Enum):
    """Names what an operator may want to read."""

    REGISTERED = "registered"
    EXPIRED = "expired"
    REFUSED = "refused"
    MALFORMED = "malformed"
    OVERLOAD = "overload"
    UNTRANSLATED = "untranslated"


class Note(NamedTuple):
    """Something that has happened. `sender` is an address as `LbmrdCore.on_datagram` is given it."""

    kind: NoteKind
    sender: int
    text: str = ""


@dataclass(slots=True)
class LbmrdCounts:
    """Counts what has happened since the start."""

    tr_datagrams: int = 0
    keepalives: int = 0
    malformed: int = 0
    refused: int = 0
    overload: int = 0
    registered: int = 0
    expired: int = 0
    translated: int = 0
    untranslated: int = 0


class LbmrdCore:
    """Decides on each datagram. A sender is one integer: family, port and address in the bytes of a `sockaddr_in`."""

    def __init__(
        self, translation: Translation, *, own: int, ttl_ns: int, activity_ns: int, clients_max: int, now_ns: int
    ) -> None:
        """`own`: the address of the daemon itself, which is no client."""
        self.counts = LbmrdCounts()
        self.groups: dict[str, ClientGroup] = {}
        self._translation = translation
        self._rules = translation.rules
        self._clients: dict[int, LbmrdClient] = {}
        self._own = own
        self._ttl_ns = ttl_ns
        self._activity_ns = activity_ns
        self._clients_max = clients_max
        self._next_look_ns = now_ns + activity_ns
        self._next_clearing_ns = now_ns
        self._notes: list[Note] = []
        self._queues = (WaitingQueue(), WaitingQueue())  # of clients known for a while, of others

    @property
    def client_count(self) -> int:
        return len(self._clients)

    def on_datagram(self, data: bytes, sender: int, now_ns: int) -> Sequence[ClientSend]:
        """Return what to send at once. Whoever sends anything that is LBMR becomes a client, or is not heard at all."""
        if problem := self._problem(data, sender):
            self.counts.malformed += 1
            self._note(NoteKind.MALFORMED, sender, problem)
            return ()
        client = self._clients.get(sender)
        if client is None:
            client = self._register(sender, now_ns)
            if client is None:
                return ()
        client.heard_ns = now_ns
        kind = data[0] & 0x07
        if kind in _KEEPALIVES or (kind == PacketType.NORMAL and not any(data[1:HEADER_SIZE])):
            self.counts.keepalives += 1
            return self._answer(client, kind, now_ns)
        self.counts.tr_datagrams += 1
        has_tirs = kind in (PacketType.NORMAL, PacketType.WILDCARD) and any(data[2:HEADER_SIZE])
        queue = self._queues[now_ns - client.since_ns < KNOWN_NS]
        if not queue.put(_Waiting(data, client, sender, has_tirs), len(self._clients)):
            self.counts.overload += 1
            self._note(NoteKind.OVERLOAD, sender)
        return ()

    def next_sends(self) -> Sequence[ClientSend] | None:
        """Return what passes the next datagram on; None when none waits."""
        for queue in self._queues:
            if (waiting := queue.take()) is not None:
                return self._forward(waiting.data, waiting.client, has_tirs=waiting.has_tirs, sender=waiting.sender)
        return None

    def next_deadline(self) -> int:
        """Return when `on_timer` is due."""
        return self._next_look_ns

    def on_timer(self, now_ns: int) -> None:
        """Remove the clients that have been silent for too long."""
        self._next_look_ns = now_ns + self._activity_ns
        self._remove_silent(now_ns, self._ttl_ns)

    def take_notes(self) -> list[Note]:
        """Return what has happened since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def _problem(self, data: bytes, sender: int) -> str:
        """Return why a datagram is none of LBMR; empty when its header is right."""
        if sender == self._own:
            return "sent by the daemon's own address"
        if len(data) < HEADER_SIZE:
            return f"{len(data)} bytes are no header"
        if data[0] >> 4 > VERSION:
            return f"version {data[0] >> 4} is not known"
        kind = data[0] & 0x07
        if kind not in _TYPES:
            return f"type {kind} is not known"
        if kind == PacketType.EXTENDED and data[1] not in _EXTENDED_TYPES:
            return f"extended type {data[1]} is not known"
        return ""

    def _answer(self, client: LbmrdClient, kind: int, now_ns: int) -> Sequence[ClientSend]:
        if kind == PacketType.NORMAL and now_ns - client.answered_ns < ANSWER_PAUSE_NS:
            return ()
        client.answered_ns = now_ns
        return (ClientSend(ANSWER, client.group, client.place, client.place + 1),)

    def _forward(self, data: bytes, client: LbmrdClient, *, has_tirs: bool, sender: int) -> Sequence[ClientSend]:
        """Send it to all others, those of the own group that stand behind the sender first, so that all take turns."""
        sends: list[ClientSend] = []
        for group in self.groups.values():
            out = data
            if has_tirs and self._rules and (rules := self._rules.get((client.group.domain, group.domain))):
                changed = self._translated(data, rules, sender)
                if changed is None:
                    continue
                out = changed
            end = len(group.clients)
            start = client.place if group is client.group and client.place >= 0 else end
            sends += [ClientSend(out, group, *span) for span in ((start + 1, end), (0, start)) if span[0] < span[1]]
        return sends

    def _translated(self, data: bytes, rules: Sequence[NatRule], sender: int) -> bytes | None:
        """Change it for one domain; None when that cannot be done, as the addresses would mislead there."""
        try:
            changed = translated(data, rules)
        except DecodeError as e:
            self.counts.untranslated += 1
            self._note(NoteKind.UNTRANSLATED, sender, str(e))
            return None
        self.counts.translated += changed is not data
        return changed

    def _register(self, sender: int, now_ns: int) -> LbmrdClient | None:
        """Make a client of a sender; None when there is no room."""
        if len(self._clients) >= self._clients_max and now_ns >= self._next_clearing_ns:
            self._next_clearing_ns = now_ns + CLEARING_PAUSE_NS
            self._remove_silent(now_ns, min(QUIET_NS, self._ttl_ns))
        if len(self._clients) >= self._clients_max:
            self.counts.refused += 1
            self._note(NoteKind.REFUSED, sender)
            return None
        ip = int.from_bytes((sender >> 32).to_bytes(4, "little"), "big")
        domain = self._translation.domain_of(ip) if self._rules else ""
        group = self.groups.get(domain) or self.groups.setdefault(domain, ClientGroup(domain))
        client = self._clients[sender] = LbmrdClient(group, now_ns)
        group.clients.append(client)
        group.addresses.extend((sender, 0))
        self.counts.registered += 1
        self._note(NoteKind.REGISTERED, sender, domain)
        return client

    def _remove_silent(self, now_ns: int, longest_ns: int) -> None:
        """Remove clients that were silent for `longest_ns`."""
        for sender, client in list(self._clients.items()):
            if now_ns - client.heard_ns >= longest_ns:
                self._remove(sender, client)

    def _remove(self, sender: int, client: LbmrdClient) -> None:
        """Put the last client of the group in the place of this one."""
        del self._clients[sender]
        group = client.group
        last = group.clients.pop()
        _, address = group.addresses.pop(), group.addresses.pop()
        if last is not client:
            group.clients[client.place], group.addresses[2 * client.place] = last, address
            last.place = client.place
        client.place = -1
        self.counts.expired += 1
        self._note(NoteKind.EXPIRED, sender)

    def _note(self, kind: NoteKind, sender: int, text: str = "") -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(Note(kind, sender, text))

"""The exchange of route information: what is known of other DROs, what is passed on, when this DRO tells of itself.

State: for each other DRO its newest message, by (version, sqn) as signed 16-bit numbers, and when it came; the portals
that take route information. What is new leaves by all portals but the one by which it came, with a ttl one less; a DRO
not heard for `timeout_ns` is forgotten. This DRO tells of itself every `propagation_ns`, at once when its links change,
and to a new link, which then gets all that is known of others.

What is heard goes in by `on_message`; what changed by that is in `take_changes`, for the calculation of routes.

Source: DRO guide, `<route-info>`; wire notes of the peer link, sections 5 and 7. Guess: the own message leaves exactly
every propagation interval, not only at checks, since that is the longest gap that the guide allows; while portals of
this DRO are waited for, it may be late by half of the timeout, so that a restart of a process is no news for others;
who was heard last over a link that has more to read than there is time for is not forgotten for `BUSY_MAX_NS`;
what a forgotten DRO has said before is not believed for a minute, so that no old message comes back by a slow way.

Ours: with keys, what is newer and not signed with one is dropped (`router.authentication`); who is believed when
speakers contradict each other (`router.speakers`); a DRO whose node id comes with news that is not its own raises its
version above that, `RAISE_NS` after the last time at the soonest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dro.clock import s
from dro.errors import DecodeError
from router.authentication import Authentication
from router.route_info import (
    RefusedRouteError,
    RouteHead,
    is_repeat,
    is_signed,
    read_head,
    read_record,
    with_ttl,
    write_route,
)
from router.speakers import Speaker, Speakers
from router.topology import VERSION_MASK, DroRecord

DROS_MAX: Final = 8192
BYTES_MAX: Final = 2 << 20
"""Bounds the messages of all other DROs; a neighbour is 16 bytes of them, and costs some 70 times as much here."""
SPEAKER_BYTES_MAX: Final = 1 << 20
"""Likewise, of those that one portal, or one address of its TRD, tells of."""
VERSIONS_AHEAD: Final = 4096
"""Bounds what a version grows by from one message to the next: a DRO that denies something grows by so much."""
RAISE_NS: Final = s(1)
BUSY_MAX_NS: Final = s(60)
FORGOTTEN_NS: Final = s(60)


@dataclass(frozen=True, slots=True)
class ExchangeTiming:
    """`<route-info>`: intervals in ns, and the DROs that a message of ours may pass."""

    propagation_ns: int = s(1)
    timeout_ns: int = s(4)
    max_hops: int = 100


class InfoDropReason(Enum):
    """Why a message of a portal goes no further."""

    REPEATED = "known already"
    OWN = "the own message came back"
    MALFORMED = "malformed"
    REFUSED = "describes what cannot be"
    OWN_NODE_ID = "another DRO uses the node id of this one"
    TOO_MANY_DROS = "too many DROs"
    DOUBTED = "who tells of this DRO was denied by it"
    UNAUTHENTIC = "not signed with a key of this DRO"


USUAL: Final = frozenset({InfoDropReason.REPEATED, InfoDropReason.OWN})
"""These come of flooding; the others are worth a line in the log."""


@dataclass(frozen=True, slots=True)
class SendInfo:
    """Give this message to these portals."""

    workers: tuple[int, ...]
    message: bytes


@dataclass(frozen=True, slots=True)
class InfoDropped:
    """A message that came by that portal is dropped. `node_id`: of the DRO that it describes; 0 if not known."""

    worker: int
    why: InfoDropReason
    node_id: int
    name: str
    detail: str


class News(Enum):
    """News of another DRO."""

    DISCOVERED = "discovered"
    UPDATED = "updated"
    TIMED_OUT = "timed out"


@dataclass(slots=True)
class OtherDro:
    """The newest that is known of a DRO."""

    record: DroRecord
    head: RouteHead
    data: bytes
    speakers: Speakers
    heard_ns: int
    busy_ns: int = 0
    """When that link was busy."""

    @property
    def worker(self) -> int:
        """By which it came."""
        return self.speakers.current[0]


@dataclass(slots=True)
class _Own:
    record: DroRecord
    configuration: int
    gateway_version: int
    sqn: int
    topology: int = 0
    data: bytes = b""  # as last sent
    changed: bool = False  # since then
    waits_until_ns: int = 0
    sent_ns: int = field(default=0, kw_only=True)


class RouteInfoExchange:
    """Messages and links in, messages and news of other DROs out."""

    def __init__(
        self, own: DroRecord, timing: ExchangeTiming, *, configuration: int, gateway_version: int, sqn: int,
        now_ns: int, authentication: Authentication | None = None,
    ) -> None:  # fmt: skip
        """`sqn`: of the last message that was sent under the node id of `own`, in any life of this process."""
        self._own = _Own(own, configuration, gateway_version, sqn, sent_ns=now_ns)
        self._timing = timing
        self._authentication = authentication
        self._workers: dict[int, None] = {}
        self.others: dict[int, OtherDro] = {}
        """By node id."""
        self._bytes = 0  # of these
        self._forgotten: OrderedDict[int, tuple[RouteHead, int]] = (
            OrderedDict()
        )  # its last message, until when to remember
        self._foreign: int | None = None  # the version that another has told of this DRO
        self._raised_ns = now_ns - RAISE_NS
        self._effects: list[SendInfo | InfoDropped] = []
        self._news: list[tuple[News, DroRecord]] = []

    @property
    def sqn(self) -> int:
        return self._own.sqn

    @property
    def topology(self) -> int:
        """The topology signature that this DRO tells of."""
        return self._own.topology

    def set_timing(self, timing: ExchangeTiming) -> None:
        self._timing = timing

    def set_authentication(self, authentication: Authentication | None) -> None:
        """Set the authentication from the next message on, of this DRO and of others."""
        self._authentication = authentication

    def set_configuration(self, signature: int) -> None:
        self._own.configuration = signature

    def describe(self, record: DroRecord, topology: int, waits_until_ns: int) -> None:
        """What to tell of this DRO from now on. Until then portals are waited for, whose absence need not be told."""
        own = self._own
        own.changed = own.changed or record != own.record
        own.record, own.topology, own.waits_until_ns = record, topology, waits_until_ns

    # links

    def on_link(self, worker: int, now_ns: int) -> None:
        """A portal begins to take route information, or another DRO is at its other end."""
        self._workers[worker] = None
        is_due = self._own.changed and now_ns >= self._own_due_ns()
        self._send_own(tuple(self._workers) if is_due else (worker,), now_ns)
        for other in self.others.values():
            self._pass_on((worker,), other)

    def on_link_gone(self, worker: int) -> None:
        self._workers.pop(worker, None)
        for other in self.others.values():
            other.speakers.on_worker_gone(worker)

    # messages

    def on_message(self, worker: int, data: bytes, now_ns: int, sender: tuple[int, int] = (0, 0)) -> None:
        """`sender`: in a TRD, address and port of the connection by which it came."""
        if worker not in self._workers:
            return  # of a link that has gone meanwhile
        try:
            head = read_head(data)
        except DecodeError as e:
            self._drop(worker, InfoDropReason.MALFORMED, 0, str(e))
            return
        if head.node_id == self._own.record.node_id:
            self._on_own_id(worker, head, data)
            return
        known, speaker = self.others.get(head.node_id), (worker, *sender)
        if known is not None and self._is_doubted(known, speaker, now_ns):
            self._drop(worker, InfoDropReason.DOUBTED, head.node_id)
        elif known is not None and not is_newer(head, known.head):
            known.speakers.on_repeated(speaker, head.version, known.head)
            self._drop(worker, InfoDropReason.REPEATED, head.node_id)
        elif why := self._objection(data):
            self._drop(worker, InfoDropReason.UNAUTHENTIC, head.node_id, why)
        elif known is not None and is_repeat(data, known.data):
            self._keep(known, speaker, head, data, now_ns)
        elif known is not None and ahead(head.version, known.head.version) > VERSIONS_AHEAD:
            self._drop(worker, InfoDropReason.REFUSED, head.node_id, f"its version jumps from {known.head.version}")
        else:
            self._take(speaker, head, data, now_ns)

    def _is_doubted(self, known: OtherDro, speaker: Speaker, now_ns: int) -> bool:
        if not known.speakers.is_doubted(speaker, now_ns):
            return False
        if now_ns - known.heard_ns < self._timing.timeout_ns // 2:
            return True
        known.speakers.on_silent(speaker)
        return False

    def _objection(self, data: bytes) -> str:
        return self._authentication.objection(data) if self._authentication is not None else ""

    def on_link_busy(self, worker: int, now_ns: int) -> None:
        """What comes by that portal waits for its turn."""
        for other in self.others.values():
            if other.worker == worker:
                other.busy_ns = now_ns

    def _keep(self, known: OtherDro, speaker: Speaker, head: RouteHead, data: bytes, now_ns: int) -> None:
        """Keep what is newer, and pass it on; the portal that was believed before is asked about it."""
        timeout_ns = self._timing.timeout_ns
        before = known.speakers.current[0]
        is_asked = known.speakers.on_taken(speaker, head, known.head, known.heard_ns, now_ns, timeout_ns)
        self._bytes += len(data) - len(known.data)
        known.head, known.data, known.heard_ns = head, data, now_ns
        self._pass_on(self._all_but(speaker[0]), known)
        if is_asked and (before == speaker[0] or head.ttl <= 1) and before in self._workers:
            self._effects.append(SendInfo((before,), with_ttl(data, max(self._timing.max_hops, 1))))

    def _take(self, speaker: Speaker, head: RouteHead, data: bytes, now_ns: int) -> None:
        worker = speaker[0]
        known = self.others.get(head.node_id)
        forgotten, until_ns = self._forgotten.get(head.node_id, (head, 0))
        if now_ns < until_ns and not is_newer(head, forgotten):
            self._drop(worker, InfoDropReason.REPEATED, head.node_id)
            return
        if why := self._too_many(known, speaker, len(data)):
            self._drop(worker, InfoDropReason.TOO_MANY_DROS, head.node_id, why)
            return
        try:
            record = read_record(data)
        except DecodeError as e:
            is_refused = isinstance(e, RefusedRouteError)
            self._drop(worker, InfoDropReason.REFUSED if is_refused else InfoDropReason.MALFORMED, head.node_id, str(e))
            return
        self._forgotten.pop(head.node_id, None)
        if known is None:
            self._bytes += len(data)
            self.others[head.node_id] = other = OtherDro(record, head, data, Speakers(speaker), now_ns)
            self._pass_on(self._all_but(worker), other)
        else:
            known.record = record
            self._keep(known, speaker, head, data, now_ns)
        self._news.append((News.DISCOVERED if known is None else News.UPDATED, record))

    def _too_many(self, known: OtherDro | None, speaker: Speaker, nbytes: int) -> str:
        """Say why there is no room for it; empty when there is."""
        more = nbytes if known is None else nbytes - len(known.data)
        if known is None and len(self.others) >= DROS_MAX:
            return f"{DROS_MAX} are known"
        if more <= 0 or self._bytes + more <= SPEAKER_BYTES_MAX:
            return ""
        if self._bytes + more > BYTES_MAX:
            return f"what is known of others has {self._bytes} bytes"
        told = sum(len(o.data) for o in self.others.values() if o.speakers.current[:2] == speaker[:2])
        return f"what comes from there has {told} bytes" if told + more > SPEAKER_BYTES_MAX else ""

    def _on_own_id(self, worker: int, head: RouteHead, data: bytes) -> None:
        own = self._own
        last = RouteHead(head.node_id, 0, own.record.version & VERSION_MASK, own.sqn & VERSION_MASK, 0)
        has_news = is_newer(head, last)
        is_alike = head.version == read_head(own.data).version and is_signed(data) is is_signed(own.data)
        is_other = has_news or (is_alike and not is_repeat(data, own.data))
        if is_other and (why := self._objection(data)):
            self._drop(worker, InfoDropReason.UNAUTHENTIC, head.node_id, why)
            return
        if has_news and ahead(head.version, last.version) < VERSIONS_AHEAD:  # else nobody believes it
            self._foreign = head.version
        self._drop(worker, InfoDropReason.OWN_NODE_ID if is_other else InfoDropReason.OWN, head.node_id)

    def take_foreign(self, now_ns: int) -> int | None:
        """The version that somebody has told of this DRO and that it has to deny now, with a newer one."""
        if self._foreign is None or now_ns < self._raised_ns + RAISE_NS:
            return None
        version, self._foreign, self._raised_ns = self._foreign, None, now_ns
        return version

    def _drop(self, worker: int, why: InfoDropReason, node_id: int, detail: str = "") -> None:
        name = self.others[node_id].record.name if node_id in self.others else ""
        self._effects.append(InfoDropped(worker, why, node_id, name, detail))

    def _all_but(self, worker: int) -> tuple[int, ...]:
        return tuple(other for other in self._workers if other != worker)

    def _pass_on(self, workers: tuple[int, ...], other: OtherDro) -> None:
        if workers and other.head.ttl > 1:
            self._effects.append(SendInfo(workers, with_ttl(other.data, other.head.ttl - 1)))

    def _send_own(self, workers: tuple[int, ...], now_ns: int) -> None:
        own, authentication = self._own, self._authentication
        own.sqn += 1
        own.data = write_route(
            own.record, sqn=own.sqn, ttl=self._timing.max_hops, topology=own.topology,
            configuration=own.configuration, gateway_version=own.gateway_version,
            has_signature=authentication is not None,
        )  # fmt: skip
        if authentication is not None:
            own.data = authentication.sign(own.data)
        self._effects.append(SendInfo(workers, own.data))
        if len(workers) == len(self._workers):
            own.sent_ns, own.changed = now_ns, False

    # time

    def _own_due_ns(self) -> int:
        own, timing = self._own, self._timing
        due_ns = own.sent_ns if own.changed else own.sent_ns + timing.propagation_ns
        return max(due_ns, min(own.waits_until_ns, own.sent_ns + timing.timeout_ns // 2))

    def next_deadline(self) -> int | None:
        """Return when to tell of this DRO next; None while nobody takes it. `on_check` looks at other DROs."""
        if not self._workers:
            return None
        due_ns = self._own_due_ns()
        return due_ns if self._foreign is None else min(due_ns, self._raised_ns + RAISE_NS)

    def on_timer(self, now_ns: int) -> None:
        if self._workers and now_ns >= self._own_due_ns():
            self._send_own(tuple(self._workers), now_ns)

    def on_check(self, now_ns: int) -> None:
        """Forget who was silent for too long; at each check interval."""
        silent = [o for o in self.others.values() if now_ns >= self._believed_until_ns(o)]
        for other in silent:
            del self.others[other.record.node_id]
            self._bytes -= len(other.data)
            if other.speakers.displaced is None:  # else it may not have said that at all
                self._forgotten[other.record.node_id] = other.head, now_ns + FORGOTTEN_NS
                self._forgotten.move_to_end(other.record.node_id)
            self._news.append((News.TIMED_OUT, other.record))
        while self._forgotten:
            node_id, (_, until_ns) = next(iter(self._forgotten.items()))
            if now_ns < until_ns and len(self._forgotten) <= DROS_MAX:
                break
            del self._forgotten[node_id]

    def _believed_until_ns(self, other: OtherDro) -> int:
        silent_ns = min(other.busy_ns, other.heard_ns + BUSY_MAX_NS) + self._timing.timeout_ns
        return max(other.heard_ns + self._timing.timeout_ns, silent_ns)

    def differing(self, topology: int) -> list[OtherDro]:
        """The DROs whose last message told another topology signature."""
        return [other for other in self.others.values() if other.head.topology != topology]

    def take_effects(self) -> list[SendInfo | InfoDropped]:
        effects, self._effects = self._effects, []
        return effects

    def take_changes(self) -> Iterable[tuple[News, DroRecord]]:
        news, self._news = self._news, []
        return news


def is_newer(head: RouteHead, than: RouteHead) -> bool:
    """Compare by version, then by sqn, each by the signed difference of 16 bits."""
    versions, sqns = ahead(head.version, than.version), ahead(head.sqn, than.sqn)
    return versions > 0 or (versions == 0 and sqns > 0)


def ahead(a: int, b: int) -> int:
    """Return by how much `a` is newer, negative when it is older, of 16 bits."""
    d = (a - b) & VERSION_MASK
    return d - 0x1_0000 if d & 0x8000 else d

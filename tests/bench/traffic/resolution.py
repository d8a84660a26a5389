"""Topic resolution for a load that is not a UM context: advertisements in one TRD, queries in another.

An `Origin` advertises what `load.c` sends and answers queries; a `Seeker` asks for topics, collects what the portal
advertises in its TRD, and answers use queries as long as it wants the topics. Neither has a thread: call `step`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from dro.errors import DecodeError
from dro.transport import sockets
from dro.transport.sockets import OS_SOCKETS
from dro.wire import otid
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TransportAddress

DATAGRAM: Final = 8192
BUFFER: Final = 16 << 20
RECORDS_PER_S: Final = 10_000  # as many as ten contexts with UM's default limit
ANSWERS_PER_S: Final = 1_000  # to queries: as many as one
ANSWERS_AT_ONCE: Final = 100
CATCH_UP_S: Final = 0.05
REPEAT_S: Final = 1.0
STEP_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the load and the session that carries it."""

    name: bytes
    address: TransportAddress
    index: int

    def tir(self) -> lbmr.Tir:
        options = (
            lbmr.OtidOption(otid.encode(self.address, self.index, 0x10AD, 0)),
            lbmr.ExtendedFunctionality(port=0, ip=sockets.ip_number("127.0.0.1")),
        )
        return lbmr.Tir(self.name, self.address, lbmr.TIR_TTL, self.index, lbmr.TirOptions(options))


def split_tirs(datagram: bytes) -> list[bytes] | None:
    """The advertisements of a datagram with nothing else in it, undecoded; None for another one, or a broken one."""
    if len(datagram) < 4 or datagram[0] & 0x07 or datagram[1] or not datagram[0] & 0x08:
        return None
    at, found = 4, []
    try:
        for _ in range(int.from_bytes(datagram[2:4], "big")):
            begin, at = at, datagram.index(0, at) + 9
            code, size = datagram[at - 8], datagram[at - 7]
            if code & 0x80:
                at += int.from_bytes(datagram[at + 2 : at + 4], "big")
            at += size
            found.append(datagram[begin:at])
    except (ValueError, IndexError):
        return None
    return found


class Channel:
    """The TR group of one TRD, on loopback. What is sent waits for `step`, which keeps to `RECORDS_PER_S`."""

    def __init__(self, group: str, port: int, domain_id: int, *, is_strict: bool = True) -> None:
        """`is_strict`: nobody else is there who may send bad packets."""
        self.is_strict = is_strict
        ip = sockets.ip_number(group)
        self._receiver = OS_SOCKETS.multicast_receiver(
            ip, port, "127.0.0.1", buffer_bytes=BUFFER, option="the group of the bench"
        )
        self._sender = OS_SOCKETS.multicast_sender(ip, port, "127.0.0.1", ttl=0, buffer_bytes=BUFFER)
        self._own: tuple[str, int] = self._sender.getsockname()
        self._waiting: deque[tuple[bytes, float]] = deque()  # datagram, seconds that it takes of the rate
        self._free_at = 0.0
        self._heard: set[bytes] = set()  # advertisements
        self.options = lbmr.standard_options(os.urandom(8), lbmr.SenderType.APPLICATION, domain_id)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()

    @property
    def address(self) -> tuple[str, int]:
        """From which it sends."""
        return self._own

    def forget(self) -> None:
        """What was advertised is news again."""
        self._heard.clear()

    @property
    def is_sending(self) -> bool:
        return bool(self._waiting)

    def send(self, datagrams: Sequence[bytes], records: float) -> None:
        """`records`: how many there are in all datagrams together."""
        each_s = records / RECORDS_PER_S / max(1, len(datagrams))
        self._waiting.extend((datagram, each_s) for datagram in datagrams)

    def step(self) -> list[lbmr.Packet]:
        """Send what is due; what DROs have sent since the last call, but for advertisements heard before."""
        now = time.monotonic()
        while self._waiting and self._free_at <= now:
            datagram, takes_s = self._waiting.popleft()
            self._sender.send(datagram)
            self._free_at = max(self._free_at, now - CATCH_UP_S) + takes_s
        heard: list[lbmr.Packet] = []
        while True:
            try:
                data, sender = self._receiver.recvfrom(65536)
            except BlockingIOError:
                return heard
            if sender == self._own:
                continue
            tirs = split_tirs(data)
            if tirs and self._heard.issuperset(tirs):
                continue  # as before
            self._heard.update(tirs or ())
            try:
                packet = lbmr.decode(data)
            except DecodeError as e:
                if not self.is_strict:
                    continue
                raise RuntimeError(f"the DRO sent a bad packet: {e}") from e
            if packet.options is not None and packet.options.is_from_dro:
                heard.append(packet)


class Origin:
    """Advertises topics."""

    def __init__(self, channel: Channel, topics: Sequence[Topic], answers_per_s: int = ANSWERS_PER_S) -> None:
        self._channel = channel
        self._weight = RECORDS_PER_S / answers_per_s
        self._tirs = {topic.name: topic.tir() for topic in topics}
        self._all = lbmr.pack_tirs(self._tirs.values(), channel.options, DATAGRAM)
        self._to_answer: dict[bytes, None] = {}  # asked for and not answered yet, in order
        self.asked = 0  # records of queries heard

    def advertise(self) -> None:
        """All topics, unless that is under way."""
        if not self._channel.is_sending:
            self._channel.send(self._all, len(self._tirs))

    def step(self) -> None:
        """Answer, as fast as a context does, what was asked; what waits for its answer is not asked twice."""
        asked = self._to_answer
        for packet in self._channel.step():
            match packet.body:
                case lbmr.Queries(tqrs=tqrs):
                    self.asked += len(tqrs)
                    asked.update((name, None) for name in tqrs if name in self._tirs)
                case lbmr.TopicResolutionRequest(flags) if flags & lbmr.RequestFlag.ADVERTISEMENT:
                    self.advertise()
                case _:
                    pass
        if asked and not self._channel.is_sending:
            tirs = [self._tirs[name] for name in islice(asked, ANSWERS_AT_ONCE)]
            for tir in tirs:
                del asked[tir.topic]
            self._channel.send(lbmr.pack_tirs(tirs, self._channel.options, DATAGRAM), self._weight * len(tirs))


class Seeker:
    """Wants topics."""

    def __init__(self, channel: Channel, names: Iterable[bytes]) -> None:
        self._channel = channel
        self.wanted = dict.fromkeys(names)
        self.found: dict[bytes, lbmr.Tir] = {}
        """By topic, the newest advertisement; removed by a final one."""
        self.renewed: set[bytes] = set()
        """Found topics that have been advertised with other options since; for the caller to clear."""
        self.use_queries = 0

    def query(self) -> None:
        """For all topics that are not found, unless that is under way."""
        if not self._channel.is_sending:
            names = [name for name in self.wanted if name not in self.found]
            self._channel.send(lbmr.pack_tqrs(names, self._channel.options, DATAGRAM), len(names))

    def show_interest(self) -> None:
        """As `query`, for all topics: what receivers do when a portal asks for it."""
        if not self._channel.is_sending:
            self._channel.send(lbmr.pack_tqrs(self.wanted, self._channel.options, DATAGRAM), len(self.wanted))

    def leave(self) -> None:
        """Want nothing more, and say so."""
        names, self.wanted = self.wanted, {}
        tmrs = [lbmr.Tmr(lbmr.TmrType.LEAVE, 0, name) for name in names]
        self._channel.send(lbmr.pack_tmrs(tmrs, self._channel.options, DATAGRAM), len(tmrs))

    def forget(self) -> None:
        """Nothing is found any more."""
        self.found.clear()
        self._channel.forget()

    def step(self) -> None:
        """Take in what was heard since the last call."""
        used: dict[bytes, None] = {}
        for packet in self._channel.step():
            match packet.body:
                case lbmr.Queries(tirs=tirs) | lbmr.WildcardQueries(tirs=tirs):
                    for tir in tirs:
                        before = self.found.get(tir.topic)
                        if not tir.is_final:
                            self.found[tir.topic] = tir
                            if before is not None and before.options != tir.options:
                                self.renewed.add(tir.topic)
                        elif before is not None and before.transport == tir.transport:
                            del self.found[tir.topic]
                case lbmr.TopicManagement(records):
                    used.update((r.name, None) for r in records if r.kind == lbmr.TmrType.USE and not r.is_response)
                case lbmr.TopicResolutionRequest(flags) if flags & lbmr.RequestFlag.QUERY:
                    self.show_interest()
                case _:
                    pass
        self.use_queries += len(used)
        answers = [lbmr.Tmr(lbmr.TmrType.USE, lbmr.TmrFlag.RESPONSE, name) for name in used if name in self.wanted]
        if answers:
            self._channel.send(lbmr.pack_tmrs(answers, self._channel.options, DATAGRAM), len(answers))

    @property
    def has_all(self) -> bool:
        return len(self.found) >= len(self.wanted)


def resolve(origin: Origin, seekers: Sequence[Seeker], limit_s: float) -> None:
    """Until every seeker has found everything. Raises: TimeoutError."""
    deadline, repeat_at = time.monotonic() + limit_s, 0.0
    while not all(seeker.has_all for seeker in seekers):
        now = time.monotonic()
        if now > deadline:
            found = [f"{len(seeker.found)} of {len(seeker.wanted)}" for seeker in seekers]
            raise TimeoutError(f"found {', '.join(found)} topics within {limit_s} s")
        if now > repeat_at:
            repeat_at = now + REPEAT_S
            origin.advertise()
            for seeker in seekers:
                seeker.query()
        origin.step()
        for seeker in seekers:
            seeker.step()
        time.sleep(STEP_S)

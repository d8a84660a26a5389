"""Topic resolution for a load that is not a UM context: advertisements in one TRD, queries in another.

An `Origin` advertises what `load.c` sends and answers queries; a `Seeker` asks for topics, collects what the portal
advertises in its TRD, and answers use queries as long as it wants the topics. Neither has a thread: call `step`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dro.errors import DecodeError
from dro.um.transport import sockets
from dro.wire import otid
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TransportAddress

DATAGRAM: Final = 8192
RECEIVE_BUFFER: Final = 16 << 20
REPEAT_S: Final = 0.5
PACED: Final = 8  # datagrams at a time, then a pause: a portal decodes them in Python
PACE_S: Final = 0.02


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


class Channel:
    """The TR group of one TRD, on loopback."""

    def __init__(self, group: str, port: int, domain_id: int) -> None:
        ip = sockets.ip_number(group)
        self._receiver = sockets.multicast_receiver(
            ip, port, "127.0.0.1", buffer_bytes=RECEIVE_BUFFER, option="the group of the bench"
        )
        self._sender = sockets.multicast_sender(ip, port, "127.0.0.1", ttl=0, buffer_bytes=RECEIVE_BUFFER)
        self.options = lbmr.standard_options(os.urandom(8), lbmr.SenderType.APPLICATION, domain_id)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()

    def send(self, datagrams: Sequence[bytes], meanwhile: Callable[[], object] = lambda: None) -> None:
        self._sender.setblocking(True)
        for at in range(0, len(datagrams), PACED):
            for datagram in datagrams[at : at + PACED]:
                self._sender.send(datagram)
            if at + PACED < len(datagrams):
                meanwhile()
                time.sleep(PACE_S)

    def heard(self) -> Iterable[lbmr.Packet]:
        """What DROs have sent since the last call."""
        own = self._sender.getsockname()
        while True:
            try:
                data, sender = self._receiver.recvfrom(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if sender == own:
                continue
            try:
                packet = lbmr.decode(data)
            except DecodeError as e:
                raise RuntimeError(f"the DRO sent a bad packet: {e}") from e
            if packet.options is not None and packet.options.is_from_dro:
                yield packet


class Origin:
    """Advertises topics."""

    def __init__(self, channel: Channel, topics: Sequence[Topic]) -> None:
        self._channel = channel
        self._tirs = {topic.name: topic.tir() for topic in topics}
        self.asked = 0  # queries heard, also for other topics

    def advertise(self, names: Iterable[bytes] | None = None) -> None:
        """All topics, or these."""
        tirs = self._tirs.values() if names is None else [self._tirs[name] for name in names]
        self._channel.send(lbmr.pack_tirs(tirs, self._channel.options, DATAGRAM), self.step_quietly)

    def step_quietly(self) -> None:
        """Forget what was asked: everything is being advertised."""
        for _ in self._channel.heard():
            pass

    def step(self) -> None:
        """Answer the queries heard since the last call."""
        asked: dict[bytes, None] = {}
        for packet in self._channel.heard():
            if isinstance(packet.body, lbmr.Queries):
                asked.update(dict.fromkeys(packet.body.tqrs))
        self.asked += len(asked)
        known = [name for name in asked if name in self._tirs]
        if known:
            self.advertise(known)


class Seeker:
    """Wants topics."""

    def __init__(self, channel: Channel, names: Iterable[bytes]) -> None:
        self._channel = channel
        self.wanted = dict.fromkeys(names)
        self.found: dict[bytes, lbmr.Tir] = {}
        """By topic, the newest advertisement; removed by a final one."""
        self.use_queries = 0

    def query(self, names: Iterable[bytes] | None = None) -> None:
        """For all topics, or for these."""
        self._channel.send(lbmr.pack_tqrs(names or self.wanted, self._channel.options, DATAGRAM), self.step)

    def leave(self) -> None:
        """Want nothing more, and say so."""
        names, self.wanted = self.wanted, {}
        tmrs = [lbmr.Tmr(lbmr.TmrType.LEAVE, 0, name) for name in names]
        self._channel.send(lbmr.pack_tmrs(tmrs, self._channel.options, DATAGRAM), self.step)

    def step(self) -> None:
        """Take in what was heard since the last call."""
        used: dict[bytes, None] = {}
        for packet in self._channel.heard():
            match packet.body:
                case lbmr.Queries(tirs=tirs) | lbmr.WildcardQueries(tirs=tirs):
                    for tir in tirs:
                        if tir.is_final:
                            self.found.pop(tir.topic, None)
                        else:
                            self.found[tir.topic] = tir
                case lbmr.TopicManagement(records):
                    used.update((r.name, None) for r in records if r.kind == lbmr.TmrType.USE and not r.is_response)
                case _:
                    pass
        self.use_queries += len(used)
        answers = [lbmr.Tmr(lbmr.TmrType.USE, lbmr.TmrFlag.RESPONSE, name) for name in used if name in self.wanted]
        if answers:
            self._channel.send(lbmr.pack_tmrs(answers, self._channel.options, DATAGRAM))

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
                seeker.query([name for name in seeker.wanted if name not in seeker.found])
        origin.step()
        for seeker in seekers:
            seeker.step()
        time.sleep(0.005)

"""Transport sessions that a context has joined: one `ReceiverTransport` each, on the sockets they need.

Owns the LBT-RM group sockets, the one socket that NAKs leave from, and the TCP connections. Called by the context,
which knows what sources are on a session; runs go from the transports straight to the sink.

    join        opens or shares the group's socket, or connects
    leave       by `ReceiverTransport.leave`; the last session of a group closes its socket
    ended       activity timeout or disconnect: `on_ended`, after the session has been taken out here

Guess: a TCP session that ended is not tried again within a second, however often it is advertised.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_S
from dro.config.options import UmOptions
from dro.config.um_sets import LbtrmReceiverOptions, TcpReceiverOptions
from dro.errors import ResourceError
from dro.loop import Loop
from dro.proto.lbtrm_receiver import LossConfig, ReceiverSession
from dro.proto.tcp_receiver import TcpReceiverConfig, TcpReceiverCore
from dro.sqn import HALF, MASK
from dro.timers import Timer
from dro.um import counts, mmsg, sockets
from dro.um.counts import SessionCounts
from dro.um.lbtrm_io import LbtrmGroup, LbtrmReceiver
from dro.um.runs import Run
from dro.um.session import FragmentSink, ReceiverTransport
from dro.um.tcp_io import TcpReceiver
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress, format_source

log = logging.getLogger(__name__)

TCP_RETRY_NS: Final = NS_PER_S
TRIED_MAX: Final = 4096  # addresses whose last attempt is remembered
NAK_OVERHEAD_BYTES: Final = 16


class _RmCore(ReceiverSession):
    """The session core, which also tells when it last heard anything."""

    __slots__ = ()

    @property
    def active_ns(self) -> int:
        return self._active_ns


class _TcpCore(TcpReceiverCore):
    """The session core, which also tells whether the connection ever stood, and when it last heard anything."""

    __slots__ = ("was_connected",)

    def __init__(self, cfg: TcpReceiverConfig) -> None:
        super().__init__(cfg)
        self.was_connected = False

    @property
    def active_ns(self) -> int:
        return self._active_ns

    def on_connected(self, now_ns: int) -> None:
        super().on_connected(now_ns)
        self.was_connected = True


class _RmJoined:
    """One LBT-RM session: hands everything on with its transport in front."""

    __slots__ = ("core", "owner", "session", "sink", "transport")

    def __init__(self, owner: Joined, sink: FragmentSink, transport: ReceiverTransport, core: _RmCore) -> None:
        self.owner = owner
        self.sink = sink
        self.transport = transport
        self.core = core
        self.session: LbtrmReceiver | None = None

    def on_runs(self, session: LbtrmReceiver, view: memoryview, runs: list[Run], now_ns: int) -> None:
        self.sink.on_fragments(self.transport, view, runs, now_ns)

    def on_began(self, session: LbtrmReceiver, now_ns: int) -> None:
        self.transport.has_begun = True
        self.sink.on_began(self.transport, now_ns)

    def on_ended(self, session: LbtrmReceiver, now_ns: int) -> None:
        self.owner.on_ended(self.transport, now_ns)

    def on_unrecoverable(self, session: LbtrmReceiver, datagrams: int, now_ns: int) -> None:
        self.transport.unrecoverable_dgrams += datagrams

    def leave(self) -> None:
        if self.session is not None:
            self.session.leave()


class _TcpJoined:
    """One TCP session."""

    __slots__ = ("core", "owner", "session", "sink", "timer", "transport")

    def __init__(self, owner: Joined, sink: FragmentSink, transport: ReceiverTransport, core: _TcpCore) -> None:
        self.owner = owner
        self.sink = sink
        self.transport = transport
        self.core = core
        self.session: TcpReceiver | None = None
        self.timer: Timer | None = None

    def on_tcp_runs(self, session: TcpReceiver, view: memoryview, runs: list[Run], now_ns: int) -> None:
        self.sink.on_fragments(self.transport, view, runs, now_ns)

    def on_tcp_began(self, session: TcpReceiver, now_ns: int) -> None:
        self.transport.has_begun = True
        self.sink.on_began(self.transport, now_ns)

    def on_tcp_ended(self, session: TcpReceiver, now_ns: int) -> None:
        self.transport.was_connected = self.core.was_connected
        self.owner.on_ended(self.transport, now_ns)

    def leave(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.session is not None:
            self.session.leave()


@dataclass(frozen=True, slots=True)
class JoinedSession:
    """One joined session, for statistics."""

    transport: ReceiverTransport
    session: LbtrmReceiver | TcpReceiver


class Joined:
    """All joined sessions of one context."""

    def __init__(
        self,
        loop: Loop,
        options: UmOptions,
        batch: mmsg.DatagramBatch,
        rng: random.Random,
        sink: FragmentSink,
        on_ended: Callable[[ReceiverTransport, int], object],
    ) -> None:
        """`on_ended(transport, now_ns)`: the session ended by itself and has been left."""
        self._loop = loop
        self._options = options
        self._batch = batch
        self._rng = rng
        self._sink = sink
        self._told_ended = on_ended
        self._groups: dict[tuple[int, int], LbtrmGroup] = {}
        self._nak_socket: socket.socket | None = None
        self._sessions: dict[TransportAddress, _RmJoined | _TcpJoined] = {}
        self._tried: dict[TcpAddress, int] = {}
        self._past = SessionCounts()  # of sessions and groups that were left

    @property
    def groups(self) -> list[LbtrmGroup]:
        return list(self._groups.values())

    def sessions(self) -> list[JoinedSession]:
        return [JoinedSession(j.transport, j.session) for j in self._sessions.values() if j.session is not None]

    def counts(self) -> SessionCounts:
        """Of all sessions since the start."""
        total = SessionCounts()
        total.add(self._past)
        for joined in self.sessions():
            total.add(counts.of_receiver(joined.transport, joined.session))
        for group in self._groups.values():
            total.add(counts.of_group(group))
        return total

    def active_ns(self, transport: ReceiverTransport) -> int:
        """When something was last heard on the session."""
        return self._sessions[transport.address].core.active_ns

    def mark(self, transport: ReceiverTransport) -> int | None:
        """The place in the stream of datagrams that was reached; None for a session that does not number them."""
        core = self._core(transport)
        return core.expected if isinstance(core, _RmCore) else None

    def is_whole(self, transport: ReceiverTransport, mark: int | None) -> bool:
        """Is nothing missing any more of what came before `mark`? What was given up, or can be no more, is not."""
        core = self._core(transport)
        if mark is None or not isinstance(core, _RmCore) or core.expected is None:
            return True
        return (core.contiguous + 1 - mark) & MASK < HALF

    def _core(self, transport: ReceiverTransport) -> _RmCore | _TcpCore | None:
        joined = self._sessions.get(transport.address)
        return joined.core if joined is not None and joined.transport is transport else None

    def join(
        self, address: TransportAddress, now_ns: int, options: UmOptions | None = None
    ) -> ReceiverTransport | None:
        """The session, joined now if it was not; None for a kind of transport that is not supported.

        Options are those of the first receiver of the session. Raises: ResourceError.
        """
        if (known := self._sessions.get(address)) is not None:
            return known.transport
        joined: _RmJoined | _TcpJoined
        match address:
            case LbtrmAddress():
                joined = self._join_lbtrm(address, options or self._options, now_ns)
            case TcpAddress():
                joined = self._join_tcp(address, options or self._options, now_ns)
            case _:
                return None
        self._sessions[address] = joined
        return joined.transport

    def _leave(self, address: TransportAddress) -> None:
        if (joined := self._sessions.pop(address, None)) is not None:
            joined.leave()
            if joined.session is not None:
                self._past.add(counts.of_receiver(joined.transport, joined.session))

    def on_ended(self, transport: ReceiverTransport, now_ns: int) -> None:
        """The session ended by itself."""
        joined = self._sessions.get(transport.address)
        if joined is not None and joined.transport is transport:
            self._leave(transport.address)
            self._told_ended(transport, now_ns)

    def close(self) -> None:
        for address in list(self._sessions):
            self._leave(address)
        for group in self._groups.values():
            group.close()
        self._groups.clear()
        if self._nak_socket is not None:
            self._nak_socket.close()
            self._nak_socket = None

    # LBT-RM

    def _join_lbtrm(self, address: LbtrmAddress, options: UmOptions, now_ns: int) -> _RmJoined:
        o = LbtrmReceiverOptions.of(options)
        group = self._group(address, o)
        core = _RmCore(
            LossConfig(
                initial_backoff_ns=o.initial_backoff_ns,
                backoff_ns=o.backoff_ns,
                suppress_ns=o.suppress_ns,
                generation_ns=o.generation_ns,
                send_naks=o.send_naks,
                activity_timeout_ns=o.activity_timeout_ns,
                preactivity_timeout_ns=o.preactivity_timeout_ns,
                max_naks_per_packet=max(1, (o.datagram_max_bytes - NAK_OVERHEAD_BYTES) // 4),
            ),
            self._rng.random,
            now_ns,
        )
        transport = ReceiverTransport(address, lambda: self._leave(address), generation_ns=o.generation_ns)
        joined = _RmJoined(self, self._sink, transport, core)
        joined.session = group.join(address, core, joined)
        log.debug("session joined", extra={"source": format_source(address)})
        return joined

    def _group(self, address: LbtrmAddress, o: LbtrmReceiverOptions) -> LbtrmGroup:
        key = (address.group, address.dport)
        group = self._groups.get(key)
        if group is None:
            if not sockets.is_multicast(address.group):
                raise ResourceError(f"{sockets.ip_text(address.group)} is no multicast group")
            if self._nak_socket is None:
                self._nak_socket = self._open_nak_socket(o.interface)
            group = self._groups[key] = LbtrmGroup(
                self._loop,
                *key,
                o.interface,
                self._batch,
                buffer_bytes=o.receive_buffer_bytes,
                nak_socket=self._nak_socket,
                on_empty=self._on_group_empty,
            )
        return group

    @staticmethod
    def _open_nak_socket(interface: str) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.bind((interface, 0))
        except OSError as e:
            sock.close()
            raise ResourceError(
                f"no UDP port on {interface} for NAKs: {e.strerror}", remedy="change resolver_multicast_interface"
            ) from e
        return sock

    def _on_group_empty(self, group: LbtrmGroup) -> None:
        if self._groups.pop((group.group, group.port), None) is not None:
            self._past.add(counts.of_group(group))
            group.close()

    # TCP

    def _join_tcp(self, address: TcpAddress, options: UmOptions, now_ns: int) -> _TcpJoined:
        o = TcpReceiverOptions.of(options)
        is_keepalive = o.activity_method == "so_keepalive" and o.activity_timeout_ns > 0
        core = _TcpCore(
            TcpReceiverConfig(
                session_id=address.session_id, activity_timeout_ns=0 if is_keepalive else o.activity_timeout_ns
            )
        )
        transport = ReceiverTransport(address, lambda: self._leave(address))
        joined = _TcpJoined(self, self._sink, transport, core)
        joined.session = TcpReceiver(
            self._loop,
            address,
            core,
            joined,
            interface=o.interface,
            buffer_bytes=o.receive_buffer_bytes,
            keepalive=is_keepalive,
        )
        tried_ns = self._tried.pop(address, None)
        at_ns = now_ns if tried_ns is None else max(now_ns, tried_ns + TCP_RETRY_NS)
        self._tried[address] = at_ns
        while (oldest := next(iter(self._tried))) != address and (
            self._tried[oldest] + TCP_RETRY_NS <= now_ns or len(self._tried) > TRIED_MAX
        ):
            del self._tried[oldest]  # too long ago to matter
        # Not at once: a connection that fails on the spot would end before its sources are bound.
        joined.timer = self._loop.call_at(at_ns, lambda: self._connect(joined))
        return joined

    def _connect(self, joined: _TcpJoined) -> None:
        if joined.session is not None:
            joined.session.advertised(self._loop.now_ns())

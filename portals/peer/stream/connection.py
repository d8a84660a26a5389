"""One connection of a peer link: its stream, the dialogue on it, and the two halves that split and fill it.

It reports to its owner, once, that the dialogue is up and that it is over; in between it hands messages up.

Source: peer link notes, sections 2 to 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from dro.errors import DecodeError
from dro.loop import Loop
from dro.proto.peerlink.messages import canary_of
from dro.proto.peerlink.resume import Progress
from dro.proto.peerlink.session import CloseLink, LinkEffect, LinkEnd, LinkSession, LinkUp, SendControl
from dro.timers import Timer
from dro.transport.read_space import ReadSpace
from dro.transport.session import SessionSink
from dro.transport.stream import ByteStream, PlainStream, StreamEvents, nothing
from dro.transport.tls_failure import TLS_UNEXPECTED, speaks_tls
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.message import Message
from dro.wire.source_string import TcpAddress
from portals.peer.stream.lz4_stream import Lz4Stream
from portals.peer.stream.receiver import LinkReader, LinkReceiver
from portals.peer.stream.writer import LinkWriter

_FORGED: Final = "use a DRO of the same version there; nothing else may speak for it"
REST_READS: Final = 64
"""More than the system has of a connection, as a rule."""
_SEE_COMPANION: Final = "its log says why; <tls> has to be configured at both ends of the link or at neither"


class ConnectionOwner(Protocol):
    """What takes what a connection reports."""

    def on_up(self, connection: PeerConnection, up: LinkUp) -> None:
        """The other side has said who it is; the owner closes the connection, or admits it, now or later."""

    def on_message(self, connection: PeerConnection, message: Message, raw: bytes) -> None:
        """A message that is neither data of a source nor part of the dialogue. Raises: DecodeError; the link ends."""

    def on_effect(self, connection: PeerConnection, effect: LinkEffect) -> None:
        """Something else that the dialogue has led to."""

    def on_room(self, connection: PeerConnection) -> None:
        """Go on: the connection takes data again."""

    def on_over(self, connection: PeerConnection, why: str, remedy: str, end: LinkEnd) -> None: ...


class PeerConnection:
    """Made with a stream that has not been started."""

    def __init__(
        self,
        loop: Loop,
        stream: ByteStream,
        address: TcpAddress,
        session: LinkSession,
        sink: SessionSink,
        owner: ConnectionOwner,
        space: ReadSpace,
        number: int,
    ) -> None:
        """`number`: by which the core of the link knows it."""
        self.number = number
        self.address = address
        self.session = session
        self.receiver = LinkReceiver(address, loop.now_ns())
        self.writer = LinkWriter(loop, lambda: owner.on_room(self), self._broke)
        self._reader = LinkReader(self.receiver, sink, space)
        self._loop = loop
        self.base = stream
        """As it was made, below compression."""
        self.is_compressed = False
        self.on_behind: Callable[[], object] = lambda: None
        """More has come than could be worked off in a turn."""
        self.on_data: Callable[[], object] = nothing
        """Something has come, and was handed up."""
        self.on_progress: Callable[[Progress], str] = lambda _: ""
        """The companion tells where its data or that of this side stands. Returns what is wrong about that."""
        self._stream: ByteStream | None = stream
        self._is_reading = False
        self._owner = owner
        self._timer: Timer | None = None

    def start(self) -> None:
        assert self._stream is not None
        self._arm()
        self._stream.start(
            StreamEvents(
                on_open=self._on_open,
                on_lost=self._broke,
                on_readable=self._on_readable,
                on_writable=self._on_writable,
            )
        )

    @property
    def local_ip(self) -> str:
        return self.base.local.partition(":")[0] if isinstance(self.base, PlainStream) else ""

    def close(self) -> None:
        """Nothing more is reported."""
        stream, self._stream = self._stream, None
        self.writer.close()
        if self._timer is not None:
            self._timer.cancel()
        if stream is not None:
            stream.close()

    def _broke(self) -> None:
        """Report the end for the reason of writer or stream, where one knows it. What has come by then counts."""
        self.read_rest()
        base = self.base if isinstance(self.base, PlainStream) else None
        failure, is_refused = (base.failure, base.is_refused) if base is not None else ("", False)
        end = LinkEnd.NEGOTIATION if is_refused else LinkEnd.ERROR
        self._lost(self.writer.error or failure or "the connection broke", "", end)

    def read_rest(self) -> None:
        """Read what has come over a link that is of no more use."""
        for _ in range(0 if self._is_reading or not self.session.is_up else REST_READS):
            if not self._on_readable():
                return

    def end(self, why: str, remedy: str, end: LinkEnd) -> None:
        """The owner has found out that the link is of no use; it is told so, as of any other end."""
        self._lost(why, remedy, end)

    def _lost(self, why: str, remedy: str, end: LinkEnd) -> None:
        if self._stream is not None:
            self.close()
            self._owner.on_over(self, why, remedy, end)

    # the stream

    def _on_open(self) -> None:
        assert self._stream is not None
        self.writer.open(self._stream)
        self.session.on_connected(self._loop.now_ns())
        self._perform()

    def _on_writable(self) -> None:
        self.writer.on_writable()

    def _on_readable(self) -> bool:
        now_ns, reader = self._loop.now_ns(), self._reader
        if self._stream is None:
            return False
        self._is_reading = True
        try:
            is_more = reader.read(self._stream, self._on_message, now_ns)
        except EOFError:
            self._lost("the companion closed it", self._see_companion, LinkEnd.REMOTE)
            return False
        except DecodeError as e:
            if self._is_tls(reader.unread):
                return False
            self._lost(f"what came is no LBMC: {e}", "check that a DRO is at the other end", LinkEnd.NEGOTIATION)
            return False
        except OSError as e:
            self._lost(e.strerror or str(e), self._see_companion, LinkEnd.ERROR)
            return False
        finally:
            self._is_reading = False
        if self._stream is not None and self._is_tls(reader.unread):
            return False
        self.session.on_received(now_ns)
        self._perform()
        self.on_data()
        if reader.is_behind:
            self.on_behind()
        return is_more and self._stream is not None

    @property
    def _see_companion(self) -> str:
        """A remedy for an end before the companion has said who it is: it may want TLS, and only its log says so."""
        return _SEE_COMPANION if self.session.hello is None else ""

    def _is_tls(self, data: bytes) -> bool:
        """Close the connection if the companion begins with TLS, which is not configured here; whether it does."""
        if self.session.hello is not None or not speaks_tls(data):
            return False
        self._lost(TLS_UNEXPECTED.reason, TLS_UNEXPECTED.remedy, LinkEnd.NEGOTIATION)
        return True

    def _on_message(self, raw: bytes) -> bool:
        if self._is_tls(raw):
            return False
        stream = self._stream
        message = self.session.on_message(raw, self._loop.now_ns())
        if message is None:  # else the owner counts it
            self.writer.control.on_received(len(raw))
        self._perform()
        if message is not None and self._stream is not None:
            self._owner.on_message(self, message, raw)
        return self._stream is stream and stream is not None

    def on_canary(self, raw: bytes) -> bool:
        """One that came in a datagram. False: it is none, or cannot be read."""
        try:
            if not canary_of(lbmc.decode(raw)):
                return False
            self.session.on_message(raw, self._loop.now_ns())
        except DecodeError:
            return False
        self._loop.call_soon(self._perform_soon)
        return True

    def _perform_soon(self) -> None:
        if self._stream is not None:
            self._perform()

    # the dialogue

    def _perform(self) -> None:
        for effect in self.session.take_effects():
            match effect:
                case SendControl(message=message):
                    self.writer.put_urgent(message)
                case CloseLink():
                    self.writer.write()
                    self._lost(effect.text, effect.remedy, effect.end)
                case LinkUp():
                    self._owner.on_up(self, effect)
                case Progress():
                    if wrong := self.on_progress(effect):
                        self._lost(f"the companion miscounts data: {wrong}", _FORGED, LinkEnd.NEGOTIATION)
                case _:
                    self._owner.on_effect(self, effect)
            if self._stream is None:
                return
        self._arm()

    def admit(self, up: LinkUp) -> None:
        """Both sides say what they have to say from now on."""
        if own_hello := self.session.take_hello():
            self.writer.put_urgent(own_hello)
            self._arm()
        if up.is_compressed:
            self._compress()
        self._reader.is_data_allowed = True

    def ask(self) -> None:
        """Ask the companion whether it is there."""
        self.session.ask(self._loop.now_ns())
        self._perform()

    def data_bytes(self) -> int:
        """Count the bytes of data that were handed up."""
        return self._reader.data_bytes

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    def _compress(self) -> None:
        """Compress all from behind the two HELLOs on, in both directions."""
        assert self._stream is not None
        self.is_compressed = True
        rest, unsent = self._reader.take_rest(), self.writer.take_waiting()
        self._stream = stream = Lz4Stream(self._loop, self._stream, leftover=rest, unsent=unsent)
        self.writer.open(stream)
        stream.start(
            StreamEvents(
                on_open=lambda: None,
                on_lost=self._broke,
                on_readable=self._on_readable,
                on_writable=self._on_writable,
            )
        )

    def _arm(self) -> None:
        deadline = self.session.next_deadline()
        if self._timer is not None and self._timer.is_pending:
            if self._timer.when_ns == deadline:
                return
            self._timer.cancel()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self.session.on_sent(self.writer.wrote_ns)
        self.session.on_timer(self._loop.now_ns())
        self._perform()

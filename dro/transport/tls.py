"""TLS as a stream: the same bytes as those of a `PlainStream`, encrypted, from a side that could prove who it is.

TLS 1.3, or 1.2 with a partner that has no better. Who connects checks the certificate of who accepts. What is made here
is for LBT-TCP; `peer_tls` has that of peer links.

Source: UM Configuration Guide, "Encrypted TCP". Guess: the name in a certificate is not compared, as sessions are
advertised by address; whoever has a certificate that is trusted is right.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dro.config.um.sets import TlsOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.timers import Timer
from dro.transport.stream import Piece, PlainStream, StreamMaker, joined

limited = LimitedLogger(logging.getLogger(__name__)).event

RECORD_BYTES: Final = 16_384
_DH_GROUP: Final = Path(__file__).parent / "data" / "ffdhe2048.pem"  # of RFC 7919


class TlsStream(PlainStream):
    """A stream that is open when both sides have agreed on keys; without that within `limit_ns` it is lost."""

    def __init__(
        self, context: ssl.SSLContext, limit_ns: int, loop: Loop, sock: socket.socket, is_accepted: bool
    ) -> None:
        super().__init__(loop, sock, is_accepted)
        self._context = context
        self._limit_ns = limit_ns
        self._timer: Timer | None = None
        self._begun = b""  # of a record that was given to the library, and that the socket did not take whole

    def _open(self) -> None:
        try:
            self._tls = self._context.wrap_socket(
                self.sock, server_side=self._is_accepted, do_handshake_on_connect=False
            )
        except OSError as e:  # the other side is gone
            self.failure = e.strerror or str(e)
            self._events.on_lost()
            return
        self.sock = self._tls
        self._timer = self._loop.call_later(self._limit_ns, partial(self._fail, TimeoutError("no handshake in time")))
        self._shake_hands()

    def _shake_hands(self) -> None:
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.add_reader(self.sock, self._shake_hands)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self.sock, self._shake_hands)
        except OSError as e:
            self._fail(e)
        else:
            self._stop_timer()
            self._on_agreed()

    def _on_agreed(self) -> None:
        super()._open()

    def _fail(self, error: OSError) -> None:
        self._stop_timer()
        self._tell(error)
        self._events.on_lost()

    def _tell(self, error: OSError) -> None:
        self.failure = str(error)
        limited(LogEvent.TLS_FAILED, extra={"peer": peer_of(self.sock), "reason": str(error)})

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def read_into(self, view: memoryview) -> int:
        done = 0
        while done < len(view):
            try:
                count = self._tls.recv_into(view[done:])
            except OSError as e:
                if done:
                    break
                if isinstance(e, ssl.SSLWantReadError):
                    raise BlockingIOError from e
                raise
            if not count:
                break
            done += count
        return done

    def send_pieces(self, pieces: Sequence[Piece]) -> int:
        if self._begun:
            self._push()
        self._begun = joined(pieces, RECORD_BYTES)
        taken = len(self._begun)
        with contextlib.suppress(BlockingIOError):  # a record that was begun is finished, whatever is wanted meanwhile
            self._push()
        return taken

    def _push(self) -> None:
        try:
            while self._begun:
                self._begun = self._begun[self._tls.send(self._begun) :]
        except ssl.SSLWantWriteError as e:
            self._loop.add_writer(self.sock, self._on_writable)
            raise BlockingIOError from e

    def _on_writable(self) -> None:
        self._loop.remove_writer(self.sock)
        try:
            self._push()
        except BlockingIOError:
            return
        except OSError:
            self._begun = b""  # the reader finds out
        self._events.on_writable()

    @property
    def holds(self) -> int:
        return len(self._begun)

    def close(self) -> None:
        self._stop_timer()
        super().close()


def peer_of(sock: socket.socket) -> str:
    """Address and port of the other side, for the log."""
    try:
        host, port = sock.getpeername()
    except OSError:
        return "?"
    return f"{host}:{port}"


def new_context(*, is_server: bool) -> ssl.SSLContext:
    """TLS 1.2 or better, without renegotiation; it has no certificates yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_dh_params(str(_DH_GROUP))  # for DHE, which is UM's default
    return context


def stream_maker(options: TlsOptions, *, is_server: bool) -> StreamMaker:
    """Makes the streams of a context: plain ones unless `use_tls` is set.

    Raises: ResourceError when the certificate, its key or the trusted certificates cannot be had.
    """
    if not options.use_tls:
        return PlainStream
    context = new_context(is_server=is_server)
    what = "tls_cipher_suites"
    try:
        if options.cipher_suites:
            context.set_ciphers(options.cipher_suites.replace(",", ":"))
        if is_server:
            what = "tls_certificate or tls_certificate_key"
            context.load_cert_chain(options.certificate, options.key or None, lambda: options.key_password)
        else:
            context.check_hostname = False
            what = "tls_trusted_certificates"
            if options.trusted:
                context.load_verify_locations(options.trusted)
            else:
                context.load_default_certs()
    except OSError as e:
        raise ResourceError(f"TLS cannot be used: {e}", remedy=f"check {what}") from e
    return partial(TlsStream, context, options.limit_ns)

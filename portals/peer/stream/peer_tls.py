"""TLS between two peers: streams of which both sides have proved who they are.

TLS 1.3, or 1.2 with a companion that has no better. `PeerStreamMaker` owns the context of one portal and renews it when
the files have changed, before the next handshake: connections that exist go on with the former ones.

Source: wire-peerlink.md, section 15. Guess: a handshake may take five seconds, as of LBT-TCP; a name that is wanted is
compared, without wildcards, with all DNS names and common names of the certificate.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, cast

from dro.clock import NS_PER_S, s
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.transport.stream import ByteStream
from dro.transport.tls import TlsStream, peer_of
from dro.transport.tls_failure import TlsFailure, failure_of, wrong_name
from dro.transport.tls_files import EXPIRY_WARNING_S, TlsSettings, context_of, days_left, look_at, validity_of

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event
daily = LimitedLogger(log, burst=1, interval_ns=86_400 * NS_PER_S).event

HANDSHAKE_NS: Final = s(5)


class PeerTlsStream(TlsStream):
    """With `peer_name`, it opens only if the companion's certificate has that name."""

    def __init__(
        self, context: ssl.SSLContext, limit_ns: int, peer_name: str, loop: Loop, sock: socket.socket, is_accepted: bool
    ) -> None:
        super().__init__(context, limit_ns, loop, sock, is_accepted)
        self._peer_name = peer_name

    def _on_agreed(self) -> None:
        if self._peer_name and self._peer_name.lower() not in (names := names_of(self._tls)):
            self._tell_failure(wrong_name(self._peer_name, names))
            self._events.on_lost()
        else:
            super()._on_agreed()

    def read_into(self, view: memoryview) -> int:
        try:
            return super().read_into(view)
        except ssl.SSLError as e:  # with TLS 1.3, an initiator hears of its refusal only now
            failure = failure_of(e)
            self._tell_failure(failure)
            raise OSError(errno.EPROTO, failure.reason) from e

    def _tell(self, error: OSError) -> None:
        self._tell_failure(failure_of(error))

    def agreed(self) -> tuple[str, tuple[str, ...], int]:
        """Version of TLS, names in the companion's certificate, and when that ends; nothing before the handshake."""
        if not isinstance(self.sock, ssl.SSLSocket):
            return "", (), 0
        certificate = cast("dict[str, Any]", self.sock.getpeercert() or {}) if self.sock.version() else {}
        ends = certificate.get("notAfter")
        return self.sock.version() or "", names_of(self.sock), int(ssl.cert_time_to_seconds(ends)) if ends else 0

    def _tell_failure(self, failure: TlsFailure) -> None:
        self.failure, self.is_refused = f"{failure.reason}; {failure.remedy}", True
        extra = {"peer": peer_of(self.sock), "reason": failure.reason, "remedy": failure.remedy}
        limited(LogEvent.TLS_FAILED, extra=extra)


def names_of(tls: ssl.SSLSocket) -> tuple[str, ...]:
    """DNS names and common names in the certificate of the other side, lower case."""
    certificate = cast("dict[str, Any]", tls.getpeercert() or {})
    found = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    found += [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(dict.fromkeys(name.lower() for name in found))


class PeerStreamMaker:
    """The `StreamMaker` of a peer portal with `<tls>`; its acceptor is the server."""

    def __init__(
        self,
        tls: TlsSettings,
        *,
        is_server: bool,
        limit_ns: int = HANDSHAKE_NS,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Raises: ResourceError when a file cannot be used."""
        self._tls = tls
        self._is_server = is_server
        self._limit_ns = limit_ns
        self._now_s = now_s
        self._seen = look_at(tls)
        self._load()

    def __call__(self, loop: Loop, sock: socket.socket, is_accepted: bool) -> ByteStream:
        self._renew()
        self.warn_of_expiry()
        return PeerTlsStream(self._context, self._limit_ns, self._tls.peer_name, loop, sock, is_accepted)

    def warn_of_expiry(self) -> None:
        """Warn once a day, from 30 days before; for a link that stays up, its portal calls this now and then."""
        now_s = self._now_s()
        if self.expires_s - now_s < EXPIRY_WARNING_S:
            extra = {"file": self._tls.certificate, "days": days_left(self.expires_s, now_s)}
            daily(LogEvent.CERTIFICATE_EXPIRES, extra=extra, key=self._tls.certificate)

    def _renew(self) -> None:
        if (seen := look_at(self._tls)) == self._seen:
            return
        self._seen = seen  # what is wrong with these files is told once
        try:
            self._load()
        except ResourceError as e:
            limited(LogEvent.TLS_FILES_REFUSED, extra={"reason": e.what, "remedy": e.remedy})
        else:
            log.info(LogEvent.TLS_FILES_RENEWED, extra={"certificate": self._tls.certificate})

    def _load(self) -> None:
        context = context_of(self._tls, is_server=self._is_server)
        try:
            self.expires_s = validity_of(self._tls.certificate)[1]
            """When the certificate of this side ends, seconds since 1970."""
        except (OSError, ValueError) as e:
            what = f"<certificate>: {self._tls.certificate}: cannot be read: {e}"
            raise ResourceError(what, remedy="name a certificate in PEM form") from e
        self._context = context

"""The files of TLS between peers: read into a context, and what is wrong with them.

Both ends show a certificate and check the other's. `<trusted-certificates>` holds authorities and certificates of
companions alike; the latter are trusted by themselves, whoever signed them.

Source: DRO guide, elements `tls` and those in it. Guess: names of TLS 1.3 suites among `<cipher-suites>` cannot be
chosen one by one, the library offers its three; TLS 1.2 is off when there are no others.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dro.errors import ResourceError
from dro.transport.tls import new_context

EXPIRY_WARNING_S: Final = 30 * 86_400
_DAY_S: Final = 86_400


class TlsSettings(Protocol):
    """`TlsConfig` of the DRO file."""

    @property
    def certificate(self) -> str: ...
    @property
    def certificate_key(self) -> str: ...
    @property
    def certificate_key_password(self) -> str: ...
    @property
    def trusted_certificates(self) -> str: ...
    @property
    def cipher_suites(self) -> tuple[str, ...]: ...
    @property
    def peer_name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class FileProblem:
    """`element` is below `<tls>`."""

    element: str
    what: str
    remedy: str
    is_fatal: bool = True  # the portal cannot run

    def as_error(self) -> ResourceError:
        return ResourceError(f"<{self.element}>: {self.what}", remedy=self.remedy)


class _UnusableError(Exception):
    def __init__(self, element: str, what: str, remedy: str) -> None:
        super().__init__(element)
        self.problem = FileProblem(element, what, remedy)


def files_of(tls: TlsSettings) -> tuple[tuple[str, str], ...]:
    """Element and path of each file."""
    named = ("certificate", tls.certificate), ("certificate-key", tls.certificate_key)
    return (*named, ("trusted-certificates", tls.trusted_certificates)) if tls.trusted_certificates else named


def context_of(tls: TlsSettings, *, is_server: bool) -> ssl.SSLContext:
    """Make the context for handshakes with a companion. Raises: ResourceError with the element to be changed."""
    try:
        return _context_of(tls, is_server=is_server)
    except _UnusableError as e:
        raise e.problem.as_error() from e


def _context_of(tls: TlsSettings, *, is_server: bool) -> ssl.SSLContext:
    for element, path in files_of(tls):
        try:
            with open(path, "rb"):
                pass
        except OSError as e:
            what = f"{path}: {e.strerror}"
            raise _UnusableError(element, what, "check the path, and who may read the file") from e
    context = new_context(is_server=is_server)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.options |= ssl.OP_NO_TICKET
    if is_server:
        context.num_tickets = 0  # every connection is checked anew
    try:
        _choose_suites(context, tls.cipher_suites)
    except ssl.SSLError as e:
        raise _UnusableError("cipher-suites", "none of them can be used", "name others, or remove it") from e
    _load_identity(context, tls)
    try:
        if tls.trusted_certificates:
            context.load_verify_locations(tls.trusted_certificates)
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH)
    except OSError as e:
        what = f"{tls.trusted_certificates}: has no certificates in PEM form"
        raise _UnusableError("trusted-certificates", what, "put certificates into it, in PEM form") from e
    return context


def _choose_suites(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    older = [suite for suite in suites if not suite.startswith("TLS_")]
    if older:
        context.set_ciphers(":".join((*older, "!aNULL", "!eNULL")))
    elif suites:
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def _load_identity(context: ssl.SSLContext, tls: TlsSettings) -> None:
    try:  # without a password to give, the library would ask at the terminal
        context.load_cert_chain(tls.certificate, tls.certificate_key, lambda: tls.certificate_key_password)
        return
    except OSError as e:
        error = e
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        what = f"{tls.certificate_key}: is not the key of {tls.certificate}"
        raise _UnusableError("certificate-key", what, "name the key that belongs to the certificate") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(tls.certificate)
    except OSError:
        what = f"{tls.certificate}: has no certificate in PEM form"
        raise _UnusableError("certificate", what, "name a certificate in PEM form") from error
    if isinstance(error, ssl.SSLError) and error.reason:  # such as a key that is too short
        raise _UnusableError("certificate", f"{tls.certificate}: {error.reason}", "issue another one") from error
    with open(tls.certificate_key, "rb") as file:
        if b"ENCRYPTED" in file.read(1 << 16):
            what = f"the password does not open {tls.certificate_key}" if tls.certificate_key_password else "is missing"
            remedy = "write the password of the key"
            raise _UnusableError("certificate-key-password", what, remedy) from error
    what = f"{tls.certificate_key}: has no private key in PEM form"
    raise _UnusableError("certificate-key", what, "name the key of the certificate") from error


def validity_of(path: str) -> tuple[int, int]:
    """Read from when to when the first certificate of a file is valid, s since 1970. Raises: OSError, ValueError."""
    from cryptography import x509  # a fifth of a second to load, which only links with TLS have to spend

    with open(path, "rb") as file:
        certificate = x509.load_pem_x509_certificate(file.read())
    return int(certificate.not_valid_before_utc.timestamp()), int(certificate.not_valid_after_utc.timestamp())


def problems(tls: TlsSettings, now_s: float) -> Iterator[FileProblem]:
    """Yield what keeps a portal with these files from running, or will keep its companion from talking to it."""
    try:
        _context_of(tls, is_server=True)
    except _UnusableError as e:
        yield e.problem
        return
    with contextlib.suppress(OSError, ValueError):  # the library of the handshakes could read it
        begins_s, ends_s = validity_of(tls.certificate)
        remedy = "renew it; running portals take new files at the next connection"
        if now_s < begins_s:
            what, remedy = f"{tls.certificate}: is not valid yet", "check the clock of this host"
            yield FileProblem("certificate", what, remedy, is_fatal=False)
        elif now_s >= ends_s:
            yield FileProblem("certificate", f"{tls.certificate}: has expired", remedy, is_fatal=False)
        elif ends_s - now_s < EXPIRY_WARNING_S:
            what = f"{tls.certificate}: expires in {days_left(ends_s, now_s)} days"
            yield FileProblem("certificate", what, remedy, is_fatal=False)


def days_left(ends_s: int, now_s: float) -> int:
    """Whole days; below 0 when it is over."""
    return int((ends_s - now_s) // _DAY_S)


Look = tuple[tuple[int, int, int, int] | None, ...]


def look_at(tls: TlsSettings) -> Look:
    """Return what differs when one of the files was written, replaced, or may be read by others now."""
    found: list[tuple[int, int, int, int] | None] = []
    for _, path in files_of(tls):
        try:
            about = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_size))
    return tuple(found)

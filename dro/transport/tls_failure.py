"""Why two peers do not agree on TLS, in an operator's words: from what the library says to a reason and a remedy.

What is wrong here is told as such, what the companion refuses as its verdict. Codes are those of OpenSSL.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TlsFailure:
    reason: str
    remedy: str


_CLOCKS: Final = "renew it, and check the clocks of both hosts"
_SEE_COMPANION: Final = "its log says why"
_BOTH_USES: Final = "issue it for servers and clients, or without an extended key usage"
_SUITES: Final = TlsFailure(
    "no cipher suite in common",
    "let both have the same <cipher-suites>, or none; a suite has to fit the key of the acceptor's certificate",
)
_VERSIONS: Final = TlsFailure(
    "no TLS version in common", "the companion has to speak TLS 1.2 or 1.3, and 1.3 if <cipher-suites> has no others"
)
_NO_TLS: Final = TlsFailure(
    "the companion does not speak TLS", "configure <tls> at both ends of the link or at neither, and check the port"
)
_AUTHORITY: Final = TlsFailure(
    "the companion's certificate is of an unknown authority",
    "add its authority, or the certificate itself, to <trusted-certificates>",
)
_WEAK: Final = TlsFailure(
    "the companion's certificate, or one of its authorities, is too weak",
    "issue it with SHA-256 and an RSA key of 2048 bits or an elliptic curve",
)
_GONE: Final = TlsFailure(
    "the companion closed the connection during the handshake", f"{_SEE_COMPANION}; does it have <tls>?"
)

_OF_CERTIFICATE: Final = {
    9: TlsFailure("the companion's certificate is not valid yet", "check the clocks of both hosts"),
    10: TlsFailure("the companion's certificate has expired", _CLOCKS),
    **dict.fromkeys((2, 18, 19, 20, 21), _AUTHORITY),
    26: TlsFailure("the companion's certificate is not meant for this use", _BOTH_USES),
    **dict.fromkeys((66, 67, 68), _WEAK),
}
_OF_REASON: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": TlsFailure(
        "the companion has no certificate", "give it <certificate> and <certificate-key>"
    ),
    **dict.fromkeys(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG"), _NO_TLS),
    **dict.fromkeys(
        ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "VERSION_TOO_LOW", "WRONG_SSL_VERSION"), _VERSIONS
    ),
    **dict.fromkeys(("NO_SHARED_CIPHER", "TLSV1_ALERT_INSUFFICIENT_SECURITY"), _SUITES),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": TlsFailure(
        "no cipher suite in common, or the companion wants a certificate and got none",
        f"{_SUITES.remedy}; {_SEE_COMPANION}",
    ),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": TlsFailure(
        "the companion wants a certificate and got none", "check <certificate>"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": TlsFailure(
        "the companion does not know the authority of this side's certificate",
        "add the authority, or the certificate itself, to <trusted-certificates> of the companion",
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": TlsFailure(
        "the companion says that this side's certificate has expired", _CLOCKS
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": TlsFailure(
        "the companion does not accept this side's certificate: not valid yet, or too weak",
        f"check the clocks of both hosts; {_SEE_COMPANION}",
    ),
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": TlsFailure(
        "the companion says that this side's certificate is not meant for this use", _BOTH_USES
    ),
    "UNEXPECTED_EOF_WHILE_READING": _GONE,
}  # fmt: skip


def failure_of(error: OSError) -> TlsFailure:
    """Explain a failure of a handshake, or of the first bytes after it, which is when TLS 1.3 tells an initiator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        refused = f"the companion's certificate is refused: {error.verify_message}"
        return _OF_CERTIFICATE.get(error.verify_code, TlsFailure(refused, "issue another one"))
    if isinstance(error, ssl.SSLError):
        known = _OF_REASON.get(error.reason or "")
        return known or TlsFailure(f"TLS failed: {error.reason or error}", _SEE_COMPANION)
    if isinstance(error, TimeoutError):
        remedy = "is the companion a portal with <tls>, and does no firewall hold it back?"
        return TlsFailure("the handshake was not finished in time", remedy)
    if isinstance(error, ConnectionError):
        return _GONE
    return TlsFailure(str(error), _SEE_COMPANION)


def wrong_name(wanted: str, names: tuple[str, ...]) -> TlsFailure:
    """The certificate is trusted, and is another's."""
    shown = ", ".join(name[:80] for name in names[:8]) or "no name"
    remedy = "issue one with that name, or change <peer-name>"
    return TlsFailure(f"the companion's certificate is not for {wanted}, it has {shown}", remedy)


def speaks_tls(data: bytes | memoryview) -> bool:
    """Whether the first bytes from a companion are a TLS handshake or alert, where none is configured: see
    `TLS_UNEXPECTED`."""
    return len(data) > 1 and data[0] in (0x15, 0x16) and data[1] == 3


TLS_UNEXPECTED: Final = TlsFailure("the companion speaks TLS", "configure <tls> at both ends of the link or at neither")

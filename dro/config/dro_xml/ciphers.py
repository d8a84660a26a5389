"""Names of TLS cipher suites: OpenSSL's own, and those of the standards, translated into OpenSSL's.

Source: DRO guide, element `cipher-suites`, whose text requires OpenSSL names and whose example shows another.
"""

from __future__ import annotations

import re
import ssl
from functools import cache
from typing import Final

TLS13_OFFERED: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
"""What OpenSSL offers; Python has no way to choose among them."""
TLS13_SUITES: Final = TLS13_OFFERED | {"TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"}
_STANDARD: Final = re.compile(r"TLS_(?P<exchange>\w+?)_WITH_(?P<cipher>\w+)")


def openssl_name(name: str) -> str:
    """OpenSSL's name of a suite that is written in the form of the standards; other names unchanged."""
    found = _STANDARD.fullmatch(name)
    if found is None:
        return name
    exchange, cipher = found["exchange"].replace("_", "-"), found["cipher"]
    is_cbc = "_CBC_" in cipher
    cipher = cipher.replace("3DES_EDE_CBC", "DES-CBC3").replace("_CBC", "")
    cipher = re.sub(r"(AES|CAMELLIA|ARIA)_(\d+)", r"\1\2", cipher).replace("_", "-")
    cipher = re.sub(r"POLY1305-SHA256$", "POLY1305", cipher)
    cipher = re.sub(r"(CCM|CCM-8)-SHA256$", r"\1", cipher).replace("CCM-8", "CCM8")
    if cipher.startswith("NULL") or is_cbc or exchange != "RSA":
        return cipher if exchange == "RSA" else f"{exchange}-{cipher}"
    return cipher


@cache
def _is_known(name: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.set_ciphers(name)
    except ssl.SSLError:
        return False
    return True


def known_suite(name: str) -> str | None:
    """OpenSSL's name of one suite, however it was written; None if the installed library has none of that name."""
    if name.upper() in TLS13_SUITES:
        return name.upper()
    suite = openssl_name(name)
    is_one = re.fullmatch(r"[A-Za-z0-9_-]{3,60}", suite) is not None and "-" in suite
    return suite if is_one and _is_known(suite) else None

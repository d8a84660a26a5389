"""Sign route information with a key that all DROs of a network have, and check what others have signed.

The signature covers the whole message but for the ttl, which changes on the way. Old messages are kept out by version
and sqn, as without it: what a DRO has signed may be told again once the DRO is forgotten.

Ours: HMAC-SHA256, its first 16 bytes, in the block that `router.route_info` describes.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from router.route_info import SIGNATURE_SIZE, split_signature


@dataclass(frozen=True, slots=True)
class Authentication:
    """`<route-authentication>`: the first key signs, all of them verify."""

    keys: tuple[bytes, ...] = field(repr=False)
    accepts_unsigned: bool = False

    def sign(self, data: bytes) -> bytes:
        """Fill in the signature of a message that has room for one."""
        signed, _ = split_signature(data)
        return data[:-SIGNATURE_SIZE] + _digest(self.keys[0], signed)

    def objection(self, data: bytes) -> str:
        """Say why a message is not to be believed; empty when it is."""
        signed, signature = split_signature(data)
        if not signature:
            return "" if self.accepts_unsigned else "it is not signed"
        if any(hmac.compare_digest(_digest(key, signed), signature) for key in self.keys):
            return ""
        return "no key of this DRO has signed it"


def _digest(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256")[:SIGNATURE_SIZE]

"""Packet loss on a host's input, made by nftables, with counters.

Loss sits behind the capture points of a host, so a capture still shows what the network carried. It is on input
only: a packet dropped on output is reported to its sender as an error, which no real network does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.rigs.netns.namespace import command

MILLION: Final = 1_000_000
NOT_THE_FIRST: Final = "@th,128,32 != 0"
"""Spares LBT-RM data of sqn 0: a receiver that does not get a session's first datagram begins with a later one."""
_serial: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LossCount:
    """Packets that the rule matched, and those of them that it dropped."""

    seen: int
    dropped: int


class Loss:
    """One loss rule in one namespace, in a table of its own; it lasts until `remove`."""

    def __init__(
        self,
        namespace: str,
        *,
        dports: Sequence[int | tuple[int, int]] = (),
        groups: Sequence[str] = (),
        fraction: float = 0.0,
        every: int = 0,
        protocol: str = "udp",
        where: str = "",
    ) -> None:
        """Drop packets to these ports (numbers or inclusive ranges) and destination addresses; empty means any.

        Either `fraction` (0 to 1, random and independent) or `every` (each n-th matching packet, beginning with the
        first: a loss that is the same in every run). `where`: a further match, in nftables syntax.
        """
        if not 0.0 <= fraction <= 1.0 or (fraction > 0) == (every > 0):
            raise ValueError("give either a fraction of 0 to 1 or every n-th packet")
        self._namespace = namespace
        self._table = f"loss_{next(_serial)}"
        match = [f"meta l4proto {protocol}"]
        if groups:
            match.append(f"ip daddr {{ {', '.join(groups)} }}")
        if dports:
            ports = ", ".join(str(p) if isinstance(p, int) else f"{p[0]}-{p[1]}" for p in dports)
            match.append(f"{protocol} dport {{ {ports} }}")
        match.append(where)
        pick = f"random mod {MILLION} < {round(fraction * MILLION)}" if every == 0 else f"inc mod {every} == 0"
        if fraction == 1.0:
            pick = "inc mod 1 == 0"
        script = f"""
            table inet {self._table} {{
                counter seen {{ }}
                counter dropped {{ }}
                chain input {{
                    type filter hook input priority -10; policy accept;
                    {" ".join(match)} counter name seen numgen {pick} counter name dropped drop
                }}
            }}
        """
        self._nft(["-f", "-"], script)

    def _nft(self, arguments: Sequence[str], script: str = "") -> str:
        return command(["ip", "netns", "exec", self._namespace, "nft", *arguments], script)

    def count(self) -> LossCount:
        listing = json.loads(self._nft(["-j", "list", "counters", "table", "inet", self._table]))
        packets = {c["counter"]["name"]: int(c["counter"]["packets"]) for c in listing["nftables"] if "counter" in c}
        return LossCount(packets["seen"], packets["dropped"])

    def remove(self) -> LossCount:
        """Take the rule away; returns its last count."""
        count = self.count()
        self._nft(["delete", "table", "inet", self._table])
        return count

"""Where mutated inputs begin: the published packets, the recorded source, the example networks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.builders.udp_capture import read_udp

GOLDEN: Final = Path(__file__).parents[1] / "golden"
CAPTURE: Final = GOLDEN / "captures" / "um-lbtrm-single-source.pcap"
Seeds = Callable[[], Sequence[bytes]]
_RECORDED: Final = 400  # datagrams


@cache
def vectors(file: str, proto: str = "", starts: tuple[str, ...] = ("",)) -> list[bytes]:
    """Published packets of a protocol, of those with such names."""
    rows = [json.loads(line) for line in (GOLDEN / "vectors" / f"{file}.jsonl").read_text().splitlines()]
    return [
        bytes.fromhex(row["hex"])
        for row in rows
        if proto in ("", row.get("proto", "")) and row["name"].startswith(starts)
    ]


def published(file: str, proto: str = "", *starts: str) -> Seeds:
    """The same for the table of targets."""
    return lambda: vectors(file, proto, starts or ("",))


@cache
def recorded(port: int) -> list[bytes]:
    """What the recorded source sent and heard at a port, at first; each content once."""
    return list(dict.fromkeys(d.payload for d in read_udp(CAPTURE)[:_RECORDED] if d.dport == port))


def examples(pattern: str, most: int = 12) -> Seeds:
    """Files of the example networks, the shortest ones, each content once."""
    return lambda: sorted({path.read_bytes() for path in (GOLDEN / "examples").glob(pattern)}, key=len)[:most]

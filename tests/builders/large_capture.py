"""A capture of any number of packets: half on one LBT-RM session, half on ever new sessions and topics."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dro.wire import lbtrm
from dro.wire.lbmc import message as lbmc
from tests.builders.lbmc_messages import data_message
from tests.builders.pcapfile import pcap, udp

RULE: Final = "udp.port==20000-20006,lbtrm"
_BLOCK: Final = 2000  # packets made before they are written


def write_capture(path: Path, count: int) -> None:
    """Write `count` packets, a multiple of 2000, to a pcap file. Their ports are those of `RULE`."""
    with path.open("wb") as out:
        out.write(pcap([])[:24])
        for start in range(0, count, _BLOCK):
            frames = []
            for n in range(start, start + _BLOCK, 2):
                fresh = lbtrm.Data(20000 + n % 7, n, n, 0, payload=_message(n, n, b"x" * 25))
                steady = lbtrm.Data(20001, 0x11223344, n, 0, 0x80, 3, n % 8, _message(7, n, b"y"))
                frames += [udp("10.0.0.1", 4000, "224.10.10.10", 20000, lbtrm.encode(fresh)),
                           udp("10.0.0.1", 4000, "239.9.9.9", 20000, lbtrm.encode(steady))]  # fmt: skip
            out.write(pcap(frames)[24:])


def _message(index: int, sqn: int, payload: bytes) -> bytes:
    return lbmc.encode(data_message(index, sqn, payload))

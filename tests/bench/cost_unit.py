"""The yardstick of the benchmarks: U, and CPU time of processes.

U is one `socket.send()` of a small UDP multicast datagram from Python, delivered on loopback to one socket, in CPU time
of the sender (which includes the delivery). Costs in U hold across machines far better than microseconds do.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Final

GROUP: Final = "239.255.77.1"
_SENDS: Final = 2000
_CHUNKS: Final = 15


def measure_u_ns(port: int = 0) -> float:
    """U in ns of CPU: the median of several chunks, the receiver drained in between."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind((GROUP, port))
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        membership = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1")
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        receiver.setblocking(False)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        sender.connect((GROUP, receiver.getsockname()[1]))
        payload = bytes(104)
        found = []
        for _ in range(_CHUNKS):
            began = time.thread_time_ns()
            for _ in range(_SENDS):
                sender.send(payload)
            found.append((time.thread_time_ns() - began) / _SENDS)
            _drain(receiver)
        return sorted(found)[len(found) // 2]


def _drain(receiver: socket.socket) -> None:
    buffer = bytearray(2048)
    try:
        while True:
            receiver.recv_into(buffer)
    except BlockingIOError:
        return


def cpu_ns(pid: int) -> int:
    """CPU time that all threads of a process have used, ns."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (OSError, IndexError):
            continue
    return total


def memory_bytes(pid: int) -> int:
    """Proportional set size of a process: shared memory is divided among those that map it."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

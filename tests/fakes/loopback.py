"""The kernel's loopback interface, where a test reads what it has sent itself."""

from __future__ import annotations

import os
import socket


def wait_for_loopback() -> None:
    """Wait until what this thread has sent on loopback has been delivered: a busy kernel does that later, by CPU."""
    cpus = os.sched_getaffinity(0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
        last.bind(("127.0.0.1", 0))
        last.settimeout(5)
        try:
            for cpu in cpus:
                os.sched_setaffinity(0, {cpu})
                last.sendto(b"last", last.getsockname())
                last.recv(4)
        finally:
            os.sched_setaffinity(0, cpus)

"""The kernel's loopback interface, where a test reads what it has sent itself."""

from __future__ import annotations

import functools
import os
import socket


def wait_for_loopback() -> None:
    """Wait until what this thread has sent on loopback has been delivered.

    A busy kernel does that later, in order for each processor; an own datagram shows that nothing is left.
    """
    last, cpus = _last(os.getpid()), os.sched_getaffinity(0)
    try:
        for cpu in cpus:
            os.sched_setaffinity(0, {cpu})
            last.send(b".")
            last.recv(1)
    finally:
        os.sched_setaffinity(0, cpus)


@functools.cache
def _last(_pid: int) -> socket.socket:
    """Return a socket of this process that is connected to itself."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.connect(made.getsockname())
    made.settimeout(5)
    return made

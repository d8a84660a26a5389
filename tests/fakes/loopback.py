"""The kernel's loopback interface, where a test reads what it has sent itself.

`tests/conftest.py` imports this, so that its socket is there before any test whose lane has none.
"""

from __future__ import annotations

import os
import socket

_LAST = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
"""Is connected to itself."""
_LAST.bind(("127.0.0.1", 0))
_LAST.connect(_LAST.getsockname())
_LAST.settimeout(5)


def wait_for_loopback() -> None:
    """Wait until what this thread has sent on loopback has been delivered.

    A busy kernel does that later, in order for each processor; an own datagram shows that nothing is left.
    """
    cpus = os.sched_getaffinity(0)
    try:
        for cpu in cpus:
            os.sched_setaffinity(0, {cpu})
            _LAST.send(b".")
            _LAST.recv(1)
    finally:
        os.sched_setaffinity(0, cpus)

"""Tells the service manager that started this process, systemd as a rule, in which state the DRO is.

Source: sd_notify(3) and sd_watchdog_enabled(3). Without the variables that systemd sets nothing is sent.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Final

from dro.clock import NS_PER_US, ms, s
from dro.loop import Loop

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"
SHORTEST_NS: Final = ms(50)
"""Between two signs of life, however few microseconds the service manager gives: they must not fill the loop."""
LONGEST_NS: Final = s(3600)
PATIENCE_S: Final = 0.2
"""How long a queue that is full may take to have room: a `READY` that is lost is not said again."""
_DIGITS_MAX: Final = 20  # of 64 bits
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """Sends the state of a service, and its sign of life as often as the service manager asks for it."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the variables out of `environ`: they are for this process alone, not for those that it starts."""
        where, interval, pid = (environ.pop(name, "") for name in _VARIABLES)
        self._address = "\0" + where[1:] if where.startswith("@") else where
        is_number = interval.isdecimal() and len(interval) <= _DIGITS_MAX
        is_meant = bool(where) and is_number and int(interval) > 0 and pid in ("", str(os.getpid()))
        half_ns = int(interval) * NS_PER_US // 2 if is_meant else 0
        self.interval_ns: Final = min(max(half_ns, SHORTEST_NS), LONGEST_NS) if is_meant else 0
        """Nanoseconds between two signs of life, half of the time after which the service is restarted; 0: none."""

    def say(self, *assignments: str) -> None:
        """Send these assignments at once; a service manager that does not take them changes nothing here."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(PATIENCE_S)
            sender.sendto("\n".join(assignments).encode(), self._address)

    def watch(self, loop: Loop) -> None:
        """Send a sign of life now and in each interval, as long as `loop` turns."""
        if self.interval_ns:
            loop.call_later(self.interval_ns, lambda: self.watch(loop))
            self.say(ALIVE)

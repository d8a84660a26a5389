"""Keeps the sockets of a process on their addresses while devices and addresses come and go.

The kernel tells when they change (`dro.devices.watch`); sockets then join their groups again, and send from there. What
is still in the way is told to the log, now and each minute, and to the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from typing import Final

from dro.clock import s
from dro.devices.watch import AddressWatch
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.timers import Timer
from dro.transport.sockets import follow_devices

AGAIN_NS: Final = s(1)
"""While something is in the way, it is looked again without a message of the kernel."""
TOLD_NS: Final = s(60)
REMEDY: Final = "bring the device up, with its address; what goes on there is not heard meanwhile"
_log: Final = logging.getLogger(__name__)


class DeviceFollower:
    """`on_trouble`: with what is in the way now, "" when nothing is any more. `addresses`: of sockets not made here."""

    def __init__(
        self,
        loop: Loop,
        on_trouble: Callable[[str], object] = lambda _: None,
        addresses: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._addresses = addresses
        self._loop = loop
        self._on_trouble = on_trouble
        self._trouble = ""
        self._told_ns = 0
        self._timer: Timer | None = None
        self._watch: AddressWatch | None = None
        try:
            self._watch = AddressWatch(loop, self._look)
        except ResourceError as e:
            _log.warning(LogEvent.DEVICES_UNWATCHED, extra={"reason": e.what, "remedy": e.remedy})

    def _look(self, gone: Container[int] = ()) -> None:
        try:
            trouble = "; ".join(follow_devices(gone, self._addresses()))
        except OSError as e:
            trouble = f"devices cannot be listed: {e.strerror}"
        now_ns = self._loop.now_ns()
        if trouble and (trouble != self._trouble or now_ns - self._told_ns >= TOLD_NS):
            self._told_ns = now_ns
            _log.warning(LogEvent.DEVICE_GONE, extra={"reason": trouble, "remedy": REMEDY})
        elif self._trouble and not trouble:
            _log.info(LogEvent.DEVICE_BACK, extra={"was": self._trouble})
        if trouble != self._trouble:
            self._trouble = trouble
            self._on_trouble(trouble)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(AGAIN_NS, self._look) if trouble else None

    def close(self) -> None:
        """Nothing is followed any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.close()

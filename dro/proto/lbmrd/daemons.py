"""Which of several resolver daemons a context sends to, and when each of them gets a keepalive.

State: for each daemon when it was heard and sent to, and which one is in use. Called by the unicast channel of a
context. Source: topic resolution notes, section 2.2.

    active    at the start, and with every datagram of that daemon
    inactive  silent for the activity timeout when that is looked at

All datagrams but keepalives go to the daemon in use, an active one while there is any. A keepalive goes to a daemon
that nothing was sent to for the interval. Guess: and to one that was not heard for so long, since a daemon answers
nothing else. Guess: when all are inactive datagrams still go to one, since a daemon that is started again knows its
clients by what they send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaemonTimes:
    """`resolver_unicast_*_interval` and `_activity_timeout`; 0: no keepalive, never looked at, no change, active."""

    keepalive_ns: int
    check_ns: int
    change_ns: int
    activity_ns: int


@dataclass(slots=True, eq=False)
class _Daemon:
    heard_ns: int
    sent_ns: int | None = None  # None: never
    kept_alive_ns: int = 0
    is_active: bool = True
    was_heard: bool = False

    def keepalive_ns(self, interval_ns: int) -> int | None:
        """Return when the next keepalive is due; None: never."""
        if self.sent_ns is None:
            return 0
        return min(self.sent_ns, max(self.heard_ns, self.kept_alive_ns)) + interval_ns if interval_ns else None


class ResolverDaemons:
    """See the module text. Daemons are named by their place in the list; `random` gives a number in [0, 1)."""

    def __init__(self, count: int, times: DaemonTimes, random: Callable[[], float], now_ns: int) -> None:
        self._times = times
        self._random = random
        self._daemons = [_Daemon(now_ns) for _ in range(count)]
        self.current = int(random() * count)
        """The daemon in use."""
        self._check_ns = now_ns + times.check_ns if times.check_ns and times.activity_ns else None
        self._is_held_up = False
        """This look came late, so what daemons have sent may not be read yet: the next one counts."""
        self._change_ns: int | None = None
        self._plan_change(now_ns)

    @property
    def active(self) -> list[int]:
        return [number for number, daemon in enumerate(self._daemons) if daemon.is_active]

    @property
    def answering(self) -> list[int]:
        """List the active daemons that were heard."""
        return [number for number in self.active if self._daemons[number].was_heard]

    def on_sent(self, daemon: int, now_ns: int) -> None:
        """A datagram of any kind has gone to that daemon."""
        self._daemons[daemon].sent_ns = now_ns

    def on_keepalive(self, daemon: int, now_ns: int) -> None:
        """A keepalive goes to that daemon."""
        self._daemons[daemon].kept_alive_ns = now_ns

    def on_heard(self, daemon: int, now_ns: int) -> bool:
        """A datagram has come from it; True when it was inactive. After a time without an active one it is used."""
        one = self._daemons[daemon]
        one.heard_ns, one.was_heard = now_ns, True
        if not self.active:
            self.current = daemon
        was_active, one.is_active = one.is_active, True
        return not was_active

    def on_timer(self, now_ns: int) -> list[int]:
        """Look at what is due; returns the daemons that have become inactive."""
        silent: list[int] = []
        if self._check_ns is not None and now_ns >= self._check_ns:
            self._is_held_up = now_ns - self._check_ns >= self._times.check_ns and not self._is_held_up
            self._check_ns = now_ns + self._times.check_ns
            for number, daemon in enumerate(self._daemons):
                if not self._is_held_up and daemon.is_active and now_ns - daemon.heard_ns >= self._times.activity_ns:
                    daemon.is_active = False
                    silent.append(number)
        is_due = self._change_ns is not None and now_ns >= self._change_ns
        if is_due or self.current in silent:
            self._change(now_ns)
        return silent

    def due_keepalives(self, now_ns: int) -> list[int]:
        """Return the daemons that shall get a keepalive now."""
        due = (daemon.keepalive_ns(self._times.keepalive_ns) for daemon in self._daemons)
        return [number for number, at_ns in enumerate(due) if at_ns is not None and at_ns <= now_ns]

    def next_deadline(self) -> int | None:
        """Return when `on_timer` or `due_keepalives` has something to do."""
        times = [daemon.keepalive_ns(self._times.keepalive_ns) for daemon in self._daemons]
        return min((at_ns for at_ns in (self._check_ns, self._change_ns, *times) if at_ns is not None), default=None)

    def _change(self, now_ns: int) -> None:
        """Take the next active daemon, or the next one when none is active."""
        count = len(self._daemons)
        order = [(self.current + step) % count for step in range(1, count + 1)]
        self.current = next((number for number in order if self._daemons[number].is_active), order[0])
        self._plan_change(now_ns)

    def _plan_change(self, now_ns: int) -> None:
        if len(self._daemons) > 1 and self._times.change_ns:
            half_ns = self._times.change_ns // (2 if self.active else 4)
            self._change_ns = now_ns + half_ns + int(2 * half_ns * self._random())

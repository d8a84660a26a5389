"""`python -m tests.rigs.start_points POINTS [KILL]`: SIGTERM to a starting DRO at each of so many points of its start.

A point is a number of calls of Python functions in the parent process, so the same points come in each run: half of
them spread over arguments and configuration, half over what follows. A line of JSON for each: where it was, exit
status, seconds until every process was gone, and what was left.

With KILL it is a SIGKILL to the parent, at points after the configuration only, and what is left is looked at when the
next DRO in this place has started and stopped.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time
from types import FrameType

from supervisor.parent.parent import Parent
from tests.rigs.forked_dro import ForkedDro
from tests.rigs.waiting import wait_until

SIDE_BY_SIDE = 4


class Counter:
    """Calls of the parent process; in memory that the test shares with it."""

    def __init__(self, point: int = 0, number: int = signal.SIGTERM) -> None:
        """The signal comes at call `point`, if there is one."""
        self._number = number
        self._area = mmap.mmap(-1, 4096)
        self._cells = memoryview(self._area).cast("Q")
        self._point = point
        self._pid = 0
        self._calls = 0

    calls = property(lambda self: self._cells[0])
    before_parent = property(lambda self: self._cells[1])
    signalled_ns = property(lambda self: self._cells[2])

    @property
    def where(self) -> str:
        """The function whose call was the point."""
        return bytes(self._area[64:264]).rstrip(b"\0").decode()

    def hook(self, frame: FrameType, event: str, _arg: object) -> None:
        if event != "call":
            return
        if not self._pid:
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            sys.setprofile(None)  # a worker
            return
        self._calls += 1
        self._cells[0] = self._calls
        if frame.f_code is Parent.run.__code__:
            self._cells[1] = self._calls
        if self._calls == self._point:
            sys.setprofile(None)
            name = f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}".encode()[:200]
            self._area[64 : 64 + len(name)] = name
            self._cells[2] = time.monotonic_ns()
            os.kill(self._pid, self._number)


def points_of(dro: ForkedDro, count: int, *, from_parent_on: bool) -> list[int]:
    """Measure one start, and spread so many points over it."""
    counter = Counter()
    dro.start(counter.hook)
    dro.wait_running()
    calls, load = counter.calls, counter.before_parent
    dro.stop()
    assert 0 < load < calls
    half = 0 if from_parent_on else count // 2
    rest = count - half
    return [1 + load * n // half for n in range(half)] + [load + (calls - load) * (n + 1) // rest for n in range(rest)]


def main(count: int, number: int) -> None:
    kills = number == signal.SIGKILL
    dros = [ForkedDro(f"POINT{os.getpid()}N{n}") for n in range(SIDE_BY_SIDE)]
    try:
        points = points_of(dros[0], count, from_parent_on=kills)
        for first in range(0, count, SIDE_BY_SIDE):
            batch = [(dro, point, Counter(point, number)) for dro, point in zip(dros, points[first:], strict=False)]
            for dro, _, counter in batch:
                dro.start(counter.hook)
            for dro, point, counter in batch:
                wait_until(
                    lambda c=counter, d=dro: c.signalled_ns or d.poll() is not None,  # type: ignore[misc]
                    f"point {point}", 40, lambda d=dro: d.log,  # type: ignore[misc]
                )  # fmt: skip
                status = dro.wait_ended()
                took_s = (time.monotonic_ns() - counter.signalled_ns) / 1e9
                if kills:
                    dro.start()
                    dro.wait_running()
                    dro.stop()
                found = {"point": point, "where": counter.where, "status": status, "took_s": round(took_s, 3)}
                print(json.dumps(found | {"left": dro.leftovers(), "log": dro.log[-2000:]}), flush=True)
    finally:
        for dro in dros:
            dro.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), signal.SIGKILL if sys.argv[2:] == ["KILL"] else signal.SIGTERM)

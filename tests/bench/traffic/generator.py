"""The load generator `load.c`: compiled when it is needed, one process for each load, given orders by a pipe.

The process has a thread `source` and threads `sink0`, `sink1`, ...; see the top of `load.c` for the orders.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

SOURCE: Final = Path(__file__).with_name("load.c")
COMPILER: Final = "gcc"
SETTLED_S: Final = 5.0  # after a pause, until what is on its way has come or is lost


def is_possible() -> bool:
    return shutil.which(COMPILER) is not None


@contextmanager
def built() -> Iterator[Path]:
    """The program, in a folder of its own. Raises: CalledProcessError when it cannot be compiled."""
    with tempfile.TemporaryDirectory(prefix="dro-load-") as name:
        program = Path(name) / "load"
        subprocess.run([COMPILER, "-O2", "-pthread", "-o", str(program), str(SOURCE)], check=True)
        yield program


@dataclass(frozen=True, slots=True)
class Counts:
    """What the generator has counted since its start; messages are LBMC messages, so fragments of large ones."""

    sent: int
    received: tuple[int, ...]  # by sink
    written_off: int  # not arrived within 1.5 s, while the window was full
    duplicates: int  # datagrams
    again: int  # messages that had come before, with `set books 1`
    gone: int  # datagrams that were missing and given up; streams that ended
    omitted: int  # datagrams that the source kept back on purpose
    repaired: int
    naks: int
    topics: int  # of which something sent since the last mark has come, at the sink that has seen least
    lost_ns: int  # when the last message sent since then that was lost was sent, by the monotonic clock; 0: none was
    latency_us: dict[str, float]


class Load:
    """One generator process. Raises: RuntimeError with what it printed when it has ended by itself."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, *lines: str) -> str:
        """Give orders; the answer to the last."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        answer = ""
        for line in lines:
            try:
                process.stdin.write(line + "\n")
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                assert process.stderr is not None
                raise RuntimeError(f"the load generator ended at {line!r}: {process.stderr.read()}")
        return answer

    def set(self, **settings: object) -> None:
        self.tell(*(f"set {key} {int(v) if isinstance(v, bool) else v}" for key, v in settings.items()))

    def set_sizes(self, sizes: Sequence[int]) -> None:
        self.tell(*(f"set size {size}" for size in sizes))

    def counts(self) -> Counts:
        found: dict[str, Any] = json.loads(self.tell("report"))
        sinks: list[dict[str, int]] = found["sinks"]
        return Counts(
            sent=found["sent"],
            received=tuple(s["received"] for s in sinks),
            written_off=found["written_off"],
            duplicates=sum(s["duplicates"] for s in sinks),
            again=sum(s["again"] for s in sinks),
            gone=sum(s["gone"] for s in sinks),
            omitted=found["omitted"],
            repaired=found["repaired"],
            naks=sum(s["naks"] for s in sinks),
            topics=min((s["topics"] for s in sinks), default=0),
            lost_ns=max((s["lost_ns"] for s in sinks), default=0),
            latency_us=found["latency_us"],
        )

    def threads(self) -> dict[str, tuple[int, int]]:
        """CPU time and time of waiting for a CPU of each thread by name, ns."""
        found = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            name = (task / "comm").read_text().strip()
            cpu_ns, waited_ns = (task / "schedstat").read_text().split()[:2]
            found[name] = (int(cpu_ns), int(waited_ns))
        return {name: times for name, times in found.items() if name == "source" or name.startswith("sink")}

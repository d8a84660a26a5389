"""Figures of the processes of a DRO, from /proc: processor time, memory, threads, descriptors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
MEMORY_S: Final = 5.0  # between two looks at memory, which takes the kernel milliseconds


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Figures of one process; zeros when it is not there."""

    cpu_s: float = 0.0
    children_cpu_s: float = 0.0  # of those that have ended
    resident_bytes: int = 0  # its part of what it shares
    virtual_bytes: int = 0
    threads: int = 0
    open_fds: int = 0


class Processes:
    """Looks at processes again and again; memory less often than it is asked."""

    def __init__(self) -> None:
        self._memory: dict[int, tuple[float, int]] = {}
        self._ended_s: dict[str, tuple[int, float, float]] = {}  # by name: its process, its time, that of earlier ones
        self._most_s = 0.0

    def figures(self, pid: int) -> ProcessFigures:
        if not pid:
            return ProcessFigures()
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            user, system, of_children_user, of_children_system = map(int, fields[11:15])
            return ProcessFigures(
                cpu_s=(user + system) * _TICK_S,
                children_cpu_s=(of_children_user + of_children_system) * _TICK_S,
                resident_bytes=self._resident(pid),
                virtual_bytes=int(fields[20]),
                threads=int(fields[17]),
                open_fds=len(os.listdir(f"/proc/{pid}/fd")),
            )
        return ProcessFigures()

    def _resident(self, pid: int) -> int:
        now_s = time.monotonic()
        looked_s, known = self._memory.get(pid, (-MEMORY_S, 0))
        if now_s - looked_s < MEMORY_S:
            return known
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                known = int(line.split()[1]) * 1024
                break
        self._memory[pid] = now_s, known
        return known

    def cpu_of_worker(self, name: str, pid: int, cpu_s: float) -> float:
        """Processor time of all processes that this monitor has seen under that name; it never falls."""
        before, seen_s, ended_s = self._ended_s.get(name, (pid, 0.0, 0.0))
        if before != pid:
            ended_s, seen_s = ended_s + seen_s, 0.0
        seen_s = max(seen_s, cpu_s)
        self._ended_s[name] = pid, seen_s, ended_s
        return ended_s + seen_s

    def cpu_of_all(self, parent: ProcessFigures, workers: Iterable[ProcessFigures]) -> float:
        """Add up the processor time of the whole DRO, those that have ended included; it never falls."""
        total = parent.cpu_s + parent.children_cpu_s + sum(worker.cpu_s for worker in workers)
        self._most_s = max(self._most_s, total)
        return self._most_s

"""Figures of processes: what a new process or a late look must not make fall."""

from __future__ import annotations

import os

from supervisor.samples.processes import Processes, ProcessFigures


def test_figures_of_this_process() -> None:
    found = Processes().figures(os.getpid())
    assert found.cpu_s > 0
    assert found.resident_bytes > 1 << 20
    assert found.virtual_bytes > found.resident_bytes
    assert found.threads >= 1
    assert found.open_fds >= 3


def test_a_process_that_is_not_there_has_none() -> None:
    assert Processes().figures(0) == ProcessFigures()
    assert Processes().figures(1 << 30) == ProcessFigures()


def test_processor_time_of_a_worker_goes_on_with_its_next_process() -> None:
    processes = Processes()
    looks = [(10, 1.0), (10, 3.0), (11, 0.5), (11, 0.4), (0, 0.0), (12, 2.0)]
    assert [processes.cpu_of_worker("P", pid, cpu_s) for pid, cpu_s in looks] == [1.0, 3.0, 3.5, 3.5, 3.5, 5.5]


def test_processor_time_of_all_never_falls_while_a_child_becomes_one_that_has_ended() -> None:
    processes = Processes()
    parent, child = ProcessFigures(cpu_s=1, children_cpu_s=5), ProcessFigures(cpu_s=4)
    assert processes.cpu_of_all(parent, [child]) == 10
    assert processes.cpu_of_all(parent, []) == 10, "it is gone, and the parent has not waited for it yet"
    assert processes.cpu_of_all(ProcessFigures(cpu_s=1, children_cpu_s=9.5), []) == 10.5

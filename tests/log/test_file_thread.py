"""A log file on a disk that hangs: a worker goes on, loses what does not fit, and says so afterwards."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.clock import ms
from dro.log import file_thread
from dro.log.file import LogFile, Rolls
from dro.log.file_thread import PATIENCE_S, PENDING_MAX, FileThread
from dro.log.handler import LogHandler, Settings
from dro.loop import Loop
from tests.rigs.waiting import wait_until

DAY = 20261121


class Disk:
    """What the log file is written with; while it hangs, no write comes back."""

    def __init__(self) -> None:
        self.works = threading.Event()
        self.works.set()
        self.error: OSError | None = None
        self.pause_s = 0.0
        self.writers: set[str] = set()

    def write(self, file: LogFile, data: bytes, day: int) -> None:
        self.writers.add(threading.current_thread().name)
        assert self.works.wait(60)
        time.sleep(self.pause_s)  # a slow disk
        if self.error is not None:
            raise self.error
        _write(file, data, day)


_write = LogFile.write


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(LogFile, "write", lambda file, data, day: disk.write(file, data, day))
    yield disk
    disk.works.set()


@pytest.fixture
def worker(disk: Disk, tmp_path: Path) -> Iterator[LogHandler]:
    """The log of a process that is not the daemon."""
    handler = LogHandler("E1", Settings("file", str(tmp_path / "log")), Rolls(), daemon_pid=os.getpid() + 1)
    yield handler
    disk.works.set()
    handler.close()


def logger_of(handler: LogHandler) -> logging.Logger:
    logger = logging.Logger("worker")
    logger.addHandler(handler)
    return logger


def numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"number=(\d+)", path.read_text())]


def test_a_line_is_in_the_file_when_the_call_returns(
    worker: LogHandler, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_thread, "PATIENCE_S", 60)
    log = logger_of(worker)
    for number in range(20):
        log.info("line", extra={"number": number})
        assert numbers(tmp_path / "log") == list(range(number + 1))
    assert disk.writers == {"log file"}


def test_the_daemon_writes_itself(disk: Disk, tmp_path: Path) -> None:
    handler = LogHandler("tnwgd", Settings("file", str(tmp_path / "log")), Rolls(), daemon_pid=os.getpid())
    threads = threading.active_count()
    logger_of(handler).info("line", extra={"number": 1})
    assert threading.active_count() == threads
    assert disk.writers == {threading.current_thread().name}
    handler.close()


def test_a_worker_goes_on_while_its_disk_hangs(worker: LogHandler, disk: Disk, tmp_path: Path) -> None:
    """The loop of the worker turns, line after line; every line is there when the disk works again."""
    log, loop = logger_of(worker), Loop()
    log.info("line", extra={"number": 0})
    disk.works.clear()
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        log.info("line", extra={"number": turns})
        if turns == 500:
            loop.stop()
        else:
            loop.call_later(ms(0), turn)

    loop.call_later(ms(0), turn)
    before = time.monotonic()
    loop.run()
    assert turns == 500
    assert not disk.works.is_set()
    assert time.monotonic() - before < 500 * PATIENCE_S / 5, "only the first line waits"
    disk.works.set()
    worker.close()
    assert numbers(tmp_path / "log") == list(range(501))


def test_a_disk_that_works_again_is_waited_for_before_a_line_is_lost(
    worker: LogHandler, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is slower than the worker, whose lines need several times the room that there is."""
    monkeypatch.setattr(file_thread, "PENDING_MAX", 20_000)
    log = logger_of(worker)
    disk.works.clear()
    for number in range(50):
        log.info("line", extra={"number": number, "text": "x" * 100})
    disk.pause_s = 0.001
    disk.works.set()
    wait_until(lambda: numbers(tmp_path / "log"), "the first line")
    for number in range(50, 500):
        log.info("line", extra={"number": number, "text": "x" * 100})
    worker.close()
    assert numbers(tmp_path / "log") == list(range(500))


def test_what_does_not_fit_is_counted_and_reported(worker: LogHandler, disk: Disk, tmp_path: Path) -> None:
    log = logger_of(worker)
    disk.works.clear()
    count = PENDING_MAX // 1000 + 50
    for number in range(count):
        log.info("line", extra={"number": number, "filler": "x" * 1000})
    disk.works.set()
    thread = worker.destination._thread  # type: ignore[attr-defined]
    with thread._changed:
        assert thread._changed.wait_for(lambda: not thread._lines, 60)
    worker.tick()
    log.info("line", extra={"number": count})
    worker.close()
    found = numbers(tmp_path / "log")
    reported = re.findall(r"log lines lost lines=(\d+) reason=\"it takes nothing\"", (tmp_path / "log").read_text())
    assert found == [*range(len(found) - 1), count]
    assert sum(map(int, reported)) == count + 1 - len(found) >= 50


def test_lines_that_failed_after_nobody_waited_are_counted(disk: Disk, tmp_path: Path) -> None:
    thread = FileThread(LogFile(str(tmp_path / "log")))
    disk.works.clear()
    for _ in range(3):
        assert thread.write(b"line\n", DAY)
    disk.error = OSError(28, "No space left on device")
    disk.works.set()
    with thread._changed:
        assert thread._changed.wait_for(lambda: not thread._lines, 60)
    assert thread.take_lost() == (3, "No space left on device")
    assert thread.take_lost()[0] == 0
    with pytest.raises(OSError, match="No space"):
        thread.write(b"line\n", DAY)
    assert thread.take_lost()[0] == 0, "who waits is told"
    disk.error = None
    assert thread.write(b"last\n", DAY)
    thread.close()
    assert (tmp_path / "log").read_bytes() == b"last\n"


def test_the_end_does_not_wait_for_a_disk_that_hangs(
    worker: LogHandler, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_thread, "CLOSE_S", 0.05)
    disk.works.clear()
    logger_of(worker).info("line", extra={"number": 1})
    worker.close()
    assert not disk.works.is_set()


def test_without_a_thread_the_line_is_written_all_the_same(
    worker: LogHandler, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    logger_of(worker).info("line", extra={"number": 1})
    assert numbers(tmp_path / "log") == [1]


def test_the_thread_takes_no_signals(worker: LogHandler) -> None:
    logger_of(worker).info("line", extra={"number": 1})
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "log file"]
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(re.findall(r"SigBlk:\s+([0-9a-f]+)", status)[0], 16)
    assert blocked >> (signal.SIGTERM - 1) & 1
    assert blocked >> (signal.SIGHUP - 1) & 1

"""Work in a forked child: its answer, every way to fail, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dro.clock import ms, s
from dro.config.reading.problems import ConfigErrors
from dro.errors import ConfigError, ResourceError
from dro.loop import Loop
from supervisor.parent import forked_task as child
from supervisor.parent.forked_task import Failed, ForkedTask, TaskProblem

LONG = s(30)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def result_of(loop: Loop, work: Callable[[], object], limit_ns: int = LONG) -> object:
    """What `done` is told, with a look at what is left of the child."""
    results: list[object] = []
    before, others = descriptors(), children()
    ForkedTask(loop, work, results.append, limit_ns=limit_ns, what="the trial")
    assert not results, "it is told later"
    turn(loop, lambda: results and children() == others)
    assert descriptors() == before
    [result] = results
    return result


def turn(loop: Loop, until: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not until():
        assert time.monotonic() < deadline
        loop.run_once(ms(20))


def why(result: object) -> str:
    assert isinstance(result, Failed)
    [problem] = result.problems
    return problem.what


def test_the_answer_comes_back(loop: Loop) -> None:
    assert result_of(loop, lambda: {"a": (1, 2)}) == {"a": (1, 2)}


def test_a_large_answer_comes_back(loop: Loop) -> None:
    answer = result_of(loop, lambda: bytes(20 << 20))
    assert answer == bytes(20 << 20)


def test_none_is_an_answer(loop: Loop) -> None:
    assert result_of(loop, lambda: None) is None


def test_a_fork_knows_what_the_parent_knows_and_changes_nothing(loop: Loop) -> None:
    known = [1]

    def work() -> int:
        known.append(2)
        return len(known)

    assert result_of(loop, work) == 2
    assert known == [1]


def test_errors_come_back_with_their_parts(loop: Loop) -> None:
    def work() -> None:
        one = ConfigError("bad", file="f.xml", line=3, element="<cost>", remedy="mend it")
        raise ConfigErrors([one, ConfigError("worse")])

    result = result_of(loop, work)
    assert result == Failed((TaskProblem("bad", "f.xml", 3, "<cost>", "mend it"), TaskProblem("worse")))
    assert isinstance(result, Failed)
    assert str(result.error()) == "f.xml:3: <cost>: bad; mend it\nworse"


def test_a_refusal_of_the_system_comes_back(loop: Loop) -> None:
    def work() -> None:
        raise ResourceError("no port", remedy="free it")

    result = result_of(loop, work)
    assert result == Failed((TaskProblem("no port", remedy="free it"),))
    assert isinstance(result, Failed)
    assert str(result.error()) == "no port; free it"


def test_a_bug_in_the_child_is_told_with_its_trace(loop: Loop) -> None:
    def work() -> None:
        raise KeyError("forgotten")

    result = why(result_of(loop, work))
    assert "KeyError: 'forgotten'" in result
    assert "supervisor/parent/test_forked_task.py" in result


def test_an_answer_that_cannot_travel_is_a_failure(loop: Loop) -> None:
    assert "exit status 1" in why(result_of(loop, lambda: lambda: 0))


def test_a_crash_is_a_failure(loop: Loop) -> None:
    assert why(result_of(loop, lambda: os._exit(9))) == "the trial: its process failed: exit status 9"
    killed = result_of(loop, lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert why(killed) == "the trial: its process failed: killed by signal 9"


def test_half_an_answer_is_none(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def first_half(fd: int, data: memoryview) -> int:
        real(fd, data[: len(data) // 2])
        os._exit(0)

    monkeypatch.setattr(os, "write", first_half)
    assert "its process failed" in why(result_of(loop, lambda: bytes(1000)))


def test_a_child_that_hangs_is_killed_at_its_limit(loop: Loop) -> None:
    assert why(result_of(loop, lambda: time.sleep(600), ms(200))) == "the trial: not done after 0.2 s"


def test_a_child_that_ignores_signals_is_killed_all_the_same(loop: Loop) -> None:
    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            time.sleep(600)

    assert "not done" in why(result_of(loop, work, ms(200)))


def test_an_endless_answer_is_cut_off(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAX_ANSWER", 3 << 20)
    assert "more than 3145728 bytes" in why(result_of(loop, lambda: bytes(30 << 20)))


def test_nothing_is_told_after_a_cancel(loop: Loop) -> None:
    results: list[object] = []
    before, others = descriptors(), children()
    task = ForkedTask(loop, lambda: time.sleep(600), results.append, limit_ns=LONG, what="the trial")
    assert children() > others
    task.cancel()
    task.cancel()
    turn(loop, lambda: children() == others and descriptors() == before)
    assert not results


def test_no_process_to_be_had_is_a_failure(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_fork)
    result = result_of(loop, lambda: 1)
    assert why(result) == "the trial: no process can be started: Resource temporarily unavailable"


def test_the_loop_goes_on_meanwhile(loop: Loop) -> None:
    """The child waits until the parent's loop has turned, so that a parent that waits for it would wait for ever."""
    reading, writing = os.pipe()
    loop.call_later(ms(50), lambda: os.write(writing, b"x"))
    assert result_of_open(loop, lambda: os.read(reading, 1)) == b"x"
    os.close(reading)
    os.close(writing)


def result_of_open(loop: Loop, work: Callable[[], object]) -> object:
    results: list[object] = []
    ForkedTask(loop, work, results.append, limit_ns=LONG, what="the trial")
    turn(loop, lambda: results)
    return results[0]


def test_the_child_lets_go_of_what_it_is_told_to(loop: Loop) -> None:
    reading, writing = os.pipe()
    results: list[object] = []

    def is_open(fd: int) -> bool:
        try:
            os.fstat(fd)
        except OSError:
            return False
        return True

    ForkedTask(
        loop, lambda: (is_open(reading), is_open(writing)), results.append, limit_ns=LONG, what="the trial",
        in_child=lambda: os.close(writing),
    )  # fmt: skip
    turn(loop, lambda: results)
    assert results == [(True, False)]
    os.close(reading)
    os.close(writing)


def test_the_child_dies_with_the_parent(tmp_path: Path) -> None:
    """A parent that is killed in the middle leaves no process."""
    told = tmp_path / "pid"
    parent = os.fork()
    if parent == 0:
        try:

            def work() -> None:
                (tmp_path / "new").write_text(str(os.getpid()))
                (tmp_path / "new").rename(told)
                time.sleep(600)

            made = Loop()
            ForkedTask(made, work, print, limit_ns=LONG, what="the trial")
            made.run()
        finally:
            os._exit(1)
    deadline = time.monotonic() + 30
    while not told.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    pid = int(told.read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    while Path(f"/proc/{pid}/stat").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.005)

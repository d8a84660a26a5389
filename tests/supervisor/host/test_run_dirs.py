"""Run directory and shared memory of one DRO, and what the dead leave."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.errors import ResourceError
from supervisor.host.run_dirs import (
    Instance,
    default_run_base,
    instance_of,
    is_ending,
    make_run_dirs,
    pid_namespace,
    start_time_of,
    sweep,
)
from tests.rigs.site import ROOT
from tests.rigs.waiting import wait_until


@pytest.fixture
def short_path() -> Iterator[Path]:
    """As `tmp_path`, with room for names of sockets."""
    path = Path(tempfile.mkdtemp(prefix="dro-t-"))
    yield path
    shutil.rmtree(path)


def test_directories_are_private_and_named_after_the_process(short_path: Path) -> None:
    run, shm = short_path / "run", short_path / "shm"
    run.mkdir()
    shm.mkdir()
    made = make_run_dirs("my dro/1", run_base=run, shm_base=shm)
    assert made.run.name == made.shm.name
    assert made.run.name.startswith(f"dro-my_dro_1-{os.getpid()}-")
    for directory in (made.run, made.shm):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    made.ring(1, 2).touch()
    made.ring(1, 3).touch()
    made.counters(1).touch()
    (made.run / "w1.2.ctl").touch()
    (made.run / "w1.22.ctl").touch()
    made.remove_incarnation(1, 2)
    assert {p.name for p in made.shm.iterdir()} == {"lock", "ring.1.3", "counters.1"}
    assert {p.name for p in made.run.iterdir()} == {"lock", "w1.22.ctl"}
    assert sweep(run) == []  # it lives
    with pytest.raises(ResourceError, match="File exists"):
        make_run_dirs("my dro/1", run_base=run, shm_base=shm)
    assert (made.run / "lock").exists()
    made.remove()
    assert list(short_path.rglob("dro-*")) == []


def test_a_path_that_is_too_long_for_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    (tmp_path / "shm").mkdir()
    for base, run_dir in ((deep, None), (tmp_path, deep)):
        with pytest.raises(ResourceError, match=r"File name too long.*choose a shorter path"):
            make_run_dirs("x", shm_base=tmp_path / "shm", run_base=base, run_dir=run_dir)
    assert list(deep.iterdir()) == []
    assert list((tmp_path / "shm").iterdir()) == []


def test_the_dead_are_swept_and_nobody_else(tmp_path: Path) -> None:
    own_start = start_time_of(os.getpid())
    assert own_start is not None
    dead = tmp_path / f"dro-G1-{os.getpid()}-{own_start + 1}"  # the number was given to another process since
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "ring.1.1").touch()
    unlocked = tmp_path / f"dro-G1-{os.getpid()}-{own_start + 2}"
    unlocked.mkdir()
    living = tmp_path / f"dro-G1-{os.getpid()}-{own_start}"
    living.mkdir()
    elsewhere = tmp_path / f"dro-G1-{os.getpid()}-{own_start + 3}"  # its process is not in sight but holds the lock
    elsewhere.mkdir()
    fd = os.open(elsewhere / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    stranger = tmp_path / "dro-notes"
    stranger.mkdir()
    file = tmp_path / "dro-G1-1-1"
    file.touch()
    link = tmp_path / "dro-G1-2-2"
    link.symlink_to(stranger)
    assert sweep(tmp_path) == sorted([dead, unlocked])
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in (living, elsewhere, stranger, file, link)}
    os.close(fd)
    assert sweep(tmp_path) == [elsewhere]


def test_no_room_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(ResourceError, match="XDG_RUNTIME_DIR"):
        make_run_dirs("x", run_base=tmp_path / "run", shm_base=tmp_path / "none")
    assert list((tmp_path / "run").iterdir()) == []


def test_where_run_directories_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_run_base() == tmp_path
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert default_run_base() == Path("/tmp")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_run_base() == Path("/tmp")


def test_start_times() -> None:
    assert start_time_of(os.getpid()) == start_time_of(os.getpid())
    assert start_time_of(2**22 + 1) is None


def test_a_process_that_nobody_has_waited_for_is_dead() -> None:
    """As in a container whose first process does not care for orphans."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert start_time_of(child.pid) is not None
        child.kill()
        wait_until(lambda: start_time_of(child.pid) is None, "it counts as dead")
        assert Path(f"/proc/{child.pid}/stat").exists()


def test_a_directory_that_was_never_finished(tmp_path: Path) -> None:
    """Of this PID namespace: swept when its process is gone. Of another: when it is old and its lock is free."""
    own_start = start_time_of(os.getpid())
    assert own_start is not None
    ours = tmp_path / f"dro-G1-{os.getpid()}-{own_start + 1}.new-{pid_namespace()}"
    being_made = tmp_path / f"dro-G1-{os.getpid()}-{own_start}.new-{pid_namespace()}"
    young = tmp_path / f"dro-G1-{os.getpid()}-{own_start + 2}.new-1"
    old = tmp_path / f"dro-G1-{os.getpid()}-{own_start + 3}.new-1"
    locked = tmp_path / f"dro-G1-{os.getpid()}-{own_start + 4}.new-1"
    for directory in (ours, being_made, young, old, locked):
        directory.mkdir()
    fd = os.open(locked / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    for directory in (old, locked):
        os.utime(directory, (0, 0))
    assert set(sweep(tmp_path)) == {ours, old}
    os.close(fd)


def test_names_of_instances() -> None:
    assert instance_of("dro-my-dro-1-12-345") == Instance("my-dro-1", 12, 345)
    assert instance_of("dro--1-2") == Instance("", 1, 2)
    for other in ("dro-x-1", "dro-x-1-2.new-3", "dro-x-1-2x", "x-dro-x-1-2", "dro-x-12345678901-2"):
        assert instance_of(other) is None


def test_directories_of_other_users_are_swept_only_for_them(tmp_path: Path) -> None:
    dead = tmp_path / "dro-G1-4194305-1"
    dead.mkdir()
    if os.getuid() != 0:
        assert sweep(tmp_path, {os.getuid() + 1}) == []
        return
    os.chown(dead, 54321, 54321)
    assert sweep(tmp_path) == []
    assert sweep(tmp_path, {0, 54321}) == [dead]


def test_a_run_directory_of_ones_own(tmp_path: Path) -> None:
    run, shm = tmp_path / "my run", tmp_path / "shm"
    shm.mkdir()
    made = make_run_dirs("x", run_base=tmp_path, shm_base=shm, run_dir=run)
    assert made.run == run
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    (run / "w1.2.ctl").touch()
    made.remove()
    assert list(tmp_path.iterdir()) == [shm]
    assert list(shm.iterdir()) == []
    run.mkdir(mode=0o755)
    made = make_run_dirs("x", run_base=tmp_path, shm_base=shm, run_dir=run)
    assert (run / "lock").exists()
    made.remove()
    assert list(run.iterdir()) == []  # it was there before and stays


def test_what_a_dead_dro_left_in_its_own_run_directory_goes(tmp_path: Path) -> None:
    run, shm = tmp_path / "run", tmp_path / "shm"
    shm.mkdir()
    run.mkdir(mode=0o700)
    (run / "lock").write_text("open-dro 4194305 1 1\n")
    (run / "admin").touch()
    (run / "keep").mkdir()
    made = make_run_dirs("x", run_base=tmp_path, shm_base=shm, run_dir=run)
    assert {p.name for p in run.iterdir()} == {"lock", "keep"}
    assert (run / "lock").read_text().startswith(f"open-dro {os.getpid()} ")
    made.remove()
    assert {p.name for p in run.iterdir()} == {"keep"}


def test_a_run_directory_that_cannot_be_taken(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()

    def refused(directory: Path, match: str) -> None:
        with pytest.raises(ResourceError, match=match):
            make_run_dirs("x", run_base=tmp_path, shm_base=shm, run_dir=directory)
        assert list(shm.iterdir()) == []

    refused(tmp_path / "none" / "run", "make its directory first")
    (tmp_path / "file").touch()
    refused(tmp_path / "file", "is no directory")
    full = tmp_path / "home"
    full.mkdir(mode=0o700)
    (full / "letter").touch()
    refused(full, "not empty and not that of a DRO")
    assert (full / "letter").exists()
    (full / "lock").write_text("something else")
    refused(full, "is not the lock of a DRO")
    assert (full / "lock").read_text() == "something else"
    wide = tmp_path / "wide"
    wide.mkdir()
    for mode in (0o777, 0o720, 0o702):
        wide.chmod(mode)
        refused(wide, "can be written by others")
    link = tmp_path / "link"
    link.mkdir(mode=0o700)
    (link / "lock").symlink_to(full / "letter")
    refused(link, "cannot use the run directory")
    if os.getuid() == 0:
        strange = tmp_path / "strange"
        strange.mkdir(mode=0o700)
        os.chown(strange, 54321, 54321)
        refused(strange, "belongs to another user")


def test_a_living_dro_keeps_its_run_directory_to_itself(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    first = make_run_dirs("x", run_base=tmp_path, shm_base=shm, run_dir=tmp_path / "run")
    lock = (first.run / "lock").read_text()
    with pytest.raises(
        ResourceError, match=rf"is that of a running DRO \(process {os.getpid()}\); stop that one first"
    ):
        make_run_dirs("y", run_base=tmp_path, shm_base=shm, run_dir=tmp_path / "run")
    assert (first.run / "lock").read_text() == lock
    first.remove()


def test_workers_that_are_still_ending(tmp_path: Path) -> None:
    """The lock is held, but by others than the process that signed it."""
    lock = tmp_path / "lock"
    assert not is_ending(lock)
    fd = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert not is_ending(lock)  # not signed
    lock.write_text(f"open-dro 4194305 1 {pid_namespace()}\n")
    assert is_ending(lock)
    lock.write_text("open-dro 4194305 1 1\n")
    assert not is_ending(lock)  # of another PID namespace: nobody knows
    lock.write_text(f"open-dro {os.getpid()} {start_time_of(os.getpid())} {pid_namespace()}\n")
    assert not is_ending(lock)  # its parent lives
    lock.write_text(f"open-dro 4194305 1 {pid_namespace()}\n")
    os.close(fd)
    assert not is_ending(lock)


HOLD = """
import sys
from pathlib import Path
from supervisor.host.run_dirs import make_run_dirs
made = make_run_dirs("x", run_base=Path(sys.argv[1]), shm_base=Path(sys.argv[2]))
print(made.run.name, flush=True)
sys.stdin.read()
"""


@pytest.mark.netns
def test_a_dro_of_another_pid_namespace_is_living_as_long_as_it_lives(short_path: Path) -> None:
    """Its process id says nothing here, or something wrong; its lock tells."""
    bases = short_path / "run", short_path / "shm"
    for base in bases:
        base.mkdir()
    argv = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", HOLD, *map(str, bases)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        assert name.startswith("dro-x-1-")
        for base in bases:
            assert sweep(base) == []
            assert not is_ending(base / name / "lock")  # nobody here knows, and nobody waits for it
        other.kill()
    for base in bases:
        wait_until(lambda base=base: sweep(base) == [base / name], "it is swept")  # type: ignore[misc]

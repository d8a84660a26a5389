"""Run directory and shared memory of one DRO, and what the dead leave."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest

from dro.errors import ResourceError
from supervisor.places import default_run_base, make_places, start_time_of, sweep


def test_directories_are_private_and_named_after_the_process(tmp_path: Path) -> None:
    run, shm = tmp_path / "run", tmp_path / "shm"
    run.mkdir()
    shm.mkdir()
    places = make_places("my dro/1", run_base=run, shm_base=shm)
    assert places.run.name == places.shm.name
    assert places.run.name.startswith(f"dro-my_dro_1-{os.getpid()}-")
    for directory in (places.run, places.shm):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    places.ring(1, 2).touch()
    places.ring(1, 3).touch()
    places.counters(1).touch()
    (places.run / "w1.2.ctl").touch()
    (places.run / "w1.22.ctl").touch()
    places.remove_incarnation(1, 2)
    assert {p.name for p in places.shm.iterdir()} == {"lock", "ring.1.3", "counters.1"}
    assert {p.name for p in places.run.iterdir()} == {"lock", "w1.22.ctl"}
    assert sweep(run) == []  # it lives
    with pytest.raises(ResourceError, match="File exists"):
        make_places("my dro/1", run_base=run, shm_base=shm)
    assert (places.run / "lock").exists()
    places.remove()
    assert list(tmp_path.rglob("dro-*")) == []


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
        make_places("x", run_base=tmp_path / "run", shm_base=tmp_path / "none")
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

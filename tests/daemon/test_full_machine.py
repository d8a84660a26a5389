"""A machine that has run out of something: a clear line with a remedy, no crash, and the others go on."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.books import books_of
from tests.rigs.circumstances import Step, as_user, in_turn, limited, mounted
from tests.rigs.flow import PAUSE, RECEIVED, Board
from tests.rigs.loaded import Loaded, run
from tests.rigs.site import ROOT, ROUTES, Site, drained
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.netns  # mounts, limits of another user: they need root

PYTHON = (sys.executable, "-m", "supervisor.main")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, 2)
    yield made
    made.close()


def refused(site: Site, before: Step, env: dict[str, str] | None = None) -> str:
    """The line of a DRO that cannot start; nothing else of it may be left or fail."""
    argv = [*PYTHON, str(site.folder / "dro.xml")]
    done = run(argv, cwd=ROOT, env=os.environ | (env or {}), timeout=60, preexec_fn=before)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stdout + done.stderr
    assert "SIGABRT" not in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "DRO cannot start" in line]
    return line


@pytest.mark.parametrize(
    ("size", "reason", "remedy"),
    [
        ("nr_inodes=3", "cannot make /dev/shm/dro-SITE", "make room there: blocks and inodes"),
        ("size=8k", "no room for the counter page", "make room there"),
        ("size=164k", "no room for a fragment ring in /dev/shm/dro-SITE", "more shared memory or lower <max-q"),
    ],
)
def test_full_shared_memory(site: Site, size: str, reason: str, remedy: str) -> None:
    line = refused(site, mounted(size))
    assert reason in line
    assert "No space left on device" in line
    assert remedy in line


@pytest.mark.parametrize(("inodes", "reason"), [(2, "cannot make"), (3, "no admin socket"), (4, "cannot bind ipc:")])
def test_a_full_run_directory(site: Site, inodes: int, reason: str) -> None:
    with tempfile.TemporaryDirectory(prefix="dro-t-") as run:  # short: sockets live in it
        line = refused(site, mounted(f"nr_inodes={inodes}", run), env={"XDG_RUNTIME_DIR": run})
    assert reason in line
    assert "make room there: blocks and inodes" in line


def test_no_room_for_the_pid_file(site: Site) -> None:
    pid_dir = site.folder / "pid"
    pid_dir.mkdir()
    xml = site.folder / "dro.xml"
    xml.write_text(xml.read_text().replace("<log ", f"<pidfile>{pid_dir}/dro.pid</pidfile><log "))
    line = refused(site, mounted("nr_inodes=1", str(pid_dir)))
    assert f"cannot write the pid file {pid_dir}/dro.pid: No space left on device" in line
    assert "make room there" in line


def test_too_few_open_files(site: Site) -> None:
    line = refused(site, limited("NOFILE", 80))
    assert "80 open files are allowed, this DRO needs " in line
    assert "ulimit -n" in line


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(site: Site) -> None:
    with (site.folder / "tnwgd.log").open("wb") as log:
        site.daemon = Loaded(
            [*PYTHON, str(site.folder / "dro.xml")],
            cwd=ROOT, stdout=log, stderr=log, start_new_session=True, preexec_fn=limited("NOFILE", 64, 4000),
        )  # fmt: skip
    site.wait(lambda: "has started" in site.log, "it runs")
    for pid in (site.pid, *site.workers().values()):
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (4000, 4000)
    assert site.stop() == 0


TASKS = 16  # that a DRO of two portals consists of


def as_another(site: Site) -> str:
    """The limit counts per user, and root has none: the DRO becomes a user that has nothing else, who is returned."""
    user = str(60_000 + os.getpid() % 5000)
    xml = site.folder / "dro.xml"
    xml.write_text(xml.read_text().replace("<log ", f"<uid>{user}</uid><gid>{user}</gid><log "))
    return user


@pytest.mark.parametrize("processes", [1, 2, 4, 6, TASKS - 1])
def test_too_few_processes(site: Site, processes: int) -> None:
    as_another(site)
    line = refused(site, limited("NPROC", processes))
    assert f"{processes} processes and threads are allowed, this DRO needs {TASKS}" in line
    assert "ulimit -u" in line


@pytest.mark.parametrize("soft", [TASKS, 4])
def test_just_enough_processes(site: Site, soft: int) -> None:
    as_another(site)
    with (site.folder / "log").open("w+") as log:
        dro: subprocess.Popen[bytes] = Loaded(
            [*PYTHON, str(site.folder / "dro.xml")],
            cwd=ROOT, stdout=log, stderr=log, preexec_fn=limited("NPROC", soft, TASKS),
        )  # fmt: skip
        try:
            wait_until(lambda: "has started" in (site.folder / "log").read_text(), "it runs", 30)
        finally:
            dro.terminate()
            assert dro.wait(30) == 0


@pytest.mark.parametrize("room", [1, 2, 4])
def test_processes_that_others_of_the_user_have_taken(site: Site, room: int) -> None:
    user = as_another(site)
    sleepers = [
        subprocess.Popen(["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "sleep", "300"])
        for _ in range(TASKS - room)
    ]
    try:
        line = refused(site, limited("NPROC", TASKS))
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
    assert re.search("cannot start a (process|thread)", line)
    assert "ulimit -u" in line


@pytest.mark.parametrize("processes", [1, 2])
def test_too_few_processes_to_detach(site: Site, processes: int) -> None:
    user = 55_000 + os.getpid() % 5000
    with tempfile.TemporaryDirectory() as folder:  # that the user can read
        os.chmod(folder, 0o755)
        for path in site.folder.iterdir():
            shutil.copy(path, folder)
        before = in_turn(limited("NPROC", processes), as_user(user, user))
        done = run([*PYTHON, "-f", f"{folder}/dro.xml"], cwd=ROOT, timeout=60, preexec_fn=before)
    assert done.returncode == 1, done
    assert "cannot detach: Resource temporarily unavailable; raise the limit of processes" in done.stderr
    assert "Traceback" not in done.stderr


class Filler:
    """Takes all the room of a file system, also what becomes free, until its end."""

    STEP = 4096

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._fill, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(60)

    def _fill(self) -> None:
        with self._path.open("wb") as f:
            size = 0
            while not self._ends.wait(0.0005):
                with contextlib.suppress(OSError):
                    os.posix_fallocate(f.fileno(), size, self.STEP)
                    size += self.STEP


def test_fragments_that_find_no_shared_memory_are_dropped_and_counted_and_nobody_dies(site: Site) -> None:
    with (site.folder / "tnwgd.log").open("wb") as log:
        site.daemon = Loaded(
            [*PYTHON, str(site.folder / "dro.xml")],
            cwd=ROOT, stdout=log, stderr=log, start_new_session=True, preexec_fn=mounted("size=4m"),
        )  # fmt: skip
    site.wait(lambda: ROUTES in site.log, "routes")
    shm = Path(f"/proc/{site.pid}/root/dev/shm")
    before = site.workers()
    with (shm / "filler").open("wb") as filler, contextlib.suppress(OSError):
        for page in range(1 << 20):
            os.posix_fallocate(filler.fileno(), page << 12, 1 << 12)
    board = Board.create(site.folder, "flow", 5)
    for trd, what in ((1, ("--send", str(board.path), "--rate", "500")), (2, ("--receive", str(board.path)))):
        site.python("-m", "tests.rigs.flow", str(site.config(trd)), *what, name=f"client{trd}")
    with books_of(site.pid, 2, shm) as books:
        site.wait(lambda: books.dropped(2)["would_block"] > 1000, "fragments are dropped")
        assert board[RECEIVED] == 0, site.logs
        assert "no shared memory for fragments, they are dropped" in site.log
        assert "give the machine more shared memory or lower <max-queue>" in site.log
        (shm / "filler").unlink()
        site.wait(lambda: board.is_flowing, "it flows")
        board[PAUSE] = 1
        site.wait(lambda: drained(books), "nothing is on its way")
        assert books.problems() == []
    assert site.workers() == before
    assert site.stop() == 0


def test_a_portal_that_finds_no_shared_memory_comes_back_later(site: Site) -> None:
    with (site.folder / "tnwgd.log").open("wb") as log:
        site.daemon = Loaded(
            [*PYTHON, str(site.folder / "dro.xml")],
            cwd=ROOT, stdout=log, stderr=log, start_new_session=True, preexec_fn=mounted("size=1m"),
        )  # fmt: skip
    site.wait(lambda: "has started" in site.log, "it runs")
    shm = Path(f"/proc/{site.pid}/root/dev/shm")
    other = site.worker("P2")
    with Filler(shm / "filler"):
        while "no room for a fragment ring" not in site.log:
            lives = site.log.count("worker ready worker=P1")
            with contextlib.suppress(KeyError):  # it waits for its next life
                site.kill("P1")  # what it had is taken before its next life asks for it, unless the machine is busy
            site.wait(
                lambda n=lives: (  # type: ignore[misc]
                    "no room for a fragment ring" in site.log or site.log.count("worker ready worker=P1") > n
                ),
                "the next life is ready, or cannot begin",
            )
    site.wait(lambda: site.log.count("no room for a fragment ring") >= 3, "it tried again")
    told = [line for line in site.log.splitlines() if "worker cannot run" in line]
    assert all("give the machine more shared memory or lower <max-queue>" in line for line in told)

    def pauses() -> list[int]:
        return [int(text) for text in re.findall(r"worker is restarted worker=P1 in_ms=(\d+)", site.log)]

    site.wait(lambda: pauses()[-1] > pauses()[0], "it waits longer before a further try")
    assert site.worker("P2") == other
    assert "Traceback" not in site.log
    lives = site.log.count("worker ready worker=P1")
    (shm / "filler").unlink()
    site.wait(lambda: site.log.count("worker ready worker=P1") > lives, "the portal is back")
    assert site.stop() == 0

"""The log file: many processes, rolls, deaths, full disks, and what others do to the file."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import resource
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dro.clock import s
from dro.errors import ResourceError
from dro.log.file import LogFile, Rolls, rolled_name
from dro.log.handler import LogHandler, Settings
from tests.rigs.effort import IS_LONG

ROOT: Final = Path(__file__).parents[2]
DAY: Final = 20261121
LINE: Final = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] \[information\] line w=(\d+) n=(\d+) x=x{120,149} process=W(\d+)"
)
END: Final = re.compile(r"\[[^]]+\] \[information\] end process=daemon")


def run_writers(folder: Path, *numbers: int) -> dict[int, int]:
    """Lines that each writer of `tests.rigs.log_writers` came back from."""
    argv = [sys.executable, "-m", "tests.rigs.log_writers", str(folder), *map(str, numbers)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return {int(writer): count for writer, count in json.loads(done.stdout).items()}


def found_lines(folder: Path) -> Counter[tuple[int, int]]:
    """(writer, number) of every line in all files; whatever is no whole line fails, blank ones apart."""
    found: Counter[tuple[int, int]] = Counter()
    for path in folder.glob("log*"):
        data = path.read_bytes()
        assert data.endswith(b"\n"), path
        for line in data.decode().splitlines():
            match = LINE.fullmatch(line)
            if match is not None and match[1] == match[3]:
                found[int(match[1]), int(match[2])] += 1
            else:
                assert not line.strip() or END.fullmatch(line), line
    return found


def rolled(folder: Path) -> list[Path]:
    return sorted(folder.glob("log_*"), key=lambda path: int(path.suffix[1:]))


@pytest.mark.slow
def test_many_processes_lose_tear_and_double_nothing(tmp_path: Path) -> None:
    """Eight processes, 50 rolls, and 100,000 lines; with `DRO_LONG=1`, 200,000."""
    lines = 25_000 if IS_LONG else 12_500
    size = 28 * lines
    written = run_writers(tmp_path, 8, lines, size)
    assert written == dict.fromkeys(range(8), lines)
    found = found_lines(tmp_path)
    assert len(found) == 8 * lines
    assert set(found.values()) == {1}
    files = rolled(tmp_path)
    assert len(files) >= 50
    assert [int(path.suffix[1:]) for path in files] == list(range(1, len(files) + 1))
    sizes = [path.stat().st_size for path in files]
    assert min(sizes) >= size
    assert (
        sorted(sizes)[len(sizes) // 2] < size + 20_000
    )  # the others write on while who rolls waits for its turn to run


@pytest.mark.parametrize(("before", "is_rolled"), [(99, False), (100, True)])
def test_a_file_is_rolled_when_it_has_the_size(tmp_path: Path, before: int, is_rolled: bool) -> None:
    log = LogFile(str(tmp_path / "log"), size_bytes=100, pid=1)
    log.write(b"x" * (before - 1) + b"\n", DAY)
    log.write(b"next\n", DAY)
    log.close()
    assert (tmp_path / "log_1.2026-11-21.1").exists() is is_rolled


@pytest.mark.slow
def test_a_killed_process_loses_its_last_line_at_most(tmp_path: Path) -> None:
    written = run_writers(tmp_path, 8, 4_000, 20_000, 64)
    found = found_lines(tmp_path)
    assert set(found.values()) == {1}
    for writer, count in written.items():
        numbers = sorted(number for who, number in found if who == writer)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) in (count, count + 1)  # it was killed between the line and the note of it
    assert sum(count == 4_000 for count in written.values()) >= 8
    assert len(rolled(tmp_path)) > 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_a_file_is_appended_to(path: Path) -> None:
    path.write_text("before\n")
    LogFile(str(path)).write(b"after\n", DAY)
    assert path.read_text() == "before\nafter\n"


def test_what_stood_there_keeps_its_last_words(path: Path) -> None:
    path.write_text("no line end")
    LogFile(str(path)).write(b"after\n", DAY)
    assert path.read_text() == "no line end\nafter\n"


def test_a_new_file_is_not_for_everybody(path: Path) -> None:
    LogFile(str(path))
    assert stat.S_IMODE(path.stat().st_mode) & 0o137 == 0


@pytest.mark.parametrize("before", [b"", b"line\n", b"x" * 70_000 + b"\n"])
def test_a_part_of_a_line_is_blanked_out(path: Path, before: bytes) -> None:
    file = LogFile(str(path))
    if before:
        file.write(before, DAY)
    with path.open("ab") as killed:
        killed.write(b"half a li")
    file.write(b"next\n", DAY)
    assert path.read_bytes() == before + b"        \nnext\n"


def test_a_part_at_the_end_of_a_rolled_file_is_blanked_out(path: Path) -> None:
    file = LogFile(str(path), size_bytes=10, pid=7)
    with path.open("ab") as killed:
        killed.write(b"line\nhalf a line")
    file.write(b"next\n", DAY)
    assert path.read_bytes() == b"next\n"
    assert Path(rolled_name(str(path), 7, DAY, 1)).read_bytes() == b"line\n          \n\n"


def test_the_name_of_a_rolled_file() -> None:
    assert rolled_name("/var/log/umrouterlog", 9867, 20170820, 2) == "/var/log/umrouterlog_9867.2017-08-20.2"


def test_the_line_after_the_size_is_reached_rolls(path: Path, tmp_path: Path) -> None:
    file = LogFile(str(path), size_bytes=10, pid=7)
    for i in range(5):
        file.write(b"line%d\n" % i, DAY)
    assert [p.read_text() for p in rolled(tmp_path)] == ["line0\nline1\n", "line2\nline3\n"]
    assert path.read_text() == "line4\n"


def test_a_rolled_file_is_never_overwritten(path: Path, tmp_path: Path) -> None:
    """Process ids come again, in containers at every start."""
    old = Path(rolled_name(str(path), 1, DAY, 1))
    old.write_text("old\n")
    file = LogFile(str(path), size_bytes=1, pid=1)
    file.write(b"a\n", DAY)
    file.write(b"b\n", DAY)
    assert [p.read_text() for p in rolled(tmp_path)] == ["old\n", "a\n"]


def test_daily_and_by_size(path: Path, tmp_path: Path) -> None:
    """A roll by size does not put off that of midnight; numbers go on over the days."""
    file = LogFile(str(path), size_bytes=10, frequency="daily", pid=7)
    file.begin(DAY)
    file.write(b"long enough\n", DAY)
    file.write(b"b\n", DAY)
    file.write(b"c\n", DAY + 1)
    file.write(b"d\n", DAY + 1)
    file.write(b"e\n", DAY)  # the clock was set back
    file.write(b"f\n", DAY + 2)
    assert [(p.name, p.read_text()) for p in rolled(tmp_path)] == [
        ("log_7.2026-11-21.1", "long enough\n"),
        ("log_7.2026-11-22.2", "b\n"),
        ("log_7.2026-11-23.3", "c\nd\ne\n"),
    ]


@pytest.mark.parametrize(("frequency", "seconds"), [("hourly", 3600), ("test", 10)])
def test_hourly_counts_from_the_last_roll_of_its_own(path: Path, tmp_path: Path, frequency: str, seconds: int) -> None:
    now = s(1000)
    file = LogFile(str(path), size_bytes=100, frequency=frequency, pid=7, now_ns=lambda: now)
    file.begin(DAY)

    def write(text: str, after_s: float) -> None:
        nonlocal now
        now += int(after_s * 1e9)
        file.write(text.encode() + b"\n", DAY)

    write("a", seconds - 1)
    write("b" * 100, 0)
    write("c", 0)  # by size
    write("d", 1)  # by time
    write("e", seconds - 1)
    write("f", 100)
    write("g", seconds - 1)  # it drifts: counted from f
    write("h", 1)
    assert [p.read_text()[0] for p in rolled(tmp_path)] == ["a", "c", "d", "f"]
    assert path.read_text() == "h\n"


def test_an_empty_file_is_not_rolled(path: Path, tmp_path: Path) -> None:
    file = LogFile(str(path), frequency="daily")
    file.begin(DAY)
    file.write(b"a\n", DAY + 1)
    assert rolled(tmp_path) == []


def test_processes_count_rolls_together(path: Path, tmp_path: Path) -> None:
    rolls = Rolls()
    files = [LogFile(str(path), size_bytes=3, rolls=rolls, pid=7) for _ in range(3)]
    for i in range(9):
        files[i % 3].write(b"%d__\n" % i, DAY)
    assert [p.read_text() for p in rolled(tmp_path)] == [f"{i}__\n" for i in range(8)]


def test_who_has_the_lock_and_stops_holds_nobody_up(path: Path, tmp_path: Path) -> None:
    file = LogFile(str(path), size_bytes=1, pid=7)
    file.write(b"a\n", DAY)
    with path.open() as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        file.write(b"b\n", DAY)
        assert path.read_text() == "a\nb\n"
    file.write(b"c\n", DAY)
    assert path.read_text() == "c\n"
    assert len(rolled(tmp_path)) == 1


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_a_file_that_others_take_away_is_made_anew(path: Path, how: str) -> None:
    file = LogFile(str(path))
    file.write(b"a\n", DAY)
    if how == "deleted":
        path.unlink()
    else:
        path.rename(path.with_name("old"))
    if how == "replaced":
        path.write_text("")
    file.write(b"b\n", DAY)
    assert path.read_text() == "b\n"


def test_a_file_that_others_truncate_goes_on(path: Path) -> None:
    file = LogFile(str(path))
    file.write(b"a\n", DAY)
    os.truncate(path, 0)
    file.write(b"b\n", DAY)
    assert path.read_text() == "b\n"


def test_a_directory_that_is_gone_is_told_once_and_then_forgiven(tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LogFile(str(folder / "log"), complain=told.append)
    folder.rename(tmp_path / "elsewhere")
    for _ in range(3):
        file.write(b"a\n", DAY)
    assert told == [f"log file {folder}/log cannot be opened again: No such file or directory"]
    assert (tmp_path / "elsewhere" / "log").read_text() == "a\na\na\n"
    folder.mkdir()
    file.write(b"b\n", DAY)
    assert (folder / "log").read_text() == "b\n"


def test_a_roll_that_fails_is_told_once_and_tried_later(tmp_path: Path) -> None:
    now = 0
    told: list[str] = []
    path = tmp_path / ("x" * 250)  # the rolled name is too long
    file = LogFile(str(path), size_bytes=1, complain=told.append, now_ns=lambda: now)
    for _ in range(3):
        file.write(b"a\n", DAY)
    now = s(61)
    file.write(b"a\n", DAY)
    assert told == [f"log file {path} cannot be rolled: File name too long"]
    assert path.read_text() == "a\n" * 4


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none/log", "No such file or directory; make its directory"),
        (".", "Is a directory; write the path of a file"),
        ("file/log", "Not a directory"),
    ],
)
def test_a_path_that_cannot_be_had_is_an_error(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=why):
        LogFile(str(tmp_path / name))


def test_a_device_is_no_file_to_roll(tmp_path: Path) -> None:
    file = LogFile("/dev/null", size_bytes=1)
    file.write(b"a\n", DAY)
    file.write(b"b\n", DAY)
    assert not list(Path("/dev").glob("null_*"))


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file beyond 1000 bytes, as if the disk were full. Writes beyond it are cut short, then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_costs_lines_which_are_counted(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = logging.Logger("t")
    handler = LogHandler("E1", Settings("file", str(path)), Rolls(), os.getpid())
    log.addHandler(handler)
    for i in range(40):
        log.info(f"line {i}")
    kept = len(re.findall(r"line \d+ process=E1\n", path.read_text()))
    os.truncate(path, 0)
    handler.tick()
    log.info("room again")
    assert [line[28:] for line in path.read_text().splitlines()] == [
        f' [warning] log lines lost lines={40 - kept} reason="File too large" process=E1',
        " [information] room again process=E1",
    ]
    (said,) = capfd.readouterr().err.splitlines()
    assert said.endswith(f"log {path}: No space left on device; lines are lost and counted until it works again")

"""`tnwgd-top` without a DRO: which one is meant, among running and dead ones, and wrong arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.admin.client import UnreachableError
from supervisor.host.run_dirs import RUN_LINK, start_time_of
from supervisor.tools.top.main import EXIT_UNREACHABLE, main
from supervisor.tools.top.places import choose, place_of, places

ME = f"{os.getpid()}-{start_time_of(os.getpid())}"
DEAD = f"{os.getpid()}-1"  # its process id is somebody else's now


def make(base: Path, name: str, life: str) -> Path:
    made = base / f"dro-{name}-{life}"
    made.mkdir(mode=0o700)
    (made / RUN_LINK).symlink_to(base / f"run-{name}-{life}")
    return made


def test_a_running_dro_is_taken_before_dead_ones(tmp_path: Path) -> None:
    dead, living = make(tmp_path, "A", DEAD), make(tmp_path, "A", ME)
    assert choose(shm=str(tmp_path)).shm == living
    assert choose("A", shm=str(tmp_path)).shm == living
    assert choose(str(os.getpid()), shm=str(tmp_path)).is_alive
    assert choose(shm=str(dead)).shm == dead
    assert [place.is_alive for place in places(tmp_path)] == [True, False]
    assert choose(run_dir=f"{tmp_path}/run-A-{DEAD}", shm=str(tmp_path)).shm == dead


def test_a_dead_dro_is_taken_when_none_runs(tmp_path: Path) -> None:
    make(tmp_path, "A", DEAD)
    other = make(tmp_path, "B_C", DEAD)
    assert choose("B C", shm=str(tmp_path)).shm == other
    with pytest.raises(UnreachableError, match="several dead DROs") as caught:
        choose(shm=str(tmp_path))
    assert f"A (pid {os.getpid()}, dead: --shm {tmp_path}/dro-A-{DEAD})" in str(caught.value)


def test_of_several_running_ones_one_has_to_be_named(tmp_path: Path) -> None:
    make(tmp_path, "A", ME)
    make(tmp_path, "B", ME)
    with pytest.raises(UnreachableError, match=r"several DROs run here: A \(pid \d+\), B \(pid \d+\)"):
        choose(shm=str(tmp_path))
    with pytest.raises(UnreachableError, match=r"no DRO 'C' runs here.*there are: A"):
        choose("C", shm=str(tmp_path))


def test_what_is_no_directory_of_a_dro_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / f"dro-F-{ME}").write_text("")
    (tmp_path / f"dro-L-{ME}").symlink_to(make(tmp_path, "A", ME))
    (tmp_path / "other").mkdir()
    assert [place.instance.name for place in places(tmp_path)] == ["A"]
    assert place_of(tmp_path / "other") is None


def test_there_may_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--once", "--shm", str(tmp_path)]) == EXIT_UNREACHABLE
    error = capsys.readouterr().err
    assert error == (
        f"tnwgd-top: no DRO of this user runs here, and no dead one is left in {tmp_path}; start one with tnwgd\n"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--json"], "--json goes with --once"),
        (["--interval", "0"], "has to be from 0.1 to 3600 seconds"),
        (["--interval", "nan"], "has to be from 0.1 to 3600 seconds"),
        (["-i", "soon"], "'soon' is not a number of seconds"),
        (["--dro", ""], "is empty; name a DRO"),
    ],
)
def test_wrong_arguments_are_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err

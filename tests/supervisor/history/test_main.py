"""The command lines of histories: what makes no sense is refused before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from analytics.aggregate import main as aggregate
from analytics.report import main as report
from dro.command_line import version
from supervisor.history.main import main


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["receive", "--history", "h", "--listen", "nonsense"], "'nonsense' is no ADDRESS:PORT"),
        (["receive", "--history", "h", "--listen", "127.0.0.1:70000"], "'127.0.0.1:70000' is no ADDRESS:PORT"),
        (["receive", "--history", "h", "--roll", "0"], "'0' is no number of seconds above 0"),
        (["scrape", "http://127.0.0.1:1/metrics", "--history", "h", "--interval", "soon"], "'soon' is no number"),
        (["scrape", "ftp://127.0.0.1/metrics", "--history", "h"], "'ftp://127.0.0.1/metrics' is no address of HTTP"),
        (["scrape", "http://[::1/metrics", "--history", "h"], "'http://[::1/metrics' is no address of HTTP"),
        (["receive"], "--history"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    given: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tnwgd-history {version()}\n"


def test_numbers_of_spark_programs_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for program, given in ((aggregate, ["--follow", "-1"]), (report, ["rtt", "--line-rate", "fast"])):
        with pytest.raises(SystemExit):
            program(["--history", "h", *given] if program is aggregate else [*given, "--history", "h"])
        assert f"{given[-1]!r} is no number above 0" in capsys.readouterr().err


def test_a_directory_that_cannot_be_had_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["receive", "--history", str(tmp_path / "file")]) == 1
    assert f"cannot write the history at {tmp_path}/file" in capsys.readouterr().err


def test_a_report_needs_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["list"]) == 0
    assert "busiest-portal" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        report(["busiest-portal"])
    assert "--history is missing" in capsys.readouterr().err

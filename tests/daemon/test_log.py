"""The log of a whole DRO: one file for all processes, changed while it runs, rolled, and what happens without it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dro.config.dro_xml.load import load_dro
from dro.errors import ConfigError
from dro.log.handler import Settings
from supervisor.parent.log_settings import check_log, open_log
from tests.rigs.loaded import Loaded
from tests.rigs.quick_dro import NAME, QUICK
from tests.rigs.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
FILE: Final = '<log type="file">{}</log>'
LINE: Final = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] \[[a-z]+\] (?:([A-Za-z]+-\d+-\d+): )?\S.* process=(\S+)"
)
PROCESSES: Final = {"tnwgd", "route-manager", "P1", "P2"}


class Quick:
    """A DRO with two portals that do nothing but say which routes they get."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.run_base = Path(tempfile.mkdtemp(prefix="dro-t-"))
        for number, name in enumerate(("a", "b")):
            (folder / f"{name}.cfg").write_text(f"context resolver_multicast_address 239.199.1.{number + 1}\n")

    def configure(self, log: str) -> Path:
        path = self.folder / "dro.xml"
        path.write_text(QUICK.replace("</name>", f"</name>{log}", 1))
        return path

    def start(self, log: str, out_path: str = "out") -> None:
        xml = self.configure(log)
        fd = os.open(self.folder / out_path, os.O_WRONLY | os.O_CREAT)
        with os.fdopen(fd, "wb") as out, (self.folder / "err").open("wb") as err:
            self.process = Loaded(
                [sys.executable, "-m", "tests.rigs.quick_dro", *self.arguments, str(xml)],
                cwd=self.folder, env=os.environ | {"XDG_RUNTIME_DIR": str(self.run_base)}, stdout=out, stderr=err,
            )  # fmt: skip

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def wait(self, name: str, pattern: str, count: int = 1) -> None:
        def files() -> str:
            return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in self.folder.glob("*"))

        def look() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"tnwgd ended\n{files()}"
            return len(re.findall(pattern, self.text(name))) >= count

        wait_until(look, f"{pattern} in {name}", 60, files)

    def wait_exit(self) -> int:
        assert self.process is not None
        return self.process.wait(20)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait_exit()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        assert list(self.run_base.iterdir()) == []
        self.run_base.rmdir()


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Quick]:
    quick = Quick(tmp_path)
    yield quick
    quick.close()


def processes_of(text: str) -> set[str]:
    """Names of the processes that speak; every line has to be whole."""
    matches = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(matches), text
    return {match[2] for match in matches if match}


def test_all_processes_write_one_file_also_new_ones(quick: Quick) -> None:
    quick.start(FILE.format(quick.folder / "log"))
    for portal in ("P1", "P2"):
        quick.wait("log", rf"TABLE v1\.\d .*process={portal}")
    quick.wait("log", "has started")
    (pid,) = re.findall(r"worker=P1 pid=(\d+)", quick.text("log"))
    os.kill(int(pid), signal.SIGKILL)
    quick.wait("log", "process=P1\n", 2)
    quick.wait("log", r"TABLE v1\.\d .*process=P1", 2)
    assert quick.stop() == 0
    text = quick.text("log")
    assert processes_of(text) == PROCESSES
    ids = [match[1] for match in map(LINE.fullmatch, text.splitlines()) if match and match[1]]
    course = ["Gwd-7136-1", "Gwd-7136-2", "Gwd-9574-01", "Gwd-7122-1", "Gwd-6361-74", "Gwd-6033-391"]
    assert [one for one in dict.fromkeys(ids) if one in course and one != "Gwd-7122-1"] == [
        one for one in course if one != "Gwd-7122-1"
    ]
    assert set(course) <= set(ids)
    assert quick.text("out") == quick.text("err") == ""


def test_a_console_log_begins_as_users_know_it(quick: Quick) -> None:
    quick.start("")
    quick.wait("out", r"TABLE v1\.\d .*process=P2")
    assert quick.stop() == 0
    first, rest = quick.text("out").split("\n", 1)
    assert first == "Daemon log entity unspecified. Defaulting to console "
    assert processes_of(rest) == PROCESSES
    assert quick.text("err") == ""


def test_a_console_that_is_asked_for_is_not_called_unspecified(quick: Quick) -> None:
    quick.start('<log type="console"/>')
    quick.wait("out", r"TABLE v1\.\d .*process=P2")
    assert quick.stop() == 0
    assert "unspecified" not in quick.text("out")
    assert processes_of(quick.text("out")) == PROCESSES


def test_the_log_changes_while_the_dro_runs(quick: Quick) -> None:
    """From one file to another, to syslog, and back to the console, in every process."""
    folder = quick.folder
    quick.start(FILE.format(folder / "one"))
    quick.wait("one", "has started")
    quick.wait("one", r"TABLE v1\.\d .*process=P2")
    assert quick.process is not None

    def change(log: str) -> None:
        assert quick.process is not None
        quick.configure(log)
        quick.process.send_signal(signal.SIGHUP)

    change(FILE.format(folder / "two"))
    quick.wait("two", "reload done")
    (pid,) = re.findall(r"worker=P1 pid=(\d+)", quick.text("one"))
    os.kill(int(pid), signal.SIGKILL)
    quick.wait("two", r"TABLE v1\.\d .*process=P1")  # a new worker: said by it and by those that were there
    quick.wait("two", "LINK .*process=route-manager")
    before = quick.text("one")
    change(FILE.format(folder / "none" / "three"))
    quick.wait("two", "dro.xml:3: <log>: .*No such file or directory.*make its directory")
    change("")
    quick.wait("out", "reload done")
    assert quick.stop() == 0
    assert quick.text("one") == before
    assert processes_of(before) == PROCESSES
    assert "DRO stopped" in quick.text("out")
    assert "DRO stopped" not in quick.text("two")


def test_json_lines(tmp_path: Path) -> None:
    quick = Quick(tmp_path, "--log-json")
    try:
        quick.start("")
        quick.wait("out", '"TABLE v1.1 [^\n]*\n')
        for process in PROCESSES:
            quick.wait("out", f'"process": "{process}"[^\n]*\n')
        assert quick.stop() == 0
    finally:
        quick.close()
    lines = [json.loads(line) for line in quick.text("out").splitlines()]
    assert {line["process"] for line in lines} == PROCESSES
    assert {tuple(line) for line in lines} == {("time", "severity", "id", "process", "text", "fields")}
    (started,) = [line for line in lines if line["id"] == "Gwd-7122-1"]
    assert re.fullmatch(rf"Gateway named \[{NAME}\] with node id: \d+ has started\.", started["text"])
    assert started["fields"]["dro"] == NAME


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("{}", "Is a directory; write the path of a file into <log>"),
        ("{}/none/log", "No such file or directory; make its directory, or write another path into <log>"),
        ("{}/dro.xml/log", "Not a directory; write the path of a file into <log>"),
    ],
)
def test_a_log_that_cannot_be_had_is_an_error_with_its_place(quick: Quick, path: str, why: str) -> None:
    xml = quick.configure(FILE.format(path.format(quick.folder)))
    for act in (lambda config, base: open_log("tnwgd", config, base), check_log):
        with pytest.raises(ConfigError) as caught:
            act(load_dro(str(xml), warn=print), Settings())
        assert re.fullmatch(rf"{re.escape(str(xml))}:3: <log>: log file \S+: {why}", str(caught.value))


def test_a_console_that_nobody_reads_holds_nothing_up(quick: Quick) -> None:
    """It starts, a worker is killed and comes back, and it ends as told."""
    os.mkfifo(quick.folder / "full")
    unread = os.open(quick.folder / "full", os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(unread, b"x" * 512)
    quick.start("", "full")
    assert quick.process is not None
    children = Path(f"/proc/{quick.process.pid}/task/{quick.process.pid}/children")

    def workers() -> dict[str, int]:
        names = {}
        for pid in children.read_text().split() if children.exists() else []:
            with contextlib.suppress(OSError):
                names[Path(f"/proc/{pid}/comm").read_text().strip()] = int(pid)
        return names

    wait_until(lambda: workers().keys() >= {"P1", "P2", "route-manager"}, "workers", 60)
    killed = workers()["P1"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: workers().get("P1", killed) != killed, "a new worker", 60)
    assert quick.stop() == 0
    os.close(unread)

"""Programs whose standard streams are closed, full, or read by nobody: one line at most, and never a traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.rigs import loaded

ROOT = Path(__file__).parents[1]
CAPTURE = Path(__file__).parent / "golden" / "captures" / "um-lbtrm-single-source.pcap"
CFG = """\
context default_interface 127.0.0.1
context resolver_multicast_interface 127.0.0.1
context request_tcp_interface 127.0.0.1
context request_tcp_port_low 24391
context request_tcp_port_high 24399
"""
PROGRAMS = {
    "umdump": ["dro.tools.umdump.main", str(CAPTURE)],
    "summary": ["dro.tools.umdump.main", "--summary", str(CAPTURE)],
    "lbmsrc": ["dro.tools.lbm.lbmsrc", "-c", "a.cfg", "-M", "1", "-d", "0", "-L", "0", "t"],
    "lbmrcv": ["dro.tools.lbm.lbmrcv", "-c", "a.cfg", "t"],
    "lbmwrcv": ["dro.tools.lbm.lbmwrcv", "-c", "a.cfg", "t"],
    "tnwgd": ["supervisor.main", "-d"],
}
MORE = {
    "lbmreq": ["dro.tools.immediate.lbmreq", "-c", "a.cfg", "-R", "1", "-P", "0.1", "-d", "0", "-L", "0", "t"],
    "lbmresp": ["dro.tools.immediate.lbmresp", "-c", "a.cfg", "t"],
    "lbmimsg": ["dro.tools.immediate.lbmimsg", "-c", "a.cfg", "-M", "1", "-d", "0", "-L", "0", "t"],
    "lbmlatping": ["dro.tools.lbm.lbmlatping", "-c", "a.cfg", "-M", "1"],
    "lbmlatpong": ["dro.tools.lbm.lbmlatpong", "-c", "a.cfg"],
}
"""Programs that do as others do when their output works."""
FULL = dict.fromkeys(MORE, 3) | {"umdump": 1, "summary": 1, "lbmsrc": 3, "lbmrcv": 3, "lbmwrcv": 3, "tnwgd": 1}
INFORM = {
    f"{program} {option}": [module, option]
    for option in ("--version", "--help")
    for program, (module, *_) in (PROGRAMS | {"tnwgdctl": ["supervisor.tools.ctl.main"]}).items()
    if program != "summary"
}
RESPOND = ["supervisor.tools.ctl.main", "doctor", "--respond", "127.0.0.1", "--for", "1", "--port"]


EXECUTED = os.environ | {"PYTHONPATH": str(ROOT)}  # the interpreter itself closes the streams


def run(tmp_path: Path, arguments: list[str], **streams: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
    (tmp_path / "a.cfg").write_text(CFG)
    return loaded.run([sys.executable, "-m", *arguments], cwd=tmp_path, timeout=60, **streams)


@pytest.fixture
def full() -> Iterator[IO[bytes]]:
    """A device without room."""
    with open("/dev/full", "wb", buffering=0) as device:
        yield device


@pytest.mark.parametrize("words", [*PROGRAMS, *MORE, *INFORM, "tnwgdctl doctor"])
def test_a_full_output_is_told_in_one_line(tmp_path: Path, full: IO[bytes], words: str) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        respond = [*RESPOND, str(free.getsockname()[1])]
    done = run(tmp_path, {**PROGRAMS, **MORE, **INFORM, "tnwgdctl doctor": respond}[words], stdout=full)
    assert done.returncode == FULL.get(words.split()[0], 1)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot write the output: No space left on device" in done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_helps_when_errors_cannot_be_told_either(tmp_path: Path, full: IO[bytes], program: str) -> None:
    done = run(tmp_path, PROGRAMS[program], stdout=full, stderr=full, env=EXECUTED)
    assert done.returncode == FULL[program]


@pytest.mark.parametrize("program", ["umdump", "summary", "lbmsrc", "tnwgd"])
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_good_as_the_null_device(tmp_path: Path, program: str, closed: str) -> None:
    (tmp_path / "a.cfg").write_text(CFG)
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-m", *PROGRAMS[program]]
    done = subprocess.run(command, cwd=tmp_path, env=EXECUTED, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("program", [*PROGRAMS, *MORE])
def test_a_reader_that_goes_away_ends_it_in_silence(tmp_path: Path, program: str) -> None:
    """With one status for all programs: the reader has what it wanted."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe:
        done = run(tmp_path, {**PROGRAMS, **MORE}[program], stdout=pipe)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("program", [name for name in (*PROGRAMS, "tnwgdctl") if name != "summary"])
def test_every_program_has_a_version_and_one_line_for_a_wrong_argument(tmp_path: Path, program: str) -> None:
    module = "supervisor.tools.ctl.main" if program == "tnwgdctl" else PROGRAMS[program][0]
    version = run(tmp_path, [module, "--version"])
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout.split()[0] == program
    assert len(version.stdout.splitlines()) == 1
    wrong = run(tmp_path, [module, "--nonsense"])
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert len(wrong.stderr.splitlines()) == 1
    assert wrong.stderr.startswith(f"{program}: ")
    assert wrong.stderr.endswith(f"; try {program} --help\n")


SLOW = """
import importlib.abc, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run where it is ignored
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            print("loading", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from {entry} import {function}
sys.exit({function}())
"""
ENTRIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.mark.parametrize(
    ("name", "module"),
    [("lbmsrc", "dro.tools.lbm.lbmsrc"), ("lbmrcv", "dro.um.blocking_api"), ("umdump", "dro.dissect.capture")],
)
def test_ctrl_c_while_a_tool_is_loaded_ends_it_without_a_traceback(name: str, module: str) -> None:
    entry, function = ENTRIES[name].split(":")
    command = [sys.executable, "-c", SLOW.format(module=module, entry=entry, function=function), "topic"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == -signal.SIGINT


def test_what_a_terminal_cannot_show_is_written_as_escapes() -> None:
    program = "from dro.standard_streams import open_standard_streams as o; o(); print('topic \\u20ac \\udcff')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("topic \\u20ac \\udcff\n", "")

"""Programs whose standard streams are closed, full, or read by nobody: one line at most, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CAPTURE = Path(__file__).parent / "golden" / "captures" / "um-lbtrm-single-source.pcap"
CFG = """\
context default_interface 127.0.0.1
context resolver_multicast_interface 127.0.0.1
context request_tcp_interface 127.0.0.1
context request_tcp_port_low 24391
context request_tcp_port_high 24399
"""
PROGRAMS = {
    "umdump": ["dro.tools.umdump", str(CAPTURE)],
    "summary": ["dro.tools.umdump", "--summary", str(CAPTURE)],
    "lbmsrc": ["dro.tools.lbmsrc", "-c", "a.cfg", "-M", "1", "-d", "0", "-L", "0", "t"],
    "lbmrcv": ["dro.tools.lbmrcv", "-c", "a.cfg", "t"],
    "lbmwrcv": ["dro.tools.lbmwrcv", "-c", "a.cfg", "t"],
    "tnwgd": ["supervisor.main", "-d"],
}
FULL = {"umdump": 1, "summary": 1, "lbmsrc": 3, "lbmrcv": 3, "lbmwrcv": 3, "tnwgd": 1}


def run(tmp_path: Path, shell: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    (tmp_path / "a.cfg").write_text(CFG)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = ["sh", "-c", shell, sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_full_output_is_told_in_one_line(tmp_path: Path, program: str) -> None:
    done = run(tmp_path, 'exec "$0" "$@" > /dev/full', PROGRAMS[program])
    assert done.returncode == FULL[program]
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot write the output: No space left on device" in done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_helps_when_errors_cannot_be_told_either(tmp_path: Path, program: str) -> None:
    done = run(tmp_path, 'exec "$0" "$@" > /dev/full 2> /dev/full', PROGRAMS[program])
    assert done.returncode == FULL[program]


@pytest.mark.parametrize("program", ["umdump", "summary", "lbmsrc", "tnwgd"])
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_good_as_the_null_device(tmp_path: Path, program: str, closed: str) -> None:
    done = run(tmp_path, f'exec "$0" "$@" {closed}', PROGRAMS[program])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("program", ["umdump", "tnwgd"])
def test_a_reader_that_has_enough_ends_it_in_silence(tmp_path: Path, program: str) -> None:
    done = run(tmp_path, '{ "$0" "$@"; echo "status $?" >&2; } | head -n 1 > /dev/null', PROGRAMS[program])
    assert done.stderr == "status 0\n"

"""What process listings show."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from dro.bus.process_name import name_process, show_name
name_process(sys.argv[2])
show_name(sys.argv[2])
print(Path("/proc/self/comm").read_text().strip(), Path("/proc/self/cmdline").read_bytes().rstrip(bytes(1)), sep="|")
print(sys.argv)
"""


@pytest.mark.parametrize(
    ("name", "comm", "title"),
    [
        ("P1", "P1", b"tnwgd: P1 /etc/dro.xml P1"),
        ("a portal with a name", "a portal with a", b"tnwgd: a portal with a name /etc/dro.xml a portal with a name"),
        ("a\nb", "a\nb", b"tnwgd: a?b /etc/dro.xml a\nb"),
    ],
)
def test_a_process_shows_its_name_before_its_arguments(name: str, comm: str, title: bytes) -> None:
    argv = [sys.executable, "-c", PROGRAM, "/etc/dro.xml", name]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"{comm}|{title!r}\n{['-c', '/etc/dro.xml', name]}\n"


def test_what_there_is_no_room_for_is_cut() -> None:
    program = (
        "from dro.bus.process_name import show_name; show_name('x' * 5000); print(open('/proc/self/cmdline').read())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shown = done.stdout.rstrip("\0\n")
    assert shown.startswith("tnwgd: xxx")
    assert len(shown) < len(sys.executable) + len(program) + 10

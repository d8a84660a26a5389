"""The line that comes first, whatever other threads have written before it."""

from __future__ import annotations

import io
import threading

from dro.tools.lbm.output import HeldOutput


def test_what_came_too_early_follows_the_first_line() -> None:
    sink = io.StringIO()
    out = HeldOutput(sink)
    out.write("a\n")
    out.flush()
    assert sink.getvalue() == ""
    out.begin("first\n")
    out.write("b\n")
    assert sink.getvalue() == "first\na\nb\n"


def test_no_line_of_another_thread_is_lost_or_too_early() -> None:
    sink = io.StringIO()
    out = HeldOutput(sink)
    started = threading.Event()

    def write() -> None:
        for number in range(5000):
            out.write(f"{number}\n")
            if number == 10:
                started.set()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    assert started.wait(60)
    out.begin("first\n")
    thread.join(60)
    assert sink.getvalue().splitlines() == ["first", *map(str, range(5000))]

"""What is drawn at which width and height: pure, from views that are made here."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from supervisor.tools.top.figures import DroFigures, Figures
from supervisor.tools.top.picture import SORTS, Look, fitting, on_key, picture, room, short
from supervisor.tools.top.sample import Complaint, ParentAnswer
from tests.builders.top_samples import P2, STATUS, portal, sample


def view(
    *, name: str = "NORTH", parent: ParentAnswer = ParentAnswer.ALIVE, extra: int = 0, problems: int = 1
) -> DroFigures:
    """P1 receives 250/s, P2 sends 3/s and drops 1/s; `extra` idle portals and `problems`."""
    figures = Figures()
    status = replace(STATUS, name=name)
    more = tuple(replace(portal("P1"), name=f"E{n}", index=10 + n) for n in range(extra))
    told = tuple(Complaint(f"c{n}", f"problem {n}: \x1b[31m{'x' * 200}") for n in range(problems))
    figures.take(sample(0.0, portal("P1"), portal("P2"), *more, status=status))
    after = (
        portal("P1", TOPIC_RCVD=500, TOPIC_RCVD_BYTES=100_000),
        portal("P2", SENT=6, SENT_BYTES=1200, DROPPED_SIZE=2, QUEUED_BYTES=900, RTT_SAMPLES=1, RTT_SUM=1234),
    )
    return figures.take(
        sample(2.0, *after, *more, status=status, cpu_s={P2: 0.5}, complaints=told, parent=parent)
    )  # fmt: skip


def drawn(shown: DroFigures, width: int, height: int | None = None, look: Look | None = None) -> list[str]:
    console = Console(width=width, height=height or 100, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(picture(shown, look or Look(), width, *([height] if height else [])))
    return [line.rstrip() for line in captured.get().splitlines()]


def row(lines: list[str], first: str, nth: int = 0) -> list[str]:
    return [line.split() for line in lines if line.split()[:1] == [first]][nth]


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("parent", [ParentAnswer.ALIVE, ParentAnswer.STOPPED, ParentAnswer.DEAD])
def test_no_line_is_wider_than_the_terminal_and_names_and_rates_are_there(width: int, parent: ParentAnswer) -> None:
    lines = drawn(view(parent=parent), width)
    assert max(map(cell_len, lines)) <= width
    rates = parent is not ParentAnswer.DEAD
    assert row(lines, "PORTAL")[:3] == ["PORTAL", "STATE", "RCVD/s" if rates else "RCVD"]
    assert row(lines, "P1")[2] == ("250" if rates else "500")
    assert row(lines, "PROCESS")[:2] == ["PROCESS", "STATE"]
    assert any(line.startswith("the parent (pid 100)") for line in lines) == (parent is not ParentAnswer.ALIVE)


def test_a_wide_terminal_has_every_column() -> None:
    lines = drawn(view(), 160)
    assert " ".join(row(lines, "PORTAL")) == (
        "PORTAL STATE RCVD/s BYTES/s SENT/s BYTES/s DROP/s REASON QUEUE RTT ms BLOCKED"
    )
    assert row(lines, "P2") == ["P2", "ready", "0", "0", "3", "600", "1", "size_error", "900", "1.23", "0%"]
    assert " ".join(row(lines, "PROCESS")) == "PROCESS STATE PID CPU % MEMORY RESTARTS LONGEST TURN ms"
    assert row(lines, "P1", 1) == ["P1", "ready", "102", "0.0", "1.05M", "0", "12.3"]
    assert row(lines, "P2", 1)[3] == "25.0"


def test_a_narrow_terminal_keeps_messages_drops_and_the_reason() -> None:
    assert row(drawn(view(), 60), "PORTAL") == ["PORTAL", "STATE", "RCVD/s", "SENT/s", "DROP/s", "REASON", "QUEUE"]
    assert "LONGEST" not in " ".join(drawn(view(), 40))


def test_totals_take_the_place_of_rates() -> None:
    lines = drawn(view(), 160, look=Look(totals=True))
    assert row(lines, "PORTAL")[2:8] == ["RCVD", "BYTES", "SENT", "BYTES", "DROP", "REASON"]
    assert row(lines, "P1")[2:4] == ["500", "100k"]


@pytest.mark.parametrize(
    ("sort", "order"),
    [("configuration", ["P1", "P2"]), ("received", ["P1", "P2"]), ("sent", ["P2", "P1"]), ("dropped", ["P2", "P1"]),
     ("queue", ["P2", "P1"]), ("CPU", ["P1", "P2"])],
)  # fmt: skip
def test_the_order_of_portals(sort: str, order: list[str]) -> None:
    lines = drawn(view(), 80, look=Look(sort=sort))
    begin = next(at for at, line in enumerate(lines) if line.startswith("PORTAL"))
    assert [line.split()[0] for line in lines[begin + 1 : begin + 3]] == order
    processes = [line.split()[0] for line in lines[begin + 5 : begin + 9]]
    assert processes[0] == ("P2" if sort == "CPU" else "tnwgd")


@pytest.mark.parametrize("height", [12, 24, 40])
@pytest.mark.parametrize("parent", [ParentAnswer.ALIVE, ParentAnswer.DEAD])
def test_a_picture_is_no_higher_than_the_terminal(height: int, parent: ParentAnswer) -> None:
    lines = drawn(view(extra=30, problems=20, parent=parent), 80, height)
    assert len(lines) <= height
    assert row(lines, "P1")
    assert row(lines, "PROCESS")
    assert any(re.fullmatch(r"\.\.\. \d+ more", line) for line in lines)


@pytest.mark.parametrize(
    ("portals", "processes", "problems", "lines", "expected"),
    [
        (2, 4, 1, 40, (2, 4, 1)),
        (200, 202, 9, 20, (7, 3, 3)),
        (2, 30, 9, 20, (2, 8, 3)),
        (200, 202, 0, 6, (1, 1, 0)),
    ],
)
def test_rows_share_what_room_there_is(
    portals: int, processes: int, problems: int, lines: int, expected: tuple[int, int, int]
) -> None:
    assert room(portals, processes, problems, lines) == expected


def test_names_from_elsewhere_move_no_cursor_and_are_no_markup() -> None:
    lines = drawn(view(name="[bold]N\x1b[2J\nX"), 160)
    assert lines[0].startswith("[bold]N\\x1b[2J\\x0aX  open-dro")
    assert not any("\x1b" in line for line in lines)


def test_problems_have_their_time_and_fit() -> None:
    lines = drawn(view(problems=1), 80)
    at = lines.index("PROBLEMS")
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines[at + 1 :])
    assert "problem 0: \\x1b[31mxxx" in lines[at + 3]
    assert lines[at + 3].endswith("…")


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "-"), (0, "0"), (0.4, "0.4"), (9.94, "9.9"), (9.96, "10"), (999, "999"), (999.6, "1.00k"), (1234, "1.23k"),
     (12_345, "12.3k"), (123_456, "123k"), (9_996, "10.0k"), (999_960, "1.00M"),
     (5e6, "5.00M"), (7.5e15, "7.50P"), (2**64 - 1, "18.4E")],
)  # fmt: skip
def test_numbers_are_short(number: float | None, text: str) -> None:
    assert short(number) == text


def test_columns_are_left_out_by_rank_and_the_first_is_cut() -> None:
    widths, ranks = [20, 5, 5, 5], [0, 0, 2, 1]
    assert fitting(widths, ranks, 100) == [0, 1, 2, 3]
    assert fitting(widths, ranks, 29) == [0, 1, 2, 3]
    assert fitting(widths, ranks, 28) == [0, 1, 3]
    assert fitting(widths, ranks, 10) == [0, 1]


def test_keys_change_the_look() -> None:
    look = Look()
    for expected in [*list(SORTS)[1:], "configuration"]:
        look = on_key(look, "s")
        assert look.sort == expected
    assert on_key(look, "p") == Look(paused=True)
    assert on_key(on_key(look, "p"), "p") == look
    assert on_key(look, "t") == Look(totals=True)
    assert on_key(look, "x") == look

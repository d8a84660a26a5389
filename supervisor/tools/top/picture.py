"""A view as tables for `rich`, as wide and as high as there is room; pure.

Columns that find no room are left out, the least important first; so are rows, with a line that counts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dro.clock import duration
from dro.log.lines import printable
from supervisor.admin.status import WORKING
from supervisor.tools.top.figures import FULL_PART, Count, DroFigures, PortalFigures, ProcessLine

NAME_MIN: Final = 8  # characters that are left of a name
GAP: Final = 2  # between columns
UNLIMITED: Final = 1 << 20
_LEAST_ROWS: Final = 3

L = TypeVar("L", PortalFigures, ProcessLine)


@dataclass(frozen=True, slots=True)
class Look:
    """What the viewer has chosen."""

    sort: str = "configuration"
    totals: bool = False
    paused: bool = False
    has_keys: bool = True


SORTS: Final[dict[str, Callable[[PortalFigures], float]]] = {
    "configuration": lambda p: 0,
    "received": lambda p: -(p.received.per_s or 0),
    "sent": lambda p: -(p.sent.per_s or 0),
    "dropped": lambda p: -(p.dropped.per_s or 0),
    "queue": lambda p: -p.queue_bytes,
    "CPU": lambda p: 0,
}
"""The orders of portals; "CPU" is one of processes."""


def on_key(look: Look, key: str) -> Look:
    """Return what the viewer wants to see behind that key."""
    match key:
        case "s":
            orders = list(SORTS)
            return replace(look, sort=orders[(orders.index(look.sort) + 1) % len(orders)])
        case "p":
            return replace(look, paused=not look.paused)
        case "t":
            return replace(look, totals=not look.totals)
        case _:
            return look


@dataclass(frozen=True, slots=True)
class ScreenColumn(Generic[L]):
    title: str
    cell: Callable[[L], str]
    rank: int = 0  # the highest is left out first; 0 stays
    style: Callable[[L], str] = lambda _line: ""
    is_text: bool = False


def short(number: float | None) -> str:
    """Write five characters at most: 950, 1.23k, 12.3M; a dash for what is not known."""
    if number is None:
        return "-"
    if 0 < number < 9.95 and number != int(number):
        return f"{number:.1f}"
    units = iter(" kMGTPE")
    unit = next(units)
    while float(f"{number:.3g}") >= 1000:
        number, unit = number / 1000, next(units)
    return f"{number:.0f}" if unit == " " else f"{number:#.3g}".rstrip(".") + unit


def _state_style(state: str) -> str:
    if state in ("dead", "ended"):
        return "bold red"
    return "" if state.split(" ")[0] in WORKING else "yellow"


def _portal_columns(view: DroFigures, *, totals: bool) -> list[ScreenColumn[PortalFigures]]:
    per = "" if totals else "/s"

    def count(of: Callable[[PortalFigures], Count]) -> Callable[[PortalFigures], str]:
        return lambda p: short(of(p).total if totals else of(p).per_s)

    def reason(p: PortalFigures) -> str:
        return p.reason_of_all if totals else p.reason

    return [
        ScreenColumn("PORTAL", lambda p: p.name, is_text=True),
        ScreenColumn("STATE", lambda p: p.state, style=lambda p: _state_style(p.state), is_text=True),
        ScreenColumn(f"RCVD{per}", count(lambda p: p.received)),
        ScreenColumn(f"BYTES{per}", count(lambda p: p.received_bytes), rank=4),
        ScreenColumn(f"SENT{per}", count(lambda p: p.sent)),
        ScreenColumn(f"BYTES{per}", count(lambda p: p.sent_bytes), rank=4),
        ScreenColumn(f"DROP{per}", count(lambda p: p.dropped), style=lambda p: "bold red" if p.dropped.per_s else ""),
        ScreenColumn("REASON", reason, rank=1, is_text=True),
        ScreenColumn("QUEUE", lambda p: short(p.queue_bytes), rank=2, style=_queue_style),
        ScreenColumn("RTT ms", lambda p: "-" if p.rtt_ms is None else f"{p.rtt_ms:.2f}", rank=3),
        ScreenColumn("BLOCKED", lambda p: "-" if p.blocked is None else f"{p.blocked:.0%}", rank=5),
    ]


def _queue_style(line: PortalFigures) -> str:
    return "bold red" if line.queue_limit and line.queue_bytes >= FULL_PART * line.queue_limit else ""


_PROCESS_COLUMNS: Final[list[ScreenColumn[ProcessLine]]] = [
    ScreenColumn("PROCESS", lambda p: p.name, is_text=True),
    ScreenColumn("STATE", lambda p: p.state, style=lambda p: _state_style(p.state), is_text=True),
    ScreenColumn("PID", lambda p: str(p.pid or "-"), rank=3),
    ScreenColumn("CPU %", lambda p: "-" if p.cpu_percent is None else f"{p.cpu_percent:.1f}"),
    ScreenColumn("MEMORY", lambda p: short(p.memory_bytes) if p.memory_bytes else "-", rank=1),
    ScreenColumn("RESTARTS", lambda p: str(p.restarts), style=lambda p: "yellow" if p.restarts else "", rank=2),
    ScreenColumn("LONGEST TURN ms", lambda p: f"{p.longest_turn_ms:.1f}" if p.longest_turn_ms else "-", rank=4),
]


def picture(view: DroFigures, look: Look, width: int, height: int = UNLIMITED) -> Group:
    """All of it in that many columns and lines."""
    totals = look.totals or view.is_dead
    portals = sorted(view.portals, key=SORTS[look.sort])  # keeps the order of equal ones
    processes = sorted(view.processes, key=lambda p: -(p.cpu_percent or 0) if look.sort == "CPU" else 0)
    head = list(_head(view, look, totals=totals))
    rows = room(len(portals), len(processes), len(view.problems), height - sum(_lines(line, width) for line in head))
    return Group(
        *head,
        *_table(_portal_columns(view, totals=totals), portals, rows[0], width),
        Text(""),
        *_table(_PROCESS_COLUMNS, processes, rows[1], width),
        *_problems(view, rows[2], width),
    )


def room(portals: int, processes: int, problems: int, lines: int) -> tuple[int, int, int]:
    """Share out rows to show; titles, gaps and lines that count the rest take some of `lines`."""
    left = lines - 5  # two titles of tables, a gap before each of the last two parts, the title of the problems
    if portals + processes + problems <= left:
        return portals, processes, problems
    left -= 2  # "... more" below the tables
    told = min(problems, _LEAST_ROWS)
    first = min(portals, max(left - told - min(processes, _LEAST_ROWS), 1))
    second = min(processes, max(left - told - first, 1))
    return first, second, min(problems, max(left - first - second, 0))


def _lines(line: Text, width: int) -> int:
    return max(1, -(-cell_len(line.plain) // width))


def _head(view: DroFigures, look: Look, *, totals: bool) -> Iterable[Text]:
    head = view.head
    yield Text.assemble(
        (printable(head.name), "bold"), f"  open-dro {printable(head.version)}  node {printable(head.node_id)}",
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip
    at = time.strftime("%H:%M:%S", time.localtime(view.clock_s))
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(head.start_s))
    up = f"started {started}" if head.uptime_s is None else f"up {duration(head.uptime_s)}"
    routes = "no routes yet" if head.routes < 0 else f"{head.routes} routes"
    age = "" if head.answer_age_s is None else f", answer {head.answer_age_s:.1f} s old"
    style = "bold red" if head.state == "dead" else "green" if head.state == "running" else "yellow"
    yield Text.assemble(
        (head.state, style), f", {up}, {routes}{age}, at {at}", (", paused" if look.paused else "", "yellow"),
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip
    if head.notice:
        yield Text(head.notice, "bold red")
    if look.has_keys:
        keys = f"q quit  s sort: {look.sort}  p pause  t {'totals' if totals else 'rates'}"
        yield Text(keys, "dim", no_wrap=True, overflow="ellipsis")


def _table(columns: Sequence[ScreenColumn[L]], lines: Sequence[L], count: int, width: int) -> Iterable[Table | Text]:
    shown = lines[:count]
    cells = [[printable(column.cell(line)) for line in shown] for column in columns]
    widths = [_width(column.title, texts) for column, texts in zip(columns, cells, strict=True)]
    kept = fitting(widths, [column.rank for column in columns], width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for at in kept:
        column = columns[at]
        is_name = at == 0
        table.add_column(
            column.title, justify="left" if column.is_text else "right", no_wrap=True, overflow="ellipsis",
            min_width=min(widths[at], NAME_MIN) if is_name else widths[at],
        )  # fmt: skip
    for row, line in enumerate(shown):
        table.add_row(*(Text(cells[at][row], columns[at].style(line)) for at in kept))
    yield table
    if len(lines) > count:
        yield Text(f"... {len(lines) - count} more", "dim")


def _width(title: str, texts: Sequence[str]) -> int:
    return max(cell_len(title), *(cell_len(text) for text in texts), 0)


def fitting(widths: Sequence[int], ranks: Sequence[int], width: int) -> list[int]:
    """The columns that find room; the first can be cut to a part of its width."""
    kept = list(range(len(widths)))

    def needed() -> int:
        first = min(widths[0], NAME_MIN)
        return first + sum(widths[at] for at in kept[1:]) + GAP * (len(kept) - 1)

    for rank in range(max(ranks), 0, -1):
        if needed() > width:
            kept = [at for at in kept if ranks[at] != rank]
    return kept


def _problems(view: DroFigures, count: int, width: int) -> Iterable[Text]:
    if not view.problems or not count:
        return
    yield Text("")
    yield Text("PROBLEMS" if len(view.problems) <= count else f"PROBLEMS, {count} of {len(view.problems)}", "bold")
    for problem in view.problems[:count]:
        at = time.strftime("%H:%M:%S", time.localtime(problem.since_s))
        style = "dim" if problem.is_over else ""
        yield Text(f"{at}  {printable(problem.text)}", style, no_wrap=width < UNLIMITED, overflow="ellipsis")

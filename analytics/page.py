"""Makes one page of all answers that needs nothing else: charts, the tables behind them, and what matters first."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

from jinja2 import Environment, PackageLoader
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.charts import LINES, Row, svg
from analytics.questions import Question

SHOWN: Final = 100
"""Rows of a table on the page; `tnwgd-report NAME --csv` has all."""


MOST: Final = 5000
"""Rows that are looked at one by one; of more, a chart has those of the greatest values."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The first rows of an answer, how many there are, and those that are drawn."""

    question: Question
    names: Sequence[str]
    rows: Sequence[Row]
    total: int
    drawn: Sequence[Row]

    @property
    def image(self) -> str:
        """Return the chart as an address that holds all of it; empty when there is none."""
        made = svg(self.question.chart, self.drawn, self.question.asks) if self.question.chart else b""
        return f"data:image/svg+xml;base64,{base64.b64encode(made).decode()}" if made else ""

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        """The first rows, each value as text."""
        return [[text(row[name]) for name in self.names] for row in self.rows[:SHOWN]]


def answer_of(question: Question, found: DataFrame) -> Answer:
    """Collect what a page shows of an answer, however many rows it has."""
    rows = [row.asDict() for row in found.limit(MOST + 1).collect()]
    if len(rows) <= MOST:
        return Answer(question, found.columns, rows, len(rows), rows)
    drawn: list[Row] = []
    if (chart := question.chart) is not None and chart.series:
        height = F.max(F.abs(chart.y)).alias("height")
        greatest = found.groupBy(*chart.series).agg(height).orderBy(F.desc("height"), *chart.series).limit(LINES)
        same = [found[name].eqNullSafe(greatest[name]) for name in chart.series]
        drawn = [row.asDict() for row in found.join(greatest, same, "left_semi").collect()]
    return Answer(question, found.columns, rows[:SHOWN], found.count(), drawn or rows[:MOST])


def text(value: object) -> str:
    """Say a value as a person reads it: times to the second, numbers with groups of three digits."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"  # Spark gives local times
        case date():
            return value.isoformat()
        case int():
            return f"{value:,}"
        case float() | Decimal():
            value = float(value)
            return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        case _:
            return str(value)


def page(
    history: str,
    address: str,
    summary: Sequence[tuple[str, str]],
    answers: Sequence[Answer],
    lacks: Sequence[str] = (),
) -> str:
    """Make the page. `history`: its name, `address`: where it is; `summary`: what a manager reads first, as pairs of a
    measure and its value; `lacks`: what the answers do not show."""
    environment = Environment(loader=PackageLoader("analytics", "templates"), autoescape=True, trim_blocks=True,
                              lstrip_blocks=True)  # fmt: skip
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template("page.html").render(
        history=history, address=address, made=made, summary=summary, answers=answers, lacks=lacks, most=SHOWN
    )


def summary_of(totals: Row, answers: Sequence[Answer]) -> list[tuple[str, str]]:
    """Say the few figures that stand for all: traffic, losses, outages, what to look at."""
    rows = {answer.question.name: answer.rows for answer in answers}
    totals_of = {answer.question.name: answer.total for answer in answers}
    full = [row for row in rows["link-capacity"] if row["full_on"] is not None]
    outages = rows["outage-cost"]
    worst = f" (the dearest: {outages[0]['what']}, {text(outages[0]['begin'])} UTC)" if outages else ""
    received, dropped = totals["received"] or 0, totals["dropped"] or 0
    return [
        ("Days", f"{totals['days']} ({totals['first_day']} to {totals['last_day']})"),
        ("DROs and portals", f"{totals['dros']} and {totals['portals']}"),
        ("Messages received", text(received)),
        ("Messages dropped, without duplicates", f"{text(dropped)} ({dropped / received if received else 0:.4%})"),
        ("Portals up", f"{totals['up']:.4%} of the samples" if totals["up"] is not None else "-"),
        ("Outages and restarts", f"{totals_of['outage-cost']:,}{worst}"),
        ("Times of blocked sends", text(totals_of["blocked"])),
        ("Links that will be full", text(len(full)) + (f" (first: {full[0]['dro']} {full[0]['portal']}, "
                                                     f"{full[0]['full_on']})" if full else "")),
        ("Hours unlike earlier weeks", text(totals_of["anomalies"])),
        ("Portals without traffic or receivers", text(totals_of["idle-portals"])),
    ]  # fmt: skip

"""Run `tnwgd-report`: answer questions about the history of DROs from its gold tables."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.checks import FRESH_S, coverage, freshness, sums
from analytics.questions import QUESTIONS, Gold, totals, unseen
from analytics.session import positive, run
from analytics.store.errors import HistoryError
from analytics.store.objects import ObjectStore
from analytics.views import LINE_RATE, tables_of

LINES: Final = 20
CHECK: Final = "check"


def gold_of(spark: SparkSession, history: ObjectStore, options: argparse.Namespace) -> Gold:
    """Give gold tables of the days and DROs that the options ask for. Raises: HistoryError, when one is missing."""
    tables = tables_of(spark, history, options.line_rate)

    def table(name: str) -> DataFrame:
        found = tables(name)
        time = next((of for of in ("day", "hour", "begin", "at") if of in found.columns), "")
        day = F.to_date(time) if time else None
        if day is not None and options.start:
            found = found.where(day >= F.lit(options.start))
        if day is not None and options.end:
            found = found.where(day <= F.lit(options.end))
        if options.dro:
            chosen = F.lit(False)
            for of in ("dro", "a_dro", "b_dro"):
                if of in found.columns:
                    chosen |= F.col(of).isin(options.dro)
            if "ends" in found.columns:
                chosen |= F.exists("ends", lambda end: end.dro.isin(options.dro)) | (F.size("ends") == 0)
            found = found.where(chosen)
        return found

    return table


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    parser = arguments()
    options = parser.parse_args(given)
    if options.name == "list":
        for question in QUESTIONS.values():
            print(f"{question.name:24} {question.asks}")
        print(f"{CHECK:24} Is the history itself right?")
        return 0
    if options.history is None:
        parser.error("--history is missing")
    if options.name == CHECK and options.html is not None:
        parser.error("check is no page: --html without effect")
    if options.start and options.end and options.start > options.end:
        parser.error(f"--from {options.start} is after --to {options.end}")
    if options.name == "all" and options.html is None:
        parser.error("all answers at once are a page: --html DIR is missing")
    if options.html is not None:
        try:
            options.html.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            parser.error(f"--html {options.html}: {e.strerror}: name a directory that can be written")

    def work(spark: SparkSession) -> int:
        gold = gold_of(spark, options.history, options)
        _check_dros(spark, options)
        lacks = unseen(gold)
        for line in shortened(lacks):
            print(f"tnwgd-report: not seen: {line}", file=sys.stderr)
        if options.name == CHECK:
            return _check(spark, gold, lacks, options)
        if options.html is None:
            _print(QUESTIONS[options.name].answer(gold), options.json)
        else:
            print(_write_page(gold, options, shortened(lacks)))
        return 0

    return run("tnwgd-report", options.master, work)


def _check_dros(spark: SparkSession, options: argparse.Namespace) -> None:
    """Refuse DROs that there are not. Raises: HistoryError."""
    if options.dro:
        tables = tables_of(spark, options.history)
        known = sorted(row["dro"] for row in tables("day").select("dro").distinct().collect())
        if unknown := set(options.dro) - set(known):
            there = ", ".join(shortened(known)) or "none"
            raise HistoryError(f"{options.history.shown()}: no DRO {min(unknown)}; there are {there}")


def _check(spark: SparkSession, gold: Gold, lacks: Sequence[str], options: argparse.Namespace) -> int:
    """Print what was checked; the exit status is 1 when something is wrong."""
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    found = [
        *sums(spark, options.history, gold, str(min(options.end or yesterday, yesterday)), options.dro or ()),
        *coverage(gold, lacks),
        *freshness(gold, time.time_ns() // 1000, options.fresh),
    ]  # fmt: skip
    rows = [result.row() for result in found]
    if options.json:
        print(json.dumps(rows, indent=0))
    else:
        writer = csv.DictWriter(sys.stdout, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    return int(any(result.is_right is False for result in found))


def shortened(lines: Sequence[str]) -> list[str]:
    """Give the first lines, and say how many more there are."""
    return [*lines[:LINES], *([f"and {len(lines) - LINES} more"] if len(lines) > LINES else [])]


def _print(answer: DataFrame, is_json: bool) -> None:
    names, rows = answer.columns, (tuple(row) for row in answer.toLocalIterator())
    if is_json:
        print("[")
        for nth, row in enumerate(rows):
            print("," * (nth > 0) + json.dumps(dict(zip(names, map(_plain, row), strict=True))))
        print("]")
    else:
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows([_plain(value) for value in row] for row in rows)


def _write_page(gold: Gold, options: argparse.Namespace, lacks: Sequence[str]) -> Path:
    """Write the page of the questions; where it is."""
    from analytics.page import answer_of, page, summary_of

    chosen = QUESTIONS.values() if options.name == "all" else [QUESTIONS[options.name]]
    answers = []
    for nth, question in enumerate(chosen, 1):
        answers.append(answer_of(question, question.answer(gold)))
        print(f"{nth} of {len(chosen)} questions", file=sys.stderr)
    summary = summary_of(totals(gold), answers) if options.name == "all" else []
    path: Path = options.html / "index.html"
    path.write_text(page(_name_of(options.history), quote(options.history.shown()), summary, answers, lacks))
    return path


def _name_of(history: ObjectStore) -> str:
    return history.folder.resolve().name if history.folder else history.shown()


def _plain(value: object) -> object:
    """Give what JSON and CSV have: Spark gives times as those of this machine's time zone."""
    if isinstance(value, datetime):
        value = value.astimezone(UTC)
    return value.isoformat() if isinstance(value, date) else value


def _day(text: str) -> date:
    try:
        if (day := date.fromisoformat(text)).year >= 1970:
            return day
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no day since 1970, such as 2024-02-29")


def arguments() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="tnwgd-report", description="Answer questions about the history of DROs.")
    names = ["list", "all", CHECK, *QUESTIONS]
    parser.add_argument("name", metavar="NAME", choices=names,
                        help="a question, all, or check: of the history itself; `list` names them")  # fmt: skip
    parser.add_argument("--history", metavar="DIR", type=ObjectStore, help="directory or URI of the history")
    parser.add_argument("--from", dest="start", metavar="DAY", type=_day, help="first day (UTC)")
    parser.add_argument("--to", dest="end", metavar="DAY", type=_day, help="last day")
    parser.add_argument("--dro", metavar="NAME", action="append", help="of these DROs alone")
    rate = "bytes a second that a link takes, for forecasts (default 125000000, 1 Gbit/s)"
    parser.add_argument("--line-rate", metavar="BYTES", type=positive, default=LINE_RATE, help=rate)
    parser.add_argument("--fresh", metavar="SECONDS", type=positive, default=FRESH_S,
                        help="how old the last sample of a DRO may be, for check (default %(default)g)")  # fmt: skip
    parser.add_argument("--master", default="", help="of Spark (default local[*])")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true")
    shape.add_argument("--csv", action="store_true", help="this is the default")
    shape.add_argument("--html", metavar="DIR", type=Path, help="write DIR/index.html, a page that needs nothing else")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Run `tnwgd-report`: answer questions about the history of DROs from its gold tables."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from analytics.files import HistoryError
from analytics.questions import QUESTIONS, Gold
from analytics.session import NoJavaError, spark_session


def gold_of(spark: SparkSession, history: Path, options: argparse.Namespace) -> Gold:
    """Give gold tables of the days and DROs that the options ask for. Raises: HistoryError, when one is missing."""

    def table(name: str) -> DataFrame:
        path = history / "gold" / name
        if not path.is_dir():
            raise HistoryError(f"{path} is not there: run `tnwgd-aggregate --history {history}` first")
        found = spark.read.option("mergeSchema", "true").parquet(str(path))
        if options.start:
            found = found.where(found.day >= options.start.isoformat())
        if options.end:
            found = found.where(found.day <= options.end.isoformat())
        return found.where(found.dro.isin(options.dro)) if options.dro else found

    return table


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    parser = arguments()
    options = parser.parse_args(given)
    if options.name == "list":
        for question in QUESTIONS.values():
            print(f"{question.name:24} {question.asks}")
        return 0
    if options.history is None:
        parser.error("--history is missing")
    try:
        with spark_session("tnwgd-report", options.master) as spark:
            answer = QUESTIONS[options.name].answer(gold_of(spark, options.history, options))
            names, rows = answer.columns, [tuple(row) for row in answer.collect()]
    except (HistoryError, NoJavaError) as e:
        print(f"tnwgd-report: {e}", file=sys.stderr)
        return 1
    if options.json:
        json.dump([dict(zip(names, map(_plain, row), strict=True)) for row in rows], sys.stdout, indent=1)
        print()
    else:
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows([_plain(value) for value in row] for row in rows)
    return 0


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, date | datetime) else value


def arguments() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="tnwgd-report", description="Answer questions about the history of DROs.")
    parser.add_argument("name", metavar="NAME", choices=["list", *QUESTIONS], help="a question; `list` names them")
    parser.add_argument("--history", metavar="DIR", type=Path, help="directory of the history")
    parser.add_argument("--from", dest="start", metavar="DAY", type=date.fromisoformat, help="first day (UTC)")
    parser.add_argument("--to", dest="end", metavar="DAY", type=date.fromisoformat, help="last day")
    parser.add_argument("--dro", metavar="NAME", action="append", help="of these DROs alone")
    parser.add_argument("--master", default="", help="of Spark (default local[*])")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true")
    shape.add_argument("--csv", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())

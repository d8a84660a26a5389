"""Run a program of `analytics` under spark-submit: run.py aggregate|report|history-generate ARGUMENT..."""

import sys
from importlib import import_module

PROGRAMS = {"aggregate": "analytics.aggregate", "report": "analytics.report", "history-generate": "analytics.generate"}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
        sys.exit(f"run.py: name one of {', '.join(PROGRAMS)}")
    sys.exit(import_module(PROGRAMS[sys.argv[1]]).main(sys.argv[2:]))

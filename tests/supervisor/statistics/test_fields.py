"""Every published field is moved by something, or listed with the reason why nothing moves it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

from dro.metrics.library import library_figures

GOLDEN: Final = Path(__file__).parents[2] / "golden"
PATHS: Final = {
    ("source_transport", "tcp"): "UMSMonMsg.Stats.SourceTransport.TCP",
    ("source_transport", "lbtrm"): "UMSMonMsg.Stats.SourceTransport.LBTRM",
    ("receiver_transport", "tcp"): "UMSMonMsg.Stats.ReceiverTransport.TCP",
    ("receiver_transport", "lbtrm"): "UMSMonMsg.Stats.ReceiverTransport.LBTRM",
    ("context", ""): "UMSMonMsg.Stats.Context",
    ("event_queue", ""): "UMSMonMsg.Stats.EventQueue",
}
MOVED_BY: Final = {
    "DROMonMsg": "tests/supervisor/statistics/test_dro_stats.py, tests/daemon/test_statistics.py",
    "UMMonAttributes": "tests/lbmmon/test_packet.py",
    "UMMonControlMsg": "tests/daemon/test_statistics.py",
    "UMSMonMsg.attributes": "tests/lbmmon/test_packet.py",
    "UMSMonMsg.stats": "tests/lbmmon/test_packet.py",
    **{f"UMSMonMsg.Stats.{name}": "tests/lbmmon/test_packet.py" for name in ("SourceTransport", "ReceiverTransport")},
    **{f"UMSMonMsg.Stats.{name}": "tests/daemon/test_statistics.py" for name in
       ("source_transports", "receiver_transports", "context", "event_queues")},
}  # fmt: skip
"""What moves fields that are no figures, by the beginning of their paths."""


def is_in(path: str, listed: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:n]) in listed for n in range(1, len(parts) + 1))


def test_every_field_is_moved_or_has_a_reason() -> None:
    rows = list(csv.DictReader((GOLDEN / "proto-fields.csv").read_text().splitlines()))
    reasons = {
        row["path"]: row["reason"]
        for row in csv.DictReader((GOLDEN / "proto-fields-unmoved.csv").read_text().splitlines())
    }
    assert all(reasons.values())
    figures = {
        f"{path}.{figure.name}": figure.why_zero for key, path in PATHS.items() for figure in library_figures()[key]
    }
    unknown = []
    for row in rows:
        path = f"{row['message path']}.{row['field name']}"
        if row["message path"] in PATHS.values():
            assert path in figures, f"{path} is in no row"
        elif not is_in(path, {*reasons, *MOVED_BY}):
            unknown.append(path)
    assert len(rows) == 522
    assert unknown == []
    moved = [name for name, why in figures.items() if not why]
    assert len(moved) > 50


def test_reasons_are_of_fields_that_are_there() -> None:
    rows = list(csv.DictReader((GOLDEN / "proto-fields.csv").read_text().splitlines()))
    paths = {f"{row['message path']}.{row['field name']}" for row in rows} | {row["message path"] for row in rows}
    for row in csv.DictReader((GOLDEN / "proto-fields-unmoved.csv").read_text().splitlines()):
        assert row["path"] in paths, row["path"]

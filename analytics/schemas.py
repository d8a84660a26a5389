"""Remembers the columns of the tables that are made, beside their files: a table may have no rows, or older files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pyspark.sql import types as T

from analytics.files import HistoryError, replace_text

_NAME: Final = "_schema.json"
"""Spark takes no notice of a file that is called like this."""


def add_schema(base: Path, schema: T.StructType) -> None:
    """Remember the columns of a table beside those that it had before."""
    path = base / _NAME
    known = schema_of(base).fields if path.exists() else []
    names = {field.name for field in known}
    fields = [*known, *(field for field in schema.fields if field.name not in names)]
    if known and len(fields) == len(known):
        return
    base.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(T.StructType(fields).jsonValue()))


def schema_of(base: Path) -> T.StructType:
    """Give all columns of a table. Raises: HistoryError when it was never made."""
    try:
        return T.StructType.fromJson(json.loads((base / _NAME).read_text()))
    except OSError:
        raise HistoryError(f"{base} is not there: run `tnwgd-aggregate --history {base.parents[1]}` first") from None

"""One Spark session for all tests of a process: it takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from analytics.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("tests", "local[2]", {"spark.sql.shuffle.partitions": "2"}) as session:
        yield session

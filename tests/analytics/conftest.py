"""One Spark session for all tests of a module, and no Java after it: it takes ten seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from analytics.session import spark_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session("tests", "local[2]", {"spark.sql.shuffle.partitions": "2"}) as session:
        gateway = SparkContext._gateway
        assert gateway is not None
        for thread in os.listdir(f"/proc/{gateway.proc.pid}/task"):  # tests beside these measure time
            os.setpriority(os.PRIO_PROCESS, int(thread), 5)
        yield session
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None

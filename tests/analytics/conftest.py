"""One Spark session for all tests of this folder: it takes ten seconds to start, and gets faster with each plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from analytics.session import spark_session

# Each plan runs once, on few rows: what makes code fast for many of them would be most of the time.
SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=400m -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("tests", "local[2]", SETTINGS) as session:
        gateway = SparkContext._gateway
        assert gateway is not None
        for thread in os.listdir(f"/proc/{gateway.proc.pid}/task"):  # tests beside these measure time
            os.setpriority(os.PRIO_PROCESS, int(thread), 5)
        yield session
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None

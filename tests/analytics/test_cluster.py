"""The job on a standalone cluster, by spark-submit as `deploy/spark` says: gold as of a job on this machine."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark
import pytest
from pyspark.sql import SparkSession

from analytics.aggregate import aggregate
from analytics.session import java_home
from analytics.store.objects import ObjectStore
from tests.analytics.coming import Coming, gold
from tests.rigs.object_store import bucket, upload
from tests.rigs.site import ROOT
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SPARK: Final = Path(pyspark.__file__).parent
HOST: Final = "127.0.0.1"
WORKERS: Final = 2


@contextmanager
def daemon(folder: Path, name: str, environment: dict[str, str], arguments: Sequence[str]) -> Iterator[Path]:
    """Run one of Spark's daemons; where it logs."""
    log = folder / f"{name}.log"
    command = [str(SPARK / "bin/spark-class"), *arguments]
    with log.open("wb") as to:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=to, stderr=to)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(60)


def found_in(log: Path, pattern: str) -> str:
    """Wait until a log says something, and give the part that is asked for."""
    wait_until(lambda: re.search(pattern, log.read_text()), f"{pattern} in {log.name}", 60, log.read_text)
    found = re.search(pattern, log.read_text())
    assert found is not None
    return found[1]


def test_a_cluster_of_two_workers_makes_the_same_gold(spark: SparkSession, tmp_path: Path) -> None:
    coming = Coming(random.Random(3), 3, days=1.2)
    for nth in range(3):
        coming.write(tmp_path / "here", nth)
    aggregate(spark, ObjectStore(str(tmp_path / "here")))
    shutil.copytree(tmp_path / "here", tmp_path / "sent", ignore=shutil.ignore_patterns("gold", "silver"))
    environment = {**os.environ, "JAVA_HOME": java_home(tmp_path), "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": HOST,
                   "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}  # fmt: skip
    pack = subprocess.run([ROOT / "deploy/spark/package.sh", tmp_path / "analytics.zip"], check=True,
                          capture_output=True, text=True).stdout.strip()  # fmt: skip
    with ExitStack() as running:
        uri = running.enter_context(bucket())
        upload(tmp_path / "sent", uri)
        master = ["org.apache.spark.deploy.master.Master", "--host", HOST, "--port", "0", "--webui-port", "0"]
        log = running.enter_context(daemon(tmp_path, "master", environment, master))
        address = found_in(log, r"Starting Spark master at (spark://[\d.]+:\d+)")
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", HOST, "--port", "0", "--webui-port", "0",
                  "--cores", "1", "--memory", "600m"]  # fmt: skip
        for nth in range(WORKERS):
            of = [*worker, "--work-dir", str(tmp_path / f"work-{nth}"), address]
            found_in(
                running.enter_context(daemon(tmp_path, f"worker-{nth}", environment, of)), "(Successfully registered)"
            )
        submitted = subprocess.run(
            [SPARK / "bin/spark-submit", "--master", address, "--py-files", pack,
             "--conf", "spark.executor.memory=512m",
             "--conf", "spark.executor.cores=1", ROOT / "deploy/spark/run.py", "aggregate", "--history", uri],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert submitted.returncode == 0, submitted.stderr
        assert log.read_text().count("Launching executor") >= WORKERS, log.read_text()
        found, wanted = gold_of(uri, tmp_path / "got"), gold(tmp_path / "here")
    assert found.keys() == wanted.keys()
    differs = {name: sorted({*rows} ^ {*wanted[name]})[:4] for name, rows in found.items() if rows != wanted[name]}
    assert differs == {}, submitted.stderr


def gold_of(uri: str, to: Path) -> dict[str, list[str]]:
    """Give what gold has in a store, by way of a copy."""
    store = ObjectStore(uri)
    for one in store.objects("gold"):
        path = to / one.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.read(one.path))
    return gold(to)

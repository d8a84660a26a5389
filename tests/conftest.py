"""What every test may rely on: markers that name what a test needs, and the `net` fixture.

A test whose needs are not met is skipped with the reason. With the environment variable DRO_REQUIRE_ALL=1 no skip is
accepted: each becomes a failure, so a continuous integration run cannot pass by leaving tests out.
"""

from __future__ import annotations

import functools
import gc
import logging
import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import hypothesis
import pytest

from dro.log import limits
from dro.log.events import LogEvent
from dro.log.lines import MARKED

if TYPE_CHECKING:
    from tests.rigs.netns.harness import Net

pytest_plugins = ("tests.fakes.loopback", "tests.lanes", "tests.order", "tests.flaky")

TOOLS: Final = {"netns": ("ip", "nft", "bridge", "setpriv"), "tshark": ("tshark", "dumpcap"),
                "chromium": ("chromium", "chromedriver"), "prometheus": ("prometheus", "promtool"),
                "systemd": ("systemd-analyze",),
                "man": ("man",),
                "debian": ("mmdebstrap", "chrpath", "dpkg-deb", "nsenter", "ip")}  # fmt: skip

# A deadline measures the machine. Where every test must run, each run tries the same examples; elsewhere new ones.
hypothesis.settings.register_profile(
    "project",
    deadline=None,
    max_examples=int(os.environ.get("DRO_EXAMPLES", "50")),
    derandomize=os.environ.get("DRO_REQUIRE_ALL") == "1",
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("project")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Files get just the rights that their makers give them."""
    before = os.umask(0)
    yield
    os.umask(before)


_make_record = logging.Logger.makeRecord


DESCRIPTORS_MOST: Final = 256
"""Portals of a test are freed with their sockets by the cycle collector; `select` takes no descriptor above 1,023."""
_descriptors_left = 0


def check_event(event: LogEvent, level: int, fields: Mapping[str, object]) -> None:
    """Raises: AssertionError for a severity or fields that are not those of the event."""
    assert event.level in (None, level), f"{event.name} is logged with level {level}"
    given = fields.keys() - {MARKED}
    assert event.fields <= given, f"{event.name} is logged without {event.fields - given}"
    more = given - event.fields - event.optional
    assert not more or "*" in event.optional, f"{event.name} is logged with {more}"


def _make_checked_record(
    self: logging.Logger, name: str, level: int, fn: str, lno: int, msg: object, args: Any, exc_info: Any,  # noqa: ANN401  as in logging
    func: str | None = None, extra: Mapping[str, object] | None = None, sinfo: str | None = None,
) -> logging.LogRecord:  # fmt: skip
    if isinstance(msg, LogEvent) and not fn.startswith(os.path.dirname(__file__)):
        check_event(msg, level, extra or {})
    return _make_record(self, name, level, fn, lno, msg, args, exc_info, func, extra, sinfo)


logging.Logger.makeRecord = _make_checked_record  # type: ignore[method-assign]  # every call of every test


@functools.cache
def missing(need: str) -> str:
    """Why tests that carry a marker cannot run here; empty when they can."""
    absent = [tool for tool in TOOLS[need] if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if need not in ("netns", "debian"):
        return ""
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"network namespaces cannot be made: {probe.stderr.strip()}" if probe.returncode else ""


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What is there by now stays: a collection that looks at all of it again and again is a tenth of the time."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_runtest_setup(item: pytest.Item) -> None:
    reasons = [reason for need in TOOLS if item.get_closest_marker(need) and (reason := missing(need))]
    if reasons:
        pytest.skip("; ".join(reasons))
    limits.forget_limited()  # what an earlier test of the process has logged does not count


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A child process that a failed test left would be waited for when the worker ends, and could keep it for ever."""
    for child in multiprocessing.active_children():
        child.kill()
    _free_descriptors()


def _free_descriptors() -> None:
    """Collect also what tests of the collector have frozen, when descriptors have become many since the last time."""
    global _descriptors_left
    if len(os.listdir("/proc/self/fd")) > _descriptors_left + DESCRIPTORS_MOST:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _descriptors_left = len(os.listdir("/proc/self/fd"))


def _is_strict() -> bool:
    return os.environ.get("DRO_REQUIRE_ALL") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _is_strict() and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but DRO_REQUIRE_ALL=1: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if _is_strict() and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid}: skipped, but DRO_REQUIRE_ALL=1: {report.longrepr}"
    return report


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    """An empty network; the test must carry the marker `netns`."""
    from tests.rigs.netns.harness import Net

    with Net(tmp_path) as network:
        yield network

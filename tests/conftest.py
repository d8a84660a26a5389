"""What every test may rely on: markers that name what a test needs, and the `net` fixture.

A test whose needs are not met is skipped with the reason. With the environment variable DRO_REQUIRE_ALL=1 no skip is
accepted: each becomes a failure, so a continuous integration run cannot pass by leaving tests out.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.netns.harness import Net

TOOLS: Final = {"netns": ("ip", "nft", "bridge", "setpriv"), "tshark": ("tshark", "dumpcap")}

# A deadline measures the machine. Where every test must run, each run tries the same examples; elsewhere new ones.
hypothesis.settings.register_profile(
    "project",
    deadline=None,
    derandomize=os.environ.get("DRO_REQUIRE_ALL") == "1",
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("project")


@functools.cache
def missing(need: str) -> str:
    """Why tests that carry a marker cannot run here; empty when they can."""
    absent = [tool for tool in TOOLS[need] if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if need != "netns":
        return ""
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"network namespaces cannot be made: {probe.stderr.strip()}" if probe.returncode else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    reasons = [reason for need in TOOLS if item.get_closest_marker(need) and (reason := missing(need))]
    if reasons:
        pytest.skip("; ".join(reasons))


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
    from tests.netns.harness import Net

    with Net(tmp_path) as network:
        yield network

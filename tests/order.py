"""Puts modules of tests into the order in which they begin, and gives them to workers: a plug-in of pytest."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.lanes import TESTS, Lane, lane_of
from tests.rigs.effort import IS_LONG

ANALYTICS: Final = "tests/analytics/"
ALONE: Final = frozenset(("test_commands.py", "test_files.py", "test_kills.py", "test_silver.py"))
"""Names those of it that use no session of the tests."""
SLOW: Final = 10
"""How many other tests of its module a slow one is as long as."""


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # of no type that mypy knows
    """Gives a worker the tests of a file, or all of the folder whose tests share a Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return ANALYTICS if file.startswith(ANALYTICS) and file.removeprefix(ANALYTICS) not in ALONE else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    return _Scheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tests", help="the tests of a file alone: a line for each module, or each node id")


@functools.cache
def _chosen(file: str) -> frozenset[str]:
    return frozenset(Path(file).read_text(encoding="utf-8").splitlines())


@functools.cache
def _chosen_modules(file: str) -> frozenset[str]:
    return frozenset(line.partition("::")[0] for line in _chosen(file))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules of which no test is chosen."""
    if config.option.tests is None or not collection_path.name.startswith("test_"):
        return None
    return collection_path.relative_to(TESTS.parent).as_posix() not in _chosen_modules(config.option.tests) or None


def _is_left_out(item: pytest.Item) -> bool:
    if item.get_closest_marker("long") and not IS_LONG:
        return True
    file = item.config.option.tests
    return file is not None and _chosen(file).isdisjoint((item.nodeid, item.nodeid.partition("::")[0]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not chosen or only a long run tries, and put modules into the order in which they begin."""
    left_out = [item for item in items if _is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not _is_left_out(item)]
    place = {path: nth for nth, path in enumerate(_ordered_modules(items))}
    items.sort(key=lambda item: place[item.path])


def _ordered_modules(items: Iterable[pytest.Item]) -> list[Path]:
    """Give the modules in the order in which they begin.

    Tests with processes wait for half of their time and others compute, so these stand between those, one after each.
    The longest come first, so that none begins when the other workers have nothing left to do. The lane of delivery is
    the last, and in it Spark the first, as one worker has all of that.
    """
    weights: Counter[Path] = Counter()
    for item in items:
        weights[item.path] += SLOW if item.get_closest_marker("slow") else 1
    by_lane = {lane: [path for path in weights if lane_of(path) is lane] for lane in Lane}
    waiting = sorted(by_lane[Lane.PROCESSES], key=weights.__getitem__, reverse=True)
    computing = sorted(by_lane[Lane.LOOPBACK] + by_lane[Lane.FAST], key=weights.__getitem__, reverse=True)
    mixed = itertools.zip_longest(waiting, computing)
    delivered = sorted(by_lane[Lane.DELIVERY], key=lambda path: (path.parent.name != "analytics", -weights[path]))
    return [path for pair in mixed for path in pair if path is not None] + delivered

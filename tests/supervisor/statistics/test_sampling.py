"""Statistics of the daemon that have not changed are left out, but not those that were dropped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dro.bus.kept_bytes import KeptBytes
from dro.lbmmon.binary import binary_messages
from supervisor.statistics.intervals import MALLOC_INFO, TOPOLOGY, DueGroup
from supervisor.statistics.sampling import Sampling
from tests.builders.statistics import dro_message


@pytest.fixture
def sampling() -> Sampling:
    daemon = SimpleNamespace(monitor=None, daemon_monitor=None)
    config: Any = SimpleNamespace(daemon=daemon, all_portals=(), peers=())
    nothing: Any = None
    return Sampling(nothing, config, KeptBytes(), lambda: "", lambda _: None, lambda _: None)


def sent(sampling: Sampling, message: Any, group: str, *, time_ns: int, is_forced: bool = False) -> list[bytes]:  # noqa: ANN401
    messages = binary_messages(message, group, time_ns=time_ns)
    return list(sampling._changed(messages, DueGroup(group, is_forced=is_forced)))


def test_what_has_not_changed_is_sent_by_a_snapshot_alone(sampling: Sampling) -> None:
    made = dro_message()
    assert len(sent(sampling, made, MALLOC_INFO, time_ns=1)) == 1
    assert sent(sampling, made, MALLOC_INFO, time_ns=2) == []
    assert len(sent(sampling, made, MALLOC_INFO, time_ns=3, is_forced=True)) == 1
    made.stats.local.malloc_info.arena += 1
    assert len(sent(sampling, made, MALLOC_INFO, time_ns=4)) == 1


def test_what_was_dropped_is_sent_again(sampling: Sampling) -> None:
    made = dro_message()
    assert len(sent(sampling, made, MALLOC_INFO, time_ns=1)) == 1
    sampling.forget_sent()
    assert len(sent(sampling, made, MALLOC_INFO, time_ns=2)) == 1


def test_another_dro_goes_with_its_neighbours_and_its_age_is_no_change(sampling: Sampling) -> None:
    made = dro_message()
    first = sent(sampling, made, TOPOLOGY, time_ns=10**18)
    assert len(first) > 3
    assert sent(sampling, made, TOPOLOGY, time_ns=10**18 + 10**10) == [], "it is older, and nothing else"
    other = made.stats.other_gateways[0]
    other.other_portals[0].cost += 1
    again = sent(sampling, made, TOPOLOGY, time_ns=10**18 + 10**10)
    assert len(again) == 1 + len(other.other_portals)

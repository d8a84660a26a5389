"""LBT-IPC source: who may join, what has to stay for receivers, when messages of life are due."""

from __future__ import annotations

from dro.clock import s
from dro.proto.lbtipc.source import IpcSourceConfig, IpcSourceCore


def test_only_so_many_receivers_may_join() -> None:
    core = IpcSourceCore(IpcSourceConfig(maximum_receivers=2), 0)
    core.on_joined(1, 0)
    assert not core.is_full
    core.on_joined(2, 0)
    core.on_joined(2, 5)
    assert core.is_full
    assert core.stats.num_clients == 2
    core.on_gone(1)
    core.on_gone(1)
    assert not core.is_full
    assert core.stats.num_clients == 1


def test_what_the_slowest_has_not_read_has_to_stay() -> None:
    core = IpcSourceCore(IpcSourceConfig(is_receiver_paced=True), 0)
    assert core.oldest(7) == 7, "without receivers nothing"
    core.on_joined(1, 3)
    core.on_joined(2, 5)
    assert core.oldest(7) == 3
    core.on_position(1, 6, 7)
    assert core.oldest(7) == 5
    for wrong in (4, 8, 1 << 63):
        core.on_position(2, wrong, 7)
    core.on_position(9, 7, 7)
    assert (core.oldest(7), core.position(2)) == (5, 5), "it does not go back, nor beyond what there is"
    core.on_gone(2)
    assert core.oldest(7) == 6


def test_a_source_that_does_not_wait_keeps_nothing() -> None:
    core = IpcSourceCore(IpcSourceConfig(), 0)
    core.on_joined(1, 3)
    assert core.oldest(7) == 7


def test_messages_of_life_come_at_fixed_times() -> None:
    core = IpcSourceCore(IpcSourceConfig(sm_interval_ns=s(10)), s(1))
    assert core.next_deadline() == s(11)
    assert not core.is_life_due(s(11) - 1)
    assert core.is_life_due(s(11))
    assert core.next_deadline() == s(21)
    assert core.is_life_due(s(45)), "late by two: one, and the next at its time"
    assert core.next_deadline() == s(51)


def test_an_interval_of_zero_is_none() -> None:
    core = IpcSourceCore(IpcSourceConfig(sm_interval_ns=0), 0)
    assert core.next_deadline() is None
    assert not core.is_life_due(s(100))

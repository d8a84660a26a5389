"""What a source keeps for receivers that ask for it, and what goes when."""

from __future__ import annotations

import pytest

from dro.clock import s
from dro.proto.stream.retention import Retention, RetentionConfig
from dro.sqn import MASK, add


def kept(retention: Retention) -> list[int]:
    low = retention.low_sqn
    return [add(low, n) for n in range(len(retention)) if retention.find(add(low, n)) is not None]


@pytest.mark.parametrize("first", [0, MASK - 3])
def test_the_newest_message_is_kept_with_all_its_fragments(first: int) -> None:
    retention = Retention(RetentionConfig())
    retention.next_sqn = first
    assert (retention.low_sqn, kept(retention)) == (first, [])
    retention.add(first, [b"a"], 0)
    retention.add(add(first, 1), [b"b", b"c", b"d", b"e"], 0)
    assert kept(retention) == [add(first, n) for n in range(1, 5)]
    assert retention.find(add(first, 3)) == b"d"
    assert retention.find(first) is None
    assert retention.next_sqn == add(first, 5)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (RetentionConfig(size_threshold_bytes=100), 10),
        (RetentionConfig(size_threshold_bytes=105), 10),
        (RetentionConfig(age_threshold_ns=s(5)), 5),
        (RetentionConfig(size_threshold_bytes=100, age_threshold_ns=s(20)), 20),
        (RetentionConfig(size_threshold_bytes=300, age_threshold_ns=s(20)), 30),
        (RetentionConfig(age_threshold_ns=s(1000), limit_bytes=80), 8),
        (RetentionConfig(size_threshold_bytes=200, limit_bytes=80), 20),
    ],
)
def test_a_message_goes_when_it_is_old_and_there_are_many(config: RetentionConfig, expected: int) -> None:
    """Ten bytes every second."""
    retention = Retention(config)
    for number in range(50):
        retention.add(number, [b"0123456789"], s(number))
    assert kept(retention) == list(range(50 - expected, 50))
    assert retention.size_bytes == 10 * expected


def test_messages_go_whole() -> None:
    retention = Retention(RetentionConfig(size_threshold_bytes=50))
    for number in range(0, 30, 3):
        retention.add(number, [b"0123456789"] * 3, 0)
    assert kept(retention) == [27, 28, 29]

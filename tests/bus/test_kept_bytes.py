"""Bytes that outlive a worker: the last that were put whole, wherever a put is cut off, in bounded memory."""

from __future__ import annotations

import os
import random

import pytest

from dro.bus.kept_bytes import KeptBytes


def test_the_last_put_is_got() -> None:
    kept = KeptBytes()
    assert kept.get() is None
    rng = random.Random(3)
    largest = 0
    for length in (0, 5, 70_000, 1, 69_999, 70_000, 0, *(rng.randrange(70_000) for _ in range(50))):
        largest = max(largest, length)
        data = rng.randbytes(length)
        kept.put(data)
        assert kept.get() == data
        assert os.fstat(kept._fd).st_size <= 3 * largest + 128


def test_a_put_that_is_cut_off_anywhere_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its writes is cut off before and in the middle, as kill -9 does it."""
    write = os.pwrite
    for cut in range(4):
        kept = KeptBytes()
        for _ in range(3):
            kept.put(b"before")
        writes: list[int] = []

        def cut_off(fd: int, data: bytes, at: int, cut: int = cut, writes: list[int] = writes) -> int:
            writes.append(at)
            if len(writes) - 1 == cut // 2:
                write(fd, data[: len(data) // 2 if cut % 2 else 0], at)
                raise KeyboardInterrupt
            return write(fd, data, at)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", cut_off)
            with pytest.raises(KeyboardInterrupt):
                kept.put(b"after, and longer")
        assert kept.get() == b"before"
        kept.put(b"next")
        assert kept.get() == b"next"


def test_what_is_damaged_is_not_got() -> None:
    kept = KeptBytes()
    kept.put(b"content")
    os.pwrite(kept._fd, b"C", os.fstat(kept._fd).st_size - 7)
    assert kept.get() is None

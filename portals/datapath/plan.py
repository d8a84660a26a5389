"""The plan of a batch: which session gets which of its runs.

Pure, and the reference for its compiled form. It takes what is simply next of its source; all other runs are left to
the caller, by their row.
"""

from __future__ import annotations

from typing import Final

from dro.sqn import MASK
from dro.transport.runs import (
    FLAG_REQUEST,
    FLAGS_SHIFT,
    FRAGMENTS,
    LENGTH,
    SHAPE,
    SQN,
    WORDS,
    RunTable,
)
from portals.datapath.outgoing import Lane, ProxySource

_IRREGULAR: Final = MASK & ~(0xFF | 0xFF << 16 | FLAG_REQUEST << FLAGS_SHIFT)
"""Of a shape: anything but headroom, blocks, and marks that do not matter here."""
_WORDS, _SQN, _FRAGMENTS, _LENGTH, _SHAPE = WORDS, SQN, FRAGMENTS, LENGTH, SHAPE  # plain integers if compiled


def plan(table: RunTable, feeds: dict[int, ProxySource], lanes: list[Lane]) -> list[int]:
    """Note each run at the lane of its proxy source; lanes that got one are in `lanes`, each once.

    Returns the rows that are not the next of a source that is fed, in order. From the first such row of a source on,
    all its rows are among them.
    """
    irregular: list[int] = []
    left: set[int] = set()
    words, at = table.cells, 0
    for row in range(table.rows):
        handle, length, shape = words[at], words[at + _LENGTH], words[at + _SHAPE]
        proxy = feeds.get(handle)
        if proxy is None or shape & _IRREGULAR or (left and handle in left):
            irregular.append(row)
            left.add(handle)
        else:
            window, lane = proxy.window, proxy.lane
            if lane is None or words[at + _SQN] != window.next_sqn or length > lane.fragment_max_bytes:
                irregular.append(row)
                left.add(handle)
            else:
                window.advance(words[at + _FRAGMENTS])
                if not lane.noted:
                    lanes.append(lane)
                lane.note(row, proxy.topic_index)
        at += _WORDS
    return irregular

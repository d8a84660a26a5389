"""Two portals over real channels: a backlog of any size disconnects nobody, and arrives in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dro.bus.channel import Channels
from dro.loop import Loop
from portals.decisions.messages import ForwardStart, PortalMessage, SourceSeen
from portals.decisions.outbox import BATCHES_ON_THE_WAY
from portals.shell.conversations import Conversations
from tests.fakes.worker import FakeWorker

Until = Callable[[Callable[[], bool]], None]
MANY = 5_000


class Portal:
    """What one of them says and hears."""

    def __init__(self, loop: Loop, run_dir: Path, index: int) -> None:
        worker = FakeWorker(loop, run_dir, index, f"P{index}")
        self.index = index
        self.channels = worker.channels = Channels(loop, run_dir, index, 1)  # type: ignore[assignment]  # real ones
        self.heard: list[PortalMessage] = []
        self.stuck: list[int] = []
        self.talk = Conversations(worker.ctx, lambda _, message: self.heard.append(message), lambda: None)
        self.channels.on_ctl = self.talk.on_frame
        self.channels.on_stuck = lambda worker, _: self.stuck.append(worker)

    def meets(self, other: Portal) -> None:
        self.channels.connect(other.index, 1, other.channels.ctl_address)


@pytest.fixture
def portals(loop: Loop, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Portal, Portal]]:
    # ZeroMQ hears of what was read in steps of half the mark, and looks at most each millisecond: up to four times
    # as many as are on the way count as unread
    monkeypatch.setattr("dro.bus.channel.CTL_HWM", 4 * BATCHES_ON_THE_WAY)
    a, b = Portal(loop, run_dir, 1), Portal(loop, run_dir, 2)
    a.meets(b)
    b.meets(a)
    yield a, b
    a.channels.close()
    b.channels.close()


def test_a_sibling_that_takes_nothing_for_a_while_is_not_given_up_for_our_backlog(
    portals: tuple[Portal, Portal], until: Until
) -> None:
    """Above 131,072 waiting messages it was killed, returned, and got the same again."""
    a, b = portals
    everything: list[PortalMessage] = [SourceSeen(n, bytes(32), b"T", 1, 0, 0, b"") for n in range(MANY)]
    a.talk.begin(2)
    for n in range(MANY):
        a.talk.enqueue(2, ForwardStart(n))
    a.talk.enqueue_all(2, iter(everything))
    a.talk.send()
    until(lambda: bool(b.talk._frames))
    assert (b.heard, a.stuck) == ([], []), "it cannot use what it hears yet"
    assert a.talk.waiting > MANY // 2, "what waits does so here"
    b.talk.begin(1)
    until(lambda: len(b.heard) == 2 * MANY or bool(a.stuck))
    assert b.heard == [*map(ForwardStart, range(MANY)), *everything]
    assert (a.stuck, a.talk.waiting) == ([], 0)

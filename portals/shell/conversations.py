"""What a portal and its siblings tell each other: batches out, batches in, and their confirmations.

State: an outbox for each sibling that is up (`portals.decisions.outbox`), and the frames of each that are to be worked
off. The first short frames of a turn are worked off at once, others in slices of a few messages; siblings take turns.
A frame is worked off, and confirmed, when what it led to is carried out: what waits does so at the sender. Frames of a
sibling that the portal cannot use yet wait, unconfirmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from dro.bus.actor import WorkerContext
from dro.timers import Timer
from portals.decisions.engine import STEP
from portals.decisions.messages import PORTAL_MESSAGES, FramesAcked, PortalMessage
from portals.decisions.outbox import BATCHES_ON_THE_WAY, TICK_NS, OnWorkedOff, Outbox

AT_ONCE_BYTES: Final = 1024
"""Of frames that are worked off at once in a turn: some dozens of records."""
ACK_BYTES: Final = len(PORTAL_MESSAGES.encode(FramesAcked(BATCHES_ON_THE_WAY)))


class Conversations:
    """See the module text."""

    def __init__(
        self,
        ctx: WorkerContext,
        on_message: Callable[[int, PortalMessage], object],
        act: Callable[[], object],
        must_act: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_message(worker, message)`; `act` carries out what some of them led to, it is called in slices.

        `must_act`: it has left some of that for its next call.
        """
        self._ctx = ctx
        self._on_message = on_message
        self._act = act
        self._must_act = must_act
        self._outboxes: dict[int, Outbox] = {}
        self._to_send: dict[int, Outbox] = {}  # those that may have a batch
        self._is_sending = False
        self._encoded: tuple[PortalMessage | None, bytes] = (None, b"")  # the last one: most go to all siblings
        self._frames: dict[int, deque[Iterator[PortalMessage]]] = {}
        self._is_working_off = False
        self._room = AT_ONCE_BYTES  # for frames of this turn
        self._paced: Timer | None = None
        self._tick: Timer | None = None  # while there are siblings

    # siblings

    def begin(self, worker: int) -> None:
        """Begin to talk to a sibling: its incarnation of now can be used."""
        if self._tick is None:
            self._tick = self._ctx.loop.call_later(TICK_NS, self._on_tick)
        self._outboxes[worker] = Outbox(self._ctx.loop.now_ns())
        self._work_off_waiting()

    def end(self, worker: int) -> None:
        """End talking to a sibling that is down: what it said and has not been worked off is lost with it."""
        self._frames.pop(worker, None)
        self._to_send.pop(worker, None)
        self._outboxes.pop(worker, None)

    def keep_waiting(self, worker: int) -> None:
        """Tell a sibling that cannot be used yet that this portal is alive."""
        self._confirm(worker, 0)

    # sending

    def enqueue(self, worker: int, message: PortalMessage, on_worked_off: OnWorkedOff | None = None) -> None:
        """Enqueue a message. `on_worked_off` is called when the sibling confirms it; not if that is down before."""
        outbox = self._outboxes.get(worker)
        if outbox is None:
            return
        if self._encoded[0] is not message:
            self._encoded = (message, PORTAL_MESSAGES.encode(message))
        outbox.put(message, self._encoded[1], on_worked_off)
        self._to_send[worker] = outbox

    def enqueue_all(self, worker: int, messages: Iterator[PortalMessage | None]) -> None:
        """Enqueue these one after the other, when it is their turn."""
        if (outbox := self._outboxes.get(worker)) is not None:
            outbox.put_all(messages)
            self._to_send[worker] = outbox

    def send(self) -> None:
        """A batch to each sibling that has to be told something, the others in slices."""
        for worker in list(self._to_send):
            self._send_batch(worker)
        self._send_rest()

    def _send_batch(self, worker: int) -> None:
        outbox = self._to_send.pop(worker)
        if batch := outbox.take(self._ctx.loop.now_ns()):
            self._ctx.channels.send_ctl(worker, batch)
        if batch or outbox.is_cut:
            self._to_send[worker] = outbox
        elif (deadline := outbox.next_deadline()) is not None:
            self._send_at(deadline)

    def _send_rest(self) -> None:
        if self._to_send and not self._is_sending:
            self._is_sending = True
            self._ctx.loop.run_in_slices(self._send_steps())

    def _send_steps(self) -> Iterator[None]:
        while self._to_send:
            self._send_batch(next(iter(self._to_send)))
            yield
        self._is_sending = False

    def _send_at(self, when_ns: int) -> None:
        if self._paced is None or not self._paced.is_pending:
            self._paced = self._ctx.loop.call_at(when_ns, self._on_pace)

    def _on_pace(self) -> None:
        self._to_send |= self._outboxes
        self._send_rest()

    def _on_tick(self) -> None:
        for worker, outbox in list(self._outboxes.items()):
            if outbox.on_tick():
                self._ctx.channels.give_up(worker)
        self._tick = self._ctx.loop.call_later(TICK_NS, self._on_tick) if self._outboxes else None

    @property
    def waiting(self) -> int:
        """Changes that siblings have still to be told, for each of them."""
        return sum(map(len, self._outboxes.values()))

    # receiving

    @property
    def is_behind(self) -> bool:
        """Frames of siblings are being worked off that were not at once."""
        return self._is_working_off

    def on_frame(self, worker: int, frame: bytes) -> None:
        if len(frame) <= ACK_BYTES and isinstance(acked := next(PORTAL_MESSAGES.decode_all(frame)), FramesAcked):
            self._on_acked(worker, acked.frames)
            return
        waiting = self._frames.setdefault(worker, deque())
        waiting.append(PORTAL_MESSAGES.decode_all(frame))
        is_usable = worker in self._outboxes and not self._must_act()
        if len(waiting) == 1 and len(frame) <= self._room and is_usable:
            self._room -= len(frame)
            self._ctx.loop.at_turn_end(self._make_room)
            self._work_off(worker, waiting, len(frame))
            self._end_frame(worker, waiting)
        else:
            self._work_off_waiting()

    def _make_room(self) -> None:
        self._room = AT_ONCE_BYTES

    def _work_off(self, worker: int, waiting: deque[Iterator[PortalMessage]], count: int) -> bool:
        """Take so many messages at most, of the first frame; whether there may be more in that."""
        heard = 0
        for message in islice(waiting[0], count):
            heard += 1
            self._on_message(worker, message)
        return heard == count

    def _end_frame(self, worker: int, waiting: deque[Iterator[PortalMessage]]) -> None:
        """Drop the first frame, which is worked off, and confirm it, unless its sender has ended meanwhile."""
        if self._frames.get(worker) is waiting:
            waiting.popleft()
            self._confirm(worker, 1)

    def _confirm(self, worker: int, frames: int) -> None:
        self._ctx.channels.send_ctl(worker, PORTAL_MESSAGES.encode(FramesAcked(frames)))

    def _on_acked(self, worker: int, frames: int) -> None:
        if (outbox := self._outboxes.get(worker)) is not None:
            for on_worked_off in outbox.on_acked(frames):
                on_worked_off()
            self._to_send[worker] = outbox
            self._send_rest()

    def _work_off_waiting(self) -> None:
        if not self._is_working_off:
            self._is_working_off = True
            self._ctx.loop.run_in_slices(self._work_off_steps())

    def _work_off_steps(self) -> Iterator[None]:
        while ready := [worker for worker, waiting in self._frames.items() if waiting and worker in self._outboxes]:
            for worker in ready:
                if waiting := self._frames.get(worker):
                    has_more = self._work_off(worker, waiting, STEP)
                    yield  # both may make tables grow, which takes milliseconds when they are large
                    self._act()
                    yield
                    while self._must_act():
                        self._act()
                        yield
                    if not has_more:
                        self._end_frame(worker, waiting)
        self._is_working_off = False
        self._act()

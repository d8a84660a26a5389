"""What receives of a transport session hand up, kept."""

from __future__ import annotations

from collections.abc import Callable

from dro.sqn import MASK
from dro.transport.runs import KIND_CONTROL, KIND_TSNI, Run
from dro.transport.session import ReceiverTransport
from dro.wire.lbmc.message import HEADER
from tests.fakes.runs import RunSink

Message = tuple[int, int, bytes]
"""Topic index, sqn, payload."""


class KeepingSink(RunSink):
    """Keeps messages, TSNIs and control messages apart; `events` are the begins and ends, `order` has the runs too."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.controls: list[bytes] = []
        self.tsnis: list[tuple[int, int]] = []
        self.runs = 0
        self.order: list[str] = []
        self.on_event: Callable[[str, ReceiverTransport], object] = lambda event, session: None

    @property
    def events(self) -> list[str]:
        return [event for event in self.order if event != "runs"]

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        self.runs += len(runs)
        for run in runs:
            if run.kind == KIND_TSNI:
                self.tsnis.append((run.topic_index, run.first_sqn))
                continue
            if run.kind == KIND_CONTROL:
                self.controls.append(bytes(view[run.offset : run.offset + run.length]))
                continue
            for i in range(run.fragments):
                at = run.offset + i * run.stride
                _, head, length, topic, sqn = HEADER.unpack_from(view, at)
                expected = (run.length, run.next_header, run.topic_index, (run.first_sqn + i) & MASK)
                assert (length, head, topic, sqn) == expected
                self.got.append((topic, sqn, bytes(view[at + HEADER.size : at + length])))
        self._event("runs", transport)

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        self._event("began", transport)

    def on_ended(self, transport: ReceiverTransport, now_ns: int) -> None:
        self._event("ended", transport)

    def _event(self, event: str, session: ReceiverTransport) -> None:
        self.order.append(event)
        self.on_event(event, session)


class RunsSink(KeepingSink):
    """Keeps the runs as well, those of one call together."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[Run]] = []

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        self.calls.append(runs)
        super().on_runs(transport, view, runs, now_ns)

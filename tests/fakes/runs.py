"""Run tables from runs, for tests that write runs down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dro.sqn import MASK
from dro.transport.runs import Run, RunTable
from dro.transport.session import ReceiverTransport, SenderTransport


def table_of(runs: Iterable[Run]) -> RunTable:
    """One row for each run, as it is."""
    runs = list(runs)
    table = RunTable(max(1, len(runs)))
    for run in runs:
        rows = table.rows
        table.add_run(run)
        assert table.rows == rows + 1, "these runs belong together"
    return table


def send_run(
    sender: SenderTransport,
    buffer: bytearray,
    run: Run,
    start: int,
    topic_index: int,
    now_ns: int,
    *,
    first: int = 0,
) -> int:
    """Send one run of a buffer, which lies at `start + run.offset`, from fragment `first` on; how many were taken."""
    offset, sqn = start + run.offset + first * run.stride, (run.first_sqn + first) & MASK
    rest = run._replace(topic_index=topic_index, first_sqn=sqn, fragments=run.fragments - first, offset=offset)
    return sender.send_batch(buffer, table_of([rest]), now_ns)


class RunSink:
    """A sink that gets the runs of each session as a list."""

    def on_fragments(self, view: memoryview, parts: Sequence[tuple[ReceiverTransport, RunTable]], now_ns: int) -> None:
        for transport, table in parts:
            self.on_runs(transport, view, list(table), now_ns)

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        raise NotImplementedError

"""Counts, checks and prints the events of a receiving tool, and decides when it ends.

A `Tally` is fed from one thread, that of the context or the one that empties the event queue (`on_source` may come from
the other); the main thread reads its totals. It owns no socket and no clock, so it is tested with events only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dro.sqn import add, ahead
from dro.tools.lbm import lines, verify
from dro.tools.lbm.ending import EXIT_BAD, EXIT_OK
from dro.tools.lbm.lines import LineTotals
from dro.tools.lbm.output import Output
from dro.tools.lbm.payloads import PayloadRecord
from dro.um.message.events import BOS, EOS, FLAG_IMMEDIATE, Data, Event, Loss, LossBurst, MessageBatch, NoSource

_OUT_OF_ORDER: Final = "out of order"


@dataclass(frozen=True, slots=True)
class TallyOptions:
    """What to look at, and when to end."""

    verbose: int = 0
    ascii: bool = False  # print the payloads as text
    verify: bool = False
    order: bool = False
    is_loss_bad: bool = False  # lost messages alone make the run a bad one
    maximum: int | None = None  # messages
    ends_at_eos: bool = False  # when every source that was heard has ended
    loss_percent: float | None = None


class Tally:
    """Counts of one run. `on_end` is called once, when the run has what it was asked for."""

    def __init__(
        self, watch: TallyOptions, out: Output, on_end: Callable[[], object], record: PayloadRecord | None = None
    ) -> None:
        self.watch = watch
        self.messages = 0
        self.data_bytes = 0
        self.lost = 0
        self.bursts = 0
        self.bad = 0
        self.is_complete = False
        self.has_too_much_loss = False
        self._out = out
        self._on_end = on_end
        self._record = record
        self._hotlinked: set[tuple[str, str]] = set()  # sources of which a session has ended
        self._live: set[tuple[str, str]] = set()  # topic and source: found or heard, and not ended
        self._last_sqn: dict[tuple[str, bytes], int] = {}
        self.is_plain = not (watch.verbose or watch.ascii or watch.verify or watch.order) and record is None

    def on_event(self, event: Event) -> None:
        """Take one event; those after the end are not counted."""
        if self.is_complete:
            return
        match event:
            case Data():
                self._on_data(event)
            case Loss(topic=topic, source=source, sqn=sqn):
                self.lost += 1
                self._on_loss(lines.loss_line(topic, source, sqn))
            case LossBurst(topic=topic, source=source, sqn=sqn, count=count):
                self.bursts += 1
                self.lost += count
                self._on_loss(lines.loss_line(topic, source, sqn, is_burst=True))
            case BOS(topic=topic, source=source, proxy_source=proxy):
                self._live.add((topic, source))
                self._say(lines.began_line(topic, source, proxy))
            case EOS(topic=topic, source=source, proxy_source=proxy):
                if proxy:  # with hotlinks the source may go on; `on_source` tells
                    self._hotlinked.add((topic, source))
                else:
                    self._live.discard((topic, source))
                self._say(lines.ended_line(topic, source, proxy))
                if self.watch.ends_at_eos and not self._live:
                    self._end()
            case NoSource(topic=topic):
                self._say(lines.no_source_line(topic))
            case _:
                pass

    def on_batch(self, batch: MessageBatch) -> None:
        """Take messages that came in a row; the same as an event for each."""
        if self.is_complete:
            return
        payloads = batch.payloads
        left = None if self.watch.maximum is None else self.watch.maximum - self.messages
        if not self.is_plain or (left is not None and left <= len(payloads)):
            for i, payload in enumerate(payloads):
                self.on_event(Data(batch.topic, batch.source, add(batch.first_sqn, i), payload, 0, batch.otid))
            return
        self.messages += len(payloads)
        self.data_bytes += sum(map(len, payloads))
        if self.watch.ends_at_eos:
            self._live.add((batch.topic, batch.source))

    def on_source(self, topic: str, source: str, *, added: bool) -> None:
        """A source was found or is gone."""
        if self.is_complete:
            return
        if added:
            self._live.add((topic, source))
        else:
            self._live.discard((topic, source))
        self._say(lines.source_line(topic, source, added=added))
        if not added and (topic, source) in self._hotlinked and self.watch.ends_at_eos and not self._live:
            self._end()

    def _on_data(self, event: Data) -> None:
        self.messages += 1
        self.data_bytes += len(event.data)
        if self.watch.ends_at_eos:
            self._live.add((event.topic, event.source))
        if not self.is_plain:
            self._look_at(event)
        if self.messages == self.watch.maximum:
            self._end()

    def _look_at(self, event: Data) -> None:
        watch = self.watch
        data = event.data
        if self._record is not None:
            self._record.add(data)
        if watch.verbose:
            self._out.write(lines.data_line(event.topic, event.source, event.sqn, len(data), event.flags))
        if watch.ascii:
            self._out.write(lines.ascii_line(data))
        fault = ""
        if watch.verify and (found := verify.check(data).fault) is not None:
            fault = found.value
        if watch.order and not event.flags & FLAG_IMMEDIATE:
            key = (event.topic, event.otid)
            last = self._last_sqn.get(key)
            if last is not None and ahead(event.sqn, last) <= 0:
                fault = f"{fault}, {_OUT_OF_ORDER}" if fault else _OUT_OF_ORDER
            self._last_sqn[key] = event.sqn
        if fault:
            self.bad += 1
            self._say(lines.fault_line(event.topic, event.source, event.sqn, fault))

    def _on_loss(self, line: str) -> None:
        if self.watch.verbose:
            self._out.write(line)
        limit = self.watch.loss_percent
        if limit is not None and self.lost * 100 >= limit * (self.lost + self.messages):
            self.has_too_much_loss = True
            self._end()

    def _say(self, line: str) -> None:
        """Print a line at once, for a script that waits for it."""
        self._out.write(line)
        self._out.flush()

    def _end(self) -> None:
        self.is_complete = True
        self._on_end()

    def totals(self, at_s: float, packets_lost: int = 0) -> LineTotals:
        return LineTotals(at_s, self.messages, self.data_bytes, packets_lost, self.lost, self.bursts)

    def last_line(self, prog: str) -> str:
        return (
            f"{prog}: received {self.messages} messages, {self.data_bytes} bytes, lost {self.lost}, "
            f"bursts {self.bursts}, bad {self.bad}\n"
        )

    def status(self) -> int:
        """EXIT_BAD for damaged messages, for too much loss, and for any loss where the run was asked to look."""
        is_lossy = self.watch.is_loss_bad and (self.lost or self.bursts)
        return EXIT_BAD if self.bad or is_lossy or self.has_too_much_loss else EXIT_OK

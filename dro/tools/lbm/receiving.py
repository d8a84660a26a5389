"""Common part of `lbmrcv` and `lbmwrcv`: everything but the receiver that they open.

Exit status: 0 success; 1 loss or damaged messages, where an option checks for them; 2 wrong usage; 3 the system refused
something; 130, 143 ended early by SIGINT, SIGTERM. The last line of output is `PROG: received N messages, M bytes, lost
L, bursts B, bad V`. Options and output: `docs/tools.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol, TextIO, TypedDict

from dro.errors import DroError
from dro.tools.lbm import lines
from dro.tools.lbm.arguments import (
    CommonOptions,
    Setting,
    add_not_yet,
    at_most,
    new_parser,
    percent,
    positive,
    receiver_datagram_max,
    seconds,
)
from dro.tools.lbm.ending import EXIT_OK, EndRequest, signal_status
from dro.tools.lbm.output import HeldOutput
from dro.tools.lbm.payloads import PayloadRecord
from dro.tools.lbm.running import Periods, load_config, run_tool
from dro.tools.lbm.tally import Tally, TallyOptions
from dro.um.blocking_api import BlockingContext
from dro.um.message.events import Data, Event, MessageBatch
from dro.um.message.properties import CHANNEL_LAST
from dro.um.message.receiver import OnEvent, OnMessages, OnSource
from dro.um.message.wildcard_receiver import OnTopic

_QUEUE_POLL_S: Final = 0.1
_RATE_S: Final = 1.0


class ReceivingOptions(CommonOptions):
    name: str  # topic or pattern
    ascii: bool
    context_stats: bool
    exit_at_eos: bool
    summary: bool
    order: bool
    queue: bool
    messages: int | None
    stats: float
    loss_percent: float | None
    verify: bool
    datagram_max: tuple[Setting, ...]
    max_sources: int | None
    payload_sha256: bool
    payload_file: str | None
    channel: int | None
    failover: bool = False


class AnyReceiver(Protocol):
    """A plain or a wildcard receiver."""

    def get(self, timeout: float | None = None) -> Event: ...

    def close(self) -> None: ...


class Callbacks(TypedDict):
    """What a receiver is opened with. None: not that way."""

    on_event: OnEvent | None
    on_messages: OnMessages | None
    on_source: OnSource
    on_created: OnTopic
    on_deleted: OnTopic


Opener = Callable[[BlockingContext, str, Callbacks], AnyReceiver]


def arguments(prog: str, description: str, name: str) -> argparse.ArgumentParser:
    """The options, for the program and for shell completion; the positional one is called `name` in the help."""
    parser = new_parser(prog, description)
    add = parser.add_argument
    add("name", metavar=name, help=f"{name} to receive")
    add("-A", "--ascii", action="store_true", help="print payloads as text, each on a line of its own")
    add("-C", "--context-stats", action="store_true", help="with -s: statistics of the context as well")
    add("-E", "--exit", dest="exit_at_eos", action="store_true",
        help="end when all sources have ended, also by the death of a DRO on their path")  # fmt: skip
    add("-S", "--stop", dest="summary", action="store_true",
        help="as -E, with a summary; any loss makes the exit status 1, an early end of a source does not")  # fmt: skip
    add("-O", "--orderchecks", dest="order", action="store_true", help="check the order of sequence numbers")
    add("-q", "--eventq", dest="queue", action="store_true", help="hand events to the main thread in a queue")
    add("-r", "--msgs", dest="messages", type=positive, metavar="NUM", help="end after NUM messages")
    add("-s", "--statistics", dest="stats", type=seconds, default=0.0, metavar="SEC",
        help="print statistics of the joined sessions every SEC")  # fmt: skip
    add("-U", "--losslev", dest="loss_percent", type=percent, metavar="PERCENT",
        help="end when so much of the messages is lost; the exit status is 1 then")  # fmt: skip
    add("-V", "--verify", action="store_true",
        help="verify payloads of lbmsrc -V; a wrong one or any loss makes the exit status 1")  # fmt: skip
    add("-G", "--receiver-datagram-max", dest="datagram_max", type=receiver_datagram_max, default=(),
        metavar="[UM]NUM", help="largest datagram, of LBT-RU with U, of LBT-RM with M, else of TCP")  # fmt: skip
    add("--max-sources", type=positive, metavar="NUM", help="print statistics of NUM sessions at most")
    add("--payload-sha256", action="store_true", help="print a digest of all payloads before the last line")
    add("--payload-file", metavar="FILE", help="write each payload there, behind its length in 4 bytes")
    add("-N", "--channel", type=at_most(CHANNEL_LAST), metavar="NUM", help="messages of this channel alone")
    add_not_yet(parser, ())
    return parser


class Receiving:
    """One run: a receiver, the tally of its events, and the lines about them."""

    def __init__(self, prog: str, options: ReceivingOptions, stop: EndRequest, out: TextIO) -> None:
        self._prog = prog
        self._options = options
        self._stop = stop
        self._out = HeldOutput(out)
        self._failure: DroError | OSError | None = None
        self._first_s = self._last_s = 0.0
        self._immediate: SimpleQueue[Data] = SimpleQueue()  # without a topic, with -q
        self._lost_before = 0
        wants_record = options.payload_sha256 or options.payload_file is not None
        self._record = PayloadRecord(options.payload_file) if wants_record else None
        watch = TallyOptions(
            verbose=options.verbose,
            ascii=options.ascii,
            verify=options.verify,
            order=options.order,
            is_loss_bad=options.verify or options.summary,
            maximum=options.messages,
            ends_at_eos=options.exit_at_eos or options.summary,
            loss_percent=options.loss_percent,
            failover=options.failover,
        )
        self._tally = Tally(watch, self._out, stop.request, self._record)

    def run(self, open_receiver: Opener) -> int:
        options = self._options
        config = load_config(options, options.datagram_max)
        self._stop.hold()
        with BlockingContext(config, self._prog) as context:
            context.on_immediate = self._immediate.put if options.queue else self._on_event
            receiver = open_receiver(context, options.name, self._callbacks())
            self._out.begin(f"{self._prog}: receiving [{lines.name(options.name)}]\n")
            if options.queue:
                self._empty_queue(context, receiver)
            else:
                self._wait(context)
            context.on_immediate = None
            receiver.close()  # nothing calls back from here on
        if self._record is not None:
            self._record.close()
        if self._failure is not None:
            raise self._failure
        return self._end()

    def _end(self) -> int:
        options, tally, prog = self._options, self._tally, self._prog
        if options.summary:
            span_s = self._last_s - self._first_s
            text = lines.rate_text(span_s, tally.messages, tally.data_bytes)
            self._out.write(f"{prog}: first to last message {text}\n")
        if self._record is not None and options.payload_sha256:
            self._out.write(f"{prog}: payload sha256 {self._record.sha256}\n")
        self._say(tally.last_line(prog))
        status = tally.status()
        if status == EXIT_OK and self._stop.signal and not tally.is_complete:
            return signal_status(self._stop.signal)
        return status

    # on the thread of the context, or with -q on the main thread

    def _callbacks(self) -> Callbacks:
        options = self._options
        is_bulk = self._tally.is_plain and not (options.summary or options.queue or options.channel is not None)
        return Callbacks(
            on_event=None if options.queue else self._on_event,
            on_messages=self._on_messages if is_bulk else None,
            on_source=self._on_source,
            on_created=lambda topic: self._on_topic(topic, "created"),
            on_deleted=lambda topic: self._on_topic(topic, "deleted"),
        )

    def _on_event(self, event: Event) -> None:
        try:
            if isinstance(event, Data) and self._options.channel not in (None, event.channel):
                return
            before = self._tally.messages
            self._tally.on_event(event)
            if self._options.summary and self._tally.messages != before:
                self._last_s = time.monotonic()
                self._first_s = self._first_s or self._last_s
        except (DroError, OSError) as e:
            self._fail(e)

    def _on_messages(self, batch: MessageBatch) -> None:
        try:
            self._tally.on_batch(batch)
        except (DroError, OSError) as e:
            self._fail(e)

    def _on_source(self, topic: str, source: str, added: bool) -> None:
        try:
            self._tally.on_source(topic, source, added=added)
        except OSError as e:
            self._fail(e)

    def _on_topic(self, topic: str, what: str) -> None:
        try:
            if self._options.verbose and not self._tally.is_complete:
                self._say(f"[{lines.name(topic)}], receiver {what}\n")
        except OSError as e:
            self._fail(e)

    def _fail(self, error: DroError | OSError) -> None:
        """End when a file or the output cannot be written, and let the main thread report it."""
        self._failure = self._failure or error
        self._stop.request()

    # on the main thread

    def _wait(self, context: BlockingContext) -> None:
        reports = _Reports(self._options)
        before = self._totals(context)
        while not self._stop.wait_until(reports.due_s):
            before = self._report(context, reports, before)

    def _empty_queue(self, context: BlockingContext, receiver: AnyReceiver) -> None:
        reports = _Reports(self._options)
        before = self._totals(context)
        while not (self._stop.signal or self._failure or self._tally.is_complete):
            with contextlib.suppress(TimeoutError):
                self._on_event(receiver.get(_QUEUE_POLL_S))
            while not self._immediate.empty():
                self._on_event(self._immediate.get())
            if time.monotonic() >= reports.due_s:
                before = self._report(context, reports, before)

    def _report(self, context: BlockingContext, reports: _Reports, before: lines.LineTotals) -> lines.LineTotals:
        now = self._totals(context)
        if reports.rate.is_over(now.at_s):
            self._say(lines.receive_rate_line(now.since(before)))
            before = now
        if reports.stats.is_over(now.at_s):
            self._print_statistics(context)
        return before

    def _totals(self, context: BlockingContext) -> lines.LineTotals:
        """Count up to now. Sessions that ended take their count of lost packets with them."""
        counters = [dataclasses.asdict(session.counters) for session in context.stats().receivers]
        self._lost_before = max(self._lost_before, sum(each.get("lost", 0) for each in counters))
        return self._tally.totals(time.monotonic(), self._lost_before)

    def _print_statistics(self, context: BlockingContext) -> None:
        statistics = context.stats()
        for session in statistics.receivers[: self._options.max_sources]:
            self._out.write(lines.counters_line("receiver", session.source, dataclasses.asdict(session.counters)))
        if self._options.context_stats:
            values = dataclasses.asdict(statistics.context)
            self._out.write(lines.counters_line("context", context.name, values))
        self._out.flush()

    def _say(self, line: str) -> None:
        self._out.write(line)
        self._out.flush()


class _Reports:
    """When the next rate line and the next statistics are due."""

    def __init__(self, options: ReceivingOptions) -> None:
        now = time.monotonic()
        self.rate = Periods(now, _RATE_S)
        self.stats = Periods(now, options.stats)

    @property
    def due_s(self) -> float:
        return min(self.rate.due_s, self.stats.due_s)


def run(prog: str, options: ReceivingOptions, open_receiver: Opener) -> int:
    """Run a receiving tool to its end. Returns the exit status."""
    return run_tool(prog, options, lambda stop: Receiving(prog, options, stop, sys.stdout).run(open_receiver))

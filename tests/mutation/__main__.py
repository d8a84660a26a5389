"""`python -m tests.mutation`: do the tests notice when the code is wrong?

    python -m tests.mutation [--count 200] [--seed 1] [--rooms dro/proto ...] [--jobs 2] [--nearest N] [--report FILE]

A sample of mutants by seed, from all files of the rooms. The tests that run the changed line are tried in a process
that is forked for the mutant (`tests/mutation/forked.py`), those of the mirrored folder first. A mutant of what runs at
import, and one that no test noticed, is then written into a copy of the tree, and the tests that start whole DROs are
run there. A mutant that no test notices is printed. `EQUIVALENT` names those that cannot be noticed, with the reason.

Which test runs which line is measured once by coverage and kept in `.mutation/`; `--measure` measures anew. A line
that runs when its file is imported (a constant, a default, a field) has no test of its own: the tests of the file run,
and where no test runs a line in its own process, the tests of the mirrored folder.
A report is written while it goes on; the mutants that it has as killed are not tried again by the next run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import queue
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.changed import Tree, reached_tests
from tests.lanes import Lane, lane_of_id
from tests.mutation.forked import Forked
from tests.mutation.mutate import Mutant, mutants_of
from tests.reached import Reached

ROOT: Final = Path(__file__).resolve().parents[2]
STORE: Final = ROOT / ".mutation"
ROOMS: Final = ("dro/proto", "dro/um", "portals", "router", "dro/bus")
MEASURED: Final = ("tests/proto", "tests/um", "tests/portals", "tests/router", "tests/bus")
WIDE: Final = ("tests/daemon/test_hostile.py", "tests/daemon/test_access.py", "tests/daemon/test_drain.py",
               "tests/daemon/test_churn.py", "tests/netns/test_star.py", "tests/tools/lbm")  # fmt: skip
TREE: Final = ("dro", "portals", "router", "supervisor", "tests", "deploy", "docs", "typings", "pyproject.toml")
LIMIT_S: Final = 240.0  # for all tests of one mutant; one that hangs is noticed by it
WIDE_TIMEOUT_S: Final = 120  # for one test with whole DROs

_LISTINGS: Final = "LISTINGS_MAX: Final = 4  # under way in one worker; one more ends the oldest"
_BOTH: Final = "self._core is None and self._loop is None"
_FINAL: Final = "self._on_tirs((replace(tir, options=last),), 0, False, self._config.source_id)"
_ENDS: Final = "and (offset == self._next_offset or (count == 1 and offset >= self._offset + length + headroom))"
_CHECKS: Final = "return -(-deadline // check_ns) * check_ns if check_ns > 0 else None"
_BUFFER: Final = (
    "SEND_BUFFER_BYTES: Final = 1 << 20  # a burst of advertisements must not be cut short by the system's default"
)
_ZEROS: Final = "zeros = (bits & -bits).bit_length() - 1"
_INTERVAL: Final = "INTERVAL_NS: Final = s(10)  # between two short episodes that are logged"
_LONG: Final = "LONG_NS: Final = s(1)  # an episode that lasts is logged in any case"
_INSIDE: Final = "inside = 0 if beyond < HALF else min(MASK + 1 - beyond, count)"
_HANDED: Final = "page.add_sized(base + PairSlot.HANDED, fragments, nbytes)"
_HANDED_OF: Final = "page[base + PairSlot.HANDED] - page[base + PairSlot.REFUSED],"
_CHUNK: Final = "CHUNK_MAX_BYTES: Final = 1 << 20"
_TAGS: Final = "PORTAL_MESSAGES: Final = Codec[PortalMessage](dict(enumerate(get_args(PortalMessage), 32)))"
_TOOK: Final = "self._took_ns = 0  # the last call of the core that may have calculated"
_LOOKED_AT: Final = "probe, careful = _PROBE_FIRST, 0  # up to `careful` messages are looked at one by one"
_LOOK: Final = "if pos >= careful and count >= _PROBE_LEAST:"
_LOOK_LESS: Final = "careful, probe = pos + count * length, _PROBE_FIRST"
_LOOK_MORE: Final = "probe = min(2 * probe, _PROBE_MOST)"
_TOGETHER: Final = "only how many messages are looked at together"
_TRAINS: Final = "if count > 1 and per_train > 1 and size <= self._segment_max:"
_ALIVE: Final = "sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)"
_QUEUE: Final = "rx_queue_bytes=max(o.retransmit_rate_bps // 8, 65536) if o.retransmit_rate_bps else 1 << 30,"
_NO_PROMISE: Final = "a limit that is no promise, one larger"
_BUSY: Final = "self._busy = 0  # errno of the send that stopped the last run"
_NEED: Final = "need = line[next(iter(line))].need if line else 0"
_REFRESHES: Final = "refreshes = -(-(nbytes - self.credit) // self.quota) if nbytes > self.quota else 1"
_OLDEST: Final = "index = min(bisect_left(piece.ends, piece.start + over, piece.first, piece.last), piece.last - 1)"
_TOO_MUCH: Final = "if client.nbytes + nbytes > most:  # in `normal` only one message, behind nothing"
_DUE_REQUEST: Final = "return self._due_ns if self._interval_ns > 0 and self._due_ns < self._end_ns else None"
_TICK_AT: Final = "return grid_ns - (grid_ns - due_ns) // tick_ns * tick_ns if tick_ns > 0 else due_ns"
_MS: Final = "intervals and durations are whole milliseconds"
_SUSTAIN: Final = "sustain_interval_ns=max(interval_ns, plan.sustain_tick_ns) if interval_ns > 0 else 0,"
_DOUBLING: Final = "super().__init__(Plan(minimum_ns, maximum_ns, 0, 0, True), start_ns)"
_THRESHOLD: Final = (
    "source_threshold: int = 10_000_000  # known sources that end the sustaining phase; 0 = no queries at all"
)
_PERIODIC: Final = "self._calendar.set(entry, tick_at(due_ns, TICK_NS, 0) if interval_ns > 0 else None)"
_LAST_TICK: Final = "last_tick_ns = now_ns - (now_ns - self._plan.grid_ns) % tick_ns if tick_ns > 0 else now_ns"
_WHOLE: Final = "whole = min(whole, -(-(duration_ns + self._phase_start_ns - self._due_ns) // interval_ns))"
_ZIP: Final = "for queue, rate in zip(self._queues, rates, strict=True):"
_HELD_CTL: Final = "MAX_HELD: Final = 65_536  # messages of one kind, of incarnations not announced yet"
_WAITING: Final = "MAX_WAITING: Final = 16_384  # messages"
_HEAP: Final = "if len(self._heap) > 2 * len(self.missing) + HEAP_SLACK:"
_COMPACTS: Final = "if self._head > COMPACT_AT:"
_ARENA: Final = "if at + nbytes > len(self._arena):"
_NEWEST_TSNI: Final = "if self._tentative is None or ahead(after, self._tentative) > 0:"
_HELD: Final = "HELD_MAX: Final = 1 << 22  # fragments held when the option sets no limit"
_NEWEST_LOSS: Final = "if self._lost_through is None or ahead(sqn, self._lost_through) > 0:"
_OPENS: Final = "fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)"
_TSNI_OFF: Final = "if self._last_data_ns is None or self._interval_ns <= 0:"
_ANNOUNCED: Final = "return any(self._newest.get(worker, 0) >= incarnation for worker, incarnation, _ in held)"
_READ: Final = "values = [read(value) for read, value in zip(self._reads, values, strict=True)]"
EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    ("dro/bus/actor.py", "assert_never(message)", "pass"): "for the type checker: every message has a case",
    ("dro/bus/channel.py", "CTL_HWM: Final = 65_536  # messages", "65537"): "a limit that is no promise, one larger",
    ("dro/bus/channel.py", "DATA_HWM: Final = 1_024  # descriptors", "1025"): "a limit that is no promise, one larger",
    ("dro/bus/channel.py", _HELD_CTL, "65537"): "a limit that is no promise, one larger",
    ("dro/bus/channel.py", "CTL_PER_TURN: Final = 256", "257"): "a limit that is no promise, one larger",
    ("dro/bus/channel.py", "DATA_PER_TURN: Final = 16", "17"): "a limit that is no promise, one larger",
    ("dro/bus/channel.py", _ANNOUNCED, "1"): "looks once more at what is held",
    ("dro/bus/codec.py", _READ, "False"): "their number was compared",
    ("dro/shared_memory/ring.py", _OPENS, "os.O_RDONLY & os.O_CLOEXEC"): "closed before anything is executed",
    ("dro/shared_memory/ring.py", "if end > self._reserved:", "end >= self._reserved"): "stores the same again",
    ("dro/bus/control.py", _WAITING, "16385"): "a limit that is no promise, one larger",
    ("dro/bus/listing.py", _LISTINGS, "5"): "a limit that is no promise, one larger",
    ("dro/proto/context/bound.py", "self.now_ns = 0", "1"): "the engine sets it before anything else",
    ("dro/proto/context/dro_watch.py", "REMEMBERED_MAX: Final = 1024", "1025"): _NO_PROMISE,
    ("dro/proto/delivery/order.py", _CHECKS, "1"): _MS,
    ("dro/proto/delivery/order.py", "self._floor = 0  # where delivery began", "pass"): "every beginning sets it anew",
    ("dro/proto/delivery/order.py", "self._high = 0  # newest known sqn + 1", "pass"): "every beginning sets it anew",
    ("dro/proto/delivery/order.py", "self._high = 0  # newest known sqn + 1", "1"): "every beginning sets it anew",
    ("dro/proto/delivery/order.py", "self._floor = 0  # where delivery began", "1"): "every beginning sets it anew",
    ("dro/proto/delivery/order.py", _NEWEST_TSNI, "ahead(after, self._tentative) >= 0"): "sets the same again",
    ("dro/proto/delivery/order.py", _HELD, "23"): "a limit that is no promise, beyond what a test can hold",
    ("dro/proto/delivery/order.py", _HELD, "2"): "a limit that is no promise, beyond what a test can hold",
    ("dro/proto/delivery/reassembly.py", _NEWEST_LOSS, "ahead(sqn, self._lost_through) >= 0"): "sets the same again",
    ("dro/proto/interest/announced.py", _ZIP, "False"): "for the reader: both are pairs by their type",
    ("dro/proto/interest/announced.py", "self._now_ns = 0", "1"): "nothing waits before the first input",
    ("dro/proto/interest/announced.py", _DUE_REQUEST, "1"): _MS,
    ("dro/proto/interest/remote_domains.py", "entries_max: int = 1_000_000,", "1000001"): "no promise, one larger",
    ("dro/proto/interest/remote_domains.py", "self._earliest_round_ns = 0", "1"): "no test is due in the first ns",
    ("dro/proto/interest/tqr_use_query.py", _ZIP, "False"): "for the reader: both are pairs by their type",
    ("dro/proto/interest/tqr_use_query.py", "entries_max: int = 262_144,", "262145"): "no promise, one larger",
    ("dro/proto/interest/tqr_use_query.py", _PERIODIC, "1"): _MS,
    ("dro/proto/interest/tqr_use_query.py", "self._now_ns = 0", "1"): "nothing waits before the first input",
    ("dro/proto/delivery/tsni.py", _TSNI_OFF, "1"): _MS,
    ("dro/proto/repair/loss.py", "HEAP_SLACK: Final = 64", "65"): "a limit that is no promise, one larger",
    ("dro/proto/repair/loss.py", _HEAP, "len(self._heap) >= 2 * len(self.missing) + HEAP_SLACK"): "an entry sooner",
    ("dro/proto/repair/loss.py", _HEAP, "3"): "makes the heap smaller somewhat later",
    ("dro/proto/repair/receiver.py", "self._nak_stm = 0.0", "pass"): "the first repair sets it before it is read",
    ("dro/proto/repair/receiver.py", "self._nak_tx = 0.0", "pass"): "the first repair sets it before it is read",
    ("dro/proto/repair/retransmit.py", "self._arena_used = 0", "1"): "the empty arena is replaced by what comes first",
    ("dro/proto/repair/retransmit.py", "COMPACT_AT: Final = 1024", "1025"): "a limit that is no promise, one larger",
    ("dro/proto/repair/retransmit.py", _COMPACTS, "self._head >= COMPACT_AT"): "cuts the list one run sooner",
    ("dro/proto/repair/retransmit.py", _ARENA, "at + nbytes >= len(self._arena)"): "another buffer a datagram sooner",
    ("dro/proto/ratelimit.py", _NEED, "1"): "a quota is one byte at least",
    (
        "dro/proto/ratelimit.py",
        "self._next_ns = start_ns + self._interval_ns",
        "start_ns - self._interval_ns",
    ): "a refresh more, at once",
    ("dro/proto/ratelimit.py", _REFRESHES, "nbytes >= self.quota"): "a whole quota takes one refresh, by either branch",
    ("dro/proto/resolver/core.py", "cache_max: int = 524_288", "524289"): "a limit that is no promise, one larger",
    ("dro/proto/resolver/core.py", "start_ns: int = 0,", "1"): "nothing waits before the first input",
    ("dro/proto/resolver/core.py", _FINAL, "1"): "a final advertisement ends an entry, wherever it comes from",
    ("dro/proto/resolver/core.py", _FINAL, "True"): "a final advertisement ends an entry, whoever sent it",
    ("dro/proto/resolver/receivers.py", "self._handles = itertools.count(1)", "2"): "handles only differ",
    (
        "dro/proto/resolver/record_queue.py",
        "self._bits_max = rate.bps // 10 or min(rate.bps, 1)",
        "2",
    ): "no record has less",
    ("dro/proto/resolver/schedule.py", "sustain_duration_ns: int = 0", "1"): "no interval either: never read",
    ("dro/proto/resolver/schedule.py", "if 0 < self._plan.duration_ns <= age_ns:", "1"): _MS,
    ("dro/proto/resolver/schedule.py", "elif 0 < self._plan.sustain_duration_ns <= age_ns:", "1"): _MS,
    ("dro/proto/resolver/schedule.py", "if duration_ns > 0:", "1"): _MS,
    ("dro/proto/resolver/schedule.py", "is_off = plan.minimum_ns <= 0 or plan.maximum_ns <= 0", "1"): _MS,
    ("dro/proto/resolver/schedule.py", _SUSTAIN, "1"): _MS,
    ("dro/proto/resolver/schedule.py", _THRESHOLD, "10000001"): "no promise, one larger",
    ("dro/proto/resolver/schedule.py", _LAST_TICK, "1"): "ticks of 1 ns are none",
    ("dro/proto/resolver/schedule.py", _WHOLE, "duration_ns - self._phase_start_ns"): "one at a time, then",
    ("dro/proto/resolver/schedule.py", _DOUBLING, "1"): "ticks of 1 ns are none",
    ("dro/proto/resolver/schedule.py", _DOUBLING, "False"): "without ticks the first one has none to wait for",
    ("dro/proto/resolver/schedule.py", _TICK_AT, "1"): "ticks of 1 ns are none",
    ("dro/proto/resolver/schedule.py", "if behind_ns > 0:", "behind_ns >= 0"): "adds no interval to a time that is due",
    ("dro/proto/resolver/source_advertisements.py", "self._handles = itertools.count(1)", "2"): "handles only differ",
    ("dro/proto/stream/stream.py", "PARKED_MAX: Final = 1024", "1025"): _NO_PROMISE,
    ("dro/proto/stream/stream.py", "del self._by_topic[stream.topic]", "pass"): "an empty table is as none",
    ("dro/proto/tcp/source.py", "over = self.nbytes + wanted - most", "self.nbytes - wanted"): "one at a time, again",
    ("dro/proto/tcp/source.py", _OLDEST, "piece.start - over"): "one at a time, again",
    ("dro/proto/tcp/source.py", _TOO_MUCH, "client.nbytes + nbytes >= most"): "what just fits discards nothing",
    ("dro/um/async_api.py", "if self._core is None or self._loop is None:", _BOTH): "one is None when the other is",
    ("dro/um/fragment/options.py", "MERGED_MAX: Final = 256", "257"): _NO_PROMISE,
    ("dro/um/fragment/request_port.py", "ACCEPTS_PER_TURN: Final = 16", "17"): _NO_PROMISE,
    ("dro/um/fragment/tr_channel.py", _BUFFER, "21"): "a buffer a bit larger",
    ("dro/um/hosts.py", "_NEVER: Final = 1 << 63", "64"): "twice as far away",
    ("dro/um/hosts.py", "self._sleeps_until = 0", "1"): "wakes a loop that is awake, and has work to do",
    ("dro/um/message/delivery.py", "has_frag = False", "True"): "a chain without a FRAG block has none to find",
    ("dro/um/message/delivery.py", "if first + count <= MASK:", "first + count < MASK"): "nothing wraps in either way",
    ("dro/transport/lbtrm/kind.py", _QUEUE, "1 >> 30"): "without a limit nothing waits",
    ("dro/transport/lbtrm/kind.py", _QUEUE, "2"): "without a limit nothing waits",
    ("dro/transport/lbtrm/kind.py", _QUEUE, "31"): "without a limit nothing waits",
    ("dro/transport/lbtrm/receiver.py", "session.sender = sender", "pass"): "saves taking the address apart again",
    ("dro/transport/lbtrm/sender.py", _BUSY, "1"): "the send that stops a run sets it before it is read",
    ("dro/transport/lbtrm/sender.py", _TRAINS, "count >= 1"): "there is no train of one",
    ("dro/transport/runs.py", _ENDS, "offset > self._offset + length + headroom"): "just there is the next offset",
    ("dro/transport/runs.py", "self._next_sqn = self._next_offset = 0", "1"): "not read while the run is empty",
    ("dro/transport/sockets.py", _ALIVE, "2"): "any number but 0 switches it on",
    ("dro/transport/tcp/receiver.py", "_PROBE_LEAST: Final = 4", "5"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", "_PROBE_MOST: Final = 4096", "4097"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", "count = 0", "1"): "the next read says that the connection has ended",
    ("dro/transport/tcp/receiver.py", "first = sqns[0]", "1"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _ALIVE, "2"): "any number but 0 switches it on",
    ("dro/transport/tcp/receiver.py", _LOOK, "count > _PROBE_LEAST"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _LOOK, "pos > careful"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _LOOK, "pos >= careful or count >= _PROBE_LEAST"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _LOOKED_AT, "1"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _LOOK_LESS, "count // length"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _LOOK_LESS, "pass"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _LOOK_LESS, "pos - count * length"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _LOOK_MORE, "2 // probe"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _LOOK_MORE, "3"): _TOGETHER,
    ("dro/transport/tcp/receiver.py", _LOOK_MORE, "pass"): _TOGETHER,
    ("portals/datapath/duplicate_window.py", "if position > newest + 1:", "position >= newest + 1"): "nothing between",
    ("portals/datapath/duplicate_window.py", _ZEROS, "bits | -bits"): "the lowest bit with its sign: as long",
    ("portals/datapath/episodes.py", _INTERVAL, "11"): "a limit that is no promise, one larger",
    ("portals/datapath/episodes.py", _LONG, "2"): "a limit that is no promise, one larger",
    ("portals/datapath/handover.py", "LOOK_TICKS: Final = 2", "3"): "a limit that is no promise, one larger",
    ("portals/datapath/handover.py", "QUIET_TICKS: Final = 10", "11"): "a limit that is no promise, one larger",
    ("portals/datapath/handover.py", _INSIDE, "beyond <= HALF"): "half way round is neither before nor behind",
    ("portals/datapath/ingress.py", "low = high = 0", "1"): "equal ends, and no run has an offset",
    ("portals/datapath/ingress.py", _HANDED, "base - PairSlot.HANDED"): "the first slot is number 0",
    ("portals/datapath/ingress.py", _HANDED_OF, "base - PairSlot.HANDED"): "the first slot is number 0",
    ("portals/datapath/ingress.py", _CHUNK, "2"): "a limit that is no promise, another one",
    ("portals/datapath/ingress.py", _CHUNK, "21"): "a limit that is no promise, another one",
    ("portals/decisions/acl_enforcement.py", "REMEMBERED_MAX: Final = 500_000", "500001"): "a limit, one larger",
    ("portals/decisions/messages.py", _TAGS, "33"): "a number that both ends take from here",
    ("portals/endpoint/portal.py", "STOP_GRACE_NS: Final = ms(1800)", "1801"): "a limit that is no promise, one larger",
    ("router/worker.py", "assert_never(effect)", "pass"): "for the type checker: every effect has a case",
    ("router/worker.py", "assert_never(message)", "pass"): "for the type checker: every message has a case",
    ("router/worker.py", _TOOK, "1"): "set before it is read: only the timer calculates",
    ("router/worker.py", _TOOK, "pass"): "set before it is read: only the timer calculates",
}
"""(file, text of the line, what stands there now) -> why no test can notice."""


@dataclass(frozen=True, slots=True)
class Verdict:
    file: str
    mutant: Mutant
    outcome: str  # killed, killed by time, lived, equivalent
    by: str  # the test that noticed


def measure() -> None:
    """Run the tests of the rooms under coverage, which notes for each line the test functions that ran it."""
    STORE.mkdir(exist_ok=True)
    config = STORE / "coveragerc"
    config.write_text(f"[run]\ndata_file = {STORE}/coverage\nrelative_files = true\n"
                      "source =\n" + "".join(f"    {room}\n" for room in ROOMS))  # fmt: skip
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest", "-q", "-p",
               "no:cacheprovider", "-p", "tests.mutation.contexts", *MEASURED]  # fmt: skip
    with (STORE / "output").open("w+") as out:
        subprocess.run([*command, "-rfE"], cwd=ROOT, check=False, stdout=out)
        out.seek(0)
        failing = [line.split()[1].partition("[")[0] for line in out if line.startswith(("FAILED ", "ERROR "))]
    (STORE / "failing").write_text("\n".join(failing))
    for test in failing:
        print(f"left out, since it fails without any mutant: {test}", flush=True)


def tests_by_line() -> dict[str, dict[int, set[str]]]:
    """File -> line -> node ids of the tests that run it; those of the whole file for a line outside tests."""
    from coverage.numbits import numbits_to_nums

    found: dict[str, dict[int, set[str]]] = {}
    outside: dict[str, set[int]] = {}
    failing = set((STORE / "failing").read_text().splitlines())
    paths = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts): p.relative_to(ROOT)
        for p in ROOT.glob("tests/**/test_*.py")
    }
    with sqlite3.connect(STORE / "coverage") as data:
        rows = data.execute("select file.path, context.context, line_bits.numbits from line_bits "
                            "join file on file.id = file_id join context on context.id = context_id")  # fmt: skip
        for file, context, numbits in rows:
            module, _, function = str(context).rpartition(".")
            if module not in paths:
                outside.setdefault(file, set()).update(numbits_to_nums(numbits))
            elif (test := f"{paths[module]}::{function}") not in failing:
                for line in numbits_to_nums(numbits):
                    found.setdefault(file, {}).setdefault(line, set()).add(test)
    for file, lines in outside.items():
        by_line = found.setdefault(file, {})
        every = set().union(*by_line.values())
        named = ROOT / "tests" / Path(*Path(file).parts[1:]).with_name(f"test_{Path(file).name}")
        if named.exists():  # it may run the file in a process that is not measured
            every.add(str(named.relative_to(ROOT)))
        by_line |= dict.fromkeys(lines - by_line.keys(), every)
    return found


def sample(rooms: list[str], count: int, seed: int) -> list[tuple[str, Mutant]]:
    """`count` mutants of the files of the rooms, each mutant as likely as any other."""
    every = [
        (str(path.relative_to(ROOT)), mutant)
        for room in rooms
        for path in sorted((ROOT / room).rglob("*.py"))
        for mutant in mutants_of(path.read_text(encoding="utf-8"))
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


def equivalent(file: str, mutant: Mutant) -> str:
    """Why no test can notice a mutant; empty when one should."""
    line = (ROOT / file).read_text(encoding="utf-8").splitlines()[mutant.line - 1].strip()
    return EQUIVALENT.get((file, line, mutant.after), "")


def judge(tree: Path, file: str, mutant: Mutant, tests: list[str], failing: Iterable[str], limit_s: float) -> Verdict:
    """Run the tests, but for those that are failing, against one mutant in a copy, which is as before afterwards."""
    original = (tree / file).read_text(encoding="utf-8")
    (tree / file).write_text(mutant.text, encoding="utf-8")
    try:
        status, failed = _run(tree, tests, limit_s, "-x", *(f"--deselect={test}" for test in failing))
    finally:
        (tree / file).write_text(original, encoding="utf-8")
    if status is None:
        return Verdict(file, mutant, "killed by time", "the limit")
    is_lived = status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return Verdict(file, mutant, "lived", "") if is_lived else Verdict(file, mutant, "killed", (failed or ["?"])[0])


def failing_without(tree: Path, tests: list[str]) -> list[str]:
    """Give those of the tests that fail in a copy without a mutant, and say so."""
    _, failed = _run(tree, tests, len(tests) * LIMIT_S)
    for test in failed:
        print(f"left out, since it fails in a copy without any mutant: {test}", flush=True)
    return failed


def _run(tree: Path, tests: list[str], limit_s: float, *options: str) -> tuple[int | None, list[str]]:
    """Run the tests in a copy, in this order: the status, None beyond the limit, and the node ids of what failed."""
    command = [sys.executable, "-B", "-m", "pytest", *options, "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
               "-p", "no:tests.order", "-m", "not long", "--timeout", str(WIDE_TIMEOUT_S), "--no-header", "-rfE",
               *tests]  # fmt: skip
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=tree, stdout=out, stderr=out, start_new_session=True)
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = None
        out.seek(0)
        return status, [line.split()[1] for line in out if line.startswith(("FAILED ", "ERROR "))]


def copy_tree(target: Path) -> None:
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    (target / ".venv").symlink_to(ROOT / ".venv")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description="Do the tests notice a wrong program?"
    )
    parser.add_argument("--count", type=int, default=200, help="mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS), metavar="DIR", help=f"default: {' '.join(ROOMS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at the same time")
    parser.add_argument("--measure", action="store_true", help="measure anew which test runs which line")
    parser.add_argument("--no-wide", action="store_true", help="without the tests that start whole DROs")
    parser.add_argument("--changed", action="store_true", help="only tests that `make changed` takes for the file")
    parser.add_argument("--nearest", type=int, metavar="N", help="try only N tests of those that run the line: quicker")
    parser.add_argument("--report", type=Path, help="append every verdict, a line of JSON each; go on from there")
    args = parser.parse_args()
    if args.measure or not (STORE / "coverage").exists():
        measure()
    lines = tests_by_line()
    chosen = sample(args.rooms, args.count, args.seed)
    wide = () if args.no_wide else WIDE
    before = _killed_before(args.report) if args.report else {}
    near = [_near(lines.get(file, {}), file, mutant)[: args.nearest] for file, mutant in chosen]
    wides = [[*wide] for _ in chosen]
    if args.changed:
        imports, record = Tree(), Reached.read()
        for index, (file, _) in enumerate(chosen):
            taken = reached_tests([file], imports, record)
            near[index], wides[index] = _taken(near[index], taken), _beyond(taken) if wide else []
    verdicts: list[Verdict] = []
    again: list[tuple[int, list[str]]] = []
    began = time.monotonic()

    def keep(verdict: Verdict) -> None:
        verdicts.append(verdict)
        _show(verdict, len(verdicts), len(chosen), time.monotonic() - began)
        if args.report and verdict.outcome != "equivalent":
            with args.report.open("a", encoding="utf-8") as out:
                out.write(json.dumps([*_key(verdict.file, verdict.mutant), verdict.outcome, verdict.by]) + "\n")

    def work() -> Iterator[tuple[int, Path, str, list[str]]]:
        for index, (file, mutant) in enumerate(chosen):
            if why := equivalent(file, mutant):
                keep(Verdict(file, mutant, "equivalent", why))
            elif _key(file, mutant) in before:
                keep(Verdict(file, mutant, *before[_key(file, mutant)]))
            else:
                yield index, ROOT / file, mutant.text, near[index]

    def tried(index: int, outcome: str, by: str) -> None:
        rest = [*near[index] * (outcome == "import"), *wides[index] * (outcome != "killed")]
        if outcome in ("import", "lived") and rest:
            again.append((index, rest))
        else:
            keep(Verdict(*chosen[index], outcome, by))

    Forked(args.jobs, LIMIT_S).run([*MEASURED], work(), tried)
    with tempfile.TemporaryDirectory(prefix="dro-mutants-") as folder:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(args.jobs):
            tree = Path(folder) / str(number)
            tree.mkdir()
            copy_tree(tree)
            trees.put(tree)

        before_s = time.monotonic()
        failing = failing_without(Path(folder) / "0", sorted({test for _, tests in again for test in tests}))
        limit_s = LIMIT_S + 3 * (time.monotonic() - before_s)

        def in_copy(item: tuple[int, list[str]]) -> Verdict:
            index, tests = item
            tree = trees.get()
            try:
                return judge(tree, *chosen[index], tests, failing, limit_s)
            finally:
                trees.put(tree)

        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for verdict in pool.map(in_copy, again):
                keep(verdict)
    lived = [v for v in verdicts if v.outcome == "lived"]
    named = sum(v.outcome == "equivalent" for v in verdicts)
    judged = len(verdicts) - named
    print(f"seed {args.seed}: {judged - len(lived)} of {judged} mutants noticed "
          f"({100 * (judged - len(lived)) / max(judged, 1):.1f} %), {named} equivalent, "
          f"{sum(v.outcome == 'killed by time' for v in verdicts)} only by a time limit")  # fmt: skip
    for v in lived:
        print(f"  lived: {v.file}:{v.mutant.line}: {v.mutant.before}  ->  {v.mutant.after}")
    return 0


def _near(by_line: dict[int, set[str]], file: str, mutant: Mutant) -> list[str]:
    """The tests that run the changed statement, those of the mirrored folder first."""
    tests = {test for line in mutant.statement for test in by_line.get(line, ())}
    return sorted(tests, key=lambda test: (_distance(file, test), test)) or [str(_mirrored(file))]


def _taken(tests: list[str], taken: list[str]) -> list[str]:
    """Keep those of the tests that are taken, as functions or with their module; a folder stands for what is in it."""
    functions = {test.partition("[")[0] for test in taken}
    kept = []
    for test in tests:
        if not test.partition("::")[0].endswith(".py"):
            kept += [path for path in taken if path.startswith(f"{test}/")]
        elif not functions.isdisjoint((test, test.partition("::")[0])):
            kept.append(test)
    return kept


def _beyond(taken: list[str]) -> list[str]:
    """Keep those that start processes."""
    return [test for test in taken if lane_of_id(test) is Lane.PROCESSES]


def _key(file: str, mutant: Mutant) -> tuple[str, int, str, str]:
    return file, mutant.line, mutant.before, mutant.after


def _killed_before(report: Path) -> dict[tuple[str, int, str, str], tuple[str, str]]:
    rows = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    return {tuple(row[:4]): (row[4], row[5]) for row in rows if row[4].startswith("killed")}


def _mirrored(file: str) -> Path:
    """The folder of tests, or the nearest above it: `dro/bus/actor.py` -> `tests/bus`."""
    folder = Path("tests", *(part for part in Path(file).parts if part != "dro")).parent
    return next(path for path in (folder, *folder.parents) if (ROOT / path).is_dir())


def _distance(file: str, test: str) -> int:
    """How many folders of the test's path differ from those of the file: the nearest tests run first."""
    mirrored = _mirrored(file).parts
    own = Path(test.partition("::")[0]).parent.parts
    common = sum(1 for a, b in zip(mirrored, own, strict=False) if a == b)
    return len(mirrored) + len(own) - 2 * common


def _show(verdict: Verdict, done: int, total: int, took_s: float) -> None:
    m = verdict.mutant
    print(
        f"[{done}/{total} {took_s:.0f} s] {verdict.outcome}: {verdict.file}:{m.line}: {m.before}  ->  {m.after}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())

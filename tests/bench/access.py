"""What access control costs: one verdict with a list of a thousand entries, and the start of ten thousand sources.

`python -m tests.bench.access`: first the time of a verdict for lists of different kinds, for a topic that no entry fits
and for one that the last entry fits, in µs and in U. Then a DRO between two TRDs, ten thousand sources in TRD 1 and
a receiver of all of them in TRD 2 (by topic, or by one pattern), without lists and with lists of a thousand entries for
both directions of both portals, which every topic passes: the CPU until all proxy sources exist. DRO and applications
share one process there, so what the lists add is theirs, and other load of the machine takes no part.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dro.config.dro_xml.acl import Acl, Session
from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig
from portals.decisions.messages import PATTERN_PCRE
from tests.bench.churn import QUICK_UM
from tests.bench.cost_unit import measure_u_ns
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import one_process

ENTRIES: Final = 1000
ROUNDS: Final = 2000
SESSION: Final = Session("tcp", source_ip=0x7F000001, tcp_source_port=14_371)
KINDS: Final[dict[str, Callable[[int], ConditionConfig]]] = {
    "topic": lambda n: ConditionConfig("topic", f"desk{n:04}.prices"),
    "pcre, anchored": lambda n: ConditionConfig("pcre-pattern", rf"^desk{n:04}\."),
    "pcre, anywhere": lambda n: ConditionConfig("pcre-pattern", rf"desk{n:04}\."),
    "pcre, one by one": lambda n: ConditionConfig("pcre-pattern", rf"(d)esk{n:04}\.|\1"),
    "POSIX": lambda n: ConditionConfig("regex-pattern", rf"^desk{n:04}\."),
    "tcp-source-port": lambda n: ConditionConfig("tcp-source-port", 14_371 - ENTRIES + 1 + n, "eq"),
}


def verdicts(u_ns: float) -> None:
    print(f"one verdict with {ENTRIES} entries: µs (U = {u_ns / 1000:.2f} µs)")
    print(f"{'condition':20}{'compile, ms':>12}{'none fits':>12}{'U':>8}{'the last fits':>15}{'U':>8}")
    for kind, condition in KINDS.items():
        began = time.perf_counter_ns()
        acl = Acl.of(AclConfig(inbound=tuple(AceConfig(True, (condition(n),)) for n in range(ENTRIES))))
        compiled_ms = (time.perf_counter_ns() - began) / 1e6
        costs = []
        sessions = (Session("tcp", tcp_source_port=1), SESSION)
        for name, session in zip(("news.{}", f"desk{ENTRIES - 1:04}.prices"), sessions, strict=True):
            began = time.thread_time_ns()
            for n in range(ROUNDS):
                acl.inbound(name.format(n), session)
            costs.append((time.thread_time_ns() - began) / ROUNDS)
        shown = "".join(f"{ns / 1000:>{w}.1f}{ns / u_ns:>8.1f}" for ns, w in zip(costs, (12, 15), strict=True))
        print(f"{kind:20}{compiled_ms:>12.1f}{shown}", flush=True)


def _list(kind: str) -> str:
    """A thousand entries of which the last one accepts every topic of the run."""
    rejects = "".join(
        f'<ace match="reject"><{kind}>{text}</{kind}></ace>\n'
        for text in (rf"^other{n:04}\." if kind == "pcre-pattern" else f"other{n:04}" for n in range(ENTRIES - 1))
    )
    return f'{rejects}<ace match="accept"><pcre-pattern>.</pcre-pattern></ace>'


def start(sources: int, kind: str, *, by_pattern: bool) -> float:
    """Seconds of CPU until all proxy sources exist; `kind` is empty for no list."""
    text = f"<acl><inbound>{_list(kind)}</inbound><outbound>{_list(kind)}</outbound></acl>" if kind else ""
    stepper = Stepper()
    with (
        tempfile.TemporaryDirectory(prefix="dro-access-") as name,
        one_process(Path(name), stepper, 2, portal_xml={1: text, 2: text}, um={1: QUICK_UM, 2: QUICK_UM}) as dro,
    ):
        origin, receiver = dro.application(1), dro.application(2)
        topics = [b"desk%04d.t%d" % (n % 500, n) for n in range(sources)]
        with origin.context.together():
            for topic in topics:
                origin.source(topic)
        dro.run(1000)
        began = time.thread_time()
        with receiver.context.together():
            if by_pattern:
                receiver.context.want_pattern(b"^desk", PATTERN_PCRE, lambda topic: topic.startswith(b"desk"))
            for topic in () if by_pattern else topics:
                receiver.context.want_topic(topic)
        dro.until(lambda: len(dro.portals[2].sources) == sources, limit_ms=600_000)
        return time.thread_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="access", description=__doc__.split("\n")[0])
    parser.add_argument("--sources", type=int, default=10_000)
    parser.add_argument("--verdicts", action="store_true", help="the verdicts alone")
    arguments = parser.parse_args()
    verdicts(measure_u_ns())
    if arguments.verdicts:
        return 0
    print(f"\n{arguments.sources} sources: s of CPU until all proxy sources exist")
    for by_pattern in (False, True):
        for kind in ("", "topic", "pcre-pattern"):
            cpu_s = start(arguments.sources, kind, by_pattern=by_pattern)
            wanted = "one pattern" if by_pattern else "by topic"
            what = f"{ENTRIES} x <{kind}> at four places" if kind else "no list"
            print(f"{wanted:14}{what:40}{cpu_s:>8.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a peer link costs, beside a DRO that joins the same two TRDs directly, in the same run.

`python -m tests.bench.links`: two real `tnwgd` joined by a link, once for each kind (TCP, TCP with LZ4, TLS, TLS with
LZ4, UDP, UDP with TLS and LZ4), under the mixed traffic of `tests.bench.mix` and a steady stream, measured in turn,
round by round, in a closed loop. What counts is CPU time per message of the two peer portals, which are the hop between
the DROs, against that of the two endpoint portals of the direct DRO, which are a hop as well. Prints medians with the
least and the greatest of the rounds, and writes JSON. Without gcc there is no load: it says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.cost_unit import measure_u_ns
from tests.bench.mix import Measured, measure, show, spread
from tests.bench.traffic import generator
from tests.bench.traffic.workload import BenchSite, Contestant, Workload, flowing, running, site_of
from tests.rigs.certificates import Authority
from tests.rigs.site import ROUTES, reserve_block
from tests.rigs.waiting import wait_until

LZ4: Final = "<compression>LZ4</compression>"
UDP: Final = '<peer-rate-limit data="100000000000" retransmit="50000000000"/>'
KINDS: Final[dict[str, tuple[bool, bool, bool]]] = {
    "TCP": (False, False, False),
    "TCP+LZ4": (False, False, True),
    "TLS": (False, True, False),
    "TLS+LZ4": (False, True, True),
    "UDP": (True, False, False),
    "UDP+TLS+LZ4": (True, True, True),
}
"""Whether each has <udp>, <tls> and <compression>."""


def tls(authority: Authority, name: str) -> str:
    certificate, key = authority.leaf(name)
    return (
        f"<tls><certificate>{certificate}</certificate><certificate-key>{key}</certificate-key>"
        f"<trusted-certificates>{authority.trusted}</trusted-certificates></tls>"
    )


def write_files(site: BenchSite, folder: Path, kind: str, ports: Sequence[int], webs: Sequence[str] = ()) -> Path:
    """Part the portals of the site's file over two DROs, with a link between them; the file of the second. `webs`:
    where the monitor of each listens."""
    has_udp, has_tls, has_lz4 = KINDS[kind]
    first = folder / "dro.xml"
    text = first.read_text()
    endpoints = [f"<endpoint>{part.split('</endpoint>')[0]}</endpoint>" for part in text.split("<endpoint>")[1:]]
    authority = Authority(folder) if has_tls else None
    ends = (
        f"<initiator><address>127.0.0.1</address><port>{ports[0]}</port></initiator>",
        f"<acceptor><listen-port>{ports[0]}</listen-port></acceptor>",
    )
    for n, (name, end) in enumerate(zip("AB", ends, strict=True)):
        peer = (
            f"<peer><name>{name}L</name><single-tcp><interface>127.0.0.1</interface><nodelay/>"
            f"{tls(authority, name) if authority else ''}{LZ4 if has_lz4 else ''}{end}</single-tcp>"
            f"{f'<udp><port>{ports[1 + n]}</port>{UDP}</udp>' if has_udp else ''}</peer>"
        )
        begin, rest = text.split("<portals>")
        if webs:
            begin = begin.replace("<route-info", f"<web-monitor>{webs[n]}</web-monitor><route-info")
        made = f"{begin.replace(site.name, site.name + name)}<portals>{endpoints[n]}{peer}</portals></tnw-gateway>"
        (folder / f"{name}.xml").write_text(made)
        assert "</portals>" in rest
    first.write_text((folder / "A.xml").read_text())
    return folder / "B.xml"


@contextmanager
def linked(
    program: Path, folder: Path, workload: Workload, kind: str, webs: Sequence[str] = ()
) -> Iterator[Contestant]:
    """Two DROs with a link and all flows up, the source paused. `webs`: where the monitor of each listens, if any."""
    folder.mkdir()
    with ExitStack() as stack:
        site, companion = site_of(folder, workload), BenchSite(folder_of(folder, "B"), 0)
        stack.callback(site.close)
        stack.callback(companion.close)
        _, guard = block = reserve_block(3)
        stack.callback(guard.close)
        second = write_files(site, folder, kind, range(block[0], block[0] + 3), webs)
        (companion.folder / "dro.xml").write_text(second.read_text().replace("<lbm-config>", f"<lbm-config>{folder}/"))
        companion.start()
        site.start()
        wait_until(lambda: companion.log.count(ROUTES) > 1, "routes over the link", 60)
        pids = {
            "A in": site.worker("P1"), "A link": site.worker("AL"), "B link": companion.worker("BL"),
            "B out": companion.worker("P2"),
        }  # fmt: skip
        yield stack.enter_context(flowing(program, site, replace(workload, name=f"{kind}, {workload.name}"), pids))


def folder_of(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


def hop(measured: Measured) -> float:
    """CPU us per message of the two portals between two TRDs, or between two DROs."""
    each = measured.us_by_process
    return each["A link"] + each["B link"] if "A link" in each else each["P1"] + each["P2"]


def compare(results: dict[str, list[Measured]]) -> dict[str, list[float]]:
    """Each link against the direct DRO with the same traffic, round by round."""
    found = {}
    for name, rounds in results.items():
        traffic = name.partition(", ")[2]
        if traffic:
            found[name] = [round(hop(one) / hop(other), 3) for one, other in zip(rounds, results[traffic], strict=True)]
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="links", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="times each is measured (default 5)")
    parser.add_argument("--seconds", type=float, default=2, help="length of each measurement (default 2)")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--json", type=Path, default=Path("build/links.json"), help="where the figures go")
    arguments = parser.parse_args(words)
    if not generator.is_possible():
        print(f"links: {generator.COMPILER} is not installed, so there is no load generator: nothing is measured")
        return 0
    u_ns = measure_u_ns()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, U = {u_ns / 1000:.2f} us")
    results: dict[str, list[Measured]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dro-links-")))
        program = stack.enter_context(generator.built())
        mixed = Workload("mixed LBT-RM")
        found = []
        for nth, workload in enumerate((mixed, mixed.steady(512))):
            found.append(stack.enter_context(running(program, folder / f"direct{nth}", workload)))
            for kind in arguments.kinds:
                where = folder / f"{kind}{nth}"
                found.append(stack.enter_context(linked(program, where, workload, kind)))
        for nth in range(arguments.rounds):
            for who in found:
                results.setdefault(who.name, []).append(measure(who, arguments.seconds))
            line = "  ".join(f"{name} {hop(rounds[-1]):.2f}" for name, rounds in results.items())
            print(f"round {nth + 1}, us per message and hop: {line}", flush=True)
    show(results)
    ratios = compare(results)
    print("\nCPU of the link's hop / of the direct hop")
    for name, values in ratios.items():
        print(f"  {name:40}{spread(values)}   {median(map(hop, results[name])):.2f} us")
    lost = {name: sum(r.lost for r in rounds) for name, rounds in results.items() if any(r.lost for r in rounds)}
    print(f"lost: {lost}" if lost else "nothing was lost")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    figures = {"u_ns": round(u_ns), "ratios": ratios, "rounds": {n: [asdict(r) for r in v] for n, v in results.items()}}
    arguments.json.write_text(json.dumps(figures, indent=1))
    print(f"figures in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Two DROs in a row: what a TRD between them costs, by the transport that is used in it.

The load of a bench speaks LBT-RM and TCP, so other transports are measured where two DROs speak them with each other:
the first one joins TRD 1 to TRD 3, the second one TRD 3 to TRD 2, and applications are in TRDs 1 and 2 alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.bench.traffic.workload import BenchSite, Contestant, Workload, flowing, site_of
from tests.rigs.site import ROUTES
from tests.rigs.waiting import wait_until

LABELS: Final = {"tcp": "TCP", "lbtrm": "LBT-RM", "lbtru": "LBT-RU", "lbtipc": "LBT-IPC"}
UNLIMITED: Final = """
context transport_lbtru_data_rate_limit 100000000000
context transport_lbtru_retransmit_rate_limit 50000000000
"""


@contextmanager
def between(program: Path, folder: Path, workload: Workload, transport: str) -> Iterator[Contestant]:
    """Two DROs with all flows up, and `transport` in the TRD between them."""
    second_folder = folder / "B"
    second_folder.mkdir(parents=True)
    with ExitStack() as stack:
        site = site_of(folder, replace(workload, egress=2), UNLIMITED)  # its TRD 3 is the one between
        stack.callback(site.close)
        second = BenchSite(second_folder, 0)
        stack.callback(second.close)
        middle = site.config(3)
        own = f"source transport {transport}\ncontext transport_{transport}_maximum_ports {workload.sessions}\n"
        middle.write_text(middle.read_text() + (own if transport != "lbtipc" else own.partition("context")[0]))
        text = (folder / "dro.xml").read_text()
        portals = dict(zip((1, 2, 3), _portals(text), strict=True))
        for place, name, trds in ((folder, "A", (1, 3)), (second_folder, "B", (3, 2))):
            inside = "".join(portals[trd] for trd in trds).replace("<lbm-config>", f"<lbm-config>{folder}/")
            head = text.partition("<portals>")[0].replace(site.name, site.name + name)
            (place / "dro.xml").write_text(f"{head}<portals>{inside}</portals></tnw-gateway>")
        second.start()
        site.start()
        wait_until(lambda: second.log.count(ROUTES) > 1, "routes of both", 60)
        pids = {
            "A in": site.worker("P1"), "A out": site.worker("P3"), "B in": second.worker("P3"),
            "B out": second.worker("P2"),
        }  # fmt: skip
        site.trds = range(1, 3)
        named = replace(workload, name=f"{workload.name} by {LABELS[transport]}")
        who = stack.enter_context(flowing(program, site, named, pids))
        yield replace(who, site=None)  # whose books are those of one DRO


def _portals(text: str) -> list[str]:
    return [f"<endpoint>{part.partition('</endpoint>')[0]}</endpoint>" for part in text.split("<endpoint>")[1:]]

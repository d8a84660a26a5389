"""TRDs joined by a `tnwgd`: configuration files, the daemon, and its books, on hosts of a `Net`.

Every TRD has UM's default groups and ports, so all TRDs of a DRO share them and only the interface tells them apart;
its network is 10.<domain id>.0.0/24, in which the DRO is .9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dro.metrics.slots import Slot
from tests.rigs.books import Books, books_of
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.process import Process
from tests.rigs.waiting import wait_until

DRO_HOST: Final = 9
START_S: Final = 30.0
ROUTES_OF_NEIGHBOURS: Final = 100
"""More than there are of any in these tests."""
QUIET_S: Final = 30.0

UM_FILE: Final = """# UM options of TRD {trd}
context default_interface 10.{trd}.0.0/24
source transport {transport}
source implicit_batching_minimum_length 1
context transport_tcp_datagram_max_size 8192
context transport_lbtrm_data_rate_limit 400000000
context transport_lbtrm_retransmit_rate_limit 100000000
context transport_lbtru_data_rate_limit 400000000
context transport_lbtru_retransmit_rate_limit 100000000
context transport_lbtipc_datagram_max_size 8192
"""

DRO_FILE: Final = """<?xml version="1.0"?>
<tnw-gateway version="1.0">
  <daemon>
    <name>{name}</name>
    <log type="console"/>{daemon}
    <route-info check-interval="50"/>
    <route-recalculation backoff-interval="100"/>
  </daemon>
  <portals>
{endpoints}
  </portals>
</tnw-gateway>
"""

ENDPOINT: Final = """    <endpoint>
      <name>{name}-TRD{trd}</name>
      <domain-id>{trd}</domain-id>
      <lbm-config>{config}</lbm-config>
      {more}
    </endpoint>"""


def trd_name(trd: int) -> str:
    return f"trd{trd}"


def address_in(trd: int, host: int) -> str:
    return f"10.{trd}.0.{host}"


def app_hosts(net: Net, *trds: int) -> dict[int, Host]:
    """One host in each of these TRDs."""
    return {trd: net.host(f"app{trd}", {trd_name(trd): f"{address_in(trd, 1)}/24"}) for trd in trds}


@dataclass
class Dro:
    """A running `tnwgd`; portal k is the endpoint in TRD k, worker k of the books."""

    process: Process
    host: Host
    configs: dict[int, Path]
    books: Books

    def wait_log(self, pattern: str, seconds: float = START_S) -> re.Match[str]:
        return self.process.wait_output(pattern, seconds)

    def logged(self, pattern: str) -> int:
        """How many log lines match."""
        return len(re.findall(pattern, self.process.stdout, re.MULTILINE))

    def wait_slot(self, portal: int, slot: Slot, value: int, seconds: float = START_S) -> None:
        """Until that slot has exactly this value."""
        wait_until(lambda: self.books[portal, slot] == value, f"{slot.name} of portal {portal} at {value}", seconds)

    def wait_balanced(self, seconds: float = QUIET_S) -> None:
        """Until nothing is on its way, and the books balance."""
        try:
            wait_until(lambda: not self.books.problems(), "balance", seconds, every_s=0.05)
        except TimeoutError:
            raise AssertionError("the books do not balance:\n" + "\n".join(self.books.problems())) from None


def write_um(folder: Path, trd: int, transport: str, more: str = "") -> Path:
    """The UM options of a TRD; the portal in it and its applications read the same file."""
    path = folder / f"trd{trd}.cfg"
    path.write_text(UM_FILE.format(trd=trd, transport=transport) + more)
    return path


def write_dro(
    folder: Path,
    configs: Mapping[int, Path],
    more: Mapping[int, str] | None = None,
    name: str = "G1",
    *,
    daemon: str = "",
) -> Path:
    """`more`, `daemon`: further elements of the endpoint of a TRD, and of the daemon.

    `name`: of the DRO, and of its file unless it is G1.
    """
    endpoints = [
        ENDPOINT.format(name=name, trd=trd, config=config, more=(more or {}).get(trd, ""))
        for trd, config in configs.items()
    ]
    path = folder / ("dro.xml" if name == "G1" else f"{name}.xml")
    path.write_text(DRO_FILE.format(name=name, daemon=daemon, endpoints="\n".join(endpoints)))
    return path


def start_dro(host: Host, xml: Path, portals: int) -> Process:
    """Start a `tnwgd`; returns when it has routes between so many portals, or more if it has heard of a neighbour."""
    process = host.start_python("-m", "supervisor.main", str(xml), name="tnwgd")
    least = portals * (portals - 1)
    numbers = "|".join(map(str, range(least, least + ROUTES_OF_NEIGHBOURS)))
    process.wait_output(f"route recalculation took .*routes=({numbers}) process=", START_S)
    return process


@contextmanager
def running_dro(
    net: Net,
    transports: Mapping[int, str],
    *,
    um: Mapping[int, str] | None = None,
    more: Mapping[int, str] | None = None,
    daemon: str = "",
) -> Iterator[Dro]:
    """A DRO between the TRDs of `transports` (domain id -> transport of sources there), stopped orderly at the end.

    TRDs must be numbered 1, 2, ...; `um` adds options to a TRD, `more` elements to its endpoint,
    `daemon` to the daemon.
    """
    configs = {trd: write_um(net.folder, trd, kind, (um or {}).get(trd, "")) for trd, kind in transports.items()}
    host = net.host("dro", {trd_name(trd): f"{address_in(trd, DRO_HOST)}/24" for trd in configs})
    process = start_dro(host, write_dro(net.folder, configs, more, daemon=daemon), len(configs))
    with books_of(process.pid, len(configs)) as books:
        yield Dro(process, host, configs, books)
    status = process.stop(10)
    assert status == 0, process.stdout

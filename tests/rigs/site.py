"""A real `tnwgd` with one endpoint portal in each of several TRDs, everything on the loopback interface.

Groups and ports come from a block that is reserved for as long as the site exists, so any number of sites can run on
one machine at the same time. TRD n is joined by portal `P<n>`, which is worker n of the DRO.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from supervisor.host.run_dirs import SHARED_MEMORY, start_time_of
from tests.rigs.books import Books, books_of
from tests.rigs.loaded import Loaded
from tests.rigs.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
PORTS_PER_TRD: Final = 64
FIRST_PORT: Final = 11_000
LAST_PORT: Final = 31_900
ROUTE_MANAGER: Final = "route-manager"
ROUTES: Final = "route recalculation took"  # what it logs
STARTED: Final = " has started."
TRIGGER: Final = "RecalcTrigger:"

TRD: Final = """\
context default_interface 127.0.0.1
context resolver_multicast_interface 127.0.0.1
context resolver_multicast_address {net}.1
context resolver_multicast_port {tr}
context resolver_multicast_ttl 0
context resolver_datagram_max_size 8192
context request_tcp_interface 127.0.0.1
context request_tcp_port_low {request_low}
context request_tcp_port_high {request_high}
source transport {transport}
context transport_lbtrm_multicast_address_low {net}.10
context transport_lbtrm_multicast_address_high {net}.13
source transport_lbtrm_destination_port {data}
context transport_lbtrm_source_port_low {nak_low}
context transport_lbtrm_source_port_high {nak_high}
context transport_lbtrm_data_rate_limit 1000000000
context transport_lbtrm_retransmit_rate_limit 500000000
source transport_tcp_interface 127.0.0.1
context transport_tcp_port_low {tcp_low}
context transport_tcp_port_high {tcp_high}
source implicit_batching_minimum_length 1
source transport_lbtru_interface 127.0.0.1
context transport_lbtru_port_low {ru_low}
context transport_lbtru_port_high {ru_high}
context transport_lbtru_data_rate_limit 1000000000
context transport_lbtru_retransmit_rate_limit 500000000
receiver transport_lbtru_interface 127.0.0.1
receiver transport_lbtru_port_low {ru_rcv_low}
receiver transport_lbtru_port_high {ru_rcv_high}
"""
PORTAL: Final = """\
    <endpoint>
      <name>P{trd}</name>
      <domain-id>{trd}</domain-id>
      <lbm-config>trd{trd}.cfg</lbm-config>{extra}
    </endpoint>
"""
DRO: Final = """\
<?xml version="1.0" encoding="UTF-8"?>
<tnw-gateway version="1.0">
  <daemon>
    <name>{name}</name>
    <log type="console"/>{daemon}
    <route-info check-interval="50"/>
    <route-recalculation backoff-interval="100"/>
  </daemon>
  <portals>
{portals}  </portals>
</tnw-gateway>
"""


def trd_text(net: str, base: int, transport: str) -> str:
    """The UM file of a TRD whose ports begin with `base`; those of LBT-RU are UDP ports with the numbers of TCP."""
    return TRD.format(
        net=net, tr=base, request_low=base + 1, request_high=base + 19, data=base + 20, nak_low=base + 21,
        nak_high=base + 43, tcp_low=base + 44, tcp_high=base + 63, ru_low=base + 44, ru_high=base + 53,
        ru_rcv_low=base + 54, ru_rcv_high=base + 63, transport=transport,
    )  # fmt: skip


def reserve_block(size: int) -> tuple[int, contextlib.ExitStack]:
    """First of `size` free ports, and what ends their reservation when it is closed.

    A block is whole units of `PORTS_PER_TRD` ports, each reserved by the abstract name of a UNIX socket: blocks of
    different sizes share no port, however late their owners use them.
    """
    units = -(-size // PORTS_PER_TRD)
    slots = (LAST_PORT - FIRST_PORT) // PORTS_PER_TRD - units + 1
    start = (os.getpid() * 7 + time.monotonic_ns() // 1000) % slots
    for nth in range(slots):
        first = (start + nth) % slots
        base = FIRST_PORT + first * PORTS_PER_TRD
        with contextlib.ExitStack() as guard, contextlib.suppress(OSError):
            for unit in range(first, first + units):
                guard.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0ports of a test {unit}")
            if all(
                _is_free(port, kind)
                for port in range(base, base + size)
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
            ):
                return base, guard.pop_all()
    raise RuntimeError("no block of free ports on 127.0.0.1")


def _is_free(port: int, kind: int) -> bool:
    """For a listener, also while an old connection of the port is in TIME_WAIT."""
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            if kind == socket.SOCK_STREAM:
                probe.listen(1)
        except OSError:
            return False
    return True


class Site:
    """Writes the configuration at once; `start` starts the daemon, `close` ends all that was started."""

    PROGRAM: ClassVar[str] = "supervisor.main"  # or a module that runs it
    POPEN: ClassVar[Any] = Loaded  # as `subprocess.Popen`
    tree: Path = ROOT  # whose DRO it is, with the environment in its `.venv` unless it is this one
    environment: Mapping[str, str] = MappingProxyType({})  # of the daemon, beside that of this process
    arguments: Sequence[str] = ()  # of the daemon, beside the configuration

    def __init__(
        self,
        folder: Path,
        trds: int = 3,
        *,
        transports: Mapping[int, str] | None = None,
        portal_xml: Mapping[int, str] | None = None,
        um: Mapping[int, str] | None = None,
        has_monitor: bool = False,
    ) -> None:
        """By TRD: `transports` (lbtrm unless said), more elements of the endpoint, more lines for its UM file.

        `has_monitor`: a web monitor listens at `web`.
        """
        self.folder = folder
        self.trds = range(1, trds + 1)
        self.base, self._guard = reserve_block(trds * PORTS_PER_TRD)
        self.name = f"SITE{self.base}"  # as unique on this host as the ports
        self.daemon: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        extra = portal_xml or {}
        self.web = f"127.0.0.1:{self.port(1) + 30}"  # a port that the TRD uses for UDP alone
        daemon = f"\n    <web-monitor>{self.web}</web-monitor>" if has_monitor else ""
        for trd in self.trds:
            base = self.port(trd)
            text = trd_text(self.net(trd), base, (transports or {}).get(trd, "lbtrm"))
            self.config(trd).write_text(text + (um or {}).get(trd, ""))
        portals = "".join(PORTAL.format(trd=trd, extra=extra.get(trd, "")) for trd in self.trds)
        (folder / "dro.xml").write_text(DRO.format(name=self.name, portals=portals, daemon=daemon))

    def config(self, trd: int) -> Path:
        """UM file of a TRD, for portals and clients alike."""
        return self.folder / f"trd{trd}.cfg"

    def port(self, trd: int) -> int:
        """Port of topic resolution, which is the first of the TRD's block; see `TRD` for the others."""
        return self.base + (trd - 1) * PORTS_PER_TRD

    def net(self, trd: int) -> str:
        """The first three numbers of the TRD's multicast groups; .1 is topic resolution, .10 to .13 are data."""
        port = self.port(trd)
        return f"239.{193 + port // 256 % 62}.{port % 256}"

    # processes

    def start(self) -> None:
        """Start the daemon, also once more; returns when all of it runs and it has routes."""
        before = len(self.log)
        python = sys.executable if self.tree == ROOT else str(self.tree / ".venv/bin/python")
        more = {"env": os.environ | self.environment} if self.environment else {}
        with (self.folder / "tnwgd.log").open("ab") as log:
            self.daemon = self.POPEN(
                [python, "-m", self.PROGRAM, str(self.folder / "dro.xml"), *self.arguments],
                cwd=self.tree, stdout=log, stderr=log, start_new_session=True, **more,
            )  # fmt: skip

        def has_routes() -> bool:
            log = self.log[before:]
            return STARTED in log and log.rfind(ROUTES) > log.rfind(TRIGGER)

        self.wait(has_routes, "routes")

    def python(self, *arguments: str, name: str) -> subprocess.Popen[bytes]:
        """A client; its output goes to `<name>.log`."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process: subprocess.Popen[bytes] = Loaded([sys.executable, *arguments], cwd=ROOT, stdout=log, stderr=log)
        self._started.append(process)
        return process

    @property
    def log(self) -> str:
        path = self.folder / "tnwgd.log"
        return path.read_text() if path.exists() else ""

    @property
    def logs(self) -> str:
        """Every log, for the message of an assertion."""
        texts = [f"--- {path.name}\n{path.read_text()[-6000:]}" for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(texts)

    @property
    def pid(self) -> int:
        assert self.daemon is not None
        return self.daemon.pid

    def wait(self, holds: Callable[[], object], what: str, seconds: float = 30) -> None:
        def look() -> object:
            assert self.daemon is None or self.daemon.poll() is None, f"tnwgd ended\n{self.logs}"
            return holds()

        wait_until(look, what, seconds, lambda: self.logs)

    def workers(self) -> dict[str, int]:
        """Process ids of the living workers by name."""
        return workers_of(self.pid)

    def worker(self, name: str) -> int:
        return self.workers()[name]

    def kill(self, name: str) -> int:
        """Kill a worker as `kill -9` does; its process id."""
        pid = self.worker(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def books(self) -> contextlib.AbstractContextManager[Books]:
        return books_of(self.pid, len(self.trds))

    def leftovers(self, pid: int) -> list[str]:
        """What the daemon `pid` left in shared memory and in its run directory."""
        bases = (SHARED_MEMORY, Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp")), Path("/tmp"))
        return [str(path) for base in set(bases) for path in base.glob(f"dro-{self.name}-{pid}-*")]

    def stop(self) -> int:
        """End the daemon in good order; its exit status."""
        assert self.daemon is not None
        self.daemon.terminate()
        status = self.daemon.wait(20)
        self.daemon = None
        return status

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        if self.daemon is not None:
            group = self.daemon.pid
            self.daemon.terminate()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)
            try:
                self.daemon.wait(15)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
        self._guard.close()


@contextmanager
def running(site: Site) -> Iterator[Site]:
    """The site with its daemon, ended at the end."""
    try:
        site.start()
        yield site
    finally:
        site.close()


def workers_of(pid: int) -> dict[str, int]:
    """Process ids of the living workers of the DRO whose parent is `pid`, by name."""
    found = {}
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in children:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{child}/stat").read_text()
            name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :]
            if rest[0] not in "ZX" and name != "tnwgd":
                found[name] = int(child)
    return found


def drained(books: Books) -> bool:
    """Nothing is on its way between the portals any more."""
    return all(pair.on_the_way == 0 and pair.queued == 0 for pair in books.pairs())


def life_of(pid: int) -> int | None:
    """Start time of a process, None when it is gone; to tell it from a later one with the same id."""
    return start_time_of(pid)


def log_lines(log: str, pattern: str) -> list[str]:
    return [line for line in log.splitlines() if re.search(pattern, line)]

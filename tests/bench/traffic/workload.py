"""What is sent through a DRO: topics, sessions, sizes; and the DRO, the load and the receivers that belong to it."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from dro.bus.actor import POLL_VARIABLE
from dro.transport.sockets import ip_number, ip_text
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress
from tests.bench.traffic.generator import Load
from tests.bench.traffic.resolution import Channel, Origin, Seeker, Topic, resolve
from tests.rigs.site import ROOT, Site

SIZES: Final = (64, 64, 64, 200, 200, 512, 1400)
WINDOW: Final = 1024  # messages on their way at most
ON_THE_WAY_BYTES: Final = 3_000_000  # as socket buffers count them; they hold 8 MB each
GROUP_LOW: Final = 10  # last number of the first data group of a TRD, see `tests.rigs.site.TRD`
DATA_PORT, NAK_PORTS, TCP_PORTS = 20, 21, 44  # offsets in the block of ports of a TRD
SESSIONS_MAX: Final = 20  # of one host: ports of the block
UNLIMITED: Final = """
context transport_lbtrm_data_rate_limit 100000000000
context transport_lbtrm_retransmit_rate_limit 50000000000
"""


class Place(Protocol):
    """A rig that knows the ports and groups of its TRDs."""

    def port(self, trd: int) -> int: ...

    def net(self, trd: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Workload:
    """Parameters of the traffic. The defaults are the yardstick: mixed traffic as UM's defaults shape it."""

    name: str
    transport: str = "lbtrm"
    topics: int = 100
    sessions: int = 5  # of each host; for LBT-RM each has a group of its own, as UM's default pool gives
    hosts: int = 1
    sizes: tuple[int, ...] = SIZES  # payload bytes, drawn by chance for each message
    loss: float = 0.0  # share of the datagrams that the source keeps back, and of those that the receivers ignore
    egress: int = 1  # portals
    receivers: int = 1  # at each egress portal
    large: float = 0.0  # share of messages of `large_bytes`, which are fragmented
    large_bytes: int = 30_000
    is_packed: bool = False  # implicit batching of the source, as UM's defaults have it: 2048 bytes or 200 ms
    has_trains: bool = False  # the source sends equal datagrams of a session with segmentation offload
    rate: int = 0  # messages per second; 0: as fast as the window allows
    window: int = 0  # 0: chosen by size
    has_books: bool = False  # sinks remember which messages have come
    tree: Path = ROOT  # whose DRO it is
    poll_us: int = 0  # how long its workers poll before they sleep

    @property
    def window_messages(self) -> int:
        """Fewer messages of large sizes: what is on the way must fit into one socket buffer."""
        sizes = [*self.sizes, *([8192] if self.large else [])]
        charged = max(1024 + size * 1.3 for size in sizes) if self.large else sum(
            1024 + size * 1.3 for size in sizes
        ) / len(sizes)  # fmt: skip
        return self.window or max(64, min(WINDOW, int(ON_THE_WAY_BYTES / charged)))

    def steady(self, size: int) -> Workload:
        """One topic and one size, from a source that sends trains, as `throughput` has it."""
        return replace(
            self, name=f"steady {self.label}", topics=1, sessions=1, hosts=1, sizes=(size,), loss=0.0, egress=1,
            receivers=1, large=0.0, is_packed=False, has_trains=True,
        )  # fmt: skip

    @property
    def label(self) -> str:
        return {"lbtrm": "LBT-RM", "tcp": "TCP"}[self.transport]


class BenchSite(Site):
    """Not forked from the process of the bench: memory is that of a DRO that was started as usual."""

    POPEN: ClassVar[Any] = subprocess.Popen


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something that forwards, and the load on it."""

    name: str
    load: Load
    processes: dict[str, int]
    site: Site | None = None
    ends: tuple[Origin | Seeker, ...] = ()

    def step(self) -> None:
        """What applications do between messages: advertise and ask again, and answer portals."""
        for end in self.ends:
            end.step()


def addresses(workload: Workload, site: Place) -> list[TransportAddress]:
    """The sessions of the source in TRD 1, those of a host after one another."""
    base = site.port(1)
    found: list[TransportAddress] = []
    for host in range(workload.hosts):
        ip = ip_number("127.0.0.1") + host
        for n in range(workload.sessions):
            session_id = random.randrange(1, 1 << 32)
            if workload.transport == "tcp":
                found.append(TcpAddress(ip, base + TCP_PORTS + n, session_id))
            else:
                group = ip_number(f"{site.net(1)}.{GROUP_LOW + n}")
                found.append(LbtrmAddress(ip, group, session_id, base + DATA_PORT, base + NAK_PORTS + n))
    return found


def topics_of(workload: Workload, sessions: Sequence[TransportAddress]) -> list[Topic]:
    """Spread evenly over the sessions."""
    first = random.randrange(1 << 31)
    return [
        Topic(b"mix.%06d" % n, sessions[n % len(sessions)], first + n // len(sessions)) for n in range(workload.topics)
    ]


def describe_source(load: Load, workload: Workload, sessions: Sequence[TransportAddress], topics: list[Topic]) -> None:
    """Tell the generator what to send, and let it open its sockets."""
    load.set(
        kind=workload.transport, trains=workload.has_trains, packed=workload.is_packed, rate=workload.rate,
        books=workload.has_books, window=workload.window_messages, large_permille=round(1000 * workload.large),
        large_bytes=workload.large_bytes,
    )  # fmt: skip
    load.set_sizes(workload.sizes)
    for a in sessions:
        if isinstance(a, LbtrmAddress):
            load.tell(f"session {ip_text(a.ip)} {a.nak_port} {a.session_id} {ip_text(a.group)} {a.dport}")
        else:
            assert isinstance(a, TcpAddress)
            load.tell(f"session {ip_text(a.ip)} {a.port} {a.session_id} 0.0.0.0 0")
    place = {address: n for n, address in enumerate(sessions)}
    load.tell(*(f"topic {place[topic.address]} {topic.index}" for topic in topics), "open")


def describe_sink(load: Load, site: Place, trd: int, groups: int, found: Sequence[TransportAddress]) -> None:
    """One receiver in a TRD: all groups of the portal's pool, or a connection to each of its TCP sessions."""
    load.tell("sink")
    if any(isinstance(address, TcpAddress) for address in found):
        for a in dict.fromkeys(found):
            assert isinstance(a, TcpAddress)
            connect_sink(load, a)
    else:
        for n in range(groups):
            load.tell(f"join {site.net(trd)}.{GROUP_LOW + n} {site.port(trd) + DATA_PORT}")


def connect_sink(load: Load, a: TcpAddress) -> bool:
    """Let the last sink hear a TCP session; False when it is gone, after `start` of the load."""
    return load.tell(f"connect {ip_text(a.ip)} {a.port} {a.session_id}") == "ok\n"


def site_of(folder: Path, workload: Workload, more: str = "", portal_xml: str = "") -> BenchSite:
    """A DRO with a portal in TRD 1 and in each egress TRD; its pools are as large as those of the source."""
    trds = 1 + workload.egress
    site = BenchSite(
        folder, trds, transports=dict.fromkeys(range(1, trds + 1), workload.transport),
        portal_xml=dict.fromkeys(range(1, trds + 1), portal_xml),
    )  # fmt: skip
    site.tree = workload.tree
    if workload.poll_us:
        site.environment = {POLL_VARIABLE: str(workload.poll_us)}
    for trd in site.trds:
        pool = (
            f"context transport_lbtrm_multicast_address_high {site.net(trd)}.{GROUP_LOW + workload.sessions - 1}\n"
            f"context transport_tcp_maximum_ports {workload.sessions}\n"
        )
        with site.config(trd).open("a") as f:
            f.write(UNLIMITED + pool + "source implicit_batching_minimum_length 2048\n" + more)  # the default of UM
    return site


@contextmanager
def running(program: Path, folder: Path, workload: Workload) -> Iterator[Contestant]:
    """A DRO with all flows up, the source paused."""
    folder.mkdir()
    with ExitStack() as stack:
        site = site_of(folder, workload)
        stack.callback(site.close)
        site.start()
        pids = {f"P{trd}": site.worker(f"P{trd}") for trd in site.trds}
        yield stack.enter_context(flowing(program, site, workload, pids))


@contextmanager
def flowing(program: Path, site: BenchSite, workload: Workload, processes: dict[str, int]) -> Iterator[Contestant]:
    """What runs has all flows up, the source paused."""
    with ExitStack() as stack:
        load = stack.enter_context(Load(program))
        sessions = addresses(workload, site)
        topics = topics_of(workload, sessions)
        describe_source(load, workload, sessions, topics)
        channels = [Channel(f"{site.net(trd)}.1", site.port(trd), trd, is_strict=False) for trd in site.trds]
        for channel in channels:
            stack.callback(channel.close)
        seekers = [Seeker(channel, [topic.name for topic in topics]) for channel in channels[1:]]
        origin = Origin(channels[0], topics)
        resolve(origin, seekers, 60)
        for trd, seeker in enumerate(seekers, 2):
            for _ in range(workload.receivers):
                describe_sink(load, site, trd, workload.sessions, [tir.transport for tir in seeker.found.values()])
        load.tell("start")
        wait_flowing(load, workload)
        loss_ppm = round(workload.loss * 1_000_000)
        load.set(loss=loss_ppm, sinkloss=loss_ppm if workload.transport == "lbtrm" else 0)
        yield Contestant(workload.name, load, processes, site, (origin, *seekers))


def wait_flowing(load: Load, workload: Workload, limit_s: float = 20) -> None:
    """Until every receiver has heard every topic, at a low rate. Raises: TimeoutError."""
    deadline = time.monotonic() + limit_s
    load.set(rate=5000)
    load.tell("mark", "resume")
    while load.counts().topics < workload.topics:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{load.counts()}: not every topic arrives")
        time.sleep(0.02)
    load.tell("pause")
    load.set(rate=workload.rate)

"""Networks for tests: hosts in namespaces, joined by one bridge per topic resolution domain (TRD).

    net.host("app", {"trd1": "10.1.0.1/24"})
    dro = net.host("dro", {"trd1": "10.1.0.9/24", "trd2": "10.2.0.9/24"})

A host is a namespace with one interface per TRD, named like the TRD. A TRD is a namespace that holds a bridge without
multicast snooping, so every host hears every group, as on a hub; a capture of a TRD sees each frame once. Names
carry the process id, so tests run side by side; everything is removed by `close`, or by the next run after a crash.

Segmentation offload stays off: a datagram train that a sender hands to the kernel in one piece is cut before it
reaches a device, so a capture shows the datagrams that a wire would carry. What reaches a device is taken in by one
processor, in order, as from a wire; else the kernel would reorder frames that two processors send.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from tests.rigs.loaded import prepare
from tests.rigs.netns.capture import Capture
from tests.rigs.netns.loss import Loss
from tests.rigs.netns.namespace import command, delete, inside, ip, new_name, pids, sweep
from tests.rigs.netns.process import ROOT, Process, Task
from tests.rigs.netns.relay import Link

BRIDGE: Final = "br0"
MULTICAST: Final = "224.0.0.0/4"
P = ParamSpec("P")
T = TypeVar("T")


def keep_in_order(namespace: str, device: str) -> None:
    """Let one processor take in what reaches a device; a kernel without receive steering stays as it is."""
    queues = f"/sys/class/net/{device}/queues/rx-*/rps_cpus"
    script = f"for queue in {queues}; do [ -e $queue ] && echo 1 > $queue; done; true"
    command(["ip", "netns", "exec", namespace, "sh", "-c", script])


@dataclass(frozen=True, slots=True)
class Trd:
    """One network: the namespace of its bridge and the bridge port of each host."""

    name: str
    namespace: str
    ports: dict[str, str]


class Host:
    """One namespace with addresses in one or more TRDs; made by `Net.host`."""

    def __init__(self, net: Net, name: str, addresses: Mapping[str, IPv4Interface]) -> None:
        self.name = name
        self.namespace = new_name(name)
        self.interfaces = dict(addresses)
        self._net = net

    def address(self, trd: str = "") -> str:
        """The address in a TRD, without its prefix length; that of the first TRD by default."""
        return str(self.interfaces[trd or next(iter(self.interfaces))].ip)

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """The calling thread is on this host for the block; sockets made in it stay here for life."""
        prepare()
        return inside(self.namespace)

    def run(
        self, argv: Sequence[str], timeout_s: float = 30.0, *, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises: CalledProcessError unless `check` is off, TimeoutExpired."""
        wrapped = ["ip", "netns", "exec", self.namespace, *argv]
        return subprocess.run(wrapped, capture_output=True, text=True, timeout=timeout_s, check=check, cwd=ROOT)

    def start(
        self, argv: Sequence[str], name: str = "", env: Mapping[str, str] | None = None, cwd: Path = ROOT
    ) -> Process:
        """Start a command; it ends with the network at the latest."""
        label = self._net.unique(f"{self.name}-{name or Path(argv[0]).name}")
        process = Process(label, argv, self.namespace, self._net.folder, env, cwd)
        self._net.processes.append(process)
        return process

    def start_python(
        self, *arguments: str, name: str = "", env: Mapping[str, str] | None = None, cwd: Path = ROOT
    ) -> Process:
        """Start this interpreter with arguments, for example `"-m", "tests.rigs.replay"`."""
        return self.start([sys.executable, "-u", *arguments], name or arguments[-1].rpartition("/")[2], env, cwd)

    def spawn(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Start a function in a forked child on this host; closures work, the result must pickle."""
        label = self._net.unique(f"{self.name}-{getattr(function, '__name__', 'task')}")
        task = Task(label, lambda: function(*args, **kwargs), self.namespace, self._net.folder)
        self._net.tasks.append(task)
        return task

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a forked child on this host and return its result. Raises: TaskFailed, TimeoutError."""
        return self.spawn(function, *args, **kwargs).result()

    def lose(
        self,
        fraction: float = 0.0,
        *,
        every: int = 0,
        dports: Sequence[int | tuple[int, int]] = (),
        groups: Sequence[str] = (),
        protocol: str = "udp",
        where: str = "",
    ) -> Loss:
        """Drop part of what reaches this host; see `Loss`."""
        return Loss(
            self.namespace, dports=dports, groups=groups, fraction=fraction, every=every, protocol=protocol, where=where
        )

    def capture(self, trd: str = "", capture_filter: str = "") -> Capture:
        """Capture on one interface of this host (`lo` works too), before its input loss."""
        device = trd or next(iter(self.interfaces))
        return self._net.start_capture(self.namespace, device, f"{self.name}-{device}", capture_filter)

    def pids(self) -> tuple[int, ...]:
        """Every process on this host, started by the harness or by what it started."""
        return pids(self.namespace)


class Net:
    """Hosts and TRDs of one test; a context manager, closed with everything that runs in it."""

    def __init__(self, folder: Path) -> None:
        """Captures and the output of processes go to `folder`."""
        sweep()
        self.folder = folder
        self.mtu = 1500  # of what is made from now on, bytes
        self.capture_mib = 16  # buffer of each capture from now on
        self.hosts: dict[str, Host] = {}
        self.trds: dict[str, Trd] = {}
        self.processes: list[Process] = []
        self.tasks: list[Task[Any]] = []
        self._captures: list[Capture] = []
        self._serial = itertools.count(1)
        self._namespaces: list[str] = []

    def __enter__(self) -> Net:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def unique(self, label: str) -> str:
        return f"{next(self._serial):02d}-{label}"

    def host(self, name: str, addresses: Mapping[str, str], links: Mapping[str, Link] | None = None) -> Host:
        """Make a host: TRD name to address with prefix length (`{"trd1": "10.1.0.1/24"}`). New TRDs are made.

        Multicast goes out by the first TRD unless a socket chooses otherwise. TRD names have at most 12 characters.
        `links`: the wire to a TRD, for those that are slow or lossy.
        """
        host = Host(self, name, {trd: IPv4Interface(address) for trd, address in addresses.items()})
        self._make_namespace(host.namespace)
        self.hosts[name] = host
        for trd_name in host.interfaces:
            self.plug(host, trd_name, (links or {}).get(trd_name))
        return host

    def plug(self, host: Host, trd_name: str, link: Link | None = None) -> None:
        """Give a host the device that leads to a TRD, with its address; it has none, or had one until `unplug`."""
        trd = self.trd(trd_name)
        port = trd.ports.setdefault(host.name, f"p{len(trd.ports)}")
        self._join(host, trd_name, trd, port, link)
        ip(
            f"link set {port} gso_max_segs 1 mtu {self.mtu}",
            f"link set {port} master {BRIDGE} up",
            namespace=trd.namespace,
        )
        ip(
            f"link set {trd_name} gso_max_segs 1 mtu {self.mtu}",
            f"address add {host.interfaces[trd_name]} brd + dev {trd_name}",
            f"link set {trd_name} up",
            f"route add {MULTICAST} dev {trd_name} metric {list(host.interfaces).index(trd_name)}",
            namespace=host.namespace,
        )
        for namespace, device in ((trd.namespace, port), (host.namespace, trd_name)):
            keep_in_order(namespace, device)

    def unplug(self, host: Host, trd_name: str) -> None:
        """Remove the device of a host that leads to a TRD."""
        ip(f"link del {trd_name}", namespace=host.namespace)

    def _join(self, host: Host, device: str, trd: Trd, port: str, link: Link | None) -> None:
        if link is None:
            ip(f"link add {device} netns {host.namespace} type veth peer name {port} netns {trd.namespace}")
            return
        ends = (host.namespace, device, trd.namespace, port)
        wire = host.start_python("-m", "tests.rigs.netns.relay", *ends, *link.arguments(), name=f"wire-{device}")
        wire.wait_output("^ready$")

    def trd(self, name: str) -> Trd:
        """The network of that name, made when it is new."""
        if name not in self.trds:
            if len(name) > 12:
                raise ValueError(f"{name}: interface names are short, 12 characters at most")
            trd = Trd(name, new_name(name), {})
            self._make_namespace(trd.namespace)
            ip(
                f"link add {BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
                f"link set {BRIDGE} gso_max_segs 1",
                f"link set {BRIDGE} up",
                namespace=trd.namespace,
            )
            self.trds[name] = trd
        return self.trds[name]

    def _make_namespace(self, namespace: str) -> None:
        ip(f"netns add {namespace}")
        self._namespaces.append(namespace)
        settings = {"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"}
        settings |= {"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0"}
        with inside(namespace):
            for path, value in settings.items():
                with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
                    Path("/proc/sys/net", path).write_text(value)
        ip("link set lo gso_max_segs 1", "link set lo up", namespace=namespace)

    def capture(self, trd: str, capture_filter: str = "") -> Capture:
        """Capture everything that crosses a TRD, each frame once."""
        return self.start_capture(self.trd(trd).namespace, BRIDGE, trd, capture_filter)

    def start_capture(self, namespace: str, device: str, label: str, capture_filter: str) -> Capture:
        capture = Capture(
            namespace, device, self.folder / f"{self.unique(label)}.pcap", capture_filter, self.capture_mib
        )
        self._captures.append(capture)
        self.processes.append(capture.process)
        return capture

    def cut(self, host: Host, trd: str) -> None:
        """Stop frames between a host and a TRD, silently: links stay up on both sides."""
        self._port_state(host, trd, 0)

    def mend(self, host: Host, trd: str) -> None:
        """Undo `cut`."""
        self._port_state(host, trd, 3)

    def _port_state(self, host: Host, trd: str, state: int) -> None:
        network = self.trds[trd]
        command(
            ["bridge", "-n", network.namespace, "link", "set", "dev", network.ports[host.name], "state", str(state)]
        )

    def close(self) -> None:
        """End every process and delete every namespace of this network; idempotent."""
        for process in self.processes:
            process.kill()
        for task in self.tasks:
            task.kill()
        self.processes.clear()
        self.tasks.clear()
        while self._namespaces:
            delete(self._namespaces.pop())

"""Checks of the doctor without a network: interfaces, buffers, names, clock, limits.

Each function takes what it needs and yields checks; nothing here changes anything, and nothing stays open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from dro.bus.ring_size import RING_START_BYTES, ring_bytes
from dro.command_line import CONFLICT_REMEDY, conflicting_distribution
from dro.config.dro_xml.model import DroConfig, PeerConfig
from dro.config.lint.finding import CTX, EndpointView, View, rate, seconds
from dro.config.lint.transport import UDP
from dro.config.um.interfaces import ANY, Interface, Lookup, multicast_interface
from dro.config.um.sets import (
    ResolverOptions,
    UnicastResolverOptions,
    unicast_places,
    uses_multicast,
)
from dro.transport import sockets
from dro.transport.tls_files import files_of, problems
from supervisor.host.privileges import effective_capabilities
from supervisor.host.single_instance import claims_of, holder_of
from supervisor.tools.doctor.check import Check, fail, note, ok, warn

Checks = Iterator[Check]
_SIOCGIFMTU: Final = 0x8921
_CAP_NET_ADMIN: Final = 12
NAME_LIMIT_S: Final = 4.0
EARLIEST_YEAR: Final = 2025
LATEST_YEAR: Final = 2100
FILES_PER_PORTAL: Final = 128  # sockets of sessions, rings, the bus
FILES_AT_LEAST: Final = 1024
CLOCK_STEP_MS: Final = 500
FILE_FUTURE_S: Final = 86_400
_SHM: Final = Path("/dev/shm")
_NET: Final = Path("/sys/class/net")


# other programs


def installation() -> Iterator[Check]:
    if problem := conflicting_distribution():
        yield fail("", "installation", problem, CONFLICT_REMEDY)


def other_dros(config: DroConfig, running_pid: int) -> Iterator[Check]:
    """Yield what runs this configuration, or under this name, apart from the DRO that the doctor was asked about."""
    for claim in claims_of(config.file, config.daemon.name):
        holder = holder_of(claim)
        if holder is not None and (holder.pid != running_pid or not holder.pid):
            what = f"{claim.what} is in use: {holder} runs that DRO on this host"
            yield fail("", "other DROs", what, "stop that one, or use another file and name")


# interfaces


@dataclass(frozen=True, slots=True)
class Net:
    """The interface of one endpoint portal."""

    address: str  # dotted; ANY when there is none
    device: str
    mtu: int
    is_loopback: bool


def net_of(p: EndpointView, lookup: Lookup) -> tuple[Net | None, list[Check]]:
    """The interface that multicast of this portal uses, and what is to be said about it; None: there is none."""
    name = p.config.name
    written = p.receiving.um.get_interface("context", "resolver_multicast_interface")
    checks: list[Check] = []
    several: list[str] = []
    address = multicast_interface(written, lookup, several.append)
    checks += [note(name, "interface", text) for text in several]
    found = _device_of(address, lookup.interfaces())
    if found is None:
        have = ", ".join(f"{i.address} ({i.name})" for i in lookup.interfaces()) or "none"
        place = str(p.receiving.place(("context", "default_interface"), ("context", "resolver_multicast_interface")))
        what = f"{written} is on no interface of this host, which has {have}"
        checks.append(fail(name, "interface", what, "set default_interface to one of these", place))
        return None, checks
    mtu = mtu_of(found.name)
    shown = f"{address} on {found.name}"
    if not found.is_up:
        checks.append(fail(name, "interface", f"{shown} is down", f"ip link set {found.name} up"))
        return None, checks
    if uses_multicast(p.receiving.um) and not found.is_multicast and not found.is_loopback:
        checks.append(fail(name, "interface", f"{shown} cannot do multicast", f"ip link set {found.name} multicast on"))
        return None, checks
    if _carrier(found.name) == "0":
        checks.append(
            fail(name, "interface", f"{shown} has no carrier", "check the cable, or the other end of the link")
        )
    else:
        checks.append(ok(name, "interface", f"{shown}, up, MTU {mtu}"))
    return Net(address, found.name, mtu, found.is_loopback), checks


def _device_of(address: str, interfaces: Sequence[Interface]) -> Interface | None:
    for interface in interfaces:
        if interface.address == address:
            return interface
    wanted = IPv4Address(address)
    return next((i for i in interfaces if i.is_loopback and wanted in i.network and address != ANY), None)


def mtu_of(device: str) -> int:
    """1500 when the system does not say."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFMTU, struct.pack("256s", device.encode()[:15]))
        return int(struct.unpack_from("i", answer, 16)[0])
    return 1500


def _carrier(device: str) -> str:
    with contextlib.suppress(OSError):
        return (_NET / device / "carrier").read_text().strip()
    return ""


# socket buffers


def buffers(p: EndpointView, *, may_force: bool) -> Checks:
    """Compare what is asked with what is granted. `may_force`: the DRO will have CAP_NET_ADMIN, if this has it."""
    um = p.receiving.um
    multicast = ResolverOptions.of(um).receive_buffer_bytes if uses_multicast(um) else 0
    unicast = UnicastResolverOptions.of(um).receive_buffer_bytes if unicast_places(um) else 0
    asked = [
        ("resolver_multicast_receiver_socket_buffer", socket.SO_RCVBUF, multicast, 0),
        ("resolver_unicast_receiver_socket_buffer", socket.SO_RCVBUF, unicast, 0),
    ]
    for transport in UDP:
        name = f"transport_{transport}_{{}}_socket_buffer"
        bps = p.sending.number(CTX, f"transport_{transport}_data_rate_limit")
        for options, side, kind in (
            (p.receiving, "receiver", socket.SO_RCVBUF),
            (p.sending, "source", socket.SO_SNDBUF),
        ):
            asked.append((name.format(side), kind, options.number(CTX, name.format(side)), bps))
    yield from _granted(p.config.name, asked, may_force)


def peer_buffers(peer: PeerConfig, *, may_force: bool) -> Checks:
    if peer.udp is not None:
        asked = (
            ("<udp> receive-buffer", socket.SO_RCVBUF, peer.udp.receive_buffer_bytes, peer.udp.data_rate_bps),
            ("<udp> send-buffer", socket.SO_SNDBUF, peer.udp.send_buffer_bytes, 0),
        )
        yield from _granted(peer.name, asked, may_force)


def _granted(portal: str, asked: Sequence[tuple[str, int, int, int]], may_force: bool) -> Checks:
    granted = []
    for option, kind, size, bps in asked:
        if not size:
            continue
        have = grant(kind, size, may_force=may_force)
        if have >= size:
            granted.append(f"{option} {size}")
            continue
        limit = "net.core.rmem_max" if kind == socket.SO_RCVBUF else "net.core.wmem_max"
        held = f", {seconds(have * 8000 / bps)} at {rate(bps)}" if bps and kind == socket.SO_RCVBUF else ""
        remedy = f"sysctl -w {limit}={size}, or give tnwgd CAP_NET_ADMIN"
        yield warn(portal, "socket buffers", f"{option}: {size} bytes asked, {have} granted{held}", remedy)
    if granted:
        yield ok(portal, "socket buffers", f"granted as asked: {', '.join(granted)}")


def grant(kind: int, size: int, *, may_force: bool) -> int:
    """Bytes that a socket gets when it asks for `size`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        if may_force:
            return sockets.set_buffer(sock, kind, size)
        sock.setsockopt(socket.SOL_SOCKET, kind, size)
        return sock.getsockopt(socket.SOL_SOCKET, kind) // 2


# names, clock, limits


def names(peers: Sequence[PeerConfig], lookup: Lookup) -> Checks:
    """Host names that portals will look up, all at once; the system's resolver can take long."""
    wanted = {p.name: p.tcp.initiator.address for p in peers if p.tcp.initiator is not None}
    answers: dict[str, str | OSError] = {}

    def ask(name: str) -> None:
        try:
            answers[name] = lookup.host(name)
        except OSError as e:
            answers[name] = e

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in set(wanted.values())]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + NAME_LIMIT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for portal, name in wanted.items():
        answer = answers.get(name)
        if isinstance(answer, str):
            yield ok(portal, "name", f"{name}" + (f" is {answer}" if answer != name else " is an address"))
        elif answer is None:
            what = f"{name}: no answer within {NAME_LIMIT_S:g} s"
            yield warn(portal, "name", what, "check /etc/resolv.conf, or write the address")
        else:
            what = f"{name} cannot be resolved: {answer.strerror or answer}"
            yield fail(portal, "name", what, "add the name to the DNS or /etc/hosts, or write the address")


@dataclass(frozen=True, slots=True)
class ClockSample:
    """Wall clock and monotonic clock at one moment, in ns."""

    wall_ns: int
    monotonic_ns: int

    @classmethod
    def now(cls) -> ClockSample:
        return cls(time.time_ns(), time.monotonic_ns())


def clock(began: ClockSample, ended: ClockSample, newest_file_s: float) -> Checks:
    """Whether the wall clock can be right; timers do not need it, log lines and people do."""
    year = time.gmtime(ended.wall_ns // 1_000_000_000).tm_year
    step_ms = (ended.wall_ns - began.wall_ns - ended.monotonic_ns + began.monotonic_ns) / 1e6
    remedy = "set the clock, and keep it by NTP or PTP"
    if not EARLIEST_YEAR <= year <= LATEST_YEAR:
        yield fail("", "clock", f"the year is {year}", remedy)
    elif newest_file_s > ended.wall_ns / 1e9 + FILE_FUTURE_S:
        when = time.strftime("%Y-%m-%d", time.gmtime(newest_file_s))
        yield warn("", "clock", f"the configuration was changed on {when}, which is in the future", remedy)
    elif abs(step_ms) > CLOCK_STEP_MS:
        yield warn("", "clock", f"moved by {step_ms:.0f} ms against the monotonic clock meanwhile", remedy)
    else:
        yield ok("", "clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ended.wall_ns // 1_000_000_000)))


def shared_memory(view: View, *, is_running: bool) -> Checks:
    """Room for rings and counters; a running DRO has its share already."""
    needed = len(view.portals) * RING_START_BYTES
    most = sum(ring_bytes(p.config.max_queue_bytes) for p in view.portals)
    try:
        about = os.statvfs(_SHM)
    except OSError as e:
        yield fail("", "shared memory", f"{_SHM}: {e.strerror}", f"mount a tmpfs on {_SHM}")
        return
    free = about.f_bavail * about.f_frsize
    shown = (
        f"{needed >> 10} KiB for {len(view.portals)} portals, up to {most >> 20} MiB under full load, "
        f"{free >> 20} MiB free in {_SHM}"
    )
    if not os.access(_SHM, os.W_OK):
        yield fail("", "shared memory", f"{_SHM} cannot be written", f"chmod 1777 {_SHM}")
    elif is_running:
        yield ok("", "shared memory", f"{free >> 20} MiB free in {_SHM}, the running DRO has its own")
    elif free < most:
        size = (about.f_blocks * about.f_frsize + most - free >> 20) + 64
        tell = fail if free < needed else warn
        yield tell("", "shared memory", shown, f"mount -o remount,size={size}m {_SHM}, or lower <max-queue>")
    else:
        yield ok("", "shared memory", shown)


def open_files(portals: int, running_pid: int) -> Checks:
    """The limit of the running DRO, or of this shell, from which one would be started."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    whose = "this shell"
    if running_pid:
        with contextlib.suppress(OSError):
            soft, whose = resource.prlimit(running_pid, resource.RLIMIT_NOFILE)[0], f"tnwgd (pid {running_pid})"
    needed = max(FILES_AT_LEAST, FILES_PER_PORTAL * (portals + 1))
    shown = "no limit" if soft == resource.RLIM_INFINITY else str(soft)
    if soft != resource.RLIM_INFINITY and soft < needed:
        remedy = f"ulimit -n {needed}, or LimitNOFILE={needed} in the service"
        yield warn("", "open files", f"{shown} for {whose}, {needed} are advised", remedy)
    else:
        yield ok("", "open files", f"{shown} for {whose}")


def files(peers: Sequence[PeerConfig], now_s: float) -> Checks:
    """Files of TLS that portals will open, and whether they belong together and are valid."""
    for peer in peers:
        if (tls := peer.tcp.tls) is None:
            continue
        found = list(problems(tls, now_s))
        for problem in found:
            tell = fail if problem.is_fatal else warn
            yield tell(peer.name, "file", f"<{problem.element}>: {problem.what}", problem.remedy)
        if not found:
            yield ok(peer.name, "file", f"{', '.join(path for _, path in files_of(tls))} can be used")


def has_net_admin(pid: int = 0) -> bool:
    """Whether that process, or this one, may exceed the limits of socket buffers."""
    with contextlib.suppress(OSError):
        return bool(effective_capabilities(pid or "self") >> _CAP_NET_ADMIN & 1)
    return False


def summary(checks: Sequence[Check]) -> str:
    """Sum up, as `9 ok, 1 note, 2 fail`."""
    counted = Counter(check.status.value for check in checks)
    return ", ".join(f"{counted[name]} {name}" for name in ("ok", "note", "warn", "fail") if counted[name])

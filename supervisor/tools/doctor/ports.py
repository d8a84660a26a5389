"""Whether the ports of a configuration are free, and which processes use them if not.

A port is free when it can be bound, which is tried and undone at once; processes are found in `/proc`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dro.config.lint.finding import View
from dro.config.lint.network import Demand, demands_of
from dro.config.um.sets import unicast_places
from supervisor.tools.doctor.check import Check, fail, ok, warn

Checks = Iterator[Check]
MAX_PORTS_TRIED: Final = 2000
_FIXED: Final = {"tcp": "tcp", "lbtru": "udp"}
"""Transports whose sources may have a port of their own, and what it is a port of."""


@dataclass(frozen=True, slots=True)
class PortHolder:
    """A process that has a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})" if self.pid else "a process that cannot be seen from here"


NOBODY: Final = PortHolder(0, "")


def ports(view: View, ours: Collection[int]) -> Checks:
    """Ranges that endpoints bind ports in, and the ports of peers. `ours`: processes of the running DRO."""
    for endpoint in view.endpoints:
        wanted: dict[tuple[str, str, int, int, str], list[Demand]] = {}
        for d in demands_of(endpoint):
            wanted.setdefault((d.kind, d.interface, d.low, d.high, d.option), []).append(d)
        for (kind, interface, low, high, option), demands in wanted.items():
            if low <= high:
                need, want = sum(d.need for d in demands), sum(d.want for d in demands)
                place = str(demands[-1].place)
                yield _range(
                    endpoint.config.name, option, kind, interface, range(low, high + 1), need, want, place, ours
                )
        for local in dict.fromkeys(unicast_places(endpoint.receiving.um)):
            if not local.option.endswith("high"):
                yield _range(endpoint.config.name, local.option, "udp", local.interface, local.ports, 1, 1, "", ours)
        transport = endpoint.sending.um.get_str("source", "transport")
        name = f"transport_{transport}_port"
        if transport in _FIXED and (fixed := endpoint.sending.number("source", name)):
            interface = endpoint.sending.um.get_interface("source", f"transport_{transport}_interface")
            kind, one = _FIXED[transport], range(fixed, fixed + 1)
            yield _range(endpoint.config.name, f"source {name}", kind, interface, one, 1, 1, "", ours)
    for peer in view.peers:
        tcp, udp, at = peer.config.tcp, peer.config.udp, str(peer.place)
        if tcp.listen_port:
            one = range(tcp.listen_port, tcp.listen_port + 1)
            yield _range(peer.config.name, "<listen-port>", "tcp", tcp.interface, one, 1, 1, at, ours)
        if udp is not None:
            one = range(udp.port, udp.port + 1)
            yield _range(peer.config.name, "<udp> port", "udp", tcp.interface, one, 1, 1, at, ours)


def _range(
    portal: str, option: str, kind: str, interface: str, numbers: range, need: int, want: int, place: str,
    ours: Collection[int],
) -> Check:  # fmt: skip
    free, own, taken, refused = 0, 0, {}, ""
    holders: Mapping[int, PortHolder] | None = None
    for port in numbers[:MAX_PORTS_TRIED]:
        error = bind_error(kind, interface, port)
        if error == errno.EADDRINUSE:
            holders = port_holders(kind) if holders is None else holders
            holder = holders.get(port, NOBODY)
            if holder.pid in ours and holder.pid:
                own += 1
            else:
                taken[port] = holder
        elif error:
            refused = os.strerror(error)
        else:
            free += 1
        if free >= want and not taken:
            break
    label = f"{kind.upper()} {_span(numbers)} on {interface}"
    if refused and not free + own:
        return fail(
            portal, "ports", f"{option}: {label}: {refused}", "use ports above 1023 on an address of this host", place
        )
    held = "; ".join(f"{_list(held)} held by {holder}" for holder, held in _by_holder(taken).items())
    usable = f", {own} of this DRO" if own else ""
    if free + own < need:
        what = f"{option}: {label}: {need} needed, {free + own} free: {held}"
        return fail(portal, "ports", what, f"end {_holders(taken)}, or widen or move the range", place)
    if free + own < want and taken:
        what = f"{option}: {label}: {want} may be wanted, {free + own} free: {held}"
        return warn(portal, "ports", what, f"end {_holders(taken)}, or widen or move the range", place)
    return ok(portal, "ports", f"{option}: {label}: free{usable}" + (f"; {held}" if held else ""))


def _span(numbers: range) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def _by_holder(taken: Mapping[int, PortHolder]) -> dict[PortHolder, list[int]]:
    found: dict[PortHolder, list[int]] = {}
    for port, holder in taken.items():
        found.setdefault(holder, []).append(port)
    return found


def _holders(taken: Mapping[int, PortHolder]) -> str:
    return " or ".join(dict.fromkeys(str(holder) for holder in taken.values())) or "what holds them"


def bind_error(kind: str, interface: str, port: int) -> int:
    """Find why a port cannot be bound, as an errno; 0 when it can."""
    of_kind = socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, of_kind) as sock:
        if kind == "tcp":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((interface, port))
        except OSError as e:
            return e.errno or errno.EINVAL
    return 0


def port_holders(kind: str) -> dict[int, PortHolder]:
    """Local ports in use and the processes that have them, as far as this user may see; pid 0: unknown."""
    inodes: dict[str, int] = {}
    for table in (kind, f"{kind}6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if kind == "udp" or fields[3] == "0A":  # listening
                    inodes[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    found = dict.fromkeys(inodes.values(), NOBODY)
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for entry in (process / "fd").iterdir():
                    inode = _socket_inode(entry)
                    if inode in inodes:
                        name = (process / "comm").read_text().strip()
                        found[inodes[inode]] = PortHolder(int(process.name), name)
    return found


def _socket_inode(entry: Path) -> str:
    with contextlib.suppress(OSError):
        target = os.readlink(entry)
        if target.startswith("socket:["):
            return target[8:-1]
    return ""

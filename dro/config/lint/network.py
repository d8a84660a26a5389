"""Lint of addresses and ports: TRDs that are joined by accident, groups with two meanings, port ranges that run out.

Source: DRO guide, chapter 3.8; transport notes 15.3; UM Configuration Guide, port and group options. Guess: two
addresses on one device, or two devices in one network, are one TRD when their resolver channels agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import combinations

from dro.config.lint.finding import (
    CTX,
    RCV,
    SRC,
    EndpointView,
    Finding,
    Machine,
    Place,
    SideOptions,
    View,
    hint,
    warning,
)
from dro.config.um.interfaces import ANY
from dro.config.um.options import OptionKey
from dro.config.um.sets import RequestOptions, servers_of, unicast_places, uses_multicast

Findings = Iterator[Finding]


def interface_of(options: SideOptions, machine: Machine) -> str:
    """The address that multicast of this portal uses."""
    written = options.um.get_interface(CTX, "resolver_multicast_interface")
    able = [i for i in machine.interfaces if i.is_up and i.is_multicast and not i.is_loopback]
    return able[0].address if written == ANY and able else written


def are_one_network(one: str, other: str, machine: Machine) -> bool:
    """Whether multicast of two local addresses meets."""
    if one == other:
        return True
    devices = machine.device_of(one), machine.device_of(other)
    if devices[0] and devices[0] == devices[1]:
        return True
    networks = [i.network for i in machine.interfaces if i.address in (one, other) and i.prefix_length < 31]
    return len(networks) == 2 and networks[0] == networks[1]


def servers_by_place(options: SideOptions) -> dict[tuple[str, int], str]:
    """Addresses and ports of resolver daemons and SRSes, with the names of their options."""
    servers = servers_of(options.um)
    return {(entry.address, entry.port): name for name, entries in servers.items() for entry in entries}


def channels_of(options: SideOptions) -> set[tuple[str, int]]:
    """Groups and ports of topic resolution, those that are listened to and sent to, and those of servers."""
    found = set(servers_by_place(options))
    if not uses_multicast(options.um):
        return found
    for way in ("incoming", "outgoing"):
        group = options.um.get_str(CTX, f"resolver_multicast_{way}_address")
        if group != ANY:
            found.add((group, options.number(CTX, f"resolver_multicast_{way}_port")))
    return found


def joined_trds(v: View) -> Findings:
    """Two portals that hear each other's topic resolution: everything goes round in circles."""
    for one, other in combinations(v.endpoints, 2):
        interfaces = interface_of(one.receiving, v.machine), interface_of(other.receiving, v.machine)
        shared = channels_of(one.receiving) & channels_of(other.receiving)
        servers = servers_by_place(other.receiving)
        if (of_both := shared & servers.keys()) and servers_by_place(one.receiving).keys() & of_both:
            address, port = min(of_both)
            yield warning(
                other.receiving.place((CTX, servers[address, port])), f"context {servers[address, port]}",
                f"{address}:{port} is used by portal {one.config.name} and portal {other.config.name}",
                "the two TRDs are one, and messages circle between the portals",
                f"give portal {other.config.name} servers of its own",
            )  # fmt: skip
        elif shared and are_one_network(*interfaces, v.machine):
            group, port = min(shared)
            names = ("resolver_multicast_address", "resolver_multicast_incoming_address",
                     "resolver_multicast_outgoing_address")  # fmt: skip
            yield warning(
                other.receiving.place(*((CTX, name) for name in names)), f"context {names[0]}",
                f"{group}:{port} is used by portal {one.config.name} and portal {other.config.name} on one network",
                "the two TRDs are one, and messages circle between the portals",
                f"give portal {other.config.name} another group, such as {_next_group(group)}",
            )  # fmt: skip


def _next_group(group: str) -> str:
    number = int(IPv4Address(group))
    return str(IPv4Address(number + 1 if number & 0xFF < 0xFF else number - 1))


def _groups(options: SideOptions) -> range:
    """Return the LBT-RM groups of new sources, as numbers; empty when the range is reversed."""
    own = options.um.get_str(SRC, "transport_lbtrm_multicast_address")
    if own != ANY:
        return range(int(IPv4Address(own)), int(IPv4Address(own)) + 1)
    low, high = (options.um.get_str(CTX, f"transport_lbtrm_multicast_address_{end}") for end in ("low", "high"))
    return range(int(IPv4Address(low)), int(IPv4Address(high)) + 1)


def data_groups(v: View) -> Findings:
    """LBT-RM groups that two TRDs share on one network: each portal takes in the other TRD's data, to drop it."""
    for one, other in combinations(v.endpoints, 2):
        if "lbtrm" not in (e.sending.um.get_str(SRC, "transport") for e in (one, other)):
            continue
        shared = _common(_groups(one.sending), _groups(other.sending))
        ports = {e.sending.number(SRC, "transport_lbtrm_destination_port") for e in (one, other)}
        interfaces = interface_of(one.sending, v.machine), interface_of(other.sending, v.machine)
        if shared and len(ports) == 1 and are_one_network(*interfaces, v.machine):
            keys = ((CTX, "transport_lbtrm_multicast_address_low"), (SRC, "transport_lbtrm_destination_port"))
            yield hint(
                other.sending.place(*keys), " ".join(keys[0]),
                f"{len(shared)} groups from {IPv4Address(shared[0])} with port {min(ports)} are used by portal "
                f"{one.config.name} and portal {other.config.name} on one network",
                "each takes in data of the other TRD only to drop it",
                f"give the TRD of {other.config.name} a range or transport_lbtrm_destination_port of its own",
            )  # fmt: skip


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def groups(p: EndpointView) -> Findings:
    """The groups of one portal: a range that is none, and groups with two meanings."""
    low_key, high_key = ((CTX, f"transport_lbtrm_multicast_address_{end}") for end in ("low", "high"))
    low, high = p.sending.um.get_str(*low_key), p.sending.um.get_str(*high_key)
    at = p.sending.place(low_key, high_key, (SRC, "transport_lbtrm_multicast_address"))
    if IPv4Address(low) > IPv4Address(high):
        yield warning(
            at, " ".join(high_key), f"{high} is below the low end of the range, {low}", "LBT-RM sources get no group",
            f"set it to {IPv4Address(int(IPv4Address(low)) + 4)}",
        )  # fmt: skip
    data, port = _groups(p.sending), p.sending.number(SRC, "transport_lbtrm_destination_port")
    others = [
        (group, at_port, "topic resolution")
        for group, at_port in sorted(channels_of(p.receiving) - servers_by_place(p.receiving).keys())
    ]
    for way in ("incoming", "outgoing"):
        group = p.sending.um.get_str(CTX, f"mim_{way}_address")
        others.append((group, p.sending.number(CTX, f"mim_{way}_destination_port"), "multicast immediate messages"))
    told = set()
    for group, other_port, what in others:
        if group != ANY and other_port == port and int(IPv4Address(group)) in data and what not in told:
            told.add(what)
            yield warning(
                at, "source transport_lbtrm_destination_port",
                f"{group}:{port} belongs to LBT-RM data and to {what}", "each side takes in what it cannot read",
                f"set the port to {port + 1 if port < 65535 else port - 1}, or move the range of groups",
            )  # fmt: skip


# ports


@dataclass(frozen=True, slots=True)
class Demand:
    """What one context of a portal binds: `need` ports at least, `want` to do all it may."""

    portal: str
    kind: str  # udp or tcp
    interface: str
    low: int
    high: int
    need: int
    want: int
    option: str
    place: Place
    is_changed: bool

    @property
    def ports(self) -> range:
        return range(self.low, self.high + 1)

    def meets(self, other: Demand) -> bool:
        together = self.interface == other.interface or ANY in (self.interface, other.interface)
        return self.kind == other.kind and together and bool(_common(self.ports, other.ports))


def demands_of(p: EndpointView) -> Iterator[Demand]:
    """Every range that this portal takes ports from."""
    for place in dict.fromkeys(unicast_places(p.receiving.um)):
        keys = [(CTX, f"resolver_unicast_port_{end}") for end in ("low", "high")]
        if place.option.endswith("high"):
            yield _demand(p, p.receiving, "udp", place.interface, keys, 1, 1)
    for options in (p.sending, p.receiving):
        if options.number(CTX, "request_tcp_bind_request_port"):
            fixed = options.number(CTX, "request_tcp_port")
            names = ("request_tcp_port",) if fixed else ("request_tcp_port_low", "request_tcp_port_high")
            interface = options.um.get_interface(CTX, "request_tcp_interface")
            need = 0 if RequestOptions.of(options.um).has_default_range else 1  # others will do as well
            yield _demand(p, options, "tcp", interface, [(CTX, n) for n in names], need, 1)
    transport = p.sending.um.get_str(SRC, "transport")
    if transport == "tcp" and not p.sending.number(SRC, "transport_tcp_port"):
        most = max(1, p.sending.number(CTX, "transport_tcp_maximum_ports"))
        interface = p.sending.um.get_interface(SRC, "transport_tcp_interface")
        keys = [(CTX, "transport_tcp_port_low"), (CTX, "transport_tcp_port_high")]
        yield _demand(p, p.sending, "tcp", interface, keys, 1, most, (CTX, "transport_tcp_maximum_ports"))
    elif transport == "lbtrm":
        interface = p.sending.um.get_interface(CTX, "resolver_multicast_interface")
        keys = [(CTX, "transport_lbtrm_source_port_low"), (CTX, "transport_lbtrm_source_port_high")]
        more = (CTX, "transport_lbtrm_multicast_address_high")
        yield _demand(p, p.sending, "udp", interface, keys, 1, max(1, len(_groups(p.sending))), more)
    elif transport == "lbtru" and not p.sending.number(SRC, "transport_lbtru_port"):
        most = max(1, p.sending.number(CTX, "transport_lbtru_maximum_ports"))
        interface = p.sending.um.get_interface(SRC, "transport_lbtru_interface")
        keys = [(CTX, "transport_lbtru_port_low"), (CTX, "transport_lbtru_port_high")]
        yield _demand(p, p.sending, "udp", interface, keys, 1, most, (CTX, "transport_lbtru_maximum_ports"))
    keys = [(RCV, "transport_lbtru_port_low"), (RCV, "transport_lbtru_port_high")]
    if transport == "lbtru" or p.receiving.differs(*keys):
        interface = p.receiving.um.get_interface(RCV, "transport_lbtru_interface")
        yield _demand(p, p.receiving, "udp", interface, keys, 0, 1)  # with others when all of these are taken


def _demand(
    p: EndpointView, options: SideOptions, kind: str, interface: str, keys: Sequence[OptionKey], need: int, want: int,
    *more: OptionKey,
) -> Demand:  # fmt: skip
    low, high = options.number(*keys[0]), options.number(*keys[-1])
    option = " ".join(keys[-1])
    changed = options.differs(*keys, *more)
    return Demand(p.config.name, kind, interface, low, high, need, want, option, options.place(*keys, *more), changed)


def port_room(v: View) -> Findings:
    """Ranges that portals share, against what they bind in them."""
    demands = [demand for p in v.endpoints for demand in demands_of(p) if demand.low <= demand.high]
    for cluster in _clusters(demands):
        have = len({port for demand in cluster for port in demand.ports})
        need, want = sum(d.need for d in cluster), sum(d.want for d in cluster)
        last = next((d for d in reversed(cluster) if d.is_changed), cluster[-1])
        users = ", ".join(dict.fromkeys(d.portal for d in cluster))
        ports = f"{min(d.low for d in cluster)} to {max(d.high for d in cluster)}"
        if have < need:
            yield warning(
                last.place, last.option, f"{need} {last.kind.upper()} ports are bound by portal {users}, "
                f"{have} are there ({ports})",
                "a portal that gets none does not start", _wider(last, need),
            )  # fmt: skip
        elif have < want and any(d.is_changed for d in cluster):
            yield hint(
                last.place, last.option, f"{want} {last.kind.upper()} ports may be wanted by portal {users}, "
                f"{have} are there ({ports})",
                "sessions are shared by more sources than intended, or cannot be made", _wider(last, want),
            )  # fmt: skip


def _wider(d: Demand, ports: int) -> str:
    if d.option.endswith("_port"):
        return "set it to 0 and use the range request_tcp_port_low to _high"
    return f"set it to {min(65535, d.low + ports - 1)} or more, or move one of the ranges"


def _clusters(demands: Iterable[Demand]) -> list[list[Demand]]:
    """Group demands that share ports, directly or by others."""
    clusters: list[list[Demand]] = []
    for demand in demands:
        touched = [cluster for cluster in clusters if any(demand.meets(other) for other in cluster)]
        clusters = [cluster for cluster in clusters if cluster not in touched]
        clusters.append([*(d for cluster in touched for d in cluster), demand])
    return clusters


def ephemeral_ports(v: View) -> Findings:
    """Ports that the system gives to outgoing connections of any program."""
    low, high = v.machine.ephemeral_ports
    if not high:
        return
    told = set()
    for d in (demand for p in v.endpoints for demand in demands_of(p)):
        if d.is_changed and _common(d.ports, range(low, high + 1)) and (d.place, d.option) not in told:
            told.add((d.place, d.option))
            yield hint(
                d.place, d.option, f"{d.low} to {d.high} reaches into {low} to {high}, which the system gives away",
                "any connection of any program may hold the port at the next start", f"use ports below {low}",
            )  # fmt: skip

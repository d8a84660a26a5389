"""Network checks of one endpoint portal: multicast in each direction, and the largest datagram.

Without a responder it checks only reception on this host: its own multicast, and other senders. With one, each
direction is checked separately, because the responder reports by unicast what it received. Bounded in time; `messages`
describes what it sends. Runs in a thread of its own, with its own sockets.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from dro.clock import ms, s
from dro.config.lint.finding import CTX, SRC, EndpointView, seconds
from dro.config.lint.transport import datagram_size
from dro.config.um.interfaces import ANY
from dro.config.um.sets import LbtrmSourceOptions, ResolverOptions, uses_multicast
from dro.errors import ResourceError
from supervisor.tools.doctor import messages as probe
from supervisor.tools.doctor.check import Check, fail, note, ok, warn
from supervisor.tools.doctor.host import Net
from supervisor.tools.doctor.messages import FROM_DOCTOR, GroupAddress
from supervisor.tools.doctor.responder import send_all
from supervisor.tools.doctor.trd_sockets import TrdSockets

Checks = Iterator[Check]
LISTEN_S: Final = 2.0
NAMED_NS: Final = s(3)  # how long a responder that the operator named may take
HELLO_NS: Final = ms(300)
SIGNALS: Final = 5
SIZE_ROUNDS: Final = 4
COPIES: Final = 2
MAX_RESPONDERS: Final = 4
IP_UDP_BYTES: Final = 28
SMALLEST: Final = 512  # a size that passes everywhere
CLOCKS_APART_NS: Final = s(1)
LIMIT_NS: Final = s(9)  # of one portal


@dataclass(frozen=True, slots=True)
class TrdTestPlan:
    """What to try on one TRD."""

    portal: str
    domain_id: int
    net: Net
    tr_in: GroupAddress
    tr_out: GroupAddress
    data: GroupAddress | None  # a group of LBT-RM and its port, where the portal's sources use it
    sized: GroupAddress  # where sized datagrams go
    ttl: int
    datagram_bytes: int  # the largest that UM will send

    @classmethod
    def of(cls, p: EndpointView, net: Net, port: int) -> TrdTestPlan | None:
        """None where topic resolution is not by multicast."""
        o = ResolverOptions.of(p.receiving.um)
        if not uses_multicast(p.receiving.um) or o.incoming_address == ANY:
            return None
        source = LbtrmSourceOptions.of(p.sending.um)
        uses_lbtrm = p.sending.um.get_str(SRC, "transport") == "lbtrm"
        group = source.address if source.address != ANY else source.address_low
        data = GroupAddress(group, source.destination_port) if uses_lbtrm and IPv4Address(group).is_multicast else None
        largest = p.sending.number(CTX, "resolver_datagram_max_size")
        if data is not None:
            largest = max(largest, datagram_size(p.sending, "lbtrm", "source"))
        return cls(
            p.config.name, p.config.domain_id, net,
            GroupAddress(o.incoming_address, o.incoming_port), GroupAddress(o.outgoing_address, o.outgoing_port),
            data, GroupAddress(data.group if data is not None else o.outgoing_address, port), o.ttl,
            min(largest, probe.MAX_SIZED),
        )  # fmt: skip


class TrdProbe:
    """The probing of one portal's TRD."""

    def __init__(self, plan: TrdTestPlan, port: int, own: Collection[str]) -> None:
        """`own`: the addresses of this host. Raises: ResourceError when groups cannot be joined."""
        self._plan = plan
        self._port = port
        self._own = own
        self._until_ns = time.monotonic_ns() + LIMIT_NS
        data = [("data", plan.data)] if plan.data is not None else []
        self._heard_there = [("tr", plan.tr_out), *data]  # what this host sends to
        self._heard_here = [("tr", plan.tr_in), *data]
        others = [place for place in (plan.data, plan.sized) if place is not None]
        self._sockets = TrdSockets(plan.net.address, port, plan.ttl, (plan.tr_in, plan.tr_out), others)

    def close(self) -> None:
        self._sockets.close()

    # the checks, in order

    def run(self, responders: Sequence[str], listen_s: float, *, sends: bool) -> Checks:
        """`sends` off: only listen."""
        listen_ns = time.monotonic_ns() + s(listen_s)
        if sends:
            problem = self._send_signals()
            named_ns = max(listen_ns, time.monotonic_ns() + NAMED_NS)
            while (now_ns := time.monotonic_ns()) < (listen_ns if self._sockets.has_found(responders) else named_ns):
                self._sockets.hello(responders)
                self._sockets.receive(now_ns + min(HELLO_NS, max(0, listen_ns - now_ns) or HELLO_NS))
        else:
            self._sockets.receive(listen_ns)
        found = sorted(self._sockets.found)[:MAX_RESPONDERS] if sends else []
        if sends:
            yield from self._own_multicast(problem)
        for address in responders:
            if sends and address not in self._sockets.found:
                what = f"{address} does not answer on UDP port {self._port}"
                remedy = f"run there: tnwgdctl doctor --respond {address}, and let UDP port {self._port} through"
                yield fail(self._plan.portal, "responder", what, remedy)
        for address in found:
            if time.monotonic_ns() < self._until_ns:
                yield from self._with(address)
            else:
                yield note(self._plan.portal, "responder", f"{address}: no time left", "ask fewer responders at a time")
        if not found and sends:
            yield self._sizes_unknown()
        yield from self._others(listen_s, found)
        yield from self._domains()

    def _own_multicast(self, problem: str) -> Checks:
        plan, name = self._plan, "multicast on this host"
        for what, place in self._heard_there:
            count = self._sockets.own(place)
            shown = f"{place.group}:{place.port} ({_MEANING[what]}) on {plan.net.device}"
            if problem:
                yield fail(plan.portal, name, f"{shown}: {problem}", f"check ip route get {place.group}")
                return
            if not count:
                remedy = "look for a rule about it in nft list ruleset or iptables -S, both output and input"
                yield fail(plan.portal, name, f"{shown}: own datagrams are not heard", remedy)
            else:
                yield ok(plan.portal, name, f"{shown}: own datagrams are heard")

    def _others(self, listen_s: float, found: Sequence[str]) -> Checks:
        plan = self._plan
        others = sorted(self._sockets.received.hosts - set(self._own), key=IPv4Address)
        if others:
            shown = ", ".join(others[:6]) + (f" and {len(others) - 6} more" if len(others) > 6 else "")
            yield ok(plan.portal, "others", f"topic resolution of {shown} is heard")
        elif not found:
            what = f"nobody else was heard within {seconds(listen_s * 1000)}"
            if not plan.net.is_loopback:
                what += ", so whether multicast passes to and from other hosts is not known"
            remedy = "" if plan.net.is_loopback else "run tnwgdctl doctor --respond ADDRESS on another host of the TRD"
            yield note(plan.portal, "others", what, remedy)

    def _domains(self) -> Checks:
        plan, foreign = self._plan, False
        for (domain_id, is_dro), host in sorted(self._sockets.received.domains.items()):
            if domain_id in (0, plan.domain_id):
                continue
            foreign = True
            where = f"{host} speaks of domain id {domain_id}, this portal has {plan.domain_id}"
            if is_dro:
                remedy = "give the TRD one domain id at every DRO, or the two TRDs different resolver groups"
                yield fail(plan.portal, "domain id", f"the DRO at {where}", remedy)
            else:
                remedy = "restart that application after the DROs of its TRD agree"
                yield warn(plan.portal, "domain id", f"the application at {where}", remedy)
        if not foreign and any(domain_id == plan.domain_id for domain_id, _ in self._sockets.received.domains):
            yield ok(plan.portal, "domain id", f"{plan.domain_id} is what is said here, and no other")

    # with a responder

    def _with(self, address: str) -> Checks:
        plan = self._plan
        sockets = self._sockets
        yield against_clock(plan.portal, address, sockets.found[address].clock_ns)
        data = (plan.data,) if plan.data is not None else ()
        tr = tuple(dict.fromkeys((plan.tr_in, plan.tr_out)))
        problem = sockets.watch(address, tr, data, (plan.sized,))
        if problem:
            yield fail(plan.portal, "responder", f"{address} cannot join: {problem}", "look at its interface")
            return
        before = sockets.reported(address)
        self._send_signals()
        for what, place in self._heard_here:
            sockets.request_send(address, what, place, count=SIGNALS)
        sockets.settle()
        came = sockets.reported(address) - before
        if sockets.has_lost(address):
            yield warn(plan.portal, "responder", f"{address} has stopped answering", "start it again")
            return
        counts = {("to", *sent): came[sockets.own_key(sent[1])] for sent in self._heard_there}
        counts |= {("from", *sent): sockets.received_from(address, sent[1]) for sent in self._heard_here}
        for (direction, what, place), count in counts.items():
            yield self._direction(direction, address, what, place, count)
        for direction in ("to", "from"):
            if all(count for key, count in counts.items() if key[0] == direction) and not sockets.has_lost(address):
                yield from self._sizes(address, direction)

    def _direction(self, direction: str, address: str, what: str, place: GroupAddress, count: int) -> Check:
        plan = self._plan
        name = f"multicast {direction} {address}"
        shown = f"{place.group}:{place.port} ({_MEANING[what]})"
        way = f"from {plan.net.address} to {address}" if direction == "to" else f"from {address} to {plan.net.address}"
        if not count:
            remedy = (
                f"look at packet filters of both hosts, at net.ipv4.conf.*.rp_filter of the one that hears nothing, "
                f"and at IGMP snooping and multicast routing of switches between; the TTL is {plan.ttl}"
            )
            return fail(plan.portal, name, f"{shown} does not pass {way}", remedy)
        if count < SIGNALS:
            what = f"{shown}: {count} of {SIGNALS} datagrams pass {way}"
            return warn(plan.portal, name, what, "look for errors and drops in ip -s link on the way")
        return ok(plan.portal, name, f"{shown} passes")

    # sizes

    def _sizes_unknown(self) -> Check:
        plan = self._plan
        largest, room = plan.datagram_bytes, plan.net.mtu - IP_UDP_BYTES
        what = f"up to {largest} bytes of UDP payload, MTU {plan.net.mtu}:{_fragments(largest, room)}"
        if plan.net.is_loopback:
            return ok(plan.portal, "datagram size", what)
        return note(
            plan.portal, "datagram size", f"{what}; whether they pass the network is not known without a responder"
        )

    def _sizes(self, address: str, direction: str) -> Checks:
        """Try the configured size and whole datagrams of the MTU in one round; in more only if those get lost."""
        plan, sockets = self._plan, self._sockets
        name = f"datagram size {direction} {address}"
        room = min(plan.net.mtu - IP_UDP_BYTES, probe.MAX_SIZED)
        largest = plan.datagram_bytes
        full = self._passed(address, direction, (SMALLEST, largest), is_whole=False)
        low, high = 0, room + 1
        tried: tuple[int, ...] = (SMALLEST, room)
        for _ in range(SIZE_ROUNDS):
            passed = self._passed(address, direction, tried, is_whole=True)
            low, high = probe.narrowed(low, high, passed, tried)
            tried = probe.mtu_sizes(low, high)
            if high - low <= 1 or not tried or time.monotonic_ns() > self._until_ns or not low:
                break
        if sockets.has_lost(address):
            yield warn(plan.portal, "responder", f"{address} has stopped answering", "start it again")
            return
        if not low:  # the ports of UM are open, or this would not be reached
            what = f"not known: nothing passes to UDP port {plan.sized.port} of {plan.sized.group}"
            yield note(plan.portal, name, what, "let it through, or give another --port on both hosts")
            return
        mtu = low + IP_UDP_BYTES
        about = f"{mtu}" if high - low <= 1 else f"{mtu} to {high + IP_UDP_BYTES - 1}"
        if low < room:
            # Linux sends whole datagrams with the don't-fragment bit, so nothing on the way can help them
            also = ", in fragments they pass" if largest in full else ""
            what = (
                f"path MTU {about}, but the interface {plan.net.device} has {plan.net.mtu}: whole datagrams "
                f"above {low} bytes get lost{also}; UM sends up to {largest}"
            )
            remedy = (
                f"set the MTU of all hosts of the TRD to {mtu} (ip link set {plan.net.device} mtu {mtu}), or mend the "
                f"path; a datagram size of {low} helps as well"
            )
            yield fail(plan.portal, name, what, remedy)
        elif largest not in full:
            what = f"whole datagrams of {room} bytes pass, {largest} bytes in fragments do not"
            yield fail(plan.portal, name, what,
                       f"let IP fragments through, give all hosts the MTU {plan.net.mtu}, or set the datagram sizes of "
                       f"the TRD to {room}")  # fmt: skip
        else:
            yield ok(plan.portal, name, f"{largest} bytes of UDP payload pass{_fragments(largest, room)}")

    def _passed(self, address: str, direction: str, sizes: tuple[int, ...], *, is_whole: bool) -> set[int]:
        """Find which of these sizes arrive."""
        plan, sockets = self._plan, self._sockets
        copies = sizes * COPIES
        if direction == "to":
            before = sockets.reported(address)
            datagrams = tuple(probe.write_sized(FROM_DOCTOR, sockets.nonce, size, is_whole=is_whole) for size in copies)
            send_all(plan.sized, datagrams, plan.net.address, plan.ttl, is_whole=is_whole)
            sockets.settle()
            came = sockets.reported(address) - before
            return {size for size in sizes if came[sockets.own_key(plan.sized, size, is_whole=is_whole)]}
        earlier = {size: sockets.received_from(address, plan.sized, size, is_whole=is_whole) for size in sizes}
        sockets.request_send(address, "sized", plan.sized, sizes=copies, is_whole=is_whole)
        sockets.settle()
        return {n for n in sizes if sockets.received_from(address, plan.sized, n, is_whole=is_whole) > earlier[n]}

    def _send_signals(self) -> str:
        """Send signals to all places; what went wrong, or empty."""
        for what, place in self._heard_there:
            signals = (probe.SIGNALS[what](FROM_DOCTOR, self._sockets.nonce),) * SIGNALS
            problem = send_all(place, signals, self._plan.net.address, self._plan.ttl)
            if problem:
                return problem
        return ""


def against_clock(portal: str, address: str, ahead_ns: int) -> Check:
    """The wall clock of another host, which is so far ahead of ours."""
    if abs(ahead_ns) > CLOCKS_APART_NS:
        way = "ahead of" if ahead_ns > 0 else "behind"
        what = f"{address} is {seconds(abs(ahead_ns) / 1e6)} {way} this host"
        return warn(portal, "clock", what, "keep both clocks by NTP or PTP, or log lines mislead")
    return ok(portal, "clock", f"agrees with {address}")


_MEANING: Final = {"tr": "topic resolution", "data": "LBT-RM data"}


def _fragments(size: int, room: int) -> str:
    if size <= room:
        return " in one piece"
    payload = (room + 8) // 8 * 8  # of one fragment
    return f" in {-(-(size + 8) // payload)} IP fragments"


def responders_of(
    net: Net, prefix: IPv4Network | None, named: Sequence[str], all_prefixes: Sequence[IPv4Network]
) -> list[str]:
    """List the named responders that are in this network; one that is in none of ours is tried on all."""
    found = []
    for address in named:
        number = IPv4Address(address)
        here = prefix is not None and number in prefix
        if here or not any(number in other for other in all_prefixes):
            found.append(address)
    return found


def probe_trd(
    plan: TrdTestPlan, port: int, own: Collection[str], responders: Sequence[str], listen_s: float, *, sends: bool
) -> list[Check]:
    """All checks of one TRD."""
    try:
        trd = TrdProbe(plan, port, own)
    except ResourceError as e:
        return [fail(plan.portal, "multicast on this host", e.what, e.remedy or "check the interface")]
    with contextlib.closing(trd):
        return list(trd.run(responders, listen_s, sends=sends))

"""Network checks of one endpoint portal: whether resolver daemons and SRSes answer, asked as a context asks them.

A daemon gets keepalives, from an interface and port that the portal may use; an SRS a connection and the registration
of an application that has nothing to tell. Bounded in time, with sockets of its own.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dro.config.lint.finding import CTX, EndpointView
from dro.config.um.resolver_entries import ResolverEntry
from dro.config.um.sets import LocalPlace, servers_of, unicast_places
from dro.proto.resolver_service.link import LinkFault, Registered, ServiceLink
from dro.transport.sockets import ip_number
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs.messages import ApplicationType, RegistrationRequest
from supervisor.tools.doctor.check import Check, fail, note, ok

ANSWER_S: Final = 1.0
CONNECT_S: Final = 2.0
KEEPALIVES: Final = 3  # one may get lost
IP_RECVERR: Final = 11  # an unreachable port is told to a socket without a peer
READ_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class ServerTest:
    """One server of a portal. `place`: where datagrams for a daemon leave from; None: it is an SRS."""

    portal: str
    domain_id: int
    entry: ResolverEntry
    place: LocalPlace | None
    at: str  # file:line of the option

    @property
    def name(self) -> str:
        return f"{'lbmrd' if self.place is not None else 'SRS'} {self.entry}"

    def run(self, *, sends: bool) -> Check:
        if not sends:
            return note(self.portal, self.name, "not asked, since nothing is to be sent")
        try:
            return self._srs() if self.place is None else self._daemon(self.place)
        except PermissionError as e:
            remedy = "look at the packet filter of this host, nft list ruleset or iptables -S, for what goes out"
            return self._failed(e.strerror or str(e), remedy)
        except OSError as e:
            return self._failed(e.strerror or str(e), "look at the route, ip route get " + self.entry.address)

    def _failed(self, what: str, remedy: str) -> Check:
        return fail(self.portal, self.name, what, remedy, self.at)

    def _busy(self, what: str) -> Check:
        return note(self.portal, self.name, f"not asked: {what} in use", "of a running DRO, tnwgdctl status shows it")

    # a daemon

    def _daemon(self, place: LocalPlace) -> Check:
        local = place.interface
        sock = _first_free(local, place.ports)
        if sock is None:
            ports = f"{place.ports[0]} to {place.ports[-1]}" if len(place.ports) > 1 else f"{place.ports[0]}"
            return self._busy(f"UDP {ports} on {local} ({place.option}) is")
        options = lbmr.standard_options(random.randbytes(8), lbmr.SenderType.DRO, self.domain_id)
        keepalive = lbmr.encode(lbmr.Packet(lbmr.VERSION, options, lbmr.ReceiverAlive()))
        stranger, is_refused = "", False
        with sock:
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            sent_s = time.monotonic()
            for attempt in range(1, KEEPALIVES + 1):
                with contextlib.suppress(ConnectionRefusedError):
                    sock.sendto(keepalive, (self.entry.address, self.entry.port))
                until_s = sent_s + attempt * ANSWER_S / KEEPALIVES
                for sender in _senders(sock, until_s):
                    if sender == (self.entry.address, self.entry.port):
                        return ok(self.portal, self.name, f"answers a keepalive in {_since(sent_s)}")
                    is_refused = is_refused or sender is None
                    stranger = stranger or (f"{sender[0]}:{sender[1]}" if sender is not None else "")
        if stranger:
            remedy = f"write {stranger} in resolver_unicast_daemon, or give lbmrd the interface"
            return self._failed(f"the answer comes from {stranger}, and is dropped", remedy)
        what = f"no answer to keepalives within {ANSWER_S:g} s" + (
            ": nothing has that port there" if is_refused else ""
        )
        ways = f"{self.entry.port} there and {place.ports[0]} to {place.ports[-1]} here"
        return self._failed(what, f"start lbmrd there, and let UDP between ports {ways} through, both ways")

    # an SRS

    def _srs(self) -> Check:
        entry, began_s = self.entry, time.monotonic()
        through = f"and let TCP port {entry.port} through"
        try:
            sock = socket.create_connection(
                (entry.address, entry.port), CONNECT_S, (entry.interface or "", entry.source_port)
            )
        except TimeoutError:
            return self._failed(f"no connection within {CONNECT_S:g} s", f"start the SRS there, {through}")
        except OSError as e:
            if e.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL) and entry.source_port:
                return self._busy(f"TCP {entry.source_port} is")
            if e.errno == errno.ECONNREFUSED:
                return self._failed("the connection is refused", f"start the SRS there, {through}")
            raise
        with sock:
            try:
                domain_id = _register(sock)
            except LinkFault as e:
                return self._failed(f"is no SRS that takes contexts: {e}", "look at what has that port, and at its log")
        shown = f"registers a context in {_since(began_s)}"
        if domain_id not in (0, self.domain_id):
            what = f"{shown}, but has domain id {domain_id}, this portal {self.domain_id}"
            return self._failed(what, "give the TRD one domain id at every DRO, or the two TRDs different SRSes")
        return ok(self.portal, self.name, f"{shown}, {f'domain id {domain_id}' if domain_id else 'without domain id'}")


def tests_of(p: EndpointView) -> list[ServerTest]:
    """List the daemons and SRSes of a portal."""
    servers = servers_of(p.receiving.um)
    places: dict[str, Sequence[LocalPlace | None]] = {"resolver_unicast_daemon": unicast_places(p.receiving.um)}
    return [
        ServerTest(p.config.name, p.config.domain_id, entry, place, str(p.receiving.place((CTX, option))))
        for option, entries in servers.items()
        for entry, place in zip(entries, places.get(option) or [None] * len(entries), strict=True)
    ]


def _first_free(local: str, ports: Sequence[int]) -> socket.socket | None:
    """Bind a socket to the first port that is free; None when none is. Raises: OSError."""
    for port in ports:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.bind((local, port))
        except OSError as e:
            sock.close()
            if e.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        else:
            return sock
    return None


def _since(began_s: float) -> str:
    return f"{(time.monotonic() - began_s) * 1000:.1f} ms"


def _senders(sock: socket.socket, until_s: float) -> Iterator[tuple[str, int] | None]:
    """Yield who sends something until then; None: a port is said to be unreachable."""
    while (left_s := until_s - time.monotonic()) > 0:
        sock.settimeout(left_s)
        try:
            yield sock.recvfrom(READ_BYTES)[1]
        except TimeoutError:
            return
        except ConnectionRefusedError:
            yield None


def _register(sock: socket.socket) -> int:
    """Return the domain id that the SRS tells an application. Raises: LinkFault, OSError."""
    until_s = time.monotonic() + ANSWER_S
    ip, _ = sock.getsockname()
    request = RegistrationRequest(ApplicationType.APPLICATION, ip_number(ip), 0, random.getrandbits(32), 0)
    link = ServiceLink(request, time.monotonic_ns())
    sock.sendall(link.output)
    while (left_s := until_s - time.monotonic()) > 0:
        sock.settimeout(left_s)
        try:
            data = sock.recv(READ_BYTES)
        except TimeoutError:
            break
        except ConnectionResetError:
            data = b""
        if not data:
            raise LinkFault("it closes the connection")
        for event in link.on_bytes(data, time.monotonic_ns()):
            if isinstance(event, Registered):
                return event.domain_id
    raise LinkFault(f"no answer to a registration within {ANSWER_S:g} s")

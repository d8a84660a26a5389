"""A stranger in a TRD and a hostile companion of a DRO, and each attack that they make, as often as wanted."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from dro.errors import DecodeError
from dro.proto.peerlink.messages import (
    Hello,
    SourceRecord,
    hello,
    keepalive,
    pattern_interest,
    source,
    topic_interest,
)
from dro.transport.sockets import OS_SOCKETS, ip_number
from dro.wire.lbmc.dro_blocks import PATTERN_PCRE
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import TirOptions
from dro.wire.lbmr.records import PatternType, Tir, WildcardTqr
from dro.wire.lbmr.tlv import UnknownOption
from dro.wire.lbmr.tnwg import TnwgAddress, TnwgContextFlag, TnwgContextInstance, TnwgDomain
from dro.wire.source_string import TcpAddress
from router.route_info import RouteHead, read_head, write_route
from router.route_info_exchange import VERSIONS_AHEAD
from router.topology import DroRecord, Neighbour
from tests.rigs.network import Plan
from tests.rigs.site import PORTS_PER_TRD

LOOPBACK: Final = ip_number("127.0.0.1")
INVENTED: Final = 1 << 63 | 0xBAD0000
SLOW_PATTERN: Final = b"(?:a+)+[^a]%d"


class Liar:
    """In TRD `trd` of the DRO `victim`, and its companion `name`, which connects; both are of the plan."""

    def __init__(self, plan: Plan, victim: str, trd: int, name: str) -> None:
        self._plan, self._victim, self._trd, self._name = plan, victim, trd, name
        self._group = OS_SOCKETS.multicast_sender(
            ip_number(f"{plan.net(trd)}.1"), plan.port(trd), "127.0.0.1", ttl=0, buffer_bytes=1 << 20
        )
        self._link: socket.socket | None = None
        self._requests: list[socket.socket] = []
        self._unread = b""
        self._numbers = count(1)
        self.heard: dict[int, RouteHead] = {}
        """The newest route information of each DRO, as the victim tells its companion."""

    def close(self) -> None:
        for sock in (self._group, *self._requests, *([self._link] if self._link is not None else [])):
            sock.close()

    # what it says

    def _tell_trd(self, body: lbmr.Body) -> None:
        with contextlib.suppress(OSError):
            self._group.send(lbmr.encode(lbmr.Packet(lbmr.VERSION, None, body)))

    def _tell_companion(self, *messages: bytes, reads: bool = True) -> None:
        try:
            if self._link is None:
                port = self._plan.link_port(self._name, self._victim)
                self._link = socket.create_connection(("127.0.0.1", port), 5)
                self._link.setblocking(False)
                self._unread = b""
                own = Hello(f"{self._name}{self._plan.base}".encode(), b"companio", has_digests=True, node_id=INVENTED)
                self._link.send(hello(own))
            if reads:
                self.read()
            for message in messages:
                self._link.send(message)
        except BlockingIOError:
            pass
        except OSError:
            self.hang_up()

    def hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def read(self) -> None:
        """What the victim tells its companion."""
        assert self._link is not None
        with contextlib.suppress(BlockingIOError):
            while data := self._link.recv(1 << 20):
                self._unread += data
        while len(self._unread) >= 4 and len(self._unread) >= (size := int.from_bytes(self._unread[2:4], "big")) > 0:
            message, self._unread = self._unread[:size], self._unread[size:]
            with contextlib.suppress(DecodeError):
                head = read_head(message)
                self.heard[head.node_id] = head

    def _tell_request_ports(self, message: bytes) -> None:
        if not self._requests:
            base = self._plan.port(self._trd)
            for port in range(base + 1, min(base + 20, base + PORTS_PER_TRD)):
                with contextlib.suppress(OSError):
                    self._requests.append(socket.create_connection(("127.0.0.1", port), 1))
        for sock in list(self._requests):
            try:
                sock.settimeout(0.05)
                sock.sendall(message)
            except OSError:
                sock.close()
                self._requests.remove(sock)

    # what it makes

    def _forged(self, nth: int, ahead: int = 1, ttl: int = 100) -> bytes:
        """One of the DROs that are known has no neighbours any more."""
        if not self.heard:
            return b""
        node, head = sorted(self.heard.items())[nth % len(self.heard)]
        record = DroRecord(node, (), version=head.version + ahead, name="forged")
        return write_route(record, sqn=head.sqn + 7, ttl=ttl, topology=1, configuration=0, gateway_version=0)

    @staticmethod
    def _invented(nth: int, neighbours: int = 2000) -> bytes:
        links = tuple(Neighbour(1 << 40 | nth << 16 | n, 1, 1) for n in range(1, neighbours))
        record = DroRecord(INVENTED + 1 + nth, links, version=1, name=f"invented {nth}")
        return write_route(record, sqn=1, ttl=100, topology=1, configuration=0, gateway_version=0)

    @staticmethod
    def _context(nth: int) -> lbmr.TnwgContextInfo:
        options = (TnwgContextInstance(nth.to_bytes(8, "big")), TnwgAddress(1 + nth % 60_000, ip=LOOPBACK))
        return lbmr.TnwgContextInfo(0, int(TnwgContextFlag.DRO_SOURCE), options=(*options, TnwgDomain(2)))

    def _advertisement(self, nth: int, options: int) -> Tir:
        some = tuple(UnknownOption(0x7A, b"\x80" + nth.to_bytes(3, "big")) for _ in range(options))
        return Tir(b"liar.%d" % nth, TcpAddress(LOOPBACK, 9, nth), 10, nth, TirOptions(some))

    # the attacks: in the TRD

    def forged_routes_in_the_trd(self, nth: int) -> None:
        self._tell_companion()
        self._tell_request_ports(self._forged(nth))

    def forged_routes_by_an_announced_stranger(self, nth: int) -> None:
        self._tell_trd(self._context(1))
        self.forged_routes_in_the_trd(nth)

    def invented_dros_in_the_trd(self, nth: int) -> None:
        self._tell_trd(self._context(1))
        self._tell_request_ports(self._invented(nth))

    def announced_contexts(self, nth: int) -> None:
        self._tell_trd(self._context(nth))

    def advertisements_with_many_options(self, nth: int) -> None:
        self._tell_trd(lbmr.Queries((), (self._advertisement(nth, 1000 if nth % 2 else 12),)))

    def new_names(self, nth: int) -> None:
        names = range(nth * 40, nth * 40 + 40)
        self._tell_trd(lbmr.Queries(tuple(b"liar.wants.%d" % n for n in names[:20]), ()))
        self._tell_trd(lbmr.Queries((), tuple(self._advertisement(n, 0) for n in names)))

    def slow_patterns(self, nth: int) -> None:
        self._tell_trd(lbmr.WildcardQueries((WildcardTqr(PatternType.PCRE, SLOW_PATTERN % nth),), ()))
        self._tell_trd(lbmr.Queries((), (self._advertisement(nth, 0),)))

    # behind a link

    def forged_routes_of_the_companion(self, nth: int) -> None:
        self._tell_companion(self._forged(nth, 1 if nth % 3 else VERSIONS_AHEAD - 1, 1 + nth % 2 * 99))

    def invented_dros_of_the_companion(self, nth: int) -> None:
        self._tell_companion(self._invented(nth))

    def a_changing_far_link(self, nth: int) -> None:
        record = DroRecord(INVENTED, (Neighbour(INVENTED + 1, 1 + nth % 7, 1),), version=nth, name="far")
        self._tell_companion(write_route(record, sqn=nth, ttl=9, topology=1, configuration=0, gateway_version=0))

    def questions_without_reading(self, nth: int) -> None:
        self._tell_companion(*[keepalive(n, n) for n in range(100)], reads=False)

    def sources_with_large_options(self, nth: int) -> None:
        about = SourceRecord(
            nth + 1, 1, b"liar.%d" % nth, os.urandom(32), 7, options=bytes(4000 if nth % 2 else 30_000)
        )
        self._tell_companion(source(about))

    def interest_without_end(self, nth: int) -> None:
        some = [m for n in range(5) for m in topic_interest(b"liar.%d.%d" % (nth, n), range(100, 150))]
        self._tell_companion(*some, *pattern_interest(SLOW_PATTERN % nth, PATTERN_PCRE, nth, (100,)))

    def the_name_of_another_companion(self, nth: int) -> None:
        """As a second host with its configuration, or a stranger who has seen its HELLO."""
        own = Hello(f"A{self._plan.base}".encode(), b"stranger", has_digests=True, node_id=INVENTED if nth % 2 else 0)
        with contextlib.suppress(OSError):
            sock = socket.create_connection(("127.0.0.1", self._plan.link_port("A", self._victim)), 5)
            sock.sendall(hello(own))
            self._requests.append(sock)
        while len(self._requests) > 30:
            self._requests.pop(0).close()

    def attacks(self) -> Iterator[tuple[str, int, Callable[[int], None]]]:
        """Name, how often a second, and what is done then."""
        for rate, attack in (
            (20, self.forged_routes_in_the_trd),
            (20, self.forged_routes_by_an_announced_stranger),
            (10, self.invented_dros_in_the_trd),
            (100, self.announced_contexts),
            (300, self.advertisements_with_many_options),
            (200, self.slow_patterns),
            (50, self.forged_routes_of_the_companion),
            (10, self.invented_dros_of_the_companion),
            (2, self.a_changing_far_link),
            (100, self.questions_without_reading),
            (100, self.sources_with_large_options),
            (50, self.interest_without_end),
            (5, self.the_name_of_another_companion),
            (100, self.new_names),
        ):
            yield attack.__name__.replace("_", " "), rate, attack
            self.hang_up()
            while self._requests:
                self._requests.pop().close()

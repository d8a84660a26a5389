"""Contexts and SRSes without sockets: whole cores that give each other their bytes, in time that tests move."""

from __future__ import annotations

from dataclasses import replace

from dro.clock import s
from dro.proto.resolver_service.client import ServiceClient
from dro.proto.resolver_service.link import LinkFault
from dro.proto.srs.connection import SrsConnection
from dro.proto.srs.server import SrsServer
from dro.proto.srs.settings import SrsSettings
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs.messages import InterestMode, RegistrationRequest

START_NS = s(1000)
PORTION = 1000
"""Bytes that go over at once, so that frames are cut anywhere."""


class SrsContext:
    """A context that has nothing but its side towards SRSes; keeps what is handed up."""

    def __init__(self, network: SrsNetwork, name: bytes, *, source_type: int, domain_id: int, mode: int) -> None:
        self.source_id = name.ljust(8, b".")[:8]
        self.source_type = source_type
        filters = InterestMode(mode).filters
        self.client = ServiceClient(self.source_id, source_type, domain_id, network.now_ns, filters=filters)
        self.registration = RegistrationRequest(
            source_type, 0x0A000001, 14391, int.from_bytes(self.source_id[:4], "big"), 0, mode, domain_id
        )
        self.domain_id = domain_id
        self.packets: list[lbmr.Packet] = []
        self.faults: list[str] = []
        self._network = network

    @property
    def options(self) -> lbmr.PacketOptions:
        return lbmr.standard_options(self.source_id, self.source_type, self.domain_id)

    def say(self, body: lbmr.Body) -> None:
        """Say something as topic resolution over UDP would."""
        packet = lbmr.Packet(lbmr.VERSION, self.options, body)
        self.client.send([lbmr.encode(packet)], self._network.now_ns)

    def advertise(self, tir: lbmr.Tir) -> None:
        self.say(lbmr.Queries((), (tir,)))

    def end(self, tir: lbmr.Tir) -> None:
        """The final advertisement."""
        options = (tir.options or lbmr.TirOptions()).replacing(lbmr.Cost(0, lbmr.FINAL_COST))
        self.advertise(replace(tir, options=options))

    def hear(self, packet: lbmr.Packet) -> None:
        """Take what is handed up; the domain id is learnt from DROs, as a resolver learns it."""
        self.packets.append(packet)
        options = packet.options
        if options is not None and options.is_from_dro and options.local_domain and not self.domain_id:
            self.domain_id = options.local_domain
            self.client.set_domain(self.domain_id)

    def take(self) -> list[lbmr.Packet]:
        """What was handed up since the last time, but for what only tells the domain id."""
        packets, self.packets = self.packets, []
        return [packet for packet in packets if packet.body != lbmr.Queries()]

    def topics(self) -> list[tuple[bytes, bool]]:
        """Sources in what was handed up: topic, and whether it was the end."""
        bodies = [packet.body for packet in self.take()]
        return [(tir.topic, tir.is_final) for body in bodies if isinstance(body, lbmr.Queries) for tir in body.tirs]


class SrsNetwork:
    """See the module text."""

    def __init__(self, servers: int = 1, settings: SrsSettings | None = None) -> None:
        self.now_ns = START_NS
        self.settings = settings or SrsSettings()
        self.servers: list[SrsServer | None] = [SrsServer(self.settings, self.now_ns) for _ in range(servers)]
        self.contexts: list[SrsContext] = []
        self.connections: dict[tuple[SrsContext, int], SrsConnection] = {}

    def context(
        self,
        name: bytes,
        *,
        source_type: int = lbmr.SenderType.APPLICATION,
        domain_id: int = 0,
        mode: int = InterestMode.FILTER,
    ) -> SrsContext:
        """Make a context; it connects with the next step."""
        made = SrsContext(self, name, source_type=source_type, domain_id=domain_id, mode=mode)
        self.contexts.append(made)
        return made

    def dro(self, name: bytes, domain_id: int) -> SrsContext:
        mode = InterestMode.FILTER_AND_FORWARD
        return self.context(name, source_type=lbmr.SenderType.DRO, domain_id=domain_id, mode=mode)

    def kill(self, server: int) -> None:
        """End an SRS with all it knows."""
        self.servers[server] = None
        for context, number in list(self.connections):
            if number == server:
                self.cut(context, server)

    def start(self, server: int) -> None:
        self.servers[server] = SrsServer(self.settings, self.now_ns)

    def cut(self, context: SrsContext, number: int) -> None:
        """Break a connection; it is made anew with the next step."""
        connection = self.connections.pop((context, number))
        server = self.servers[number]
        if server is not None:
            server.on_closed(connection)
        context.client.on_closed(number)

    def leave(self, context: SrsContext) -> None:
        """End a context that says nothing."""
        self.contexts.remove(context)
        for number in range(len(self.servers)):
            if (context, number) in self.connections:
                self.cut(context, number)

    def run(self, milliseconds: int, step_ms: int = 10) -> None:
        for _ in range(0, milliseconds, step_ms):
            self.settle()
            self.now_ns += step_ms * 1_000_000
        self.settle()

    def settle(self) -> None:
        """Let everything happen that can at this time."""
        for context in self.contexts:
            for number, server in enumerate(self.servers):
                if server is not None and (context, number) not in self.connections:
                    connection = server.connect(f"peer of {context.source_id!r}", self.now_ns)
                    assert connection is not None
                    self.connections[context, number] = connection
                    context.client.on_connected(number, context.registration, self.now_ns)
            for number, fault in context.client.on_timer(self.now_ns):
                context.faults.append(fault)
                self.cut(context, number)
        for server in self.servers:
            if server is not None and server.next_deadline() <= self.now_ns:
                server.on_timer(self.now_ns)
        while self._move():
            pass

    def _move(self) -> bool:
        """Move one portion of each direction of each connection."""
        has_moved = False
        for (context, number), connection in list(self.connections.items()):
            server = self.servers[number]
            assert server is not None
            output = context.client.output(number)
            if output and connection.wants_bytes:
                has_moved = True
                server.on_bytes(connection, bytes(output[:PORTION]), self.now_ns)
                del output[:PORTION]
            while server.work(self.now_ns):
                pass
            server.take_ready()
            server.take_notes()
            pending = bytes(connection.pending()[:PORTION])
            if pending:
                has_moved = True
                server.on_sent(connection, len(pending), self.now_ns)
                try:
                    context.client.on_bytes(number, pending, self.now_ns)
                except LinkFault as e:
                    context.faults.append(str(e))
                    self.cut(context, number)
            elif connection.is_closing:
                self.cut(context, number)
        for context in self.contexts:
            due_ns = context.client.next_deadline()
            if due_ns is not None and due_ns <= self.now_ns:
                for number, fault in context.client.on_timer(self.now_ns):
                    context.faults.append(fault)
                    self.cut(context, number)
                has_moved = True
            packets = context.client.take_packets()
            has_moved = has_moved or bool(packets)
            for packet in packets:
                context.hear(packet)
        return has_moved

"""The clients of a server of topic resolution over TCP, with or without a connection, and how long they are remembered.

What a lost client has told is kept for the state lifetimes; when it is back, what it does not tell again within the
grace goes. A client that is back again within its grace has one anew. What is long to do is appended to `chores`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dro.proto.srs.connection import SrsConnection
from dro.proto.srs.records import SrsRecords, Steps
from dro.proto.srs.settings import SrsSettings
from dro.proto.srs.tables import ClientKey, SrsClient
from dro.wire.srs.messages import RegistrationRequest


@dataclass(slots=True)
class ClientCounts:
    """Counts what has happened since the start."""

    registrations: int = 0
    returned: int = 0
    forgotten: int = 0  # to make room for others


class SrsClients:
    """All clients that are remembered."""

    def __init__(self, settings: SrsSettings, records: SrsRecords, chores: deque[Steps]) -> None:
        self._times = settings.times
        self._most = settings.limits.clients
        self._records = records
        self._chores = chores
        self.counts = ClientCounts()
        self.lost: dict[SrsClient, None] = {}  # the one lost first comes first
        self._clients: dict[ClientKey, SrsClient] = {}
        self._routed: dict[SrsClient, None] = {}  # that have told a domain route
        self._source_ends: dict[SrsClient, int] = {}  # of lost clients, the first that is due first
        self._interest_ends: dict[SrsClient, int] = {}
        self._graces: dict[SrsClient, int] = {}  # of clients that are back
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, request: RegistrationRequest) -> SrsClient | None:
        """Find who registers again."""
        return self._clients.get(_key_of(request))

    def register(self, request: RegistrationRequest, connection: SrsConnection, now_ns: int) -> SrsClient | None:
        """Take a client, new or back; None when there are too many."""
        key = _key_of(request)
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= self._most and not self.make_room():
                return None
            self._numbers += 1
            client = self._clients[key] = SrsClient(key, self._numbers, request)
        else:
            self.counts.returned += 1
            self._keep_for_good(client)
            client.registration = request
            self._graces[client] = now_ns + self._times.grace_ns
        client.generation += 1
        client.connection = connection
        self.counts.registrations += 1
        return client

    def lose(self, client: SrsClient, now_ns: int) -> None:
        """Note that a client has lost its connection: its records stay for a while."""
        client.connection = None
        if not client.sources and not client.interest:
            self._forget(client)
            return
        self.lost[client] = None
        if self._times.source_state_ns:
            self._source_ends[client] = now_ns + self._times.source_state_ns
        if self._times.interest_state_ns:
            self._interest_ends[client] = now_ns + self._times.interest_state_ns

    def _keep_for_good(self, client: SrsClient) -> None:
        """Note that a client is not lost any more; a grace begins anew, or is over."""
        for known in (self.lost, self._source_ends, self._interest_ends, self._graces):
            known.pop(client, None)

    def make_room(self) -> bool:
        """Forget the client that was lost first; False when none is lost."""
        client = next(iter(self.lost), None)
        if client is None:
            return False
        self.counts.forgotten += 1
        self._forget(client)
        return True

    def _forget(self, client: SrsClient) -> None:
        """Remove a client with all that it has told."""
        self._keep_for_good(client)
        self._drop_route(client)
        del self._clients[client.key]
        self._chores.append(self._records.forget_sources(client, client.generation + 1))
        self._chores.append(self._records.forget_all_interest(client, client.generation + 1))

    # domain routes

    def keep_route(self, client: SrsClient, raw: bytes, now_ns: int) -> None:
        """Keep the frame of a domain route for who comes later, in place of the last one."""
        self._drop_route(client)
        if self._records.take_bytes(client, len(raw)):
            client.route, client.route_until_ns = raw, now_ns + self._times.route_state_ns
            self._routed[client] = None

    def _drop_route(self, client: SrsClient) -> None:
        self._routed.pop(client, None)
        self._records.give_back(client, len(client.route))
        client.route = b""

    def routes(self, but: SrsClient) -> list[bytes]:
        """Return the frames of the domain routes that others have told lately."""
        return [client.route for client in self._routed if client is not but]

    # time

    def next_deadline(self) -> int | None:
        dues = [next(iter(ends.values()), None) for ends in (self._source_ends, self._interest_ends, self._graces)]
        dues.append(self._records.next_farewell_ns())
        return min((due_ns for due_ns in dues if due_ns is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        """Begin what is due."""
        records = self._records
        for client in [one for one in self._routed if one.route_until_ns <= now_ns]:
            self._drop_route(client)
        for client, steps in records.due_farewells(now_ns):
            self._chores.append(self._then_drop(client, steps))
        both = (records.forget_sources, records.forget_all_interest)
        for ends, kinds, further in (
            (self._source_ends, both[:1], 1),
            (self._interest_ends, both[1:], 1),
            (self._graces, both, 0),  # what was told in this generation stays
        ):
            for client in _due(ends, now_ns):
                del ends[client]
                for forget in kinds:
                    self._chores.append(self._then_drop(client, forget(client, client.generation + further)))

    def _then_drop(self, client: SrsClient, steps: Steps) -> Steps:
        """Forget a lost client once nothing is left of what it has told."""
        yield from steps
        if client in self.lost and not client.sources and not client.interest:
            self._forget(client)


def _due(ends: dict[SrsClient, int], now_ns: int) -> list[SrsClient]:
    """List the clients at the beginning whose time is over."""
    found = []
    for client, due_ns in ends.items():
        if due_ns > now_ns:
            break
        found.append(client)
    return found


def _key_of(request: RegistrationRequest) -> ClientKey:
    return (request.client_ip, request.client_port, request.session_id)

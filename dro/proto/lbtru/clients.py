"""The receivers of one LBT-RU session, at its source: who is connected, and what each asks for.

Each datagram goes to all of them, and has one number for all. Repairs go to who asked, so each has its own
`Retransmitter`: what was sent again to one was not sent to another. A client that says nothing for the timeout is
forgotten; whoever was, or never asked, and says something is told by a reset.

Source: transport notes, section 7; UM Configuration Guide, `transport_lbtru_client_activity_timeout`. Guess: a NAK is a
sign of life as an acknowledgement is; a timeout of 0 is none; session messages begin with the first client, whether
there was data or not, as a session without data would end for it. A client that has shown nothing but its request is
forgotten after a third of the timeout, so that requests in the name of others bring them little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.retransmit import Retransmitter
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import SourceSession, SourceStats

CLIENTS_MAX: Final = 1024
"""Of one session. Guess: UM has no limit; each costs a copy of all data, so more have use for multicast."""
CLIENTS_OF_ONE: Final = 128
"""Of one IPv4 address, for the same reason."""
TRIAL_SHARE: Final = 3

ClientAddress = tuple[str, int]
"""IPv4 address and UDP port."""


@dataclass(slots=True)
class LbtruSourceStats(SourceStats):
    """Counters of one session, with how many receivers it has."""

    num_clients: int = 0


@dataclass(frozen=True, slots=True)
class ClientConnected:
    """Send data to this one, too."""

    client: ClientAddress
    at_ns: int


@dataclass(frozen=True, slots=True)
class ClientDisconnected:
    """Send no more data to this one: it has been silent."""

    client: ClientAddress
    at_ns: int


@dataclass(frozen=True, slots=True)
class ClientRefused:
    """Nothing is sent to this one: there are as many as may be."""

    client: ClientAddress
    at_ns: int


@dataclass(frozen=True, slots=True)
class SendSyn:
    """ClientAnswer a request to connect."""

    client: ClientAddress
    message: SendSm


@dataclass(frozen=True, slots=True)
class SendReset:
    """Tell who is no client that it is none."""

    client: ClientAddress
    at_ns: int


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """Send to one client what its NAK has led to; `owner` is told of a retransmission that did not leave."""

    client: ClientAddress
    effect: Retransmit | SendNcf
    owner: Retransmitter


ClientEffect = ClientConnected | ClientDisconnected | ClientRefused | SendSyn | SendReset | ClientAnswer


@dataclass(slots=True, eq=False)
class _Client:
    heard_ns: int
    retransmitter: Retransmitter


@dataclass(slots=True)
class ClientList:
    """Keeps the clients in the order in which they were heard last. `source` is the core of the session."""

    source: SourceSession
    timeout_ns: int
    most: int = CLIENTS_MAX
    of_one: int = CLIENTS_OF_ONE
    _clients: dict[ClientAddress, _Client] = field(default_factory=dict)  # that have shown life
    _on_trial: dict[ClientAddress, _Client] = field(default_factory=dict)  # that have only asked
    _of_address: Counter[str] = field(default_factory=Counter)
    _waiting: dict[ClientAddress, _Client] = field(default_factory=dict)  # for the retransmission limit

    @property
    def addresses(self) -> list[ClientAddress]:
        return [*self._clients, *self._on_trial]

    @property
    def waiting_count(self) -> int:
        """Return how many retransmissions wait for the limit."""
        return sum(client.retransmitter.waiting_count for client in self._waiting.values())

    def on_request(self, address: ClientAddress, now_ns: int) -> list[ClientEffect]:
        """ClientAnswer a request to connect; one that is repeated is answered again."""
        effects: list[ClientEffect] = []
        if self._find(address) is None:
            if len(self._clients) + len(self._on_trial) >= self.most or self._of_address[address[0]] >= self.of_one:
                return [ClientRefused(address, now_ns)]
            effects.append(self.add(address, now_ns))
        return [*effects, SendSyn(address, self.source.make_sm(now_ns))]

    def add(self, address: ClientAddress, now_ns: int) -> ClientConnected:
        """Take one in that has asked, this process or the one before."""
        self._on_trial[address] = _Client(now_ns, self.source.for_one_receiver())
        self._of_address[address[0]] += 1
        self.source.begin(now_ns)
        return ClientConnected(address, now_ns)

    def on_acknowledgement(self, address: ClientAddress, now_ns: int) -> list[ClientEffect]:
        """Take a sign of life."""
        return [] if self._heard(address, now_ns) else [SendReset(address, now_ns)]

    def on_nak(self, address: ClientAddress, sqns: Iterable[int], now_ns: int) -> list[ClientEffect]:
        """ClientAnswer what a client misses."""
        if not self._heard(address, now_ns):
            return [SendReset(address, now_ns)]
        client = self._clients[address]
        return self._answers(address, client, client.retransmitter.on_nak(sqns, now_ns))

    def _find(self, address: ClientAddress) -> _Client | None:
        return self._clients.get(address) or self._on_trial.get(address)

    def _heard(self, address: ClientAddress, now_ns: int) -> bool:
        """Note a sign of life; False of one that is no client."""
        client = self._clients.pop(address, None) or self._on_trial.pop(address, None)
        if client is None:
            return False
        client.heard_ns = now_ns
        self._clients[address] = client
        return True

    def _answers(
        self, address: ClientAddress, client: _Client, effects: Sequence[Retransmit | SendNcf]
    ) -> list[ClientEffect]:
        if client.retransmitter.wake_ns is None:
            self._waiting.pop(address, None)
        else:
            self._waiting[address] = client
        return [ClientAnswer(address, effect, client.retransmitter) for effect in effects]

    def next_deadline(self) -> int | None:
        """Return when `on_timer` has work, ns."""
        deadlines = []
        for clients, timeout_ns in self._timeouts():
            if clients:
                deadlines.append(next(iter(clients.values())).heard_ns + timeout_ns)
        deadlines += [w for client in self._waiting.values() if (w := client.retransmitter.wake_ns) is not None]
        return min(deadlines, default=None)

    def on_timer(self, now_ns: int) -> list[ClientEffect]:
        """Forget who is silent, and send what waits for the limit."""
        effects: list[ClientEffect] = []
        for clients, timeout_ns in self._timeouts():
            while clients:
                address, client = next(iter(clients.items()))
                if client.heard_ns + timeout_ns > now_ns:
                    break
                self._forget(address)
                effects.append(ClientDisconnected(address, now_ns))
        for address, client in list(self._waiting.items()):
            wake_ns = client.retransmitter.wake_ns
            if wake_ns is not None and wake_ns <= now_ns:
                effects += self._answers(address, client, client.retransmitter.drain(now_ns))
        return effects

    def _timeouts(self) -> Iterator[tuple[dict[ClientAddress, _Client], int]]:
        """Say how long clients of both kinds are waited for."""
        if self.timeout_ns:
            yield self._clients, self.timeout_ns
            yield self._on_trial, self.timeout_ns // TRIAL_SHARE

    def _forget(self, address: ClientAddress) -> None:
        client = self._clients.pop(address, None) or self._on_trial.pop(address)
        client.retransmitter.close()
        self._of_address[address[0]] -= 1
        if not self._of_address[address[0]]:
            del self._of_address[address[0]]
        self._waiting.pop(address, None)

    def close(self) -> None:
        """Forget all."""
        for address in self.addresses:
            self._forget(address)

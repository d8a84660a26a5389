"""A UM context in a simulated TRD: a host of the engine that contexts of processes have, without sockets."""

from __future__ import annotations

from random import Random
from typing import Any, Final, Protocol

from dro.config.um.options import UmOptions
from dro.config.um.sets import ResolverOptions
from dro.proto.context import effects as do
from dro.proto.context.engine import ContextEngine
from dro.proto.context.host import ContextHost
from dro.proto.context.own import OwnSource, OwnSources
from dro.proto.context.sources import BoundSource
from dro.um.fragment.options import advertising_options, resolver_config
from dro.wire.lbmr import packet as lbmr
from supervisor.tools.simulate.messages import Sent
from supervisor.tools.simulate.portal import compiled
from supervisor.tools.simulate.trd import SimSession, Trd

UNICAST_PORT: Final = 14391


class ContextUser(Protocol):
    """Has a simulated context: an endpoint portal or an application."""

    def on_packet(self, packet: lbmr.Packet, sender_ip: int) -> None: ...

    def on_bound(self, source: BoundSource[Any]) -> None: ...

    def on_changed(self, source: BoundSource[Any]) -> None: ...

    def on_unbound(self, source: BoundSource[Any]) -> None: ...

    def on_data(self, source: BoundSource[Any], sent: Sent) -> None: ...

    def on_unicast(self, message: bytes, sender_ip: int) -> None:
        """Take route information of another DRO in the TRD; for portals alone."""

    def on_servers_back(self) -> None:
        """Tell everything anew that is not the context's; for portals alone."""


class SimSource:
    """One source of a simulated context, on a session of its own."""

    def __init__(self, own: OwnSource, session: SimSession) -> None:
        self.own, self.session = own, session


class SimContext(ContextHost):
    """See the module text."""

    def __init__(
        self,
        trd: Trd,
        user: ContextUser,
        options: UmOptions,
        rng: Random,
        *,
        sending: UmOptions | None = None,
        host: str = "",
    ) -> None:
        """`sending`: the options of the context of a DRO that has the sources; None for an application.

        `host`: where it is, if others may be there before or after.
        """
        self.trd, self.user, self.options = trd, user, options
        self._is_dro = is_dro = sending is not None
        self.ip = trd.enter(self, host)
        kind = lbmr.SenderType.DRO if is_dro else lbmr.SenderType.APPLICATION
        o = ResolverOptions.of(options)
        if sending is not None:
            o = o.sending_as(ResolverOptions.of(sending))
        config = resolver_config(o, rng.randbytes(8), kind, trd.domain_id if is_dro else 0)
        super().__init__(
            ContextEngine(config, trd.clock.now_ns, compile_pattern=compiled, jitter=lambda ns: rng.randrange(ns))
        )
        self.own = OwnSources(
            self.engine.resolver,
            context_id=rng.getrandbits(32),
            first_index=rng.getrandbits(32),
            request_address=(self.ip, UNICAST_PORT),
        )
        self._bound: dict[SimSession, BoundSource[Any]] = {}
        self._acts_soon = False

    # the channel and the clock

    def on_packet(self, packet: lbmr.Packet, sender_ip: int) -> None:
        """Take a packet of another context of the TRD; all that come at one time are acted on together."""
        if self.engine.on_packet(packet, sender_ip, self.trd.clock.now_ns):
            self.user.on_packet(packet, sender_ip)
        if not self._acts_soon:
            self._acts_soon = True
            self.trd.clock.after(0, self._on_soon)

    def _on_soon(self) -> None:
        self._acts_soon = False
        self.pump()

    def next_deadline(self) -> int | None:
        return None if self.is_closed else self.engine.next_deadline()

    def on_timer(self, now_ns: int) -> None:
        self.engine.on_timer(now_ns)
        self.pump()

    def on_pumped(self) -> None:
        self.trd.send_packets(self, self.engine.resolver.take_outgoing())
        self.trd.clock.arm(self)

    def now_ns(self) -> int:
        return self.trd.clock.now_ns

    def kill(self) -> None:
        """End it without a word to anybody."""
        self.is_closed = True
        self.trd.leave(self)

    def perform(self, effect: do.ContextEffect) -> None:
        match effect:
            case do.JoinSession(source=source):
                self.engine.on_joined(source, self.trd.join(self, source.address))
            case do.LeaveSession(session=session):
                assert isinstance(session, SimSession)
                session.joined.pop(self, None)
                self._bound.pop(session, None)
            case do.Bound(source=bound):
                assert isinstance(bound.transport, SimSession)
                self._bound[bound.transport] = bound
                self.user.on_bound(bound)
            case do.Unbound(source=bound):
                self.user.on_unbound(bound)
            case do.Changed(source=bound):
                self.user.on_changed(bound)
            case _:
                pass  # for the log

    # sources

    def open_source(
        self,
        topic: bytes,
        options: UmOptions,
        *,
        source_otid: bytes | None = None,
        tir_items: tuple[lbmr.TirOption, ...] = (),
    ) -> SimSource:
        """Open a session and a source on it; see `OwnSources.open`. Raises: DecodeError."""
        session = self.trd.open_session(self, options, sm_before_data=self._is_dro)
        own = self.own.open(
            topic,
            (session.address, 1),
            advertising_options(options),
            self.trd.clock.now_ns,
            source_otid=source_otid,
            tir_items=tir_items,
        )
        self.pump()
        return SimSource(own, session)

    def close_source(self, source: SimSource) -> None:
        """Advertise the end of a source, and end its session."""
        self.own.close(source.own, self.trd.clock.now_ns, final=True)
        self.pump()
        self.trd.close_session(source.session)

    def on_data(self, session: SimSession, sent: Sent) -> None:
        """Take data of a session that was joined."""
        if (bound := self._bound.get(session)) is not None:
            self.user.on_data(bound, sent)

    def on_unicast(self, message: bytes, sender_ip: int) -> None:
        """Take route information of another DRO in the TRD."""
        self.user.on_unicast(message, sender_ip)

    def on_servers_back(self) -> None:
        """Tell everything anew."""
        self.engine.resolver.tell_all(self.trd.clock.now_ns)
        self.user.on_servers_back()
        self.pump()

    def on_session_ended(self, session: SimSession) -> None:
        """A joined session has ended by itself."""
        self.engine.on_session_ended(session, self.trd.clock.now_ns)
        self.pump()

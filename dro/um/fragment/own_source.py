"""The sources of one context as its users have them: topics on transport sessions, advertised until they are closed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dro.config.um.options import UmOptions
from dro.errors import DecodeError
from dro.loop import Loop
from dro.proto.context.own import OwnSource, OwnSources
from dro.transport.kept_senders import Runs
from dro.transport.session import SenderTransport
from dro.um.fragment.options import advertising_options
from dro.um.fragment.resolution import TopicResolution
from dro.um.fragment.source_sessions import SourceSessions
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import format_source


class FormerPlace(NamedTuple):
    """Where a source was: on which session, and as which topic of it."""

    transport_index: int
    topic_index: int


class FragmentSource:
    """One source of ours."""

    def __init__(self, owner: ContextSources, own: OwnSource, transport: SenderTransport) -> None:
        self.topic, self.topic_index, self.otid = own.topic, own.topic_index, own.otid
        self.transport = transport
        self.sent_before: Runs = []
        """What the former incarnation of this process has sent on it."""
        self._owner = owner
        self._own = own
        self._is_closed = False

    @property
    def source_string(self) -> str:
        return format_source(self.transport.address, self.topic_index)

    def send_tsni(self, sqn: int, now_ns: int) -> bool:
        """Tell receivers the last topic sqn sent; False when the session is blocked."""
        return self.transport.send_message(lbmc.encode(lbmc.tsni_message([(self.topic_index, sqn)])), now_ns)

    def update(self, tir_options: Iterable[lbmr.TirOption], *, again: bool = False) -> None:
        """Advertise with these extra options from now on, at once if they differ. Raises: DecodeError.

        One that has advertised its end stays so, unless it is to be advertised `again`.
        """
        if not self._is_closed:
            self._owner.update(self._own, tuple(tir_options), again=again)

    def advertise(self) -> None:
        """Advertise what was opened silently, unless that has been done. Raises: DecodeError."""
        if not self._is_closed:
            self._owner.advertise(self._own)

    def end(self) -> None:
        """Advertise its end, and stay on the session."""
        if not self._is_closed:
            self._owner.end(self._own)

    def close(self, *, final: bool, linger_ns: int) -> None:
        """Stop advertising, with final advertisements or in silence, and leave the session.

        The session goes on repairing for `linger_ns` after its last data when this was its last source.
        """
        if not self._is_closed:
            self._is_closed = True
            self._owner.leave(self._own, self.transport, final=final, linger_ns=linger_ns)


class ContextSources:
    """Opens the sources of one context on sessions of its pools."""

    def __init__(self, loop: Loop, resolution: TopicResolution, pools: SourceSessions, own: OwnSources) -> None:
        self._loop = loop
        self._resolution = resolution
        self._pools = pools
        self._own = own

    def __len__(self) -> int:
        return len(self._own)

    def open(
        self,
        topic: bytes,
        options: UmOptions,
        source_otid: bytes | None,
        tir_items: tuple[lbmr.TirOption, ...],
        *,
        is_silent: bool = False,
        former: FormerPlace | None = None,
    ) -> FragmentSource:
        """Open a source; see `OwnSources.open`. `former`: where it was in the former incarnation of this process.

        Raises: ResourceError naming the option, DecodeError when it cannot be advertised.
        """
        transport = self._pools.acquire(options, former.transport_index if former else 0)
        goes_on = former is not None and transport.transport_index == former.transport_index
        try:
            own = self._own.open(
                topic,
                (transport.address, transport.transport_index),
                advertising_options(options),
                self._loop.now_ns(),
                source_otid=source_otid,
                tir_items=tir_items,
                is_silent=is_silent,
                topic_index=former.topic_index if former and goes_on else None,
            )
        except DecodeError:
            self._pools.release(transport, 0)
            raise
        self._pools.filters.add_topic(transport.transport_index, own.topic_index)
        self._resolution.pump()
        source = FragmentSource(self, own, transport)
        if goes_on:
            source.sent_before = self._pools.sent_before(transport, own.topic_index)
        return source

    @property
    def has_silent(self) -> bool:
        """Sources that were opened silently, and wait for `advertise_silent`."""
        return self._own.has_silent

    def advertise_silent(self) -> DecodeError | None:
        """See `OwnSources.advertise_silent`."""
        trouble = self._own.advertise_silent(self._loop.now_ns())
        self._resolution.pump()
        return trouble

    def advertise(self, source: OwnSource) -> None:
        """Do what `FragmentSource.advertise` says."""
        self._own.advertise(source, self._loop.now_ns())
        self._resolution.pump()

    def update(self, source: OwnSource, tir_items: tuple[lbmr.TirOption, ...], *, again: bool) -> None:
        """Do what `FragmentSource.update` says."""
        self._own.update(source, tir_items, self._loop.now_ns(), again=again)
        self._resolution.pump()

    def end(self, source: OwnSource) -> None:
        """Do what `FragmentSource.end` says."""
        self._own.end(source, self._loop.now_ns())
        self._resolution.pump()

    def leave(self, source: OwnSource, transport: SenderTransport, *, final: bool, linger_ns: int) -> None:
        """Do what `FragmentSource.close` says."""
        self._own.close(source, self._loop.now_ns(), final=final)
        self._pools.filters.remove_topic(transport.transport_index, source.topic_index)
        self._pools.release(transport, linger_ns)
        self._resolution.pump()

    def stop_advertising(self) -> None:
        """Advertise nothing any more, in silence; for the end of the context, which ends the sessions itself."""
        self._own.remove_all(self._loop.now_ns())

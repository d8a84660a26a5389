"""A source of a context as its users have it: a topic on a transport session, advertised until it is closed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from dro.proto.context.own import OwnSource, OwnSources
from dro.transport.session import SenderTransport
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import format_source


class SourceOwner(Protocol):
    """Is the context of a source."""

    def now_ns(self) -> int: ...

    def on_own_changed(self) -> None: ...

    def on_own_closed(self, transport: SenderTransport, linger_ns: int) -> None: ...


class FragmentSource:
    """One source of ours."""

    def __init__(self, owner: SourceOwner, sources: OwnSources, own: OwnSource, transport: SenderTransport) -> None:
        self.topic, self.topic_index, self.otid = own.topic, own.topic_index, own.otid
        self.transport = transport
        self._owner = owner
        self._sources = sources
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
            self._sources.update(self._own, tuple(tir_options), self._owner.now_ns(), again=again)
            self._owner.on_own_changed()

    def end(self) -> None:
        """Advertise its end, and stay on the session."""
        if not self._is_closed:
            self._sources.end(self._own, self._owner.now_ns())
            self._owner.on_own_changed()

    def close(self, *, final: bool, linger_ns: int) -> None:
        """Stop advertising, with final advertisements or in silence, and leave the session.

        The session goes on repairing for `linger_ns` after its last data when this was its last source.
        """
        if not self._is_closed:
            self._is_closed = True
            self._sources.close(self._own, self._owner.now_ns(), final=final)
            self._owner.on_own_closed(self.transport, linger_ns)

"""The sources of one context: each a topic on a transport session, advertised until it is closed.

State: the open sources with what they are advertised with. Sessions come from `dro.um.fragment.source_sessions`.
Source: client library notes, sections 1 and 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from dro.config.um.options import UmOptions
from dro.config.um.sets import AdvertisingOptions
from dro.errors import DecodeError
from dro.loop import Loop
from dro.proto.resolver import schedule
from dro.proto.resolver.core import Resolver, SourceAd
from dro.table import Table
from dro.transport.session import SenderTransport
from dro.um.fragment.source_sessions import SourceSessions
from dro.wire import otid
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import TIR_OPTIONS
from dro.wire.source_string import format_source


class FragmentSource:
    """One source of ours: a topic on a transport session, advertised until closed."""

    def __init__(
        self, owner: OwnSources, topic: bytes, transport: SenderTransport, topic_index: int, source_otid: bytes
    ) -> None:
        self.topic = topic
        self.transport = transport
        self.topic_index = topic_index
        self.otid = source_otid
        self._owner = owner
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
            self._owner.update(self, tuple(tir_options), again=again)

    def end(self) -> None:
        """Advertise its end, and stay on the session."""
        if not self._is_closed:
            self._owner.end(self)

    def close(self, *, final: bool, linger_ns: int) -> None:
        """Stop advertising, with final advertisements or in silence, and leave the session.

        The session goes on repairing for `linger_ns` after its last data when this was its last source.
        """
        if not self._is_closed:
            self._is_closed = True
            self._owner.close(self, final=final, linger_ns=linger_ns)


class OwnSources:
    """All open sources of one context."""

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        sessions: SourceSessions,
        *,
        context_id: int,
        first_index: int,
        request_address: tuple[int, int],
        pump: Callable[[], object],
    ) -> None:
        """`pump`: carry out what the resolver asks for, after something was told to it from here."""
        self._loop = loop
        self._resolver = resolver
        self._sessions = sessions
        self._context_id = context_id
        self._next_index = first_index
        self._request_address = request_address
        self._pump = pump
        self._sources: Table[FragmentSource, tuple[int | None, tuple[lbmr.TirOption, ...], UmOptions]] = Table()
        self._unadvertised: deque[FragmentSource] = deque()
        self._ended: set[FragmentSource] = set()  # their end is advertised, and they still send

    def __len__(self) -> int:
        return len(self._sources)

    def open(
        self,
        topic: bytes,
        options: UmOptions,
        source_otid: bytes | None,
        tir_options: tuple[lbmr.TirOption, ...],
        *,
        is_silent: bool = False,
    ) -> FragmentSource:
        """A source on a session of the pool. `source_otid`: the origin's, for a proxy source; else one is made.
        `is_silent`: it is advertised by `advertise_silent`.

        `tir_options` are advertised beside OTID and request address; an `ExtendedFunctionality` among them replaces
        the own one. With a `Cost` it is a proxy source, which has the request address of its origin or none.
        Raises: ResourceError naming the option, DecodeError when it cannot be advertised.
        """
        transport = self._sessions.acquire(options)
        index = self._next_index
        self._next_index = (index + 1) & 0xFFFFFFFF
        try:
            if source_otid is None:
                source_otid = otid.encode(transport.address, index, self._context_id, transport.transport_index)
            source = FragmentSource(self, topic, transport, index, source_otid)
            handle = None if is_silent else self._advertise(source, tir_options, options)
        except DecodeError:
            self._sessions.release(transport, 0)
            raise
        self._sources[source] = (handle, tir_options, options)
        if is_silent:
            self._unadvertised.append(source)
        return source

    def _advertise(self, source: FragmentSource, tir_options: tuple[lbmr.TirOption, ...], options: UmOptions) -> int:
        ad = SourceAd(self._tir(source, tir_options), AdvertisingOptions.filling(schedule.AdvertisingOptions, options))
        return self._resolver.add_source(ad, self._loop.now_ns())

    def advertise_silent(self) -> DecodeError | None:
        """The next of the silent sources, if there is one; why it cannot be advertised."""
        while self._unadvertised:
            source = self._unadvertised.popleft()
            handle, tir_options, options = self._sources.get(source, (0, (), None))
            if handle is not None or options is None:
                continue  # closed meanwhile
            try:
                self._sources[source] = (self._advertise(source, tir_options, options), tir_options, options)
            except DecodeError as e:
                return e
            break
        return None

    @property
    def has_silent(self) -> bool:
        """Whether sources wait to be advertised."""
        return bool(self._unadvertised)

    def _tir(self, source: FragmentSource, extra: tuple[lbmr.TirOption, ...]) -> lbmr.Tir:
        items: list[lbmr.TirOption] = [lbmr.OtidOption(source.otid)]
        if not any(isinstance(item, lbmr.ExtendedFunctionality | lbmr.Cost) for item in extra):
            ip, port = self._request_address
            items.append(lbmr.ExtendedFunctionality(port=port, ip=ip))
        items += [item for item in extra if not isinstance(item, lbmr.OtidOption)]
        items.sort(key=TIR_OPTIONS.code)  # UM writes them in ascending order; the sort keeps that of equals
        options = lbmr.TirOptions(tuple(items))
        return lbmr.Tir(source.topic, source.transport.address, lbmr.TIR_TTL, source.topic_index, options)

    def update(self, source: FragmentSource, extra: tuple[lbmr.TirOption, ...], *, again: bool) -> None:
        """Do what `FragmentSource.update` says."""
        handle, before, chosen = self._sources[source]
        if again and source in self._ended:
            handle = self._advertise(source, extra, chosen)
            self._ended.discard(source)
        elif extra == before:
            return
        elif handle is not None:
            self._resolver.update_source(handle, self._tir(source, extra), self._loop.now_ns())
        self._sources[source] = (handle, extra, chosen)
        self._pump()

    def end(self, source: FragmentSource) -> None:
        """Do what `FragmentSource.end` says; one that has not been advertised yet is as before."""
        handle, extra, chosen = self._sources[source]
        if handle is not None:
            self._resolver.remove_source(handle, self._loop.now_ns(), final=True)
            self._sources[source] = (None, extra, chosen)
            self._ended.add(source)
            self._pump()

    def close(self, source: FragmentSource, *, final: bool, linger_ns: int) -> None:
        """Do what `FragmentSource.close` says."""
        found_source = self._sources.pop(source, None)
        if found_source is None:
            return
        self._ended.discard(source)
        if found_source[0] is not None:
            self._resolver.remove_source(found_source[0], self._loop.now_ns(), final=final)
        self._sessions.release(source.transport, linger_ns)
        self._pump()

    def remove_all(self, now_ns: int) -> None:
        """Take all sources from the resolver; for the end of the context."""
        for handle, _, _ in self._sources.values():
            if handle is not None:
                self._resolver.remove_source(handle, now_ns)
        self._sources.clear()
        self._ended.clear()

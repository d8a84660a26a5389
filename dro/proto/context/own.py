"""The sources of one context: each a topic on a transport session, advertised until it is closed.

State: the open sources with what they are advertised with. Sessions are the host's: here they are their address.
Source: client library notes, sections 1 and 2.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dro.errors import DecodeError
from dro.proto.resolver.core import Resolver, SourceAd
from dro.proto.resolver.schedule import AdvertisingOptions
from dro.table import Table
from dro.wire import otid
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import TIR_OPTIONS
from dro.wire.source_string import TransportAddress

TirItems = tuple[lbmr.TirOption, ...]


@dataclass(slots=True, eq=False)
class OwnSource:
    """One source of ours. `handle`: the resolver's, None while it is not advertised; `tir_items`: see `open`."""

    topic: bytes
    address: TransportAddress
    topic_index: int
    otid: bytes
    tir_items: TirItems
    advertising: AdvertisingOptions
    handle: int | None = None
    has_ended: bool = False


class OwnSources:
    """All open sources of one context, which others ask at its request address (IPv4 and port)."""

    def __init__(
        self, resolver: Resolver, *, context_id: int, first_index: int, request_address: tuple[int, int] = (0, 0)
    ) -> None:
        self._resolver = resolver
        self._context_id = context_id
        self._next_index = first_index
        self._taken: set[int] = set()  # topic indexes that sources came with
        self._request_address = request_address
        self._sources: Table[OwnSource, None] = Table()
        self._unadvertised: deque[OwnSource] = deque()

    def __len__(self) -> int:
        return len(self._sources)

    def open(
        self,
        topic: bytes,
        session: tuple[TransportAddress, int],
        advertising: AdvertisingOptions,
        now_ns: int,
        *,
        source_otid: bytes | None = None,
        tir_items: TirItems = (),
        is_silent: bool = False,
        topic_index: int | None = None,
    ) -> OwnSource:
        """Open a source on a session, which is its address and transport index.

        `source_otid`: the origin's, for a proxy source; else one is made. `is_silent`: it is advertised by
        `advertise_silent`. `topic_index`: that of a session which goes on; else it is a new one. `tir_items` are
        advertised beside OTID and request address; an `ExtendedFunctionality` among them replaces the own one. With a
        `Cost` it is a proxy source, which has the request address of its origin or none.

        Raises: DecodeError when it cannot be advertised.
        """
        address, transport_index = session
        if topic_index is not None:
            self._taken.add(topic_index)
        index = self._new_index() if topic_index is None else topic_index
        if source_otid is None:
            source_otid = otid.encode(address, index, self._context_id, transport_index)
        source = OwnSource(topic, address, index, source_otid, tir_items, advertising)
        if is_silent:
            self._unadvertised.append(source)
        else:
            self._advertise(source, now_ns)
        self._sources[source] = None
        return source

    def _new_index(self) -> int:
        while True:
            index = self._next_index
            self._next_index = (index + 1) & 0xFFFFFFFF
            if index not in self._taken:
                return index

    def _advertise(self, source: OwnSource, now_ns: int) -> None:
        source.handle = self._resolver.add_source(SourceAd(self._tir(source), source.advertising), now_ns)

    def advertise_silent(self, now_ns: int) -> DecodeError | None:
        """Advertise the next of the silent sources, if there is one; return why that is not possible."""
        if not self.has_silent:
            return None
        try:
            self._advertise(self._unadvertised.popleft(), now_ns)
        except DecodeError as e:
            return e
        return None

    @property
    def has_silent(self) -> bool:
        """Whether sources wait to be advertised."""
        waiting = self._unadvertised
        while waiting and (waiting[0].handle is not None or waiting[0].has_ended or waiting[0] not in self._sources):
            waiting.popleft()
        return bool(waiting)

    def advertise(self, source: OwnSource, now_ns: int) -> None:
        """Advertise a source that was opened silently, unless that has been done. Raises: DecodeError."""
        if source.handle is None and not source.has_ended and source in self._sources:
            self._advertise(source, now_ns)

    def _tir(self, source: OwnSource) -> lbmr.Tir:
        items: list[lbmr.TirOption] = [lbmr.OtidOption(source.otid)]
        if not any(isinstance(item, lbmr.ExtendedFunctionality | lbmr.Cost) for item in source.tir_items):
            ip, port = self._request_address
            items.append(lbmr.ExtendedFunctionality(port=port, ip=ip))
        items += [item for item in source.tir_items if not isinstance(item, lbmr.OtidOption)]
        items.sort(key=TIR_OPTIONS.code)  # UM writes them in ascending order; the sort keeps that of equals
        return lbmr.Tir(source.topic, source.address, lbmr.TIR_TTL, source.topic_index, lbmr.TirOptions(tuple(items)))

    def update(self, source: OwnSource, tir_items: TirItems, now_ns: int, *, again: bool = False) -> None:
        """Advertise with these items from now on, at once if they differ. Raises: DecodeError.

        One that has advertised its end stays so, unless it is to be advertised `again`.
        """
        before, source.tir_items = source.tir_items, tir_items
        try:
            if again and source.has_ended:
                self._advertise(source, now_ns)
                source.has_ended = False
            elif tir_items != before and source.handle is not None:
                self._resolver.update_source(source.handle, self._tir(source), now_ns)
        except DecodeError:
            source.tir_items = before
            raise

    def end(self, source: OwnSource, now_ns: int) -> None:
        """Advertise its end; one that has not been advertised yet is as before."""
        if source.handle is not None:
            self._resolver.remove_source(source.handle, now_ns, final=True)
            source.handle, source.has_ended = None, True

    def close(self, source: OwnSource, now_ns: int, *, final: bool) -> None:
        """Stop advertising, with final advertisements or in silence."""
        if source not in self._sources:
            return  # the context has ended
        del self._sources[source]
        if source.handle is not None:
            self._resolver.remove_source(source.handle, now_ns, final=final)

    def remove_all(self, now_ns: int) -> None:
        """Take all sources from the resolver; for the end of the context."""
        for source in self._sources:
            if source.handle is not None:
                self._resolver.remove_source(source.handle, now_ns)
                source.handle = None
        self._sources.clear()
        self._unadvertised.clear()

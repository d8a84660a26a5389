"""Source-side filtering, the sending half: which topics of a session each of its receivers has asked for.

`SourceFilters` are the filtered sessions of one context. A session sends each new receiver an offer (SSF_INIT), which
names the receiver by a random number and says where requests go (SSF_CREQ, a unicast message); until then the receiver
gets nothing that belongs to a topic. A request for a session, a receiver or a topic that is not there is refused, so
what a receiver has asked for is never more than the topics of its session.

Source: wire notes LBMC, 5.3; UM Configuration Guide, `transport_source_side_filtering_behavior`. Guess: TSNIs and other
control messages that name one topic go the way of its data; numbers of receivers are random, as a request needs no
other proof that it is the receiver's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import FULL_HEADER_TYPES, BlockType, MessageType
from dro.wire.lbmc.data_blocks import SSF_DEFAULT_EXCLUDE, SsfCreq, SsfInit, TopicIdx, Tsni

INCLUDE: Final = 0
EXCLUDE: Final = 1
_TOPIC: Final = Struct("!I")

MessageRun = tuple[memoryview, int, Sequence[int], int]
"""Messages back to back: what they lie in, where the first starts, where each ends, and how many they are."""


class SessionFilter:
    """The topics of one session, and what each of its receivers has asked for, by the number of the receiver."""

    def __init__(self, transport_index: int, address: tuple[int, int], new_id: Callable[[], int]) -> None:
        self._transport_index = transport_index
        self._address = address
        self._new_id = new_id
        self.topics: set[int] = set()
        self.wanted: dict[int, set[int]] = {}

    def on_connected(self) -> tuple[int, bytes]:
        """Give a new receiver a number and an offer."""
        index = self._new_id()
        while index in self.wanted:
            index = self._new_id()
        self.wanted[index] = set()
        ip, port = self._address
        init = SsfInit(self._transport_index, index, ip, port, flags=SSF_DEFAULT_EXCLUDE)
        return index, lbmc.encode(lbmc.control_message(init))

    def on_disconnected(self, index: int) -> None:
        self.wanted.pop(index, None)

    def on_request(self, request: SsfCreq) -> str:
        """Do what a receiver asks for; returns why not, empty if it was done."""
        wanted = self.wanted.get(request.client_index)
        if wanted is None:
            return "no such receiver"
        if request.mode == EXCLUDE:
            wanted.discard(request.topic_index)
        elif request.mode != INCLUDE:
            return "unknown mode"
        elif request.topic_index not in self.topics:
            return "no such topic"
        else:
            wanted.add(request.topic_index)
            if len(wanted) > len(self.topics):
                wanted &= self.topics  # those of sources that were closed, whose last data may have waited
        return ""

    @property
    def is_heard(self) -> bool:
        """Whether a receiver gets anything."""
        return any(self.wanted.values())


class SourceFilters:
    """The filtered sessions of one context, by transport index, and its request address (IPv4 and port)."""

    def __init__(self) -> None:
        self.request_address = (0, 0)
        self._sessions: dict[int, SessionFilter] = {}

    def open(self, transport_index: int, new_id: Callable[[], int]) -> SessionFilter:
        made = self._sessions[transport_index] = SessionFilter(transport_index, self.request_address, new_id)
        return made

    def close(self, transport_index: int) -> None:
        """The session has lost its last source; one that filters nothing is fine as well, here and below."""
        self._sessions.pop(transport_index, None)

    def add_topic(self, transport_index: int, topic_index: int) -> None:
        if (session := self._sessions.get(transport_index)) is not None:
            session.topics.add(topic_index)

    def remove_topic(self, transport_index: int, topic_index: int) -> None:
        """The source was closed; who has asked for it gets what may still wait."""
        if (session := self._sessions.get(transport_index)) is not None:
            session.topics.discard(topic_index)

    def on_requests(self, requests: Sequence[SsfCreq]) -> str:
        """Do what a message asks for; returns the first reason why something was refused, empty if nothing was."""
        reasons = [
            "no such session" if (session := self._sessions.get(request.transport_index)) is None
            else session.on_request(request)
            for request in requests
        ]  # fmt: skip
        return next(filter(None, reasons), "")


def requests_in(message: bytes) -> list[SsfCreq]:
    """The requests to filter in a unicast message; none in one that is broken."""
    if message[0] != MessageType.CONTROL:
        return []
    try:
        blocks, _, _ = lbmc.chain(message, 0, len(message))
        if all(code != BlockType.SSF_CREQ for code, _, _ in blocks):
            return []
        return [block for block in lbmc.decode(message).blocks if isinstance(block, SsfCreq)]
    except DecodeError:
        return []


def topic_of(view: memoryview, at: int, end: int) -> int | None:
    """The index of the topic that a message belongs to; None for one that is for all receivers."""
    if view[at] in FULL_HEADER_TYPES:
        topic: int = _TOPIC.unpack_from(view, at + 4)[0]
        return topic
    try:
        message = lbmc.decode(bytes(view[at:end]))
    except DecodeError:
        return None  # of another host, through a DRO: receivers drop it
    if (named := message.get(TopicIdx)) is not None:
        return named.topic_index
    records = tsni.records if (tsni := message.get(Tsni)) is not None else ()
    return records[0].topic_index if len(records) == 1 else None


class Selection:
    """Messages that are sent at once, and what of them receivers get who have asked for some of their topics."""

    def __init__(self, view: memoryview, start: int, ends: Sequence[int]) -> None:
        self._all: MessageRun = (view, start, ends, len(ends))
        self._topics: list[int | None] = []
        for end in ends:
            self._topics.append(topic_of(view, start, end))
            start = end
        self._present = frozenset(self._topics)
        self._made: dict[frozenset[int | None], MessageRun] = {self._present: self._all}

    def of(self, wanted: set[int]) -> MessageRun:
        """Select what belongs to these topics, or to none; the same bytes for receivers that get the same."""
        some = frozenset(topic for topic in self._present if topic is None or topic in wanted)
        made = self._made.get(some)
        if made is None:
            made = self._made[some] = self._join(some)
        return made

    def _join(self, some: frozenset[int | None]) -> MessageRun:
        view, start, ends, _ = self._all
        pieces: list[memoryview] = []
        made: list[int] = []
        size = 0
        for topic, end in zip(self._topics, ends, strict=True):
            if topic in some:
                pieces.append(view[start:end])
                size += end - start
                made.append(size)
            start = end
        return memoryview(b"".join(pieces)), 0, made, len(made)

"""Sources on a peer link: what this side offers, under which numbers, and what the other side offers.

Source: peer link notes, sections 6 and 9. Guess: a number belongs to a source for as long as it is offered, over
reconnects too; the notes ask for less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Final

from dro.proto.peerlink.digest import Digest, of_source
from dro.proto.peerlink.messages import SourceEnd, SourceRecord, source, source_end
from dro.sqn import MASK
from dro.table import Table

OPTIONS_MAX: Final = 4096
"""Bytes of the options of one source that are taken; UM has a few hundred."""
OPTIONS_IN_ALL_MAX: Final = 16 << 20
"""Bounds those of all sources of a link. This portal and all siblings keep them."""


class SourceMessage(bytes):
    """A message about a source that this side offers, or does not offer any more."""

    about: SourceRecord | SourceEnd
    record: SourceRecord
    """What is offered, or was."""


def source_message(record: SourceRecord) -> SourceMessage:
    message = SourceMessage(source(record))
    message.about = message.record = record
    return message


def end_message(record: SourceRecord) -> SourceMessage:
    """Make the message that ends it."""
    end = SourceEnd(record.srcidx, record.otid)
    message = SourceMessage(source_end(record.domain_id, end, record.topic_index))
    message.about, message.record = end, record
    return message


class SourceNumbers:
    """Gives sources numbers, each once."""

    def __init__(self, following: int = 1) -> None:
        self._next = following

    def take(self, otid: bytes) -> int:
        """Return the number of a source that is offered from now on."""
        self._next += 1
        return self._next - 1

    def free(self, otid: bytes) -> None:
        """The source is offered no more; it gets another number next time."""


class OfferedSources:
    """What this side offers."""

    def __init__(self, numbers: SourceNumbers | None = None) -> None:
        self._by_otid: Table[bytes, SourceRecord] = Table()
        self._numbers = numbers or SourceNumbers()

    def __len__(self) -> int:
        return len(self._by_otid)

    def has(self, otid: bytes) -> bool:
        return otid in self._by_otid

    def otids(self) -> list[bytes]:
        return list(self._by_otid)

    def offer(self, record: SourceRecord) -> SourceRecord:
        """A source that was not offered; returns it with its number."""
        record = replace(record, srcidx=self._numbers.take(record.otid))
        self._by_otid[record.otid] = record
        return record

    def change(self, record: SourceRecord) -> SourceRecord | None:
        """Give a source other attributes; None when nothing is to be told."""
        known = self._by_otid.get(record.otid)
        if known is None or known == replace(record, srcidx=known.srcidx):
            return None
        made = self._by_otid[record.otid] = replace(record, srcidx=known.srcidx)
        return made

    def end(self, otid: bytes) -> SourceMessage:
        """The message that ends it. It was offered."""
        self._numbers.free(otid)
        return end_message(self._by_otid.pop(otid))

    def all(self) -> Iterator[SourceMessage]:
        """Messages for all, made one by one, as things are then."""
        for otid in self._by_otid.snapshot():
            if (record := self._by_otid.get(otid)) is not None:
                yield source_message(record)


class OfferVerdict(Enum):
    """About a source that the other side offers."""

    TAKEN = "taken"
    OTHER_TOPIC = "its OTID is known under another topic or domain"
    FULL = "there are more than <sourcemap> has room for"
    OPTIONS = "there is no room for its options"
    BAD_NUMBER = "its number is 0, or has more than 32 bits"


class OfferedByCompanion:
    """What the other side offers on one connection. `sources_max`: `<sourcemap>`."""

    def __init__(self, sources_max: int) -> None:
        self._most = sources_max
        self._by_number: Table[int, SourceRecord] = Table()
        self._numbers: Table[bytes, int] = Table()  # by OTID
        self._digest = Digest()
        self._is_complete = True
        self._option_bytes = 0

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def digest(self) -> int | None:
        """None once something was not taken."""
        return self._digest.value if self._is_complete else None

    def has(self, number: int) -> bool:
        return number in self._by_number

    def find(self, otid: bytes) -> SourceRecord | None:
        number = self._numbers.get(otid)
        return self._by_number.get(number) if number is not None else None

    def all(self) -> Iterator[SourceRecord]:
        """All, in a way that lasts over changes."""
        for number in self._by_number.snapshot():
            if (record := self._by_number.get(number)) is not None:
                yield record

    def on_source(self, record: SourceRecord) -> tuple[OfferVerdict, list[SourceRecord]]:
        """Return what it is, and the sources that it replaces: under its number, or the same under another one."""
        verdict, gone = self._take(record)
        self._is_complete &= verdict is OfferVerdict.TAKEN
        return verdict, gone

    def _take(self, record: SourceRecord) -> tuple[OfferVerdict, list[SourceRecord]]:
        if not 0 < record.srcidx <= MASK:
            return OfferVerdict.BAD_NUMBER, []
        occupant, number = self._by_number.get(record.srcidx), self._numbers.get(record.otid)
        same = self._by_number.get(number) if number is not None else None
        if same is not None and (same.topic, same.domain_id) != (record.topic, record.domain_id):
            return OfferVerdict.OTHER_TOPIC, []
        before = [known for known in (occupant, same) if known is not None]
        if not before and len(self._by_number) >= self._most:
            return OfferVerdict.FULL, []
        options = self._option_bytes + len(record.options) - sum(len(known.options) for known in before)
        if len(record.options) > OPTIONS_MAX or options > max(OPTIONS_IN_ALL_MAX, self._option_bytes):
            return OfferVerdict.OPTIONS, []
        gone = [known for known in before if (known.srcidx, known.otid) != (record.srcidx, record.otid)]
        for known in {known.srcidx: known for known in before}.values():
            self._forget(known)
        self._by_number[record.srcidx] = record
        self._numbers[record.otid] = record.srcidx
        self._option_bytes += len(record.options)
        self._digest.add(of_source(record.srcidx, record.otid))
        return OfferVerdict.TAKEN, gone

    def on_end(self, end: SourceEnd) -> SourceRecord | None:
        """Return what ends; None when nothing of that number and OTID is offered."""
        known = self._by_number.get(end.srcidx)
        if known is None or known.otid != end.otid:
            return None
        self._forget(known)
        return known

    def _forget(self, record: SourceRecord) -> None:
        del self._by_number[record.srcidx]
        self._numbers.pop(record.otid, None)
        self._option_bytes -= len(record.options)
        self._digest.remove(of_source(record.srcidx, record.otid))


class SentSources(OfferedByCompanion):
    """Keeps what the other side has recorded of what this side offers, once all handed to the stream has come."""

    def __init__(self) -> None:
        super().__init__(MASK)

    def on_handed_over(self, message: SourceMessage) -> None:
        if isinstance(message.about, SourceEnd):
            self.on_end(message.about)
        else:
            self.on_source(message.about)

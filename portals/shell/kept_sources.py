"""Which sources a portal forwards to whom, for its next incarnation, which goes on with that before it meets anybody.

Siblings say so as well, but those that were killed at the same time know nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dro.errors import DecodeError
from dro.kept.store import Kept
from dro.kept.values import KeptValues
from portals.decisions.messages import PORTAL_MESSAGES, SourceSeen

_NAME: Final = "sources"


class KeptSources:
    """The sources by handle; only those that this portal knows how to join again."""

    def __init__(self, kept: Kept, *, needs_join_info: bool) -> None:
        """`former`: what the incarnation before has left; `is_whole`: and that is all that it forwarded."""
        self._needs_join_info = needs_join_info
        self._values = None if kept.folder is None else KeptValues(kept.folder, _NAME)
        self.former: list[tuple[SourceSeen, bytes]] = []
        """With the workers that get them."""
        self.is_whole = False
        if self._values is None:
            return
        try:
            self.former = [_read(value) for value in self._values.former.values()]
            self.is_whole = self._values.is_whole
        except DecodeError:  # of another version; each source is noted again when it is joined
            self.former = []
        self._values.former.clear()

    def keep(self, source: SourceSeen, workers: Collection[int]) -> None:
        """Note who gets the source; nobody is fine."""
        if self._values is not None and (source.join_info or not self._needs_join_info):
            value = bytes((len(workers), *workers)) + PORTAL_MESSAGES.encode(source) if workers else b""
            self._values.put(source.handle, value)

    def forget(self, handle: int) -> None:
        """Note that there is no such source any more."""
        if self._values is not None:
            self._values.put(handle, b"")


def _read(value: bytes) -> tuple[SourceSeen, bytes]:
    count = value[0]
    source = PORTAL_MESSAGES.decode(value[1 + count :])
    if not isinstance(source, SourceSeen):
        raise DecodeError("kept source", "it is another message")
    return source, value[1 : 1 + count]

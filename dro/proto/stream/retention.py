"""The messages of one source that are kept, so that receivers can have them again: the retention buffer.

State: the LBMC messages by topic sqn, one for each fragment, and the messages of the application that they make. The
newest message is always kept; the oldest goes when it is older than the age threshold and all of them have more bytes
than the size threshold, or than the limit. Called by a source that offers late join; a DRO has none of these.

Source: client library notes, section 5. Guess: bytes are those of the LBMC messages; the limit, which UM has for
persistence alone, counts here when it is set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dro.sqn import add
from dro.state import StateLayout


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Thresholds in bytes and nanoseconds; `limit_bytes` 0: none."""

    size_threshold_bytes: int = 0
    age_threshold_ns: int = 0
    limit_bytes: int = 0


class Retention:
    """See the module text."""

    __slots__ = ("__weakref__", "_config", "_fragments", "_messages", "next_sqn", "size_bytes")

    def __init__(self, config: RetentionConfig) -> None:
        self._config = config
        self._fragments: dict[int, bytes] = {}
        self._messages: deque[tuple[int, int, int]] = deque()  # fragments, bytes, when it was sent
        self.size_bytes = 0
        self.next_sqn = 0

    def __len__(self) -> int:
        return len(self._fragments)

    @property
    def low_sqn(self) -> int:
        """The oldest; one above the newest when there is none."""
        return add(self.next_sqn, -len(self._fragments))

    def add(self, first_sqn: int, fragments: Sequence[bytes], now_ns: int) -> None:
        """Keep a message that was sent; its fragments have consecutive sqns, behind those of the last one."""
        size = 0
        for sqn, fragment in enumerate(fragments, first_sqn):
            self._fragments[add(sqn, 0)] = fragment
            size += len(fragment)
        self.next_sqn = add(first_sqn, len(fragments))
        self._messages.append((len(fragments), size, now_ns))
        self.size_bytes += size
        while len(self._messages) > 1 and self._may_go(now_ns):
            count, gone, _ = self._messages[0]
            low = self.low_sqn
            for sqn in range(low, low + count):
                del self._fragments[add(sqn, 0)]
            self._messages.popleft()
            self.size_bytes -= gone

    def _may_go(self, now_ns: int) -> bool:
        config, size = self._config, self.size_bytes
        if 0 < config.limit_bytes < size and size > config.size_threshold_bytes:
            return True
        return size > config.size_threshold_bytes and now_ns - self._messages[0][2] >= config.age_threshold_ns

    def find(self, sqn: int) -> bytes | None:
        """Return the LBMC message with that sqn, if it is kept."""
        return self._fragments.get(sqn)


StateLayout(
    Retention,
    1,
    _fragments=dict[int, bytes],
    _messages=deque[tuple[int, int, int]],
    next_sqn=int,
    size_bytes=int,
)

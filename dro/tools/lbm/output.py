"""Output of the sending and receiving tools: lines of several threads, after a fixed first line."""

from __future__ import annotations

import threading
from typing import Protocol, TextIO


class Output(Protocol):
    """What lines are written to."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class HeldOutput:
    """Keeps what is written until `begin`: callbacks may run before the call that opens their object has returned."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._held: list[str] | None = []

    def begin(self, line: str) -> None:
        """Write this line first, then what came before it, and from now on everything at once."""
        with self._lock:
            self._out.write(line + "".join(self._held or ()))
            self._held = None  # only now: whoever sees it writes past the lock
            self._out.flush()

    def write(self, text: str, /) -> None:
        if self._held is not None:
            with self._lock:
                if self._held is not None:
                    self._held.append(text)
                    return
        self._out.write(text)

    def flush(self) -> None:
        if self._held is None:
            self._out.flush()

"""A UDP socket whose sends fail as a test wants, and a receive that fails."""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter
from collections.abc import Iterator


def no_buffer_space(*_: object) -> int:
    """In the place of `recvmmsg`."""
    return -errno.ENOBUFS


class FussySocket(socket.socket):
    """Each send takes the next of `answers`, 0 lets it through; `sizes` are those of all that were tried, in order."""

    answers: Iterator[int]
    calls: Counter[str]
    sizes: list[int]

    @classmethod
    def of(cls, plain: socket.socket) -> FussySocket:
        """In the place of `plain`."""
        made = cls(fileno=plain.detach())
        made.answers, made.calls, made.sizes = iter(()), Counter(), []
        return made

    def _answer(self, call: str, size: int) -> None:
        self.calls[call] += 1
        self.sizes.append(size)
        if code := next(self.answers, 0):
            raise OSError(code, os.strerror(code))

    def send(self, data: bytes, *args: object) -> int:  # type: ignore[override]  # only as the product calls it
        self._answer("send", len(data))
        return super().send(data)

    def sendmsg(self, *args: object) -> int:
        self._answer("sendmsg", sum(map(len, args[0])))  # type: ignore[call-overload]  # buffers
        return super().sendmsg(*args)  # type: ignore[arg-type]  # as above

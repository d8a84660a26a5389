"""One portal that is fed and three that send, two of which can be made to fail in their own way.

TRD 1   sources of `shared` (wanted in all the others) and of `other` (wanted in TRD 4)
TRD 2   a receiver of `shared`; its portal P2 can be frozen
TRD 3   a receiver of `shared`, LBT-RM
TRD 4   TCP: a receiver of `shared` that can stop reading, and one of `other`, on another session
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from tests.rigs.flow import PAUSE, Board
from tests.rigs.site import Site, drained

TRDS: Final = 4
TCP_TRD: Final = 4
SMALL_WINDOW: Final = "source transport_lbtrm_transmission_window_size 2097152\n"  # memory is flat within seconds
SMALL_BUFFERS: Final = """\
source transport_tcp_sender_socket_buffer 65536
receiver transport_tcp_receiver_socket_buffer 65536
"""


def star_site(folder: Path) -> Site:
    """The site that a `Star` needs."""
    um = dict.fromkeys(range(1, TRDS + 1), SMALL_WINDOW) | {TCP_TRD: SMALL_BUFFERS}
    return Site(folder, TRDS, transports={TCP_TRD: "tcp"}, um=um)


class Star:
    """A running site with its flows. Returns when all flow."""

    def __init__(self, site: Site, *, rate: int, other_rate: int, payload: int, window: int = 0) -> None:
        """Rates are messages per second; `rate` 0: as many as `window` messages on the way to TRD 3 allow."""
        self.site = site
        self.shared = Board.create(site.folder, "shared", 1)  # with the receiver in TRD 3
        self.other = Board.create(site.folder, "other", 1)
        self.behind_frozen = Board.create(site.folder, "shared@frozen", 1)
        self.behind_slow = Board.create(site.folder, "shared@slow", 1)
        self.boards = (self.shared, self.other, self.behind_frozen, self.behind_slow)
        for name, trd, board in (
            ("frozen", 2, self.behind_frozen),
            ("receiver", 3, self.shared),
            ("reader", 4, self.other),
        ):
            site.python("-m", "tests.rigs.flow", str(site.config(trd)), "--receive", str(board.path), name=name)
        self._slow = site.python(
            "-m", "tests.rigs.flow", str(site.config(4)), "--receive", str(self.behind_slow.path), name="slow"
        )
        for board, speed in ((self.shared, ("--rate", str(rate), "--window", str(window))),
                             (self.other, ("--rate", str(other_rate)))):  # fmt: skip
            site.python(
                "-m", "tests.rigs.flow", str(site.config(1)), "--send", str(board.path), "--payload", str(payload),
                *speed, name=f"{board.label}-source",
            )  # fmt: skip
        self.wait(lambda: all(board.is_flowing for board in self.boards), "flows")

    def wait(self, holds: object, what: str, seconds: float = 60) -> None:
        assert callable(holds)
        try:
            self.site.wait(holds, what, seconds)
        except TimeoutError as e:
            raise AssertionError("\n".join([board.story() for board in self.boards]) + f"\n{e}") from None

    def disturb(self) -> None:
        """Freeze portal P2, and let the slow receiver stop reading."""
        os.kill(self.site.worker("P2"), signal.SIGSTOP)
        self._slow.send_signal(signal.SIGSTOP)

    def release(self) -> None:
        """The end of both."""
        os.kill(self.site.worker("P2"), signal.SIGCONT)
        self._slow.send_signal(signal.SIGCONT)

    def wait_flowing_again(self) -> None:
        for board in self.boards:
            board.mark()
        self.wait(lambda: all(min(board.after_mark()) >= 0 for board in self.boards), "everything flows")

    def settle(self) -> None:
        """Stop sending and wait until the portals have nothing on its way any more."""
        self.shared[PAUSE] = self.other[PAUSE] = 1
        with self.site.books() as books:
            self.wait(lambda: drained(books), "books")

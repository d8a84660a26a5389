"""The datagrams of one LBT-RU session, once for each of its clients."""

from __future__ import annotations

import socket
from collections import deque
from itertools import accumulate

from dro.transport.trains import Address, Trains


class ClientTrains(Trains):
    """Sends to all `clients`.

    When the socket is full, a datagram counts as sent if the first of them got it: the others get the rest when there
    is room (`catch_up`), before anything that follows.
    """

    def __init__(self, sock: socket.socket, interface: str) -> None:
        super().__init__(sock, interface)
        self.clients: list[Address] = []
        self._behind: deque[tuple[Address, memoryview, list[int]]] = deque()

    def send_equal(self, view: memoryview, at: int, count: int, size: int) -> int:
        return self._send(view[at : at + count * size], [size] * count)

    def send_sizes(self, buffer: bytearray | memoryview, sizes: list[int], ends: list[int]) -> int:
        return self._send(memoryview(buffer)[: ends[-1]], sizes)

    def _send(self, view: memoryview, sizes: list[int]) -> int:
        """Send datagrams that lie back to back; how many were sent."""
        sent = len(sizes)
        for number, client in enumerate(self.clients):
            reached = self._send_to(client, view, sizes[:sent])
            if not number:
                sent = reached
            elif reached < sent:
                self._behind.append((client, view[sum(sizes[:reached]) :], sizes[reached:sent]))
        self.is_behind = bool(self._behind)
        return sent

    def _send_to(self, client: Address, view: memoryview, sizes: list[int]) -> int:
        """Send to one client; how many datagrams the socket took."""
        if not sizes:
            return 0
        self._to = client
        if sizes.count(sizes[0]) == len(sizes):
            return super().send_equal(view, 0, len(sizes), sizes[0])
        return super().send_sizes(view, sizes, [*accumulate(sizes)])

    def catch_up(self) -> bool:
        while self._behind:
            client, view, sizes = self._behind[0]
            if client in self.clients:
                reached = self._send_to(client, view, sizes)
                if reached < len(sizes):
                    self._behind[0] = client, view[sum(sizes[:reached]) :], sizes[reached:]
                    return False
            self._behind.popleft()
        self.is_behind = False
        return True

    def close(self) -> None:
        super().close()
        self._behind.clear()

"""Three flows that go round a three-portal DRO: TRD 1 to 2, 2 to 3, 3 to 1.

Whatever happens to portal P<n> concerns one flow at its ingress and one at its egress; the third passes it by.
"""

from __future__ import annotations

from typing import Final

from tests.rigs.flow import PAUSE, Board
from tests.rigs.site import Site, drained

TRDS: Final = 3
WORKERS: Final = ("P1", "P2", "P3")


class Ring:
    """A running site with its three flows: `flows[n]` goes from TRD n to the next one. Returns when all flow."""

    def __init__(self, site: Site, topics: int, rate: int) -> None:
        """`rate`: messages per second of each flow."""
        self.site = site
        self.flows = {n: Board.create(site.folder, f"flow{n}", topics) for n in range(1, TRDS + 1)}
        for n in range(1, TRDS + 1):
            sent, heard = self.flows[n], self.flows[self.before(n)]
            site.python(
                "-m", "tests.rigs.flow", str(site.config(n)), "--send", str(sent.path), "--rate", str(rate),
                "--receive", str(heard.path), name=f"client{n}",
            )  # fmt: skip
        self.wait(lambda: all(flow.is_flowing for flow in self.flows.values()), "flows")

    def wait(self, holds: object, what: str, seconds: float = 60) -> None:
        assert callable(holds)
        try:
            self.site.wait(holds, what, seconds)
        except TimeoutError as e:
            raise AssertionError("\n".join([flow.story() for flow in self.flows.values()]) + f"\n{e}") from None

    @staticmethod
    def before(n: int) -> int:
        return (n - 2) % TRDS + 1

    def entering(self, worker: str) -> Board:
        """The flow whose ingress is that portal."""
        return self.flows[int(worker[1:])]

    def leaving(self, worker: str) -> Board:
        """The flow whose egress is that portal."""
        return self.flows[self.before(int(worker[1:]))]

    def past(self, worker: str) -> Board:
        """The flow that has nothing to do with that portal."""
        return self.flows[int(worker[1:]) % TRDS + 1]

    def wait_flowing_again(self) -> None:
        """Until every topic of every flow has brought something that is sent from now on."""
        for flow in self.flows.values():
            flow.mark()
        self.wait(lambda: all(min(flow.after_mark()) >= 0 for flow in self.flows.values()), "all topics flow")

    def settle(self) -> None:
        """Stop sending and wait until the portals have nothing on its way any more."""
        for flow in self.flows.values():
            flow[PAUSE] = 1
        with self.site.books() as books:
            self.wait(lambda: drained(books), "books")

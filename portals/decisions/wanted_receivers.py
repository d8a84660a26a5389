"""Which proxy receivers a portal has: decisions 1 and 2. Part of `portals.decisions.core`.

A proxy receiver is needed for a topic or pattern that a sibling wants on behalf of a domain to which traffic that
enters here leads, unless the access control list forbids to ask for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from dro.proto.interest.events import Symbol
from dro.table import Table
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.effects import CloseProxyReceiver, Effect, OpenProxyReceiver, UpdateProxyReceiver
from portals.decisions.routes import Routes
from portals.decisions.siblings import Siblings


class WantedReceivers:
    """See the module text. `acl` is replaced when another list holds."""

    def __init__(
        self, routes: Routes, siblings: Siblings, acl: AclEnforcement, ask: Callable[[Effect], object]
    ) -> None:
        self.acl = acl
        self.is_withdrawn = False
        """Nothing is decided any more."""
        self._routes = routes
        self._siblings = siblings
        self._ask = ask
        self.domains: Table[Symbol, set[int]] = Table()
        """The interested domains of each proxy receiver."""
        self.refused: Table[Symbol, None] = Table()
        """Keeps what siblings want and may not be asked for here."""
        self.kinds: Counter[int] = Counter()
        """How many proxy receivers there are by type of pattern."""

    def decide(self, symbol: Symbol) -> None:
        """Open, change or close the proxy receiver, if it is not as it has to be."""
        if self.is_withdrawn:
            return
        wanted = {domain_id for _, domain_id in self._routes.inbound.intersection(self._siblings.wanting(symbol))}
        if wanted and not self.acl.may_ask(*symbol):
            self.refused[symbol] = None
            wanted = set()
        else:
            self.refused.pop(symbol, None)
        had = self.domains.get(symbol)
        if wanted and had is None:
            self.domains[symbol] = wanted
            self.kinds[symbol[1]] += 1
            self._ask(OpenProxyReceiver(*symbol, tuple(sorted(wanted))))
        elif not wanted and had is not None:
            self._close(symbol, had)
        elif had is not None and wanted != had:
            self.domains[symbol] = wanted
            self._ask(UpdateProxyReceiver(*symbol, tuple(sorted(wanted - had)), tuple(sorted(had - wanted))))

    def _close(self, symbol: Symbol, had: set[int]) -> None:
        del self.domains[symbol]
        self.kinds[symbol[1]] -= 1
        self._ask(CloseProxyReceiver(*symbol, tuple(sorted(had))))

    def close_all(self) -> Iterator[None]:
        """Close all, in steps."""
        for symbol in self.domains.snapshot():
            if (had := self.domains.get(symbol)) is not None:
                self._close(symbol, had)
                yield

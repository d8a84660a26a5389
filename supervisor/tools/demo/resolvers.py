"""The daemons of topic resolution of a demonstration without multicast: how they are started, and what they count."""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LIMIT_S: Final = 1.0


@dataclass(frozen=True)
class DemoResolver:
    """One daemon. `program`: its module in `supervisor.resolvers`."""

    name: str
    program: str

    @property
    def metrics(self) -> str:
        """Name the port of its metrics."""
        return f"{self.name}metrics"

    @property
    def ports(self) -> tuple[str, str]:
        """Name its ports, as files of the demonstration do in braces."""
        return self.name, self.metrics

    def arguments(self, ports: Mapping[str, int]) -> tuple[str, ...]:
        """Return its command line, with these ports."""
        return ("-i", "127.0.0.1", "-p", str(ports[self.name]), "--metrics", str(ports[self.metrics]))


def metrics_address(one: DemoResolver, ports: Mapping[str, int]) -> str:
    """Say where its metrics are; any path will do."""
    return f"http://127.0.0.1:{ports[one.metrics]}"


@dataclass(frozen=True)
class ResolverFigures:
    """What a daemon says of itself."""

    clients: int
    told: int
    """Datagrams that `lbmrd` has sent, records that `umsrs` has told."""


def figures_of(one: DemoResolver, port: int) -> ResolverFigures | None:
    """Ask for its metrics; None when it does not answer."""
    with (
        contextlib.suppress(OSError, http.client.HTTPException, ValueError),
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as asked,
    ):
        asked.request("GET", "/metrics")
        return read_figures(one, asked.getresponse().read().decode())
    return None


def read_figures(one: DemoResolver, text: str) -> ResolverFigures:
    """Read the metrics of a daemon. Raises: ValueError."""
    return ResolverFigures(_value(text, f"{one.program}_clients"), _value(text, _TOLD[one.program]))


_TOLD: Final = {"lbmrd": "lbmrd_sent_datagrams_total", "umsrs": "umsrs_records_told_total"}


def _value(text: str, series: str) -> int:
    found = re.search(rf"^{series} (\S+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no {series}")
    return int(float(found[1]))

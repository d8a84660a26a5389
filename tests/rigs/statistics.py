"""A site whose DRO publishes statistics over UM, and who listens to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dro.lbmmon.packet import decode
from dro.lbmmon.records import DroStats, LibraryStats
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data
from tests.rigs.site import Site

TOPIC: Final = "/29west/statistics"
BINARY_TOPIC: Final = "tnwgd.monitor"
LOG: Final = '<log type="console"/>'


def statistics_file(site: Site, *, request_port: int = 0) -> Path:
    """Write the UM file of statistics: in the TRD behind those of the portals, by TCP."""
    text = site.config(max(site.trds)).read_text()
    lines = [line for line in text.splitlines() if "request_tcp_port" not in line and "source transport " not in line]
    lines.append("source transport tcp")
    if request_port:
        lines.append(f"context request_tcp_port {request_port}")
    path = site.folder / "statistics.cfg"
    path.write_text("\n".join(lines) + "\n")
    return path


def publishing(site: Site, xml: str) -> Site:
    """Put elements behind `<log>` of the site's DRO."""
    path = site.folder / "dro.xml"
    path.write_text(path.read_text().replace(LOG, f"{LOG}\n    {xml}"))
    return site


def monitor_xml(path: Path, *, interval_s: int = 1, form: str = "pb", options: str = "") -> str:
    return (
        f'<monitor interval="{interval_s}"><transport-module module="lbm" options="config={path}"/>'
        f'<format-module module="{form}"{options}/></monitor>'
    )


def daemon_monitor_xml(path: Path, groups: str = '<group name="default" ivl="1"/>', allow: str = "11") -> str:
    return (
        f"<daemon-monitor><lbm-config>{path}</lbm-config>"
        f"<publishing-interval>{groups}</publishing-interval>"
        f'<remote-snapshot-request allow="{allow[0]}"/><remote-config-changes-request allow="{allow[1]}"/>'
        "</daemon-monitor>"
    )


class Listener:
    """Keeps what it hears on a topic, with the time of each."""

    def __init__(self, config: Path, topic: str = TOPIC) -> None:
        self.heard: list[tuple[float, bytes]] = []
        self._context = BlockingContext(Config.load(config).with_("context", "request_tcp_bind_request_port", 0))
        self._receiver = self._context.receiver(topic)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for event in self._receiver:
            if isinstance(event, Data):
                self.heard.append((time.monotonic(), bytes(event.data)))

    def messages(self) -> list[DroStats | LibraryStats]:
        """What came as packets of `lbmmon`."""
        found = [message for _, packet in list(self.heard) for message in decode(packet)]
        return [message for message in found if isinstance(message, DroStats | LibraryStats)]

    def dros(self) -> list[Any]:
        """The messages of the DRO."""
        return [message.message for message in self.messages() if isinstance(message, DroStats)]

    def library(self, kind: str = "", application: str = "") -> list[LibraryStats]:
        return [
            message
            for message in self.messages()
            if isinstance(message, LibraryStats)
            and (not kind or message.kind == kind)
            and (not application or message.sender.application == application)
        ]

    def close(self) -> None:
        self._receiver.close()
        self._context.close()


@contextmanager
def listening(config: Path, topic: str = TOPIC) -> Iterator[Listener]:
    made = Listener(config, topic)
    try:
        yield made
    finally:
        made.close()


def never_falls(values: list[int], what: Callable[[], str] = str) -> None:
    """Check that a counter only grows."""
    assert values == sorted(values), f"{what()}: {values}"

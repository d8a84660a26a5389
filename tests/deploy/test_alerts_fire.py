"""Alerts from real faults: a Prometheus scrapes real DROs that are loaded and then broken in many ways at once.

Each alert of `EXPECTED` has to be pending, where it has a `for`, and firing while the fault is there, and to be gone
some time after it. Before, no alert fires, but for the one that says that a DRO is young.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from supervisor.admin.client import Client, find_dro
from tests.bench.dros import Daemons
from tests.deploy.test_prometheus import tool
from tests.rigs.flow import PAUSE, Board
from tests.rigs.loaded import Loaded
from tests.rigs.network import QUICK, Plan, Ports
from tests.rigs.prometheus import DURATION, FIRING, PENDING, RULES, SECONDS, Prometheus, shortened
from tests.rigs.site import PORTS_PER_TRD, ROOT, Site
from tests.rigs.star import SMALL_BUFFERS
from tests.rigs.waiting import wait_until

FACTOR: Final = 240
"""An hour of a rule is 15 s, a minute little more than a scrape."""
QUIET_S: Final = 4.0
LOOK_S: Final = 0.2
YOUNG: Final = "DroRestarted"
"""Fires at every DRO here: ages in seconds are not divided."""
BUSY: Final = frozenset({"DroLoopLag", "DroDown"})
"""Fire at healthy DROs as well while other programs keep the processors busy, as a scrape has 0.2 s; where they are
expected they have to be absent once."""
FOR: Final = dict(
    re.findall(r"- alert: (\w+)\n(?:(?!  - alert).*\n)*?    for: (\w+)\n", (RULES / "alerts.yml").read_text())
)
PAIR: Final[Ports] = {"A": [1, "B"], "B": [2, "A"]}
LINK, QUEUES, PROCESSES, DAEMON = "link", "queues", "processes", "daemon"
EXPECTED: Final[dict[str, tuple[str, dict[str, str]]]] = {
    # the link between A and B is cut, as an operator has paused the portal at one end
    "DroPeerLinkDown": (LINK, {"portal": "A-B"}),
    "DroTopologySplit": (LINK, {}),
    "DroNetworkShrunk": (LINK, {}),
    "DroTrdLost": (LINK, {}),
    # a receiver of TRD 2 has stopped reading TCP; fragments of a source in TRD 1 are too large for TRD 3
    "DroQueueFilling": (QUEUES, {"portal": "P2"}),
    "DroQueueFull": (QUEUES, {"portal": "P2"}),
    "DroBlockedShare": (QUEUES, {"portal": "P2"}),
    "DroDropping": (QUEUES, {"portal": "P2"}),
    "DroDroppingAny": (QUEUES, {"portal": "P2", "reason": "would_block"}),
    "DroSizeMismatch": (QUEUES, {"portal": "P3"}),
    "DroLogErrors": (QUEUES, {}),
    # P2 gets the processor now and then, P3 is paused; the monitor is killed, which hides neither
    "DroLoopLag": (PROCESSES, {}),
    "DroEndpointDown": (PROCESSES, {"portal": "P3"}),
    # the DRO has ended, and is started after a while
    "DroDown": (DAEMON, {}),
    "DroMissing": (DAEMON, {}),
}


class Link:
    """Two DROs with a link and a flow from TRD 1 to TRD 2."""

    def __init__(self, folder: Path) -> None:
        self.plan = Plan(folder, PAIR)
        webs = {dro: f"127.0.0.1:{self.plan.base + nth * PORTS_PER_TRD + 30}" for nth, dro in enumerate(PAIR)}
        for dro, web in webs.items():
            text = self.plan.file(dro).read_text()
            self.plan.file(dro).write_text(text.replace(QUICK, f"<web-monitor>{web}</web-monitor>{QUICK}"))
        self.daemons = Daemons(self.plan, Loaded)
        self.prometheus = Prometheus(
            folder / "prometheus", f"127.0.0.1:{self.plan.base + 31}", list(webs.values()), FACTOR
        )
        self._flow = Board.create(folder, "flow", 1)
        self._clients: list[Loaded[bytes]] = []

    def start(self) -> None:
        for dro in PAIR:
            self.daemons.start(dro)
        words = {1: ("--send", str(self._flow.path), "--rate", "100"), 2: ("--receive", str(self._flow.path))}
        for trd, given in words.items():
            with (self.plan.folder / f"client{trd}.log").open("wb") as log:
                command = [sys.executable, "-m", "tests.rigs.flow", str(self.plan.config(trd)), *given]
                self._clients.append(Loaded(command, cwd=ROOT, stdout=log, stderr=log))
        wait_until(lambda: self._flow.is_flowing, "a flow over the link", 60, self.logs)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-4000:] for path in sorted(self.plan.folder.glob("*.log")))

    def begin(self) -> None:
        self._order("portal pause")

    def end(self) -> None:
        self._order("portal resume")

    def _order(self, what: str) -> None:
        with Client(find_dro(str(self.daemons.pid("B")))) as client:
            client.request(what, name="B-A")

    def close(self) -> None:
        for client in self._clients:
            client.kill()
            client.wait()
        self.daemons.__exit__()


class SiteScene:
    """A DRO with three endpoint portals, and clients in their TRDs."""

    def __init__(self, site: Site, flows: dict[str, tuple[int, int, int, int]]) -> None:
        """`flows`: by label the TRDs that it goes from and to, messages a second, bytes of each."""
        self.site = site
        self._flows = flows
        self.boards = {label: Board.create(site.folder, label, 1) for label in flows}
        self.receivers: dict[str, subprocess.Popen[bytes]] = {}
        self.prometheus = Prometheus(site.folder / "prometheus", f"127.0.0.1:{site.port(1) + 31}", [site.web], FACTOR)

    def start(self) -> None:
        site = self.site
        site.start()
        for label, (of, to, rate, payload) in self._flows.items():
            path = str(self.boards[label].path)
            program = "-m", "tests.rigs.flow"
            self.receivers[label] = site.python(
                *program, str(site.config(to)), "--receive", path, name=f"{label}-receiver"
            )
            site.python(*program, str(site.config(of)), "--send", path, "--rate", str(rate), "--payload", str(payload),
                        name=f"{label}-source")  # fmt: skip
        site.wait(lambda: all(board.is_flowing or board[PAUSE] for board in self.boards.values()), "flows", 60)

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def order(self, what: str, portal: str) -> None:
        with Client(find_dro(str(self.site.pid))) as client:
            client.request(what, name=portal)

    def close(self) -> None:
        self.site.close()


class Queues(SiteScene):
    def __init__(self, folder: Path) -> None:
        small = "context transport_lbtrm_datagram_max_size 1400\n"
        site = Site(folder, 3, transports={2: "tcp"}, um={2: SMALL_BUFFERS, 3: small}, has_monitor=True)
        super().__init__(site, {"queued": (1, 2, 250, 6000), "large": (1, 3, 100, 3000)})
        self.boards["large"][PAUSE] = 1

    def begin(self) -> None:
        self.receivers["queued"].send_signal(signal.SIGSTOP)
        self.boards["large"][PAUSE] = 0

    def end(self) -> None:
        self.receivers["queued"].send_signal(signal.SIGCONT)
        self.boards["large"][PAUSE] = 1


class Processes(SiteScene):
    def __init__(self, folder: Path) -> None:
        super().__init__(Site(folder, 3, has_monitor=True), {"flow": (1, 2, 100, 64)})
        self._is_over = threading.Event()
        self._slowing = threading.Thread(target=self._slow_down)

    def begin(self) -> None:
        self.order("portal pause", "P3")
        self._slowing.start()
        self.site.kill("monitor")

    def _slow_down(self) -> None:
        """A worker looks once a second how late its timers are: most looks have to fall into a stop."""
        pid = self.site.worker("P2")
        while not self._is_over.wait(0.05):
            os.kill(pid, signal.SIGSTOP)
            self._is_over.wait(0.6)
            os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        self._is_over.set()
        self._slowing.join()
        self.order("portal resume", "P3")

    def close(self) -> None:
        self._is_over.set()
        super().close()


class Daemon(SiteScene):
    def __init__(self, folder: Path) -> None:
        super().__init__(Site(folder, 3, has_monitor=True), {})

    def begin(self) -> None:
        self.site.stop()

    def end(self) -> None:
        self.site.start()


SCENES: Final[dict[str, Callable[[Path], Link | SiteScene]]] = {
    LINK: Link, QUEUES: Queues, PROCESSES: Processes, DAEMON: Daemon,
}  # fmt: skip


@pytest.fixture
def scenes(tmp_path: Path) -> Iterator[dict[str, Link | SiteScene]]:
    with contextlib.ExitStack() as stack:
        made = {}
        for name, scene in SCENES.items():
            (tmp_path / name).mkdir()
            made[name] = scene(tmp_path / name)
            stack.callback(made[name].close)
            stack.callback(made[name].prometheus.close)
        for one in made.values():
            one.start()
            one.prometheus.start()
        yield made


def firing(scene: Link | SiteScene, back: str = "") -> set[str]:
    return {alert["alertname"] for alert in scene.prometheus.alerts(FIRING, back)}


def lacking(scenes: dict[str, Link | SiteScene], state: str, alerts: set[str]) -> list[str]:
    """Those that have not been in that state, or not with their labels, since the DROs were started."""
    seen = {name: scene.prometheus.alerts(state, "[10m]") for name, scene in scenes.items()}
    return [
        alert
        for alert, (name, labels) in EXPECTED.items()
        if alert in alerts and not any(labels.items() | {("alertname", alert)} <= one.items() for one in seen[name])
    ]


@pytest.mark.slow
@pytest.mark.prometheus
def test_alerts_fire_while_a_fault_lasts_and_not_before_or_after(scenes: dict[str, Link | SiteScene]) -> None:
    def unrest() -> dict[str, set[str]]:
        return {name: found for name, scene in scenes.items() if (found := firing(scene) - {YOUNG, *BUSY})}

    quiet_since = time.monotonic()

    def is_quiet() -> bool:
        nonlocal quiet_since
        if unrest() or any(YOUNG not in firing(scene, "[3s]") for scene in scenes.values()):  # they are scraped
            quiet_since = time.monotonic()
        return time.monotonic() - quiet_since > QUIET_S

    def wait_absent() -> None:
        for alert in BUSY:
            scene = scenes[EXPECTED[alert][0]]
            wait_until(lambda: alert not in firing(scene), alert, every_s=LOOK_S)  # noqa: B023 - called at once

    wait_until(is_quiet, "healthy DROs", 60, lambda: str(unrest()), every_s=LOOK_S)
    wait_absent()
    for scene in scenes.values():
        scene.begin()
    wait_until(lambda: not lacking(scenes, FIRING, set(EXPECTED)), "all alerts", 60,
               lambda: str(lacking(scenes, FIRING, set(EXPECTED))), every_s=LOOK_S)  # fmt: skip
    assert lacking(scenes, PENDING, set(FOR)) == []
    for scene in scenes.values():
        scene.end()
    quiet_since = time.monotonic()
    wait_until(is_quiet, "the end of the alerts", 120, lambda: str(unrest()), every_s=LOOK_S)
    wait_absent()


def test_only_durations_are_shortened() -> None:
    for name in ("recording.yml", "alerts.yml"):
        text = (RULES / name).read_text()
        fast = shortened(text, FACTOR)
        assert DURATION.sub("", text) == re.sub(r"(\bfor: |\[|\boffset )\d+ms\b", "", fast)
        before = [int(found["count"]) * SECONDS[found["unit"]] for found in DURATION.finditer(text)]
        after = [int(ms) / 1000 for ms in re.findall(r"(?:\bfor: |\[|\boffset )(\d+)ms", fast)]
        assert after == [seconds / FACTOR for seconds in before]
        assert len(before) >= {"recording.yml": 6, "alerts.yml": 50}[name]


@pytest.mark.prometheus
def test_promtool_takes_the_shortened_rules(tmp_path: Path) -> None:
    for name in ("recording.yml", "alerts.yml"):
        (tmp_path / name).write_text(shortened((RULES / name).read_text(), FACTOR))
        assert "SUCCESS" in tool("check", "rules", str(tmp_path / name))


def test_what_is_expected_are_alerts() -> None:
    assert len(EXPECTED) >= 10
    assert EXPECTED.keys() <= set(re.findall(r"- alert: (\w+)", (RULES / "alerts.yml").read_text()))
    assert {"DroDown": "1m", "DroQueueFull": "30s", "DroLoopLag": "10m"}.items() <= FOR.items()
    assert FOR.keys().isdisjoint({"DroRestartLoop", "DroDroppingAny", "DroSizeMismatch", "DroLogErrors"})

"""A Prometheus with the rules of `deploy/prometheus`, in which time passes faster.

`shortened` divides every duration of a rule: `for`, ranges and offsets. Names, expressions, thresholds and labels are
those that are shipped, also ages in seconds, as in `time() - dro_start_time_seconds < 600`.
"""

from __future__ import annotations

import http
import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.rigs.site import ROOT

RULES: Final = ROOT / "deploy/prometheus"
DURATION: Final = re.compile(r"(?P<before>\bfor: |\[|\boffset )(?P<count>\d+)(?P<unit>[smhdw])\b")
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
SCRAPE_MS: Final = 200
PENDING, FIRING = "pending", "firing"


def shortened(text: str, factor: int) -> str:
    """Rules of which every duration is divided."""

    def one(found: re.Match[str]) -> str:
        ms = int(found["count"]) * SECONDS[found["unit"]] * 1000 // factor
        return f"{found['before']}{ms}ms"

    return DURATION.sub(one, text)


class Prometheus:
    """Scrapes DROs, five times a second unless said otherwise, from `start` to `close`."""

    def __init__(
        self,
        folder: Path,
        address: str,
        targets: Sequence[str],
        factor: int,
        *,
        remote_write: str = "",
        has_workers: bool = False,
        scrape_ms: int = SCRAPE_MS,
    ) -> None:
        """`address`: where it listens, which takes a port; `targets`: addresses of web monitors; `remote_write`: an
        URL that everything is sent to as well; `has_workers`: it scrapes `/metrics/workers` too; `scrape_ms`:
        how often, and how long an answer may take."""
        self.folder = folder
        self._address = address
        self._server: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        for name in ("recording.yml", "alerts.yml"):
            (folder / name).write_text(shortened((RULES / name).read_text(), factor))
        interval = f"{scrape_ms}ms"
        jobs: list[dict[str, object]] = [{"job_name": "dro", "static_configs": [{"targets": list(targets)}]}]
        if has_workers:
            jobs.append({**jobs[0], "job_name": "dro-workers", "metrics_path": "/metrics/workers"})
        config: dict[str, object] = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": ["recording.yml", "alerts.yml"],
            "scrape_configs": jobs,
        }
        if remote_write:
            config["remote_write"] = [{"url": remote_write, "queue_config": {"batch_send_deadline": "1s"}}]
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    def start(self) -> Self:
        with (self.folder / "prometheus.log").open("wb") as log:
            self._server = subprocess.Popen(
                ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                 f"--web.listen-address={self._address}"],
                stdout=log, stderr=log,
            )  # fmt: skip
        return self

    def close(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(20)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The answer to an instant query; empty also while nobody answers."""
        found: dict[str, list[dict[str, Any]]] = self.ask("query", query=expression) or {"result": []}
        return found["result"]

    def ask(self, what: str, **parameters: str) -> Any:  # noqa: ANN401  as each path has it
        """What is at that path of its API; None while nobody answers. Raises: ValueError for a wrong question."""
        url = f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            if e.code == http.HTTPStatus.BAD_REQUEST:
                raise ValueError(e.read().decode()) from None
        except OSError:
            pass
        return None

    def alerts(self, state: str, back: str = "") -> list[dict[str, str]]:
        """Labels of the alerts in that state: now, or at any time in the range `[5m]` before."""
        return [alert["metric"] for alert in self.query(f'ALERTS{{alertstate="{state}"}}{back}')]

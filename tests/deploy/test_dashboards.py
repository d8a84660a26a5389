"""The Grafana dashboards: current, valid, about metrics that a DRO has, and each of their queries finds data.

Grafana itself is not there: the JSON is judged by the SDK that made it and by Grafana's published types, and queries go
to a real Prometheus that scrapes two loaded DROs.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.generate import RULES, Alerts, Panel, dashboards
from dro.metrics.table import ENDPOINT, HISTOGRAM, PEER, PORTAL, ROUTE_MANAGER, WORKER, metrics
from tests.bench.dros import Daemons
from tests.deploy.test_prometheus import BESIDE_THE_TABLES, ROOT
from tests.rigs.flow import SENT, Board
from tests.rigs.loaded import Loaded
from tests.rigs.network import PATIENT, Plan, Ports
from tests.rigs.prometheus import Prometheus
from tests.rigs.star import SMALL_BUFFERS
from tests.rigs.waiting import wait_until

FOLDER: Final = ROOT / "deploy/grafana"
DASHBOARDS: Final[dict[str, dict[str, Any]]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "dashboards").glob("*.json"))
}
SCHEMAS: Final[dict[str, dict[str, Any]]] = json.loads((ROOT / "tests/golden/grafana/schemas.json").read_text())
OF_THE_SDK: Final = {"style", "id", "auto", "auto_min", "auto_count", "footer"}
"""What the SDK writes for the Grafana of its own release, and later ones do not have: they ignore it."""
OF_THE_MONITOR: Final = BESIDE_THE_TABLES | {
    "ALERTS", "dro_up", "dro_portal_info", "dro_portal_cost", "dro_portal_state", "dro_portal_restarts_total",
    "dro_other_info", "dro_other_portal_cost", "dro_worker_cpu_seconds_total", "dro_worker_resident_memory_bytes",
    "dro_worker_restarts_total", "dro_monitor_clients_dropped_total", "process_cpu_seconds_total", "process_open_fds",
    "process_threads",
}  # fmt: skip
WORDS: Final = {
    "sum", "by", "on", "or", "and", "rate", "increase", "count", "count_values", "max", "min", "changes", "time",
    "vector", "histogram_quantile", "clamp_min", "label_replace", "predict_linear", "deriv",
}  # fmt: skip
each: Final = pytest.mark.parametrize("name", DASHBOARDS)


def panels(name: str) -> list[dict[str, Any]]:
    """Those that have queries."""
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


def targets(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each query with the title of its panel."""
    for panel in panels(name):
        for target in panel["targets"]:
            yield panel["title"], target


def known_metrics() -> set[str]:
    """Names of series that there are, with those of the recording rules."""
    known = set(OF_THE_MONITOR)
    for table, portal_type in ((PORTAL, ENDPOINT), (PORTAL, PEER), (ROUTE_MANAGER, ""), (WORKER, "")):
        for metric in metrics(table, portal_type):
            known |= {f"{metric.name}_bucket"} if metric.kind == HISTOGRAM else {metric.name}
    return known | set(re.findall(r"record: (\S+)", (RULES.parent / "recording.yml").read_text()))


def names_in(expression: str) -> set[str]:
    """What is neither a word of the language, a label, a string nor a number."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|on) \([^)]*\)', " ", re.sub(r'"[^"]*"', '""', expression))
    return set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", bare)) - WORDS


# the files


def test_files_are_those_that_the_tables_make() -> None:
    made = dashboards()
    assert sorted(made) == [f"{name}.json" for name in DASHBOARDS]
    for name, text in made.items():
        assert (FOLDER / "dashboards" / name).read_text() == text, f"{name}: make dashboards"


def test_there_is_a_dashboard_for_each_subject() -> None:
    assert {name: one["uid"] for name, one in DASHBOARDS.items()} == {
        "capacity": "dro-capacity", "overview": "dro-overview", "peer-link": "dro-peer-link", "portal": "dro-portal",
        "topology": "dro-topology",
    }  # fmt: skip


@each
def test_the_sdk_reads_what_it_has_written(name: str) -> None:
    register_default_plugins()
    again = json.dumps(Dashboard.from_json(DASHBOARDS[name]), cls=JSONEncoder)
    assert json.loads(again) == DASHBOARDS[name]


def without(content: Any, names: set[str]) -> Any:  # noqa: ANN401  as JSON is
    if isinstance(content, list):
        return [without(one, names) for one in content]
    if isinstance(content, dict):
        return {key: without(value, names) for key, value in content.items() if key not in names}
    return content


@each
def test_grafana_has_these_types(name: str) -> None:
    content = without(DASHBOARDS[name], OF_THE_SDK - {"id"})
    content["templating"]["list"] = [without(one, {"id"}) for one in content["templating"]["list"]]
    jsonschema.Draft7Validator(SCHEMAS["dashboard"]).validate(content)
    for panel in panels(name):
        options = without(panel["options"], OF_THE_SDK)
        jsonschema.Draft7Validator(SCHEMAS[f"{panel['type']}-options"]).validate(options)
        if custom := panel["fieldConfig"]["defaults"].get("custom"):
            jsonschema.Draft7Validator(SCHEMAS[f"{panel['type']}-custom"]).validate(custom)
        for target in panel["targets"]:
            jsonschema.Draft7Validator(SCHEMAS["target"]).validate(target)


@pytest.mark.parametrize(
    "broken",
    [{"panels": [{"type": "row", "no_such_key": ""}]}, {"refresh": 10}, {"templating": {"list": [{"name": "dro"}]}}],
    ids=["name", "type", "missing"],
)
def test_the_schema_finds_what_is_wrong(broken: dict[str, Any]) -> None:
    good = without(DASHBOARDS["overview"], OF_THE_SDK)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMAS["dashboard"]).validate({**good, **broken})


@each
def test_ids_and_titles_are_there_once(name: str) -> None:
    ids = [panel["id"] for panel in DASHBOARDS[name]["panels"]]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    titles = [panel["title"] for panel in panels(name)]
    assert len(set(titles)) == len(titles)
    for panel in panels(name):
        refs = [target["refId"] for target in panel["targets"]]
        legends = [target.get("legendFormat", "") for target in panel["targets"]]
        assert len(set(refs)) == len(refs) == len(set(legends))


@each
def test_panels_fill_the_grid_and_do_not_overlap(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARDS[name]["panels"]:
        at = panel["gridPos"]
        for place in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert place not in taken, (panel["title"], taken[place])
            taken[place] = panel["title"]
    assert len(taken) == 24 * (1 + max(y for _, y in taken))


@each
def test_every_panel_is_explained(name: str) -> None:
    known_units = {value for key, value in vars(units).items() if isinstance(value, str) and not key.startswith("_")}
    for panel in panels(name):
        defaults = panel["fieldConfig"]["defaults"]
        assert len(panel["description"]) > 30, panel["title"]
        assert defaults["noValue"], panel["title"]
        assert defaults["unit"] in known_units, panel["title"]
        assert panel["links"], panel["title"]


@each
def test_links_lead_to_documents_that_are_there(name: str) -> None:
    base = Alerts(RULES).docs
    for panel in panels(name):
        for link in panel["links"]:
            document, _, anchor = link["url"].removeprefix(base).partition("#")
            text = (ROOT / "docs" / document).read_text()
            heads = {
                re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", text, re.M)
            }
            assert not anchor or anchor in heads, (panel["title"], link["url"])


@each
def test_dashboards_lead_to_each_other_and_keep_what_is_chosen(name: str) -> None:
    one = DASHBOARDS[name]
    assert one["tags"] == ["dro"]
    (link,) = one["links"]
    assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == ("dashboards", ["dro"], True, True)
    variables = {variable["name"]: variable for variable in one["templating"]["list"]}
    types = [] if name == "peer-link" else ["portal_type"]
    assert list(variables) == ["datasource", "dro", *types, "portal"]
    for variable in list(variables.values())[1:]:
        assert variable["multi"]
        assert variable["includeAll"]
        assert f"${variable['name']}" in json.dumps(one["panels"])
    assert one["refresh"] == "10s"
    assert not one["editable"]


# the queries


@each
def test_queries_use_metrics_that_a_dro_has(name: str) -> None:
    known = known_metrics()
    for title, target in targets(name):
        used = names_in(target["expr"])
        assert used, title
        assert used - known == set(), title


@each
def test_legends_have_the_labels_that_queries_keep(name: str) -> None:
    for title, target in targets(name):
        outer = re.search(r"\bby \(([^)]*)\)", target["expr"])
        if outer and "legendFormat" in target and not target["expr"].startswith("max(max by"):
            labels = set(outer[1].split(", ")) - {"le"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == labels, title


@each
def test_counters_are_rates_and_quotients_are_guarded(name: str) -> None:
    for title, target in targets(name):
        expression = target["expr"]
        counted = re.findall(r"(\w*)\(?\b(\w+_(?:total|bucket))\{[^}]*\}(?:\[([^\]]*)\])?", expression)
        for function, _, range_of in counted:
            assert function in ("rate", "increase"), title
            assert range_of == "$__rate_interval" if function == "rate" else range_of, title
        for divisor in expression.split(" / ")[1:]:
            assert " > 0)" in divisor, title
        if "_bucket" in expression:
            assert re.match(r"histogram_quantile\(0\.\d+, sum by \([\w, ]*\ble\) \(rate\(", expression), title


def test_thresholds_are_those_of_the_alerts() -> None:
    alerts = Alerts(RULES)

    def steps(*names: str, any_value: str = "") -> list[tuple[float | None, str]]:
        return alerts.steps(Panel("T", "t.", {}, alerts=names, any=any_value))

    assert steps("DroQueueFilling", "DroQueueFull") == [(None, "green"), (0.5, "orange"), (0.9, "red")]
    assert steps("DroPeerLinkDown") == [(None, "red"), (1e-6, "green")]
    assert steps("DroTopologySplit") == [(None, "green"), (1 + 1e-6, "red")]
    assert steps("DroUdpLoss") == [(None, "green"), (0.001, "orange")]
    assert steps("DroRttHigh") == [(None, "green"), (0.005, "orange")]
    assert steps("DroMemoryGrowth") == [(None, "green"), (0.1, "orange")]
    assert steps("DroPeerKeepaliveOld")[1] == (60 + 1e-6, "red")
    assert steps(any_value="ticket") == [(None, "green"), (1e-6, "orange")]


def test_provisioning_finds_dashboards_and_prometheus() -> None:
    (source,) = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((FOLDER / "provisioning/dashboards/dro.yaml").read_text())["providers"]
    usual = dict(re.findall(r"^(\w+)=(.*)$", (FOLDER / "grafana.env").read_text(), re.MULTILINE))
    assert usual[source["url"].removeprefix("$")] == "http://prometheus:9090"
    assert usual[provider["options"]["path"].removeprefix("$")] == "/var/lib/grafana/dashboards"
    scraped = yaml.safe_load((RULES.parent / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
    assert not provider["allowUiUpdates"]


# a real Prometheus

DROS: Final[Ports] = {"A": [1, 3, "B"], "B": [2, "A"]}
PEER_XML: Final = '<smart-batch>1</smart-batch><gateway-keepalive idle="no" interval="300" timeout="60000"/>'
UDP_XML: Final = "<receive-buffer>65536</receive-buffer>"
FLOWS: Final = {"over": (1, 2, 500, 1000), "held": (1, 3, 250, 6000)}
"""By label the TRDs that it goes from and to, messages a second, bytes of each."""
SCRAPE_MS: Final = 1000
GIVEN: Final = {"$__rate_interval": "10s", "$__range": "5m", "$__interval": "1s"}
BACK_S: Final = 300
"""More than the test takes: what has happened once stays in sight."""
FROZEN: Final = 300
"""Messages that are sent while an end of the link does not read: more than its buffer holds."""


class Scene:
    """Two DROs with a UDP link that loses datagrams, and a TCP receiver that has stopped reading."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.plan = Plan(
            folder, DROS, transport={1: "lbtrm", 2: "tcp", 3: "tcp"}, um=SMALL_BUFFERS, peer_xml=PEER_XML,
            udp=UDP_XML, daemon=PATIENT, has_monitors=True,
        )  # fmt: skip
        self.daemons = stack.enter_context(Daemons(self.plan, Loaded))
        address = f"127.0.0.1:{self.plan.base + 31}"  # a port that the TRD uses for UDP alone
        webs = [self.plan.web(dro) for dro in DROS]
        self.prometheus = Prometheus(folder / "prometheus", address, webs, 1, has_workers=True, scrape_ms=SCRAPE_MS)
        stack.callback(self.prometheus.close)
        for dro in DROS:
            self.daemons.start(dro)
        self.prometheus.start()
        self.boards = {label: Board.create(folder, label, 1) for label in FLOWS}
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = stack
        for label, (of, to, rate, payload) in FLOWS.items():
            path = str(self.boards[label].path)
            self._client(f"{label}-receiver", to, "--receive", path)
            self._client(f"{label}-source", of, "--send", path, "--rate", f"{rate}", "--payload", f"{payload}")
        self.wait(lambda: all(board.is_flowing for board in self.boards.values()), "flows")

    def _client(self, name: str, trd: int, *words: str) -> None:
        command = [sys.executable, "-m", "tests.rigs.flow", str(self.plan.config(trd)), *words]
        with (self.plan.folder / f"{name}.log").open("wb") as log:
            self._clients[name] = Loaded(command, cwd=ROOT, stdout=log, stderr=log)
        self._stack.callback(self._clients[name].wait)
        self._stack.callback(self._clients[name].kill)

    def wait(self, holds: Any, what: str, detail: Any = str) -> None:  # noqa: ANN401  as `wait_until`
        def story() -> str:
            logs = [path.read_text()[-2000:] for path in sorted(self.plan.folder.glob("*.log"))]
            return "\n".join([detail(), *logs])

        wait_until(holds, what, 90, story, every_s=0.1)

    def disturb(self) -> None:
        """Let the link lose datagrams, a queue overflow, and somebody want one more topic."""
        self._client("late", 2, "--receive", str(Board.create(self.plan.folder, "late", 1).path))
        self._clients["held-receiver"].send_signal(signal.SIGSTOP)
        end = self.daemons.pids("B")["B-A"]
        board = self.boards["over"]
        before = board[SENT]
        os.kill(end, signal.SIGSTOP)
        try:
            self.wait(lambda: board[SENT] > before + FROZEN, "messages for a link that does not read")
        finally:
            os.kill(end, signal.SIGCONT)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        yield Scene(tmp_path, stack)


def values_of(prometheus: Prometheus, query: str, chosen: Mapping[str, str]) -> list[str]:
    """What Grafana offers for a variable."""
    metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()  # type: ignore[union-attr]
    found: list[str] = prometheus.ask(f"label/{label}/values", **{"match[]": interpolated(metric, chosen)}) or []
    return found


def interpolated(expression: str, chosen: Mapping[str, str]) -> str:
    """With what Grafana puts in, longer names first."""
    for name, value in sorted({**GIVEN, **chosen}.items(), reverse=True):
        expression = expression.replace(name, value)
    return expression


def all_chosen(prometheus: Prometheus, name: str) -> dict[str, str]:
    """Variables of a dashboard, all values of each."""
    chosen: dict[str, str] = {}
    for variable in DASHBOARDS[name]["templating"]["list"][1:]:
        values = values_of(prometheus, variable["query"], chosen)
        chosen[f"${variable['name']}"] = f"({'|'.join(values)})" if values else ""
    return chosen


def answer(prometheus: Prometheus, target: Mapping[str, Any], chosen: Mapping[str, str]) -> list[dict[str, str]]:
    """Labels of the series that have a number, asked for as Grafana does."""
    expression = interpolated(target["expr"], chosen)
    if target["instant"]:
        found = [(one["metric"], [one["value"]]) for one in prometheus.query(expression)]
    else:
        now = time.time()
        ranges = prometheus.ask("query_range", query=expression, start=f"{now - BACK_S}", end=f"{now}", step="1")
        found = [(one["metric"], one["values"]) for one in (ranges or {"result": []})["result"]]
    return [labels for labels, points in found if any(math.isfinite(float(value)) for _, value in points)]


def legends(target: Mapping[str, Any], series: list[dict[str, str]]) -> list[str]:
    """What stands below the panel. Raises: KeyError for a label that the series lacks."""
    return [re.sub(r"\{\{(\w+)\}\}", lambda found: labels[found[1]], target["legendFormat"]) for labels in series]  # noqa: B023 - called at once


def assert_shown(scene: Scene, panel: dict[str, Any], chosen: Mapping[str, str]) -> None:
    """Every series has a legend of its own; a table has its columns."""

    def series(target: Mapping[str, Any]) -> list[dict[str, str]]:
        return answer(scene.prometheus, target, chosen)

    if panel["type"] == "table":
        columns = set(panel["transformations"][0]["options"]["include"]["names"]) - {"Value"}
        (one,) = panel["targets"]
        scene.wait(lambda: columns <= {label for labels in series(one) for label in labels}, panel["title"])
    else:
        shown = [legend for target in panel["targets"] for legend in legends(target, series(target))]
        assert len(set(shown)) == len(shown), panel["title"]


@pytest.mark.slow
@pytest.mark.prometheus
def test_every_query_of_every_panel_finds_data(scene: Scene) -> None:
    scene.wait(lambda: len(scene.prometheus.query("dro_portal_up == 1")) == 5, "portals")
    chosen = {name: all_chosen(scene.prometheus, name) for name in DASHBOARDS}
    for name, variables in chosen.items():
        assert variables.get("$portal_type", "(endpoint|peer)") == "(endpoint|peer)"
        assert variables["$portal"] == ("(A-B|B-A)" if name == "peer-link" else "(A-1|A-3|A-B|B-2|B-A)")
    scene.disturb()
    left = [(name, *one) for name in DASHBOARDS for one in targets(name)]
    assert len(left) > 120

    def all_answered() -> bool:
        left[:] = [one for one in left if not answer(scene.prometheus, one[2], chosen[one[0]])]
        return not left

    scene.wait(all_answered, "data", lambda: "\n".join(f"{name}: {title}: {one['expr']}" for name, title, one in left))
    for name in DASHBOARDS:
        for panel in panels(name):
            assert_shown(scene, panel, chosen[name])

"""Grafana dashboards of DROs, made from tables of panels by Grafana's own SDK.

`python -m deploy.grafana.generate [DIR]` writes a file for each table of `panels`, to `dashboards` unless told
otherwise. Thresholds and links to runbooks are those of the alerts in `deploy/prometheus/alerts.yml`.

| key of a panel | meaning |
|---|---|
| kind | time (default), stat, bars, states, table |
| title, text | what it shows; what that means and what to do |
| unit, none | of the values; what is shown when there are none |
| queries | legend: expression. `@dro`, `@portal`, `@peer` and `@named` stand for what the variables select |
| alerts | alerts with the same value: their thresholds are drawn, and the first has the runbook that is linked |
| any | page or ticket: every value above 0 is as bad as an alert of that severity |
| docs | what to read when there is no alert |
| width | of 24 columns |
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from grafana_foundation_sdk.builders import bargauge, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import common as build_common
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

HERE: Final = Path(__file__).parent
PANELS: Final = HERE / "panels"
RULES: Final = HERE.parent / "prometheus/alerts.yml"
SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "dro"
SELECTED: Final = {
    "@dro": 'dro=~"$dro"',
    "@portal": 'dro=~"$dro",portal=~"$portal",portal_type=~"$portal_type"',
    "@peer": 'dro=~"$dro",portal=~"$portal",portal_type="peer"',
    "@named": 'dro=~"$dro",portal=~"$portal"',
}
"""`@named` is for what has no label `portal_type`."""
COLOUR: Final = {"page": "red", "ticket": "orange", "": "green"}
HEIGHTS: Final = {"stat": 4}
HEIGHT: Final = 8
ABOVE: Final = 1e-6
"""Grafana colours from a value on, and an alert of whole numbers begins behind it."""
Step = tuple[float | None, str]
AnyPanel = bargauge.Panel | stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel


@dataclass(frozen=True)
class Panel:
    """A row of a table, see above."""

    title: str
    text: str
    queries: Mapping[str, str]
    kind: str = "time"
    unit: str = "short"
    none: str = "no data"
    alerts: Sequence[str] = ()
    any: str = ""
    docs: str = ""
    width: int = 8
    columns: Mapping[str, str] = field(default_factory=dict)  # of a table: label or Value, and its head

    def __post_init__(self) -> None:
        if isinstance(self.alerts, str) or not self.text.endswith("."):
            raise ValueError(f"{self.title}: alerts are a list, and the text is of sentences")


class Alerts:
    """Keeps what dashboards take from the rules."""

    def __init__(self, path: Path) -> None:
        (group,) = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        self._rules: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in group["rules"]}

    def runbook(self, alert: str) -> str:
        return str(self._rules[alert]["annotations"]["runbook_url"])

    @property
    def docs(self) -> str:
        """The folder of the documents, with a slash."""
        return self.runbook(next(iter(self._rules))).rpartition("/")[0] + "/"

    def _limit(self, alert: str) -> tuple[str, float]:
        """Find the last number that the value has to be above or below, else is equal to, else is multiplied with."""
        text = self._rules[alert]["expr"]
        for pattern in (r"(<|>=?) ([\d.]+)(?![\d.]| \*)", r"(==) (\d+)", r"(>) ([\d.]+)"):
            if found := re.findall(pattern, text):
                return found[-1][0], float(found[-1][1])
        raise LookupError(f"no number in {alert}")

    def steps(self, panel: Panel) -> list[Step]:
        """Colours, from the lowest value on; the first is for all values below the next."""
        bad: list[Step] = [(ABOVE, COLOUR[panel.any])] if panel.any else []
        base = COLOUR[""]
        for alert in panel.alerts:
            colour = COLOUR[self._rules[alert]["labels"]["severity"]]
            sign, limit = self._limit(alert)
            if sign == "<" or (sign, limit) == ("==", 0):
                base = colour
                bad.append((limit or ABOVE, COLOUR[""]))
            else:
                bad.append((limit + ABOVE if sign == ">" and limit.is_integer() else limit, colour))
        return [(None, base), *sorted(set(bad), key=lambda step: step[0] or 0)]


def expression(text: str) -> str:
    """Return what Grafana gets for an expression of a table."""
    return re.sub(r"@\w+", lambda found: SELECTED[found[0]], " ".join(text.split()))


def _thresholds(steps: Sequence[Step]) -> build.ThresholdsConfig:
    made = [model.Threshold(value=value, color=colour) for value, colour in steps]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def _empty(panel: Panel, *, has_limits: bool) -> AnyPanel:
    """Give a panel with what is of its kind alone."""
    lines = build_common.VizLegendOptions().placement(common.LegendPlacement.BOTTOM).show_legend(True)
    tip = build_common.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    match panel.kind:
        case "time":
            style = common.GraphTresholdsStyleMode.DASHED if has_limits else common.GraphTresholdsStyleMode.OFF
            legend = lines.display_mode(common.LegendDisplayMode.TABLE).calcs(["lastNotNull", "max"])
            return (
                timeseries.Panel().legend(legend).tooltip(tip).fill_opacity(10).axis_soft_min(0)
                .show_points(common.VisibilityMode.AUTO)
                .thresholds_style(build_common.GraphThresholdsStyleConfig().mode(style))
            )  # fmt: skip
        case "stat":
            reduce = build_common.ReduceDataOptions().calcs(["lastNotNull"])
            return stat.Panel().reduce_options(reduce).color_mode(common.BigValueColorMode.VALUE).graph_mode(
                common.BigValueGraphMode.NONE
            )  # fmt: skip
        case "bars":
            reduce = build_common.ReduceDataOptions().calcs(["lastNotNull"])
            return bargauge.Panel().reduce_options(reduce).orientation(common.VizOrientation.HORIZONTAL).min(0)
        case "states":
            legend = lines.display_mode(common.LegendDisplayMode.LIST)
            return statetimeline.Panel().legend(legend).merge_values(True).line_width(0).fill_opacity(70)
        case "table":
            return table.Panel().show_header(True)
    raise ValueError(f"{panel.title}: no kind {panel.kind}")


def _target(panel: Panel, number: int, legend: str, text: str) -> prometheus.Dataquery:
    made = prometheus.Dataquery().ref_id(chr(ord("A") + number)).datasource(SOURCE).expr(expression(text))
    if panel.kind == "table":
        return made.instant().format(PromQueryFormat.TABLE)
    made = made.legend_format(legend)
    return made.range() if panel.kind in ("time", "states") else made.instant()


def _only(columns: Mapping[str, str]) -> list[model.DataTransformerConfig]:
    """Leave a table nothing but these columns, in this order."""
    order = {name: place for place, name in enumerate(columns)}
    return [
        model.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(columns)}}),
        model.DataTransformerConfig(id_val="organize", options={"indexByName": order, "renameByName": dict(columns)}),
    ]


def panel_of(panel: Panel, number: int, alerts: Alerts) -> AnyPanel:
    """The panel as Grafana has it. `number`: its id."""
    steps = alerts.steps(panel)
    made = _empty(panel, has_limits=len(steps) > 1)
    made.id(number).title(panel.title).description(panel.text).datasource(SOURCE).unit(panel.unit)
    made.span(panel.width).height(HEIGHTS.get(panel.kind, HEIGHT)).no_value(panel.none).thresholds(_thresholds(steps))
    by_value = panel.kind in ("stat", "bars", "states")
    mode = model.FieldColorModeId.THRESHOLDS if by_value else model.FieldColorModeId.PALETTE_CLASSIC
    made.color_scheme(build.FieldColor().mode(mode))
    made.targets([_target(panel, at, legend, text) for at, (legend, text) in enumerate(panel.queries.items())])
    if panel.kind == "states":
        words = {"0": model.ValueMappingResult(text="down"), "1": model.ValueMappingResult(text="up")}
        made.mappings([model.ValueMap(options=words)])
    if panel.columns:
        made.transformations(_only(panel.columns))
    links = [(f"Runbook: {alert}", alerts.runbook(alert)) for alert in panel.alerts]
    if panel.docs:
        links.append((panel.docs.partition("#")[0], alerts.docs + panel.docs))
    to = model.DashboardLinkType.LINK
    made.links([build.DashboardLink(text).type(to).url(url).target_blank(True) for text, url in links])
    return made


def _variables(*, has_peers_alone: bool) -> list[build.DatasourceVariable | build.QueryVariable]:
    """Make variables for the data source, and for what is chosen from it."""
    types = ("Portal type", 'label_values(dro_portal_up{dro=~"$dro"}, portal_type)')
    kind = 'portal_type="peer"' if has_peers_alone else 'portal_type=~"$portal_type"'
    queries = {
        "dro": ("DRO", "label_values(dro_up, dro)"),
        **({} if has_peers_alone else {"portal_type": types}),
        "portal": ("Portal", f'label_values(dro_portal_up{{dro=~"$dro",{kind}}}, portal)'),
    }
    source = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
    every = model.VariableOption(text=["All"], value=["$__all"], selected=True)
    return [source] + [
        build.QueryVariable(name).label(label).datasource(SOURCE).query(query).multi(True).include_all(True)
        .current(every).refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
        for name, (label, query) in queries.items()
    ]  # fmt: skip


def dashboard(content: Mapping[str, Any], alerts: Alerts) -> model.Dashboard:
    """Build one from the content of a table: uid, title, text, rows, and whether it is about peer portals alone."""
    made = build.Dashboard(content["title"]).uid(content["uid"]).description(content["text"]).tags([TAG])
    made.time("now-1h", "now").refresh("10s").timezone("browser").readonly()
    made.tooltip(model.DashboardCursorSync.CROSSHAIR)
    made.variables([*_variables(has_peers_alone=content.get("has_peers_alone", False))])
    made.link(
        build.DashboardLink("DRO dashboards").type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
        .include_vars(True).keep_time(True)
    )  # fmt: skip
    number = 0
    for title, panels in content["rows"].items():
        number += 1
        made.with_row(build.Row(title).id(number))
        for row in panels:
            number += 1
            made.with_panel(panel_of(Panel(**row), number, alerts))
    return made.build()


def dashboards() -> dict[str, str]:
    """All by name of their file."""
    alerts = Alerts(RULES)
    made = {}
    for path in sorted(PANELS.glob("*.yaml")):
        built = dashboard(yaml.safe_load(path.read_text(encoding="utf-8")), alerts)
        made[f"{path.stem}.json"] = json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
    return made


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the Grafana dashboards.")
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=HERE / "dashboards", help="%(default)s")
    folder: Path = parser.parse_args(argv).folder
    for name, text in dashboards().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

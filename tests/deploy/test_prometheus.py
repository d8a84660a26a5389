"""The rules for Prometheus: each alert fires on what it is for, none on a healthy DRO, and each has its runbook."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from dro.metrics.table import ENDPOINT, HISTOGRAM, PEER, PORTAL, ROUTE_MANAGER, WORKER, metrics

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy/prometheus"
ALERTS: Final = re.findall(r"^  - alert: (\w+)$", (RULES / "alerts.yml").read_text(), re.MULTILINE)
BESIDE_THE_TABLES: Final = {
    "up", "process_resident_memory_bytes", "dro_start_time_seconds", "dro_portal_up", "dro_portal_state",
    "dro_other_last_activity_timestamp_seconds",
}  # fmt: skip
E = 'dro="A",portal="P",portal_type="endpoint"'
L = 'dro="A",portal="P",portal_type="peer"'
DROPPED: Final = "dro_portal_dropped_messages_total"
EXCEPTION: Final = "dro_portal_receive_exception_messages_total"
UDP: Final = "dro_portal_udp"
# alert -> series with their values, a value a minute, and the minute at which it fires
FIRES: Final[dict[str, tuple[dict[str, str], int]]] = {
    "DroDown": ({'up{job="dro"}': "0x5"}, 3),
    "DroMissing": ({'dro_start_time_seconds{dro="A"}': "0x10 stale"}, 70),
    "DroRestarted": ({'dro_start_time_seconds{dro="A"}': "300x20"}, 10),
    "DroRestartLoop": ({'dro_start_time_seconds{dro="A"}': "0 0 60 60 120 120 180 180"}, 7),
    "DroPeerLinkDown": ({f"dro_portal_up{{{L}}}": "0x5"}, 3),
    "DroPeerLinkFlapping": ({f'dro_portal_disconnects_total{{{L},reason="remote_close"}}': "0+1x10"}, 10),
    "DroPeerKeepaliveOld": (
        {f"dro_portal_last_keepalive_timestamp_seconds{{{L}}}": "60x10", f"dro_portal_up{{{L}}}": "1x10"}, 5,
    ),
    "DroEndpointDown": ({f"dro_portal_up{{{E}}}": "0x5"}, 3),
    "DroPortalDegraded": ({f'dro_portal_state{{{E},state="degraded"}}': "1x5"}, 3),
    "DroDropping": (
        {f'{DROPPED}{{{E},traffic="transport_topic",reason="would_block"}}': "0+60x20",
         f'dro_portal_forwarded_messages_total{{{E},traffic="transport_topic"}}': "0+6000x20"}, 15,
    ),
    "DroDroppingAny": ({f'{DROPPED}{{{E},traffic="unicast",reason="error"}}': "0 0 1x20"}, 5),
    "DroDropNotOperational": ({f'{DROPPED}{{{L},traffic="data",reason="not_operational"}}': "0 0 9x20"}, 5),
    "DroDropQueueFailure": ({f'{DROPPED}{{{L},traffic="data",reason="queue_failure"}}': "0 0 9x20"}, 5),
    "DroSizeMismatch": ({f'{DROPPED}{{{E},traffic="transport_topic",reason="size_error"}}': "0 0 9x20"}, 5),
    "DroQueueFilling": (
        {f'dro_portal_send_queue_bytes{{{L},queue="data"}}': "600x9",
         f'dro_portal_send_queue_limit_bytes{{{L},queue="data"}}': "1000x9"}, 5,
    ),
    "DroQueueFull": (
        {f'dro_portal_send_queue_bytes{{{L},queue="data"}}': "950x9",
         f'dro_portal_send_queue_limit_bytes{{{L},queue="data"}}': "1000x9"}, 5,
    ),
    "DroBlockedShare": ({f"dro_portal_send_blocked_seconds_total{{{L}}}": "0+12x30"}, 25),
    "DroNoRoute": (
        {f'{EXCEPTION}{{{E},traffic="unicast_data",reason="no_route"}}': "0+2x40",
         'dro_graph_version{dro="A"}': "3x40"}, 35,
    ),
    "DroNoResolverServer": (
        {f'dro_portal_resolver_servers{{{E},server="srs"}}': "2x9",
         f'dro_portal_resolver_servers_answering{{{E},server="srs"}}': "0x9", f"dro_portal_up{{{E}}}": "1x9"}, 5,
    ),
    "DroOldVersionTalking": ({f'{EXCEPTION}{{{E},traffic="unicast_data",reason="no_stream"}}': "0 0 1x20"}, 5),
    "DroUnhandledControl": ({f'{EXCEPTION}{{{L},traffic="unicast_control",reason="unhandled"}}': "0 0 1x20"}, 5),
    "DroForwardingHeader": ({f'{EXCEPTION}{{{L},traffic="unicast_data",reason="no_forwarding"}}': "0 0 1x20"}, 5),
    "DroUnknownSource": (
        {f'{EXCEPTION}{{{L},traffic="transport_topic",reason="unknown_source"}}': "0+60x40",
         f"dro_portal_received_data_messages_total{{{L}}}": "0+600x40"}, 30,
    ),
    "DroDuplicateStorm": (
        {f'{DROPPED}{{{E},traffic="transport_topic",reason="duplicate"}}': "0+900x50",
         f'dro_portal_forwarded_messages_total{{{E},traffic="transport_topic"}}': "0+1000x50"}, 40,
    ),
    "DroTopologySplit": ({'dro_topology_signature{dro="A"}': "1x9", 'dro_topology_signature{dro="B"}': "2x9"}, 5),
    "DroNetworkShrunk": ({'dro_network_dros{dro="A"}': "3x60 2x20"}, 70),
    "DroTrdLost": ({'dro_network_trds{dro="A"}': "3x60 2x20"}, 70),
    "DroOtherSilent": ({'dro_other_last_activity_timestamp_seconds{dro="A",other_dro="B"}': "60x9"}, 5),
    "DroRouteFlapping": ({'dro_graph_version{dro="A"}': "0+1x20"}, 15),
    "DroNotConverging": ({'dro_route_recalculation_backoff{dro="A"}': "1x9"}, 5),
    "DroRecalcSlow": ({'dro_route_recalculation_duration_seconds{dro="A"}': "0.9x9"}, 5),
    "DroRttHigh": (
        {f'dro_portal_rtt_seconds_bucket{{{L},le="0.001"}}': "0+10x1500 15000x100",
         f'dro_portal_rtt_seconds_bucket{{{L},le="0.1"}}': "0+10x1600",
         f'dro_portal_rtt_seconds_bucket{{{L},le="+Inf"}}': "0+10x1600"}, 1595,
    ),
    "DroUdpLoss": (
        {f"{UDP}_lost_datagrams_total{{{L}}}": "0+10x40", f"{UDP}_received_datagrams_total{{{L}}}": "0+1000x40"}, 30,
    ),
    "DroUdpUnrecovered": (
        {f'{UDP}_unrecovered_datagrams_total{{{L},reason="timeout"}}': "0 0 1x20"}, 5,
    ),
    "DroUdpAlienDatagrams": ({f'{UDP}_dropped_datagrams_total{{{L},reason="session_id"}}': "0+50x20"}, 15),
    "DroOneWayTraffic": (
        {f'dro_portal_sent_messages_total{{{L},traffic="gateway_control"}}': "0+9x30",
         f'dro_portal_received_messages_total{{{L},traffic="gateway_control"}}': "5x30"}, 20,
    ),
    "DroTrafficStopped": (
        {f'dro_portal_received_bytes_total{{{E},traffic="transport_topic"}}': "0+600000x60 36000000x10100"}, 10124,
    ),
    "DroInterestSurge": ({f'dro_portal_interest_topics{{{E},scope="local"}}': "6000x60 20000x20"}, 70),
    "DroMemoryGrowth": ({'process_resident_memory_bytes{job="dro",dro="A"}': "100000000+20000x6000"}, 5984),
    "DroLoopLag": (
        {'dro_event_loop_lag_seconds_bucket{dro="A",le="0.05"}': "0x40",
         'dro_event_loop_lag_seconds_bucket{dro="A",le="0.1"}': "0+60x40",
         'dro_event_loop_lag_seconds_bucket{dro="A",le="+Inf"}': "0+60x40"}, 30,
    ),
    "DroLogErrors": ({'dro_log_messages_total{dro="A",severity="error"}': "0 0 1x20"}, 5),
    "DroLogWarnings": ({'dro_log_messages_total{dro="A",severity="warning"}': "0+5x20"}, 15),
}  # fmt: skip
HEALTHY: Final = {
    'up{job="dro"}': "1x100", 'dro_start_time_seconds{dro="A"}': "-9000x100", f"dro_portal_up{{{E}}}": "1x100",
    f"dro_portal_up{{{L}}}": "1x100", f'dro_portal_resolver_servers{{{E},server="lbmrd"}}': "2x100",
    f'dro_portal_resolver_servers_answering{{{E},server="lbmrd"}}': "1x100",
    f'dro_portal_resolver_servers{{{E},server="srs"}}': "0x100",
    f'dro_portal_resolver_servers_answering{{{E},server="srs"}}': "0x100",
    f'dro_portal_disconnects_total{{{L},reason="remote_close"}}': "1x100",
    f"dro_portal_last_keepalive_timestamp_seconds{{{L}}}": "0+60x100",
    f'{DROPPED}{{{E},traffic="transport_topic",reason="would_block"}}': "9x100",
    f'{DROPPED}{{{E},traffic="transport_topic",reason="duplicate"}}': "0+500x100",
    f'dro_portal_forwarded_messages_total{{{E},traffic="transport_topic"}}': "0+1000x100",
    f'{EXCEPTION}{{{E},traffic="unicast_data",reason="no_route"}}': "3x100",
    'dro_graph_version{dro="A"}': "3x100", 'dro_graph_version{dro="B"}': "5x100",
    'dro_topology_signature{dro="A"}': "7x100", 'dro_topology_signature{dro="B"}': "7x100",
    'dro_network_dros{dro="A"}': "2x100", 'dro_network_trds{dro="A"}': "3x100",
    'dro_other_last_activity_timestamp_seconds{dro="A",other_dro="B"}': "0+60x100",
    f'dro_portal_send_queue_bytes{{{L},queue="data"}}': "10x100",
    f'dro_portal_send_queue_limit_bytes{{{L},queue="data"}}': "1000x100",
    f'dro_portal_sent_messages_total{{{L},traffic="gateway_control"}}': "0+9x100",
    f'dro_portal_received_messages_total{{{L},traffic="gateway_control"}}': "0+9x100",
    f"{UDP}_lost_datagrams_total{{{L}}}": "3x100", f"{UDP}_received_datagrams_total{{{L}}}": "0+1000x100",
    'dro_log_messages_total{dro="A",severity="warning"}': "0+1.5x100",
    'dro_log_messages_total{dro="A",severity="warning",worker="P",role="endpoint"}': "0+1.5x100",  # once more
    'dro_log_messages_total{dro="A",severity="error"}': "1x100",
}  # fmt: skip


def tool(*arguments: str, text: str | None = None) -> str:
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False, cwd=RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def alerts_at(folder: Path, series: dict[str, str], minute: int, expected: set[str]) -> None:
    """Of all rules, these fire and no others of `ALERTS` that are looked for."""
    counted = f'count by (alertname) (ALERTS{{alertstate="firing",alertname=~"{"|".join(ALERTS)}"}})'
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)]
    test: dict[str, Any] = {
        "rule_files": [str(RULES / "recording.yml"), str(RULES / "alerts.yml")],
        "evaluation_interval": f"{min(4, max(1, minute // 500))}m",  # below 5 minutes, for which a value holds
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": counted, "eval_time": f"{minute}m", "exp_samples": samples}],
        }],
    }  # fmt: skip
    (folder / "tests.yml").write_text(json.dumps(test))  # JSON is YAML
    tool("test", "rules", str(folder / "tests.yml"))


def test_every_alert_has_a_case() -> None:
    assert set(FIRES) == set(ALERTS)
    assert len(ALERTS) == 42


@pytest.mark.prometheus
@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires_on_what_it_is_for(alert: str, tmp_path: Path) -> None:
    series, minute = FIRES[alert]
    also = {
        "DroRestartLoop": {"DroRestarted"}, "DroQueueFull": {"DroQueueFilling"}, "DroDropping": {"DroDroppingAny"},
        "DroDropNotOperational": {"DroDroppingAny"}, "DroDropQueueFailure": {"DroDroppingAny"},
        "DroSizeMismatch": {"DroDroppingAny"},
    }  # fmt: skip
    alerts_at(tmp_path, series, minute, {alert} | also.get(alert, set()))


@pytest.mark.prometheus
def test_no_alert_fires_on_a_healthy_network(tmp_path: Path) -> None:
    alerts_at(tmp_path, HEALTHY, 90, set())


@pytest.mark.prometheus
def test_promtool_finds_nothing() -> None:
    assert "42 rules found" in tool("check", "rules", "alerts.yml")
    assert "6 rules found" in tool("check", "rules", "recording.yml")
    assert "SUCCESS" in tool("check", "config", "prometheus.yml")


def test_rules_use_metrics_that_a_dro_has() -> None:
    known = set(BESIDE_THE_TABLES)
    for table, portal_type in ((PORTAL, ENDPOINT), (PORTAL, PEER), (ROUTE_MANAGER, ""), (WORKER, "")):
        for metric in metrics(table, portal_type):
            known |= {f"{metric.name}_bucket"} if metric.kind == HISTOGRAM else {metric.name}
    text = (RULES / "alerts.yml").read_text() + (RULES / "recording.yml").read_text()
    used = set(re.findall(r"\b(?:dro|process)_[a-z0-9_]+\b(?=[{\[) ]|$)", text, re.MULTILINE))
    assert len(used) > 20
    assert used - known == set()


def test_every_alert_has_its_runbook() -> None:
    text = (RULES / "alerts.yml").read_text()
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE)
    assert headings == ALERTS
    assert re.findall(r"runbook_url: \S+#(\w+)", text) == [alert.lower() for alert in ALERTS]
    assert (
        re.findall(r"severity: (\w+)", text).count("page") + re.findall(r"severity: (\w+)", text).count("ticket") == 42
    )

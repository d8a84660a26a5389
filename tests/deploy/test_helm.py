"""The Helm chart: every manifest is valid for several Kubernetes versions, and wrong values are refused by name."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import helm_python
import kubernetes_validate  # type: ignore[import-untyped]  # without types
import pytest
import yaml

from dro.bus.ring_size import ring_bytes
from dro.config.dro_xml.load import load_dro
from dro.config.resolvers.lbmrd import load_lbmrd
from dro.config.resolvers.umsrs import load_umsrs
from dro.config.um.interfaces import Interface
from supervisor.resolvers.umsrs import arguments
from supervisor.start.tls_findings import tls_findings
from tests.builders.dro_file import ROUTE_KEYS
from tests.fakes.lookup import FakeLookup
from tests.rigs.certificates import Authority

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/helm/open-dro"
RULES: Final = ROOT / "deploy/prometheus"
CASES: Final = ("", *sorted(path.stem for path in (CHART / "ci").glob("*.yaml")))
VERSIONS: Final = ("1.25", "1.29", "1.33", "1.37")
DEVICES: Final = {"trd1": "192.0.2.7", "eth1": "198.51.100.7", "eth0": "10.244.1.7"}
HOST: Final = FakeLookup(tuple(Interface(name, address, 24) for name, address in DEVICES.items()))
OPERATOR: Final = "monitoring.coreos.com/v1"
"""Kinds of the Prometheus operator, of which the validator has no schema."""

Object = dict[str, Any]


@cache
def chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def values(case: str) -> Object:
    """Of a file of values; none for the empty name."""
    return dict(yaml.safe_load((CHART / f"ci/{case}.yaml").read_text())) if case else {}


def render(given: Mapping[str, Any]) -> dict[str, str]:
    """Name of the template to its text."""
    found = chart().render(dict(given), name="west", namespace="um")
    return {path.rpartition("/")[2]: text for path, text in found.items() if text.strip()}


def objects(given: Mapping[str, Any]) -> Iterator[Object]:
    for name, text in render(given).items():
        if name != "NOTES.txt":
            yield from (one for one in yaml.safe_load_all(text) if one)


def find(kind: str, **given: Any) -> Object:  # noqa: ANN401
    """The object of a kind; an empty one when there is none."""
    return next((one for one in objects(given) if one["kind"] == kind), {})


def pod(**given: Any) -> Object:  # noqa: ANN401
    return dict(find("StatefulSet", **given)["spec"]["template"]["spec"])


def container(**given: Any) -> Object:  # noqa: ANN401
    return dict(pod(**given)["containers"][0])


def refusal(given: Mapping[str, Any]) -> str:
    with pytest.raises(helm_python.HelmError) as caught:
        render(given)
    return str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_lint_finds_nothing(case: str) -> None:
    found = helm_python.lint(CHART, values(case), strict=True)
    assert found["errors"] == []
    assert [one for one in found["messages"] if one["severity"] > 1] == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_object_is_valid(case: str, version: str) -> None:
    known = [one for one in objects(values(case)) if one["apiVersion"] != OPERATOR]
    assert len(known) >= 3
    for one in known:
        kubernetes_validate.validate(one, version, strict=True)


def test_every_template_is_rendered_by_a_case() -> None:
    rendered = {name for case in CASES for name in render(values(case))}
    assert rendered == {path.name for path in (CHART / "templates").iterdir()} - {"_helpers.tpl"}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """What the Secrets of `tls.yaml` have, as it is mounted."""
    authority = Authority(tmp_path)
    certificate, key = authority.leaf("site-a")
    folder = tmp_path / "secrets"
    for name, source in {
        "site-a-tls/tls.crt": certificate, "site-a-tls/tls.key": key, "site-a-tls/ca.crt": authority.trusted,
        "route-keys/route.keys": ROUTE_KEYS,
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / name)
        (folder / name).chmod(0o440)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_the_configuration_loads_without_a_remark(
    case: str, tmp_path: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in find("ConfigMap", **values(case))["data"].items():
        (tmp_path / name).write_text(text.replace("/etc/tnwgd-secrets", str(secrets)))
    warnings: list[object] = []
    config = load_dro("dro.xml", warn=warnings.append, lookup=HOST, environ={})
    assert warnings == []
    assert list(tls_findings(config, time.time())) == []
    monitor = config.daemon.web_monitor
    given = container(**values(case)).get("ports", [])
    assert [one["containerPort"] for one in given if one["name"] == "monitor"] == ([monitor.port] if monitor else [])
    acceptors = {peer.tcp.listen_port for peer in config.peers if peer.tcp.listen_port}
    assert {one["containerPort"] for one in given if one["name"] != "monitor"} == acceptors


@pytest.mark.parametrize("case", CASES)
def test_a_pod_has_no_rights(case: str) -> None:
    spec = pod(**values(case))
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for one in [*spec["containers"], *spec.get("initContainers", [])]:
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_there_is_never_a_second_pod() -> None:
    assert find("StatefulSet")["spec"]["replicas"] == 1


def test_shared_memory_is_enough_for_the_rings_of_three_portals() -> None:
    volume = next(one for one in pod()["volumes"] if one["name"] == "shm")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Mi"}
    assert 3 * (ring_bytes(0) + (1 << 20)) <= 64 << 20


def test_probes_ask_the_monitor() -> None:
    asked = {name: container()[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert asked == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}


def test_probes_without_a_monitor_ask_the_admin_socket() -> None:
    one = container(**values("without-monitor"))
    for name in ("startup", "liveness", "readiness"):
        assert one[f"{name}Probe"]["exec"]["command"] == ["python", "/opt/tnwgd/health.py"]


def test_the_drain_ends_before_the_pod_is_killed() -> None:
    drain = {"enabled": True, "limitSeconds": 40}
    assert container(drain=drain)["lifecycle"]["preStop"]["exec"]["command"][-2:] == ["--limit", "40"]
    assert pod(drain=drain)["terminationGracePeriodSeconds"] == 3 * 40 + 15
    assert pod(drain={"enabled": False})["terminationGracePeriodSeconds"] == 15
    assert "lifecycle" not in container(drain={"enabled": False})


def test_a_changed_file_restarts_the_dro_unless_it_is_reloaded() -> None:
    def annotations(change: str, *, restart: bool) -> Object:
        files = {"dro.xml": chart().merge_values()["config"]["files"]["dro.xml"] + change}
        config = {"files": files, "restartOnChange": restart}
        return dict(find("StatefulSet", config=config)["spec"]["template"]["metadata"]["annotations"])

    assert annotations("", restart=True) != annotations("<!-- -->", restart=True)
    assert annotations("", restart=False) == annotations("<!-- -->", restart=False)


def test_another_release_of_the_chart_restarts_nothing() -> None:
    labels = find("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert set(labels) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}


def test_host_network_is_that_of_the_node_and_asks_the_names_of_the_cluster() -> None:
    spec = pod(**values("host-network"))
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_a_companion_can_come_before_the_dro_is_ready() -> None:
    service = find("Service")
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert [port["port"] for port in service["spec"]["ports"]] == [26123, 26124, 15304]


def test_a_service_to_the_outside_has_links_alone() -> None:
    assert [port["port"] for port in find("Service", **values("tls"))["spec"]["ports"]] == [26123]


def test_lbmrd_is_beside_the_dro_and_has_its_own_pods(tmp_path: Path) -> None:
    (deployment,) = (one for one in objects(values("lbmrd")) if one["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    services = {one["metadata"]["name"]: one["spec"] for one in objects(values("lbmrd")) if one["kind"] == "Service"}
    assert services["west-open-dro-lbmrd"]["selector"] == labels
    assert services["west-open-dro-lbmrd"]["ports"] == [
        {"name": "tr", "port": 15380, "targetPort": "tr", "protocol": "UDP"}
    ]
    assert not services["west-open-dro"]["selector"].items() <= labels.items()
    (one,) = deployment["spec"]["template"]["spec"]["containers"]
    assert one["args"] == ["--port=15380", "--metrics=0.0.0.0:15381", "/etc/lbmrd/lbmrd.xml"]
    assert one["securityContext"]["readOnlyRootFilesystem"] is True
    (text,) = (one["data"]["lbmrd.xml"] for one in objects(values("lbmrd")) if "lbmrd.xml" in one.get("data", {}))
    (tmp_path / "lbmrd.xml").write_text(text)
    assert len(load_lbmrd(str(tmp_path / "lbmrd.xml"), pytest.fail).translation.rules) == 1
    assert find("Deployment") == {}


def test_umsrs_is_beside_a_dro_that_names_its_address(tmp_path: Path) -> None:
    made = list(objects(values("umsrs")))
    (deployment,) = (o for o in made if o["kind"] == "Deployment")
    (one,) = deployment["spec"]["template"]["spec"]["containers"]
    assert arguments().parse_args(one["args"]).port == 27000
    assert one["args"][2:] == ["--max-records=256", "/etc/umsrs/umsrs.xml"]
    (service,) = (o["spec"] for o in made if o["metadata"]["name"] == "west-open-dro-umsrs" and o["kind"] == "Service")
    assert service["ports"] == [{"name": "tr", "port": 27000, "targetPort": "tr", "protocol": "TCP"}]
    assert f"resolver_service {service['clusterIP']}:27000" in values("umsrs")["config"]["files"]["trd1.cfg"]
    (text,) = (o["data"]["umsrs.xml"] for o in made if "umsrs.xml" in o.get("data", {}))
    (tmp_path / "umsrs.xml").write_text(text)
    assert load_umsrs(str(tmp_path / "umsrs.xml"), pytest.fail).times.source_state_ns == 3600 * 10**9


def test_tokens_are_copied_to_a_file_that_nobody_else_reads() -> None:
    """The group of the pod reads a Secret, and the monitor takes no such file."""
    (init,) = pod(**values("tls"))["initContainers"]
    assert init["command"] == ["install", "--mode=0400", "/etc/tnwgd-tokens/tokens", "/run/tnwgd-tokens/tokens"]
    environment = {"name": "DRO_MONITOR_TOKENS", "value": "/run/tnwgd-tokens/tokens"}
    assert environment in container(**values("tls"))["env"]


def test_rules_are_those_of_deploy_prometheus() -> None:
    given = find("PrometheusRule", **values("tls"))["spec"]["groups"]
    url = ("https://example.invalid/docs/runbooks.md", "https://docs.example.com/runbooks.md")
    texts = [(RULES / name).read_text().replace(*url) for name in ("recording.yml", "alerts.yml")]
    assert given == [group for text in texts for group in yaml.safe_load(text)["groups"]]


def test_series_have_the_jobs_that_the_rules_know() -> None:
    endpoints = find("PodMonitor", **values("tls"))["spec"]["podMetricsEndpoints"]
    jobs = {one["path"]: one["relabelings"][0]["replacement"] for one in endpoints}
    assert jobs == {"/metrics": "dro", "/metrics/workers": "dro-workers"}


def test_the_notes_warn_of_an_endpoint_without_multicast() -> None:
    given = values("host-network") | {"hostNetwork": False}
    assert "Most pod networks carry\nnone" in render(given)["NOTES.txt"]
    assert "WARNING" not in render(values("host-network"))["NOTES.txt"]
    assert "WARNING" not in render(values("tls"))["NOTES.txt"]
    assert "WARNING" not in render(values("umsrs"))["NOTES.txt"], "its TRD has none"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"hostNetwrok": True}, "hostNetwrok"),
        ({"monitor": {"prot": 1}}, "prot"),
        ({"monitor": {"port": 80}}, "/monitor/port"),
        ({"monitor": {"port": "15304"}}, "/monitor/port"),
        ({"shmSize": "64MB"}, "/shmSize"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"image": {"digest": "sha256:abc"}}, "/image/digest"),
        ({"peerLinks": [{"name": "a"}]}, "/peerLinks/0"),
        ({"peerLinks": [{"name": "a-name-that-is-too-long", "port": 26123}]}, "/peerLinks/0/name"),
        ({"drain": {"limitSeconds": 0}}, "/drain/limitSeconds"),
        ({"secrets": ["Not A Name"]}, "/secrets/0"),
        ({"secrets": [{"name": "a"}]}, "/secrets/0"),
        ({"history": {"intervalSeconds": 0.01}}, "/history/intervalSeconds"),
        ({"service": {"type": "Tunnel"}}, "/service/type"),
        ({"monitor": {"topicMetrics": 10_001}}, "/monitor/topicMetrics"),
        ({"podDisruptionBudget": {"maxUnavailable": 2}}, "/podDisruptionBudget/maxUnavailable"),
        ({"config": {"files": {"../dro.xml": "x"}}}, "invalid propertyName '../dro.xml'"),
        ({"config": {"files": {"dro.xml": ""}}}, "/config/files/dro.xml"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_its_name(wrong: Object, told: str) -> None:
    assert told in refusal(wrong)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"config": {"main": "other.xml"}}, "config.main: other.xml is none of config.files"),
        ({"monitor": {"port": 15305}}, "monitor.port: dro.xml needs <web-monitor>*:15305</web-monitor>"),
        ({"secrets": ["a-tls"]}, "secrets: nothing of config.files names /etc/tnwgd-secrets/a-tls/"),
        ({"terminationGracePeriodSeconds": 30}, "terminationGracePeriodSeconds: 30 is less than the 75 seconds"),
        ({"monitor": {"enabled": False}, "podMonitor": {"enabled": True}}, "podMonitor.enabled: there are no metrics"),
        ({"monitor": {"enabled": False}, "tokens": {"secretName": "a"}}, "tokens.secretName: there is no admin API"),
        ({"hostNetwork": True, "networkPolicy": {"enabled": True}}, "networkPolicy.enabled: a NetworkPolicy has no"),
        ({"hostNetwork": True, "multusNetworks": "a"}, "multusNetworks: a pod with hostNetwork gets no other"),
        ({"peerLinks": [{"name": "monitor", "port": 26123}]}, "peerLinks: monitor, port 26123: another link or the"),
        ({"peerLinks": [{"name": "a", "port": 15304}]}, "peerLinks: a, port 15304: another link or the monitor"),
        ({"config": {"files": {"um.cfg": "a \u2028kind: b"}}}, "config.files: um.cfg has a control character"),
    ],
    ids=str,
)  # fmt: skip
def test_values_that_do_not_fit_each_other_are_refused(wrong: Object, told: str) -> None:
    assert told in refusal(wrong)


@pytest.mark.parametrize("name", ["2024", "true", "on", "null"])
def test_names_that_yaml_takes_for_something_else_stay_names(name: str) -> None:
    given = {
        "fullnameOverride": name, "nameOverride": name, "priorityClassName": name,
        "peerLinks": [{"name": name, "port": 26123}], "history": {"enabled": True, "storageClass": name},
    }  # fmt: skip
    for one in objects(given):
        assert one["metadata"]["name"] == name
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)


def test_large_numbers_have_all_their_digits() -> None:
    probe = container(probes={"liveness": {"periodSeconds": 1_000_000}})["livenessProbe"]
    assert probe["periodSeconds"] == 1_000_000


@pytest.mark.parametrize("where", ["127.0.0.1:15304", "localhost:15304"])
def test_a_monitor_that_probes_do_not_reach_is_refused(where: str) -> None:
    text = chart().merge_values()["config"]["files"]["dro.xml"].replace("*:15304", where)
    assert "is not reached by probes; write *:15304" in refusal({"config": {"files": {"dro.xml": text}}})


def test_the_schema_describes_every_value() -> None:
    def bare(schema: Object, path: str) -> Iterator[str]:
        if "description" not in schema:
            yield path
        for name, inner in schema.get("properties", {}).items():
            yield from bare(inner, f"{path}.{name}")

    assert list(bare(json.loads((CHART / "values.schema.json").read_text()), "")) == []


def test_the_schema_knows_every_value_and_no_other() -> None:
    def same(schema: Object, given: Object, path: str) -> Iterator[str]:
        properties = schema["properties"]
        yield from (f"{path}.{name}" for name in properties.keys() ^ given.keys())
        for name, inner in given.items():
            if isinstance(inner, dict) and "properties" in properties.get(name, {}):
                assert properties[name]["additionalProperties"] is False
                yield from same(properties[name], inner, f"{path}.{name}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    given = yaml.safe_load((CHART / "values.yaml").read_text())
    assert sorted(same(schema, given, "")) == [".global", ".resources.claims"]

"""The Compose file: valid, hardened, with configurations that load, and that carry messages between three hosts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema.validators import validator_for

from dro.bus.ring_size import ring_bytes
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.lint.rules import lint
from dro.config.lint.together import lint_together
from dro.config.reading.problems import Warn
from dro.config.um.interfaces import Interface
from supervisor.resolvers import lbmrd, umsrs
from tests.fakes.lookup import FakeLookup
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.judged import judged
from tests.rigs.netns.process import Process

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy/compose"
SCHEMA: Final = ROOT / "tests/golden/compose-spec.json"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
DROS: Final = ("dro-a", "dro-b", "dro-c")
RESOLVERS: Final = {"lbmrd", "umsrs"}
COUNTERS_BYTES: Final = 1 << 20
"""More than a portal takes of shared memory beside its ring, see docs/run.md."""


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the container, whose working directory is that of the configuration."""
    monkeypatch.chdir(FOLDER)


def addresses(name: str) -> dict[str, str]:
    """Network to address of a DRO."""
    return {network: given["ipv4_address"] for network, given in SERVICES[name]["networks"].items()}


def subnet(network: str) -> str:
    return str(COMPOSE["networks"][network]["ipam"]["config"][0]["subnet"])


def load(name: str, warn: Warn = print) -> DroConfig:
    """On a host with the interfaces of its container."""
    table = [Interface(f"eth{nth}", address, 24) for nth, address in enumerate(addresses(name).values())]
    return load_dro(f"{name}.xml", warn=warn, lookup=FakeLookup(tuple(table)), environ={})


def test_it_is_valid() -> None:
    schema = json.loads(SCHEMA.read_text())
    errors = validator_for(schema)(schema).iter_errors(COMPOSE)
    assert [f"{error.json_path}: {error.message}" for error in errors] == []


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "devices", "user"} & service.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    assert re.fullmatch(r"\S+:v?\d+\.\d+\.\d+(-debug)?", SERVICES[name]["image"])


def test_what_is_named_is_there() -> None:
    mounted = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    grafana = {"../grafana/provisioning", "../grafana/dashboards"}
    paths = {path for path in mounted if path.startswith(".")} - grafana
    assert {path for path in paths if not (FOLDER / path).is_file()} == set()
    assert {name for name in mounted if not name.startswith(".")} == COMPOSE["volumes"].keys()


@pytest.mark.parametrize("name", DROS)
def test_configurations_load_without_a_remark(name: str) -> None:
    warnings: list[str] = []
    config = load(name, warnings.append)
    assert warnings == []
    assert list(lint(config)) == []


def test_configurations_agree_with_one_another() -> None:
    assert list(lint_together([load(name) for name in DROS])) == []


@pytest.mark.parametrize("name", DROS)
def test_shared_memory_is_enough_for_full_rings(name: str) -> None:
    portals = load(name).all_portals
    needed = sum(ring_bytes(portal.max_queue_bytes) + COUNTERS_BYTES for portal in portals)
    assert SERVICES[name]["shm_size"] == "64m"
    assert needed <= 64 << 20


@pytest.mark.parametrize("name", DROS)
def test_the_monitor_listens_on_the_network_of_prometheus_alone(name: str) -> None:
    monitor = load(name).daemon.web_monitor
    assert monitor is not None
    assert monitor.interface == addresses(name)["watch"]
    assert SERVICES["prometheus"]["networks"] == ["watch"]


def test_addresses_are_those_of_their_networks() -> None:
    given = [(network, address) for name in DROS for network, address in addresses(name).items()]
    assert [
        (network, address) for network, address in given if ip_address(address) not in ip_network(subnet(network))
    ] == []
    automatic = ip_network(COMPOSE["networks"]["watch"]["ipam"]["config"][0]["ip_range"])
    assert not [address for network, address in given if ip_address(address) in automatic]


@pytest.mark.parametrize("name", [name for name in SERVICES if RESOLVERS & set(SERVICES[name].get("entrypoint", ()))])
def test_a_daemon_is_told_the_network_that_it_is_in(name: str) -> None:
    """Its own, or that of the container whose network it shares."""
    service = SERVICES[name]
    program = lbmrd if "lbmrd" in service["entrypoint"] else umsrs
    args = program.arguments().parse_args(service["command"])
    (network, address) = next(iter(addresses(service.get("network_mode", name).removeprefix("service:")).items()))
    assert args.interface == subnet(network)
    assert ip_address(address) in ip_network(subnet(network))


def test_the_hosts_without_multicast_are_those_of_the_document() -> None:
    """Commands of daemons and addresses; the files are its own, see `tests/docs/test_cloud.py`."""
    page = (ROOT / "docs/cloud.md").read_text()
    for name in ("lbmrd1", "lbmrd2", "umsrs"):
        service = SERVICES[f"cloud-{name}"]
        assert f"\n{' '.join([service['entrypoint'][-1], *service['command']])} &\n" in page
    assert f"host A, {addresses('cloud-a')['cloud1']} " in page
    assert f"host B, {addresses('cloud-b')['cloud2']}\n" in page


def test_no_trd_is_internal() -> None:
    """The filter of such a network drops what is not for an address of its own, as multicast is."""
    assert {name for name, network in COMPOSE["networks"].items() if network.get("internal")} == {"links"}


def test_prometheus_scrapes_each_monitor_for_the_rules() -> None:
    here, there = (yaml.safe_load((ROOT / path).read_text()) for path in
                   ("deploy/compose/prometheus.yml", "deploy/prometheus/prometheus.yml"))  # fmt: skip
    jobs = [[(job["job_name"], job.get("metrics_path")) for job in one["scrape_configs"]] for one in (here, there)]
    assert jobs[0] == jobs[1]
    assert here["global"] == there["global"]
    wanted = []
    for name in DROS:
        monitor = load(name).daemon.web_monitor
        assert monitor is not None
        assert SERVICES[name]["hostname"] == name, "or the monitor refuses what is asked by that name"
        wanted.append(f"{name}:{monitor.port}")
    assert [job["static_configs"] for job in here["scrape_configs"]] == [[{"targets": wanted}]] * 2


@pytest.mark.prometheus
def test_promtool_finds_nothing_in_its_files(tmp_path: Path) -> None:
    for volume in SERVICES["prometheus"]["volumes"][:3]:
        source, target, _ = volume.split(":")
        path = tmp_path / Path(target).relative_to("/etc/prometheus")
        path.parent.mkdir(exist_ok=True)
        shutil.copy(FOLDER / source, path)
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_service(host: Host, name: str) -> Process:
    """The command of a service, on a host instead of a container."""
    words = [re.sub("^/etc/tnwgd/", f"{FOLDER}/", word) for word in SERVICES[name]["command"]]
    return host.start_python("-c", f"from dro.tools.entry import {words[0]} as tool; tool()", *words[1:], name=name)


@pytest.mark.netns
@pytest.mark.tshark
@pytest.mark.slow
def test_messages_pass_from_trd_1_to_trd_3(net: Net) -> None:
    trds = ("trd1", "trd3")
    with judged(net, *trds, minimum={trd: {"lbtrm.data": 1} for trd in trds}):
        hosts = {name: net.host(name, {n: f"{a}/24" for n, a in addresses(name).items()}) for name in DROS}
        source = net.host("source", {"trd1": "10.91.1.2/24"})
        receiver = net.host("receiver", {"trd3": "10.91.3.2/24"})
        dros = {
            name: host.start([sys.executable, "-u", "-m", "supervisor.main", f"{name}.xml"], name, cwd=FOLDER)
            for name, host in hosts.items()
        }
        hears = run_service(receiver, "receiver")
        sends = run_service(source, "source")
        hears.wait_output(r"secs\. \d+\.\d*[1-9]\d* Kmsgs/sec", 60)
        for process in (sends, hears, *dros.values()):
            process.stop()
        assert {name: process.returncode for name, process in dros.items()} == dict.fromkeys(DROS, 0)

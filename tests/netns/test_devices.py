"""Network devices that go and come back under a DRO and under applications, and addresses that change."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Final

import pytest

from dro.devices.follower import DeviceFollower
from tests.rigs.netns.examples import LINKS, Example, Flow, Network, network_of
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.namespace import ip
from tests.rigs.network import QUICK

pytestmark = [pytest.mark.netns, pytest.mark.tshark, pytest.mark.slow]

Judged = Callable[..., AbstractContextManager[Watch]]
AWAY_S: Final = 2.0
BACK_S: Final = 6.0
"""Of a busy machine; two seconds of a quiet one (docs/run.md)."""
NEW_ADDRESS_S: Final = 20.0
"""A receiver leaves the session of the address before after eleven seconds of silence."""
LBTRM: Final = {1: "lbtrm", 2: "lbtrm"}
MIXED: Final = {1: "tcp", 2: "lbtrm"}


class Traffic:
    """Both ways over two DROs, to receivers of the library that follow their devices."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.follower = DeviceFollower(network.loop)
        ends = {domain: network.station(domain) for domain in (1, 2)}
        heard = {domain: network.receivers(domain, [f"to{domain}"], [])[0] for domain in (1, 2)}
        self.flows = {domain: Flow(b"to%d" % domain, ends[3 - domain], [heard[domain]]) for domain in (1, 2)}
        network.until_known()
        self.back_s()

    def go_on(self) -> None:
        for flow in self.flows.values():
            flow.go_on()

    def wait(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds

        def look() -> bool:
            self.go_on()
            return holds() or time.monotonic() > deadline

        self.network.until(look)
        assert holds()

    def _is_heard(self, first: dict[int, int]) -> bool:
        flows = self.flows.items()
        return all(max(flow.receivers[0].got[flow.topic], default=-1) >= first[n] for n, flow in flows)

    def back_s(self) -> float:
        """Seconds until something that is sent from now on has come both ways."""
        began_s = time.monotonic()
        first = {domain: flow.sent for domain, flow in self.flows.items()}
        self.wait(partial(self._is_heard, first))
        return time.monotonic() - began_s


@contextmanager
def flowing(
    net: Net, judged: Judged, folder: Path, transports: dict[int, str], quiet: str = "trd2"
) -> Iterator[Traffic]:
    """`quiet`: the TRD whose devices stay; what is on its wire is judged."""
    made = Example("peer-link-udp", folder, QUICK)
    acceptor = made.folder / "dro-g2.xml"  # knows its address by the connection alone
    acceptor.write_text(re.sub("<interface>.*</interface>", "", acceptor.read_text()))
    for domain, transport in transports.items():
        with made.config(domain).open("a") as file:
            file.write(f"source transport {transport}\nreceiver transport_lbtrm_nak_generation_interval 1000\n")
    with network_of(net, made) as network, judged(quiet, decode_as=made.decoding()):
        network.start()
        traffic = Traffic(network)
        yield traffic
        traffic.follower.close()
        network.stop()


def is_in(network: Network, dro: str, portal: str, state: str, trouble: str = "") -> bool:
    workers = network.ask(dro, "status")["workers"]
    return any((w["name"], w["state"], w["trouble"]) == (portal, state, trouble) for w in workers)


def is_past(at_s: float) -> bool:
    return time.monotonic() > at_s


@pytest.mark.parametrize(
    ("host", "device", "transports"),
    [
        pytest.param("G1", "trd1", LBTRM, id="LBT-RM"),
        pytest.param("G1", "trd1", MIXED, id="TCP", marks=pytest.mark.long),
        pytest.param("G1", LINKS, LBTRM, id="initiator", marks=pytest.mark.long),
        pytest.param("G2", LINKS, LBTRM, id="acceptor"),
        pytest.param("apps", "trd2", LBTRM, id="application"),
    ],
)
def test_a_device_that_is_made_again_is_used_again(
    net: Net, judged: Judged, tmp_path: Path, host: str, device: str, transports: dict[int, str]
) -> None:
    """The portal was deaf or mute for ever, and `ready` throughout."""
    with flowing(net, judged, tmp_path, transports, "trd1" if device == "trd2" else "trd2") as traffic:
        network = traffic.network
        for _ in range(2):
            net.unplug(net.hosts[host], device)
            gone_s = time.monotonic()
            if host != "apps":
                address = str(net.hosts[host].interfaces[device].ip)
                portal = f"{host}-TRD1" if device == "trd1" else "G1-G2" if host == "G1" else "G2-G1"
                expected = "degraded", f"no device has the address {address}"
                traffic.wait(partial(is_in, network, host, portal, *expected))
            traffic.wait(partial(is_past, gone_s + AWAY_S))
            net.plug(net.hosts[host], device)
            back_s = traffic.back_s()
            print(f"back after {back_s:.2f} s")
            assert back_s < BACK_S
            if host != "apps":
                traffic.wait(partial(is_in, network, host, portal, "ready"))
                log = network.processes[host].stdout
                assert "a network device or address is gone" in log
                assert "joined anew" in log


def test_a_portal_that_cannot_start_without_its_address_starts_when_it_is_there(
    net: Net, judged: Judged, tmp_path: Path
) -> None:
    """It waited for up to five seconds more, as after any failed start."""
    with flowing(net, judged, tmp_path, LBTRM) as traffic:
        network, host = traffic.network, net.hosts["G1"]
        net.unplug(host, "trd1")
        workers = network.ask("G1", "status")["workers"]
        os.kill(next(worker["pid"] for worker in workers if worker["name"] == "G1-TRD1"), signal.SIGKILL)
        attempts = 6  # the pause before the next one is 1.6 s or more by then
        traffic.wait(lambda: network.processes["G1"].stdout.count("worker cannot run") >= attempts)
        net.plug(host, "trd1")
        plugged_s = time.monotonic()
        traffic.wait(partial(is_in, network, "G1", "G1-TRD1", "ready"))
        assert time.monotonic() - plugged_s < BACK_S
        traffic.back_s()


def test_an_address_that_changes_is_followed_while_a_network_is_named(net: Net, judged: Judged, tmp_path: Path) -> None:
    with flowing(net, judged, tmp_path, LBTRM) as traffic:
        network, host = traffic.network, net.hosts["G1"]
        before = host.interfaces["trd1"]
        after = IPv4Interface(f"{before.ip + 50}/{before.network.prefixlen}")
        ip(
            f"address del {before} dev trd1",
            f"address add {after} brd + dev trd1",
            "route add 224.0.0.0/4 dev trd1 metric 0",
            namespace=host.namespace,
        )
        back_s = traffic.back_s()
        print(f"back after {back_s:.2f} s")
        traffic.wait(partial(is_in, network, "G1", "G1-TRD1", "ready"))
        log = network.processes["G1"].stdout
        assert re.search(rf"context created address={after.ip} .*process=G1-TRD1", log)
        assert back_s < NEW_ADDRESS_S

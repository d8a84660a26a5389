"""Lint of several files: DROs of one network that do not fit together; the example networks do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.lint.finding import Machine
from dro.config.lint.together import lint_together
from dro.errors import ConfigError
from tests.builders.dro_file import load
from tests.config.lint.test_rules import EXAMPLES, FILE, LOOKUP, MACHINE, endpoint

ROOT = Path(__file__).parents[3]


def dro(name: str, *portals: str) -> DroConfig:
    text = FILE.format(portals="\n".join(portals), daemon="").replace(
        "<name>D</name>", f"<name>{name}</name>" * bool(name)
    )
    return load(text, file=f"{name or 'none'}.xml", lookup=LOOKUP)


def initiator(inner: str = "", more: str = "", *, port: int = 29000, name: str = "P") -> str:
    address = f"<initiator><address>127.0.0.1</address><port>{port}</port></initiator>"
    return f"<peer><name>{name}</name><single-tcp>{inner}{address}</single-tcp>{more}</peer>"


def acceptor(inner: str = "", more: str = "", *, interface: str = "127.0.0.1") -> str:
    at = f"<interface>{interface}</interface>"
    end = "<acceptor><listen-port>29000</listen-port></acceptor>"
    return f"<peer><name>P</name><single-tcp>{at}{inner}{end}</single-tcp>{more}</peer>"


UDP = "<udp><port>29600</port>{}</udp>"
LATE = '<nak-handling generation-interval="60000"/>'
BRISK = '<session-message max-interval="5000" activity-timeout="20000"/>'
GROUP = "context resolver_multicast_address 239.3.3.3"
DAEMON = "context resolver_unicast_daemon 127.0.0.1:15380"
A1 = endpoint("A", 1)
TLS = "<tls><certificate>c.pem</certificate><certificate-key>k.pem</certificate-key></tls>"

CASES: list[tuple[str, str, str, str | None]] = [
    ("one-trd-two-ids", A1, endpoint("B", 2), "2, but portal A of X.xml gives the TRD at 224.9.10.11:12965 the id 1"),
    ("one-trd-two-ids", A1, endpoint("B", 2, interface="198.51.100.5"), None),  # another network, same defaults
    ("one-trd-two-ids", A1, endpoint("B", 2, [GROUP]), None),
    ("one-id-two-trds", A1, endpoint("B", 1, [GROUP]), "239.3.3.3:12965, but portal A of X.xml has 224.9.10.11:12965"),
    ("one-id-two-trds", A1, endpoint("B", 1), None),
    ("one-id-two-trds", A1, endpoint("B", 1, [GROUP, DAEMON]), "127.0.0.1:15380, but portal A of X.xml has 224.9"),
    ("one-id-two-trds", endpoint("A", 1, [DAEMON]), endpoint("B", 1, [DAEMON]), None),
    ("one-trd-two-ids", endpoint("A", 1, [DAEMON]), endpoint("B", 2, [DAEMON]),
     "2, but portal A of X.xml gives the TRD at 127.0.0.1:15380 the id 1"),
    ("own-size", A1, endpoint("B", 1, ["context transport_lbtrm_datagram_max_size 1400"]), "takes 1400 bytes, but"),
    ("own-size", A1, endpoint("B", 2, [GROUP, "context transport_lbtrm_datagram_max_size 1400"]), None),
    ("remote-interest", A1, endpoint("B", 1, xml='@<remote-topic timeout="90000"/>'), "repeats interest every 60 s"),
    ("remote-interest", A1, endpoint("B", 1, xml='@<remote-topic timeout="120000"/>'), None),
    ("companions", initiator(TLS), acceptor(), "<tls>: is here and not there: the companion is portal P of Y.xml"),
    ("companions", initiator(), acceptor("<compression>LZ4</compression>"), "<compression>: is there and not here"),
    ("companions", initiator(more=UDP.format("")), acceptor(interface="0.0.0.0"), "<udp>: is here and not there"),
    ("companions", initiator() + initiator(name="Q"), acceptor(), "is the companion of portal P of X.xml already"),
    ("companions", initiator(TLS), acceptor(interface="192.0.2.10"), None),  # not the companion
    ("companions", initiator(TLS, port=29001), acceptor(), None),
    ("companions", initiator(TLS), acceptor(TLS), None),
    ("keepalive", initiator(more='<gateway-keepalive interval="5000" timeout="15000"/>'),
     acceptor(more='<gateway-keepalive interval="1000" timeout="6000"/>'), "timeout 6 s, but portal P of X.xml sends"),
    ("keepalive", initiator(), acceptor(), None),
    ("window-time", initiator(more=UDP.format("")), acceptor(more=UDP.format(LATE)),
     "25165824 bytes are 20.1 s at 10 Mbit/s, receivers ask for 60 s"),
    ("session-life", initiator(more=UDP.format("")), acceptor(more=UDP.format(BRISK)),
     "20 s is below 3 session message intervals of 10 s"),
    ("session-life", initiator(more=UDP.format("")), acceptor(more=UDP.format("")), None),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "first", "second", "text"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)])
def test_two_files(rule: str, first: str, second: str, text: str | None) -> None:
    findings = [f for f in lint_together([dro("X", first), dro("Y", second)], MACHINE) if f.rule == rule]
    if text is None:
        assert findings == []
    else:
        assert any(text in str(finding) for finding in findings), [str(finding) for finding in findings]
        assert all(finding.remedy and finding.place.file in ("X.xml", "Y.xml") for finding in findings)


def test_two_versions_of_one_dro_are_not_compared() -> None:
    findings = lint_together([dro("X", A1), dro("X", endpoint("B", 2))], MACHINE)
    assert [f.rule for f in findings] == ["dro-name"]
    assert {f.rule for f in lint_together([dro("", A1), dro("", endpoint("B", 2))], MACHINE)} == {"one-trd-two-ids"}
    assert lint_together([dro("X", A1)], MACHINE) == []


@pytest.mark.parametrize("folder", sorted(p for p in EXAMPLES.iterdir() if p.is_dir()), ids=lambda p: p.name)
def test_the_example_networks(folder: Path) -> None:
    configs = []
    for path in sorted(folder.glob("dro-*.xml")):
        try:
            configs.append(load_dro(str(path), warn=lambda _: None))
        except ConfigError:
            assert folder.name == "unsupported-two-endpoints"
    rules = [f.rule for f in lint_together(configs, Machine())]
    assert rules == (["one-trd-two-ids"] if folder.name == "unsupported-two-domain-ids" else [])


def test_validation_of_several_files_compares_them() -> None:
    files = sorted(map(str, (EXAMPLES / "unsupported-two-domain-ids").glob("dro-*.xml")))
    argv = [sys.executable, "-m", "supervisor.main", "-v", *files]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "G1-TRD2 of " in done.stderr
    assert "gives the TRD at 239.121.2.1:27700 the id 2" in done.stderr

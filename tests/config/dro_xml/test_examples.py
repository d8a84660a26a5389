"""The example networks: every DRO file is valid, fits the DTD, and means what its `topology.json` says."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from lxml import etree

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.unsupported import ConfigWarning, unsupported
from dro.config.reading.problems import ConfigErrors

EXAMPLES = Path(__file__).parents[2] / "golden" / "examples"
FILES = sorted(EXAMPLES.glob("*/dro-*.xml"))
REFUSED = {"unsupported-two-endpoints/dro-g1.xml": "domain-id 2 is already used by the endpoint in line"}


def ident(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def test_all_examples_are_here() -> None:
    assert len(FILES) == 87


@pytest.mark.parametrize("path", FILES, ids=ident)
def test_an_example_is_what_its_topology_says(path: Path) -> None:
    dtd = etree.DTD(str(files("dro.config").joinpath("data/dro-config.dtd")))
    assert dtd.validate(etree.parse(path)), dtd.error_log
    warnings: list[str] = []
    if ident(path) in REFUSED:
        with pytest.raises(ConfigErrors, match=REFUSED[ident(path)]):
            load_dro(str(path), warn=warnings.append)
        return
    config = load_dro(str(path), warn=warnings.append)
    assert all("is not in the working directory, using" in w for w in warnings)
    topology = json.loads((path.parent / "topology.json").read_text())
    dro = next(d for d in topology["dros"] if d["config"] == path.name)
    assert config.daemon.name == dro["name"]
    expected = {p["name"]: p for p in dro["portals"]}
    assert {p.name for p in config.portals} | {p.name for p in config.peers} == set(expected)
    for endpoint in config.portals:
        assert expected[endpoint.name].get("cost", 1) == endpoint.cost
    for peer in config.peers:
        assert expected[peer.name].get("cost", 1) == peer.cost
        assert peer.tcp.nodelay
        assert (peer.tcp.initiator is None) == (peer.tcp.listen_port != 0)
    limits = unsupported(config)
    has_errors = any(not isinstance(limit, ConfigWarning) for limit in limits)
    assert not has_errors
    assert [expected[e.name].get("hotlink_index", 0) for e in config.portals] == [
        e.hotlink_index for e in config.portals
    ]

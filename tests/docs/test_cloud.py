"""The set-up without multicast in docs/cloud.md: its files are those of `deploy/cloud`, and load without a remark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.lint.rules import lint
from dro.config.lint.together import lint_together
from dro.config.um.interfaces import Interface
from dro.config.um.options import DEFAULTS
from dro.config.um.sets import TcpSourceOptions, UnicastResolverOptions
from tests.fakes.lookup import FakeLookup

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy/cloud"
PAGE: Final = (ROOT / "docs/cloud.md").read_text()
ADDRESSES: Final = {"a": "10.10.1.10", "b": "10.20.1.10"}


def load(host: str, monkeypatch: pytest.MonkeyPatch) -> tuple[DroConfig, list[str]]:
    """The DRO file on its host, and the remarks on it."""
    monkeypatch.chdir(FOLDER / host)
    lookup = FakeLookup((Interface("eth0", ADDRESSES[host], 24, is_multicast=False),))
    warnings: list[str] = []
    return load_dro("dro.xml", warn=warnings.append, lookup=lookup, environ={}), warnings


def test_the_page_shows_the_files() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert [path.name for path in files if f"\n{path.read_text()}```" not in PAGE] == []


def test_they_load_without_a_remark_on_hosts_without_multicast(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = [load(host, monkeypatch) for host in ADDRESSES]
    assert [warnings for _, warnings in loaded] == [[], []]
    assert [list(lint(config)) for config, _ in loaded] == [[], []]
    assert list(lint_together([config for config, _ in loaded])) == []


def test_the_ports_are_those_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = load("a", monkeypatch)
    unicast, tcp = UnicastResolverOptions.of(config.portals[0].um), TcpSourceOptions.of(DEFAULTS)
    assert f"UDP {unicast.port_low} to {unicast.port_high}" in PAGE
    assert f"TCP {tcp.port_low} to {tcp.port_high}" in PAGE
    requests = re.findall(r"request_tcp_port_(?:low|high) (\d+)", PAGE)
    assert len(requests) == 4
    assert f"TCP {requests[0]} to {requests[1]} here" in PAGE

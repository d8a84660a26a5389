"""The effective configuration: what it shows, and that it loads again and means the same."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.reading.problems import ConfigErrors, Problems
from dro.config.report.effective import effective_config
from dro.config.um.xml_document import parse_um_xml
from dro.errors import ConfigError
from tests.builders.dro_documents import documents, mutated
from tests.builders.dro_file import load, parse_dro
from tests.builders.one_element import misfits_of_the_dtd
from tests.fakes.lookup import FakeLookup

HOST = FakeLookup()
EXAMPLES = Path(__file__).parents[2] / "golden" / "examples"
MANY = int(os.environ.get("DRO_EXAMPLES", "40"))  # the long profile: 50000
LINK = (EXAMPLES / "peer-link-udp" / "dro-g1.xml").read_bytes()
UM = b"""<um-configuration version="1.0"><templates><template name="t"><options type="context">
<option name="request_tcp_port" default-value="7" order="deny,allow"><deny>8</deny></option></options></template>
</templates><applications><application template="t"><contexts><context name="c"><sources order="allow,deny">
<topic topicname="a" rule="allow"/></sources></context></contexts></application></applications></um-configuration>"""


def without_password(config: DroConfig) -> DroConfig:
    peers = []
    for peer in config.peers:
        tls = peer.tcp.tls
        tcp = replace(peer.tcp, tls=replace(tls, certificate_key_password="")) if tls is not None else peer.tcp
        peers.append(replace(peer, tcp=tcp))
    return replace(config, peers=tuple(peers))


def test_every_value_stands_there_with_its_origin() -> None:
    raw = b"""<tnw-gateway version="1.0"><daemon><name>D</name>
<route-info timeout="9"/></daemon><portals>
<endpoint><domain-id>3</domain-id><name>E</name>
<lbm-attributes><option scope="context" name="request_tcp_port" value="5"/></lbm-attributes></endpoint>
</portals></tnw-gateway>"""
    lines = [line.strip() for line in effective_config(load(raw)).splitlines()]
    assert "<name>D</name> <!-- dro.xml:1 -->" in lines
    assert "<domain-id>3</domain-id> <!-- dro.xml:3 -->" in lines
    assert "<cost>1</cost> <!-- default -->" in lines
    assert '<option scope="context" name="request_tcp_port" value="5"/> <!-- dro.xml:4 -->' in lines
    info = next(line for line in lines if line.startswith("<route-info "))
    assert 'timeout="9"' in info
    assert "timeout: dro.xml:2" in info
    assert "check-interval: default" in info
    assert not any("acl" in line or "udp" in line for line in lines)
    assert lines.index("<name>E</name> <!-- dro.xml:3 -->") < lines.index("<domain-id>3</domain-id> <!-- dro.xml:3 -->")


def test_um_options_are_shown_with_file_line_template_or_default(tmp_path: Path) -> None:
    (tmp_path / "u.xml").write_bytes(UM)
    (tmp_path / "u.cfg").write_text("\ncontext resolver_multicast_port 99\n")
    text = f"""<tnw-gateway version="1.0"><daemon><xml-config>{tmp_path}/u.xml</xml-config></daemon><portals><endpoint>
<name>E</name><domain-id>3</domain-id><lbm-config>{tmp_path}/u.cfg</lbm-config></endpoint></portals></tnw-gateway>"""
    config = load(text.encode())
    shown = effective_config(config)
    assert f"<!-- context request_tcp_port = 7 [{tmp_path}/u.xml:2 (template t)] -->" in shown
    assert f"<!-- context resolver_multicast_outgoing_port = 99 [{tmp_path}/u.cfg:2] -->" in shown
    assert "[default]" not in shown
    everything = effective_config(config, with_defaults=True)
    assert "<!-- context resolver_multicast_ttl = 16 [default] -->" in everything
    assert load(everything.encode()) == load(shown.encode()) == config


def test_secrets_are_never_shown() -> None:
    raw = b"""<tnw-gateway version="1.0"><portals><peer><name>P</name><single-tcp><tls><certificate>c</certificate>
<certificate-key>k</certificate-key><certificate-key-password>geheim</certificate-key-password></tls>
<acceptor><listen-port>1</listen-port></acceptor></single-tcp><lbm-attributes>
<option scope="context" name="tls_certificate_key_password" value="geheim"/></lbm-attributes></peer></portals>
</tnw-gateway>"""
    shown = effective_config(load(raw), with_defaults=True)
    assert "geheim" not in shown
    assert shown.count("(set, not shown)") == 2


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/dro-*.xml")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_examples_come_back(path: Path) -> None:
    try:
        config = load_dro(str(path), warn=lambda _: None)
    except ConfigErrors:
        assert path.parent.name == "unsupported-two-endpoints"
        return
    again = parse_dro(effective_config(config).encode(), "again.xml", warn=pytest.fail)
    assert again == config


@settings(max_examples=MANY)
@given(documents())
def test_any_valid_configuration_comes_back(raw: bytes) -> None:
    try:
        config = load(raw)
    except ConfigErrors as e:
        expected = ("resolver channel", "no usable", "limit with <tls>", "no file name", "given here and in")
        unexpected = [error for error in e.errors if not any(part in str(error) for part in expected)]
        if unexpected:
            raise AssertionError(str(e)) from e
        return
    shown = effective_config(config)
    again = load(shown, file="again.xml")
    assert again == without_password(config)
    bare = re.compile(r"(?m)^ *<!--.*-->\n| *<!--.*-->")
    assert bare.sub("", effective_config(again)) == bare.sub("", shown), "printing what was printed changes nothing"


@settings(max_examples=MANY)
@given(documents())
def test_what_a_strict_load_takes_misfits_of_the_dtd(raw: bytes) -> None:
    try:
        load(raw)
    except ConfigErrors:
        return
    assert not misfits_of_the_dtd(raw)


def test_generated_files_cover_the_table() -> None:
    """What the property test is worth: how much of the file it reaches, and how often a file is valid."""
    seen: Counter[str] = Counter()

    @settings(max_examples=100, database=None, derandomize=True)
    @given(documents())
    def collect(raw: bytes) -> None:
        try:
            load(raw)
        except ConfigErrors:
            seen["refused"] += 1
            return
        seen["valid"] += 1
        seen.update(set(re.findall(rb"<([a-z-]+)", raw)))

    collect()
    assert seen["valid"] > seen["refused"]
    assert len(seen) > 60


@settings(max_examples=MANY)
@given(mutated(LINK))
def test_no_edit_of_a_peer_link_leads_to_anything_but_config_errors(raw: bytes) -> None:
    try:
        config = load(raw)
    except ConfigError:
        return
    assert load(effective_config(config).encode()) == without_password(config)


@settings(max_examples=MANY)
@given(mutated(UM))
def test_no_edit_of_a_um_file_leads_to_anything_but_config_errors(raw: bytes) -> None:

    try:
        document = parse_um_xml(raw, "u.xml", Problems(lambda _: None), HOST)
    except ConfigError:
        return
    assert all(isinstance(name, str) for name in document.templates)

"""A configuration goes to the workers as a pickle: nothing may be lost on the way, and it must work there."""

from __future__ import annotations

import os
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from dro.config.dro_xml.acl import Acl, Session
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.reading.problems import ConfigErrors
from dro.config.um.options import option_table
from tests.builders.dro_documents import documents
from tests.builders.dro_file import load
from tests.fakes.lookup import FakeLookup

HOST = FakeLookup()
EXAMPLES = Path(__file__).parents[2] / "golden" / "examples"
MANY = int(os.environ.get("DRO_EXAMPLES", "20"))
UM = """<um-configuration version="1.0"><templates><template name="t"><options type="source">
<option name="transport" default-value="lbtrm"/></options></template></templates>
<applications><application><contexts><context><sources><topic pattern="^a" template="t"/>
<topic topicname="secret" rule="deny"/></sources></context></contexts></application></applications>
</um-configuration>"""
DRO = """<tnw-gateway version="1.0"><daemon><xml-config>{um}</xml-config></daemon><portals>
<endpoint><name>A</name><domain-id>1</domain-id><lbm-attributes>
<option scope="context" name="resolver_unicast_daemon" value="127.0.0.1:1"/></lbm-attributes><acl><inbound>
<ace match="accept"><pcre-pattern>^a(?=b)</pcre-pattern><source-ip value="10.0.0.0" comparison="ge"/></ace>
<ace match="accept"><regex-pattern>^c+</regex-pattern></ace></inbound></acl></endpoint></portals></tnw-gateway>"""


def there_and_back(config: DroConfig) -> DroConfig:
    again = pickle.loads(pickle.dumps(config))
    assert isinstance(again, DroConfig)
    return again


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/dro-*.xml")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_examples_survive(path: Path) -> None:
    try:
        config = load_dro(str(path), warn=lambda _: None)
    except ConfigErrors:
        assert path.parent.name == "unsupported-two-endpoints"
        return
    again = there_and_back(config)
    assert again == config
    assert again.tree == config.tree
    assert (again.file, [p.line for p in again.portals]) == (config.file, [p.line for p in config.portals])
    assert [p.um.origins for p in again.portals] == [p.um.origins for p in config.portals]


@settings(max_examples=MANY)
@given(documents())
def test_any_valid_configuration_survives(raw: bytes) -> None:
    try:
        config = load(raw)
    except ConfigErrors:
        return
    again = there_and_back(config)
    assert again == config
    assert again.tree == config.tree


@pytest.fixture
def layered(tmp_path: Path) -> DroConfig:
    (tmp_path / "um.xml").write_text(UM)
    (tmp_path / "dro.xml").write_text(DRO.format(um=tmp_path / "um.xml"))
    return load_dro(str(tmp_path / "dro.xml"), warn=lambda _: None)


def test_access_lists_decide_as_before(layered: DroConfig) -> None:
    here, there = (Acl.of(config.portals[0].acl) for config in (layered, there_and_back(layered)))
    near, far = Session("tcp", source_ip=1), Session("tcp", source_ip=0xF0000001)
    for topic in ("ab", "ac", "ccc", "x"):
        for session in (near, far, None):
            assert here.inbound(topic, session) == there.inbound(topic, session)
    assert here.inbound("ab", far).accept
    assert here.inbound("ab", far).line == 4


def test_options_by_topic_answer_as_before(layered: DroConfig) -> None:
    here, there = layered.portals[0].sending, there_and_back(layered).portals[0].sending
    assert there.source("abc").get_str("source", "transport") == "lbtrm"
    assert there.source("xyz") == here.source("xyz") != here.source("abc")
    assert there.source("abc").origin(("source", "transport")) == here.source("abc").origin(("source", "transport"))


def test_answers_that_a_portal_keeps_do_not_travel(layered: DroConfig) -> None:
    before = len(pickle.dumps(layered))
    for number in range(500):
        layered.portals[0].sending.source(f"topic {number}")
    assert len(pickle.dumps(layered)) == before


def test_options_are_those_of_the_table() -> None:
    for option in option_table().values():
        assert pickle.loads(pickle.dumps(option)) is option


def test_a_process_that_has_loaded_nothing_can_read_it(layered: DroConfig, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(pickle.dumps(layered))
    program = f"""import pickle
config = pickle.load(open({str(path)!r}, "rb"))
print(config.portals[0].sending.source("abc").get_str("source", "transport"))"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "lbtrm\n"


def test_it_holds_nothing_but_this_program_and_plain_values(layered: DroConfig) -> None:
    names = {arg for op, arg, _ in pickletools.genops(pickle.dumps(layered, 0)) if op.name == "GLOBAL"}
    assert names
    plain = ("dro.", "copyreg ", "copy_reg ", "builtins ", "__builtin__ ")
    assert all(str(name).startswith(plain) for name in names), names

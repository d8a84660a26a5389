"""Options of programs that are no DRO: environment, plain-text and XML files together, and who may override whom."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dro.config.reading import fetch
from dro.config.reading.problems import ConfigErrors
from dro.config.um.layers import CONTEXT, RECEIVER, SOURCE, WILDCARD_RECEIVER, Asked
from dro.config.um.options import DEFAULTS, UmOptions
from dro.config.um.program import ProgramOptions, load_program
from dro.config.um.text_file import MAX_FILE_BYTES
from dro.errors import ConfigError
from tests.config.um.test_xml_document import option, options
from tests.fakes.lookup import FakeLookup

DESK = f"""<templates><template name="base">{options("source", option("transport", "lbtrm"))}</template></templates>
<applications><application name="desk" template="base"><contexts>
<context>{options("context", option("request_tcp_port_low", "15300"))}<sources>
<topic pattern="^fast/">{options("source", option("transport_tcp_nodelay", "0"))}</topic>
<topic pattern="^secret/" rule="deny"/></sources><receivers/><wildcard-receivers order="allow,deny">
<wildcard-receiver pattern="^a"/></wildcard-receivers></context>
<context name="guard">{options("context", option("compression", "", "<deny>lz4</deny>"))}</context>
</contexts></application><application name="other"><contexts><context><sources/></context></contexts></application>
</applications>"""


def load(tmp_path: Path, *names: str, application: str = "", **environ: str) -> ProgramOptions:
    return load_program(
        [tmp_path / name for name in names],
        lambda _: None,
        application=application,
        environ=environ,
        lookup=FakeLookup(),
    )


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    path = tmp_path / "um.xml"
    path.write_text(f'<?xml version="1.0"?>\n<um-configuration version="1.0">\n{DESK}</um-configuration>')
    return path


def test_plain_files_are_layered_in_order_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "default.cfg").write_text("source late_join 1\nsource transport lbtru\nsource transport_tcp_nodelay 0")
    (tmp_path / "a.cfg").write_bytes(b"\xef\xbb\xbfsource late_join 0\r\nsource transport tcp\r\n")
    (tmp_path / "b.cfg").write_text("source transport lbtrm")
    variables = {"LBM_DEFAULT_CONFIG_FILE": f"{tmp_path}/default.cfg", "LBM_MONITOR_INTERVAL": "7"}
    made = load(tmp_path, "a.cfg", "b.cfg", **variables).plain
    assert not made.get_bool("source", "late_join")
    assert made.get_str("source", "transport") == "lbtrm"
    assert not made.get_bool("source", "transport_tcp_nodelay")
    assert made.get_int("context", "monitor_interval") == 7
    assert made.origin(("source", "transport_tcp_nodelay")) == f"{tmp_path}/default.cfg:3"


def test_files_that_cannot_be_used_are_errors(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "bin.cfg").write_bytes(b"source late_join 1\n\xff\xfe")
    (tmp_path / "um.xml").write_text("\n <um-configuration>")
    with (tmp_path / "huge.cfg").open("wb") as f:
        f.truncate(MAX_FILE_BYTES + 1)
    names = ("none.cfg", "dir", "bin.cfg", "um.xml", "huge.cfg")
    with pytest.raises(ConfigErrors) as caught:
        load_program([*(tmp_path / n for n in names), "http://host/x.cfg", "a\0b"], pytest.fail, environ={})
    errors = caught.value.errors
    assert [e.file for e in errors] == [*(str(tmp_path / name) for name in names), "http://host/x.cfg", "a\0b"]
    assert "No such file" in str(errors[0])
    assert errors[2].line == 2
    assert errors[3].line == 2
    assert "larger than" in str(errors[4])
    assert all(e.remedy for e in errors)


def test_a_default_file_with_a_mistake_stops_a_program(tmp_path: Path) -> None:
    (tmp_path / "default.cfg").write_text("\nsource transport pigeon")
    with pytest.raises(ConfigErrors, match=rf"{tmp_path}/default\.cfg:2: source transport: "):
        load(tmp_path, LBM_DEFAULT_CONFIG_FILE=f"{tmp_path}/default.cfg")


def test_a_configuration_server_stops_a_program() -> None:
    with pytest.raises(ConfigErrors, match="LBM_UMM_INFO: configuration servers are not supported; unset it"):
        load(Path(), LBM_UMM_INFO="u:p@10.0.0.1:21273")


def test_xml_files_fill_in_what_nobody_else_has_set(xml: Path, tmp_path: Path) -> None:
    (tmp_path / "a.cfg").write_text("source transport_tcp_nodelay 1\n")
    for given in ({"application": "desk"}, {"LBM_XML_CONFIG_APPNAME": "desk"}):
        made = load(tmp_path, "um.xml", **given)
        assert made.of(Asked(CONTEXT)).get_int("context", "request_tcp_port_low") == 15300
        assert made.of(Asked(SOURCE, "slow")).get_str("source", "transport") == "lbtrm"
        assert made.of(Asked(SOURCE, "slow")).get_bool("source", "transport_tcp_nodelay")
        assert not made.of(Asked(SOURCE, "fast/1")).get_bool("source", "transport_tcp_nodelay")
    for order in (("a.cfg", "um.xml"), ("um.xml", "a.cfg")):
        made = load(tmp_path, *order, application="desk")
        assert made.of(Asked(SOURCE, "fast/1")).get_bool("source", "transport_tcp_nodelay")
    own = DEFAULTS.with_("source", "transport", "tcp")
    assert made.of(Asked(SOURCE, "x"), own).get_str("source", "transport") == "tcp"
    assert made.of(Asked(SOURCE, "x")).origin(("source", "transport")) == f"{xml}:3 (template base)"


def test_the_file_of_the_environment_is_read_too(xml: Path, tmp_path: Path) -> None:
    variables = {"LBM_XML_CONFIG_FILENAME": str(xml), "LBM_XML_CONFIG_APPNAME": "desk"}
    assert load(tmp_path, **variables).of(Asked(CONTEXT)).get_int("context", "request_tcp_port_low") == 15300


def test_an_application_is_chosen_by_its_name_alone(xml: Path, tmp_path: Path) -> None:
    assert load(tmp_path, "um.xml", application="other", LBM_XML_CONFIG_APPNAME="desk").of(Asked(CONTEXT)) == DEFAULTS
    for name, what in (("", "no application without a name"), ("shop", "no application named 'shop'")):
        with pytest.raises(ConfigErrors) as caught:
            load(tmp_path, "um.xml", application=name)
        remedy = "set LBM_XML_CONFIG_APPNAME to one of its names: 'desk', 'other'"
        assert str(caught.value) == f"{xml}:1: {what}; {remedy}"


def test_a_file_without_an_application_is_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "um.xml").write_text("<um-configuration><applications/></um-configuration>")
    with pytest.raises(ConfigErrors, match=r"um\.xml:1: there is no <application> in the file; add <application>"):
        load(tmp_path, "um.xml")


def test_a_file_with_an_empty_name_is_not_the_working_directory() -> None:
    with pytest.raises(ConfigErrors, match="cannot read the UM configuration file: its name is empty; name a file"):
        load_program([""], pytest.fail, environ={})


def test_a_fifo_is_read_when_something_comes_and_refused_when_nothing_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "ff")
    with ThreadPoolExecutor() as pool:
        pool.submit((tmp_path / "ff").write_text, "source transport lbtrm\n")
        assert load(tmp_path, "ff").plain.get_str("source", "transport") == "lbtrm"
    monkeypatch.setattr(fetch, "TOTAL_S", 0.1)
    with pytest.raises(ConfigErrors, match=rf"{tmp_path}/ff: .*: a FIFO from which nothing came in .*; start what"):
        load(tmp_path, "ff")


def test_a_process_substitution_is_read() -> None:
    """Also after its writer has ended, with or without a word."""
    for text in (b"source transport lbtrm\n", b""):
        read_end, write_end = os.pipe()
        os.write(write_end, text)
        os.close(write_end)
        made = load_program([f"/dev/fd/{read_end}"], pytest.fail, environ={})
        os.close(read_end)
        assert made.plain.is_set("source", "transport") == bool(text)


def test_what_a_file_forbids_is_refused_whoever_asks_for_it(xml: Path, tmp_path: Path) -> None:
    made = load(tmp_path, "um.xml", application="desk")
    made.of(Asked(RECEIVER, "secret/1"))
    made.of(Asked(WILDCARD_RECEIVER, "^a", "pcre"))
    for asked in (Asked(SOURCE, "secret/1"), Asked(WILDCARD_RECEIVER, "^b", "pcre")):
        with pytest.raises(ConfigError, match=rf"{xml}:1: {asked.scope} '.*' is not permitted"):
            made.of(asked)

    def guarded(value: str) -> UmOptions:
        plain = DEFAULTS.with_("context", "context_name", "guard").with_("context", "compression", value)
        return ProgramOptions(plain, made.documents).of(Asked(CONTEXT))

    assert guarded("none").get_str("context", "compression") == "none"
    with pytest.raises(ConfigError, match="context compression: the value 'lz4' is not permitted"):
        guarded("lz4")


def test_a_bad_value_in_an_xml_file_stops_a_program(xml: Path, tmp_path: Path) -> None:
    xml.write_text(xml.read_text().replace('"lbtrm"', '"pigeon"'))
    with pytest.raises(ConfigErrors, match=rf"{xml}:3: source transport: 'pigeon'"):
        load(tmp_path, "um.xml", application="desk")

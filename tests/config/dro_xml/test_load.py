"""Whole DRO files: the examples, rules that span elements, UM options of a portal, and how problems are told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.unsupported import unsupported
from dro.config.um.sets import ResolverOptions
from dro.errors import ConfigError
from tests.builders.dro_file import endpoint, errors, gateway, load
from tests.fakes.lookup import FakeLookup

EXAMPLES = Path(__file__).parents[2] / "golden" / "examples"


def channel(port: int) -> str:
    return f'<lbm-attributes><option scope="context" name="resolver_multicast_port" value="{port}"/></lbm-attributes>'


@pytest.mark.parametrize(("folder", "count"), [("direct-link", 2), ("star-central-dro", 4)])
def test_example_files_load_from_anywhere(folder: str, count: int) -> None:
    warnings: list[str] = []
    path = EXAMPLES / folder / "dro-g1.xml"
    config = load_dro(str(path), warn=warnings.append)
    assert config.daemon.name == "G1"
    assert [p.name for p in config.portals] == [f"G1-TRD{n}" for n in range(1, count + 1)]
    assert [p.domain_id for p in config.portals] == list(range(1, count + 1))
    assert {p.cost for p in config.portals} == {1}
    assert len({ResolverOptions.of(p.um).incoming_address for p in config.portals}) == count
    assert config.portals[0].lbm_config == (str(EXAMPLES / folder / "trd1.cfg"),)
    assert all("is not in the working directory, using" in w for w in warnings)
    assert config.daemon.monitor is not None
    assert config.daemon.monitor.topic == "dro/stats"
    assert list(unsupported(config)) == []


def test_relative_names_count_from_the_working_directory_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "um.cfg").write_text("context resolver_multicast_port 15001")
    (tmp_path / "there" / "um.cfg").write_text("context resolver_multicast_port 15002")
    dro = tmp_path / "there" / "dro.xml"
    dro.write_bytes(gateway(endpoint("A", 1, "<lbm-config> um.cfg\n</lbm-config>")))
    warnings: list[str] = []
    monkeypatch.chdir(tmp_path / "here")
    config = load_dro(os.path.join("..", "there", "dro.xml"), warn=warnings.append)
    assert config.portals[0].um.get_int("context", "resolver_multicast_outgoing_port") == 15001
    assert config.portals[0].lbm_config == ("um.cfg",)
    assert not any("working directory" in w for w in warnings)
    (tmp_path / "here" / "um.cfg").unlink()
    config = load_dro(str(dro), warn=warnings.append)
    assert config.portals[0].um.get_int("context", "resolver_multicast_outgoing_port") == 15002
    assert f"{dro}:3: <lbm-config>: 'um.cfg' is not in the working directory, using {tmp_path}/there/um.cfg" in warnings


def test_a_missing_um_file_is_an_error_of_the_line_that_names_it() -> None:
    assert errors(gateway(endpoint("A", 1, "<lbm-config>none.cfg</lbm-config>")))[0].startswith(
        "dro.xml:3: <lbm-config>: file 'none.cfg' does not exist; looked in "
    )


def test_mistakes_in_a_um_file_are_warnings_and_attributes_go_over_files(tmp_path: Path) -> None:
    um = tmp_path / "um.cfg"
    um.write_text("source transport pigeon\nsource late_join 1\nsource transport lbtrm\n")
    attributes = '<lbm-attributes><option scope="source" name="transport" value="LBT-RU"/></lbm-attributes>'
    warnings: list[str] = []
    config = load(gateway(endpoint("A", 1, f"<lbm-config>{um}</lbm-config>{attributes}")), warnings)
    options = config.portals[0].um
    assert options.get_bool("source", "late_join")
    assert options.get_str("source", "transport") == "lbtru"
    assert any(w.startswith(f"{um}:1: source transport: 'pigeon' is not a known value") for w in warnings)


def test_mistakes_in_attributes_are_errors() -> None:
    text = """<lbm-attributes>
      <option scope="source" name="transport" value="pigeon"/>
      <option scope="receiver" name="transport" value="tcp"/>
      <option scope="hfx" name="transport" value="tcp"/>
      <option scope="source" name="transport"/>
      </lbm-attributes>"""
    assert [e.split(";")[0] for e in errors(gateway(endpoint("A", 1, text)))] == [
        "dro.xml:4: <option>: source transport: 'pigeon' is not a known value",
        "dro.xml:5: <option>: receiver transport: unknown UM option",
        "dro.xml:6: <option scope=\"hfx\">: 'hfx' is not allowed",
        "dro.xml:7: <option>: attribute value is missing",
    ]


def test_every_problem_is_told_at_once_in_order_of_discovery() -> None:
    raw = gateway(
        f"<endpoint><name>A</name><domain-id>0</domain-id><cost>0</cost>{channel(1)}</endpoint>",
        f"<endpoint><name/><domain-id>5000000000</domain-id><max_queue>1</max_queue>{channel(2)}</endpoint>",
        f"<endpoint><domain-id>x</domain-id>{channel(3)}</endpoint>",
        "<endpont/>",
        daemon="<log type='paper'/><route-info timout='1'/>",
    )
    assert errors(raw) == [
        "dro.xml:2: <log type=\"paper\">: 'paper' is not allowed; write one of file, syslog, console",
        'dro.xml:2: <route-info timout="1">: unknown attribute; did you mean timeout?',
        "dro.xml:3: <domain-id>: 0 is out of range; write 1 to 4294967295",
        "dro.xml:3: <cost>: 0 is out of range; write 1 to 2147483647",
        "dro.xml:4: <name>: is empty; write a name",
        "dro.xml:4: <domain-id>: 5000000000 is out of range; write 1 to 4294967295",
        "dro.xml:4: <max_queue>: unknown element in <endpoint>; did you mean max-queue?",
        "dro.xml:5: <endpoint>: <name> is missing; add <name>",
        "dro.xml:5: <domain-id>: 'x' is not a whole number; write 1 or more",
        "dro.xml:6: <endpont>: unknown element in <portals>; did you mean endpoint?",
    ]


def test_a_name_of_a_later_release_is_no_slip() -> None:
    """`<route-group>` got "did you mean remote-topic?"."""
    raw = gateway(
        f"<endpoint><name>A</name><domain-id>1</domain-id><route-group>2</route-group>{channel(1)}</endpoint>",
        f"<endpoint><name>B</name><domain-id>2</domain-id><rote-grupp>2</rote-grupp>{channel(2)}</endpoint>",
    )
    assert errors(raw) == [
        "dro.xml:3: <route-group>: not supported: newer than the guide (6.17) that this release follows; remove it",
        "dro.xml:4: <rote-grupp>: unknown element in <endpoint>; "
        "remove it; names that are newer than the guide (6.17) are not supported",
    ]


def test_names_domains_and_resolver_channels_are_unique_and_both_places_are_named() -> None:
    raw = gateway(endpoint("A", 7, channel(1)), endpoint("B", 7, channel(2)), endpoint("A", 8, channel(2)))
    assert errors(raw) == [
        "dro.xml:5: <endpoint>: portal name 'A' is already used by the endpoint in line 3; "
        "give each portal its own name",
        "dro.xml:4: <endpoint>: domain-id 7 is already used by the endpoint in line 3; "
        "a DRO has one endpoint for each TRD",
        "dro.xml:5: <endpoint>: resolver channel 224.9.10.11:2 on 0.0.0.0 is already used by the endpoint in line 4; "
        "give each TRD its own resolver_multicast_address or port, or servers",
    ]


def test_the_same_group_on_two_interfaces_is_two_networks() -> None:
    one, two = (
        '<lbm-attributes><option scope="context" name="default_interface" value="127.0.0.1"/></lbm-attributes>',
        '<lbm-attributes><option scope="context" name="default_interface" value="127.0.0.2"/></lbm-attributes>',
    )
    assert len(load(gateway(endpoint("A", 1, one), endpoint("B", 2, two))).portals) == 2


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"<tnw-gateway version='1.0'/>", "dro.xml:1: <tnw-gateway>: <portals> is missing; add <portals>"),
        (gateway(), "dro.xml:2: <portals>: no portal; add at least one <endpoint>"),
        (
            gateway("<endpoint><name>A</name></endpoint>"),
            "dro.xml:3: <endpoint>: <domain-id> is missing; add <domain-id>",
        ),
        (gateway("<peer><name>P</name></peer>"), "dro.xml:3: <peer>: <single-tcp> is missing; add <single-tcp>"),
        (b"<a/>", "dro.xml:1: the root element is <a>, not <tnw-gateway>; is this a DRO configuration file?"),
        (
            gateway(endpoint("A", 1)).replace(b"1.0", b"2.0"),
            "dro.xml:1: <tnw-gateway version=\"2.0\">: '2.0' is not allowed; write one of 1.0",
        ),
        (
            gateway(endpoint("A", 1)).replace(b' version="1.0"', b""),
            'dro.xml:1: <tnw-gateway>: attribute version is missing; add version="..."',
        ),
        (
            gateway(endpoint("A", 1, "<cost>1</cost>\n<cost>2</cost>")),
            "dro.xml:4: <cost>: given 2 times in <endpoint>, first in line 3; keep one",
        ),
        (
            gateway(endpoint("A", 1, "oops")),
            "dro.xml:3: <endpoint>: text is not allowed here; remove it, or put it into an element",
        ),
        (gateway(endpoint("A" * 128, 1)), "dro.xml:3: <name>: longer than 127 bytes; shorten it"),
        (
            gateway(endpoint("A", 1).replace("<domain-id>1<", f"<domain-id>{'9' * 5000}<")),
            "dro.xml:3: <domain-id>: a number of 5000 digits is too large; write 1 to 4294967295",
        ),
        (
            gateway(endpoint("tnwgd", 1)),
            "dro.xml:3: <name>: 'tnwgd' is the name of another process of the DRO; choose another name",
        ),
        (
            gateway(endpoint("route-manager", 1)),
            "dro.xml:3: <name>: 'route-manager' is the name of another process of the DRO; choose another name",
        ),
        (
            gateway(endpoint("a\u2028b", 1)),
            "dro.xml:3: <name>: 'a\\u2028b' has characters that do not print; leave them out",
        ),
        (
            gateway(endpoint("A", 1, f"<cost>{10**30}</cost>")),
            f"dro.xml:3: <cost>: {10**30} is out of range; write 1 to 2147483647",
        ),
        (
            gateway(endpoint("A", 1), daemon="<log type='file'/>"),
            "dro.xml:2: <log>: no file name; write the file name between the tags",
        ),
        (
            gateway('<xi:include xmlns:xi="http://www.w3.org/2003/XInclude" href="x.xml"/>', endpoint("A", 1)),
            "dro.xml:3: <include>: x.xml: cannot read the included file: No such file or directory; "
            "check name and permissions",
        ),
        (
            gateway(endpoint("A", 1, "<lbm-config/>")),
            "dro.xml:3: <lbm-config>: is empty; write the name of a file, or remove it",
        ),
        (
            gateway(endpoint("A", 1), daemon="<name xml:space='maybe'>G</name>"),
            "dro.xml:2: <name xml:space=\"maybe\">: 'maybe' is not allowed; write default or preserve",
        ),
    ],
)
def test_single_mistakes(raw: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(raw)
    assert str(caught.value) == message


def test_order_and_aliases_and_lone_portals_are_warnings() -> None:
    warnings: list[str] = []
    text = (
        "<endpoint><domain-id>1</domain-id>\n<name>A</name><lbn-config>/dev/null</lbn-config>"
        "<topic-resolution><initial-request duration='3'><rate-limit/></initial-request></topic-resolution></endpoint>"
    )
    config = load(gateway(text), warnings)
    assert config.portals[0].topic_resolution.initial_request.duration_s == 3
    assert sorted(warnings) == [
        "dro.xml:2: <portals>: a single portal has nothing to forward to",
        "dro.xml:4: <lbn-config>: taken as <lbm-config>",
        "dro.xml:4: <name>: should stand before <domain-id>",
        "dro.xml:4: <rate-limit>: has no function here, ignored",
    ]


def test_white_space_is_squeezed_unless_preserved() -> None:
    raw = gateway(endpoint("A", 1), daemon="<name>  my \n DRO <!-- one --> 1 </name>")
    assert load(raw).daemon.name == "my DRO 1"
    raw = gateway(endpoint("A", 1), daemon='<name xml:space="preserve"> a  b </name>')
    assert load(raw).daemon.name == " a  b "


def test_a_moved_line_does_not_make_a_different_configuration() -> None:
    one = gateway(endpoint("A", 1, channel(1)), endpoint("B", 2, channel(2)))
    two = gateway("", "<!-- moved -->", endpoint("A", 1, channel(1)), endpoint("B", 2, channel(2)))
    assert load(one) == load(two)
    assert [p.line for p in load(one).portals] == [3, 4]
    assert [p.line for p in load(two).portals] == [5, 6]


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    for name in ("none.xml", ".", "a\0b"):
        with pytest.raises(ConfigError, match="cannot read the configuration file") as caught:
            load_dro(str(tmp_path / name), warn=pytest.fail)
        assert caught.value.remedy


def test_bad_settings_of_um_files_are_told_apart_from_other_warnings(tmp_path: Path) -> None:
    plain, xml, dro = tmp_path / "a.cfg", tmp_path / "um.xml", tmp_path / "dro.xml"
    plain.write_text("# a comment\ncontext resolver_multicast_ttl 300\ncontext no_such_option 1\n")
    xml.write_text(
        '<um-configuration version="1.0"><applications><application name="tnwgd"><contexts><context>'
        '<options type="context"><option name="default_interface" default-value="192.0.2.99"/></options>'
        "</context></contexts></application></applications></um-configuration>"
    )
    dro.write_text(
        f'<tnw-gateway version="1.0"><daemon><xml-config>{xml}</xml-config></daemon><portals><endpoint><name>A</name>'
        f"<domain-id>1</domain-id><lbm-config>{plain}</lbm-config></endpoint></portals></tnw-gateway>"
    )
    ignored: list[ConfigError] = []
    load_dro(str(dro), warn=lambda _: None, lookup=FakeLookup(), environ={}, ignored=ignored.append)
    assert {(e.file, e.line, e.element) for e in ignored} == {
        (str(plain), 2, "context resolver_multicast_ttl"),
        (str(xml), 1, "context default_interface"),
    }


def test_a_repeated_interface_that_this_host_lacks_leaves_the_one_before(tmp_path: Path) -> None:
    um_file, warnings = tmp_path / "um.cfg", list[str]()
    um_file.write_text("context default_interface 127.0.0.1\ncontext default_interface 10.99.0.1\n")
    load(gateway(endpoint("A", 1, f"<lbm-config>{um_file}</lbm-config>")), warnings)
    (warning,) = [w for w in warnings if w.startswith(f"{um_file}:2: ")]
    assert warning.endswith(f"(127.0.0.1 of {um_file}:1 holds, which may be in another network)")


@pytest.mark.parametrize(
    "line",
    [
        "context use_tls yes",
        "context use_tls 0x1",
        'context use_tls "1"',
        "context use_tls",
        "context use_tls=1",
        "contxt use_tls 1",
        "source use_tls 1",
        "context tls_compression_negotiation_timeout soon",
        "context resolver_unicast_daemon garbage",
        "context resolver_unicast_daemon no-such-host.invalid:15380",
        "context resolver_multicast_address 10.0.0.1",
        "context resolver_multicast_port 0",
        "context default_interface 127.0.0.1/33",
        'receiver transport_tcp_interface "eth0',
        "context request_tcp_port_high 1",
    ],
)
def test_what_protects_or_chooses_the_trd_stops_a_dro_when_it_cannot_be_used(tmp_path: Path, line: str) -> None:
    um_file = tmp_path / "um.cfg"
    um_file.write_text(f"# office\n{line}\n")
    (error,) = errors(gateway(endpoint("A", 1, f"<lbm-config>{um_file}</lbm-config>")))
    assert error.startswith(f"{um_file}:2: ")
    assert "; " in error


def test_a_file_name_for_a_log_that_is_no_file_gets_a_hint() -> None:
    warnings: list[str] = []
    load(gateway(endpoint("A", 1), daemon="<log>x.log</log>"), warnings)
    (hint,) = [warning for warning in warnings if "<log>" in warning]
    assert hint.endswith("<log>: 'x.log' is not written: the log goes to console; add type=\"file\" for a file")
    warnings.clear()
    load(gateway(endpoint("A", 1), daemon='<log type="file">x.log</log>'), warnings)
    assert not [warning for warning in warnings if "<log>" in warning]


@pytest.mark.parametrize("value", ["10.99.0.1", '"eth77"', "no-such-host.invalid"])
def test_what_this_host_lacks_is_the_same_warning_wherever_it_is_asked_for(tmp_path: Path, value: str) -> None:
    """So a file of another host can be checked here; who starts it here reads of it."""
    um_file = tmp_path / "um.cfg"
    um_file.write_text(f"\ncontext default_interface {value}\n")
    attribute = f"<lbm-attributes><option scope='context' name='default_interface' value='{value}'/></lbm-attributes>"
    told = []
    for inner in (attribute, f"<lbm-config>{um_file}</lbm-config>"):
        warnings: list[str] = []
        raw = gateway(endpoint("A", 1, inner))
        config = load(raw, warnings)
        assert not config.portals[0].um.is_set("context", "default_interface")
        told.append(next(warning for warning in warnings if "default_interface" in warning))
    (in_xml, in_file) = told
    assert in_xml.startswith("dro.xml:")
    assert in_file.startswith(f"{um_file}:2: context default_interface: ")
    same, holds = in_file.partition(": ")[2].split("(the default")
    assert in_xml.partition(": ")[2] == f"{same}(an earlier value or the default{holds}"
    assert holds == " holds, which may be in another network)"
    assert "this host has lo" in in_file or "cannot be resolved" in in_file

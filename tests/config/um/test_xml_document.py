"""UM XML files: the worked examples of the rules, precedence among the layers of a DRO, constraints, and mistakes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig, EndpointConfig
from dro.config.dro_xml.unsupported import unsupported
from dro.config.reading.problems import MAX_WARNINGS, ConfigErrors, Problems
from dro.config.um.layers import ContextOptions, XmlLayer, find_application
from dro.config.um.options import DEFAULTS, UmOptions
from dro.config.um.text_file import parse_um_text
from dro.config.um.xml_document import UmDocument, parse_um_xml
from dro.errors import ConfigError
from tests.builders.dro_file import parse_dro
from tests.fakes.lookup import FakeLookup

HOST = FakeLookup()


def option(name: str, value: str = "", inner: str = "", order: str = "") -> str:
    text = f' default-value="{value}"' if value else ""
    return f'<option name="{name}"{text}{f" order={chr(34)}{order}{chr(34)}" if order else ""}>{inner}</option>'


def options(scope: str, *inner: str) -> str:
    return f'<options type="{scope}">{"".join(inner)}</options>'


def document(text: str, warnings: list[str] | None = None) -> UmDocument:
    raw = f'<um-configuration version="1.0">\n{text}</um-configuration>'.encode()
    sink = [] if warnings is None else warnings
    return parse_um_xml(raw, "um.xml", Problems(sink.append), HOST)


def context_of(read: UmDocument, application: str, context: str = "") -> ContextOptions:
    found = find_application(read, application, {})
    return ContextOptions(DEFAULTS, (XmlLayer(read, found, context),))


LAYERED = f"""
<templates>
 <template name="base">{
    options("context", option("default_interface", "127.0.0.1"), option("request_tcp_port_low", "15300"))
}
  {options("source", option("transport", "tcp"))}</template>
 <template name="mcast">{
    options("source", option("transport", "lbtrm"), option("transport_lbtrm_destination_port", "15301"))
}</template>
 <template name="keep">{options("source", option("late_join", "1"))}</template>
</templates>
<applications><application name="desk" template="base"><contexts>
 <context name="fast" template="mcast">{options("context", option("request_tcp_port_low", "15310"))}
  <sources template="keep">
   <topic topicname="quotes/slow">{options("source", option("transport", "lbtru"), option("late_join", "0"))}</topic>
   <topic topicname="quotes/context">{options("context", option("request_tcp_port_low", "1"))}</topic>
  </sources></context>
 <context><sources/></context>
</contexts></application></applications>
"""


def test_templates_contexts_and_topics_from_outer_to_inner() -> None:
    read = document(LAYERED)
    fast, plain, other = (context_of(read, "desk", name) for name in ("fast", "", "other"))

    def low(made: UmOptions) -> int:
        return made.get_int("context", "request_tcp_port_low")

    def source(made: UmOptions) -> tuple[str, int, bool]:
        port = made.get_int("source", "transport_lbtrm_destination_port")
        return made.get_str("source", "transport"), port, made.get_bool("source", "late_join")

    default_port = DEFAULTS.get_int("source", "transport_lbtrm_destination_port")
    assert [low(c.context()) for c in (fast, plain, other)] == [15310, 15300, 15300]
    assert {c.context().get_interface("context", "default_interface") for c in (fast, plain, other)} == {"127.0.0.1"}
    assert source(fast.source("news")) == ("lbtrm", 15301, True)
    assert source(fast.source("quotes/slow")) == ("lbtru", 15301, False)
    assert source(plain.source("news")) == ("tcp", default_port, False)
    assert low(fast.source("quotes/context")) == 15310, "options of a topic are those of its own scope"
    assert (fast.by_topic, plain.by_topic, other.by_topic) == (True, False, False)


def test_patterns_are_searched_and_later_topics_win() -> None:
    topics = "".join(
        f"<topic {match}>{options('source', option('late_join', value))}</topic>"
        for match, value in (
            ('pattern="^quotes/"', "0"),
            ('topicname="quotes/b"', "1"),
            ("", "1"),
            ('pattern="/c$"', "0"),
        )
    )
    read = document(f"<applications><application><contexts><context><sources>{topics}</sources></context></contexts></application></applications>")  # fmt: skip  # noqa: E501
    made = context_of(read, "")
    late = [made.source(t).get_bool("source", "late_join") for t in ("quotes/a", "quotes/b", "x", "quotes/c", "c")]
    assert late == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("daemon", "environ", "names", "found"),
    [
        ("a", {"LBM_XML_CONFIG_APPNAME": "b"}, ("a", "b"), "b"),
        ("a", {"LBM_XML_CONFIG_APPNAME": "none"}, ("a", "b"), "a"),
        ("none", {}, ("a", "tnwgd"), "tnwgd"),
        ("none", {}, ("dro1",), "dro1"),
        ("none", {}, ("a", ""), ""),
        ("", {}, ("a", ""), ""),
    ],
)
def test_c4_the_application_of_a_dro(daemon: str, environ: dict[str, str], names: tuple[str, ...], found: str) -> None:
    inner = "".join(
        f"<application{f' name={chr(34)}{n}{chr(34)}' if n else ''}><contexts/></application>" for n in names
    )
    assert find_application(document(f"<applications>{inner}</applications>"), daemon, environ).name == found


def test_c4_no_application_is_an_error() -> None:
    inner = "".join(f'<application name="{n}"><contexts/></application>' for n in "ab")
    with pytest.raises(ConfigError, match="no application named 'shop'"):
        find_application(document(f"<applications>{inner}</applications>"), "shop", {})


GUARD = f"""<applications><application name="guard"><contexts order="allow,deny"><context name="in" rule="allow">
{
    options(
        "context",
        option("compression", "none", "<deny>lz4</deny>", "deny,allow"),
        option("request_tcp_port", "15400", "<allow>15400</allow><allow>15401</allow>", "allow,deny"),
    )
}
<receivers order="deny,allow"><topic topicname="ops/x" rule="deny"/><topic topicname="ops/y" rule="deny"/>
<topic topicname="ops/y" rule="allow"/></receivers>
<wildcard-receivers order="allow,deny"><wildcard-receiver pattern="^ops/public/.*" rule="allow"/></wildcard-receivers>
</context></contexts></application></applications>"""


def test_constraints_on_names_and_values() -> None:
    read = document(GUARD)
    inside, outside = context_of(read, "guard", "in"), context_of(read, "guard", "out")
    assert inside.context().get_int("context", "request_tcp_port") == 15400
    with pytest.raises(ConfigError, match="a context named 'out' is not permitted"):
        outside.context()
    assert inside.receiver("mail").get_int("context", "request_tcp_port") == 15400
    assert inside.receiver("ops/y")
    assert inside.wildcard_receiver("^ops/public/.*")
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: inside.receiver("ops/x"), "receiver 'ops/x' is not permitted"),
        (lambda: inside.wildcard_receiver("^ops/public/..*"), "wildcard_receiver '^ops/public/..*' is not permitted"),
        (lambda: inside.wildcard_receiver("^ops/public/.*", "regex"), "is not permitted"),
    ]
    for refused, part in refusals:
        with pytest.raises(ConfigError) as caught:
            refused()
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("request_tcp_port", "15401", True),
        ("request_tcp_port", "15402", False),
        ("compression", "lz4", False),
        ("compression", "none", True),
    ],
)
def test_rules_judge_values_wherever_they_come_from(name: str, value: str, fits: bool) -> None:
    text = GUARD.replace(' default-value="none"', "").replace(' default-value="15400"', "")
    read = document(text)
    base = DEFAULTS.with_("context", "request_tcp_port", 15400).with_("context", name, value)
    made = ContextOptions(base, (XmlLayer(read, find_application(read, "guard", {}), "in"),))
    if fits:
        assert made.context().is_set("context", name)
    else:
        with pytest.raises(ConfigError, match=rf"um.xml:\d+: context {name}: the value .* is not permitted"):
            made.context()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("<applications><nonsense/></applications>", "does not fit the DTD"),
        ("<templates><template/></templates>", "does not fit the DTD"),
        (
            "<templates><template name='t'><options><option name='a'></options></template></templates>",
            "not well-formed",
        ),
        ("<applications\\>", "not well-formed"),
        ("<!DOCTYPE a [<!ENTITY e 'x'>]><applications/>", "not well-formed"),
    ],
)
def test_c10_c13_a_document_is_taken_or_left_as_a_whole(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        document(text)


def test_c3_c9_c11_what_does_not_fit_inside_a_valid_document_is_told_and_left_out() -> None:
    warnings: list[str] = []
    inner = (
        options("source", option("resolver_unicast_daemon", "10.29.5.1:1234"), option("trasport", "tcp"))
        + f"<options>{option('late_join', '1')}</options>"
        + options("source", option("transport", "pigeon"), option("late_join", "1"))
    )
    text = (
        f'<templates><template name="t">\n{inner}</template></templates><applications><application template="t, u">'
        '<contexts><context><sources><topic topicname="a" pattern="b"/></sources></context></contexts>'
        "</application></applications>"
    )
    made = context_of(document(text, warnings), "")
    assert [w.partition(": ")[2].partition(";")[0] for w in warnings] == [
        "<option>: source resolver_unicast_daemon: not an option of this scope, ignored",
        "<option>: source trasport: not an option of this scope, ignored",
        "<options>: type is missing, ignored",
        "<option>: source transport: 'pigeon' is not a known value, ignored",
        "<topic>: topicname and pattern exclude each other, ignored",
        "<application>: there is no template 'u', ignored",
    ]
    assert all(w.startswith("um.xml:3: ") for w in warnings)
    assert made.source("x").get_bool("source", "late_join")
    assert made.context().origin(("source", "late_join")) == "um.xml:3 (template t)"


@pytest.mark.parametrize(
    "inner",
    [
        options("context", option("use_tls", "yes")),
        options("source", option("use_tls", "1")),
        f'<sources><topic topicname="a">{options("context", option("use_tls", "1"))}</topic></sources>',
    ],
)
def test_protection_that_would_be_left_out_is_an_error(inner: str) -> None:
    text = f"<applications><application><contexts><context>\n{inner}</context></contexts></application></applications>"
    problems = Problems(pytest.fail)
    parse_um_xml(f"<um-configuration>{text}</um-configuration>".encode(), "u.xml", problems, HOST)
    (error,) = problems.errors
    assert (error.file, error.line, error.element.split()[1]) == ("u.xml", 2, "use_tls")
    assert error.remedy


def test_protection_without_a_scope_is_an_error() -> None:
    text = f'<templates><template name="t"><options>{option("use_tls", "1")}</options></template></templates>'
    problems = Problems(lambda _: None)
    parse_um_xml(f"<um-configuration>{text}<applications/></um-configuration>".encode(), "u.xml", problems, HOST)
    assert problems.errors


def test_c9_the_version_may_be_missing_and_options_take_the_scope_around_them() -> None:
    topic = f"<topic topicname='a'><options>{option('late_join', '1')}</options></topic>"
    inner = f"<options>{option('resolver_multicast_ttl', '3')}</options><sources>{topic}</sources>"
    text = f"<applications><application><contexts><context>{inner}</context></contexts></application></applications>"
    raw = f"<um-configuration>{text}</um-configuration>".encode()
    made = context_of(parse_um_xml(raw, "u.xml", Problems(pytest.fail), HOST), "")
    assert made.source("a").get_bool("source", "late_join")
    assert made.context().get_int("context", "resolver_multicast_ttl") == 3


# the files of a DRO together

BORDER = f"""<um-configuration version="1.0"><templates>
<template name="all">{
    options("context", option("resolver_multicast_ttl", "1"), option("request_tcp_port_high", "15599"))
}</template>
<template name="east">{options("context", option("request_tcp_port_low", "15510"))}</template>
</templates><applications><application name="border" template="all"><contexts>
<context name="east-out" template="east"><sources><topic topicname="bulk">
{options("source", option("transport", "tcp"))}</topic></sources></context>
<context>{options("context", option("request_tcp_port_low", "15520"))}</context>
</contexts></application></applications></um-configuration>"""
ATTRIBUTES = """<lbm-attributes><option scope="context" name="request_tcp_port_low" value="15500"/>
<option scope="source" name="transport" value="broker"/><option scope="receiver" name="use_late_join" value="0"/>
</lbm-attributes>"""


@pytest.fixture
def border(tmp_path: Path) -> DroConfig:
    (tmp_path / "um.xml").write_text(BORDER)
    (tmp_path / "east.cfg").write_text(
        "context request_tcp_port_low 15490\ncontext resolver_multicast_port 15480\nsource transport lbtrm"
    )
    (tmp_path / "west.cfg").write_text("context resolver_multicast_port 15580\nsource transport lbtrm")
    dro = tmp_path / "dro.xml"
    dro.write_text(
        f"""<tnw-gateway version="1.0"><daemon><name>border</name><xml-config>um.xml</xml-config></daemon><portals>
<endpoint><name>East</name><domain-id>1</domain-id><lbm-config>east.cfg</lbm-config>{ATTRIBUTES}
<source-context-name>east-out</source-context-name><receiver-context-name>east-in</receiver-context-name></endpoint>
<endpoint><name>West</name><domain-id>2</domain-id><lbm-config>west.cfg</lbm-config></endpoint>
</portals></tnw-gateway>"""
    )
    return load_dro(str(dro), warn=lambda _: None, lookup=HOST)


def low_port_ttl(made: UmOptions) -> tuple[int, int, int]:
    names = ("request_tcp_port_low", "resolver_multicast_outgoing_port", "resolver_multicast_ttl")
    low, port, ttl = (made.get_int("context", name) for name in names)
    return low, port, ttl


def test_the_three_sources_of_options_of_a_dro(border: DroConfig) -> None:
    east, west = border.portals
    assert low_port_ttl(east.sending.context()) == (15510, 15480, 1)
    assert low_port_ttl(east.receiving.context()) == (15500, 15480, 1)
    assert east.sending.source("bulk").get_str("source", "transport") == "tcp"
    assert east.sending.source("other").get_str("source", "transport") == "broker"
    assert not east.receiving.receiver("any").get_bool("receiver", "use_late_join")
    assert low_port_ttl(west.sending.context()) == low_port_ttl(west.receiving.context()) == (15520, 15580, 1)
    assert west.sending.source("bulk").get_str("source", "transport") == "lbtrm"
    assert low_port_ttl(east.um) == (15500, 15480, 1)
    assert low_port_ttl(west.um) == (15520, 15580, 1)


def test_origins_name_the_file_and_line_of_each_layer(border: DroConfig) -> None:
    context = border.portals[0].sending.context()
    assert [context.origin(("context", name)).rpartition("/")[2] for name in
            ("request_tcp_port_low", "resolver_multicast_incoming_port", "resolver_multicast_ttl")] == [
        "um.xml:3 (template east)", "east.cfg:2", "um.xml:2 (template all)"]  # fmt: skip
    assert context.origin(("source", "transport")).rpartition("/")[2] == "dro.xml:3"
    assert context.origin(("source", "late_join")) == ""


def test_names_of_contexts_and_options_by_topic_have_an_effect(border: DroConfig) -> None:
    (limit,) = unsupported(border)
    assert "source transport: broker is not supported yet; use tcp" in str(limit)


def portal(tmp_path: Path, xml: str, inner: str, warnings: list[str], **environ: str) -> EndpointConfig:
    (tmp_path / "u.xml").write_text(f'<um-configuration version="1.0">{xml}</um-configuration>')
    raw = f"""<tnw-gateway version="1.0"><daemon><xml-config>{tmp_path}/u.xml</xml-config></daemon><portals>
<endpoint><name>E</name><domain-id>1</domain-id>{inner}</endpoint></portals></tnw-gateway>"""
    return parse_dro(raw.encode(), "d.xml", warn=warnings.append, lookup=HOST, environ=environ).portals[0]


COMMON = f"""<templates><template name="c">{options("context", option("request_tcp_port", "7"))}</template></templates>
<applications><application name="dro1" template="c"><contexts><context><sources/></context>
<context name="endpt_1"><sources/></context></contexts></application></applications>"""


def test_c1_c2_attributes_below_the_xml_file_are_told(tmp_path: Path) -> None:
    warnings: list[str] = []
    attributes = '<lbm-attributes><option scope="context" name="request_tcp_port" value="8"/></lbm-attributes>'
    made = portal(tmp_path, COMMON, attributes, warnings)
    assert made.um.get_int("context", "request_tcp_port") == 7
    place = f"{tmp_path}/u.xml:1 (template c)"
    assert f"d.xml:2: <option>: context request_tcp_port: has no effect, {place} says otherwise" in warnings


def test_the_context_name_may_come_from_the_options(tmp_path: Path) -> None:
    inner = COMMON.replace('<context name="endpt_1"><sources/>', f'<context name="endpt_1">{options("context", option("request_tcp_port", "9"))}')  # fmt: skip  # noqa: E501
    attributes = '<lbm-attributes><option scope="context" name="context_name" value="endpt_1"/></lbm-attributes>'
    assert portal(tmp_path, inner, attributes, []).um.get_int("context", "request_tcp_port") == 9
    assert portal(tmp_path, inner, "", []).um.get_int("context", "request_tcp_port") == 7


def test_an_xml_file_as_lbm_config_lies_below_the_attributes(tmp_path: Path) -> None:
    (tmp_path / "low.xml").write_text(
        '<um-configuration version="1.0"><applications><application><contexts><context>'
        f"{options('context', option('request_tcp_port', '5'), option('request_tcp_port_low', '6'))}"
        f"{options('source', option('transport', 'lbtrm'))}</context></contexts>"
        "</application></applications></um-configuration>"
    )
    inner = (
        f"<lbm-config>{tmp_path}/low.xml</lbm-config>"
        '<lbm-attributes><option scope="context" name="request_tcp_port_low" value="8"/></lbm-attributes>'
    )
    made = portal(tmp_path, COMMON, inner, [])
    assert made.um.get_int("context", "request_tcp_port") == 7
    assert made.um.get_int("context", "request_tcp_port_low") == 8
    assert made.um.get_str("source", "transport") == "lbtrm"
    assert made.lbm_config == (f"{tmp_path}/low.xml",)


def test_a22_proxy_sources_are_never_of_shared_memory(tmp_path: Path) -> None:
    warnings: list[str] = []
    attributes = '<lbm-attributes><option scope="source" name="transport" value="lbtsmx"/></lbm-attributes>'
    made = portal(tmp_path, COMMON, attributes, warnings)
    assert made.um.get_str("source", "transport") == "tcp"
    assert "d.xml:2: <endpoint>: proxy sources cannot use LBT-SMX or LBT-RDMA, TCP is used" in warnings


def test_a_denied_context_stops_the_portal(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="a context named '' is not permitted"):
        portal(tmp_path, COMMON.replace("<contexts>", '<contexts order="allow,deny">').replace("<context>", '<context rule="deny">'), "", [])  # fmt: skip  # noqa: E501


def test_an_xml_file_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"u.xml:1: does not fit the DTD"):
        portal(tmp_path, "<nonsense/>", "", [])
    raw = b'<tnw-gateway version="1.0"><daemon><xml-config>none.xml</xml-config></daemon><portals><endpoint><name>E</name><domain-id>1</domain-id></endpoint></portals></tnw-gateway>'  # noqa: E501
    with pytest.raises(ConfigErrors, match=r"d.xml:1: <xml-config>: file 'none.xml' does not exist"):
        parse_dro(raw, "d.xml", warn=lambda _: None)


def test_a_large_file_of_mistakes_takes_a_bounded_time_and_report() -> None:
    start = time.process_time()
    warnings: list[str] = []
    inner = "".join(f'<option name="no_such_option_{n}" default-value="1"/>' for n in range(20_000))
    document(f"<templates><template name='t'>{options('context', inner)}</template></templates>", warnings)
    assert len(warnings) == MAX_WARNINGS + 1
    assert warnings[-1] == "more warnings are not shown"
    lines = "".join(f"context no_such_option_{n} 1\n" for n in range(20_000))
    parse_um_text(lines, warnings.append, strict=False)
    assert len(warnings) == 2 * MAX_WARNINGS + 2
    many = ",".join(["t"] * 10_000)
    text = f"<templates><template name='t'>{options('context', option('late_join', '1'))}</template></templates>"
    with pytest.raises(ConfigError, match="names more than 100 templates"):
        document(f"{text}<applications><application template='{many}'><contexts/></application></applications>")
    assert time.process_time() - start < 30


def test_the_environment_is_the_lowest_layer(tmp_path: Path) -> None:
    (tmp_path / "default.cfg").write_text("context request_tcp_port_low 11\ncontext request_tcp_port 12")
    made = portal(
        tmp_path, COMMON, "", [], LBM_DEFAULT_CONFIG_FILE=f"{tmp_path}/default.cfg", LBM_MONITOR_INTERVAL="13"
    )
    assert made.um.get_int("context", "request_tcp_port_low") == 11
    assert made.um.get_int("context", "request_tcp_port") == 7
    assert made.um.get_int("context", "monitor_interval") == 13
    assert made.um.origin(("context", "monitor_interval")) == "LBM_MONITOR_INTERVAL"


GUIDE_UM = """<?xml version="1.0" encoding="UTF-8" ?>
<um-configuration version="1.0">
  <templates>
    <template name="dro1-common">
      <options type="source"><option name="transport" default-value="tcp" /></options>
      <options type="context">
        <option name="request_tcp_interface" default-value="192.0.2.77" />
        <option name="transport_tcp_port_low" default-value="4400" />
        <option name="transport_tcp_port_high" default-value="4500" />
        <option name="resolver_multicast_address" default-value="225.2.37.88"/>
      </options>
    </template>
    <template name="rm-source">
      <options type="source">
        <option name="transport" default-value="lbtrm" />
        <option name="transport_lbtrm_multicast_address" default-value="225.2.37.89"/>
      </options>
    </template>
  </templates>
  <applications>
    <application name="dro1" template="dro1-common">
      <contexts>
        <context>
          <sources>
            <topic topicname="LBTRM_TOPIC" template="rm-source" />
            <topic topicname="LBTRU_TOPIC">
              <options type="source">
                <option name="transport" default-value="lbtru" />
                <option name="resolver_unicast_daemon" default-value="10.29.5.1:1234" />
              </options>
            </topic>
          </sources>
        </context>
        <context name="endpt_1">
          <sources template="rm-source"/>
        </context>
      </contexts>
    </application>
  </applications>
</um-configuration>
"""


def test_the_sample_of_the_guide(tmp_path: Path) -> None:
    """C1 to C5 at once. Its endpoints share a resolver group by the template, which the DRO refuses (B1)."""
    (tmp_path / "sample-config.xml").write_text(GUIDE_UM)

    def endpoint(number: int, *options: tuple[str, str]) -> str:
        inner = "".join(f'<option name="{n}" scope="context" value="{v}"/>' for n, v in options)
        return (
            f"<endpoint><name>Endpoint_{number}</name><domain-id>{number}</domain-id>"
            f"<lbm-attributes>{inner}</lbm-attributes></endpoint>\n"
        )

    interface = ("request_tcp_interface", "198.51.100.5")
    portals = endpoint(1, ("context_name", "endpt_1"), interface), endpoint(2, interface)

    def read(*chosen: str) -> tuple[DroConfig, list[str]]:
        text = f"""<tnw-gateway version="1.0"><daemon><log type="console"/>
<xml-config>{tmp_path}/sample-config.xml</xml-config></daemon><portals>
{"".join(chosen)}</portals></tnw-gateway>"""
        warnings: list[str] = []
        return parse_dro(text.encode(), "d.xml", warn=warnings.append, lookup=HOST, environ={}), warnings

    (one, told), (two, _) = read(portals[0]), read(portals[1])
    first, second = one.portals[0], two.portals[0]
    assert first.um.get_interface("context", "request_tcp_interface") == "192.0.2.77"
    assert any("request_tcp_interface: has no effect" in w for w in told)
    assert any("source resolver_unicast_daemon: not an option of this scope, ignored" in w for w in told)
    assert first.sending.source("any").get_str("source", "transport_lbtrm_multicast_address") == "225.2.37.89"
    assert first.receiving.receiver("any").get_str("source", "transport") == "tcp"
    transports = [second.sending.source(t).get_str("source", "transport") for t in ("LBTRM_TOPIC", "LBTRU_TOPIC", "X")]
    assert transports == ["lbtrm", "lbtru", "tcp"]
    with pytest.raises(ConfigErrors, match=r"resolver channel 225\.2\.37\.88:12965"):
        read(*portals)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("context monitor-appid x", "is not a known UM option, ignored; did you mean monitor_appid?"),  # C6
        (f"context context_name {'a' * 128}", "is not allowed"),  # C8
        ("resolver_context_name_query_duration 0", "has fewer than three fields"),  # C15
        ("context transport_lbtrm_multicast_address_low 239.101.3.10.1", "is not an IPv4 address"),  # C16
    ],
)
def test_slips_of_the_guide_in_plain_text_are_told_and_left_out(line: str, part: str) -> None:
    warnings: list[str] = []
    assert parse_um_text(line, warnings.append, strict=False, lookup=HOST) == DEFAULTS
    assert len(warnings) == 1
    assert part in warnings[0]


@pytest.mark.parametrize(
    ("scope", "name", "value"),
    [
        ("receiver", "transport_lbtrm_nak_generation_interval", 10000),  # C17
        ("context", "transport_lbtrm_source_datagram_max_size", 0),  # C18
        ("context", "transport_tcp_datagram_max_size", 65535),  # B8
        ("source", "transport_lbtrm_ignore_interval", 500),  # C20
        ("context", "resolver_service_interest_mode", "filter"),  # C21
        ("context", "resolver_string_hash_function", "murmur2"),  # C21
    ],
)
def test_defaults_on_which_the_guides_disagree(scope: str, name: str, value: int | str) -> None:
    assert DEFAULTS.value(scope, name) == value


def test_c12_options_of_a_monitor_transport_may_be_inline() -> None:
    text = "config=/a.cfg;topic=/t;context|resolver_multicast_ttl=1"
    read = document(
        "<applications><application><contexts><context>"
        f"{options('context', option('monitor_transport_opts', text))}"
        "</context></contexts></application></applications>"
    )
    assert context_of(read, "").context().get_str("context", "monitor_transport_opts") == text


def test_shared_lists_by_inclusion(tmp_path: Path) -> None:
    (tmp_path / "shared.xml").write_text(
        f'<sources><topic topicname="feed">{options("source", option("late_join", "1"))}</topic></sources>'
    )
    include = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="shared.xml"/>'
    text = f"<applications><application><contexts><context>{include}</context></contexts></application></applications>"
    made = portal(tmp_path, text, "", [])
    assert made.sending.source("feed").get_bool("source", "late_join")
    assert made.sending.source("feed").origin(("source", "late_join")) == f"{tmp_path}/shared.xml:1"
    assert not made.sending.source("other").get_bool("source", "late_join")

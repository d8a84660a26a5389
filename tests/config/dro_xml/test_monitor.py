"""Statistics over UM: what the elements, options and variables that switch them on come to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dro.config.dro_xml.model import DaemonMonitorConfig, DroConfig, MonitorConfig, UdpConfig, statistics_on
from dro.config.reading.problems import ConfigErrors
from dro.config.um.options import UmOptions
from tests.builders.dro_file import endpoint, errors, gateway, load

A = endpoint("A", 1)
PB = '<format-module module="pb"/>'
XML = """<um-configuration version="1.0"><templates><template name="t">
<options type="context"><option name="resolver_unicast_daemon" default-value="10.29.3.101:12801"/>
<option name="mim_incoming_address" default-value="239.9.9.9"/></options>
<options type="source"><option name="transport" default-value="lbtrm"/></options></template></templates>
<applications><application name="tnwgd"><contexts>{around}
<context name="29west_statistics_context"{template}>{inner}</context></contexts></application></applications>
</um-configuration>"""


def transport(options: str, module: str = "lbm") -> bytes:
    inner = f'<monitor interval="5"><transport-module module="{module}" options="{options}"/></monitor>'
    return gateway(A, daemon=inner)


def monitor_of(
    raw: bytes | DroConfig, warnings: list[str] | None = None, environ: Mapping[str, str] | None = None
) -> MonitorConfig:
    made = (raw if isinstance(raw, DroConfig) else load(raw, warnings, environ=environ)).daemon.monitor
    assert made is not None
    return made


def option(name: str, value: str, scope: str = "context") -> str:
    return f'<option scope="{scope}" name="{name}" value="{value}"/>'


def portal(name: str, domain: int, *options: str) -> str:
    own = option("resolver_multicast_port", str(15000 + domain))
    return endpoint(name, domain, f"<lbm-attributes>{own}{''.join(options)}</lbm-attributes>")


def set_of(um: UmOptions) -> dict[str, object]:
    return {" ".join(key): value for key, value in um.explicit.items()}


ALWAYS = {
    "context operational_mode": "embedded", "context monitor_interval": 0, "context mim_incoming_address": "0.0.0.0",
    "context resolver_cache": 0, "context context_name": "29west_statistics_context",
}  # fmt: skip
BELOW = {
    "context request_tcp_bind_request_port": 0, "source transport_lbtrm_transmission_window_size": 500000,
    "source transport_lbtru_transmission_window_size": 500000,
}  # fmt: skip


def test_a_monitor_with_nothing_but_an_interval() -> None:
    config = load(gateway(A, daemon='<monitor interval="5"/>'))
    made = monitor_of(config)
    assert (made.interval_s, made.transport_module, made.topic) == (5, "lbm", "/29west/statistics")
    assert (made.udp, made.format_module, made.separator, made.is_held) == (None, "csv", ",", False)
    assert set_of(made.um) == ALWAYS | BELOW
    assert statistics_on(config)
    assert not statistics_on(load(gateway(A, daemon="<monitor/>")))
    assert not statistics_on(load(gateway(A)))


def test_layers_of_options_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "um.xml").write_text(XML.format(around="", template=' template="t"', inner="<sources/>"))
    (tmp_path / "m.cfg").write_text(
        "context request_tcp_bind_request_port 1\ncontext request_tcp_port 7000\ncontext resolver_cache 1\n"
        "receiver use_otr 1\nsource transport_lbtrm_transmission_window_size 900000\n"
    )
    text = f"config={tmp_path}/m.cfg;CONTEXT|Request_TCP_Port=7001;source|late_join=1"
    inner = f'<monitor interval="5"><transport-module options="{text}"/></monitor>'
    made = monitor_of(gateway(A, daemon=f"{inner}<xml-config>{tmp_path}/um.xml</xml-config>")).um
    assert set_of(made) == BELOW | ALWAYS | {
        "context request_tcp_bind_request_port": 1, "context request_tcp_port": 7001, "source late_join": 1,
        "source transport_lbtrm_transmission_window_size": 900000, "source transport": "lbtrm",
        "context resolver_unicast_daemon": ("10.29.3.101:12801",),
    }  # fmt: skip
    assert made.origin(("context", "request_tcp_port")) == "dro.xml:2"
    assert made.origin(("context", "request_tcp_bind_request_port")) == f"{tmp_path}/m.cfg:1"


def test_the_file_of_a_module_may_be_xml_and_stand_beside_the_configuration(tmp_path: Path) -> None:
    topic = '<sources><topic topicname="t"><options type="source"><option name="transport" default-value="tcp"/>'
    inner = f"{topic}</options></topic></sources>"
    (tmp_path / "m.xml").write_text(XML.format(around="", template=' template="t"', inner=inner))
    warnings: list[str] = []
    made = load(transport("config=m.xml;topic=t"), warnings, file=f"{tmp_path}/dro.xml")
    assert monitor_of(made).um.get_str("source", "transport") == "tcp"
    assert monitor_of(made).um.get_list("context", "resolver_unicast_daemon") == ("10.29.3.101:12801",)
    assert any("'m.xml' is not in the working directory, using" in text for text in warnings)
    other = load(transport("config=m.xml;topic=u"), file=f"{tmp_path}/dro.xml")
    assert monitor_of(other).um.get_str("source", "transport") == "lbtrm"


def test_a_context_that_the_xml_file_does_not_permit_is_an_error(tmp_path: Path) -> None:
    text = XML.format(around="", template=' rule="deny"', inner="<sources/>")
    (tmp_path / "um.xml").write_text(text)
    daemon = f'<monitor interval="5"/><xml-config>{tmp_path}/um.xml</xml-config>'
    [error] = errors(gateway(A, daemon=daemon))
    assert "a context named '29west_statistics_context' is not permitted" in error


def test_a_file_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    [error] = errors(transport("config=/no/such.cfg"))
    assert error.startswith("/no/such.cfg: ")
    (tmp_path / "bad.cfg").write_text("context request_tcp_port x\ncontext\nsource no_such 1\n")
    told = errors(transport(f"config={tmp_path}/bad.cfg"))
    assert [error.partition(": ")[0] for error in told] == [f"{tmp_path}/bad.cfg:1", f"{tmp_path}/bad.cfg:2"]
    off = gateway(A, daemon='<monitor><transport-module options="config=/no/such.cfg"/></monitor>')
    assert monitor_of(off).interval_s == 0, "one that is off is not looked at"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("hfx|x=1", "'hfx' is not a scope of a sender"),
        ("wildcard_receiver|resolver_query_minimum_interval=1", "'wildcard_receiver' is not a scope of a sender"),
        ("context|request_tcp_port=70000", "context|request_tcp_port: 70000 is out of range"),
        ("source|use_tls=1", "'source|use_tls' is no UM option"),
        ("topic=", "topic of 0 bytes"),
        ("topic=" + "x" * 256, "topic of 256 bytes"),
        ("context|transport_tcp_port_low=9;context|transport_tcp_port_high=8", "no port lies in the range from 9 to 8"),
    ],
)
def test_options_that_cannot_be_are_errors_at_their_place(options: str, part: str) -> None:
    [error] = errors(transport(options))
    assert error.startswith("dro.xml:2: ")
    assert part in error


def test_what_is_not_known_or_does_nothing_is_told() -> None:
    warnings: list[str] = []
    made = monitor_of(transport("wctopic=x;receiver|use_otr=1;context|nothing=1;plain; ;"), warnings)
    assert set_of(made.um) == ALWAYS | BELOW
    assert [text.partition("options: ")[2] for text in warnings if "transport-module" in text] == [
        "'wctopic' is not known, ignored",
        "'receiver|use_otr' has no effect, a sender has no such object",
        "'plain' is not name=value, ignored",
        "'context|nothing' is not known, ignored",
    ]


@pytest.mark.parametrize(
    ("options", "udp"),
    [
        ("address=192.0.2.9", UdpConfig("", "", "192.0.2.9", 2933, 16, "0.0.0.0")),
        ("bcaddress=192.0.2.255;port=5;", UdpConfig("", "192.0.2.255", "", 5, 16, "0.0.0.0")),
        (
            "MCGroup=239.1.1.1;ttl=0;interface=127.0.0.1;address=192.0.2.9",
            UdpConfig("239.1.1.1", "", "192.0.2.9", 2933, 0, "127.0.0.1"),
        ),
    ],
)
def test_where_datagrams_go(options: str, udp: UdpConfig) -> None:
    made = monitor_of(transport(options, "udp"))
    assert made.udp == udp
    assert not made.um.explicit


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("", "no destination; write mcgroup, bcaddress or address"),
        ("address=192.0.2", "address '192.0.2' is not an IPv4 address"),
        ("address=host", "address 'host' is not an IPv4 address"),
        ("mcgroup=192.0.2.1", "mcgroup '192.0.2.1' is not a multicast group"),
        ("bcaddress=x", "bcaddress 'x' is not an IPv4 address"),
        ("address=192.0.2.9;port=65536", "port '65536' is out of range"),
        ("address=192.0.2.9;port=-1", "port '-1' is out of range"),
        ("address=192.0.2.9;ttl=256", "ttl '256' is out of range"),
        ("address=192.0.2.9;ttl=", "ttl '' is out of range"),
        ("mcgroup=239.1.1.1;interface=203.0.113.7", "interface: no interface of this host matches"),
    ],
)
def test_values_of_datagrams_that_cannot_be(options: str, part: str) -> None:
    [error] = errors(transport(options, "udp"))
    assert error.startswith("dro.xml:2: <transport-module>: options: ")
    assert part in error


def test_a_separator_is_one_character_of_csv() -> None:
    def form(attributes: str) -> bytes:
        return gateway(A, daemon=f'<monitor interval="5"><format-module {attributes}/></monitor>')

    assert monitor_of(form('options="separator=|"')).separator == "|"
    [error] = errors(form('options="separator=||"'))
    assert "separator '||' is not one ASCII character" in error
    warnings: list[str] = []
    assert monitor_of(form('module="pb" options="separator=|"'), warnings).separator == ","
    assert "dro.xml:2: <format-module>: options: 'separator' is not known, ignored" in warnings


# the environment, and UM options of portals

VARIABLES = {
    "LBM_MONITOR_INTERVAL": "9", "LBM_MONITOR_TRANSPORT": "lbmsnmp", "LBM_MONITOR_TRANSPORT_OPTS": "topic=env",
    "LBM_MONITOR_FORMAT": "csv", "LBM_MONITOR_FORMAT_OPTS": "separator=!",
}  # fmt: skip


def shape(made: MonitorConfig) -> tuple[object, ...]:
    return made.interval_s, made.transport_module, made.topic, made.format_module, made.separator


def test_variables_stand_for_defaults_and_replace_nothing() -> None:
    assert shape(monitor_of(gateway(A), environ=VARIABLES)) == (9, "lbmsnmp", "env", "csv", "!")
    some = gateway(A, daemon='<monitor><transport-module module="lbm"/></monitor>')
    assert shape(monitor_of(some, environ=VARIABLES)) == (9, "lbm", "env", "csv", "!")
    inner = '<transport-module module="lbm" options="topic=t"/><format-module module="csv" options="separator=|"/>'
    all_ = gateway(A, daemon=f'<monitor interval="5">{inner}</monitor>')
    assert shape(monitor_of(all_, environ=VARIABLES)) == (5, "lbm", "t", "csv", "|")
    off = gateway(A, daemon='<monitor interval="0"/>')
    assert not statistics_on(load(off, environ=VARIABLES))
    assert (
        monitor_of(gateway(A), environ={"LBM_MONITOR_INTERVAL": "9", "LBM_MONITOR_FORMAT": "pb"}).format_module == "pb"
    )


def test_a_mistake_in_a_variable_names_it() -> None:
    with pytest.raises(
        ConfigErrors, match=r"^LBM_MONITOR_TRANSPORT_OPTS: context monitor_transport_opts: options: 'hfx'"
    ):
        load(gateway(A), environ={"LBM_MONITOR_INTERVAL": "9", "LBM_MONITOR_TRANSPORT_OPTS": "hfx|a=1"})


def test_an_id_of_the_environment_has_no_effect_and_is_told_once() -> None:
    warnings: list[str] = []
    made = load(gateway(A), warnings, environ={"LBM_MONITOR_APPID": "x"})
    assert made.daemon.monitor is None
    [text] = [text for text in warnings if "APPID" in text]
    assert text.startswith("LBM_MONITOR_APPID: has no effect in a DRO")


def test_the_first_portal_that_sets_options_decides() -> None:
    def monitoring(interval: int, form: str) -> tuple[str, ...]:
        opts = option("monitor_transport_opts", "topic=p;context|request_tcp_port=7000")
        return option("monitor_interval", str(interval)), option("monitor_format", form), opts

    first, other = portal("B", 2, *monitoring(7, "pb")), portal("C", 3, *monitoring(7, "csv"))
    warnings: list[str] = []
    made = monitor_of(gateway(portal("A", 1), first, other, portal("D", 4, *monitoring(7, "pb"))), warnings)
    assert shape(made) == (7, "lbm", "p", "pb", ",")
    assert made.um.get_int("context", "request_tcp_port") == 7000
    told = [text for text in warnings if "monitor_" in text]
    assert told == ["dro.xml:5: context monitor_format: 'csv' of C has no effect, portal B says otherwise"]
    element = gateway(first, daemon='<monitor interval="3"/>')
    assert shape(monitor_of(element)) == (3, "lbm", "/29west/statistics", "csv", ",")


def test_a_um_xml_file_alone_switches_statistics_on(tmp_path: Path) -> None:
    """As the guide recommends it."""
    on = '<options type="context"><option name="monitor_interval" default-value="600"/></options>'
    inner = '<options type="context"><option name="monitor_interval" default-value="600"/></options>'
    text = XML.format(around=f'<context name="in">{on}</context>', template=' template="t"', inner=inner)
    (tmp_path / "um.xml").write_text(text)
    inner = "<receiver-context-name>in</receiver-context-name>"
    config = load(gateway(endpoint("A", 1, inner), daemon=f"<xml-config>{tmp_path}/um.xml</xml-config>"))
    made = monitor_of(config)
    assert made.interval_s == 600
    assert set_of(made.um)["context monitor_interval"] == 0, "statistics have no statistics"
    assert made.um.get_str("source", "transport") == "lbtrm"
    assert str(made) == "every 600 s by lbm as csv"


# beside and in <daemon-monitor>


def daemon_monitor_of(raw: bytes, warnings: list[str] | None = None) -> DaemonMonitorConfig:
    made = load(raw, warnings).daemon.daemon_monitor
    assert made is not None
    return made


def test_pb_waits_while_there_are_binary_statistics() -> None:
    warnings: list[str] = []
    both = load(gateway(A, daemon=f'<monitor interval="5">{PB}</monitor><daemon-monitor/>'), warnings)
    assert monitor_of(both).is_held
    assert statistics_on(both)
    assert [text for text in warnings if "Gwd-10995-11" in text] == [
        "dro.xml:2: <monitor>: pb statistics do not start beside <daemon-monitor> (Gwd-10995-11); remove one of both"
    ]
    assert not monitor_of(gateway(A, daemon='<monitor interval="5"/><daemon-monitor/>')).is_held
    assert not monitor_of(gateway(A, daemon=f'<monitor interval="5">{PB}</monitor>')).is_held


def test_the_request_port_of_daemon_statistics_is_bound_when_something_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "m.cfg").write_text("context request_tcp_port 7002\nreceiver use_otr 1\nsource transport lbtrm\n")
    (tmp_path / "um.xml").write_text(
        '<um-configuration version="1.0"><templates><template name="t"><options type="source"><option name="late_join" '
        'default-value="1"/></options></template></templates><applications><application name="tnwgd" template="t">'
        "<contexts/></application></applications></um-configuration>"
    )
    file = f"<lbm-config>{tmp_path}/m.cfg</lbm-config>"
    xml = f"<xml-config>{tmp_path}/um.xml</xml-config>"
    closed = daemon_monitor_of(gateway(A, daemon=f"<daemon-monitor>{file}</daemon-monitor>{xml}"))
    assert set_of(closed.um) == {
        "context request_tcp_port": 7002, "context request_tcp_bind_request_port": 0, "source transport": "lbtrm",
        "source late_join": 1,
    }  # fmt: skip
    for name in ("remote-snapshot-request", "remote-config-changes-request"):
        made = daemon_monitor_of(gateway(A, daemon=f'<daemon-monitor>{file}<{name} allow="1"/></daemon-monitor>'))
        assert made.um.get_bool("context", "request_tcp_bind_request_port")


def test_a_portal_has_two_groups_of_its_own() -> None:
    names = ("default", "gateway-config", "route-manager-topology", "malloc-info", "portal-config", "portal-stats")
    groups = "".join(f"<group name='{name}' ivl='{n}'/>" for n, name in enumerate(names))
    inner = f"<publishing-interval>{groups}</publishing-interval>"
    warnings: list[str] = []
    config = load(gateway(endpoint("A", 1, inner), daemon="<daemon-monitor/>"), warnings)
    [made] = [portal.publishing for portal in config.all_portals]
    assert made is not None
    assert made.intervals_s == (("default", 0), ("portal-config", 4), ("portal-stats", 5))
    assert [text.partition("<group>: ")[2] for text in warnings if "<group>" in text] == [
        f"{name} has no effect in a portal, ignored" for name in names[1:4]
    ]

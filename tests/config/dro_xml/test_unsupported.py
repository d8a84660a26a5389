"""What this release cannot do is refused or told by name, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dro.config.dro_xml.unsupported import ConfigWarning, unsupported
from dro.config.reading.problems import ConfigErrors
from dro.errors import ConfigError
from tests.builders.dro_file import parse_dro

TCP = "<single-tcp><acceptor><listen-port>9</listen-port></acceptor></single-tcp>"
CHANNEL = (
    '<lbm-attributes><option scope="context" name="resolver_multicast_address" value="239.1.1.2"/></lbm-attributes>'
)
ACE = '<ace match="accept"><topic>T</topic></ace>'


def found(daemon: str = "", endpoint: str = "", portals: str = "") -> list[ConfigError | ConfigWarning]:
    raw = (
        f'<tnw-gateway version="1.0">\n<daemon>{daemon}</daemon>\n<portals><endpoint><name>A</name>'
        f"<domain-id>1</domain-id>{endpoint}</endpoint>{portals}</portals></tnw-gateway>"
    )
    return unsupported(parse_dro(raw.encode(), "u.xml", warn=lambda _: None))


def limits(daemon: str = "", endpoint: str = "", portals: str = "") -> list[tuple[str, bool]]:
    return [(str(limit), not isinstance(limit, ConfigWarning)) for limit in found(daemon, endpoint, portals)]


def test_a_plain_file_has_no_limits() -> None:
    assert limits("<name>N</name><log type='console'/>", "<hotlink-index>2</hotlink-index>") == []


@pytest.mark.parametrize("text", ["<monitor interval='5'/>", "<daemon-monitor/>"])
def test_statistics_are_supported(text: str) -> None:
    assert limits(text) == []


def test_intervals_of_a_portal_want_daemon_statistics() -> None:
    group = "<publishing-interval><group name='default' ivl='1'/></publishing-interval>"
    told = [("u.xml:3: <publishing-interval>: has no effect without <daemon-monitor>", False)]
    assert limits("", group) == told
    assert limits("<daemon-monitor/>", group) == []


@pytest.mark.parametrize("options", ["source|transport=broker", "source|transport=lbtsmx"])
def test_statistics_leave_by_transports_that_there_are(options: str) -> None:
    [(text, is_error)] = limits(f"<monitor interval='5'><transport-module options='{options}'/></monitor>")
    assert text.startswith("u.xml:2: source transport: ")
    assert is_error


def test_intervals_of_other_objects_than_contexts_are_told_by_name() -> None:
    scopes = ("event_queue", "receiver", "wildcard_receiver")
    inner = "".join(f"<option scope='{scope}' name='monitor_interval' value='5'/>" for scope in (*scopes, "context"))
    [(text, is_error)] = limits("", f"<lbm-attributes>{inner}</lbm-attributes>")
    names = ", ".join(f"{scope} monitor_interval (u.xml:3)" for scope in scopes)
    assert text.endswith(f"<portals>: 3 UM options without effect yet: {names}")
    assert not is_error


def test_access_control_is_supported() -> None:
    assert limits("", f"<acl><inbound>{ACE}</inbound><outbound>{ACE}</outbound></acl>") == []


@pytest.mark.parametrize("text", ["<log type='file' size='1'>x.log</log>", "<log type='syslog'/>", "<log/>"])
def test_every_kind_of_log_is_supported(text: str) -> None:
    assert limits(text) == []


def test_user_group_and_pid_file_are_no_limits() -> None:
    assert limits("<uid>1</uid><gid>1</gid><pidfile>p</pidfile>") == []


def test_udp_is_supported_but_for_one_threshold_and_all_is_told_in_file_order() -> None:
    peer = f"\n<peer><name>P</name>{TCP}<udp><port>5</port>%s</udp></peer>"
    assert limits("", portals=peer % "") == []
    told = limits("<patternmap size='9'/>", portals=peer % "<coalesce-threshold>9</coalesce-threshold>")
    what = "messages are always copied into one datagram, ignored"
    assert told == [
        ("u.xml:2: <patternmap>: names are kept without tables of a fixed size, ignored", False),
        (f"u.xml:4: <coalesce-threshold>: {what}", False),
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "<source-context-name>a</source-context-name>",
            "<source-context-name>: has no effect without a UM XML file, whose contexts it selects",
        ),
        ("<smart-batch>1</smart-batch>", ""),
    ],
)
def test_what_has_no_effect_in_an_endpoint_is_told(text: str, part: str) -> None:
    assert limits("", text) == ([(f"u.xml:3: {part}", False)] if part else [])


def test_nothing_of_the_exchange_of_routes_is_without_effect() -> None:
    assert limits("<route-info propagation-interval='9' check-interval='5' timeout='50' max-hop-count='3'/>") == []


def test_um_options_that_nothing_asks_for_are_told_by_name() -> None:
    def attributes(*settings: tuple[str, str, str]) -> str:
        inner = "".join(f"<option scope='{s}' name='{n}' value='{v}'/>" for s, n, v in settings)
        return f"<lbm-attributes>{inner}</lbm-attributes>"

    used = (("source", "transport", "lbtrm"), ("context", "resolver_multicast_address", "239.1.1.1"))
    at_default = ("context", "mim_ordered_delivery", "1")
    foreign = ("context", "fd_management_type", "epoll")
    here = "u.xml:3: <portals>: 1 UM options without effect here: context fd_management_type (u.xml:3)"
    assert limits("", attributes(*used, at_default, foreign)) == [(here, False)]
    shared = (("source", "implicit_batching_minimum_length", "8000"), ("receiver", "ordered_delivery", "0"))
    assert limits("", attributes(*shared)) == []
    idle = (("source", "late_join", "1"), ("context", "compression", "lz4"))
    told = "1 UM options without effect yet: context compression (u.xml:3: TCP is not compressed)"
    assert limits("", attributes(*used, *idle)) == [(f"u.xml:3: <portals>: {told}", False)]


def test_um_options_outside_this_product_are_information(tmp_path: Path) -> None:
    """One line for all portals, however many share the file."""
    um_file = tmp_path / "shared.cfg"
    um_file.write_text("context fd_management_type epoll\nsource ume_late_join 1\n")
    more = f"<endpoint><name>B</name><domain-id>2</domain-id><lbm-config>{um_file}</lbm-config>{CHANNEL}</endpoint>"
    (limit,) = found("", f"<lbm-config>{um_file}</lbm-config>", more)
    assert isinstance(limit, ConfigWarning)
    assert limit.is_information
    assert limit.what.startswith("2 UM options without effect here: context fd_management_type (")
    assert limit.what.endswith(f", source ume_late_join ({um_file}:2)")


def test_an_option_that_must_stop_a_dro_is_refused_at_its_line(tmp_path: Path) -> None:
    um_file = tmp_path / "um.cfg"
    um_file.write_text("# portal A\nsource transport broker\n")
    [(limit, is_error)] = limits("", f"<lbm-config>{um_file}</lbm-config>")
    assert limit.startswith(f"{um_file}:2: source transport: ")
    assert is_error


def test_what_is_refused_is_told_beside_what_is_wrong() -> None:
    transport = '<lbm-attributes><option scope="source" name="transport" value="broker"/></lbm-attributes>'
    wrong = "<web-monitor>127.0.0.1:99999</web-monitor>"
    with pytest.raises(ConfigErrors) as told:
        found(wrong, transport)
    assert [(error.line, error.element) for error in told.value.errors] == [
        (2, "<web-monitor>"),
        (3, "source transport"),
    ]
    with pytest.raises(ConfigErrors) as told:  # options that cannot be put together hide no error
        found(wrong, "<lbm-configuration>missing.cfg</lbm-configuration>")
    assert {error.line for error in told.value.errors} == {2, 3}

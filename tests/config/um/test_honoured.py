"""Options that a release cannot honour stop every program; others that do nothing are named with their places."""

from __future__ import annotations

import pytest

from dro.config.reading.problems import ConfigErrors
from dro.config.um import honoured
from dro.config.um.honoured import (
    TRANSPORTS,
    check,
    check_transport,
    empty_ranges,
    is_refused,
    without_effect,
)
from dro.config.um.options import UmOptions, option_table
from dro.config.um.text_file import parse_um_text
from dro.config.um.used import used_options
from dro.errors import ConfigError
from dro.transport.registry import KINDS


def options(text: str) -> UmOptions:
    return parse_um_text(text, lambda _: None, file="a.cfg")


def test_every_option_that_protects_is_honoured_or_stops_a_program_at_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protecting = sorted(key for key, option in option_table().items() if option.protects)
    assert protecting == [
        ("context", "tls_certificate"),
        ("context", "tls_certificate_key"),
        ("context", "tls_certificate_key_password"),
        ("context", "tls_cipher_suites"),
        ("context", "tls_compression_negotiation_timeout"),
        ("context", "tls_trusted_certificates"),
        ("context", "use_tls"),
    ]
    check(options("".join([f"{scope} {name} 1\n" for scope, name in protecting])))
    monkeypatch.setattr(honoured, "used_options", frozenset)
    for number, (scope, name) in enumerate(protecting, start=1):
        with pytest.raises(ConfigErrors) as caught:
            check(options("\n" * number + f"{scope} {name} 1"))
        (error,) = caught.value.errors
        assert str(error).startswith(f"a.cfg:{number + 1}: {scope} {name}: encryption is not supported yet")
        assert error.remedy


def test_values_that_ask_for_nothing_do_not_stop_a_program() -> None:
    check(options("context use_tls 0\ncontext compression lz4\ncontext resolver_unicast_daemon 0.0.0.0:0"))


def test_every_empty_range_stops_a_program_at_its_line() -> None:
    ends = sorted(key for key in option_table() if key[1].endswith(("port_low", "id_low")))
    assert len(ends) == 9
    for scope, name in ends:
        high = name.removesuffix("low") + "high"
        given = options(f"#\n{scope} {name} 15029\n{scope} {high} 15000")
        (error,) = empty_ranges(given)
        word = "port" if name.endswith("port_low") else "transport id"
        assert str(error) == (
            f"a.cfg:3: {scope} {high}: no {word} lies in the range from 15029 to 15000; "
            f"set {name} to 15000 or less, or {high} to 15029 or more"
        )
        check(given)  # the other end may be set elsewhere
        with pytest.raises(ConfigErrors, match=r"a\.cfg:3: "):
            check(given, is_whole=True)
    (error,) = empty_ranges(options("context request_tcp_port_low 14396"))
    assert str(error).startswith("a.cfg:1: context request_tcp_port_low: no port lies in")
    assert not empty_ranges(options("context request_tcp_port_low 14395"))


def test_the_transports_that_sources_can_use_are_those_that_there_are() -> None:
    assert set(KINDS) == set(TRANSPORTS)


def test_a_transport_is_refused_at_its_line() -> None:
    check_transport(options("source transport lbt-rm"))
    with pytest.raises(ConfigError, match=r"a\.cfg:1: source transport: broker is not supported yet; use tcp.* or lbt"):
        check_transport(options("source transport broker"))


def test_options_without_effect_are_named_once_with_their_places() -> None:
    text = """\
    source late_join 1
    context monitor_interval 5
    context fd_management_type epoll
    source ume_late_join 1
    context compression lz4
    receiver ordered_delivery 0
    receiver use_late_join 0
    context mim_sm_minimum_interval 200
    source implicit_batching_minimum_length 8000
    context resolver_disable_udp_topic_resolution 1
    """
    set_ = options(text)
    to_come = "context compression (a.cfg:5: TCP is not compressed), context monitor_interval (a.cfg:2)"
    outside = "2 UM options without effect here: context fd_management_type (a.cfg:3), source ume_late_join (a.cfg:4)"
    assert without_effect(set_, set_) == (f"2 UM options without effect yet: {to_come}", outside)
    in_portals = to_come.replace(", context monitor_interval (a.cfg:2)", "")  # it switches statistics on
    assert without_effect(set_, in_portals=True)[0].endswith(in_portals)
    assert "interval" in without_effect(options("source implicit_batching_interval 100"), in_portals=True)[0]
    assert without_effect(options("context resolver_cache 0")) == ("", "")


def test_a_refused_option_is_not_named_as_idle_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    unused = used_options() - {("context", "use_tls")}
    monkeypatch.setattr(honoured, "used_options", lambda: unused)
    assert is_refused(("context", "use_tls"))
    assert without_effect(options("context use_tls 1")) == ("", "")

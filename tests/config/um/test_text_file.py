"""UM plain-text files: syntax, layering, what is a warning and what an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.config.reading.problems import ConfigErrors
from dro.config.um.text_file import parse_um_text
from dro.errors import ConfigError
from tests.fakes.lookup import FakeLookup

HOST = FakeLookup()


def mistakes(text: str) -> tuple[ConfigError, ...]:
    """What is wrong with `text`; any other exception than ConfigErrors fails the test."""
    try:
        parse_um_text(text, lambda _: None, lookup=HOST)
    except ConfigErrors as e:
        return e.errors
    return ()


OFFICE = """
# office network
Context  Resolver_Multicast_Address 239.5.5.1     # sets both directions
context resolver_multicast_port 15000
context resolver_multicast_outgoing_port 15001
SOURCE transport LBT-RM
source transport lbtru                            # later line wins
"""

MISTAKES = """context resolver_multicast_port 15200
receiver transport_lbtrm_destination_port 15201
source transport carrier-pigeon
resolver_cache 1
context source_event_function none
context request_tcp_port_low 99999
receiver ordered_delivery -1
"""


def test_lines_act_in_order_and_in_any_case() -> None:
    options = parse_um_text(OFFICE, pytest.fail, lookup=HOST)
    assert options.get_str("context", "resolver_multicast_incoming_address") == "239.5.5.1"
    assert options.get_str("context", "resolver_multicast_outgoing_address") == "239.5.5.1"
    assert options.get_int("context", "resolver_multicast_incoming_port") == 15000
    assert options.get_int("context", "resolver_multicast_outgoing_port") == 15001
    assert options.get_str("source", "transport") == "lbtru"


def test_a_program_gets_all_bad_lines_at_once_and_unknown_options_as_warnings() -> None:
    warnings: list[str] = []
    with pytest.raises(ConfigErrors) as caught:
        parse_um_text(MISTAKES, warnings.append, file="m.cfg", lookup=HOST)
    assert [(e.file, e.line, e.element) for e in caught.value.errors] == [
        ("m.cfg", 3, "source transport"),
        ("m.cfg", 4, ""),
        ("m.cfg", 5, "context source_event_function"),
        ("m.cfg", 6, "context request_tcp_port_low"),
    ]
    assert str(caught.value).splitlines()[3] == (
        "m.cfg:6: context request_tcp_port_low: 99999 is out of range; use 1..65535"
    )
    assert warnings == [
        "m.cfg:2: receiver transport_lbtrm_destination_port: is not an option of this scope, ignored; "
        "it exists in scope source"
    ]


def test_protection_in_another_scope_stops_a_program() -> None:
    """A value without effect is a warning, but not where all would go out as plain text."""
    (error,) = mistakes("receiver use_tls 1\nreceiver resolver_unicast_daemon 127.0.0.1:15380\n")
    assert str(error) == "options:1: receiver use_tls: is not an option of this scope; it exists in scope context"


def test_a_dro_gets_them_as_warnings_and_goes_on() -> None:
    warnings: list[str] = []
    options = parse_um_text(MISTAKES, warnings.append, file="m.cfg", strict=False, lookup=HOST)
    assert [w.split(": ")[0] for w in warnings] == [f"m.cfg:{n}" for n in (2, 3, 4, 5, 6)]
    assert options.get_int("context", "resolver_multicast_incoming_port") == 15200
    assert options.get_int("receiver", "ordered_delivery") == -1
    assert options.get_str("source", "transport") == "tcp"
    assert options.get_int("context", "request_tcp_port_low") == 14391


def test_an_unknown_option_is_one_warning_with_a_suggestion() -> None:
    warnings: list[str] = []
    parse_um_text("source trasport tcp\nSource Trasport lbtrm\ncontext zzz 1\n", warnings.append, file="u.cfg")
    assert warnings == [
        "u.cfg:1: source trasport: is not a known UM option, ignored; did you mean transport?",
        "u.cfg:3: context zzz: is not a known UM option, ignored; remove the line",
    ]


def test_an_unknown_scope_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ConfigErrors, match=r"options:1: unknown scope 'contxt'; did you mean context\?"):
        parse_um_text("contxt resolver_cache 1", pytest.fail)


def test_an_option_or_value_that_is_deprecated_gets_one_notice() -> None:
    warnings: list[str] = []
    text = """
    context resolver_unicast_port 1
    context resolver_unicast_port 2
    source ume_late_join 0
    source ume_late_join 1
    source ume_late_join 1
    context fd_management_type epoll
    wildcard_receiver pattern_type regex
    """
    parse_um_text(text, warnings.append, file="d.cfg")
    assert warnings == [
        "d.cfg:2: context resolver_unicast_port: deprecated, but in effect",
        "d.cfg:8: wildcard_receiver pattern_type: the value regex is deprecated, but in effect",
    ]


def test_values_may_hold_blanks_and_comments_end_a_line() -> None:
    options = parse_um_text("context monitor_appid  my own  app # id\n\t\n#\n", pytest.fail)
    assert options.get_str("context", "monitor_appid") == "my own  app"


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_any_text_is_read_or_refused_with_config_errors(text: str) -> None:
    assert all(str(error).startswith("options:") for error in mistakes(text))


@given(
    st.sampled_from(["context", "source", "receiver", "SOURCE", "hfx", "x"]),
    st.sampled_from(
        ["transport", "resolver_unicast_daemon", "default_interface", "late_join", "ume_store", "mim_address"]
    ),
    st.text(alphabet='0123456789./,;:->"abelto ', min_size=1, max_size=40),
)
def test_any_value_is_taken_or_refused_with_config_errors(scope: str, name: str, value: str) -> None:
    assert all(error.line == 1 and error.remedy for error in mistakes(f"{scope} {name} {value}"))

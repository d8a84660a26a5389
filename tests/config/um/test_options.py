"""The option table: every row's default and limits, the kinds of values, and the layers of `UmOptions`."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import dro.config
from dro.clock import ms, s
from dro.config.um.interfaces import SYSTEM
from dro.config.um.options import DEFAULTS, Option, UmOptions, option_table, scopes_of
from dro.config.um.rules import Kind
from dro.config.um.text_file import parse_um_text
from dro.errors import ConfigError, LocalProtocolError
from tests.builders.um_options import with_all
from tests.fakes.lookup import FakeLookup

HOST = FakeLookup()
CSV = Path(dro.config.__file__).with_name("data") / "um-options.csv"


def of_kind(*kinds: Kind) -> list[Option]:
    return [option for option in option_table().values() if option.rule.kind in kinds]


def ident(option: Option) -> str:
    return f"{option.scope}-{option.name}"


def refused(option: Option, text: str) -> str:
    """The message for a value in line 2 of a file that must not be accepted."""
    with pytest.raises(ConfigError) as caught:
        parse_um_text(f"# first line\n{option.scope} {option.name} {text}\n", lambda _: None, file="a.cfg", lookup=HOST)
    message = str(caught.value)
    assert message.startswith(f"a.cfg:2: {option.scope} {option.name}: ")
    assert caught.value.remedy
    return message


def accepted(option: Option, text: str) -> UmOptions:
    return DEFAULTS.with_(option.scope, option.name, text, lookup=HOST)


def test_every_row_of_the_table_is_an_option_with_a_rule_of_its_own_kind() -> None:
    with CSV.open(encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == len(option_table()) == 503
    for row in rows:
        option = option_table()[row["scope"], row["name"]]
        assert (option.rule.kind is Kind.API) == (row["kind"] == "api"), row["name"]
        if "_mask_t" in row["type"]:
            assert option.rule.kind is Kind.INTERFACE
        if row["unit"] in ("milliseconds", "bytes"):
            assert option.rule.kind is Kind.INTEGER, row["name"]


@pytest.mark.parametrize("option", of_kind(Kind.INTEGER), ids=ident)
def test_integers_take_their_default_and_their_limits_and_nothing_beyond(option: Option) -> None:
    rule = option.rule
    if option.name != "network_compatibility_mode":
        accepted(option, str(option.default))
    for low, high in rule.ranges:
        for edge in (low, high):
            if rule.multiple_of == 1 and not rule.power_of_two:
                assert accepted(option, str(edge)).get_int(option.scope, option.name) == edge
        for beyond in (low - 1, high + 1):
            if not any(a <= beyond <= b for a, b in rule.ranges) and not rule.any_base:
                assert "out of range" in refused(option, str(beyond))
    for text in ("1.5", "1k", "ten", "--1", "٣", "9" * 5000):
        assert "number" in refused(option, text)


@pytest.mark.parametrize("option", of_kind(Kind.WORD), ids=ident)
def test_words_take_every_spelling_in_any_case(option: Option) -> None:
    for spelling, canonical in option.rule.words.items():
        assert accepted(option, spelling.upper()).get_str(option.scope, option.name) == canonical
    assert option.default in option.rule.words.values()
    assert "use one of" in refused(option, "carrier-pigeon")


@pytest.mark.parametrize("option", of_kind(Kind.ADDRESS), ids=ident)
def test_addresses_are_resolved_and_groups_are_groups(option: Option) -> None:
    assert accepted(option, "grp").get_str(option.scope, option.name) == "239.1.2.3"
    for text in ("239.1.2", "1.2.3.4.5", "256.1.1.1", "nowhere"):
        refused(option, text)
    if option.rule.multicast:
        assert "not a multicast group" in refused(option, "192.0.2.1")
    if option.rule.allow_any:
        assert accepted(option, "0.0.0.0").get_str(option.scope, option.name) == "0.0.0.0"
    else:
        assert "not allowed" in refused(option, "0.0.0.0")


@pytest.mark.parametrize("option", of_kind(Kind.INTERFACE), ids=ident)
def test_interfaces_become_addresses_and_fall_back_to_default_interface(option: Option) -> None:
    assert DEFAULTS.get_interface(option.scope, option.name) == "0.0.0.0"
    assert accepted(option, '"eth1"').get_interface(option.scope, option.name) == "198.51.100.5"
    assert accepted(option, "127.4.5.6").get_interface(option.scope, option.name) == "127.4.5.6"
    fallback = DEFAULTS.with_("context", "default_interface", "192.0.2.0/24", lookup=HOST)
    assert fallback.get_interface(option.scope, option.name) == "192.0.2.10"
    assert "no interface" in refused(option, "10.1.1.1")


@pytest.mark.parametrize("option", of_kind(Kind.API), ids=ident)
def test_api_only_options_cannot_be_set_in_a_file(option: Option) -> None:
    assert "by a program only" in refused(option, "none")


@pytest.mark.parametrize("option", of_kind(Kind.TEXT), ids=ident)
def test_texts_are_bounded(option: Option) -> None:
    refused(option, "x" * 5000)
    assert isinstance(DEFAULTS.get_str(option.scope, option.name), str)


@pytest.mark.parametrize(("text", "fits"), [("a-B_9", True), ("x" * 127, True), ("x" * 128, False), ("a b", False)])
def test_context_names_have_an_alphabet(text: str, fits: bool) -> None:
    option = option_table()["context", "context_name"]
    if fits:
        assert accepted(option, text).get_str("context", "context_name") == text
    else:
        refused(option, text)


@pytest.mark.parametrize(("text", "value"), [("0x10", 16), ("010", 8), ("10", 10), ("0", 0)])
def test_session_ids_take_three_bases(text: str, value: int) -> None:
    assert accepted(option_table()["context", "ume_session_id"], text).get_int("context", "ume_session_id") == value
    for bad in ("09", "0x", "-1", "18446744073709551615"):
        refused(option_table()["context", "ume_session_id"], bad)


def test_a_number_too_long_to_be_shown_is_too_large() -> None:
    with pytest.raises(ConfigError, match=r"^context .*: a number of 5000 digits is too large; use 1\.\.65535"):
        DEFAULTS.with_("context", "resolver_multicast_port", "9" * 5000)


def test_powers_of_two_and_multiples_are_checked() -> None:
    tgsz = option_table()["source", "transport_lbtrm_tgsz"]
    assert accepted(tgsz, "32768").get_int("source", "transport_lbtrm_tgsz") == 32768
    assert "power of two" in refused(tgsz, "12")
    assert "multiple of 8" in refused(option_table()["context", "mim_sqn_window_size"], "12")
    warnings: list[str] = []
    options = parse_um_text("receiver transport_demux_tablesz 5", warnings.append, file="a.cfg")
    assert options.get_int("receiver", "transport_demux_tablesz") == 8
    assert warnings == ["a.cfg:1: receiver transport_demux_tablesz: 5 is no power of two, 8 is used"]


def test_the_rate_interval_takes_five_values_only() -> None:
    rate = option_table()["context", "transport_lbtrm_rate_interval"]
    for value in (5, 10, 20, 50, 100):
        assert accepted(rate, str(value)).get_ns("context", rate.name) == ms(value)
    assert "use 5 or 10 or 20 or 50 or 100" in refused(rate, "30")


@pytest.mark.parametrize(
    ("name", "both"),
    [
        ("resolver_multicast_address", ("resolver_multicast_incoming_address", "resolver_multicast_outgoing_address")),
        ("mim_address", ("mim_incoming_address", "mim_outgoing_address")),
    ],
)
def test_convenience_options_set_both_directions_and_a_later_one_wins(name: str, both: tuple[str, str]) -> None:
    options = DEFAULTS.with_("context", name, "239.5.5.1")
    assert [options.get_str("context", each) for each in both] == ["239.5.5.1"] * 2
    options = options.with_("context", both[1], "239.5.5.2")
    assert [options.get_str("context", each) for each in both] == ["239.5.5.1", "239.5.5.2"]
    options = options.with_("context", name, "239.5.5.3")
    assert [options.get_str("context", each) for each in both] == ["239.5.5.3"] * 2


def test_resolver_daemons_add_up_until_the_list_is_emptied() -> None:
    name = "resolver_unicast_daemon"
    options = DEFAULTS.with_("context", name, "127.0.0.1:15380,127.0.0.2:15380", lookup=HOST)
    options = options.with_("context", name, "east:1; 127.0.0.1:15380", lookup=HOST)
    assert options.get_list("context", name) == ("127.0.0.1:15380", "127.0.0.2:15380", "192.0.2.10:1")
    options = options.with_("context", name, "0.0.0.0:0", lookup=HOST)
    assert options.get_list("context", name) == ()
    options = options.with_("context", name, "127.0.0.1:14500->127.0.0.3:15380", lookup=HOST)
    assert options.get_list("context", name) == ("127.0.0.1:14500->127.0.0.3:15380",)
    for bad in ("127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "10.9.9.9->127.0.0.1:1", ",", "a->b->c:1"):
        refused(option_table()["context", name], bad)


def test_services_are_at_most_five() -> None:
    text = ",".join(f"127.0.0.1:{port}" for port in range(1, 8))
    warnings: list[str] = []
    options = parse_um_text(f"context resolver_service {text}", warnings.append)
    assert len(options.get_list("context", "resolver_service")) == 5
    assert any("more than 5" in w for w in warnings)


def test_layers_overwrite_only_what_they_set() -> None:
    file = with_all(DEFAULTS, [("source", "late_join", 1), ("source", "transport", "LBT-RM")])
    program = DEFAULTS.with_("source", "transport", "tcp")
    both = file.merged(program)
    assert both.get_str("source", "transport") == "tcp"
    assert both.get_bool("source", "late_join")
    assert both.is_set("source", "transport")  # although it is the default's value
    assert not DEFAULTS.is_set("source", "transport")
    assert file.get_str("source", "transport") == "lbtrm"  # the layers themselves did not change
    assert file.merged(DEFAULTS) is file


def test_equal_settings_are_equal_options() -> None:
    a = with_all(DEFAULTS, [("source", "late_join", 1), ("source", "transport", "tcp")])
    b = with_all(DEFAULTS, [("source", "transport", "tcp"), ("source", "late_join", "1")])
    assert a == b
    assert hash(a) == hash(b)
    assert a != DEFAULTS


def test_durations_are_nanoseconds_whatever_their_unit() -> None:
    assert DEFAULTS.get_ns("source", "transport_lbtrm_sm_minimum_interval") == ms(200)
    assert DEFAULTS.get_ns("receiver", "resolver_query_minimum_sustain_duration") == s(60)
    assert DEFAULTS.with_("event_queue", "queue_delay_warning", 3).get_ns("event_queue", "queue_delay_warning") == 3000


def test_an_unknown_option_of_a_program_is_an_error_that_names_the_right_scope() -> None:
    with pytest.raises(ConfigError, match="it exists in scope source"):
        DEFAULTS.with_("receiver", "transport_lbtrm_destination_port", 1)
    with pytest.raises(ConfigError, match="unknown UM option"):
        DEFAULTS.with_("receiver", "no_such_thing", 1)
    assert scopes_of("ORDERED_delivery") == ("receiver", "hfx")


def test_asking_for_what_does_not_exist_is_a_bug() -> None:
    with pytest.raises(LocalProtocolError):
        DEFAULTS.get_int("source", "no_such_thing")
    with pytest.raises(LocalProtocolError):
        DEFAULTS.get_int("source", "transport")
    with pytest.raises(LocalProtocolError):
        DEFAULTS.get_str("source", "late_join")
    with pytest.raises(LocalProtocolError):
        DEFAULTS.get_ns("source", "transport_lbtrm_tgsz")
    with pytest.raises(LocalProtocolError):
        DEFAULTS.get_list("source", "transport")


def test_refusals_leave_the_options_as_they_were() -> None:
    with pytest.raises(ConfigError):
        DEFAULTS.with_("context", "resolver_multicast_port", 70000)
    assert DEFAULTS.get_int("context", "resolver_multicast_incoming_port") == 12965
    assert SYSTEM.interfaces()

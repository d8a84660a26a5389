"""Typed option sets: units, overrides of one side, fallbacks; each set is made from defaults and from a real file."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path

import pytest

from dro.clock import ms, s
from dro.config.um import sets as um_sets
from dro.config.um.options import DEFAULTS, UmOptions
from dro.proto.resolver import schedule
from dro.um.message.client_config import Config
from tests.builders.um_options import with_all

EXAMPLES = Path(__file__).parents[2] / "golden" / "examples"


SETS = [
    made
    for made in vars(um_sets).values()
    if isinstance(made, type) and issubclass(made, um_sets.OptionSet) and made is not um_sets.OptionSet
]


@pytest.mark.parametrize("kind", SETS, ids=lambda kind: str(kind.__name__))
def test_every_set_is_made_from_defaults_and_from_the_example_files(kind: type[um_sets.OptionSet]) -> None:
    assert kind.of(DEFAULTS) == kind.of(UmOptions())
    for path in sorted(EXAMPLES.glob("*/trd*.cfg")):
        made = kind.of(Config.load(path).options)
        assert type(made) is kind


def test_a_set_names_the_options_that_it_asks_for() -> None:
    assert um_sets.BatchingOptions.keys() == {
        ("source", "implicit_batching_interval"),
        ("source", "implicit_batching_minimum_length"),
    }
    sizes = [key for key in um_sets.LbtrmSourceOptions.keys() if key[1].endswith("datagram_max_size")]  # noqa: SIM118
    assert sorted(name for _, name in sizes) == [
        "transport_lbtrm_datagram_max_size",
        "transport_lbtrm_source_datagram_max_size",
    ]


def test_defaults_of_loss_recovery_are_nanoseconds() -> None:
    receiver = um_sets.LbtrmReceiverOptions.of(DEFAULTS)
    assert (receiver.initial_backoff_ns, receiver.backoff_ns) == (ms(50), ms(200))
    assert (receiver.suppress_ns, receiver.generation_ns) == (ms(1000), s(10))
    assert (receiver.activity_timeout_ns, receiver.preactivity_timeout_ns) == (s(60), 0)
    source = um_sets.LbtrmSourceOptions.of(DEFAULTS)
    assert (source.sm_min_ns, source.sm_max_ns, source.ignore_ns) == (ms(200), s(10), ms(500))
    assert (source.address_low, source.address_high) == ("224.10.10.10", "224.10.10.14")
    assert source.window_size_bytes == 24 * 1024 * 1024


def test_the_example_file_reaches_the_sets() -> None:
    options = Config.load(EXAMPLES / "direct-link" / "trd1.cfg").options
    resolver = um_sets.ResolverOptions.of(options)
    assert (resolver.incoming_address, resolver.incoming_port) == ("239.101.1.1", 20000)
    assert (resolver.outgoing_address, resolver.outgoing_port) == ("239.101.1.1", 20000)
    assert (resolver.interface, resolver.ttl) == ("127.0.0.1", 1)
    request = um_sets.RequestOptions.of(options)
    assert (request.port, request.port_low, request.port_high) == (0, 20005, 20034)
    assert um_sets.TcpSourceOptions.of(options).maximum_ports == 3
    assert um_sets.LbtrmSourceOptions.of(options).nak_port_low == 20065


def test_a_size_of_one_side_overrides_the_common_one() -> None:
    options = with_all(DEFAULTS, [
        ("context", "transport_lbtrm_datagram_max_size", 4000),
        ("context", "transport_lbtrm_source_datagram_max_size", 1400),
    ])  # fmt: skip
    assert um_sets.LbtrmSourceOptions.of(options).datagram_max_bytes == 1400
    assert um_sets.LbtrmReceiverOptions.of(options).datagram_max_bytes == 4000


def test_rate_caps_of_the_five_classes_are_told_apart() -> None:
    settings = [
        ("initial_advertisement", "initial_advertisements_per_second", "initial_advertisement_bps"),
        ("sustain_advertisement", "sustain_advertisements_per_second", "sustain_advertisement_bps"),
        ("initial_query", "initial_queries_per_second", "initial_query_bps"),
        ("sustain_query", "sustain_queries_per_second", "sustain_query_bps"),
        ("wildcard_query", "wildcard_queries_per_second", "wildcard_query_bps"),
    ]
    options = DEFAULTS
    for number, (_, records, bps) in enumerate(settings, start=1):
        options = options.with_("context", f"resolver_{records}", number)
        options = options.with_("context", f"resolver_{bps}", 1000 * number)
    made = um_sets.ResolverOptions.of(options)
    for number, (name, _, _) in enumerate(settings, start=1):
        assert getattr(made, name) == um_sets.RateCap(number, 1000 * number)
    assert um_sets.ResolverOptions.of(DEFAULTS).wildcard_query.records_per_second == 0


def test_responses_copy_the_request_activity_timeout_unless_told_otherwise() -> None:
    options = DEFAULTS.with_("context", "request_tcp_activity_timeout", 30000)
    assert um_sets.RequestOptions.of(options).response_activity_timeout_ns == s(30)
    options = options.with_("context", "response_tcp_activity_timeout", 0)
    assert um_sets.RequestOptions.of(options).response_activity_timeout_ns == 0


def test_the_transport_has_one_spelling() -> None:
    assert um_sets.source_transport(DEFAULTS) == "tcp"
    assert um_sets.source_transport(DEFAULTS.with_("source", "transport", "LBT-RM")) == "lbtrm"


def test_sets_hold_numbers_texts_and_tuples_only() -> None:
    allowed = (int, str, tuple, um_sets.RateCap)
    for kind in SETS:
        made = kind.of(DEFAULTS)
        assert all(isinstance(getattr(made, f.name), allowed) for f in fields(made))


def test_a_set_is_made_once_of_an_options_object_and_never_for_another() -> None:
    first, other = UmOptions(), UmOptions().with_("receiver", "resolver_query_sustain_interval", 7000)
    made = um_sets.QueryOptions.of(first)
    assert um_sets.QueryOptions.of(first) is made
    assert um_sets.QueryOptions.filling(schedule.QueryOptions, first) == schedule.QueryOptions()
    for _ in range(2):
        assert um_sets.QueryOptions.of(other).sustain_interval_ns == s(7)
        assert um_sets.QueryOptions.filling(schedule.QueryOptions, other).sustain_interval_ns == s(7)


def test_what_was_made_of_options_does_not_go_to_another_process() -> None:
    options = UmOptions().with_("receiver", "resolver_query_sustain_interval", 7000, origin="a.cfg:3")
    plain = pickle.dumps(options)
    made = um_sets.QueryOptions.of(options)
    assert pickle.dumps(options) == plain
    other = pickle.loads(plain)
    assert (other, other.origins) == (options, options.origins)
    assert um_sets.QueryOptions.of(other) == made

"""Options of a context, as it completes them for itself."""

from __future__ import annotations

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.config.um.sets import CTX, ResolverOptions
from dro.um.fragment import options
from dro.wire.lbmr import packet as lbmr


@pytest.mark.parametrize("given", ["0.0.0.0", "127.0.0.1"])
def test_any_interface_becomes_one_that_can_do_multicast(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setattr(options, "multicast_interface", lambda value, *, warn: "127.0.0.1")
    before = UmOptions().with_(CTX, "resolver_multicast_interface", given)
    after = options.with_interface(before)
    assert after.get_interface(CTX, "resolver_multicast_interface") == "127.0.0.1"
    assert (after is before) == (given == "127.0.0.1")


# objects of a context

INTERVAL = ("receiver", "resolver_query_minimum_initial_interval")


def asking_each(milliseconds: int) -> UmOptions:
    return UmOptions().with_(*INTERVAL, milliseconds)


@pytest.fixture
def objects() -> options.ObjectOptions:
    return options.ObjectOptions(asking_each(30).with_("source", "transport", "tcp"))


def test_equal_options_of_objects_are_one_and_nothing_of_its_own_is_the_context(objects: options.ObjectOptions) -> None:
    context = objects.merged(None)
    assert objects.merged(UmOptions()) is context
    kept = objects.merged(asking_each(1))
    for number in range(2, options.MERGED_MAX + 1):
        objects.merged(asking_each(number))
    assert objects.merged(asking_each(1)) is kept
    objects.merged(asking_each(options.MERGED_MAX + 1))
    again = objects.merged(asking_each(1))
    assert again == kept
    assert again is not kept, "so many are remembered, and no more"


def test_options_of_an_object_go_before_those_of_its_context(objects: options.ObjectOptions) -> None:
    merged = objects.merged(asking_each(70))
    assert (merged.value(*INTERVAL), merged.get_str("source", "transport")) == (70, "tcp")
    assert objects.merged(None).value(*INTERVAL) == 30


@pytest.mark.parametrize("uses_hotlinks", [True, False])
@pytest.mark.parametrize("asks_for_it", [True, False])
def test_a_dro_never_uses_hotlinks(uses_hotlinks: bool, asks_for_it: bool) -> None:
    queries = options.query_options(
        asking_each(70).with_("receiver", "use_hotlink", int(asks_for_it)), uses_hotlinks=uses_hotlinks
    )
    assert queries.use_hotlink == (uses_hotlinks and asks_for_it)
    assert queries.minimum_initial_interval_ns == ms(70)


def test_patterns_and_sources_have_intervals_of_their_own() -> None:
    given = UmOptions().with_("wildcard_receiver", "resolver_query_minimum_interval", 90)
    given = given.with_("source", "resolver_advertisement_minimum_initial_interval", 40)
    assert options.wildcard_options(given).minimum_interval_ns == ms(90)
    assert options.advertising_options(given).minimum_initial_interval_ns == ms(40)


@pytest.mark.parametrize(("timeout_s", "expected"), [(-1, -1), (0, 0), (60, s(60))])
@pytest.mark.parametrize("source_type", [lbmr.SenderType.APPLICATION, lbmr.SenderType.DRO])
def test_what_the_resolver_is_told_of_its_context(timeout_s: int, expected: int, source_type: int) -> None:
    given = UmOptions().with_(CTX, "resolver_domain_id_active_propagation_timeout", timeout_s)
    config = options.resolver_config(ResolverOptions.of(given), b"instance", source_type, 9)
    is_application = source_type == lbmr.SenderType.APPLICATION
    assert (config.source_id, config.source_type, config.domain_id) == (b"instance", source_type, 9)
    assert config.domain_propagation_ns == expected
    assert (config.answers_use_queries, config.hears_itself) == (is_application, is_application)

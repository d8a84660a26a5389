"""Where the guides contradict themselves: each of the 59 items of the list of decisions, and the tests that hold it.

A: the DRO file. B: topologies. C: UM configuration files. An item without a test says why it needs none.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dro.config.reading.problems import ConfigErrors
from dro.config.um.options import DEFAULTS, option_table
from dro.config.um.text_file import parse_um_text
from tests.builders.dro_file import gateway, load
from tests.fakes.lookup import FakeLookup

A, LOAD, UM = "config.dro_xml.test_contradictions", "config.dro_xml.test_load", "config.um.test_xml_document"
NOT_OURS = "of another product, or about the text of the guide alone"
DECISIONS: dict[str, tuple[str, ...] | str] = {
    "A1": (f"{A}::test_a1_another_order_is_a_warning",),
    "A2": (f"{A}::test_a2_a3_what_is_not_well_formed_is_refused",),
    "A3": (f"{A}::test_a2_a3_what_is_not_well_formed_is_refused",),
    "A4": (f"{A}::test_a4_an_ace_says_what_it_does",),
    "A5": (f"{A}::test_a5_a_literal_topic_that_looks_like_a_pattern_is_told",
           "config.dro_xml.test_acl::test_the_first_entry_that_matches_decides_and_names_its_place"),
    "A6": ("config.dro_xml.test_acl::test_no_list_accepts_and_only_the_directions_present_are_filtered",),
    "A7": ("config.reading.test_xinclude::test_both_namespaces_and_names_relative_to_the_including_file",),
    "A8": (f"{A}::test_a8_udp_may_stand_inside_single_tcp",),
    "A9": (f"{A}::test_a9_compression_and_tls_go_with_udp",),
    "A10": (f"{A}::test_a10_cipher_suites_in_both_spellings",),
    "A11": (f"{A}::test_a11_datagrams_are_small_with_tls_over_udp",),
    "A12": (f"{A}::test_a12_portals_have_names_and_the_daemon_may",),
    "A13": (f"{A}::test_a13_a_rate_limit_of_the_initial_request_is_ignored",),
    "A14": (f"{A}::test_a14_max_patterns_has_no_function",),
    "A15": (f"{A}::test_a15_the_ignore_interval_of_a_peer_link_is_100",),
    "A16": (f"{A}::test_a16_a_short_keepalive_is_taken_with_a_warning",),
    "A17": (f"{A}::test_a17_unknown_options_of_the_monitor_modules_are_ignored",),
    "A18": (f"{A}::test_a18_parts_of_the_daemon_monitor_may_stand_under_daemon",
            f"{A}::test_a18_the_group_of_the_gateway_is_ignored_in_a_portal"),
    "A19": (f"{A}::test_a19_values_are_checked_for_the_kind_of_condition",),
    "A20": (f"{A}::test_a20_propagation_delay_is_ignored",),
    "A21": (f"{A}::test_a21_the_former_link_is_refused_with_the_name_of_the_new_one",),
    "A22": (f"{UM}::test_a22_proxy_sources_are_never_of_shared_memory",),
    "A23": ("config.dro_xml.test_elements::test_a_written_default_means_the_same_as_none",
            "config.test_decisions::test_a23_no_default_is_a_symbol"),
    "A24": (f"{A}::test_a24_a26_units_and_hop_count",),
    "A25": (f"{A}::test_a25_separate_costs_do_not_exist",),
    "A26": (f"{A}::test_a24_a26_units_and_hop_count",),
    "A27": (f"{A}::test_a27_slips_of_the_text_form_are_aliases",),
    "A28": NOT_OURS,
    "A29": NOT_OURS,
    "B1": (f"{LOAD}::test_names_domains_and_resolver_channels_are_unique_and_both_places_are_named",
           "config.test_decisions::test_b1_two_portals_with_the_same_um_file_are_refused"),
    "B2": NOT_OURS,
    "B3": ("config.test_decisions::test_b3_a_um_file_without_a_group_means_the_default_group",),
    "B4": ("config.test_decisions::test_b4_names_of_files_keep_their_case",),
    "B5": NOT_OURS,
    "B6": NOT_OURS,
    "B7": ("router.test_paths::test_the_routing_figure_of_the_guide",
           "router.test_paths::test_traffic_moves_as_soon_as_the_other_way_is_cheaper"),
    "B8": (f"{UM}::test_defaults_on_which_the_guides_disagree",),
    "C1": (f"{UM}::test_c1_c2_attributes_below_the_xml_file_are_told",),
    "C2": (f"{UM}::test_c1_c2_attributes_below_the_xml_file_are_told", f"{UM}::test_the_sample_of_the_guide"),
    "C3": (f"{UM}::test_c3_c9_c11_what_does_not_fit_inside_a_valid_document_is_told_and_left_out",),
    "C4": (f"{UM}::test_c4_the_application_of_a_dro", f"{UM}::test_c4_no_application_is_an_error"),
    "C5": (f"{UM}::test_the_sample_of_the_guide",),
    "C6": (f"{UM}::test_slips_of_the_guide_in_plain_text_are_told_and_left_out",),
    "C7": ("config.um.test_interfaces::test_written_forms_of_an_interface",
           "config.test_decisions::test_c7_quotes_are_for_device_names"),
    "C8": (f"{UM}::test_slips_of_the_guide_in_plain_text_are_told_and_left_out",
           "config.um.test_options::test_context_names_have_an_alphabet"),
    "C9": (f"{UM}::test_c9_the_version_may_be_missing_and_options_take_the_scope_around_them",),
    "C10": (f"{UM}::test_c10_c13_a_document_is_taken_or_left_as_a_whole",),
    "C11": (f"{UM}::test_c3_c9_c11_what_does_not_fit_inside_a_valid_document_is_told_and_left_out",
            "config.um.test_text_file::test_a_program_gets_all_bad_lines_at_once_and_unknown_options_as_warnings"),
    "C12": (f"{UM}::test_c12_options_of_a_monitor_transport_may_be_inline",),
    "C13": (f"{UM}::test_c10_c13_a_document_is_taken_or_left_as_a_whole",),
    "C14": NOT_OURS,
    "C15": (f"{UM}::test_slips_of_the_guide_in_plain_text_are_told_and_left_out",),
    "C16": (f"{UM}::test_slips_of_the_guide_in_plain_text_are_told_and_left_out",),
    "C17": (f"{UM}::test_defaults_on_which_the_guides_disagree",),
    "C18": (f"{UM}::test_defaults_on_which_the_guides_disagree",
            "config.um.test_sets::test_a_size_of_one_side_overrides_the_common_one"),
    "C19": ("config.test_decisions::test_c19_queries_are_counted_in_queries",),
    "C20": (f"{UM}::test_defaults_on_which_the_guides_disagree",),
    "C21": (f"{UM}::test_defaults_on_which_the_guides_disagree",),
    "C22": NOT_OURS,
}  # fmt: skip


def test_every_item_has_a_decision() -> None:
    items = [f"{part}{n}" for part, count in (("A", 29), ("B", 8), ("C", 22)) for n in range(1, count + 1)]
    assert list(DECISIONS) == items
    assert sum(isinstance(tests, tuple) for tests in DECISIONS.values()) == 52


@pytest.mark.parametrize("item", [item for item, tests in DECISIONS.items() if isinstance(tests, tuple)])
def test_the_tests_of_an_item_exist(item: str) -> None:
    for name in DECISIONS[item]:
        module, _, function = name.partition("::")
        assert callable(getattr(importlib.import_module(f"tests.{module}"), function, None)), name


def test_a23_no_default_is_a_symbol() -> None:
    text = (Path(__file__).parents[2] / "dro" / "config" / "data" / "dro-xml.csv").read_text()
    assert "TNWG_" not in text
    assert "_DEFAULT" not in text


def two_portals(first: str, second: str) -> bytes:
    portals = enumerate((first, second), start=1)
    return gateway(
        "".join(
            f"<endpoint><name>E{n}</name><domain-id>{n}</domain-id><lbm-config>{path}</lbm-config></endpoint>\n"
            for n, path in portals
        )
    )


def test_b1_two_portals_with_the_same_um_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lan.cfg"
    path.write_text("context resolver_multicast_address 239.5.5.5\n")
    with pytest.raises(ConfigErrors, match=r"dro\.xml:4: <endpoint>: resolver channel 239\.5\.5\.5:12965 on"):
        load(two_portals(str(path), str(path)))


def test_b3_a_um_file_without_a_group_means_the_default_group(tmp_path: Path) -> None:
    (tmp_path / "one.cfg").write_text("context resolver_multicast_address 239.5.5.5\n")
    (tmp_path / "two.cfg").write_text("context request_tcp_interface 192.0.2.0/24\n")
    config = load(two_portals(f"{tmp_path}/one.cfg", f"{tmp_path}/two.cfg"))
    groups = [portal.um.value("context", "resolver_multicast_incoming_address") for portal in config.portals]
    assert groups == ["239.5.5.5", "224.9.10.11"]


def test_b4_names_of_files_keep_their_case(tmp_path: Path) -> None:
    (tmp_path / "TRD1.cfg").write_text("context resolver_multicast_port 4001\n")
    (tmp_path / "trd1.cfg").write_text("context resolver_multicast_port 4002\n")
    config = load(two_portals(f"{tmp_path}/TRD1.cfg", f"{tmp_path}/trd1.cfg"))
    assert [p.um.value("context", "resolver_multicast_incoming_port") for p in config.portals] == [4001, 4002]
    with pytest.raises(ConfigErrors, match=r"file '.*Trd1\.cfg' does not exist"):
        load(two_portals(f"{tmp_path}/TRD1.cfg", f"{tmp_path}/Trd1.cfg"))


def test_c7_quotes_are_for_device_names() -> None:
    warnings: list[str] = []
    host = FakeLookup()
    made = parse_um_text('context default_interface "eth1"', warnings.append, strict=False, lookup=host)
    assert made.get_interface("context", "default_interface") == "198.51.100.5"
    assert warnings == []
    quoted = parse_um_text('context mim_destination_port "4001"', warnings.append, strict=False, lookup=host)
    assert quoted == DEFAULTS
    assert "is not a whole number" in warnings[0]


def test_c19_queries_are_counted_in_queries() -> None:
    units = {o.unit for o in option_table().values() if o.name.endswith("_queries_per_second")}
    assert units == {"queries"}

"""What differs between two configurations: every value of the table, and what is no difference at all."""

from __future__ import annotations

import os
import random
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from dro.config.change.difference import differences
from dro.config.change.element_difference import Change
from dro.config.change.reload_class import ReloadClass
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.reading.problems import ConfigErrors
from dro.config.reading.schema import elements
from dro.config.report.effective import effective_config
from tests.builders.dro_documents import documents
from tests.builders.dro_file import HOST, load
from tests.builders.whole_document import Place, places, plain, text, values
from tests.fakes.lookup import LAN, FakeLookup

MANY = int(os.environ.get("DRO_EXAMPLES", "20"))
EXAMPLES = Path(__file__).parents[2] / "golden" / "examples"

# Written down once more, apart from the program: what holds for the children of the daemon and of portals.
LIVE = {
    "log", "monitor", "daemon-monitor", "route-info", "route-recalculation", "cost", "max-queue",
    "source-deletion-delay", "smart-batch", "acl", "topic-resolution", "remote-topic", "remote-pattern",
    "context-query", "publishing-interval", "batching", "gateway-keepalive",
    "fast-keepalive", "canary", "extensions",
}  # fmt: skip
DAEMON = {"name", "uid", "gid", "pidfile", "web-monitor"}
NONE = {
    "lbm-license-file", "topicmap", "patternmap", "topic-purge", "topic-interest-generate", "topic-domain-activity",
    "pattern-purge", "pattern-interest-generate", "pattern-domain-activity", "topic-use-check", "pattern-use-check",
}  # fmt: skip


@cache
def whole() -> DroConfig:
    return load(text())


def expected(place: Place) -> ReloadClass:
    in_daemon = place.path[1] == "daemon"
    child = plain(place.path[2 if in_daemon else 3])
    if child in NONE:
        return ReloadClass.NONE
    if in_daemon and child in DAEMON:
        return ReloadClass.DAEMON
    return ReloadClass.LIVE if child in LIVE else ReloadClass.PORTAL


def cases() -> list[Place]:
    """Every value but those of the second endpoint, and of the second peer what the first one has as well."""
    found = [place for place in places() if "endpoint[2]" not in place.path and place.path != ("tnw-gateway",)]
    return [place for place in found if "peer[2]" not in place.path or "acceptor" in place.path]


def test_every_living_element_and_attribute_is_tried() -> None:
    tried = {(place.element, place.attribute) for place in cases()}
    for spec in elements().values():
        if spec.status == "eliminated" or spec.name in ("tnw-gateway", "lbm-config", "xml-config"):
            continue  # the last two have tests of their own, with files
        for attribute in spec.attributes:
            assert attribute == "xml:space" or (spec.name, attribute) in tried
        assert spec.content is None or (spec.name, "") in tried


@pytest.mark.parametrize("place", cases(), ids=str)
def test_a_changed_value_is_one_change_of_its_class(place: Place) -> None:
    old, new = values(place)
    if old == new:
        assert place.element in ("compression", "option"), "there is no other value"
        return
    changes = differences(whole(), load(text(place)))
    cls = expected(place)
    if cls is ReloadClass.NONE and place.path[1] == "portals":
        assert not changes, "nothing keeps it, so nothing can differ"
        return
    assert {change.reload for change in changes} == {cls}
    if place.element == "name" and place.path[1] == "portals":
        assert [(change.old is None, change.new is None) for change in changes] == [(False, True), (True, False)]
        return
    inside = "acl" in place.path or "lbm-attributes" in place.path or place.path[-1] == "group"
    if not inside:
        [change] = changes
        assert (change.old, change.new) == (shown(place, old), shown(place, new))
        assert change.path.endswith(plain(place.path[-1]) + (f"@{place.attribute}" if place.attribute else ""))
    portal = values(Place((*place.path[:3], "name"), ""))[0] if place.path[1] == "portals" else ""
    for change in changes:
        assert change.portal == portal
        assert change.path.startswith(f"{plain(place.path[2])}[{portal}]/" if portal else "daemon/")
        assert re.fullmatch(r"dro\.xml:\d+", change.origin or change.was)


def shown(place: Place, value: str) -> str:
    return "(not shown)" if place.element == "certificate-key-password" else value


def without(*steps: str) -> bytes:
    return text(without=("tnw-gateway", *steps))


OPTIONAL = [
    *(("daemon", name) for name in elements()["daemon"].children),
    *(("portals", "endpoint[1]", name) for name in elements()["endpoint"].children),
    *(("portals", "peer[1]", name) for name in elements()["peer"].children),
]
NEVER_ABSENT = {"domain-id", "single-tcp", "tcp", "lbm-attributes"}


@pytest.mark.parametrize("path", OPTIONAL, ids="/".join)
def test_an_element_that_goes_or_comes_changes_back_and_forth(path: tuple[str, ...]) -> None:
    name = path[-1]
    if name in NEVER_ABSENT or (name == "name" and path[0] == "portals"):
        return
    there, gone = whole(), load(without(*path))
    went, came = differences(there, gone), differences(gone, there)
    assert {change.reload for change in went} == {change.reload for change in came}
    assert sorted((c.path, c.old, c.new) for c in came) == sorted((c.path, c.new, c.old) for c in went)
    expects_none = name in NONE or elements()[name].status == "eliminated" or name in ("lbm-config", "xml-config")
    if not expects_none:
        classes = {change.reload for change in went}
        assert classes == {expected(Place(("tnw-gateway", *path), ""))}


# --- no difference -------------------------------------------------------------------------------------------------


def shuffled(raw: bytes, seed: int) -> bytes:
    """The same document, with other white space, comments, attributes and portals in another order."""
    rng = random.Random(seed)
    root = etree.fromstring(raw)
    for element in list(root.iter(etree.Element)):
        attributes = sorted(element.attrib.items())
        rng.shuffle(attributes)
        element.attrib.clear()
        element.attrib.update(attributes)
        if element.tag in ("portals", "ace", "publishing-interval"):
            children = list(element)
            rng.shuffle(children)
            element[:] = children
        if elements()[str(element.tag)].content is None and rng.random() < 0.3:
            element.insert(rng.randrange(len(element) + 1), etree.Comment(" said by hand "))
            element.text = "\n\t  "
    return etree.tostring(root)


@pytest.mark.parametrize("seed", range(5))
def test_order_and_white_space_are_no_difference(seed: int) -> None:
    again = load(shuffled(text(), seed))
    assert differences(whole(), again) == ()
    assert differences(again, whole()) == ()


@settings(max_examples=MANY, deadline=None)
@given(documents(), st.integers(0, 1000))
def test_order_and_white_space_of_any_file_are_no_difference(raw: bytes, seed: int) -> None:
    try:
        config = load(raw)
    except ConfigErrors:
        return
    assert differences(config, config) == ()
    assert differences(config, load(shuffled(raw, seed))) == ()


@settings(max_examples=MANY, deadline=None)
@given(documents())
def test_what_is_printed_with_all_defaults_is_no_difference(raw: bytes) -> None:
    try:
        config = load(raw)
    except ConfigErrors:
        return
    printed = load(effective_config(config).encode())
    changes = differences(config, printed)
    assert all("certificate-key-password" in change.path for change in changes), changes


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/dro-*.xml")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_no_example_differs_from_itself(path: Path) -> None:
    try:
        config = load_dro(str(path), warn=lambda _: None)
    except ConfigErrors:
        return
    assert differences(config, load_dro(str(path), warn=lambda _: None)) == ()


DRO = """<tnw-gateway version="1.0"><daemon>{daemon}</daemon><portals>
<endpoint><name>A</name><domain-id>1</domain-id>{a}</endpoint>
<endpoint><name>B</name><domain-id>2</domain-id>{b}</endpoint></portals></tnw-gateway>"""
OTHER = '<option scope="context" name="resolver_multicast_port" value="15000"/>'


def dro(a: str = "", b: str = "", daemon: str = "", host: FakeLookup = HOST, options: str = OTHER) -> DroConfig:
    attributes = f"<lbm-attributes>{options}</lbm-attributes>"
    return load(DRO.format(a=a, b=(f"{attributes}{b}" if options else b), daemon=daemon), lookup=host)


SAME = [
    ("<acl/>", ""),
    ('<smart-batch>0</smart-batch>', ""),
    ('<sqn-window size="16384" increment="2048"/>', "<sqn-window/>"),
    ('<topic-resolution><domain-route min-interval="100"/></topic-resolution>', "<topic-resolution/>"),
    ('<acl><inbound><ace match="accept"><topic>T</topic><tcp-source-port value="1" comparison="equal"/></ace></inbound>'
     "</acl>",
     '<acl><inbound><ace match="accept"><tcp-source-port comparison="eq" value="1"/><topic>T</topic></ace></inbound>'
     "</acl>"),
    ('<publishing-interval><group name="default" ivl="1"/><group name="portal-stats" ivl="2"/></publishing-interval>',
     '<publishing-interval><group name="portal-stats" ivl="2"/><group name="default" ivl="1"/></publishing-interval>'),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_means_the_same_is_no_difference(one: str, other: str) -> None:
    assert differences(dro(a=one), dro(a=other)) == ()
    assert differences(dro(a=other), dro(a=one)) == ()


def test_a_monitor_that_is_off_is_none() -> None:
    assert differences(dro(), dro(daemon='<monitor interval="0"/>')) == ()
    assert [c.path for c in differences(dro(), dro(daemon='<monitor interval="3"/>'))] == ["daemon/monitor@interval"]


def test_options_that_statistics_leave_by_are_told_by_name() -> None:
    def monitor(options: str) -> DroConfig:
        return dro(daemon=f'<monitor interval="3"><transport-module options="topic=t{options}"/></monitor>')

    [option] = differences(monitor(""), monitor(";source|implicit_batching_interval=5"))
    assert (option.path, option.old, option.new) == ("daemon/monitor/source implicit_batching_interval", "200", "5")
    assert option.reload is ReloadClass.LIVE
    [idle] = differences(monitor(""), monitor(";source|ume_late_join=1"))
    assert idle.reload is ReloadClass.NONE


def test_statistics_under_the_daemon_count_as_those_of_the_monitor() -> None:
    group = '<publishing-interval><group name="default" ivl="1"/></publishing-interval>'
    inside = dro(daemon=f"<daemon-monitor topic='t'>{group}</daemon-monitor>")
    stray = dro(daemon=f"<daemon-monitor topic='t'/>{group}")
    assert differences(inside, stray) == ()
    other = dro(daemon=f"<daemon-monitor topic='u'/>{group}")
    assert [(c.path, c.old, c.new) for c in differences(inside, other)] == [("daemon/daemon-monitor@topic", "t", "u")]


# --- portals -------------------------------------------------------------------------------------------------------


def test_a_renamed_portal_is_one_that_goes_and_one_that_comes() -> None:
    before = dro(a="<cost>3</cost>")
    after = load(DRO.replace("<name>A<", "<name>C<").format(
        a="<cost>3</cost>", b=f"<lbm-attributes>{OTHER}</lbm-attributes>", daemon="").encode())  # fmt: skip
    assert differences(before, after) == (
        Change("endpoint[A]", "A", "endpoint in domain 1, cost 3", None, ReloadClass.PORTAL, "", "dro.xml:2"),
        Change("endpoint[C]", "C", None, "endpoint in domain 1, cost 3", ReloadClass.PORTAL, "dro.xml:2", ""),
    )


def test_an_endpoint_that_becomes_a_peer_is_another_portal() -> None:
    peer = b"<peer><name>A</name><single-tcp><acceptor><listen-port>1</listen-port></acceptor></single-tcp></peer>"
    after = load(re.sub(rb"<endpoint><name>A.*?</endpoint>", peer, DRO.format(a="", b="", daemon="").encode()))
    changes = differences(dro(options=OTHER), after)
    assert [(c.path, c.new is None) for c in changes if c.portal == "A"] == [("endpoint[A]", True), ("peer[A]", False)]


def test_the_udp_part_is_the_same_in_both_places() -> None:
    peer = """<tnw-gateway version="1.0"><portals><peer><name>P</name><single-tcp>{inner}<acceptor><listen-port>1
    </listen-port></acceptor></single-tcp>{beside}</peer></portals></tnw-gateway>"""
    udp = "<udp><port>{}</port></udp>"
    beside = load(peer.format(inner="", beside=udp.format(5)).encode())
    inner = load(peer.format(inner=udp.format(5), beside="").encode())
    assert differences(beside, inner) == ()
    other = load(peer.format(inner=udp.format(6), beside="").encode())
    assert [(c.path, c.old, c.new) for c in differences(beside, other)] == [("peer[P]/udp/port", "5", "6")]


def test_a_default_that_is_written_beside_a_change_is_none() -> None:
    peer = """<tnw-gateway version="1.0"><portals><peer><name>P</name><single-tcp>{inner}<acceptor><listen-port>{port}
    </listen-port></acceptor></single-tcp></peer></portals></tnw-gateway>"""
    plain = load(peer.format(inner="", port=1).encode())
    written = load(peer.format(inner="<receive-buffer>0</receive-buffer>", port=2).encode())
    assert [c.path for c in differences(plain, written)] == ["peer[P]/single-tcp/acceptor/listen-port"]
    flagged = load(peer.format(inner="<nodelay/>", port=1).encode())
    [change] = differences(plain, flagged)
    assert (change.path, change.old, change.new) == ("peer[P]/single-tcp/nodelay", None, "present")


def test_an_interface_that_stands_for_another_address_now_is_a_difference() -> None:
    peer = b"""<tnw-gateway version="1.0"><portals><peer><name>P</name><single-tcp><interface>192.0.2.0/24</interface>
    <acceptor><listen-port>1</listen-port></acceptor></single-tcp></peer></portals></tnw-gateway>"""
    moved = FakeLookup((type(LAN)("eth0", "192.0.2.99", 24),))
    [change] = differences(load(peer), load(peer, lookup=moved))
    assert change.path == "peer[P]/single-tcp"
    assert change.reload is ReloadClass.PORTAL
    assert "192.0.2.99" in (change.new or "")


# --- access lists --------------------------------------------------------------------------------------------------


def acl(*topics: str) -> DroConfig:
    entries = "".join(f'<ace match="accept"><topic>{topic}</topic></ace>\n' for topic in topics)
    return dro(a=f"<acl><outbound>\n{entries}</outbound></acl>" if topics else "")


def test_one_entry_more_is_one_change() -> None:
    changes = differences(acl("a", "b", "c"), acl("a", "x", "b", "c"))
    assert changes == (
        Change("endpoint[A]/acl/outbound/ace[2]", "A", None, "accept topic x", ReloadClass.LIVE, "dro.xml:4", ""),
    )
    changes = differences(acl("a", "x", "b"), acl("a", "b"))
    assert [(c.path, c.old, c.new) for c in changes] == [("endpoint[A]/acl/outbound/ace[2]", "accept topic x", None)]


def test_the_order_of_entries_counts() -> None:
    assert differences(acl("a", "b"), acl("b", "a"))


def test_a_list_that_comes_or_goes_is_told() -> None:
    [change] = differences(acl(), acl("a", "b"))
    assert (change.path, change.old, change.new) == ("endpoint[A]/acl/outbound", None, "2 entries")
    [change] = differences(acl("a"), acl())
    assert (change.old, change.new, change.was) == ("1 entry", None, "dro.xml:3")

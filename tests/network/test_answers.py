"""What a chain of three DROs tells an operator: lists of peer portals, their links, and why a topic does not flow."""

from __future__ import annotations

from typing import Any

import pytest

from dro.log.events import LogEvent
from supervisor.admin.lists import rows_of
from supervisor.explain.first_reason import BLOCKED, FLOWS, OPEN
from supervisor.explain.neighbours import neighbour_problems
from supervisor.explain.network import NetworkAnswer, joined
from supervisor.tools.ctl.network import network_lines
from supervisor.tools.ctl.peers import peer_lines
from tests.fakes.admin import FakeAdmin, client_of
from tests.fakes.worker import logged
from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR
from tests.rigs.network import Network

TOPIC = b"topic"
KEPT = (
    "<acl><{way}><ace match='reject'><topic>topic</topic></ace>"
    "<ace match='accept'><pcre-pattern>.</pcre-pattern></ace></{way}></acl>"
)


@pytest.fixture
def chain(make: Make) -> Network:
    """It has routes, and nobody wants or sends anything."""
    net = make(CHAIN)
    begin(net)
    return net


def begin(net: Network) -> None:
    net.start()
    net.until(lambda: has_path(net))


def has_path(net: Network) -> bool:
    last = max(net.plan.trds)
    return all(explain(net, [dro], to=last).hops != () for dro in net.dros)


def explain(net: Network, names: list[str], *, to: int = 3, topic: str = "topic", **states: str) -> NetworkAnswer:
    """Of these DROs, the first as the one of `--dro`; `states` of portals that are not ready, `_` for `-`."""
    clients = []
    for name in names:
        admin = FakeAdmin(net.dros[name])
        admin.states = {portal.replace("_", "-"): state for portal, state in states.items()}
        clients.append(client_of(admin))
    answer = joined(clients, {"topic": topic, "from_domain": 1, "to_domain": to})[1]
    assert answer is not None
    return answer


def rows(net: Network, dro: str, what: str, portal: str, text: str = "") -> list[Any]:
    return list(rows_of(client_of(FakeAdmin(net.dros[dro])), what, portal, text))


def flowing(net: Network) -> None:
    """From TRD 1 to TRD 3."""
    sender, receiver = net.application(1), net.application(3)
    sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: bool(receiver.bound(TOPIC)))


def name_of(net: Network, dro: str) -> str:
    return f"{dro}{net.plan.base}"


# lists


def test_peer_portals_list_what_endpoints_list(chain: Network) -> None:
    flowing(chain)
    (interest,) = rows(chain, "B", "interest", "B-C")
    assert (interest.symbol, interest.kind, interest.domain_id, interest.via) == ("topic", "topic", 3, "remote")
    (source,) = rows(chain, "B", "sources", "B-A")
    assert (source.topic, source.domain_id, source.state, source.forwarded_to) == ("topic", 1, "joined", ("B-C",))
    assert source.source.startswith("PEER:127.0.0.1:")
    (topic,) = rows(chain, "B", "topics", "B-A")
    assert (topic.sources, topic.joined, topic.wanted_by, topic.asked_for, topic.proxies) == (1, 1, (), (3,), 0)
    (topic,) = rows(chain, "B", "topics", "B-C")
    assert (topic.sources, topic.wanted_by, topic.asked_for, topic.proxies) == (0, (3,), (), 1)
    (receiver,) = rows(chain, "B", "proxies", "B-A")
    assert (receiver.proxy, receiver.symbol, receiver.domains) == ("receiver", "topic", (3,))
    (proxy,) = rows(chain, "B", "proxies", "B-C")
    assert (proxy.proxy, proxy.domains, proxy.otid, proxy.fed_by) == ("source", (1,), source.otid, "B-A")
    assert all(rows(chain, "B", what, "B-A", "other") == [] for what in ("topics", "sources", "interest", "proxies"))


def test_one_topic_is_told_with_the_patterns_that_find_it(chain: Network) -> None:
    receiver = chain.application(3)
    receiver.context.want_pattern(b"^top", 1, lambda topic: topic.startswith(b"top"))
    chain.until(lambda: bool(rows(chain, "A", "proxies", "A-1")))
    (at_exit,) = rows(chain, "A", "topic", "A-B", "topic")
    (at_entry,) = rows(chain, "A", "topic", "A-1", "topic")
    assert (at_exit.wanted_by, at_entry.asked_for) == ((3,), (3,))
    (other,) = rows(chain, "A", "topic", "A-1", "pot")
    assert other.asked_for == ()


def test_links_say_who_is_there_and_what_has_passed(chain: Network) -> None:
    flowing(chain)
    (row,) = rows(chain, "B", "peers", "B-C")
    assert (row.state, row.role, row.transport) == ("up", "initiator", "TCP")
    assert (row.dro, row.node_id) == (name_of(chain, "C"), str(chain.dros["C"].node_id))
    assert row.remote == f"127.0.0.1:{chain.plan.link_port('B', 'C')}"
    assert (row.interest_heard, row.sources_told, row.error) == (1, 1, "")
    assert row.bytes_sent > 0
    assert row.bytes_received > 0
    text = "\n".join(peer_lines(row))
    assert f"companion {row.dro}, node {row.node_id}" in text
    assert neighbour_problems(client_of(FakeAdmin(chain.dros["B"])), FakeAdmin(chain.dros["B"]).status()) == []


def test_a_link_that_never_came_says_why(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    net = make(PAIR)
    net.start("A")
    net.until(lambda: "refused" in rows(net, "A", "peers", "A-B")[0].error)
    (row,) = rows(net, "A", "peers", "A-B")
    assert row.state in ("waiting", "connecting")
    assert "start the DRO there" in row.remedy
    admin = FakeAdmin(net.dros["A"])
    (problem,) = neighbour_problems(client_of(admin), admin.status())
    assert (problem.portal, "Connection refused" in problem.what) == ("A-B", True)
    net.run(61_000, step_ms=200)
    (absent,) = [fields for _, event, fields in logged(caplog) if event == LogEvent.PEER_ABSENT]
    assert absent["waiting_s"] == 60
    assert "Connection refused" in str(absent["reason"])


def test_an_acceptor_says_that_nobody_connects(make: Make) -> None:
    net = make(PAIR)
    net.start("B")
    (row,) = rows(net, "B", "peers", "B-A")
    assert (row.role, row.state) == ("acceptor", "listening")
    assert row.error == f"nobody has connected to 127.0.0.1:{net.plan.link_port('A', 'B')}"


# reasons


def test_all_that_flows(chain: Network) -> None:
    flowing(chain)
    answer = explain(chain, ["A", "B", "C"])
    assert (answer.finding.verdict, answer.finding.ask) == (FLOWS, "")
    assert [(hop.dro, hop.entered_at, hop.left_at) for hop in answer.hops] == [
        (name_of(chain, "A"), "A-1", "A-B"),
        (name_of(chain, "B"), "B-A", "B-C"),
        (name_of(chain, "C"), "C-B", "C-3"),
    ]
    assert explain(chain, ["C"]).finding.verdict == FLOWS  # what it hears speaks for the others


def test_a_dro_names_the_next_one_when_it_does_not_know(chain: Network) -> None:
    flowing(chain)
    finding = explain(chain, ["A"]).finding
    assert (finding.verdict, finding.ask) == (OPEN, name_of(chain, "B"))
    text = "\n".join(network_lines(explain(chain, ["A"]), "topic", 1, 3))
    assert f"tnwgdctl explain topic --from 1 --to 3 --dro {name_of(chain, 'B')}" in text
    assert "not asked" in text


def test_nobody_wants_it(chain: Network) -> None:
    chain.application(1).source(TOPIC)
    finding = explain(chain, ["A", "B", "C"]).finding
    assert (finding.verdict, finding.portal) == (BLOCKED, "C-3")
    assert finding.reason == "no receiver in domain 3 wants it, as C-3 hears"
    finding = explain(chain, ["A"]).finding
    assert (finding.portal, finding.ask) == ("A-B", name_of(chain, "B"))
    assert finding.reason == f"A-B has heard no interest of domain 3 from {name_of(chain, 'B')}"


def test_there_is_no_source(chain: Network) -> None:
    chain.application(3).context.want_topic(TOPIC)
    chain.until(lambda: bool(rows(chain, "A", "proxies", "A-1")))
    finding = explain(chain, ["C", "B", "A"]).finding
    assert (finding.verdict, finding.portal) == (BLOCKED, "A-1")
    assert finding.reason == "A-1 hears no source of domain 1"
    finding = explain(chain, ["C"]).finding
    assert (finding.portal, finding.ask) == ("C-B", name_of(chain, "B"))


@pytest.mark.parametrize(
    ("portal", "way", "found"),
    [("C-3", "outbound", "C-3"), ("A-1", "inbound", "A-1"), ("B-C", "outbound", "B-C"), ("B-A", "inbound", "B-A")],
)
def test_an_access_list_rejects_it(make: Make, portal: str, way: str, found: str) -> None:
    net = make(CHAIN, portal_xml={portal: KEPT.format(way=way)})
    begin(net)
    net.application(1).source(TOPIC)
    net.application(3).context.want_topic(TOPIC)
    net.until(lambda: "access list" in explain(net, ["A", "B", "C"]).finding.reason)
    finding = explain(net, ["A", "B", "C"]).finding
    assert (finding.verdict, finding.portal) == (BLOCKED, found)
    assert finding.reason.startswith(f"the {way} access list of {portal} rejects it: ")
    assert "entry 1 [" in finding.reason


def test_there_is_no_route(chain: Network) -> None:
    answer = explain(chain, ["A"], to=9)
    assert answer.finding.reason == "no route: no DRO that is known is in domain 9"
    assert answer.hops == ()


def test_a_link_is_down(chain: Network) -> None:
    flowing(chain)
    chain.dros["C"].close_link("B")
    chain.until(lambda: explain(chain, ["B"]).hops == ())
    answer = explain(chain, ["B"])
    assert answer.finding.reason.startswith("no route: ")
    assert "B-C: no link for " in answer.finding.reason


def test_a_link_is_down_before_routes_have_noticed(chain: Network) -> None:
    flowing(chain)
    chain.dros["C"].close_link("B")
    chain.until(lambda: not chain.dros["B"].has_link("C"), step_ms=1)
    finding = explain(chain, ["B"]).finding
    assert finding.reason.startswith("no route: a link of the last path is gone")
    assert "B-C: no link for 0s: the companion closed it" in finding.reason


def test_a_portal_is_paused(chain: Network) -> None:
    flowing(chain)
    finding = explain(chain, ["A"], A_B="paused").finding
    assert (finding.reason, finding.remedy) == ("A-B is paused", "tnwgdctl portal resume A-B")


def test_a_queue_is_full(chain: Network) -> None:
    flowing(chain)
    admin = FakeAdmin(chain.dros["A"])
    admin.queued["A-B"] = 80
    answer = joined([client_of(admin)], {"topic": "topic", "from_domain": 1, "to_domain": 3})[1]
    assert answer is not None
    assert answer.finding.reason == "the queue of A-B has 80 of 100 bytes"


def test_unreachable_dros_and_json(chain: Network) -> None:
    asked = {"topic": "topic", "from_domain": 1, "to_domain": 3}
    answer = joined([client_of(FakeAdmin(chain.dros["A"]))], asked, ["no DRO 'X' runs here"])[1]
    assert answer is not None
    found = answer.to_json()
    assert found["problems"] == ["no DRO 'X' runs here"]
    assert [hop["was_asked"] for hop in found["path"]] == [True, False, False]
    assert found["cost"] == answer.cost == 6

"""Shows what `tnwgdctl` lists of a real DRO while it forwards."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from dro.wire.lbmr import packet as lbmr
from supervisor.tools.ctl.main import main
from supervisor.tools.ctl.output import EXIT_FAILED, EXIT_OK
from tests.rigs.flow import Board
from tests.rigs.site import Site, running

OPTIONS = lbmr.standard_options(bytes(8), lbmr.SenderType.APPLICATION, 0)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """`flow.0` and `flow.1` go from TRD 1 to TRD 2 and, over TCP, to TRD 3."""
    folder = tmp_path_factory.mktemp("lists")
    acl = "\n      <acl><outbound><ace match='reject'><topic>secret</topic></ace><ace match='accept'>"
    acl += "<pcre-pattern>.</pcre-pattern></ace></outbound></acl>"
    with running(Site(folder, 3, transports={3: "tcp"}, portal_xml={2: acl})) as made:
        flow, again = (Board.create(folder, label, 2) for label in ("flow", "flow@3"))
        made.python("-m", "tests.rigs.flow", str(made.config(1)), "--send", str(flow.path), "--rate", "50", name="send")
        for trd, board in ((2, flow), (3, again)):
            made.python("-m", "tests.rigs.flow", str(made.config(trd)), "--receive", str(board.path), name=f"to{trd}")
        made.wait(lambda: flow.is_flowing and again.is_flowing, "flows")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            (wanted,) = lbmr.pack_tqrs([b"secret"], OPTIONS, 1400)
            sock.sendto(wanted, (f"{made.net(2)}.1", made.port(2)))
        yield made


@pytest.fixture
def listed(site: Site, capsys: pytest.CaptureFixture[str]) -> Any:  # noqa: ANN401 - a function of any words
    def ask(*words: str, status: int = EXIT_OK) -> Any:  # noqa: ANN401 - JSON
        capsys.readouterr()
        assert main([*words, "--json", "--dro", str(site.pid)]) == status
        return json.loads(capsys.readouterr().out)

    return ask


def test_topics_say_where_they_are_heard_wanted_asked_for_and_sent(listed: Any) -> None:  # noqa: ANN401
    answer = listed("topics", "--topic", "flow.0")
    assert (answer["has_more"], answer["problems"]) == (False, [])
    by_portal = {row.pop("portal"): row for row in answer["topics"]}
    blank = {
        "topic": "flow.0",
        "sources": 0,
        "joined": 0,
        "wanted_by": [],
        "asked_for": [],
        "proxies": 0,
        "rejected": "",
    }
    assert by_portal == {
        "P1": blank | {"sources": 1, "joined": 1, "asked_for": [2, 3]},
        "P2": blank | {"wanted_by": [2], "asked_for": [3], "proxies": 1},
        "P3": blank | {"wanted_by": [3], "asked_for": [2], "proxies": 1},
    }


def test_a_source_says_where_it_goes_and_its_proxies_who_feeds_them(listed: Any) -> None:  # noqa: ANN401
    (source,) = listed("sources", "--topic", "flow.1")["sources"]
    assert (source["portal"], source["domain_id"], source["state"]) == ("P1", 1, "joined")
    assert source["forwarded_to"] == ["P2", "P3"]
    assert source["source"].startswith("LBTRM:127.0.0.1:")
    proxies = {(row["portal"], row["proxy"]): row for row in listed("proxies", "--topic", "flow.1")["proxies"]}
    for portal, transport in (("P2", "LBTRM"), ("P3", "TCP")):
        proxy = proxies[portal, "source"]
        assert (proxy["otid"], proxy["domains"], proxy["fed_by"]) == (source["otid"], [1], "P1")
        assert proxy["source"].startswith(transport)
    assert proxies["P1", "receiver"]["domains"] == [2, 3]
    assert proxies["P2", "receiver"]["domains"] == [3]


def test_interest_and_what_an_access_control_list_does_to_it(listed: Any) -> None:  # noqa: ANN401
    rows = listed("interest", "--portal", "P2")["interest"]
    found = {(row["symbol"], row["kind"], row["domain_id"], row["via"], row["rejected"]) for row in rows}
    assert found == {(f"flow.{n}", "topic", 2, "local", False) for n in range(2)} | {
        ("secret", "topic", 2, "local", True)
    }
    (topic,) = listed("topics", "--topic", "secret")["topics"]
    assert (topic["portal"], topic["wanted_by"], topic["rejected"]) == ("P2", [2], "outbound")


def test_the_topology_and_the_way_through_it(site: Site, listed: Any, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ANN401
    (dro,) = listed("topology")["dros"]
    assert {(n["portal"], n["neighbour"], n["ingress_cost"]) for n in dro["neighbours"]} == {
        (f"P{n}", str(n), 1) for n in (1, 2, 3)
    }
    assert (dro["is_own"], dro["version"]) == (True, 3)
    assert dro["signature"] != "00000000"
    answer = listed("path", "1", "3")
    assert [step["node_id"] for step in answer["path"]] == ["1", dro["node_id"], "3"]
    assert (answer["path"][1]["entered_at"], answer["path"][1]["left_at"]) == ("P1", "P3")
    assert (answer["cost"], answer["hop_count"]) == (2, 2)
    assert main(["path", "1", "9", "--dro", str(site.pid)]) == EXIT_FAILED
    assert "no DRO that is known is in domain 9" in capsys.readouterr().err
    assert main(["topology", "--dot", "--dro", str(site.pid)]) == EXIT_OK
    assert capsys.readouterr().out.count(" -- ") == 3


def test_routes_are_calculated_when_an_operator_wants_it(site: Site, listed: Any) -> None:  # noqa: ANN401
    before = site.log.count("route recalculation took")
    assert listed("recalculate") == {}
    site.wait(lambda: site.log.count("route recalculation took") > before, "a calculation")
    assert "Gwd-9574-03: RecalcTrigger:FORCED RECALC:Version = 4" in site.log

"""`tnwgd simulate`: the examples with their costs, faults and what they cost, and what is wrong with the input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dro.clock import ms, s
from dro.errors import ConfigError
from dro.shares import FIRST_SHARE
from dro.wire.source_string import IpcAddress, LbtrmAddress, LbtruAddress, TcpAddress
from supervisor.tools.simulate.context import SimContext
from supervisor.tools.simulate.endpoint import EndpointEnd
from supervisor.tools.simulate.main import main
from supervisor.tools.simulate.messages import Sent
from supervisor.tools.simulate.network import SimNetwork
from supervisor.tools.simulate.plan import NetworkPlan, dro_of, endpoint, load
from supervisor.tools.simulate.portal import SimPortal
from supervisor.tools.simulate.scenario import Scenario, ScenarioResult, interest_in_all
from supervisor.tools.simulate.script import ACTIONS, read_script
from supervisor.tools.simulate.trd import SimSession, Trd

EXAMPLES = Path(__file__).parents[3] / "golden" / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
SUPPORTED = [name for name in NAMES if not name.startswith("unsupported")]


def ignore(_: object) -> None:
    """A warning about this host, which is none of the network's."""


def topology(name: str) -> Path:
    return EXAMPLES / name / "topology.json"


def network(plan: NetworkPlan) -> SimNetwork:
    made = SimNetwork(plan)
    made.add_applications(interest_in_all(plan))
    return made


def tried(net: SimNetwork) -> ScenarioResult:
    return Scenario(net, interval_ns=ms(500)).run([], s(20))


def costs(result: ScenarioResult) -> dict[tuple[int, int], int | None]:
    return {(path.source, path.receiver): path.cost for path in result.paths}


@pytest.mark.parametrize("name", SUPPORTED)
def test_an_example_comes_to_its_costs_and_nothing_is_wrong(name: str) -> None:
    result = tried(network(load([str(topology(name))], ignore)))
    assert result.violations == []
    wanted = json.loads(topology(name).read_text())
    found = {(path.source, path.receiver): path for path in result.paths}
    for path in wanted["paths"]:
        there, back = found[path["from"], path["to"]], found[path["to"], path["from"]]
        routes = {tuple(route) for route in path["routes"]}
        if "hotlinks" not in name:
            assert there.cost == back.cost == path["cost"]
            assert all({p.way, p.way[::-1]} & routes for p in (there, back))
    assert {p.way for p in result.paths} != {()}


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_files_of_an_example_are_the_network_of_its_topology(name: str) -> None:
    files = sorted(str(path) for path in (EXAMPLES / name).glob("*.xml"))
    of_files, of_topology = load(files, ignore), load([str(topology(name))], ignore)
    assert set(of_files.links) == set(of_topology.links)
    assert of_files.domains == of_topology.domains
    assert set(of_files.dros) == set(of_topology.dros)


@pytest.mark.parametrize("interface", ["10.1.2.3", "10.1.2.0/24", '"eth7"', "host7.example"])
def test_interfaces_and_names_of_other_hosts_are_taken_as_they_are(tmp_path: Path, interface: str) -> None:
    for file in (EXAMPLES / "peer-link").iterdir():
        text = file.read_text()
        text = re.sub("<interface>.*?</interface>", f"<interface>{interface}</interface>", text)
        text = re.sub("<address>.*?</address>", "<address>far.example</address>", text)
        (tmp_path / file.name).write_text(re.sub(r"(_interface) .*", rf"\1 {interface}", text))
    plan = load(sorted(str(path) for path in tmp_path.glob("*.xml")), ignore)
    assert [str(link.acceptor) for link in plan.links] == ["G2/G2-G1"]


def test_keys_of_other_hosts_need_not_be_there(tmp_path: Path) -> None:
    keys = "<extensions><route-authentication><key-file>none/{}</key-file></route-authentication></extensions></daemon>"
    for file in (EXAMPLES / "peer-link").iterdir():
        (tmp_path / file.name).write_text(file.read_text().replace("</daemon>", keys.format(file.name)))
    plan = load(sorted(str(path) for path in tmp_path.glob("*.xml")), ignore)
    result = tried(network(plan))
    assert costs(result) == costs(tried(network(load([str(topology("peer-link"))], ignore))))


def faults(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "faults"
    path.write_text("\n".join(lines))
    return str(path)


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_faults_cost_what_the_timers_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Default timers: 5 s of backoff, then the check at 0.75 s; 15 s until a silent link is given up."""
    script = faults(
        tmp_path, "40 cut G1-G2", "80 mend G2/G2-G1", "120 silence G1/G1-G2", "160 mend G1-G2", "200 kill G2",
        "240 start G2", "280 restart G1/G1-TRD1", "320 routes G3", "360 cost G1/G1-G2 9  # dearer than round about",
    )  # fmt: skip
    result = simulated(capsys, "--script", script, str(topology("loop")))
    assert result["violations"] == []
    periods = {period["what"]: period for period in result["periods"][1:]}
    assert 5 <= periods["cut G1-G2"]["silent_s"] <= 7.75
    assert periods["cut G1-G2"]["lost"] > 0
    assert 15 + 5 <= periods["silence G1/G1-G2"]["silent_s"] <= 15 + 5 + 7.75
    assert 5 <= periods["kill G2"]["silent_s"] <= 7.75
    for what in ("mend G2/G2-G1", "mend G1-G2", "start G2", "routes G3", "cost G1/G1-G2 9"):
        assert (periods[what]["lost"], periods[what]["silent_s"] < 0.5) == (0, True), what
    assert 0 < periods["restart G1/G1-TRD1"]["silent_s"] < 1
    ways = {(path["source"], path["receiver"]): path for path in result["paths"]}
    assert (ways[1, 2]["cost"], ways[1, 4]["cost"]) == (10, 8)
    assert "G1/G1-G2" not in ways[1, 2]["way"]
    assert all(path["got"] < path["sent"] for path in ways.values())


def test_a_parted_network_says_where_there_is_no_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = faults(tmp_path, "20 cut G1-G2")
    assert main(["--script", script, "--seconds", "20", str(topology("peer-link"))]) == 0
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines() if line.split()[:2] in (["1", "2"], ["2", "1"])] == [
        "none"
    ] * 2
    assert "all that must hold did" in out


def test_the_same_seed_gives_the_same_result(capsys: pytest.CaptureFixture[str]) -> None:
    one, again, *others = (
        simulated(capsys, "--seed", seed, "--seconds", "20", str(topology("mesh-six"))) for seed in "112345"
    )
    assert one == again
    assert any(one != other for other in others), "node ids decide between paths of equal cost"


# what is wrong is found


def test_a_portal_that_loses_messages_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take = SimPortal.take
    monkeypatch.setattr(SimPortal, "take", lambda self, key, sent: take(self, key, sent) if sent.sqn % 2 else None)
    assert main([str(topology("peer-link"))]) == 1
    assert "messages do not arrive" in capsys.readouterr().out


def test_a_message_that_comes_twice_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    send = Trd.send

    def twice(trd: Trd, session: SimSession, sent: Sent) -> None:
        is_proxy = isinstance(session.owner, SimContext) and isinstance(session.owner.user, EndpointEnd)
        for _ in range(1 + is_proxy):
            send(trd, session, sent)

    monkeypatch.setattr(Trd, "send", twice)
    assert main([str(topology("transit-trd"))]) == 1
    assert "a message arrives 2 times" in capsys.readouterr().out


@pytest.mark.parametrize("is_right", [True, False])
def test_a_source_that_takes_the_way_of_another_tree_is_found(monkeypatch: pytest.MonkeyPatch, is_right: bool) -> None:
    """Two DROs between two TRDs, both sharing; the wrong portals take all sources for those of one tree."""
    if not is_right:
        monkeypatch.setattr("portals.decisions.wanted_sources.share_of", lambda _: FIRST_SHARE)
        monkeypatch.setattr("portals.endpoint.join_rules.share_of", lambda _: FIRST_SHARE)
    portals = [endpoint("P1", 1), endpoint("P2", 2)]
    plan = NetworkPlan({name: dro_of(name, portals, [], shares=True) for name in ("A", "B")}, ())
    violations = []
    for seed in range(8):
        net = SimNetwork(plan, seed)
        net.add_applications(interest_in_all(plan))
        violations += Scenario(net, interval_ns=ms(500)).run([], s(30)).violations
    assert (violations == []) == is_right
    assert all("as the tree of the source does" in text for text in violations)


def test_a_topology_may_share(tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    portals = [{"name": "P", "type": "endpoint", "domain_id": 1, "cost": 1}]
    dros = [{"name": name, "portals": portals, "equal_cost_sharing": name == "A"} for name in "AB"]
    file.write_text(json.dumps({"dros": dros}))
    assert [dro.daemon.equal_cost_sharing for dro in load([str(file)], ignore).dros.values()] == [True, False]


def test_a_path_that_is_not_the_cheapest_is_found() -> None:
    net = network(load([str(topology("cost-choice"))], ignore))
    assert tried(net).violations == []
    used = {
        name.partition("/")[0] for app in net.applications.values() for got in app.got.values() for name in got.passed
    }
    for name in used:
        net.dros[name].costs = dict.fromkeys(net.dros[name].costs, 50)  # of which the portals are not told
    violations = Scenario(net, interval_ns=ms(500)).run([], s(40)).violations
    assert violations
    assert all("and the cheapest path" in text for text in violations)


# bad input


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("soon cut A-B", "'soon' is no time"),
        ("nan cut A-B", "not between 0"),
        ("-1 cut A-B", "not between 0"),
        ("5", "no action"),
        ("5 burn A", "'burn' is no action"),
        ("5 cut", "cut has 0 arguments, not 1"),
        ("5 cut A-B C", "cut has 2 arguments"),
        ("5 cost A/P much", "'much' is no cost"),
        ("5 cost A/P 0", "'0' is no cost"),
    ],
)
def test_a_bad_line_of_a_script(tmp_path: Path, line: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as e:
        read_script(faults(tmp_path, "# first", "", line))
    assert e.value.line == 3
    assert "AT ACTION NAME" in e.value.remedy


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("5 cut G1-G9", "no link 'G1-G9'.*G1-G2"),
        ("5 kill G9", "no DRO 'G9'.*G1, G2"),
        ("5 restart G1/X", "no portal 'G1/X'"),
        ("5 cost G1 2", "no portal 'G1'"),
        ("5 deafen 9", "no TRD '9'.*there is: 1"),
        ("5 hear TRD1", "no TRD 'TRD1'"),
    ],
)
def test_a_fault_of_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, what: str) -> None:
    assert main(["--script", faults(tmp_path, line), str(topology("peer-link"))]) == 1
    err = capsys.readouterr().err
    assert "faults:1: " in err
    assert re.search(what, err), err


def deaf_trd(tmp_path: Path, *lines: str) -> ScenarioResult:
    net = network(load([str(topology("direct-link"))], ignore))
    return Scenario(net, interval_ns=ms(500)).run(read_script(faults(tmp_path, *lines)), s(30))


def test_what_is_known_flows_while_no_server_of_a_trd_answers(tmp_path: Path) -> None:
    result = deaf_trd(tmp_path, "20 deafen 1", "60 hear 1")
    assert ([period.lost for period in result.periods], result.violations) == ([0, 0, 0], [])


def test_what_is_new_is_found_when_a_server_answers_again(tmp_path: Path) -> None:
    result = deaf_trd(tmp_path, "20 deafen 1", "25 kill G1", "26 start G1", "70 hear 1")
    *_, deaf, heard = result.periods
    assert any("do not arrive" in text for text in deaf.violations), deaf
    assert heard.violations == []


@pytest.mark.parametrize("kind", [TcpAddress, LbtrmAddress, LbtruAddress, IpcAddress])
def test_sources_send_by_the_transport_of_their_options(
    tmp_path: Path, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a source ends and its receivers find out by its silence."""
    name = {TcpAddress: "tcp", LbtrmAddress: "lbtrm", LbtruAddress: "lbtru", IpcAddress: "lbtipc"}[kind]
    for file in (EXAMPLES / "direct-link").iterdir():
        text = re.sub("source transport .*\n", "", file.read_text())
        (tmp_path / file.name).write_text(text + f"source transport {name}\n" * (file.suffix == ".cfg"))
    opened: set[type] = set()
    open_session = Trd.open_session

    def noted(trd: Trd, *args: Any, **more: Any) -> SimSession:  # noqa: ANN401  # as they come
        session = open_session(trd, *args, **more)
        opened.add(type(session.address))
        return session

    monkeypatch.setattr(Trd, "open_session", noted)
    net = network(load([str(tmp_path / "dro-g1.xml")], ignore))
    result = Scenario(net, interval_ns=ms(500)).run(read_script(faults(tmp_path, "20 restart G1/G1-TRD1")), s(120))
    assert result.violations == []
    assert opened == {kind, TcpAddress}, "those of portals; applications have UM's default"


def test_it_says_how_topics_are_resolved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (EXAMPLES / "direct-link").glob("*.xml"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "trd1.cfg").write_text("context resolver_unicast_daemon 10.0.0.1:15380\n")
    (tmp_path / "trd2.cfg").write_text(
        "context resolver_service 10.0.0.2:27000\ncontext resolver_disable_udp_topic_resolution 1\n"
    )
    assert main([str(tmp_path / "dro-g1.xml"), "--seconds", "20"]) == 0
    end = capsys.readouterr().out.splitlines()[-2:]
    assert end[0] == "TRD 1: topics by lbmrd 10.0.0.1:15380; all in it are taken to hear each other"
    assert end[1].startswith("TRD 2: topics by SRS 10.0.0.2:27000; ")


def test_every_action_is_described() -> None:
    text = (EXAMPLES.parents[2] / "docs" / "user-guide.md").read_text()
    for action in ACTIONS:
        assert re.search(rf"\| `\d+ {action} ", text), action


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ("[", "is no JSON"),
        ("[]", "the document is no object"),
        ("{}", "no list 'dros'"),
        ('{"dros": []}', "0 DROs"),
        ('{"dros": [{}]}', "no text 'name'"),
        ('{"dros": [{"name": "A", "portals": [{"name": "P", "type": "x"}]}]}', "neither endpoint nor peer"),
        ('{"dros": [{"name": "A", "portals": [{"name": "P", "type": "endpoint"}]}]}', "no number 'domain_id'"),
        ('{"dros": [{"name": "A", "portals": [{"name": "P", "type": "peer"}]}]}', "A/P is at 0 ends"),
        (
            '{"dros": [{"name": "A", "portals": []}], "links": [{"initiator": "A/P", "acceptor": "B"}]}',
            "no peer portal",
        ),
        ('{"dros": [{"name": "A", "portals": []}, {"name": "A", "portals": []}]}', "two DROs have the name A"),
    ],
)
def test_a_bad_topology(tmp_path: Path, document: str, what: str) -> None:
    path = tmp_path / "net.json"
    path.write_text(document)
    with pytest.raises(ConfigError, match=what):
        load([str(path)], ignore)


def test_files_that_are_no_network(tmp_path: Path) -> None:
    one = str(EXAMPLES / "peer-link" / "dro-g1.xml")
    with pytest.raises(
        ConfigError, match=r"G1/G1-G2: no acceptor in these files.*<initiator>|<initiator>.*no acceptor"
    ):
        load([one], ignore)
    with pytest.raises(ConfigError, match="described by"):
        load([one, one], ignore)
    with pytest.raises(ConfigError, match="whole network"):
        load([one, str(topology("peer-link"))], ignore)
    with pytest.raises(ConfigError, match="No such file"):
        load([str(tmp_path / "none.json")], ignore)


@pytest.mark.parametrize("words", [[], ["--seconds", "0", "x"], ["--rate", "many", "x"], ["--seconds", "nan", "x"]])
def test_bad_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main(words)
    assert e.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1

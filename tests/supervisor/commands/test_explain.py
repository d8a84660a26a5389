"""What a configuration says about a topic: access lists, sessions, UM options, and the commands that ask."""

from __future__ import annotations

import json
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.errors import RefusedError
from supervisor.admin.explanation import ACCEPTED, DEPENDS, NOT_HERE, REJECTED, ExplainRecord
from supervisor.admin.server import Arguments
from supervisor.commands.explain import ExplainQuery, explain, query_of
from supervisor.tools.ctl.main import main
from supervisor.tools.ctl.output import EXIT_FAILED
from supervisor.tools.ctl.reload import EXIT_DIFFERENT

UM = """<um-configuration version="1.0"><templates/><applications><application><contexts><context>
<options type="context"><option name="resolver_multicast_ttl" default-value="3"/></options>
<sources order="deny,allow"><topic topicname="forbidden" rule="deny"/>
<topic pattern="^fast"><options type="source"><option name="transport" default-value="lbtrm"/></options></topic>
</sources></context></contexts></application></applications></um-configuration>"""
DRO = """<tnw-gateway version="1.0"><daemon><name>D</name><xml-config>{um}</xml-config></daemon><portals>
<endpoint><name>A</name><domain-id>1</domain-id><cost>2</cost><acl>
<inbound>
<ace match="reject"><topic>secret</topic></ace>
<ace match="accept"><pcre-pattern>^near</pcre-pattern><source-ip value="10.0.0.9" comparison="le"/></ace>
<ace match="accept"><pcre-pattern>^tcp</pcre-pattern><transport value="tcp" comparison="eq"/></ace>
<ace match="accept"><topic>open</topic></ace>
<ace match="accept"><pcre-pattern>^fast|forbidden|^out</pcre-pattern></ace>
</inbound></acl></endpoint>
<endpoint><name>B</name><domain-id>2</domain-id><cost>3</cost><lbm-attributes>
<option scope="context" name="resolver_multicast_port" value="14001"/></lbm-attributes><acl>
<outbound>
<ace match="reject"><pcre-pattern>^out</pcre-pattern></ace>
<ace match="accept"><pcre-pattern>.</pcre-pattern></ace>
</outbound></acl></endpoint></portals></tnw-gateway>"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "um.xml").write_text(UM)
    (tmp_path / "dro.xml").write_text(DRO.format(um=tmp_path / "um.xml"))
    return tmp_path / "dro.xml"


@pytest.fixture
def config(file: Path) -> DroConfig:
    return load_dro(str(file), warn=lambda _: None, environ={})


def ask(config: DroConfig, topic: str, **given: object) -> ExplainRecord:
    return explain(config, query_of(Arguments({"topic": topic, "from_domain": 1, "to_domain": 2, **given})))


def test_a_topic_that_passes(config: DroConfig) -> None:
    answer = ask(config, "open")
    assert (answer.verdict, answer.ingress, answer.egress, answer.cost) == (ACCEPTED, "A", "B", 5)
    inbound, outbound = answer.verdicts
    assert (inbound.portal, inbound.direction, inbound.ace, inbound.line) == ("A", "inbound", 4, 7)
    assert (outbound.portal, outbound.direction, outbound.ace, outbound.line) == ("B", "outbound", 2, 14)
    assert inbound.file == config.file


def test_the_other_way_has_no_lists(config: DroConfig) -> None:
    answer = explain(config, ExplainQuery("secret", 2, 1))
    assert answer.verdict == ACCEPTED
    assert [one.reason for one in answer.verdicts] == ["no list", "no list"]


@pytest.mark.parametrize(
    ("topic", "portal", "direction", "ace", "line"),
    [("secret", "A", "inbound", 1, 4), ("unknown", "A", "inbound", 0, 0), ("outer", "B", "outbound", 1, 13)],
)
def test_a_topic_that_is_rejected(
    config: DroConfig, topic: str, portal: str, direction: str, ace: int, line: int
) -> None:
    answer = ask(config, topic)
    assert answer.verdict == REJECTED
    [verdict] = [one for one in answer.verdicts if one.verdict == REJECTED]
    assert (verdict.portal, verdict.direction, verdict.ace, verdict.line) == (portal, direction, ace, line)
    assert answer.reason.startswith(f"{direction} of {portal}: ")


def test_rules_of_um_options_reject_as_well(config: DroConfig, file: Path) -> None:
    answer = ask(config, "forbidden")
    assert answer.verdict == REJECTED
    [verdict] = [one for one in answer.verdicts if one.verdict == REJECTED]
    assert "'forbidden' is not permitted" in verdict.reason
    assert verdict.file == str(file.with_name("um.xml"))


def test_what_depends_on_the_session_is_said_so(config: DroConfig) -> None:
    answer = ask(config, "near/x")
    assert (answer.verdict, answer.missing) == (DEPENDS, ("transport",))
    assert answer.verdicts[0].line == 5
    answer = ask(config, "near/x", transport="lbt-rm")
    assert (answer.verdict, answer.missing) == (DEPENDS, ("source-ip",))


@pytest.mark.parametrize(("address", "verdict"), [("10.0.0.9", ACCEPTED), ("10.0.0.10", REJECTED)])
def test_a_known_session_decides(config: DroConfig, address: str, verdict: str) -> None:
    answer = ask(config, "near/x", transport="lbt-rm", **{"source-ip": address})
    assert (answer.verdict, answer.missing) == (verdict, ())


def test_a_condition_that_a_transport_does_not_have_is_left_out(config: DroConfig) -> None:
    assert ask(config, "near/x", transport="lbt-ipc").verdict == ACCEPTED


def test_the_transport_alone_may_decide(config: DroConfig) -> None:
    source = {"source-ip": "192.0.2.1"}
    assert ask(config, "tcp/x", transport="tcp", **source).verdict == ACCEPTED
    assert ask(config, "tcp/x", transport="lbt-ru", **source).verdict == REJECTED


def test_options_of_the_proxies_with_their_origin(config: DroConfig, file: Path) -> None:
    um = file.with_name("um.xml")
    options = {(one.portal, one.proxy, one.option): (one.value, one.origin) for one in ask(config, "fast/1").options}
    assert options["B", "source", "source transport"] == ("lbtrm", f"{um}:4")
    assert options["A", "receiver", "context resolver_multicast_ttl"] == ("3", f"{um}:2")
    assert options["B", "source", "context resolver_multicast_incoming_port"] == ("14001", f"{file}:11")
    slow = {one.option for one in ask(config, "open").options}
    assert "source transport" not in slow


def test_domains_that_are_not_attached(config: DroConfig) -> None:
    answer = explain(config, ExplainQuery("open", 1, 7))
    assert answer.verdict == NOT_HERE
    assert answer.reason == "no endpoint of this DRO is in domain 7; it has 1 (A), 2 (B)"
    assert explain(config, ExplainQuery("open", 1, 1)).verdict == NOT_HERE
    assert "8 and 9" in explain(config, ExplainQuery("open", 8, 9)).reason


def test_portals_that_do_not_run_are_named(config: DroConfig) -> None:
    answer = explain(config, ExplainQuery("open", 1, 2), {"B": "paused", "C": "waiting"})
    assert answer.states == ("B is paused",)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"transport": "carrier-pigeon"}, "there is no transport 'carrier-pigeon'"),
        ({"source-ip": "10.0.0.1"}, "source-ip needs the transport"),
        ({"transport": "tcp", "source-ip": "10.0.0"}, "'10.0.0' is not an IPv4 address"),
        ({"transport": "tcp", "tcp-source-port": 70000}, "'tcp-source-port' has to be a number"),
        ({"transport": "tcp", "tcp-source-port": 1.5}, "'tcp-source-port' has to be a whole number"),
        ({"from_domain": 0}, "'from_domain' has to be a number"),
        ({"from_domain": 1.5}, "'from_domain' has to be a whole number"),
        ({"colour": "red"}, "no such argument: 'colour'"),
        ({"topic": 3}, "'topic' has to be a text"),
    ],
)
def test_a_question_that_is_none(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        query_of(Arguments({"topic": "T", "from_domain": 1, "to_domain": 2, **arguments}))


def test_every_part_of_a_session_arrives() -> None:
    given = {
        "source-ip": "10.0.0.1", "multicast-group": "239.0.0.1", "udp-source-port": 1, "udp-destination-port": 2,
        "tcp-source-port": 0, "xport-id": 4,
    }  # fmt: skip
    question = query_of(Arguments({"topic": "T", "from_domain": 1, "to_domain": 2, "transport": "tcp", **given}))
    expected = {k: int(IPv4Address(v)) if isinstance(v, str) else v for k, v in given.items()}
    assert question.given == expected


# --- without a running DRO -----------------------------------------------------------------------------------------


def test_a_file_is_explained(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["explain", "near/x", "--from", "1", "--to", "2", "--file", str(file), "--transport", "lbt-rm"])
    shown = capsys.readouterr().out.splitlines()
    assert status == 0
    assert shown[0] == "topic near/x from domain 1 to domain 2: depends on the session"
    assert "  to decide, give --source-ip" in shown
    assert f"  inbound of A: depends on the session: depends on the session, entry 2  [{file}:5]" in shown
    assert shown[-1] == "  4 UM options are set for the proxies (-v: each, and what accepts the topic)"
    assert not any("outbound" in line for line in shown)
    assert main(["explain", "near/x", "--from", "1", "--to", "2", "--file", str(file), "-v"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  outbound of B: accepted: accept, entry 2") for line in shown)
    assert f"    context resolver_multicast_incoming_port = 14001  [{file}:11]" in shown


def test_a_file_is_explained_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ["near/x", "--from", "1", "--to", "2", "--transport", "tcp", "--source-ip", "10.0.0.1"]
    assert main(["explain", *question, "--tcp-source-port", "0", "--file", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == ACCEPTED


def test_two_files_are_compared(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(file), "--against", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: no difference\n"
    other = tmp_path / "other.xml"
    changed = file.read_text().replace("<cost>2<", "<cost>4<").replace("<topic>open</topic>", "<topic>opened</topic>")
    other.write_text(changed.replace("<name>B<", "<name>C<").replace("<name>D<", "<name>E<"))
    assert main(["diff", str(other), "--against", str(file)]) == EXIT_DIFFERENT
    counted = f"{other}: 5 changes: 1 daemon restart, 1 portal gone, 2 live, 1 portal new"
    actions = ["change in place: A", "drain and remove: B", "start: C", "waits for a restart of the daemon: name"]
    assert capsys.readouterr().out.splitlines() == [f"{counted} (-v lists them)", *actions]
    assert main(["diff", str(other), "--against", str(file), "-v"]) == EXIT_DIFFERENT
    assert capsys.readouterr().out.splitlines() == [
        counted,
        f"  daemon/name: D -> E  [daemon restart; {other}:1]",
        f"  endpoint[B]: gone: endpoint in domain 2, cost 3  [was {file}:10]",
        f"  endpoint[A]/cost: 2 -> 4  [live; {other}:2]",
        f"  endpoint[A]/acl/inbound/ace[4]: accept topic open -> accept topic opened  [live; {other}:7]",
        f"  endpoint[C]: new: endpoint in domain 2, cost 3  [{other}:10]",
        *actions,
    ]


def test_what_cannot_be_compared_is_refused(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.xml"
    other.write_text(file.read_text().replace("<cost>2<", "<cost>none<").replace("<cost>3<", "<cost>-1<"))
    assert main(["diff", str(other), "--against", str(file)]) == EXIT_FAILED
    shown = capsys.readouterr().err
    assert f"tnwgdctl: {other}:2: <cost>: 'none' is not a whole number" in shown
    assert f"tnwgdctl: {other}:10: <cost>: -1 is out of range" in shown
    with pytest.raises(SystemExit) as usage:
        main(["diff", "--against", str(file)])
    assert usage.value.code == 2
    assert "--against needs FILE as well" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-3", "soon", "nan", "1e9", ""])
def test_a_time_to_confirm_that_is_none(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as usage:
        main(["reload", f"--confirm={seconds}"])
    assert usage.value.code == 2
    assert "--confirm" in capsys.readouterr().err

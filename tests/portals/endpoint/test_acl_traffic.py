"""Access control lists on real traffic: a DRO in one process, applications in its TRDs, time that moves by steps."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from dro.metrics.slots import Slot
from portals.decisions.messages import PATTERN_PCRE
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import Application, OneProcess, one_process

QUIET_MS = 3000
"""Longer than any step of topic resolution that the tests wait for."""


def acl(inbound: str = "", outbound: str = "") -> str:
    lists = [f"<{name}>{text}</{name}>" for name, text in (("inbound", inbound), ("outbound", outbound)) if text]
    return f"<acl>{''.join(lists)}</acl>"


def ace(match: str, *conditions: str) -> str:
    return f'<ace match="{match}">{"".join(conditions)}</ace>'


def topic(name: str) -> str:
    return f"<topic>{name}</topic>"


def pcre(pattern: str) -> str:
    return f"<pcre-pattern>{pattern}</pcre-pattern>"


ANY = ace("accept", pcre(""" .* """))


class Star:
    """Sources in TRD 1; receivers in TRDs 2 and 3."""

    def __init__(self, dro: OneProcess, topics: tuple[bytes, ...]) -> None:
        self.dro = dro
        self.topics = topics
        self.sender = dro.application(1)
        self.receivers = {2: dro.application(2), 3: dro.application(3)}
        self.sources = {name: self.sender.source(name) for name in topics}

    def want(self, *trds: int) -> None:
        for trd in trds:
            for name in self.topics:
                self.receivers[trd].context.want_topic(name)

    def match(self, pattern: bytes, *trds: int) -> None:
        for trd in trds:
            self.receivers[trd].context.want_pattern(pattern, PATTERN_PCRE, lambda name: True)

    def settle(self, wanted: Mapping[int, set[bytes]]) -> None:
        """Until exactly these topics are joined in these TRDs, and nothing else after a while."""
        self.dro.until(lambda: all(self.receivers[trd].topics() == names for trd, names in wanted.items()))
        self.dro.run(QUIET_MS)
        assert {trd: self.receivers[trd].topics() for trd in wanted} == wanted

    def send(self, count: int = 5) -> None:
        for source in self.sources.values():
            self.sender.send(source, count)
        self.dro.run(50)

    def delivered(self, trd: int) -> set[bytes]:
        """Topics of which something has come."""
        return {name for name in self.topics if self.receivers[trd].heard(name)}


@contextmanager
def star(
    folder: Path,
    stepper: Stepper,
    portal_xml: Mapping[int, str],
    *topics: bytes,
    transports: Mapping[int, str] | None = None,
) -> Iterator[Star]:
    with one_process(folder, stepper, portal_xml=portal_xml, transports=transports) as dro:
        yield Star(dro, topics)


def proxy_receivers(dro: OneProcess, portal: int) -> set[bytes]:
    return {symbol for symbol, _ in dro.portals[portal].core.proxy_receivers}


def test_what_is_rejected_inbound_goes_nowhere(tmp_path: Path, stepper: Stepper) -> None:
    lists = {1: acl(inbound=ace("reject", topic("BBB")) + ANY)}
    with star(tmp_path, stepper, lists, b"AAA", b"BBB") as s:
        s.want(2, 3)
        s.settle({2: {b"AAA"}, 3: {b"AAA"}})
        s.send()
        assert [s.delivered(trd) for trd in (2, 3)] == [{b"AAA"}, {b"AAA"}]
        assert proxy_receivers(s.dro, 1) == {b"AAA"}, "TRD 1 is not asked for what may not come in"
        assert proxy_receivers(s.dro, 2) == {b"AAA", b"BBB"}, "the list of portal 1 says nothing about TRD 2"
        assert s.dro.page(1, Slot.TOPICS_NOT_IN) == 1
        assert s.dro.page(1, Slot.SOURCES_NOT_IN) == 0, "what is not asked for is not judged"


def test_what_is_rejected_outbound_leaves_the_other_portals_alone(tmp_path: Path, stepper: Stepper) -> None:
    lists = {2: acl(outbound=ace("reject", topic("BBB")) + ANY)}
    with star(tmp_path, stepper, lists, b"AAA", b"BBB") as s:
        s.want(2, 3)
        s.settle({2: {b"AAA"}, 3: {b"AAA", b"BBB"}})
        s.send()
        assert [s.delivered(trd) for trd in (2, 3)] == [{b"AAA"}, {b"AAA", b"BBB"}]
        assert s.dro.page(2, Slot.TOPICS_NOT_OUT) == 1
        assert s.dro.page(3, Slot.TOPICS_NOT_OUT) == 0


def test_interest_that_is_rejected_outbound_makes_no_traffic_elsewhere(tmp_path: Path, stepper: Stepper) -> None:
    lists = {2: acl(outbound=ace("accept", topic("AAA")))}
    with star(tmp_path, stepper, lists, b"BBB") as s:
        s.dro.run(12_000)  # the requests of the start are over
        for said in s.dro.tr_sent.values():
            said.clear()
        s.want(2)
        s.dro.run(QUIET_MS)
        assert proxy_receivers(s.dro, 1) == proxy_receivers(s.dro, 3) == set()
        assert s.dro.tr_sent[1] == s.dro.tr_sent[3] == []


def test_a_list_for_one_direction_says_nothing_about_the_other(tmp_path: Path, stepper: Stepper) -> None:
    lists = {1: acl(outbound=ace("accept", topic("X"))), 2: acl(inbound=ace("accept", topic("X")))}
    with star(tmp_path, stepper, lists, b"AAA") as s:
        s.want(2, 3)
        s.settle({2: {b"AAA"}, 3: {b"AAA"}})


@pytest.mark.parametrize("portal", [1, 2])
def test_a_pattern_passes_and_its_topics_are_judged(tmp_path: Path, stepper: Stepper, portal: int) -> None:
    """Inbound at the portal of the sources, or outbound at that of the receiver: the same for a wildcard receiver."""
    entries = ace("reject", topic("desk.b")) + ace("accept", pcre("^desk"))
    lists = {portal: acl(inbound=entries) if portal == 1 else acl(outbound=entries)}
    with star(tmp_path, stepper, lists, b"desk.a", b"desk.b", b"other") as s:
        s.match(b".*", 2)
        s.settle({2: {b"desk.a"}})
        s.send()
        assert s.delivered(2) == {b"desk.a"}
        assert {name.decode() for name in proxy_receivers(s.dro, 1)} == {".*"}, "the pattern itself is not judged"
        assert s.dro.page(1, Slot.SOURCES_NOT_IN) == (2 if portal == 1 else 0)
        late = s.sender.source(b"desk.c")
        s.settle({2: {b"desk.a", b"desk.c"}})
        s.sender.send(late, 3)
        s.dro.run(50)
        assert s.receivers[2].heard(b"desk.c") == [0, 1, 2]


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_a_rejected_source_is_not_joined_and_another_of_the_topic_is(
    tmp_path: Path, stepper: Stepper, transport: str
) -> None:
    """The verdict depends on the session: the topic is asked for, one source is joined, the other is not."""
    with one_process(tmp_path, stepper, 2, transports={1: transport}) as dro:
        good, bad, receiver = dro.application(1), dro.application(1), dro.application(2)
        a, b = good.source(b"AAA"), bad.source(b"AAA")
        port = b.transport.address.nak_port if transport == "lbtrm" else b.transport.address.port  # type: ignore[union-attr]
        kind = "udp-source-port" if transport == "lbtrm" else "tcp-source-port"
        entries = ace("accept", topic("AAA"), f'<{kind} comparison="ne" value="{port}"/>')
        dro.reconfigure(dro.write({1: acl(inbound=entries)}))
        receiver.context.want_topic(b"AAA")
        dro.until(lambda: len(receiver.bound(b"AAA")) == 1)
        dro.run(QUIET_MS)
        assert [bound.otid for bound in receiver.bound(b"AAA")] == [a.otid]
        assert dro.page(1, Slot.SOURCES_NOT_IN) == 1
        before = dro.workers[1].counters[Slot.TOPIC_RCVD]
        bad.send(b, 20)
        good.send(a, 5)
        dro.run(100)
        assert receiver.heard(b"AAA") == [0, 1, 2, 3, 4]
        taken = dro.workers[1].counters[Slot.TOPIC_RCVD] - before
        assert taken == 5, "nothing of a rejected source is taken"


@pytest.mark.parametrize(
    ("entries", "passes"),
    [(ace("accept", topic("A.B")), b"A.B"), (ace("reject", topic("A.B")) + ANY, b"AxB")],
    ids=["accepted", "rejected"],
)
@pytest.mark.parametrize("direction", ["inbound", "outbound"])
def test_a_topic_with_a_dot_is_no_pattern(
    tmp_path: Path, stepper: Stepper, direction: str, entries: str, passes: bytes
) -> None:
    lists = {1: acl(inbound=entries)} if direction == "inbound" else {2: acl(outbound=entries)}
    with star(tmp_path, stepper, lists, b"A.B", b"AxB") as s:
        s.want(2)
        s.settle({2: {passes}})
        s.send()
        assert s.delivered(2) == {passes}


SESSION_CONDITIONS = {
    "transport": "lbt-ru", "source-ip": "192.0.2.1", "multicast-group": "239.255.255.1", "udp-source-port": "1",
    "udp-destination-port": "1", "tcp-source-port": "1", "xport-id": "1",
}  # fmt: skip
"""What no session of these tests has."""


@pytest.mark.parametrize("transport", ["lbtrm", "tcp", "lbtipc"])
def test_conditions_on_the_session_have_no_effect_outbound(tmp_path: Path, stepper: Stepper, transport: str) -> None:
    """An entry is left with its topic; one that has no topic decides nothing."""
    conditions = {k: f'<{k} comparison="eq" value="{value}"/>' for k, value in SESSION_CONDITIONS.items()}
    others = [condition.replace('"eq"', '"ne"') for condition in conditions.values()]
    entries = ace("reject", *others) + "".join(ace("accept", topic(k), c) for k, c in conditions.items())
    names = {kind.encode() for kind in conditions}
    transports = {1: transport, 2: transport}
    with star(tmp_path, stepper, {2: acl(outbound=entries)}, *names, b"other", transports=transports) as s:
        s.want(2)
        s.settle({2: names})
        s.send()
        assert s.delivered(2) == names


# the examples of the guide


def test_guide_only_one_topic(tmp_path: Path, stepper: Stepper) -> None:
    with star(tmp_path, stepper, {1: acl(inbound=ace("accept", topic("ABC")))}, b"ABC", b"ABCD", b"DEF") as s:
        s.want(2)
        s.settle({2: {b"ABC"}})


def test_guide_all_but_one_topic(tmp_path: Path, stepper: Stepper) -> None:
    entries = ace("reject", topic("ABC")) + ace("accept", topic(".*"))
    with star(tmp_path, stepper, {1: acl(inbound=entries)}, b"ABC", b"ABCD", b"DEF") as s:
        s.match(b".", 2)
        s.settle({2: {b"ABCD", b"DEF"}})


def test_guide_the_topics_of_one_user(tmp_path: Path, stepper: Stepper) -> None:
    entries = (
        ace("accept", topic("USER.user1")) + ace("reject", pcre(r"^USER\..*")) + ace("accept", pcre(".*"))
    )  # fmt: skip
    names = (b"USER.user1", b"USER.user2", b"USERS", b"news")
    with star(tmp_path, stepper, {1: acl(inbound=entries)}, *names) as s:
        s.match(b".", 3)
        s.want(2)
        s.settle({2: {b"USER.user1", b"USERS", b"news"}, 3: {b"USER.user1", b"USERS", b"news"}})


def test_guide_only_two_topics_out(tmp_path: Path, stepper: Stepper) -> None:
    with star(tmp_path, stepper, {2: acl(outbound=ace("accept", pcre("^A[AB]A$")))}, b"AAA", b"ABA", b"ACA") as s:
        s.want(2, 3)
        s.settle({2: {b"AAA", b"ABA"}, 3: {b"AAA", b"ABA", b"ACA"}})


def test_guide_entries_for_several_portals_in_one_file(tmp_path: Path, stepper: Stepper) -> None:
    """The guide's entry has two patterns and a topic, which AND joins to nothing; an entry for each is meant."""
    alone = "".join(ace("accept", c) for c in (pcre("global/.*/"), pcre("price/us/.*/"), topic("health_check")))
    (tmp_path / "dro_ace.xml").write_text(
        ace("accept", pcre("global/.*/"), pcre("price/us/.*/"), topic("health_check"))
    )
    include = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="./dro_ace.xml"/>'
    names = (b"global/a/b", b"price/us/ibm/x", b"price/uk/a/x", b"health_check")
    with star(tmp_path, stepper, {1: acl(inbound=include)}, *names) as s:
        s.match(b".", 2)
        s.settle({2: set()})
        s.dro.reconfigure(s.dro.write({1: acl(inbound=alone)}))
        s.settle({2: {b"global/a/b", b"price/us/ibm/x", b"health_check"}})


def test_guide_one_topic_on_one_transport(tmp_path: Path, stepper: Stepper) -> None:
    entries = (
        ace("accept", topic("ABC"))
        + ace("accept", topic("DEF"), '<transport value="lbt-rm" comparison="eq"/>')
        + ace("accept", topic("GHI"))
    )
    for transport, wanted in (("lbtrm", {b"ABC", b"DEF", b"GHI"}), ("tcp", {b"ABC", b"GHI"})):
        folder = tmp_path / transport
        folder.mkdir()
        with star(
            folder, stepper, {1: acl(inbound=entries)}, b"ABC", b"DEF", b"GHI", b"JKL", transports={1: transport}
        ) as s:
            s.want(2)
            s.settle({2: wanted})
            assert proxy_receivers(s.dro, 1) == {b"ABC", b"DEF", b"GHI"}, "DEF is asked for: its session decides"


# changes while it runs


def flow(s: Star, receivers: Mapping[int, Application], name: bytes, sent: int) -> None:
    """All of a topic came, once each and in order."""
    for receiver in receivers.values():
        assert receiver.heard(name) == list(range(sent))


def test_a_changed_list_moves_only_what_it_concerns(tmp_path: Path, stepper: Stepper) -> None:
    """AAA flows all the time, to both TRDs; BBB is rejected at each of the points in turn and comes back."""
    with star(tmp_path, stepper, {}, b"AAA", b"BBB") as s:
        s.want(2, 3)
        both = {b"AAA", b"BBB"}
        s.settle({2: both, 3: both})
        sent = 0

        def keep_sending() -> None:
            nonlocal sent
            for _ in range(20):
                s.sender.send(s.sources[b"AAA"], 5)
                sent += 5
                s.dro.run(10)

        keep_sending()
        sessions = [bound.transport for trd in (2, 3) for bound in s.receivers[trd].bound(b"AAA")]
        no_b = ace("reject", topic("BBB")) + ANY
        by_session = ace("reject", topic("BBB"), '<transport comparison="eq" value="lbtrm"/>') + ANY
        for lists, left in (
            ({1: acl(inbound=no_b)}, {2: {b"AAA"}, 3: {b"AAA"}}),
            ({2: acl(outbound=no_b)}, {2: {b"AAA"}, 3: both}),
            ({1: acl(inbound=by_session)}, {2: {b"AAA"}, 3: {b"AAA"}}),
            ({3: acl(outbound=no_b), 1: acl(outbound=ace("accept", topic("X")))}, {2: both, 3: {b"AAA"}}),
        ):
            s.dro.reconfigure(s.dro.write(lists))
            keep_sending()
            s.settle(left)
            s.dro.reconfigure(s.dro.write({}))
            keep_sending()
            s.settle({2: both, 3: both})
        flow(s, s.receivers, b"AAA", sent)
        assert [bound.transport for trd in (2, 3) for bound in s.receivers[trd].bound(b"AAA")] == sessions
        assert [s.dro.dropped(portal) for portal in (1, 2, 3)] == [0, 0, 0]
        s.send(3)
        assert s.delivered(2) == s.delivered(3) == both


def test_a_list_that_means_the_same_sends_nothing(tmp_path: Path, stepper: Stepper) -> None:
    entries = ace("reject", topic("BBB")) + ANY
    with star(tmp_path, stepper, {1: acl(inbound=entries), 2: acl(outbound=entries)}, b"AAA", b"BBB") as s:
        s.want(2, 3)
        s.settle({2: {b"AAA"}, 3: {b"AAA"}})
        s.dro.run(120_000)  # every schedule has come to its longest interval
        for portal in s.dro.portals.values():
            portal._ctx.channels.sent.clear()  # type: ignore[attr-defined]  # of the fake
        for said in s.dro.tr_sent.values():
            said.clear()
        same = ace("reject", topic("BBB")) + "\n\n" + ANY
        other = ace("reject", topic("BBB")) + ace("accept", pcre("A|B"))  # another list, the same verdicts
        for text in (same, other):
            s.dro.reconfigure(s.dro.write({1: acl(inbound=text), 2: acl(outbound=text)}))
            s.dro.stepper.settle()
        assert s.dro.tr_sent == {1: [], 2: [], 3: []}
        assert all(not worker.channels.sent for k, worker in s.dro.workers.items() if k)


def test_a_list_that_moved_in_its_file_is_named_by_its_new_lines(
    tmp_path: Path, stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "portals.decisions.acl_enforcement")
    with star(tmp_path, stepper, {2: acl(outbound=ace("reject", topic("BBB")))}, b"AAA") as s:
        moved = "\n" * 40 + acl(outbound=ace("reject", topic("BBB")))
        s.dro.reconfigure(s.dro.write({2: moved}))
        s.receivers[2].context.want_topic(b"BBB")
        s.dro.run(100)
    (told,) = [vars(record)["at"] for record in caplog.records if record.message == "topic not let out of the DRO"]
    line = int(told.rpartition(":")[2])
    assert "BBB" in (tmp_path / "dro.xml").read_text().splitlines()[line - 1]
    assert line > 40


def test_a_bad_pattern_changes_nothing(tmp_path: Path, stepper: Stepper) -> None:
    """It is refused when the file is read; were it not, the portal would refuse it before anything has changed."""
    from dataclasses import replace

    from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig
    from dro.errors import ConfigError

    with star(tmp_path, stepper, {}, b"AAA") as s:
        s.want(2)
        s.settle({2: {b"AAA"}})
        bad = AclConfig((AceConfig(True, (ConditionConfig("pcre-pattern", "*("),), "x.xml", 7),))
        first, *others = s.dro.config.portals
        changed = replace(s.dro.config, portals=(replace(first, acl=bad, cost=9), *others))
        with pytest.raises(ConfigError, match=r"x\.xml"):
            s.dro.reconfigure(changed)
        assert s.dro.portals[1]._config.cost == 1
        s.settle({2: {b"AAA"}})

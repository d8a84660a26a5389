"""Lists of an endpoint portal for operators: every row and field, filters, pages, and what changes between pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dro.bus import listing
from dro.bus.messages import ListRows, Rows
from dro.proto.interest.events import InterestGained, InterestLost
from portals.decisions.messages import (
    PATTERN_NONE,
    PATTERN_PCRE,
    PATTERN_REGEX,
    ForwardStart,
    InterestAdded,
    InterestRemoved,
    SourceGone,
    SourceSeen,
)
from portals.shell.listing import DOMAINS_MAX
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker
from tests.rigs.one_endpoint import THERE, OneEndpoint, one_endpoint
from tests.rigs.one_process import one_process

LISTS = """<acl>
  <inbound><ace match="reject"><topic>barred</topic></ace>
    <ace match="reject"><pcre-pattern>^tcp</pcre-pattern><transport comparison="eq" value="tcp"/></ace>
    <ace match="accept"><pcre-pattern>.</pcre-pattern></ace></inbound>
  <outbound><ace match="reject"><topic>kept</topic></ace><ace match="reject"><topic>barred</topic></ace>
    <ace match="accept"><pcre-pattern>.</pcre-pattern></ace></outbound>
</acl>"""
Asked = list[dict[str, Any]]


def ask(worker: FakeWorker, what: str, text: str = "", cursor: int = 0) -> Rows:
    answer = worker.told["on_list"](ListRows(1, what, text, cursor))
    assert isinstance(answer, Rows)
    return answer


def rows(worker: FakeWorker, what: str, text: str = "") -> Asked:
    """All pages of a list."""
    answer = ask(worker, what, text)
    found: Asked = json.loads(answer.rows)
    while answer.cursor:
        answer = ask(worker, what, text, answer.cursor)
        found += json.loads(answer.rows)
    return found


def topics(worker: FakeWorker, text: str = "") -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows(worker, "topics", text))


def seen(handle: int, topic: bytes, otid: int) -> SourceSeen:
    return SourceSeen(handle, bytes([otid]) * 32, topic, THERE, 0, 1, b"")


def test_a_topic_is_listed_once_whatever_makes_it_known(tmp_path: Path, stepper: Stepper) -> None:
    """Heard, asked for, or offered by the sibling, here because a pattern matches it."""
    with one_process(tmp_path, stepper, 2) as dro:
        here, beyond = dro.application(1), dro.application(2)
        for topic in (b"by.name", b"by.pattern", b"unwanted"):
            here.source(topic)
        for topic in (b"by.name", b"missing"):
            beyond.context.want_topic(topic)
        beyond.context.want_pattern(b"pattern$", PATTERN_PCRE, lambda topic: topic.endswith(b"pattern"))
        dro.until(lambda: beyond.topics() == {b"by.name", b"by.pattern"})
        dro.run(100)
        assert topics(dro.workers[1]) == [
            ("P1", "by.name", 1, 1, [], [2], 0, ""),
            ("P1", "by.pattern", 1, 1, [], [], 0, ""),
            ("P1", "missing", 0, 0, [], [2], 0, ""),
            ("P1", "unwanted", 1, 0, [], [], 0, ""),
        ]
        assert topics(dro.workers[2]) == [
            ("P2", "by.name", 0, 0, [2], [], 1, ""),
            ("P2", "by.pattern", 0, 0, [2], [], 1, ""),
            ("P2", "missing", 0, 0, [2], [], 0, ""),
        ]
        assert topics(dro.workers[2], "by.") == topics(dro.workers[2])[:2]
        assert [row[1] for row in topics(dro.workers[1], "i")] == ["missing"]


def test_the_topics_of_both_directions_and_what_the_lists_reject(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper, LISTS) as one:
        core = one.portal.core
        for topic in (b"kept", b"barred", b"both"):
            core.on_interest(InterestGained((topic, PATTERN_NONE)), 0)
        core.on_interest(InterestGained((b"both", PATTERN_NONE), 7), 0)
        core.on_interest(InterestGained((b"bo", PATTERN_REGEX), 8), 0)
        wanted = [InterestAdded(topic, PATTERN_NONE, THERE) for topic in (b"barred", b"both", b"only.asked")]
        one.hear(*wanted, InterestAdded(b"^a", PATTERN_PCRE, THERE))
        one.hear(seen(1, b"both", 1), seen(2, b"both", 2), seen(3, b"offered", 3))
        assert topics(one.worker) == [
            ("P1", "barred", 0, 0, [1], [], 0, "inbound and outbound"),
            ("P1", "both", 0, 0, [1, 7, 8], [THERE], 2, ""),
            ("P1", "kept", 0, 0, [1], [], 0, "outbound"),
            ("P1", "offered", 0, 0, [], [], 0, ""),
            ("P1", "only.asked", 0, 0, [], [THERE], 0, ""),
        ]
        for text, found in (("both", 1), ("b", 2), ("offered", 1), ("asked", 1), ("^", 0)):
            assert len(topics(one.worker, text)) == found, text
        row = rows(one.worker, "topics", "both")[0]
        assert [*row] == [field.name for field in listing.TopicRow.__dataclass_fields__.values()]


def sources(one: OneEndpoint, text: str = "") -> list[dict[str, Any]]:
    return sorted(rows(one.worker, "sources", text), key=lambda row: str(row["topic"]))


def test_a_source_is_listed_with_its_session_and_what_becomes_of_it(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper, LISTS, transport="tcp") as one:
        application = one.dro.application(1)
        made = {topic: application.source(topic) for topic in (b"joined", b"unwanted", b"tcp.barred")}
        wanted = [InterestAdded(topic, PATTERN_NONE, THERE) for topic in (b"joined", b"tcp.barred")]
        one.hear(*wanted)
        one.dro.until(lambda: any(row["state"] == "joined" for row in sources(one)))
        (told,) = [message for message in one.sent() if isinstance(message, SourceSeen)]
        before = {row["topic"]: row for row in sources(one)}
        one.hear(ForwardStart(told.handle))
        states = {"joined": "joined", "tcp.barred": "rejected", "unwanted": "not wanted"}
        assert {row["topic"]: row["state"] for row in sources(one)} == states
        for row in sources(one):
            source = made[str(row["topic"]).encode()]
            is_joined = row["topic"] == "joined"
            assert row == {
                "portal": "P1",
                "topic": row["topic"],
                "otid": source.otid.hex(),
                "domain_id": 1,
                "source": source.source_string,
                "state": row["state"],
                "forwarded_to": ["beyond"] if is_joined else [],
                "hop_count": 0,
                "cost": 0,
            }
        assert before["joined"]["forwarded_to"] == []
        assert [row["topic"] for row in sources(one, "unw")] == ["unwanted"]


def test_interest_is_listed_by_domain(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper, LISTS) as one:
        core = one.portal.core
        for symbol, domain_id in (
            ((b"AAA", PATTERN_NONE), 7), ((b"AAA", PATTERN_NONE), 0), ((b"kept", PATTERN_NONE), 0),
            ((b"kept", PATTERN_PCRE), 0), ((b"A.*", PATTERN_REGEX), 5), ((b"B\xff", PATTERN_NONE), 0),
        ):  # fmt: skip
            core.on_interest(InterestGained(symbol, domain_id), 0)
        expected = [
            ("P1", "AAA", "topic", 1, "local", False),
            ("P1", "AAA", "topic", 7, "remote", False),
            ("P1", "kept", "topic", 1, "local", True),
            ("P1", "kept", "pcre", 1, "local", False),
            ("P1", "A.*", "regex", 5, "remote", False),
            ("P1", "B\ufffd", "topic", 1, "local", False),
        ]
        found = rows(one.worker, "interest")
        assert [tuple(row.values()) for row in found] == expected
        assert [*found[0]] == ["portal", "symbol", "kind", "domain_id", "via", "rejected"]
        assert [tuple(row.values()) for row in rows(one.worker, "interest", "kept")] == expected[2:4]


def test_proxies_are_listed_with_their_domains_and_what_feeds_them(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper, "<source-deletion-delay>60000</source-deletion-delay>") as one:
        core = one.portal.core
        for topic in (b"fed", b"waits"):
            core.on_interest(InterestGained((topic, PATTERN_NONE)), 0)
        one.hear(
            InterestAdded(b"AAA", PATTERN_NONE, THERE),
            InterestAdded(b"A.*", PATTERN_REGEX, THERE),
            seen(1, b"fed", 1),
            seen(2, b"waits", 2),
        )
        one.hear(SourceGone(2))
        strings = {otid[0]: found[0].source_string for otid, found in one.portal.sources.by_otid.items()}
        expected = [
            ("P1", "receiver", "AAA", "topic", [THERE], "", "", "", 0),
            ("P1", "receiver", "A.*", "regex", [THERE], "", "", "", 0),
            ("P1", "source", "fed", "topic", [THERE], "01" * 32, strings[1], "beyond", 0),
            ("P1", "source", "waits", "topic", [THERE], "02" * 32, strings[2], "", 0),
        ]
        found = rows(one.worker, "proxies")
        assert [tuple(row.values()) for row in found] == expected
        assert [*found[0]] == ["portal", "proxy", "symbol", "kind", "domains", "otid", "source", "fed_by", "fragments"]
        for text, count in (("A", 2), ("AAA", 1), ("fed", 1), ("waits", 1), ("x", 0)):
            assert len(rows(one.worker, "proxies", text)) == count, text


def test_a_list_that_does_not_exist_is_refused(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        assert ask(one.worker, "routes") == Rows(1, "[]", 0, "P1 lists no routes")


def test_what_goes_between_two_pages_is_left_out(
    tmp_path: Path, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four things one is on the first page; the second and the last go before the next page is asked for."""
    monkeypatch.setattr(listing, "PAGE_ROWS", 1)
    names = [b"t1", b"t2", b"t3", b"t4"]
    with one_endpoint(tmp_path, stepper) as one:
        core, application = one.portal.core, one.dro.application(1)
        for name in names:
            application.source(name)
        one.dro.until(lambda: len(sources(one)) == 4)
        for number, name in enumerate(names):
            core.on_interest(InterestGained((name, PATTERN_NONE)), 0)
            one.hear(InterestAdded(name, PATTERN_NONE, THERE), seen(number, name, number))
        cache = one.portal.receiving.resolver.cache

        def shortened(what: str) -> list[str]:
            first = ask(one.worker, what)
            for number in (1, 3):
                if what == "sources":
                    cache.drop_topic(names[number])
                if what == "interest":
                    core.on_interest(InterestLost((names[number], PATTERN_NONE)), 0)
                if what == "proxies":
                    one.hear(InterestRemoved(names[number], PATTERN_NONE, THERE))
            found = json.loads(first.rows)
            while first.cursor:
                first = ask(one.worker, what, cursor=first.cursor)
                found += json.loads(first.rows)
            return [row.get("topic", row.get("symbol")) for row in found]

        assert shortened("sources") == ["t1", "t3"]
        assert shortened("proxies") == ["t1", "t3", "t1", "t2", "t3", "t4"]
        assert shortened("interest") == ["t1", "t3"]
        first = ask(one.worker, "proxies")
        while '"proxy": "source"' not in first.rows:
            first = ask(one.worker, "proxies", cursor=first.cursor)
        assert json.loads(first.rows)[0]["symbol"] == "t1"
        core.on_interest(InterestLost((names[2], PATTERN_NONE)), 0)
        stepper.settle()
        assert ask(one.worker, "proxies", cursor=first.cursor) == Rows(1, "[]", 0, "")


def test_a_row_names_no_more_than_256_domains(tmp_path: Path, stepper: Stepper) -> None:
    with one_endpoint(tmp_path, stepper) as one:
        for domain_id in range(300, 0, -1):
            one.portal.core.on_interest(InterestGained((b"AAA", PATTERN_NONE), domain_id), 0)
        assert rows(one.worker, "topics")[0]["wanted_by"] == [*range(1, 257)]
        assert DOMAINS_MAX == 256

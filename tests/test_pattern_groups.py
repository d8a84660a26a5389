"""Long lists of patterns: the index leaves nothing out that fits, and asks little."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro import pattern_groups
from dro.config.dro_xml.acl import Acl
from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig
from dro.pattern_groups import BUILD_COST, GROUP, PatternIndex, PatternSet, is_joinable
from dro.patterns import PCRE, REGEX, Pattern, PatternError, PatternLimit, Search, joined

POOL = (
    r"(a)\1", r"(?<n>a)\k<n>", r"(?i)A", r"a(?i)b|c", r"(?x)a b # )", r"\Qa|b", r"(?=ab)", r"(?<!a)b",
    r"(?|(a)|(b))\1", r"(a|b(?1))", r"[(?x]", r"\\(?:1)", r"(?s).", r"^$", r"(?P<n>b)(?P=n)", r"a\b", r"(?>a|ab)b",
    "^a", "b$", "ab", "a.b", "a+b?", "^ab$", "A", "1", r"\d", "[ab]{2}", "a|b",
)  # fmt: skip
PATTERNS = st.one_of(st.text("ab.*+?|()[]^$\\1", max_size=6), st.sampled_from(POOL))
TOPICS = st.text("abAB1 |#", max_size=5)


def compiled(pattern: str) -> Pattern:
    return Pattern(pattern.encode(), PCRE)


def valid(pattern: str) -> bool:
    try:
        compiled(pattern)
    except PatternError:
        return False
    return True


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^desk.*", True), (r"a\.b", True), ("(a|b)+", True), ("(?:a)", True), ("(?i)a", True), ("(?i:a)b", True),
        ("(?=a)b", True), ("(?<=a)b", True), (r"\\(a)", True), (r"[a\]b]", True), (r"\d+\w\.", True), ("", True),
        (r"(a)\1", False), (r"\\\1", False), (r"(?<n>a)", False), ("(?'n'a)", False), ("(?1)", False), ("(?R)", False),
        (r"\g{1}", False), (r"\k<n>", False), ("(*COMMIT)a", False), (r"\Qa", False), ("(?x)a", False),
        ("(?ix)a", False), ("(?(1)a|b)", False), ("(?|a)", False), (r"\c)", False),
    ],
)  # fmt: skip
def test_which_patterns_may_stand_beside_others(pattern: str, expected: bool) -> None:
    assert is_joinable(pattern.encode()) == expected


def test_posix_expressions_may_stand_beside_others() -> None:
    assert is_joinable(Pattern(rb"^a+(b|c){2}[[:alpha:]]\.$", REGEX).pcre)


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.none(), PATTERNS.filter(valid)), min_size=1, max_size=GROUP * 3), st.lists(TOPICS, max_size=4)
)
def test_whatever_fits_is_a_candidate_in_order(patterns: list[str | None], topics: list[str]) -> None:
    found = PatternIndex(
        [(None if pattern is None else compiled(pattern), number) for number, pattern in enumerate(patterns)]
    )
    for topic in topics:
        name = topic.encode()
        candidates = list(found.candidates(name))
        assert candidates == sorted(candidates)
        fitting = {n for n, p in enumerate(patterns) if p is None or compiled(p)(name)}
        assert fitting <= set(candidates)


def test_a_long_list_decides_as_its_entries_one_by_one() -> None:
    rng = random.Random(7)
    names = ["a", "ab", "abab", "B", "aA", "1", "", "b a", "|"]

    def condition() -> ConditionConfig:
        if rng.random() < 0.3:
            return ConditionConfig("topic", rng.choice(names))
        return ConditionConfig("pcre-pattern", rng.choice(POOL))

    seen = set()
    for _ in range(150):
        rare = tuple(AceConfig(False, (ConditionConfig("pcre-pattern", f"x{n}"),)) for n in range(rng.randrange(40)))
        some = [AceConfig(rng.random() < 0.5, tuple(condition() for _ in range(rng.randint(1, 3)))) for _ in range(20)]
        aces = (*some[:2], *rare, *some[2:])
        alone = [Acl.of(AclConfig(outbound=(one,))) for one in aces]
        whole = Acl.of(AclConfig(outbound=aces))
        for topic in names:
            verdict = whole.outbound(topic)
            first = next((n for n, one in enumerate(alone, start=1) if one.outbound(topic).ace), 0)
            assert (verdict.ace, verdict.accept) == (first, bool(first) and aces[first - 1].accept)
            seen.add(min(first, 50))
    assert len(seen) > 20, "entries at all places have decided"


@pytest.mark.parametrize(("topic", "most"), [("none", 1), ("desk00007.x", 40), ("desk00999.x", 40)])
def test_a_thousand_patterns_cost_few_searches(topic: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0

    def counting(patterns: list[bytes]) -> Search | None:
        made = joined(patterns)

        def search(name: bytes) -> bool:
            nonlocal searches
            searches += 1
            assert made is not None
            return made(name)

        return search

    monkeypatch.setattr(pattern_groups, "joined", counting)
    found = PatternIndex([(compiled(f"^desk{n:05}"), n) for n in range(1000)])
    candidates = list(found.candidates(topic.encode()))
    assert searches + len(candidates) <= most + GROUP
    assert (7 in candidates) == (topic == "desk00007.x")


def test_a_joined_search_that_gives_up_leaves_the_decision_to_the_entries() -> None:
    """The topic makes one pattern of the group give up; the others still decide, and that one rejects."""
    slow = "(a+)+$"
    topic = "a" * 60 + "b"
    with pytest.raises(PatternLimit):
        compiled(slow).search(topic.encode())
    fillers = tuple(AceConfig(False, (ConditionConfig("pcre-pattern", f"^x{n}"),)) for n in range(3 * GROUP))
    good = AceConfig(True, (ConditionConfig("pcre-pattern", "b$"),))
    bad = AceConfig(True, (ConditionConfig("pcre-pattern", slow),))
    assert Acl.of(AclConfig(outbound=(*fillers, good, bad))).outbound(topic).accept
    assert not Acl.of(AclConfig(outbound=(*fillers, bad, good))).outbound(topic).accept
    assert Acl.of(AclConfig(outbound=(*fillers, bad, good))).outbound("b").accept


def test_a_topic_is_compared_with_few_of_many_patterns_that_come_and_go() -> None:
    asked = 0

    class Asked(Pattern):
        def __call__(self, topic: bytes) -> bool:
            nonlocal asked
            asked += 1
            return super().__call__(topic)

    patterns: PatternSet[int] = PatternSet()
    for key in range(1000):
        patterns.add(key, Asked(b"^topic%d\\." % key, PCRE))
    for _ in range(BUILD_COST + 1):
        asked = 0
        assert patterns.matching(b"topic7.x") == [7]
    assert asked == GROUP, "those of one group"
    for key in range(900):
        patterns.remove(key)
    asked = 0
    assert patterns.matching(b"topic7.x") == []
    assert (patterns.matching(b"topic950.x"), len(patterns)) == ([950], 100)
    assert asked < 100


def test_an_index_is_built_seldom_while_patterns_come(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    class Counted(PatternIndex[int]):
        def __init__(self, entries: Sequence[tuple[Pattern | None, int]]) -> None:
            built.append(len(entries))
            super().__init__(entries)

    monkeypatch.setattr(pattern_groups, "PatternIndex", Counted)
    patterns: PatternSet[int] = PatternSet()
    for key in range(1000):
        patterns.add(key, Pattern(b"%d" % key, PCRE))
        patterns.matching(b"topic")
    assert len(built) < 100


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=120), st.lists(TOPICS, max_size=3))
def test_a_set_finds_what_each_pattern_finds(moves: list[tuple[bool, int]], topics: list[str]) -> None:
    pool = [p for p in POOL if valid(p)]
    patterns: PatternSet[int] = PatternSet()
    plain: dict[int, Pattern | Search] = {}
    for is_added, key in moves:
        if is_added and key not in plain:
            plain[key] = matcher = compiled(pool[key % len(pool)]) if key % 3 else (lambda topic: b"a" in topic)
            patterns.add(key, matcher)
        elif not is_added and key in plain:
            del plain[key]
            patterns.remove(key)
    for topic in topics:
        assert patterns.matching(topic.encode()) == [key for key, matcher in plain.items() if matcher(topic.encode())]

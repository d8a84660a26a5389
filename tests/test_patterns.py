"""Topic patterns: one engine, asked through all that use it; what is refused; and that no pattern takes long.

Each row goes through a wildcard receiver, the interest of a DRO, a query for the sources of a context, an access
control list and, where PCRE is meant, the options of a UM XML file. POSIX expressions are compared with glibc as well.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.config.dro_xml.acl import Acl
from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig
from dro.config.um.options import UmOptions
from dro.config.um.xml_document import Matcher as UmMatcher
from dro.errors import ConfigError
from dro.patterns import PATTERN_MAX_BYTES, PCRE, REGEX, Pattern, PatternError, PatternLimit, joined, posix_to_pcre
from dro.proto.interest.events import InterestGained
from dro.um.fragment.resolution import TopicResolution
from dro.um.message.wildcard_receiver import PatternReceiver
from portals.decisions.core import PortalCore
from portals.decisions.effects import OpenProxySource
from portals.decisions.messages import SourceSeen
from portals.shell.matchers import Matchers
from tests.builders.routes import whole

BOTH = [
    (rb"IBM", b"quotes.IBM.N", True),
    (rb"^IBM", b"quotes.IBM", False),
    (rb"^29west\.example\.multi\.[01]$", b"29west.example.multi.0", True),
    (rb"^29west\.example\.multi\.[01]$", b"29west.example.multi.2", False),
    (rb"a.c", b"xabcx", True),
    (rb"(ab|cd)+$", b"zzabcd", True),
    (rb"^(ab|cd)+$", b"abcdx", False),
    (rb"^a{2,3}$", b"aaa", True),
    (rb"^a{2,3}$", b"aaaa", False),
    (rb"[[:digit:]]{3}", b"x123", True),
    (rb"[^[:alpha:]]", b"abc", False),
    (rb"[]a]", b"]", True),
    (rb"[a-]", b"-", True),
    (rb"", b"anything", True),
    (rb"x*", b"", True),
    (rb"\.", b"a.b", True),
    (rb"\bIBM\b", b"q.IBM.r", True),
    (rb"\bIBM\b", b"qIBM", False),
    (rb"^\w+$", b"a_1", True),
]

PCRE_ONLY = [
    (rb"\Qa.b*\E$", b"xa.b*", True),
    (rb"\Qa.b*\E$", b"xaxb", False),
    (rb"\Qab\E+$", b"abbb", True),
    (rb"^(?<year>\d{4})-\g{year}$", b"2024-2024", True),
    (rb"^(?P<a>x)(?P=a)$", b"xx", True),
    (rb"^(a|b)\1$", b"ab", False),
    (rb"^(a|b)\1$", b"bb", True),
    (rb"(?i)ibm", b"IbM", True),
    (rb"(?i:i)bm", b"IBM", False),
    (rb"(?i)[^a]", b"A", False),
    (rb"(?i)[^a]", b"aA", False),
    (rb"a(?i)b|c", b"C", True),
    (rb"(?x) a b # comment", b"ab", True),
    (rb"(?s)a.b", b"a\nb", True),
    (rb"a.b", b"a\nb", False),
    (rb"^b", b"a\nb", False),
    (rb"(?m)^b$", b"a\nb\nc", True),
    (rb"a$", b"a\n", True),
    (rb"a\z", b"a\n", False),
    (rb"a\Z", b"a\n", True),
    (rb"\Aa", b"ba", False),
    (rb"\h", b"a\tb", True),
    (rb"\H", b"\t ", False),
    (rb"\R", b"a\r\n", True),
    (rb"\x41\x{42}\103\o{104}\t", b"ABCD\t", True),
    (rb"[\x41-\x43]+$", b"ABC", True),
    (rb"[\d.]+$", b"1.5", True),
    (rb"[\d-z]", b"-", True),
    (rb"[[:^digit:]]", b"123", False),
    (rb"[\Q^]\E]", b"]", True),
    (rb"a++b", b"aab", True),
    (rb"a++ab", b"aaab", False),
    (rb"(?>a+)ab", b"aaab", False),
    (rb"^(?!quotes\.).*$", b"quotes.IBM", False),
    (rb"^(?!quotes\.).*$", b"trades.IBM", True),
    (rb"(?<=a)b", b"ab", True),
    (rb"(?<!a)b", b"ab", False),
    (rb"foo\Kbar", b"foobar", True),
    (rb"a{,3}", b"a{,3}", True),
    (rb"a{x}", b"a{x}", True),
    (rb"(?#comment)a", b"a", True),
    (rb"(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)\10", b"abcdefghijj", True),
    (rb"\Bb", b"ab", True),
    (rb"\N+\n", b"a\n", True),
    (rb"^(?:(?:a|b)*c)*$", b"abcbac", True),
    (rb"(.*)x(.*)y(.*)z", b"axbyc", False),
    (rb"^\d++$", b"123", True),
    (rb"^(?>a+)a", b"aaa", False),
    (rb"^(?<n>a)\k<n>$", b"aa", True),
    (rb"^(\((?:[^()]|(?1))*\))$", b"(a(b))", True),
    (rb"^(?(?=a)ab|cd)$", b"cd", True),
    (rb"(?|a(.)|b(.))\1", b"bxx", True),
    (rb"a(?C1)b", b"ab", True),
    (rb"\p{Lu}", b"aBc", True),
    (rb"(?i)(a)\1", b"aA", True),
    (rb"^.$", "é".encode(), False),
    (rb"^x{,3}$", b"xx", False),
    (rb"^x{,3}$", b"x{,3}", True),
    (rb"^x{ 2 }$", b"xx", False),
    (rb"^[x{,3}]+$", b"{,3}x", True),
    (rb"^\x4\x$", b"\x04\x00", True),
    (rb"^[\x4\x{41}]+$", b"A\x04", True),
    (rb"^\Q\x{41}{,3}(*A)\E$", rb"\x{41}{,3}(*A)", True),
    (rb"^[(*A)]+$", b"(*A)", True),
    (rb"^[^]\d-]+$", b"a", True),
    (rb"^\(*A", b"((A", True),
    (rb"(?x)a|b # the rest (", b"b", True),
    (rb"^\Qa|b", b"a|b", True),
    (rb".*a|b", b"b", True),
    (rb".*+a", b"bba", False),
    (rb".*?a", b"bba", True),
    (rb".*", b"\n", True),
    (rb"^.*b", b"a\nb", False),
]

REGEX_ONLY = [
    (rb"[\d]", b"\\", True),
    (rb"[\d]", b"7", False),
    (rb"a.b", b"a\nb", True),
    (rb"a$", b"a\n", False),
    (rb"a|b|", b"", True),
    (rb"(^a|b)c", b"xbc", True),
    (rb"a\{2\}", b"a{2}", True),
    (rb"(^|\.)IBM(\.|$)", b"q.IBM", True),
    (rb"\<IBM\>", b"q.IBM.r", True),
    (rb"\<IBM\>", b"q.IBMr", False),
    (rb"^\s\S\W\B", b" a.", True),
    (rb"\s", b"s", False),
    (rb"\`a\'", b"a", True),
    (rb"\`a\'", b"ba", False),
    (rb"^(a|b)\1$", b"bb", True),
    (rb"^(a|b)\1$", b"ab", False),
    (rb"^a{,3}$", b"aa", True),
    (rb"^a{,}$", b"aaaaa", True),
    (rb"\d", b"7", False),
    (rb"\d", b"d", True),
    (rb"^a+?$", b"", True),
    (rb"^(a|)*b]}$", b"aab]}", True),
]


HOSTILE = [
    rb"(a|aa)+$", rb"(a+)+$", rb"(?:a?){30}a{30}!$", rb"(a|a)*b", rb"(a|aa)+b", rb".*.*.*.*.*.*x",
    b"a?" * 60 + b"a" * 60 + b"b", rb"(.*)*,(.*)*,(.*)*!!", rb"(a|b)*a(a|b){200}c", rb"(?:a|aa){1,200}\R",
    rb"(?:\w?){13}(?=!a)", rb"(?:a?){10}!!", b"(" * 240 + b"a" + b")*" * 240 + b"!!", b"(" * 200 + b"a" + b")" * 200,
    b"(?:" + b"|".join([b"a"] * 480) + b")+!!", b"|".join([b"ab!"] * 250), b"|".join(b"%d!" % n for n in range(200)),
    b"(?=(.*)*b)" * 90, rb"(a*)*\1b", rb"^(.*)(.*)(.*)\1\2\3x$", rb"(?!(a+)+b)c", rb"^(a|(?1)a)*b$",
    rb"((?:a|(?1)(?1))*)b", b"(a)?" * 200 + b"b", b"[a-y]*" * 100 + b"z$", rb"(?:a(?<=a{1,200}b)|a)*!!",
    b"(?<=" + b"|".join(b"a" * n for n in range(1, 40)) + b")c", rb"a{65535}", rb"(?:a{0,65535}b)", b"\xff" * 1024,
    b"\0" * 500 + b"(\0+)+$", rb"(?:(?:a{99}){99}){99}",
]  # fmt: skip
HOSTILE_POSIX = [
    rb"(a|aa)+$", rb"((a+)+)+$", rb"(a?){30}a{30}!$", rb"(a*)*\1b", b"a*" * 400 + b"b", b"(" * 200 + b"a" + b")*" * 200,
    b"|".join([b"a"] * 500) + b"!!", b"[" * 1000, b"\\" * 1023, b"a" * 1000 + b"*" * 24, b"((a{200}){200}){200}",
]  # fmt: skip


# the users of a pattern


def by_wildcard_receiver(pattern: bytes, kind: int) -> Callable[[bytes], bool]:
    made: list[Pattern] = []
    core = SimpleNamespace(
        resolution=SimpleNamespace(on_pattern_limit=lambda pattern: None),
        matched_topics=lambda *key: (),
        want_pattern=lambda pattern, kind, matcher, options: made.append(matcher),
    )
    owner = SimpleNamespace(options=UmOptions(), core=core, on_wildcard_opened=lambda receiver: None)
    options = UmOptions().with_("wildcard_receiver", "pattern_type", "pcre" if kind == PCRE else "regex")
    PatternReceiver(cast("Any", owner), pattern.decode(), cast("Any", None), options)
    return made[0]


def by_query_for_sources(pattern: bytes, kind: int) -> Callable[[bytes], bool]:
    matcher = TopicResolution.compile(cast("Any", SimpleNamespace(on_pattern_limit=None)), pattern, kind)
    assert matcher is not None
    return matcher


def by_interest(pattern: bytes, kind: int) -> Callable[[bytes], bool]:
    """Interest in the TRD of this portal decides whether a source of a sibling gets a proxy source here."""
    matchers = Matchers(cast("Any", None))

    def is_wanted(topic: bytes) -> bool:
        core = PortalCore(1, 1, 1, source_deletion_delay_ns=0, matcher=matchers)
        core.on_routes(1, whole([(1, 2, 1, 2), (2, 1, 2, 1)]), 0)
        core.on_sibling_up(2, 1, 0, 0, 0)
        core.on_interest(InterestGained((pattern, kind), 1), 0)
        core.on_message(2, 1, SourceSeen(1, bytes(32), topic, 2, 0, 0, b""), 0)
        return any(isinstance(effect, OpenProxySource) for effect in core.take_effects())

    return is_wanted


def by_acl(pattern: bytes, kind: int) -> Callable[[bytes], bool]:
    condition = ConditionConfig("pcre-pattern" if kind == PCRE else "regex-pattern", pattern.decode())
    acl = Acl.of(AclConfig(outbound=(AceConfig(True, (condition,)),)))
    return lambda topic: acl.outbound(topic.decode()).accept


def by_um_xml(pattern: bytes, kind: int) -> Callable[[bytes], bool]:
    assert kind == PCRE
    matcher = UmMatcher(None, pattern.decode(), "pcre", True, (), ())
    return lambda topic: matcher.matches_topic(topic.decode())


USERS = [by_wildcard_receiver, by_query_for_sources, by_interest, by_acl, by_um_xml]
ROWS = [
    *((PCRE, *row) for row in (*BOTH, *PCRE_ONLY)),
    *((REGEX, *row) for row in (*BOTH, *REGEX_ONLY)),
]


@pytest.mark.parametrize(("kind", "pattern", "topic", "expected"), ROWS)
def test_every_user_gives_the_same_answer(kind: int, pattern: bytes, topic: bytes, expected: bool) -> None:
    users = USERS if kind == PCRE else USERS[:-1]
    if not pattern:
        users = [by_query_for_sources, by_acl]  # no receiver has an empty pattern
    assert {user.__name__: user(pattern, kind)(topic) for user in users} == {user.__name__: expected for user in users}


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (rb"(?R)", "'(?R)' is not supported"),
        (rb"a|b(?0)", "'(?0)' is not supported"),
        (rb"a\g<0>?", "is not supported"),
        (rb"(?&x)", "non-existent"),
        (rb"(?(1)a|b)", "non-existent"),
        (rb"(*SKIP)", "'(*' is not supported"),
        (rb"(*LIMIT_MATCH=10000000)(a+)+$", "'(*' is not supported"),
        (rb"(*UTF)(*LIMIT_MATCH=10000000)(a+)+$", "'(*' is not supported"),
        (rb"a(*PRUNE)b", "'(*' is not supported"),
        (rb"a)(*LIMIT_MATCH=10000000)(?:(a+)+$", "not supported"),
        (rb"a)(?:b", "unmatched closing"),
        (rb"\X", "not supported"),
        (rb"\u0041", "not supported"),
        (rb"\C", "disabled"),
        (rb"(", "missing closing"),
        (rb")", "unmatched"),
        (rb"[a", "missing terminating ]"),
        (rb"[b-a]", "out of order"),
        (rb"*a", "does not follow"),
        (rb"a{3,2}", "out of order"),
        (rb"\2", "non-existent"),
        (rb"(?<n>a)(?<n>b)", "same name"),
        (rb"\k<n>", "non-existent"),
        (rb"[[:nope:]]", "unknown POSIX class"),
        (rb"[[.x.]]", "collating"),
        (rb"\x{100}", "too large"),
        (rb"\x{4g}", "not supported"),
        (rb"(?<=a*)b", "lookbehind"),
        (b"a\\", "at end of pattern"),
        (b"(" * 300 + b")" * 300, "too deeply"),
        (b"a" * (PATTERN_MAX_BYTES + 1), "1025 bytes, at most 1024"),
        (rb"(?:a*[ab]{500}){500}", "too large"),
        (b"(?:(?:a{99}){99}){99}", "too large"),
    ],
)
def test_what_is_refused_says_why(pattern: bytes, why: str) -> None:
    with pytest.raises(PatternError, match=re.escape(why)) as caught:
        Pattern(pattern, PCRE)
    assert caught.value.remedy
    with pytest.raises(ConfigError, match=f"<pcre-pattern>.*{re.escape(why)}"):
        by_acl(pattern, PCRE)


@pytest.mark.parametrize(
    "pattern",
    [rb"a{", rb"{1}", rb"a{}", rb"a{x}", rb"(a", rb"a)", rb"\1", rb"(a\1)", rb"*a", rb"a|*b", rb"(+a)", rb"^*", rb"\b*",
     b"a\\", rb"[a", rb"[[:word:]]", rb"[[.a.]]", rb"[[=a=]]", rb"[b-a]", rb"a{3,2}"],
)  # fmt: skip
def test_what_is_no_posix_expression(pattern: bytes) -> None:
    with pytest.raises(PatternError):
        Pattern(pattern, REGEX)


@pytest.mark.parametrize(
    ("posix", "pcre"),
    [
        (rb"a.c", rb"(?s)a.c"),
        (rb"^a$", rb"(?s)\Aa\z"),
        (rb"[\d]", rb"(?s)[\\d]"),
        (rb"[]a]", rb"(?s)[\]a]"),
        (rb"[^]a]", rb"(?s)[^\]a]"),
        (rb"[[:alpha:]_]", rb"(?s)[[:alpha:]_]"),
        (rb"\d\.", rb"(?s)d\."),
        (rb"ab{2}", rb"(?s)a(?:b{2})"),
        (rb"a{,3}", rb"(?s)(?:a{0,3})"),
        (rb"a+?", rb"(?s)(?:(?:a+)?)"),
        (rb"x(ab|c)*+", rb"(?s)x(?:(?:(ab|c)*)+)"),
        (rb"\<a\>", rb"(?s)\b(?=\w)a\b(?<=\w)"),
        (rb"\`a\'", rb"(?s)\Aa\z"),
    ],
)
def test_posix_expressions_in_the_syntax_of_pcre2(posix: bytes, pcre: bytes) -> None:
    assert posix_to_pcre(posix) == pcre


# glibc

_LIBC = ctypes.CDLL(None)
_EXTENDED, _NOSUB = 1, 8


def glibc_finds(pattern: bytes, topic: bytes) -> bool | None:
    """What `regcomp` and `regexec` say; None for what is no pattern to them."""
    compiled = ctypes.create_string_buffer(256)
    if _LIBC.regcomp(compiled, pattern, _EXTENDED | _NOSUB):
        return None
    try:
        return bool(_LIBC.regexec(compiled, topic, 0, None, 0) == 0)
    finally:
        _LIBC.regfree(compiled)


POSIX_ATOMS = st.sampled_from(
    ["a", "b", ".", "_", "-", "[ab]", "[^a]", "[]a]", "[[:alpha:]-]", r"[\w]", r"\w", r"\W", r"\s", r"\S", r"\b", r"\B",
     r"\<", r"\>", r"\`", r"\'", "^", "$", r"\.", r"\d", "]", "}", ""]
)  # fmt: skip
POSIX_PATTERNS = st.recursive(
    st.builds(
        str.__add__, POSIX_ATOMS, st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{,2}", "{1,}", "{,}", "{x"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.builds(
            lambda parts, count: f"({'|'.join(parts)}){count}",
            st.lists(inner, min_size=1, max_size=3),
            st.sampled_from(["", "", "*", "?", "{2}"]),
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=400)
@given(POSIX_PATTERNS, st.lists(st.text("ab_- .7d]}w\\", max_size=6), min_size=1, max_size=4))
def test_posix_expressions_are_those_of_glibc(pattern: str, topics: list[str]) -> None:
    if re.search(r"\)[*?{]", pattern) and re.search(r"\\[bB<>`']", pattern):
        return  # glibc errs: to it `([\w]|\b){2}` finds a lone backslash
    try:
        matches = Pattern(pattern.encode(), REGEX)
    except PatternError:
        assert glibc_finds(pattern.encode(), b"") is None
        return
    for topic in topics:
        assert glibc_finds(pattern.encode(), topic.encode()) is matches.search(topic.encode())


# limits


@pytest.mark.parametrize(
    ("pattern", "kind"), [*((pattern, PCRE) for pattern in HOSTILE), *((pattern, REGEX) for pattern in HOSTILE_POSIX)]
)
@pytest.mark.parametrize("topic", [b"a" * 242 + b"!", b"ab" * 121, b",a" * 121, b"\0\xff" * 121])
def test_no_pattern_takes_long(pattern: bytes, kind: int, topic: bytes) -> None:
    """Processor time of the thread, one of some runs: other processes take away caches and the core."""

    def once() -> float:
        start = time.thread_time()
        with suppress(PatternError):
            Pattern(pattern, kind)(topic)
        return time.thread_time() - start

    assert any(once() < 0.001 for _ in range(1000))


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        (rb"^(\w+\.)*\w+$", b"ab.c" * 60, True),
        (rb"^(\w+\.)*\w+$", b"ab.c" * 60 + b"!", False),
        (rb".*\.orders\..*", b"abcdefg." * 30, False),
        (rb".*\.orders\..*", b"abcdefg." * 29 + b"orders.x", True),
        (rb"[A-Z]+\.N$", b"ABCDEFGHI" * 27, False),
        (b"^(?:" + b"|".join(b"desk%03d" % n for n in range(120)) + rb")\.", b"desk119.x", True),
        (b"|".join(b"desk%03d" % n for n in range(120)), b"quotes.equities.desk119.x", True),
        (b"|".join(b"desk%03d" % n for n in range(120)), b"quotes.equities.deskabc.xyz.and.more", False),
        (rb"^([a-z]{2,20}\.){1,8}[a-z]+$", b"quotes.equities.ibm.n", True),
    ],
)
def test_ordinary_patterns_stay_below_the_limit(pattern: bytes, topic: bytes, expected: bool) -> None:
    assert Pattern(pattern, PCRE).search(topic) is expected


def test_a_search_that_is_given_up_counts_as_no_match_and_is_reported() -> None:
    given_up: list[bytes] = []
    matches = Pattern(rb"(a|aa)+$", PCRE, given_up.append)
    topic = b"a" * 242 + b"!"
    assert not matches(topic)
    assert given_up == [rb"(a|aa)+$"]
    with pytest.raises(PatternLimit):
        matches.search(topic)
    assert matches(b"xaa"), "the next topic is judged anew"
    assert len(given_up) == 1


def test_a_context_reports_patterns_of_others_that_are_given_up() -> None:
    reported: list[bytes] = []
    context = SimpleNamespace(on_pattern_limit=reported.append)
    matches = TopicResolution.compile(cast("Any", context), rb"(a+)+$", REGEX)
    assert matches is not None
    assert not matches(b"a" * 242 + b"!")
    assert reported == [rb"(a+)+$"]


def test_patterns_in_one_expression() -> None:
    search = joined([rb"^a", rb"b$"])
    assert search is not None
    assert [search(topic) for topic in (b"ax", b"xb", b"xax")] == [True, True, False]
    assert joined([b"a" * 1000 + b"{1000}"] * 1000) is None, "too large for one"


def test_an_unknown_pattern_type_is_refused() -> None:
    with pytest.raises(PatternError, match="type 3"):
        Pattern(b"a", 3)


@given(st.binary(max_size=40), st.sampled_from([PCRE, REGEX]), st.binary(max_size=20))
def test_any_bytes_make_a_matcher_or_an_error(pattern: bytes, kind: int, topic: bytes) -> None:
    try:
        matches = Pattern(pattern, kind)
    except PatternError:
        return
    assert matches(topic) in (True, False)


@given(st.text("ab()[]{}\\Q*+?|^$.:-<>=!#012,PEx", max_size=30), st.sampled_from([PCRE, REGEX]))
def test_any_punctuation_makes_a_matcher_or_an_error(pattern: str, kind: int) -> None:
    try:
        matches = Pattern(pattern.encode(), kind)
    except PatternError:
        return
    assert matches(b"ab0") in (True, False)

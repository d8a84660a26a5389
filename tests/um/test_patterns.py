"""Topic patterns: what matches, what is refused, and that no pattern takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.um.pattern_search import Automaton
from dro.um.pattern_syntax import PcreParser
from dro.um.patterns import PCRE, REGEX, PatternError, compile_pattern

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
]


@pytest.mark.parametrize(("pattern", "topic", "expected"), BOTH)
@pytest.mark.parametrize("kind", [PCRE, REGEX])
def test_both_syntaxes_agree_on_the_common_part(pattern: bytes, topic: bytes, expected: bool, kind: int) -> None:
    assert compile_pattern(pattern, kind)(topic) is expected


@pytest.mark.parametrize(("pattern", "topic", "expected"), PCRE_ONLY)
def test_pcre(pattern: bytes, topic: bytes, expected: bool) -> None:
    assert compile_pattern(pattern, PCRE)(topic) is expected


@pytest.mark.parametrize(("pattern", "topic", "expected"), REGEX_ONLY)
def test_posix(pattern: bytes, topic: bytes, expected: bool) -> None:
    assert compile_pattern(pattern, REGEX)(topic) is expected


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (rb"(?R)", "recursion"),
        (rb"(a)(?1)", "recursion"),
        (rb"(?&x)", "call"),
        (rb"(?(1)a|b)", "condition"),
        (rb"(*SKIP)", "verbs"),
        (rb"(?|a|b)", "branch reset"),
        (rb"(?C1)", "callout"),
        (rb"\p{L}", "not supported"),
        (rb"\X", "not supported"),
        (rb"(", ") is missing"),
        (rb")", "unmatched"),
        (rb"[a", "unexpected end"),
        (rb"[b-a]", "out of order"),
        (rb"*a", "nothing to repeat"),
        (rb"a{3,2}", "out of order"),
        (rb"\2", "does not exist"),
        (rb"(?<n>a)(?<n>b)", "two groups"),
        (rb"\k<n>", "no group"),
        (rb"[[:nope:]]", "unknown class"),
        (rb"[[.x.]]", "collating"),
        (rb"\x{100}", "beyond one byte"),
        (rb"(?<=a*)b", "look-behind"),
        (b"a\\", "unexpected end"),
        (b"(" * 200 + b")" * 200, "groups inside"),
        (b"a" * 1025, "1024"),
        (rb"(?!(a+)+b)", "too long"),
        (rb"(a*)*\1b", "too long"),
        (rb"(?:a*[ab]{500}){500}", "too large"),
    ],
)
def test_what_is_refused_says_why(pattern: bytes, why: str) -> None:
    with pytest.raises(PatternError, match=re.escape(why)):
        compile_pattern(pattern, PCRE)


@pytest.mark.parametrize("pattern", [rb"a{", rb"{1}", rb"\d", rb"\<a", rb"(a", rb"a)", rb"\1"])
def test_posix_refuses(pattern: bytes) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern, REGEX)


def test_an_unknown_pattern_type_is_refused() -> None:
    with pytest.raises(PatternError, match="type 3"):
        compile_pattern(b"a", 3)


@pytest.mark.parametrize(
    "pattern",
    [
        rb"(a+)+$",
        rb"(a|a)*b",
        rb"(a|aa)+b",
        rb".*.*.*.*.*.*x",
        b"a?" * 60 + b"a" * 60 + b"b",
        rb"(.*)*,(.*)*,(.*)*!",
        rb"(a|b)*a(a|b){200}c",
    ],
)
def test_no_pattern_takes_long(pattern: bytes) -> None:
    matches = compile_pattern(pattern, PCRE)
    topic = b"a" * 254 + b"!"
    start = time.thread_time()
    assert not matches(topic)
    assert time.thread_time() - start < 2


ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "\\w", "\\b", "\\B", "^", "$", "\\A", "\\Z", "\\.", "(?m:^)", "(?m:$)"]
)
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "*?"])
PATTERNS = st.recursive(
    st.builds(lambda a, q: a + q, ATOMS, QUANTIFIERS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.builds(
            lambda parts, q: "(" + "|".join(parts) + ")" + q, st.lists(inner, min_size=1, max_size=3), QUANTIFIERS
        ),
    ),
    max_leaves=8,
)


@given(PATTERNS, st.text("ab.\n", max_size=8))
def test_the_automaton_agrees_with_backtracking(pattern: str, text: str) -> None:
    topic = text.encode()
    try:
        reference = re.compile(pattern.replace("\\Z", "(?=\\n?\\Z)").replace("\\B", "(?!\\b)").encode())
    except re.error:
        return
    automaton = Automaton(PcreParser(pattern.encode()).parse())
    assert automaton.search(topic) is (reference.search(topic) is not None)
    assert automaton.search(topic) is compile_pattern(pattern.encode(), PCRE)(topic)


@given(st.binary(max_size=40), st.sampled_from([PCRE, REGEX]), st.binary(max_size=20))
def test_any_bytes_make_a_matcher_or_an_error(pattern: bytes, kind: int, topic: bytes) -> None:
    try:
        matches = compile_pattern(pattern, kind)
    except PatternError:
        return
    assert matches(topic) in (True, False)


@given(st.text("ab()[]{}\\Q*+?|^$.:-<>=!#012,PEx", max_size=30), st.sampled_from([PCRE, REGEX]))
def test_any_punctuation_makes_a_matcher_or_an_error(pattern: str, kind: int) -> None:
    try:
        matches = compile_pattern(pattern.encode(), kind)
    except PatternError:
        return
    assert matches(b"ab0") in (True, False)

"""UM options of proxies: what is asked for whom, and what of the answer is a proxy's own."""

from __future__ import annotations

from typing import cast

import pytest

from dro.config.um.layers import ContextOptions
from dro.config.um.options import UmOptions
from portals.decisions.messages import PATTERN_PCRE, PATTERN_REGEX
from portals.endpoint.options import ProxyOptions

OWN = {scope: (scope, "an_option") for scope in ("source", "receiver", "wildcard_receiver", "context")}


class ByTopic:
    """Options of one context by topic: values of every scope; notes what is asked."""

    def __init__(self, *, by_topic: bool = True) -> None:
        self.by_topic = by_topic
        self.asked: list[tuple[str, ...]] = []

    def _answer(self, *what: str) -> UmOptions:
        self.asked.append(what)
        return UmOptions({key: len(what[1]) for key in OWN.values()})

    def source(self, name: str) -> UmOptions:
        return self._answer("source", name)

    def receiver(self, name: str) -> UmOptions:
        return self._answer("receiver", name)

    def wildcard_receiver(self, name: str, kind: str) -> UmOptions:
        return self._answer("wildcard_receiver", name, kind)


def made(sending: ByTopic, receiving: ByTopic) -> ProxyOptions:
    return ProxyOptions(cast(ContextOptions, sending), cast(ContextOptions, receiving))


def test_a_proxy_has_the_options_of_its_own_kind_and_equal_ones_are_one_object() -> None:
    sending, receiving = ByTopic(), ByTopic()
    options = made(sending, receiving)
    answers = {
        "source": [options.source(b"abc"), options.source(b"xyz")],
        "receiver": [options.receiver(b"abc"), options.receiver(b"xyz")],
        "wildcard_receiver": [options.wildcard_receiver(b"abc", kind) for kind in (PATTERN_PCRE, PATTERN_REGEX)],
    }
    for scope, (one, other) in answers.items():
        assert one is other
        assert one == UmOptions({OWN[scope]: 3})
    assert sending.asked == [("source", "abc"), ("source", "xyz")]
    wildcards = [("wildcard_receiver", "abc", kind) for kind in ("pcre", "regex")]
    assert receiving.asked == [("receiver", "abc"), ("receiver", "xyz"), *wildcards]


@pytest.mark.parametrize("who", ["sending", "receiving"])
def test_a_context_without_options_by_topic_is_not_asked(who: str) -> None:
    plain, other = ByTopic(by_topic=False), ByTopic()
    options = made(plain, other) if who == "sending" else made(other, plain)
    found = [options.source(b"abc"), options.receiver(b"abc"), options.wildcard_receiver(b"abc", PATTERN_PCRE)]
    assert [one is None for one in found] == ([True, False, False] if who == "sending" else [False, True, True])
    assert plain.asked == []

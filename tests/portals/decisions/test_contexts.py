"""Questions for contexts and their answers, between a portal, its siblings and what is behind it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.config.dro_xml.model import ContextQueryConfig
from dro.proto.unicast.contexts import ContextPlace, KnownContexts
from dro.wire.lbmc.dro_blocks import (
    CTXINFO_ADDRESS,
    CTXINFO_CTXINST,
    CTXINFO_NAME,
    CTXINFO_PROXY,
    CTXINFO_QUERY,
    CtxInfo,
)
from portals.decisions.immediate.contexts import (
    AGAIN_NS,
    BEHIND,
    HOPS_MAX,
    NAMES_MAX,
    QUESTIONS_MAX,
    AskSiblings,
    ContextQuestions,
    Effect,
    Tell,
)

CONFIG = ContextQueryConfig(periodic_interval_ms=300_000, max_contexts=20, interval_ms=200, timeout_s=900)
INSTANCE, NAME, SIBLING, OTHER = b"instance", b"store", 4, 5
ANSWER = CtxInfo(1, 2, 3, INSTANCE, name=NAME, flags=CTXINFO_ADDRESS | CTXINFO_CTXINST | CTXINFO_NAME)
BY_NAME = CtxInfo(name=NAME, flags=CTXINFO_QUERY | CTXINFO_NAME)
BY_INSTANCE = CtxInfo(ctxinst=INSTANCE, flags=CTXINFO_QUERY | CTXINFO_CTXINST)


class Scene:
    def __init__(self, config: ContextQueryConfig = CONFIG) -> None:
        self.core = ContextQuestions(config, KnownContexts())
        self.now_ns = s(1)

    def info(self, info: CtxInfo, came_from: int = BEHIND) -> list[Effect]:
        self.core.on_info(info, came_from, self.now_ns)
        return self.run(0)

    def run(self, ns: int) -> list[Effect]:
        end_ns = self.now_ns + ns
        while (deadline := self.core.next_deadline()) is not None and deadline <= end_ns:
            self.now_ns = max(self.now_ns, deadline)
            self.core.on_timer(self.now_ns)
        self.now_ns = end_ns
        return self.core.take_effects()


def test_an_instance_that_the_data_path_misses_is_asked_of_the_siblings() -> None:
    scene = Scene()
    scene.core.on_unknown(INSTANCE, scene.now_ns)
    assert scene.run(0) == [AskSiblings(BY_INSTANCE)]
    assert scene.info(replace(ANSWER, name=b"", flags=CTXINFO_ADDRESS | CTXINFO_CTXINST), SIBLING) == []
    assert scene.core.known.find(INSTANCE, scene.now_ns) == ContextPlace(3, 1, 2)
    assert len(scene.core) == 0


def test_a_question_from_behind_goes_to_the_siblings_one_dro_further_and_the_answer_back() -> None:
    scene = Scene()
    assert scene.info(BY_NAME) == [AskSiblings(replace(BY_NAME, hop_count=1))]
    told = replace(ANSWER, flags=ANSWER.flags | CTXINFO_PROXY)
    assert scene.info(ANSWER, SIBLING) == [Tell(BEHIND, told)]
    (answer,) = scene.info(BY_NAME)
    assert answer == Tell(BEHIND, told), "from now on it is known"


def test_a_question_of_siblings_goes_behind_and_the_answer_to_all_of_them() -> None:
    scene = Scene()
    assert scene.info(BY_NAME, SIBLING) == [Tell(BEHIND, BY_NAME)]
    assert scene.info(BY_NAME, OTHER) == [], "it was asked just now"
    told = replace(ANSWER, hop_count=1, flags=ANSWER.flags | CTXINFO_PROXY)
    assert scene.info(ANSWER) == [Tell(SIBLING, told), Tell(OTHER, told)]
    assert scene.info(ANSWER) == []


def test_a_loop_of_dros_ends() -> None:
    scene = Scene()
    scene.info(BY_NAME)
    assert scene.info(replace(BY_NAME, hop_count=3)) == []
    scene.run(AGAIN_NS)
    assert scene.info(BY_NAME) != []
    assert scene.info(replace(BY_INSTANCE, hop_count=HOPS_MAX)) == []


def test_twenty_are_asked_at_once_and_the_next_later() -> None:
    scene = Scene()
    for number in range(50):
        scene.core.on_unknown(b"inst%04d" % number, scene.now_ns)
    assert [len(scene.run(ns)) for ns in (0, ms(199), ms(1), ms(200), ms(200))] == [20, 0, 20, 10, 0]


def test_what_nobody_answers_is_asked_every_five_minutes_and_given_up_after_fifteen() -> None:
    scene = Scene()
    assert scene.info(BY_NAME) != []
    assert [len(scene.run(s(300))) for _ in range(4)] == [1, 1, 0, 0]
    assert (len(scene.core), scene.core.next_deadline()) == (0, None)


def test_numbers_of_the_configuration_hold_when_they_change() -> None:
    scene = Scene()
    scene.core.set_options(ContextQueryConfig(0, 0, 0, 60))
    assert scene.core.known.forget_ns == s(60)
    for number in range(3):
        scene.core.on_unknown(b"inst%04d" % number, scene.now_ns)
    assert len(scene.run(ms(10))) == 3
    assert scene.core.next_deadline() is None, "no rounds"


def test_an_answer_without_an_address_says_nothing() -> None:
    scene = Scene()
    scene.info(BY_NAME, SIBLING)
    assert scene.info(replace(ANSWER, flags=CTXINFO_CTXINST | CTXINFO_NAME)) == []
    assert scene.info(replace(ANSWER, flags=CTXINFO_ADDRESS | CTXINFO_NAME)) == []
    assert len(scene.core) == 1


infos = st.builds(
    CtxInfo,
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFF),
    st.integers(0, 5),
    st.sampled_from([INSTANCE, b"another!", bytes(8)]),
    st.integers(0, 255),
    name=st.sampled_from([b"", NAME]),
    flags=st.integers(0, 0xFFFF),
)


@given(st.lists(st.tuples(infos, st.sampled_from([BEHIND, SIBLING]), st.integers(0, s(100))), max_size=40))
def test_whatever_is_said_makes_no_question_of_an_answer(said: list[tuple[CtxInfo, int, int]]) -> None:
    scene = Scene()
    for info, came_from, ns in said:
        effects = scene.info(info, came_from)
        if not info.flags & CTXINFO_QUERY:
            assert not any(isinstance(effect, AskSiblings) for effect in effects)
        scene.run(ns)


def test_strangers_cannot_fill_it() -> None:
    scene = Scene()
    for number in range(NAMES_MAX + 100):
        scene.info(replace(BY_NAME, name=b"%d" % number))
    assert len(scene.core) == QUESTIONS_MAX
    known = KnownContexts(contexts_max=3)
    for number in range(5):
        known.learn(b"inst%04d" % number, ContextPlace(1, 2, 3), 0)
    assert len(known) == 3
    assert known.find(b"inst0000", 0) is None
    assert not known.learn(b"nowhere!", ContextPlace(1, 2, 0), 0)

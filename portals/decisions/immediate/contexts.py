"""Questions for contexts, by instance or by name, and their answers, between a portal, its siblings and what is behind.

State: the open questions with those who asked, and the contexts with a name that were heard of. Common to all kinds of
portals: an endpoint portal asks and tells its TRD, a peer portal the other DRO.

    the data path misses an instance    the siblings are asked
    asked from behind                   answered if known, else the siblings are asked, one DRO further
    asked by a sibling                  answered if known, else what is behind is asked
    an answer                           is learnt, and told to all who asked

A question is asked again every `periodic_interval` and forgotten after `timeout`; `max_contexts` are asked at once, the
next ones `interval` later. Source: DRO guide, `<context-query>`; peer link notes, section 12; forwarding notes, 10.
Guess: who asks whom; a question that comes again within a second is not asked again, which ends loops; the limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

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

QUESTIONS_MAX: Final = 1024
NAMES_MAX: Final = 4096
ASKERS_MAX: Final = 64
AGAIN_NS: Final = s(1)
HOPS_MAX: Final = 255
BEHIND: Final = -1
"""In place of a worker: the TRD or the other DRO."""

Key = tuple[bytes, bytes]
"""Instance and name of a context, of which one is empty."""


@dataclass(frozen=True, slots=True)
class AskSiblings:
    info: CtxInfo


@dataclass(frozen=True, slots=True)
class Tell:
    """A question or an answer for a sibling, or for what is `BEHIND`."""

    worker: int
    info: CtxInfo


Effect = AskSiblings | Tell


@dataclass(slots=True)
class _Question:
    since_ns: int
    hop_count: int
    askers: set[int]
    asked_ns: int | None = None
    is_waiting: bool = False  # for its turn to be asked


class ContextQuestions:
    """See the module text."""

    def __init__(self, config: ContextQueryConfig, known: KnownContexts) -> None:
        self.known = known
        self._questions: dict[Key, _Question] = {}
        self._names: dict[bytes, bytes] = {}  # name -> instance
        self._waiting: deque[Key] = deque()
        self._next_group_ns = 0
        self._next_round_ns: int | None = None
        self._effects: list[Effect] = []
        self.set_options(config)

    def __len__(self) -> int:
        """Open questions."""
        return len(self._questions)

    def set_options(self, config: ContextQueryConfig) -> None:
        self._period_ns = ms(config.periodic_interval_ms)
        self._group = max(config.max_contexts, 1)
        self._gap_ns = ms(max(config.interval_ms, 1))
        self.known.forget_ns = self._timeout_ns = s(config.timeout_s)

    # input

    def on_unknown(self, instance: bytes, now_ns: int) -> None:
        """A message for that context could not be sent on."""
        self._ask((instance, b""), 0, frozenset(), now_ns)

    def on_info(self, info: CtxInfo, came_from: int, now_ns: int) -> None:
        """A question or an answer of a sibling, or from `BEHIND`."""
        if came_from == BEHIND:
            if info.hop_count >= HOPS_MAX:
                return
            info = replace(info, hop_count=info.hop_count + 1)
        if not info.flags & CTXINFO_QUERY:
            self._on_answer(info, came_from, now_ns)
        elif (key := _key(info)) is not None:
            answer = self._answer(key, now_ns)
            if answer is None:
                self._ask(key, info.hop_count, {came_from}, now_ns)
            else:
                self._effects.append(Tell(came_from, answer))

    def _answer(self, key: Key, now_ns: int) -> CtxInfo | None:
        instance, name = key
        instance = instance or self._names.get(name, b"")
        place = self.known.find(instance, now_ns)
        if place is None:
            return None
        flags = CTXINFO_ADDRESS | CTXINFO_CTXINST | CTXINFO_PROXY | (CTXINFO_NAME if name else 0)
        return CtxInfo(place.ip, place.port, place.domain_id, instance, name=name, flags=flags)

    def _on_answer(self, info: CtxInfo, came_from: int, now_ns: int) -> None:
        if not info.flags & CTXINFO_ADDRESS or not info.flags & CTXINFO_CTXINST:
            return
        name = info.name if info.flags & CTXINFO_NAME else b""
        self.known.learn(info.ctxinst, ContextPlace(info.domain_id, info.ip, info.port), now_ns)
        if name:
            self._names.pop(name, None)
            self._names[name] = info.ctxinst
            if len(self._names) > NAMES_MAX:
                del self._names[next(iter(self._names))]
        told = replace(info, flags=info.flags & ~CTXINFO_QUERY | CTXINFO_PROXY)
        for key in ((info.ctxinst, b""), (b"", name)):
            question = self._questions.pop(key, None)
            for asker in sorted(question.askers - {came_from}) if question is not None else ():
                self._effects.append(Tell(asker, told))

    # questions

    def _ask(self, key: Key, hop_count: int, askers: Iterable[int], now_ns: int) -> None:
        question = self._questions.get(key)
        if question is None:
            if len(self._questions) >= QUESTIONS_MAX:
                return
            question = self._questions[key] = _Question(now_ns, hop_count, set())
        if len(question.askers) < ASKERS_MAX:
            question.askers.update(askers)
        if question.asked_ns is None or now_ns - question.asked_ns >= AGAIN_NS:
            self._put(key, question)
        if self._next_round_ns is None and self._period_ns:
            self._next_round_ns = now_ns + self._period_ns

    def _put(self, key: Key, question: _Question) -> None:
        if not question.is_waiting:
            question.is_waiting = True
            self._waiting.append(key)

    def _send(self, key: Key, question: _Question, now_ns: int) -> None:
        question.is_waiting = False
        question.asked_ns = now_ns
        instance, name = key
        flags = CTXINFO_QUERY | (CTXINFO_NAME if name else CTXINFO_CTXINST)
        info = CtxInfo(ctxinst=instance or bytes(8), name=name, hop_count=question.hop_count, flags=flags)
        if not question.askers or BEHIND in question.askers:
            self._effects.append(AskSiblings(info))
        if question.askers - {BEHIND}:
            self._effects.append(Tell(BEHIND, info))

    # time

    def next_deadline(self) -> int | None:
        group_ns = self._next_group_ns if self._waiting else None
        return min((at for at in (group_ns, self._next_round_ns) if at is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        if self._next_round_ns is not None and now_ns >= self._next_round_ns:
            self._round(now_ns)
        if not self._waiting or now_ns < self._next_group_ns:
            return
        self._next_group_ns = now_ns + self._gap_ns
        for _ in range(min(self._group, len(self._waiting))):
            key = self._waiting.popleft()
            if (question := self._questions.get(key)) is not None:
                self._send(key, question, now_ns)

    def _round(self, now_ns: int) -> None:
        for key, question in list(self._questions.items()):
            if now_ns - question.since_ns >= self._timeout_ns:
                del self._questions[key]
            else:
                self._put(key, question)
        self._next_round_ns = now_ns + self._period_ns if self._questions and self._period_ns else None

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _key(info: CtxInfo) -> Key | None:
    if info.flags & CTXINFO_NAME and info.name:
        return b"", info.name
    return (info.ctxinst, b"") if info.flags & CTXINFO_CTXINST else None

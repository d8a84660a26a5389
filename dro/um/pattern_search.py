"""Search by automaton: whether a pattern occurs in a topic, in time proportional to the topic.

`Automaton` holds the pattern as a list of instructions and builds the states of a deterministic automaton as topics
ask for them; when they become too many it starts over. Used for patterns whose search by backtracking could take for
ever, since anybody in the TRD may send a pattern. Called by `dro.um.patterns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.um.pattern_syntax import WORD, Alt, At, Capture, Chars, Node, PatternError, Repeat, Seq, Where

INSTRUCTIONS_MAX: Final = 2048
TRANSITIONS_MAX: Final = 4096  # kept at once
_END: Final = 256  # what follows the last byte
_LAST_NEWLINE: Final = 257  # a newline that is the last byte
_START_KIND, _WORD_KIND, _NEWLINE_KIND, _OTHER_KIND = range(4)  # what stands before a place


@dataclass(frozen=True, slots=True)
class _Take:
    """Go on at `then` with a byte of the set."""

    mask: int
    then: int


@dataclass(frozen=True, slots=True)
class _If:
    where: Where
    then: int


@dataclass(slots=True)
class _Split:
    ways: list[int]


@dataclass(frozen=True, slots=True)
class _Found:
    pass


class _State:
    __slots__ = ("before", "next", "places")

    def __init__(self, places: frozenset[int], before: int) -> None:
        self.places = places
        self.before = before
        self.next: dict[int, _State | bool] = {}


def _kind(byte: int) -> int:
    if byte == 10:
        return _NEWLINE_KIND
    return _WORD_KIND if WORD >> byte & 1 else _OTHER_KIND


def _holds(where: Where, before: int, following: int) -> bool:
    """Does the condition hold between a byte of kind `before` and the symbol `following`?"""
    match where:
        case Where.START:
            return before == _START_KIND
        case Where.LINE_START:
            return before in (_START_KIND, _NEWLINE_KIND)
        case Where.END:
            return following == _END
        case Where.END_OR_NEWLINE:
            return following in (_END, _LAST_NEWLINE)
        case Where.LINE_END:
            return following in (_END, _LAST_NEWLINE, 10)
    is_edge = (before == _WORD_KIND) != (following < 256 and bool(WORD >> following & 1))
    return is_edge == (where is Where.WORD_EDGE)


class Automaton:
    """Raises: PatternError when the pattern is too large or needs more than an automaton."""

    def __init__(self, pattern: Node) -> None:
        self._program: list[_Take | _If | _Split | _Found] = [_Found()]
        self._begin = self._compile(pattern, 0)
        self._reset()

    def _reset(self) -> None:
        self._count = 0
        self._states: dict[tuple[frozenset[int], int], _State] = {}
        self._first = self._state(frozenset(), _START_KIND)

    # the program

    def _add(self, instruction: _Take | _If | _Split) -> int:
        if len(self._program) >= INSTRUCTIONS_MAX:
            raise PatternError("the pattern is too large once its repetitions are written out")
        self._program.append(instruction)
        return len(self._program) - 1

    def _compile(self, node: Node, then: int) -> int:
        """The place where `node`, followed by what is at `then`, begins."""
        match node:
            case Chars(mask):
                return self._add(_Take(mask, then))
            case At(where):
                return self._add(_If(where, then))
            case Seq(items):
                for item in reversed(items):
                    then = self._compile(item, then)
                return then
            case Alt(branches):
                return self._add(_Split([self._compile(branch, then) for branch in branches]))
            case Capture(item):
                return self._compile(item, then)
            case Repeat(item, low, high, _):
                return self._repeat(item, low, high, then)
            case _:
                raise PatternError("the pattern needs backtracking")

    def _repeat(self, item: Node, low: int, high: int | None, then: int) -> int:
        if max(low, high or 0) > INSTRUCTIONS_MAX:
            raise PatternError("the pattern is too large once its repetitions are written out")
        if high is None:
            loop = _Split([])
            at = self._add(loop)
            loop.ways = [self._compile(item, at), then]
            then = at
        else:
            end = then
            for _ in range(high - low):
                then = self._add(_Split([self._compile(item, then), end]))
        for _ in range(low):
            then = self._compile(item, then)
        return then

    # the search

    def search(self, topic: bytes) -> bool:
        """Does the pattern match anywhere in the topic?"""
        state = self._first
        last = len(topic) - 1
        for at, byte in enumerate(topic):
            symbol = _LAST_NEWLINE if byte == 10 and at == last else byte
            following = state.next.get(symbol)
            if following is None:
                following = self._step(state, symbol)
            if following is True:
                return True
            assert isinstance(following, _State)
            state = following
        end = state.next.get(_END)
        if end is None:
            end = self._step(state, _END)
        return end is True

    def _state(self, places: frozenset[int], before: int) -> _State:
        key = (places, before)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State(places, before)
        return state

    def _step(self, state: _State, symbol: int) -> _State | bool:
        """Where `symbol` leads from `state`: True when the pattern was found before it, False at the end."""
        takes, is_found = self._close(state, symbol)
        following: _State | bool
        if is_found:
            following = True
        elif symbol == _END:
            following = False
        else:
            byte = 10 if symbol == _LAST_NEWLINE else symbol
            places = frozenset(take.then for take in takes if take.mask >> byte & 1)
            if self._count >= TRANSITIONS_MAX:
                self._reset()
            following = self._state(places, _kind(byte))
        state.next[symbol] = following
        self._count += 1
        return following

    def _close(self, state: _State, symbol: int) -> tuple[list[_Take], bool]:
        """What can be taken from the places of a state, and from the beginning; whether the end was reached."""
        program = self._program
        todo = [*state.places, self._begin]
        seen = set(todo)
        takes: list[_Take] = []
        while todo:
            instruction = program[todo.pop()]
            ways: list[int]
            match instruction:
                case _Take():
                    takes.append(instruction)
                    continue
                case _Found():
                    return takes, True
                case _If(where, then):
                    ways = [then] if _holds(where, state.before, symbol) else []
                case _Split():
                    ways = instruction.ways
            for way in ways:
                if way not in seen:
                    seen.add(way)
                    todo.append(way)
        return takes, False

"""Scripts of portals: files of what happens to a portal, line by line, and what its cores ask for then.

    # a comment, or an empty line
    include peer_linked                  what another script does, without what comes of it
    sibling InterestAdded open 0 10      a command, with words and `name=word`
    > 1000 ms  OpenProxyReceiver ...     what comes of it, and when, since the start; sorted within a time
    > 1000 to 9000 ms every 1000  ...    the same at equal intervals

Each kind of portal has a player, whose method `do_<command>` carries a command out. Byte strings stand as they are if
they can be printed; those of one repeated byte as `w*32`, and others as hexadecimal digits or a checksum.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from shlex import split
from typing import Any, Final, Protocol, get_type_hints

from dro.bus.messages import Origin, Route, RouteTable
from dro.clock import NS_PER_MS, NS_PER_S
from dro.shares import ALL_SHARES
from portals.decisions import messages as told
from portals.decisions.core import PortalCore
from portals.decisions.effects import SendInitialState, SendToSibling
from portals.decisions.engine import PortalEngine
from portals.peer.link_effects import SendAllInterest, SendAllSources
from tests.fakes.um_contexts import Stepper

SCRIPTS: Final = Path(__file__).parents[2] / "portals/scripts"
SIBLING: Final = 2
START_NS: Final = NS_PER_S
_RESULT: Final = "> "
_LONG: Final = 16
_MADE_ONE_BY_ONE: Final = (SendInitialState, SendAllInterest, SendAllSources)


class Host(Protocol):
    """A portal and what is around it. `notes`: what its cores have asked for, and when."""

    core: PortalCore
    engine: PortalEngine
    notes: list[tuple[int, object]]

    def now_ns(self) -> int: ...

    def run(self, milliseconds: int) -> None: ...

    def configure(self, **changes: str) -> None: ...

    def close(self) -> None: ...


def note_effects(host: Host, core: Any) -> None:  # noqa: ANN401  a core with effects
    """Note what a core asks for, in the order in which it is carried out; iterators are made into lists.

    The sibling works off at once what it is sent, so what is to follow does.
    """
    take = core.take_effects

    def taken() -> Iterator[object]:
        for effect in take():
            if isinstance(effect, SendToSibling) and effect.then is not None:
                host.notes.append((host.now_ns(), sent := replace(effect, then=None)))
                yield from (sent, effect.then)
                continue
            made = list(effect.messages) if isinstance(effect, _MADE_ONE_BY_ONE) else None
            host.notes.append((host.now_ns(), effect if made is None else replace(effect, messages=made)))
            yield effect if made is None else replace(effect, messages=iter(made))

    core.take_effects = lambda: list(taken())


def run_stepped(stepper: Stepper, milliseconds: int) -> None:
    """Let time pass, and do what is due exactly then."""
    end_ns = stepper.clock.time_ns + milliseconds * NS_PER_MS
    stepper.settle()
    while (due_ns := stepper.loop.next_deadline()) is not None and due_ns <= end_ns:
        stepper.clock.time_ns = max(due_ns, stepper.clock.time_ns)
        stepper.settle()
    stepper.clock.time_ns = end_ns


class Writer:
    """Writes what is noted. `special`: how some types are written, by type."""

    def __init__(self) -> None:
        self.special: dict[type, Callable[[Any], str]] = {}

    def write(self, value: object) -> str:
        if (known := self.special.get(type(value))) is not None:
            return known(value)
        if isinstance(value, bytes):
            return _bytes(value)
        if isinstance(value, Enum):
            return value.name
        if is_dataclass(value) and not isinstance(value, type):
            words = [f"{f.name}={self.write(getattr(value, f.name))}" for f in fields(value) if _is_told(value, f)]
            return f"{type(value).__name__}({' '.join(words)})"
        if isinstance(value, Mapping):
            return "{" + " ".join(f"{key}={self.write(one)}" for key, one in value.items()) + "}"
        if isinstance(value, Sequence) and not isinstance(value, str):
            return f"[{', '.join(map(self.write, value))}]"
        return (
            value if isinstance(value, str) else repr(value) if isinstance(value, int | None) else type(value).__name__
        )


def _is_told(value: object, field: Any) -> bool:  # noqa: ANN401  of a dataclass
    return bool(getattr(value, field.name) != (field.default if field.default is not MISSING else None))


def _bytes(value: bytes) -> str:
    text = value.decode("latin-1")
    is_text = text.isascii() and text.isprintable()
    if len(value) > 3 and len(set(value)) == 1:
        return f"{text[0] if is_text else value[:1].hex()}*{len(value)}"
    if is_text:
        return text or "''"
    return value.hex() if len(value) <= _LONG else f"<{len(value)} bytes {zlib.crc32(value):08x}>"


def to_bytes(word: str) -> bytes:
    letter, star, count = word.partition("*")
    return letter.encode() * int(count) if star and count.isdigit() else word.encode()


def record_of(kind: type, words: Sequence[str]) -> Any:  # noqa: ANN401  of that kind
    """Make a record of words in the order of its fields; a record in it takes all."""
    hints = get_type_hints(kind)
    if len(hints) == 1 and is_dataclass(hint := next(iter(hints.values()))):
        return kind(record_of(hint, words))  # type: ignore[arg-type]  # a dataclass is a type
    values = [to_bytes(word) if hint is bytes else int(word) for word, hint in zip(words, hints.values(), strict=False)]
    missing = [b"" if hint is bytes else 0 for hint in [*hints.values()][len(values) :]]
    return kind(*values, *missing)


class Player:
    """Carries out the commands that all portals know."""

    routes: tuple[Route, ...]
    """The first one leads from behind the portal to the sibling."""
    origins: tuple[Origin, ...] = ()

    def __init__(self, host: Host) -> None:
        self.host = host
        self.writer = Writer()

    def play(self, script: Path) -> Iterator[str]:
        """Yield the lines of the script, with what comes of each now."""
        for line in script.read_text().splitlines():
            if line.startswith(_RESULT):
                continue
            yield line
            if line and not line.startswith("#"):
                self.obey(line)
                yield from self._results()

    def obey(self, line: str) -> None:
        command, *words = split(line)
        named = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, f"do_{command}")(*(word for word in words if "=" not in word), **named)
        self.host.run(0)

    def _results(self) -> Iterator[str]:
        """Yield what was asked for since the last command, and forget it."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for at_ns, note in self.host.notes:
            found[self.writer.write(note)].append(at_ns - START_NS)
        self.host.notes.clear()
        lines = [(row[0], f"{_times(row)}  {text}") for text, times in found.items() for row in _rows(times)]
        for _, line in sorted(lines):
            yield _RESULT + line

    def do_include(self, name: str) -> None:
        for _ in self.play(SCRIPTS / f"{name}.txt"):
            pass
        self.host.notes.clear()

    def do_run(self, milliseconds: str) -> None:
        self.host.run(int(milliseconds))

    def do_configure(self, **changes: str) -> None:
        self.host.configure(**changes)

    def do_sibling(self, what: str, *words: str) -> None:
        """`up`, `down`, or a message: its kind, and its fields in order."""
        core, now_ns = self.host.core, self.host.now_ns()
        if what == "up":
            core.on_sibling_up(SIBLING, 1, 0, 0, now_ns)
        elif what == "down":
            core.on_sibling_down(SIBLING, now_ns)
        else:
            core.on_message(SIBLING, 1, record_of(getattr(told, what), words), now_ns)
        self.host.engine.act()

    def do_forward(self, topic: str) -> None:
        """The sibling wants what is heard of a topic."""
        for handle in [handle for handle, seen in self.host.core.own.seen.items() if seen.topic == topic.encode()]:
            self.do_sibling("ForwardStart", str(handle))

    def do_routes(self, version: str, which: str) -> None:
        """`both` ways, `none`, or `divided`: as both, but half of the trees from behind the portal go elsewhere."""
        found = self.routes if which != "none" else ()
        if which == "divided":
            entry = found[0].ingress
            found = tuple(replace(at, shares=ALL_SHARES // 3) if at.ingress == entry else at for at in found)
        table = RouteTable(int(version), found, self.origins if found else ())
        self.host.engine.on_routes(table)
        self.host.engine.on_paths(table)


def _rows(times: list[int]) -> Iterator[list[int]]:
    """Split times where their interval changes; few stay alone."""
    row: list[int] = []
    for at_ns in times:
        if len(row) > 1 and at_ns - row[-1] != row[1] - row[0]:
            yield from [row] if len(row) > 2 else [[one] for one in row]
            row = []
        row.append(at_ns)
    yield from [row] if len(row) > 2 else [[one] for one in row]


def _times(times: list[int]) -> str:
    first, last = (f"{at_ns / NS_PER_MS:.10g}" for at_ns in (times[0], times[-1]))
    if len(times) == 1:
        return f"{first} ms"
    return f"{first} to {last} ms every {(times[1] - times[0]) / NS_PER_MS:.10g}"

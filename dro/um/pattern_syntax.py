"""The syntax of topic patterns: PCRE, and POSIX extended expressions, as one small tree over bytes.

No state. Called by `dro.um.patterns`, which makes a matcher of the tree. Letter case, `.` and classes are resolved
here, so what is left is sets of bytes and how they follow each other.

Source: the PCRE and POSIX manuals. Guess: a topic is a string of bytes (no UTF mode), as UM hands it over; what PCRE
has and this parser refuses is named in the error: recursion, conditions, verbs, callouts, branch reset, `\\p`, `\\X`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NoReturn, TypeAlias

from dro.errors import DroError

DEPTH_MAX: Final = 100
REPEAT_MAX: Final = 65535
ANY: Final = (1 << 256) - 1


class PatternError(DroError):
    """A pattern that cannot be used; the text says why."""


class Where(Enum):
    """A condition on the place in the topic."""

    START = "start"
    LINE_START = "start of a line"
    END = "end"
    END_OR_NEWLINE = "end, or before a newline at the end"
    LINE_END = "end of a line"
    WORD_EDGE = "edge of a word"
    NO_WORD_EDGE = "not at the edge of a word"


class Greed(Enum):
    GREEDY = ""
    LAZY = "?"
    POSSESSIVE = "+"


@dataclass(frozen=True, slots=True)
class Chars:
    """One byte of a set; bit b of `mask` stands for byte b."""

    mask: int


@dataclass(frozen=True, slots=True)
class At:
    where: Where


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`high` None: without end."""

    item: Node
    low: int
    high: int | None
    greed: Greed


@dataclass(frozen=True, slots=True)
class Capture:
    item: Node


@dataclass(frozen=True, slots=True)
class Atomic:
    item: Node


@dataclass(frozen=True, slots=True)
class Look:
    item: Node
    is_behind: bool
    is_negative: bool


@dataclass(frozen=True, slots=True)
class BackReference:
    group: int


Node: TypeAlias = Chars | At | Seq | Alt | Repeat | Capture | Atomic | Look | BackReference
EMPTY: Final = Seq(())


def mask_of(data: bytes) -> int:
    mask = 0
    for byte in data:
        mask |= 1 << byte
    return mask


def _range(low: int, high: int) -> int:
    return ((1 << (high - low + 1)) - 1) << low


_DIGIT: Final = _range(0x30, 0x39)
_UPPER: Final = _range(0x41, 0x5A)
_LOWER: Final = _range(0x61, 0x7A)
_ALPHA: Final = _UPPER | _LOWER
_ALNUM: Final = _ALPHA | _DIGIT
WORD: Final = _ALNUM | 1 << 0x5F
_SPACE: Final = mask_of(b"\t\n\v\f\r ")
_BLANK: Final = mask_of(b"\t \xa0")
_VERTICAL: Final = mask_of(b"\n\v\f\r\x85")
_NEWLINE: Final = 1 << 0x0A
_GRAPH: Final = _range(0x21, 0x7E)

_POSIX: Final = {
    b"alnum": _ALNUM,
    b"alpha": _ALPHA,
    b"ascii": _range(0, 0x7F),
    b"blank": mask_of(b"\t "),
    b"cntrl": _range(0, 0x1F) | 1 << 0x7F,
    b"digit": _DIGIT,
    b"graph": _GRAPH,
    b"lower": _LOWER,
    b"print": _GRAPH | 1 << 0x20,
    b"punct": _GRAPH & ~_ALNUM,
    b"space": _SPACE,
    b"upper": _UPPER,
    b"word": WORD,
    b"xdigit": _DIGIT | _range(0x41, 0x46) | _range(0x61, 0x66),
}
_CLASS_ESCAPES: Final = {
    "d": _DIGIT, "D": ANY & ~_DIGIT, "w": WORD, "W": ANY & ~WORD, "s": _SPACE, "S": ANY & ~_SPACE,
    "h": _BLANK, "H": ANY & ~_BLANK, "v": _VERTICAL, "V": ANY & ~_VERTICAL,
}  # fmt: skip
_SIMPLE_ESCAPES: Final = {"t": 9, "n": 10, "r": 13, "f": 12, "e": 27, "a": 7}
_PLACES: Final = {
    "b": Where.WORD_EDGE, "B": Where.NO_WORD_EDGE, "A": Where.START, "z": Where.END, "Z": Where.END_OR_NEWLINE,
    "G": Where.START,
}  # fmt: skip
_QUANTIFIERS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_REFUSED_GROUPS: Final = {
    "R": "recursion", "&": "a call of a group", "+": "a call of a group", "(": "a condition", "C": "a callout",
    "|": "a branch reset", "-": "a call of a group",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Flags:
    caseless: bool = False
    multiline: bool = False
    dotall: bool = False
    extended: bool = False


_FLAG_NAMES: Final = {"i": "caseless", "m": "multiline", "s": "dotall", "x": "extended"}


class _Parser:
    """What both syntaxes share: a cursor over the pattern as latin-1 text, brackets, and braces."""

    def __init__(self, pattern: bytes) -> None:
        self.text = pattern.decode("latin-1")
        self.pos = 0
        self.depth = 0

    def fail(self, why: str) -> NoReturn:
        raise PatternError(f"{why} at byte {self.pos}")

    def peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

    def take(self, token: str) -> bool:
        if self.text.startswith(token, self.pos):
            self.pos += len(token)
            return True
        return False

    def next(self) -> str:
        if self.pos >= len(self.text):
            self.fail("unexpected end")
        self.pos += 1
        return self.text[self.pos - 1]

    def until(self, end: str) -> str:
        at = self.text.find(end, self.pos)
        if at < 0:
            self.fail(f"{end!r} is missing")
        found = self.text[self.pos : at]
        self.pos = at + len(end)
        return found

    def enter(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.fail(f"more than {DEPTH_MAX} groups inside each other")

    def braces(self) -> tuple[int, int | None] | None:
        """`{n}`, `{n,}` or `{n,m}` behind the opening brace; None, with nothing taken, when it is none of them."""
        end = self.text.find("}", self.pos)
        low_text, comma, high_text = self.text[self.pos : end].partition(",") if end >= 0 else ("", "", "")
        if not _is_number(low_text) or (high_text and not _is_number(high_text)):
            return None
        low = int(low_text)
        high = int(high_text) if high_text else None if comma else low
        if low > REPEAT_MAX or (high is not None and (high > REPEAT_MAX or high < low)):
            self.fail("numbers out of order or too large in {}")
        self.pos = end + 1
        return low, high

    def posix_class(self) -> int | None:
        """A class such as `[:alpha:]`, at whose bracket the cursor stands; None when it is none."""
        kind = self.text[self.pos + 1 : self.pos + 2]
        if not kind or kind not in ":.=":
            return None
        end = self.text.find(kind + "]", self.pos + 2)
        if end < 0:
            return None
        name = self.text[self.pos + 2 : end]
        if kind != ":":
            self.fail("collating elements are not supported")
        is_negative = name.startswith("^")
        mask = _POSIX.get(name.removeprefix("^").encode("latin-1"))
        if mask is None:
            self.fail(f"unknown class [:{name}:]")
        self.pos = end + 2
        return ANY & ~mask if is_negative else mask

    def bracket(self, escape: Callable[[], int] | None, *, caseless: bool = False) -> int:
        """The rest of a bracket expression. `escape` reads what a backslash begins, None: it is a plain byte.

        A single byte comes back from `escape` as a set of one, and may begin or end a range.
        """
        is_negative = self.take("^")
        mask = 0
        is_first = True
        while True:
            if self.peek() == "]" and not is_first:
                self.pos += 1
                break
            is_first = False
            item = self._member(escape)
            is_single = item != 0 and item & (item - 1) == 0
            if is_single and self.peek() == "-" and self.text[self.pos + 1 : self.pos + 2] not in ("]", ""):
                back = self.pos
                self.pos += 1
                end = self._member(escape)
                if end == 0 or end & (end - 1):
                    self.pos = back  # a class: the hyphen is a plain one
                    mask |= item
                    continue
                if end < item:
                    self.fail("range out of order")
                mask |= (end << 1) - item
            else:
                mask |= item
        if caseless:
            mask = _caseless(mask)
        return ANY & ~mask if is_negative else mask

    def _member(self, escape: Callable[[], int] | None) -> int:
        if self.peek() == "[" and (found := self.posix_class()) is not None:
            return found
        c = self.next()
        if c == "\\" and escape is not None:
            return escape()
        return 1 << ord(c)


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 5 and text.isascii() and text.isdecimal()


def _caseless(mask: int) -> int:
    return mask | (mask & _LOWER) >> 32 | (mask & _UPPER) << 32


class PcreParser(_Parser):
    """Perl-compatible syntax."""

    def __init__(self, pattern: bytes) -> None:
        super().__init__(pattern)
        self.flags = _Flags()
        self.groups = 0
        self.names: dict[str, int] = {}
        self._quoted = False
        self._references: list[int] = []

    def parse(self) -> Node:
        node = self._alternatives()
        if self.pos < len(self.text):
            self.fail("unmatched )")
        if any(number > self.groups for number in self._references):
            raise PatternError("reference to a group that does not exist")
        return node

    def _alternatives(self) -> Node:
        branches = [self._sequence()]
        while self.take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while True:
            if self._quoted:
                if self.take("\\E"):
                    self._quoted = False
                elif self.pos < len(self.text):
                    items.append(self._quantified(self._literal(self.next())))
                else:
                    break
                continue
            if self.take("\\Q"):
                self._quoted = True
                continue
            if self.take("\\E") or self._skip_extended():
                continue
            if self.peek() in ("", "|", ")"):
                break
            node = self._atom()
            if node is not None:
                items.append(self._quantified(node))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _skip_extended(self) -> bool:
        if not self.flags.extended:
            return False
        if self.peek() and self.peek() in " \t\n\v\f\r":
            self.pos += 1
            return True
        if self.take("#"):
            at = self.text.find("\n", self.pos)
            self.pos = len(self.text) if at < 0 else at + 1
            return True
        return False

    def _literal(self, c: str) -> Node:
        mask = 1 << ord(c)
        return Chars(_caseless(mask) if self.flags.caseless else mask)

    def _quantified(self, node: Node) -> Node:
        while True:
            if self._quoted:
                if self.peek() != "\\" or not self.take("\\E"):
                    return node
                self._quoted = False
            while self._skip_extended():
                pass
            c = self.peek()
            bounds: tuple[int, int | None] | None = None
            if c and c in "*+?":
                self.pos += 1
                bounds = _QUANTIFIERS[c]
            elif c == "{":
                self.pos += 1
                bounds = self.braces()
                if bounds is None:
                    self.pos -= 1
            if bounds is None:
                return node
            greed = Greed.LAZY if self.take("?") else Greed.POSSESSIVE if self.take("+") else Greed.GREEDY
            node = Repeat(node, *bounds, greed)

    def _atom(self) -> Node | None:
        c = self.next()
        match c:
            case "(":
                return self._group()
            case "[":
                return Chars(self.bracket(self._class_escape, caseless=self.flags.caseless))
            case ".":
                return Chars(ANY if self.flags.dotall else ANY & ~_NEWLINE)
            case "^":
                return At(Where.LINE_START if self.flags.multiline else Where.START)
            case "$":
                return At(Where.LINE_END if self.flags.multiline else Where.END_OR_NEWLINE)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self.fail("nothing to repeat")
        return self._literal(c)

    # escapes

    def _escape(self) -> Node:
        c = self.next()
        if c in _CLASS_ESCAPES:
            return Chars(_CLASS_ESCAPES[c])
        if c in _PLACES:
            return At(_PLACES[c])
        match c:
            case "N":
                return Chars(ANY & ~_NEWLINE)
            case "K":
                return EMPTY  # where a match begins does not matter here
            case "R":
                return Alt((Seq((Chars(1 << 13), Chars(1 << 10))), Chars(_VERTICAL)))
            case "g":
                return self._numbered_reference()
            case "k":
                return self._named_reference(self._delimited({"<": ">", "'": "'", "{": "}"}))
        if c.isdecimal() and c != "0":
            return self._digit_reference(c)
        return self._literal(chr(self._byte_escape(c)))

    def _digit_reference(self, c: str) -> Node:
        """A reference, or from 10 on an octal number when there are not so many groups."""
        end = self.pos
        while self.text[end : end + 1].isdecimal():
            end += 1
        number = int(self.text[self.pos - 1 : end][:5])
        if number < 10 or number <= self.groups:
            self.pos = end
            return self._reference(number)
        self.pos -= 1
        if c in "89":
            self.fail("reference to a group that does not exist")
        return self._literal(chr(self._octal(3)))

    def _reference(self, number: int) -> Node:
        if self.flags.caseless:
            self.fail("references without regard to letter case are not supported")
        self._references.append(number)
        return BackReference(number)

    def _numbered_reference(self) -> Node:
        if self.peek() in ("<", "'"):
            self.fail("a call of a group is not supported")
        if self.peek() == "{":
            text = self._delimited({"{": "}"})
        else:
            text = "-" if self.take("-") else ""
            while self.peek().isdecimal():
                text += self.next()
        number = text.removeprefix("-")
        if not _is_number(number):
            return self._named_reference(text)
        value = self.groups + 1 - int(number) if text.startswith("-") else int(number)
        if value < 1:
            self.fail("reference to a group that does not exist")
        return self._reference(value)

    def _named_reference(self, name: str) -> Node:
        if name not in self.names:
            self.fail(f"no group has the name {name!r} so far")
        return self._reference(self.names[name])

    def _delimited(self, pairs: dict[str, str]) -> str:
        end = pairs.get(self.next())
        if end is None:
            self.fail("a name is missing")
        return self.until(end)

    def _byte_escape(self, c: str) -> int:
        """The byte that an escape means which begins with `c`, inside and outside of brackets."""
        if c in _SIMPLE_ESCAPES:
            return _SIMPLE_ESCAPES[c]
        match c:
            case "0":
                self.pos -= 1
                return self._octal(3)
            case "x":
                return self._hex()
            case "o":
                if not self.take("{"):
                    self.fail("{ is missing behind \\o")
                return self._number(self.until("}"), 8)
            case "c":
                control = self.next()
                if not control.isascii():
                    self.fail("\\c needs an ASCII character")
                return ord(control.upper()) ^ 0x40
        if c.isascii() and c.isalnum():
            self.fail(f"\\{c} is not supported")
        return ord(c)

    def _octal(self, most: int) -> int:
        digits = ""
        while len(digits) < most and self.peek() and self.peek() in "01234567":
            digits += self.next()
        return self._number(digits, 8)

    def _hex(self) -> int:
        if self.take("{"):
            return self._number(self.until("}"), 16)
        digits = ""
        while len(digits) < 2 and self.peek() and self.peek() in "0123456789abcdefABCDEF":
            digits += self.next()
        return self._number(digits or "0", 16)

    def _number(self, digits: str, base: int) -> int:
        try:
            value = int(digits, base) if len(digits) <= 8 and "_" not in digits else 256
        except ValueError:
            self.fail(f"{digits!r} is not a number")
        if not 0 <= value <= 255:
            self.fail("a code beyond one byte")
        return value

    def _class_escape(self) -> int:
        c = self.next()
        if c in _CLASS_ESCAPES:
            return _CLASS_ESCAPES[c]
        if c == "b":
            return 1 << 8
        if c == "Q":
            quoted = self.until("\\E")
            return mask_of(quoted.encode("latin-1"))
        if c == "E":
            return 0
        if c.isdecimal() and c in "1234567":
            self.pos -= 1
            return 1 << self._octal(3)
        return 1 << self._byte_escape(c)

    # groups

    def _group(self) -> Node | None:
        if self.peek() == "*":
            self.fail("verbs are not supported")
        if not self.take("?"):
            return self._capture()
        if self.take("#"):
            self.until(")")
            return None
        for token, is_behind, is_negative in (("=", 0, 0), ("!", 0, 1), ("<=", 1, 0), ("<!", 1, 1)):
            if self.take(token):
                return Look(self._inner(), bool(is_behind), bool(is_negative))
        if self.take(":"):
            return self._inner()
        if self.take(">"):
            return Atomic(self._inner())
        if self.take("P="):
            return self._named_reference(self.until(")"))
        if self.take("P>"):
            self.fail("a call of a group is not supported")
        for token, end in (("P<", ">"), ("<", ">"), ("'", "'")):
            if self.take(token):
                return self._capture(self.until(end))
        c = self.peek()
        if c in _REFUSED_GROUPS and not (c == "-" and self.text[self.pos + 1 : self.pos + 2] in _FLAG_NAMES):
            self.fail(f"{_REFUSED_GROUPS[c]} is not supported")
        if c.isdecimal():
            self.fail("recursion is not supported")
        return self._flag_group()

    def _flag_group(self) -> Node | None:
        values = {name: getattr(self.flags, name) for name in _FLAG_NAMES.values()}
        is_on = True
        while (c := self.next()) not in (":", ")"):
            if c == "-":
                is_on = False
            elif c in _FLAG_NAMES:
                values[_FLAG_NAMES[c]] = is_on
            elif c not in "UJn":  # greediness and names do not decide whether something matches
                self.fail(f"option {c!r} is not supported")
        flags = _Flags(**values)
        if c == ")":
            self.flags = flags  # until the end of the group around it
            return None
        return self._inner(flags)

    def _capture(self, name: str | None = None) -> Node:
        self.groups += 1
        if name is not None:
            if not name or not name.replace("_", "a").isalnum() or name[0].isdecimal():
                self.fail(f"{name!r} is not a name for a group")
            if name in self.names:
                self.fail(f"two groups have the name {name!r}")
            self.names[name] = self.groups
        return Capture(self._inner())

    def _inner(self, flags: _Flags | None = None) -> Node:
        self.enter()
        before = self.flags
        self.flags = flags or before
        node = self._alternatives()
        if not self.take(")"):
            self.fail(") is missing")
        self.flags = before
        self.depth -= 1
        return node


class PosixParser(_Parser):
    """POSIX extended syntax, with the GNU escapes for words and spaces."""

    def parse(self) -> Node:
        node = self._alternatives()
        if self.pos < len(self.text):
            self.fail("unmatched )")
        return node

    def _alternatives(self) -> Node:
        branches = [self._sequence()]
        while self.take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            node = self._atom()
            while True:
                c = self.peek()
                if c and c in "*+?":
                    self.pos += 1
                    node = Repeat(node, *_QUANTIFIERS[c], Greed.GREEDY)
                elif c == "{":
                    self.pos += 1
                    bounds = self.braces()
                    if bounds is None:
                        self.fail("numbers are missing in {}")
                    node = Repeat(node, *bounds, Greed.GREEDY)
                else:
                    break
            items.append(node)
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _atom(self) -> Node:
        c = self.next()
        match c:
            case "(":
                self.enter()
                node = self._alternatives()
                if not self.take(")"):
                    self.fail(") is missing")
                self.depth -= 1
                return node
            case "[":
                return Chars(self.bracket(None))
            case ".":
                return Chars(ANY)
            case "^":
                return At(Where.START)
            case "$":
                return At(Where.END)
            case "*" | "+" | "?" | "{":
                self.fail("nothing to repeat")
            case "\\":
                return self._escape()
        return Chars(1 << ord(c))

    def _escape(self) -> Node:
        c = self.next()
        if c in "wWsS":
            return Chars(_CLASS_ESCAPES[c])
        if c in "bB":
            return At(_PLACES[c])
        if c.isascii() and (c.isalnum() or c in "<>`'"):
            self.fail(f"\\{c} is not supported")
        return Chars(1 << ord(c))

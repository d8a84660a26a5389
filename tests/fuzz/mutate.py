"""Changes of bytes, by a generator of random numbers: the same numbers make the same input.

Forms: `bytes`; `lbmc`, where the length in the header is mostly put right; `text`, whose tokens are moved; `xml`;
`script`, packets with the time between them, for cores. A script is a list of steps: milliseconds (2 bytes), length of
the packet (2), packet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Final

Mutate = Callable[[Random, bytes, bytes], bytes]
"""An input from one of the pool, and another one to take parts from."""

_SIZES: Final = (1, 2, 4, 8)
_NEAR: Final = (0, 1, 2, 3, 4, 7, 8, 12, 16, 20, 31, 32, 63, 64, 127, 128, 255)
_TOKEN: Final = re.compile(rb'"[^"]*"|<[^>]*>|[\w.+-]+|\s+|.', re.DOTALL)
_NUMBERS: Final = (b"0", b"-1", b"1", b"65536", b"4294967296", b"18446744073709551616", b"9" * 40, b"1e9", b"\xd9\xa3")
_VALUE: Final = re.compile(rb'(?<==")[^"<]*(?=")|(?<=>)[^<>]*(?=<)')
_LEAF: Final = re.compile(rb"<[\w:-]+[^<>]*(?:/>|>[^<>]*</[\w:-]+>)")
_STEPS_MAX: Final = 200
DELAYS_MS: Final = (0, 0, 0, 1, 5, 20, 100, 500, 1000, 5000, 20_000, 60_000)


def mutate_bytes(draw: Random, one: bytes, other: bytes) -> bytes:
    """One to four changes."""
    random, made = draw.random, bytearray(one)
    while True:
        _change(random, made, other)
        if random() < 0.45:
            return bytes(made)


def _change(random: Callable[[], float], made: bytearray, other: bytes) -> None:
    """One change, most often without another length."""
    size = len(made)
    if not size:
        made += other[: int(random() * 64)]
        return
    at = int(random() * size)
    what = int(random() * 12)
    if what < 2:
        made[at] ^= 1 << int(random() * 8)
    elif what < 4:
        made[at] = _NEAR[int(random() * len(_NEAR))] if random() < 0.5 else int(random() * 256)
    elif what == 4:
        made[at] = made[at] + int(random() * 9) - 4 & 0xFF
    elif what == 5:
        count = _SIZES[int(random() * 4)]
        at -= at % count if random() < 0.5 else 0
        head, rest = ((0, 0), (255, 255), (128, 0), (127, 255))[int(random() * 4)]
        made[at : at + count] = (bytes((head,)) + bytes((rest,)) * (count - 1))[: size - at]
    elif what == 6:
        count = _SIZES[1 + int(random() * 2)]
        value = int.from_bytes(made[at : at + count], "big") + int(random() * 33) - 16
        made[at : at + count] = (value % (1 << 8 * count)).to_bytes(count, "big")[: size - at]
    elif what == 7:
        del made[at : at + 1 + int(random() ** 3 * (size - at))]
    elif what == 8:
        count = 1 + int(random() ** 3 * 64)
        made[at:at] = made[at : at + count] * (1 if random() < 0.8 else 1 + int(random() * 12))
    elif what == 9:
        made[at:at] = bytes([int(random() * 256) for _ in range(1 + int(random() * 8))])
    else:
        begin = int(random() * len(other))
        part = other[begin : begin + 1 + int(random() ** 2 * (len(other) - begin))]
        made[at : at + (len(part) if random() < 0.7 else 0)] = part


def mutate_lbmc(draw: Random, one: bytes, other: bytes) -> bytes:
    """The length of the first message is that of all, three times of four."""
    made = mutate_bytes(draw, one, other)
    return made[:2] + (len(made) & 0xFFFF).to_bytes(2, "big") + made[4:] if draw.random() < 0.75 else made


def mutate_text(draw: Random, one: bytes, other: bytes) -> bytes:
    """Tokens are dropped, doubled, exchanged, or of the other text; now and then any byte."""
    if draw.random() < 0.25:
        return mutate_bytes(draw, one, other)
    tokens, more = _TOKEN.findall(one) or [b" "], _TOKEN.findall(other) or [b" "]
    for _ in range(1 + int(draw.random() ** 2 * 4)):
        at = int(draw.random() * len(tokens))
        match int(draw.random() * 6):
            case 0:
                del tokens[at : at + 1 + int(draw.random() ** 2 * 6)]
                tokens = tokens or [b" "]
            case 1:
                tokens[at:at] = tokens[at : at + 1 + int(draw.random() ** 2 * 12)]
            case 2:
                tokens[at] = draw.choice(more)
            case 3:
                tokens.insert(at, draw.choice(more))
            case 4:
                numbers = [place for place, token in enumerate(tokens) if token.isdigit()]
                tokens[draw.choice(numbers) if numbers else at] = draw.choice(_NUMBERS)
            case _:
                begin = int(draw.random() * len(more))
                tokens[at:at] = more[begin : begin + 1 + int(draw.random() * 20)]
    return b"".join(tokens)


def mutate_xml(draw: Random, one: bytes, other: bytes) -> bytes:
    """Mostly values, texts and elements without others inside, so that it stays XML."""
    if draw.random() < 0.2:
        return mutate_text(draw, one, other)
    for _ in range(1 + int(draw.random() ** 2 * 4)):
        what = _LEAF if draw.random() < 0.5 else _VALUE
        places, more = list(what.finditer(one)), what.findall(other)
        if not places or not more:
            break
        place = draw.choice(places)
        part = draw.choice(more) if draw.random() < 0.6 else draw.choice((b"", place[0] * 2, b"&amp;", *_NUMBERS))
        one = one[: place.start()] + part + one[place.end() :]
    return one


def script(steps: Iterable[tuple[int, bytes]]) -> bytes:
    """Milliseconds and packet of each step."""
    return b"".join(
        [
            min(after_ms, 0xFFFF).to_bytes(2, "big") + len(packet).to_bytes(2, "big") + packet
            for after_ms, packet in steps
        ]
    )


def steps_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The steps of a script; the last packet may be cut short."""
    at = 0
    while at + 4 <= len(data):
        end = at + 4 + (data[at + 2] << 8 | data[at + 3])
        yield data[at] << 8 | data[at + 1], data[at + 4 : end]
        at = end


def mutate_script(draw: Random, one: bytes, other: bytes) -> bytes:
    """Steps are changed, left out, repeated, exchanged, taken from another script, or later."""
    steps, more = list(steps_of(one)) or [(0, b"\0")], list(steps_of(other)) or [(0, b"\0")]
    for _ in range(1 + int(draw.random() ** 2 * 5)):
        at = int(draw.random() * len(steps))
        match int(draw.random() * 10):
            case 0 if len(steps) > 1:
                del steps[at : at + 1 + int(draw.random() ** 3 * len(steps))]
                steps = steps or more[:1]
            case 1:
                steps[at:at] = steps[at : at + 4] * (1 if draw.random() < 0.9 else 20)
            case 2:
                begin = int(draw.random() * len(more))
                steps[at:at] = more[begin : begin + 4]
            case 3:
                steps[at] = draw.choice(DELAYS_MS), steps[at][1]
            case 4:
                to = int(draw.random() * len(steps))
                steps[at], steps[to] = steps[to], steps[at]
            case _:
                steps[at] = steps[at][0], mutate_bytes(draw, steps[at][1], draw.choice(more)[1])[:0xFFFF]
    return script(steps[:_STEPS_MAX])


MUTATIONS: Final[dict[str, Mutate]] = {
    "bytes": mutate_bytes,
    "lbmc": mutate_lbmc,
    "text": mutate_text,
    "xml": mutate_xml,
    "script": mutate_script,
}

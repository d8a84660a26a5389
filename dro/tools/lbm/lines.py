"""Output lines of the sending and receiving tools: topic, source, sqn and length in this order, in brackets.

Unprintable characters in received data are escaped, so a message cannot control the terminal. Source: client library
behaviour, section 15 (format; the wording is our own where it is not parsed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dro.proto.repair.receiver import ALL_ONES
from dro.tools.text import shown
from dro.um.message.events import FLAG_IMMEDIATE, FLAG_RETRANSMIT


@lru_cache(maxsize=4096)
def name(text: str) -> str:
    """A topic or source for a line; bytes that are no UTF-8, which stand in it as surrogates, become escapes."""
    return shown(text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def data_line(topic: str, source: str, sqn: int, length: int, flags: int) -> str:
    mark = "-RX-" if flags & FLAG_RETRANSMIT else ""
    kind = "IM " if flags & FLAG_IMMEDIATE else ""
    return f"{kind}[{name(topic)}][{name(source)}][{sqn}]{mark}, {length} bytes\n"


def loss_line(topic: str, source: str, sqn: int, *, is_burst: bool = False) -> str:
    return f"[{name(topic)}][{name(source)}][{sqn}], {'LOSS BURST' if is_burst else 'LOST'}\n"


def fault_line(topic: str, source: str, sqn: int, fault: str) -> str:
    return f"[{name(topic)}][{name(source)}][{sqn}], BAD: {fault}\n"


def began_line(topic: str, source: str, proxy: str = "") -> str:
    return f"[{name(topic)}][{name(source)}], Beginning of Transport Session{_of(proxy)}\n"


def ended_line(topic: str, source: str, proxy: str = "") -> str:
    return f"[{name(topic)}][{name(source)}], End of Transport Session{_of(proxy)}\n"


def _of(proxy: str) -> str:
    """Write the session itself, which only hotlinks have."""
    return f" [{name(proxy)}]" if proxy else ""


def source_line(topic: str, source: str, *, added: bool) -> str:
    """A source was found and joined, or is gone."""
    return f"[{name(topic)}][{name(source)}], source {'found' if added else 'gone'}\n"


def no_source_line(topic: str) -> str:
    return f"[{name(topic)}], no sources found for topic\n"


def ascii_line(data: bytes) -> str:
    """A message as text on a line of its own: what does not print, line breaks too, as escapes."""
    return f"{shown(data.decode('ascii', 'backslashreplace'))}\n"


@dataclass(frozen=True, slots=True)
class LineTotals:
    """What was counted up to one moment; differences of two make a rate line."""

    at_s: float = 0.0
    messages: int = 0
    data_bytes: int = 0
    packets_lost: int = 0
    unrecovered: int = 0
    bursts: int = 0

    def since(self, before: LineTotals) -> LineTotals:
        return LineTotals(
            self.at_s - before.at_s,
            self.messages - before.messages,
            self.data_bytes - before.data_bytes,
            self.packets_lost - before.packets_lost,
            self.unrecovered - before.unrecovered,
            self.bursts - before.bursts,
        )


def rate_text(seconds: float, messages: int, data_bytes: int) -> str:
    """`secs. Kmsgs/sec. Kbps`: thousands of messages and of payload bits."""
    span = max(seconds, 1e-9)
    return f"{seconds:.3f} secs. {messages / span / 1000:.3f} Kmsgs/sec. {data_bytes * 8 / span / 1000:.3f} Kbps"


def receive_rate_line(part: LineTotals) -> str:
    """One interval of a receiver: `part` is a difference of totals."""
    return (
        f"{rate_text(part.at_s, part.messages, part.data_bytes)} "
        f"[{part.packets_lost} pkts lost, {part.unrecovered} msgs unrecovered, {part.bursts} loss bursts]\n"
    )


def counters_line(kind: str, source: str, counters: Mapping[str, object]) -> str:
    """Statistics of one session or context, as names and numbers; minima of nothing are left out."""
    shown_counters = (f"{key} {value}" for key, value in counters.items() if value != ALL_ONES)
    return f"{kind} [{name(source)}]: {', '.join(shown_counters)}\n"

"""Lint of peer portals: keepalives, the UDP part, batches.

Source: DRO guide, chapter 7.3; forwarding notes, section 21.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dro.config.lint.finding import Finding, PeerView, hint, seconds, warning
from dro.config.lint.transport import nak_times, naks, rates, session_life, window_time

Findings = Iterator[Finding]


def keepalive(p: PeerView) -> Findings:
    """Three keepalives fit into the silence that ends a link."""
    k = p.config.keepalive
    at = p.element("gateway-keepalive")
    if k.interval_ms == 0:
        yield hint(
            at, "<gateway-keepalive>", "interval 0 sends none", "a dead companion is noticed when TCP gives up",
            'set interval="5000"',
        )  # fmt: skip
    elif 0 < k.timeout_ms < 3 * k.interval_ms:
        yield hint(
            at, "<gateway-keepalive>",
            f"timeout {seconds(k.timeout_ms)} is less than three intervals of {seconds(k.interval_ms)}",
            "a short pause of the network ends the link", f'set timeout="{3 * k.interval_ms}"',
        )  # fmt: skip


def udp_naks(p: PeerView) -> Findings:
    if p.config.udp is not None:
        t, at = p.config.udp, p.element("udp", "nak-handling")
        yield from naks(t, at, "<nak-handling> ignore-interval", "<nak-handling> backoff-interval")
        yield from nak_times(t, at, "<nak-handling> ")
        if not p.config.udp.send_naks:
            yield hint(
                at, "<nak-handling> send-naks", "NAKs are switched off", "every lost datagram of the link stays lost",
                'set send-naks="yes"',
            )  # fmt: skip


def _of_udp(relation: Callable[..., Findings], element: str, *subjects: str) -> Callable[[PeerView], Findings]:
    """Make a rule of a relation among what `<udp>` says; `subjects` are what it speaks of."""

    def rule(p: PeerView) -> Findings:
        if p.config.udp is not None:
            yield from relation(p.config.udp, p.element("udp", element), *subjects)

    return rule


udp_window = _of_udp(window_time, "transmission-window", "<transmission-window>")
udp_rates = _of_udp(rates, "peer-rate-limit", "<peer-rate-limit> retransmit")
udp_session = _of_udp(
    session_life, "session-message", "<session-message> activity-timeout", "<session-message> max-interval"
)


def peer_batches(p: PeerView) -> Findings:
    """A batch that is never full waits for its interval."""
    c = p.config
    if c.batch_min_bytes > c.max_datagram_bytes and not c.smart_batch:
        yield hint(
            p.element("batching"), "<batching>",
            f"min-length {c.batch_min_bytes} is above max-datagram {c.max_datagram_bytes}",
            f"small messages wait for {seconds(c.batch_interval_ms)}",
            f"set <min-length> to {c.max_datagram_bytes} or less, or <smart-batch> to 1",
        )  # fmt: skip


def peer_queue(p: PeerView) -> Findings:
    c = p.config
    if c.max_queue_bytes == 0:
        yield hint(
            p.element("max-queue"), "<max-queue>", "0 is no queue", "what the link cannot take at once is dropped",
            "set it to 1000000",
        )  # fmt: skip
    elif c.max_queue_bytes < c.max_datagram_bytes:
        yield warning(
            p.element("max-queue"), "<max-queue>",
            f"{c.max_queue_bytes} bytes hold no batch of {c.max_datagram_bytes}",
            "batches are dropped whenever the link has to wait",
            f"set it to {max(1_000_000, 16 * c.max_datagram_bytes)}",
        )  # fmt: skip

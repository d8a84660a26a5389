"""Lint of the DRO's own elements: timers of interest, queues, costs, windows, and datagram sizes between portals.

Source: DRO guide, chapters 3.1.6, 4.2 and 7.3; forwarding notes, sections 8, 9, 13, 16 and 18. Guess: limits where the
guide gives none (how many refreshes may be missed, useful delays) are hints, not warnings.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Final

from dro.bus.ring_size import ring_bytes
from dro.config.dro_xml.model import RemoteInterestConfig, UseQueryConfig
from dro.config.lint.finding import (
    CTX,
    SRC,
    EndpointView,
    Finding,
    PeerView,
    Place,
    SideOptions,
    View,
    hint,
    seconds,
    warning,
)
from dro.config.lint.transport import SIZES, UDP, datagram_size

Findings = Iterator[Finding]
SHORT_DELAY_MS: Final = 250  # about what a portal takes to come back
LONG_DELAY_MS: Final = 60_000
MAX_PATH_COST: Final = 2**31 - 1  # what an advertisement can carry
MAX_PORTALS_IN_PATH: Final = 200  # of 100 DROs
IPC_HEADER_BYTES: Final = 64 << 10
"""What UM adds to the ring of an LBT-IPC session, about."""


def use_queries(p: EndpointView) -> Findings:
    """All tries of one round end before the next round begins."""
    resolution = p.config.topic_resolution
    for name, query in (
        ("topic-use-query", resolution.topic_use_query),
        ("pattern-use-query", resolution.pattern_use_query),
    ):
        round_ms = query.timeout_ms * query.max
        if round_ms >= query.periodic_interval_ms:
            yield warning(
                p.element("topic-resolution", name), f"<{name}>",
                f"{query.max} tries of {seconds(query.timeout_ms)} take {seconds(round_ms)}, a round begins every "
                f"{seconds(query.periodic_interval_ms)}",
                "interest that is gone is asked for again before it was given up", _longer_rounds(query),
            )  # fmt: skip


def _longer_rounds(query: UseQueryConfig) -> str:
    return f'set periodic-interval="{4 * query.timeout_ms * query.max}" or lower timeout and max'


def remote_interest(p: EndpointView) -> Findings:
    """Interest of other DROs is kept for several of their repetitions; they are taken to repeat as this one does."""
    resolution = p.config.topic_resolution
    parts = (
        ("remote-topic", p.config.remote_topic, resolution.remote_topic_interest),
        ("remote-pattern", p.config.remote_pattern, resolution.remote_pattern_interest),
    )
    for name, remote, announced in parts:
        at, most_ms = p.element(name), announced.max_interval_ms
        remedy = f'set timeout="{5 * most_ms}" in <{name}>, or lower max-interval in <{name}-interest>'
        what = f"timeout {seconds(remote.timeout_ms)}, but interest is repeated every {seconds(most_ms)}"
        if remote.timeout_ms <= most_ms:
            yield warning(at, f"<{name}>", what, "interest that is alive is dropped, and messages with it", remedy)
        elif remote.timeout_ms < 2 * most_ms:
            yield hint(at, f"<{name}>", what, "one lost repetition stops the flow", remedy)
        yield from _sweep(at, name, remote)


def _sweep(at: Place, name: str, remote: RemoteInterestConfig) -> Findings:
    if remote.check_interval_ms > remote.timeout_ms:
        yield hint(
            at, f"<{name}>", f"check-interval {seconds(remote.check_interval_ms)} is above timeout "
            f"{seconds(remote.timeout_ms)}",
            "interest lives on for the longer of the two", f'set check-interval="{max(50, remote.timeout_ms // 3)}"',
        )  # fmt: skip


def deletion_delay(p: EndpointView | PeerView) -> Findings:
    delay_ms = p.config.source_deletion_delay_ms
    at = p.element("source-deletion-delay")
    if delay_ms < SHORT_DELAY_MS:
        yield hint(
            at, "<source-deletion-delay>", f"{delay_ms} ms is less than a portal takes to start again",
            "a route change or restart ends and begins sources at every receiver", "set it to 1000",
        )  # fmt: skip
    elif delay_ms > LONG_DELAY_MS:
        yield hint(
            at, "<source-deletion-delay>", f"{seconds(delay_ms)} is longer than transports keep a dead session",
            "sources that are gone go on being advertised", "set it to 1000",
        )  # fmt: skip


def cost(p: EndpointView | PeerView) -> Findings:
    value = p.config.cost
    if value * MAX_PORTALS_IN_PATH > MAX_PATH_COST:
        yield warning(
            p.element("cost"), "<cost>", f"{value} times the portals of a long path exceeds {MAX_PATH_COST}",
            "the cost of a path no longer fits its field", f"use costs up to {MAX_PATH_COST // MAX_PORTALS_IN_PATH}",
        )  # fmt: skip


def queue(p: EndpointView) -> Findings:
    """`<max-queue>` against one datagram."""
    size = p.config.max_queue_bytes
    transport = p.sending.um.get_str(SRC, "transport")
    largest = datagram_size(p.sending, transport if transport in SIZES else "tcp", "source")
    if size == 0:
        yield hint(
            p.element("max-queue"), "<max-queue>", "0 is no queue",
            "what meets a full socket or a used-up rate is dropped at once", "set it to 1000000",
        )  # fmt: skip
    elif size < largest:
        yield warning(
            p.element("max-queue"), "<max-queue>", f"{size} bytes hold no datagram of {largest}",
            "large fragments are dropped whenever the portal has to wait", f"set it to {max(1_000_000, 16 * largest)}",
        )  # fmt: skip


def shared_memory(v: View) -> Findings:
    """The rings of all portals against what the machine has; logs of what was sent take what is left."""
    queues, sessions = sum(ring_bytes(p.config.max_queue_bytes) for p in v.portals), sum(map(_ipc_bytes, v.endpoints))
    needed, have = queues + sessions, v.machine.shm_bytes
    if not have or needed <= have:
        return
    more = f"or mount -o remount,size={(needed >> 20) + 64}m /dev/shm"
    what = f"all portals may take {needed >> 20} MiB of shared memory, this machine has {have >> 20} MiB in /dev/shm"
    if sessions > queues:
        largest = max(v.endpoints, key=_ipc_bytes)
        keys = ((SRC, _IPC_WINDOW), *_IPC_IDS)
        yield warning(
            largest.sending.place(*keys), " ".join(keys[0]), f"{what}, {sessions >> 20} MiB for sessions of LBT-IPC",
            "when it is used up, sources get no session", f"lower it, or use fewer transport ids, {more}",
        )  # fmt: skip
        return
    worst = max(v.portals, key=lambda p: p.config.max_queue_bytes)
    yield warning(
        worst.element("max-queue"), "<max-queue>", what,
        "when portals cannot keep up with their siblings, fragments are dropped earlier",
        f"lower the largest <max-queue>, {more}",
    )  # fmt: skip


_IPC_WINDOW: Final = "transport_lbtipc_transmission_window_size"
_IPC_IDS: Final = ((CTX, "transport_lbtipc_id_low"), (CTX, "transport_lbtipc_id_high"))


def _ipc_bytes(p: EndpointView) -> int:
    """Return the size of the rings of all LBT-IPC sessions that proxy sources may have."""
    if p.sending.um.get_str(SRC, "transport") != "lbtipc":
        return 0
    low, high = (p.sending.number(*key) for key in _IPC_IDS)
    pool = 1 if p.sending.number(SRC, "transport_lbtipc_id") else max(0, high - low + 1)
    return pool * (p.sending.number(SRC, _IPC_WINDOW) + IPC_HEADER_BYTES)


def route_info(v: View) -> Findings:
    info = v.config.daemon.route_info
    at = v.element("route-info")
    if info.timeout_ms < 2 * info.propagation_interval_ms:
        yield warning(
            at, "<route-info>", f"timeout {seconds(info.timeout_ms)} is less than two propagation intervals of "
            f"{seconds(info.propagation_interval_ms)}",
            "one late message takes a living DRO out of the routes",
            f'set timeout="{4 * info.propagation_interval_ms}"',
        )  # fmt: skip
    if info.check_interval_ms > info.timeout_ms:
        yield hint(
            at, "<route-info>", f"check-interval {seconds(info.check_interval_ms)} is above timeout "
            f"{seconds(info.timeout_ms)}",
            "a DRO that is gone is noticed late", f'set check-interval="{max(1, info.timeout_ms // 5)}"',
        )  # fmt: skip


# datagram sizes between portals


def fragment_sizes(v: View) -> Findings:
    """Fragments pass a DRO whole, so what enters at one portal must fit at every other.

    The transport of a portal's proxy sources is taken for that of the sources in its TRD; other transports count when
    somebody has set their size.
    """
    for inn, out in permutations(v.endpoints, 2):
        to = out.sending.um.get_str(SRC, "transport")
        if to not in SIZES:
            continue
        takes = datagram_size(out.sending, to, "source")
        usual = inn.sending.um.get_str(SRC, "transport")
        for transport in SIZES:
            brings = datagram_size(inn.sending, transport, "source")
            is_usual = transport == usual
            if brings <= takes or not (is_usual or _is_given(inn.sending, transport)):
                continue
            keys = _size_keys(to)
            at = out.sending.place(*keys) if _is_given(out.sending, to) else inn.sending.place(*_size_keys(transport))
            tell = warning if is_usual else hint
            yield tell(
                at, f"context transport_{to}_datagram_max_size",
                f"{takes} bytes at portal {out.config.name} ({to}), {brings} at portal {inn.config.name} ({transport})",
                f"fragments from {inn.config.name} that are larger are dropped as size_error",
                f"set the datagram size to {min(takes, brings, 8192)} for all transports in both UM files",
            )  # fmt: skip


def _size_keys(transport: str) -> tuple[tuple[str, str], ...]:
    names = ("", "source_") if transport in UDP else ("",)
    return tuple((CTX, f"transport_{transport}_{name}datagram_max_size") for name in names)


def _is_given(options: SideOptions, transport: str) -> bool:
    """Say whether somebody has set the size; the default size counts as given then as well."""
    return any(options.um.is_set(*key) for key in _size_keys(transport))


def resolver_sizes(v: View) -> Findings:
    """Advertisements with many options must fit everywhere."""
    key = (CTX, "resolver_datagram_max_size")
    sizes = {p.config.name: p.sending.number(*key) for p in v.endpoints}
    if len(set(sizes.values())) > 1:
        least = min(v.endpoints, key=lambda p: p.sending.number(*key))
        told = ", ".join(f"{size} at {name}" for name, size in sizes.items())
        yield hint(
            least.sending.place(key), " ".join(key), told,
            "topic resolution that fits one portal may not fit another",
            f"set it to {max(sizes.values())} everywhere",
        )  # fmt: skip

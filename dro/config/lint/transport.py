"""Lint of UM options that conflict inside one portal: loss recovery, rates, session timeouts.

Default values are never reported. The portal's options are taken for those of its TRD: applications and portal read the
same UM file, so intervals of sources are compared with those of receivers. Source: transport notes, sections 3 to 6, 8
and 16; UM Configuration Guide, options of these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from dro.config.dro_xml.model import PeerUdpConfig
from dro.config.lint.finding import (
    CTX,
    RCV,
    SRC,
    EndpointView,
    Finding,
    Place,
    SideOptions,
    hint,
    rate,
    seconds,
    warning,
)

Findings = Iterator[Finding]
MIN_RETRANSMIT_SHARE: Final = 20  # repairs need this part of the data rate at least: 5 per cent
WINDOW_MS: Final = 1000  # a window below this holds for a round or two of NAKs
BUFFER_MS: Final = 50  # what a receive buffer should hold at full rate
SM_PER_TIMEOUT: Final = 3  # session messages that may be lost before a session counts as ended


UDP: Final = ("lbtrm", "lbtru")
"""Transports that send datagrams and repair losses."""
SIZES: Final = ("tcp", *UDP, "lbtipc")
"""Transports with a datagram size."""


@dataclass(frozen=True, slots=True)
class LossRecovery:
    """What decides about repairs of a transport, with the fields that `PeerUdpConfig` has for a peer link."""

    nak_initial_backoff_ms: int
    nak_backoff_ms: int
    nak_suppress_ms: int
    nak_generation_ms: int
    ignore_interval_ms: int
    window_size_bytes: int
    window_limit_bytes: int
    data_rate_bps: int
    retransmit_rate_bps: int
    sm_min_interval_ms: int
    sm_max_interval_ms: int
    activity_timeout_ms: int


Recovery = LossRecovery | PeerUdpConfig
_OPTIONS: Final = {
    "nak_initial_backoff_ms": (RCV, "nak_initial_backoff_interval"),
    "nak_backoff_ms": (RCV, "nak_backoff_interval"),
    "nak_suppress_ms": (RCV, "nak_suppress_interval"),
    "nak_generation_ms": (RCV, "nak_generation_interval"),
    "ignore_interval_ms": (SRC, "ignore_interval"),
    "window_size_bytes": (SRC, "transmission_window_size"),
    "window_limit_bytes": (SRC, "transmission_window_limit"),
    "data_rate_bps": (CTX, "data_rate_limit"),
    "retransmit_rate_bps": (CTX, "retransmit_rate_limit"),
    "sm_min_interval_ms": (SRC, "sm_minimum_interval"),
    "sm_max_interval_ms": (SRC, "sm_maximum_interval"),
    "activity_timeout_ms": (RCV, "activity_timeout"),
}
"""Of each field the scope and the end of the name."""


def _recovery(p: EndpointView, transport: str) -> LossRecovery:
    return LossRecovery(
        **{
            field: (p.receiving if scope == RCV else p.sending).number(scope, f"transport_{transport}_{name}")
            for field, (scope, name) in _OPTIONS.items()
        }
    )


def _site(p: EndpointView, transport: str, names: str) -> Place | None:
    """Find where the last changed one of these options was set; None when all have their defaults."""
    found = None
    scopes = {name: scope for scope, name in _OPTIONS.values()}
    for name in names.split():
        for options, scope in ((p.sending, SRC), (p.sending, CTX), (p.receiving, RCV), (p.receiving, CTX)):
            key = (scope, f"transport_{transport}_{name}")
            if scope == scopes[name] and options.differs(key):
                found = options.place(key)
    return found


# relations shared with the UDP part of a peer link; `names` are what the options are called there


def naks(t: Recovery, at: Place, ignore: str, backoff: str) -> Findings:
    """NAK intervals against the sender's deafness after a repair. `ignore`, `backoff`: what the options are called."""
    ignored = seconds(t.ignore_interval_ms)
    if t.ignore_interval_ms >= t.nak_generation_ms:
        yield warning(
            at, ignore, f"{ignored} reaches the NAK generation interval of {seconds(t.nak_generation_ms)}",
            "a repair that gets lost is never sent again, the receiver gives up before",
            f"set {ignore} to {max(1, t.nak_backoff_ms // 2)}",
        )  # fmt: skip
    elif t.ignore_interval_ms > t.nak_backoff_ms / 2:
        yield hint(
            at, ignore, f"{ignored} is more than half the NAK backoff interval of {seconds(t.nak_backoff_ms)}",
            "receivers that miss a repair ask again while the sender does not listen",
            f"set {ignore} to {max(1, t.nak_backoff_ms // 2)}, or {backoff} to {2 * t.ignore_interval_ms}",
        )  # fmt: skip


def nak_times(t: Recovery, at: Place, prefix: str) -> Findings:
    """Whether there is time for more than one NAK before a receiver gives up."""
    generation = seconds(t.nak_generation_ms)
    if t.nak_initial_backoff_ms >= t.nak_generation_ms:
        yield warning(
            at, f"{prefix}initial_backoff_interval",
            f"{seconds(t.nak_initial_backoff_ms)} reaches the generation interval of {generation}",
            "losses are given up before the first NAK", f"set it to {t.nak_generation_ms // 20}",
        )  # fmt: skip
    elif 2 * t.nak_backoff_ms > t.nak_generation_ms:
        yield warning(
            at, f"{prefix}backoff_interval",
            f"{seconds(t.nak_backoff_ms)} is more than half the generation interval of {generation}",
            "a lost repair is asked for once at the most", f"set it to {max(1, t.nak_generation_ms // 20)}",
        )  # fmt: skip
    if t.nak_suppress_ms >= t.nak_generation_ms > 0:
        yield warning(
            at, f"{prefix}suppress_interval",
            f"{seconds(t.nak_suppress_ms)} reaches the generation interval of {generation}",
            "after one refusal by NCF nothing is asked for again", f"set it to {max(1, t.nak_generation_ms // 10)}",
        )  # fmt: skip


def window_time(t: Recovery, at: Place, subject: str) -> Findings:
    """Compare how long a sent datagram stays in the window at full rate with how long receivers go on asking."""
    size = min(filter(None, (t.window_size_bytes, t.window_limit_bytes)), default=0)
    if not size or not t.data_rate_bps:
        return
    held_ms, asked = size * 8 * 1000 / t.data_rate_bps, seconds(t.nak_generation_ms)
    if held_ms < t.nak_generation_ms:
        needed = t.data_rate_bps // 8 * t.nak_generation_ms // 1000
        tell = warning if held_ms < WINDOW_MS else hint
        yield tell(
            at, subject,
            f"{size} bytes are {seconds(held_ms)} at {rate(t.data_rate_bps)}, receivers ask for {asked}",
            "NAKs of the time after that are refused and the loss stays",
            f"set it to {needed}, or the NAK generation interval of the receivers to {int(held_ms)}",
        )  # fmt: skip


def rates(t: Recovery, at: Place, subject: str) -> Findings:
    """Repairs neither starve nor are starved."""
    data_bps, resent_bps = t.data_rate_bps, t.retransmit_rate_bps
    if not data_bps:
        return
    if not resent_bps or resent_bps >= data_bps:
        given = rate(resent_bps) if resent_bps else "no limit"
        yield warning(
            at, subject, f"{given} for repairs, {rate(data_bps)} for data",
            "one bad receiver can take the whole rate from new data", f"set it to {data_bps // 2}",
        )  # fmt: skip
    elif resent_bps * MIN_RETRANSMIT_SHARE < data_bps:
        share = 100 * resent_bps / data_bps
        yield hint(
            at, subject, f"{rate(resent_bps)} for repairs is {share:.1f} % of the {rate(data_bps)} for data",
            "repairs of a burst of losses take longer than receivers wait", f"set it to {data_bps // 2}",
        )  # fmt: skip


def session_life(t: Recovery, at: Place, subject: str, sm_name: str) -> Findings:
    """Session messages against the silence that ends a session."""
    longest_ms, activity_ms = t.sm_max_interval_ms, t.activity_timeout_ms
    if t.sm_min_interval_ms > longest_ms:
        yield warning(
            at, sm_name, f"{seconds(longest_ms)} is below the minimum interval of {seconds(t.sm_min_interval_ms)}",
            "idle sessions are not announced as intended", f"set it to {max(10_000, t.sm_min_interval_ms)}",
        )  # fmt: skip
    if activity_ms < SM_PER_TIMEOUT * longest_ms:
        yield warning(
            at, subject,
            f"{seconds(activity_ms)} is below {SM_PER_TIMEOUT} session message intervals of {seconds(longest_ms)}",
            "an idle session ends at its receivers when a session message is lost",
            f"set it to {SM_PER_TIMEOUT * longest_ms}, or {sm_name} to {activity_ms // SM_PER_TIMEOUT}",
        )  # fmt: skip
    if activity_ms < t.nak_generation_ms:
        yield warning(
            at, subject,
            f"{seconds(activity_ms)} is below the NAK generation interval of {seconds(t.nak_generation_ms)}",
            "a session may end with losses that are never reported", f"set it to {2 * t.nak_generation_ms} or more",
        )  # fmt: skip


# rules of an endpoint


def _of_udp(relation: Callable[..., Findings], names: str, *subjects: str) -> Callable[[EndpointView], Findings]:
    """Make a rule of a relation among options of LBT-RM or LBT-RU, for when one of `names` was changed.

    `subjects` are names of options to tell of, with `*` for the transport.
    """

    def rule(p: EndpointView) -> Findings:
        for transport in UDP:
            at = _site(p, transport, names)
            if at is not None:
                told = (subject.replace("*", transport) for subject in subjects)
                yield from relation(_recovery(p, transport), at, *told)

    return rule


udp_ignore = _of_udp(
    naks, "ignore_interval nak_backoff_interval nak_generation_interval",
    "source transport_*_ignore_interval", "receiver transport_*_nak_backoff_interval",
)  # fmt: skip
udp_nak_times = _of_udp(
    nak_times, "nak_generation_interval nak_suppress_interval nak_backoff_interval nak_initial_backoff_interval",
    "receiver transport_*_nak_",
)  # fmt: skip
udp_window = _of_udp(
    window_time, "nak_generation_interval data_rate_limit transmission_window_limit transmission_window_size",
    "source transport_*_transmission_window_size",
)  # fmt: skip
udp_rates = _of_udp(rates, "data_rate_limit retransmit_rate_limit", "context transport_*_retransmit_rate_limit")
_session_life = _of_udp(
    session_life, "nak_generation_interval sm_minimum_interval sm_maximum_interval activity_timeout",
    "receiver transport_*_activity_timeout", "source transport_*_sm_maximum_interval",
)  # fmt: skip


def sessions(p: EndpointView) -> Findings:
    """Compare the silence that ends a session with what is sent while there are no messages."""
    yield from _session_life(p)
    key = (RCV, "transport_lbtrm_preactivity_timeout")
    pre_ms, sm_ms = p.receiving.ms(*key), p.sending.ms(SRC, "transport_lbtrm_sm_maximum_interval")
    if p.receiving.differs(key) and 0 < pre_ms < sm_ms:
        yield warning(
            p.receiving.place(key), " ".join(key),
            f"{seconds(pre_ms)} is below the session message interval of {seconds(sm_ms)}",
            "a quiet session is left before it has had a chance to be heard", f"set it to {SM_PER_TIMEOUT * sm_ms}",
        )  # fmt: skip
    sends, waits = (RCV, "transport_lbtru_acknowledgement_interval"), (SRC, "transport_lbtru_client_activity_timeout")
    interval_ms, timeout_ms = p.receiving.ms(*sends), p.sending.ms(*waits)
    if timeout_ms < SM_PER_TIMEOUT * interval_ms:
        yield warning(
            p.sending.place(waits) if p.sending.differs(waits) else p.receiving.place(sends), " ".join(waits),
            f"{seconds(timeout_ms)} is below {SM_PER_TIMEOUT} acknowledgement intervals of {seconds(interval_ms)}",
            "a source forgets receivers that are there when acknowledgements are lost",
            f"set it to {SM_PER_TIMEOUT * interval_ms}, or {' '.join(sends)} to {timeout_ms // SM_PER_TIMEOUT}",
        )  # fmt: skip
    sends, waits = (SRC, "transport_lbtipc_sm_interval"), (RCV, "transport_lbtipc_activity_timeout")
    interval_ms, timeout_ms = p.sending.ms(*sends), p.receiving.ms(*waits)
    if timeout_ms < 2 * interval_ms:
        yield warning(
            p.receiving.place(waits) if p.receiving.differs(waits) else p.sending.place(sends), " ".join(waits),
            f"{seconds(timeout_ms)} is below two session message intervals of {seconds(interval_ms)}",
            "an idle session ends at its receivers",
            f"set it to {2 * interval_ms}, or {' '.join(sends)} to {timeout_ms // 2}",
        )  # fmt: skip


def unreliable(p: EndpointView) -> Findings:
    """Switches that take reliability away."""
    for transport, name in (("lbtrm", "LBT-RM"), ("lbtru", "LBT-RU")):
        key = (RCV, f"transport_{transport}_send_naks")
        if p.receiving.number(*key) == 0:
            yield hint(
                p.receiving.place(key), " ".join(key), "NAKs are switched off",
                f"every lost datagram of {name} stays lost", "set it to 1",
            )  # fmt: skip
        key = (CTX, f"transport_{transport}_data_rate_limit")
        if p.sending.number(*key) == 0 and p.sending.um.get_str(SRC, "transport") == transport:
            yield hint(
                p.sending.place(key), " ".join(key), f"no rate limit for data of {name}",
                "a fast source fills the buffers of switches and receivers, which shows as loss",
                "set it to what the slowest receiver takes in",
            )  # fmt: skip


def udp_quota(p: EndpointView) -> Findings:
    """The rate limiter gives out credit for one interval at a time."""
    for transport in UDP:
        keys = ((CTX, f"transport_{transport}_data_rate_limit"), (CTX, f"transport_{transport}_rate_interval"))
        bps, interval_ms = p.sending.number(*keys[0]), p.sending.ms(*keys[1])
        size = datagram_size(p.sending, transport, "source")
        quota = bps * interval_ms // 8000
        if p.sending.differs(*keys) and 0 < quota < size:
            yield hint(
                p.sending.place(*keys), " ".join(keys[0]),
                f"{quota} bytes for each interval of {interval_ms} ms, a datagram may have {size}",
                "a full datagram waits for several intervals",
                f"set it to {-(-size * 8000 // interval_ms)}, or lower the datagram size",
            )  # fmt: skip


def loss_check(p: EndpointView) -> Findings:
    """How often receivers look for losses, compared with how long they ask and how long a session lives."""
    for transport in UDP:
        keys = ((RCV, f"transport_{transport}_nak_generation_interval"),
                (RCV, f"transport_{transport}_activity_timeout"),
                (RCV, "delivery_control_loss_check_interval"))  # fmt: skip
        generation_ms, activity_ms, check_ms = (p.receiving.ms(*key) for key in keys)
        if not check_ms or not p.receiving.differs(*keys):
            continue
        at, subject = p.receiving.place(*keys), " ".join(keys[2])
        if activity_ms <= check_ms + generation_ms:
            yield warning(
                at, subject,
                f"with the generation interval it is {seconds(check_ms + generation_ms)}, the activity timeout "
                f"{seconds(activity_ms)}",
                "a session may end before its losses are noticed",
                f"set {keys[1][1]} above {check_ms + generation_ms}",
            )  # fmt: skip
        if generation_ms < 4 * check_ms:
            yield hint(
                at, subject, f"{seconds(check_ms)} is more than a quarter of the generation interval of "
                f"{seconds(generation_ms)}",
                "losses are reported late", f"set it to {max(1, generation_ms // 4)}",
            )  # fmt: skip


def tsni(p: EndpointView) -> Findings:
    """Topic sequence number information shows losses at the end of a burst, as long as a source sends it."""
    keys = ((SRC, "transport_topic_sequence_number_info_interval"),
            (SRC, "transport_topic_sequence_number_info_active_threshold"))  # fmt: skip
    interval_ms, threshold_ms = (p.sending.ms(*key) for key in keys)
    asked = [(RCV, f"transport_{transport}_nak_generation_interval") for transport in UDP]
    usual = p.sending.um.get_str(SRC, "transport") == "lbtru"  # whose receivers ask for so long, unless told otherwise
    counted = [key for key in asked if p.receiving.differs(key)] or [asked[usual]]
    needed_ms = 4 * interval_ms + max(p.receiving.ms(*key) for key in counted)
    changed = p.sending.differs(*keys) or p.receiving.differs(*asked)
    if changed and 0 < threshold_ms < needed_ms and interval_ms:
        yield hint(
            p.sending.place(*keys), " ".join(keys[1]),
            f"{seconds(threshold_ms)} is below four intervals and the NAK generation interval, {seconds(needed_ms)}",
            "a loss at the end of a burst may stay unnoticed", f"set it to {-(-needed_ms // 1000)}",
        )  # fmt: skip
    key = (RCV, "transport_tcp_activity_timeout")
    timeout_ms = p.receiving.ms(*key)
    by_timer = p.receiving.um.get_str(RCV, "transport_tcp_activity_method") == "timer"
    if by_timer and 0 < timeout_ms < 3 * interval_ms:
        yield warning(
            p.receiving.place(key), " ".join(key),
            f"{seconds(timeout_ms)} is less than three intervals of topic sequence number information, "
            f"{seconds(3 * interval_ms)}",
            "idle TCP sessions end for no reason", f"set it to {3 * interval_ms}, or the method to SO_KEEPALIVE",
        )  # fmt: skip


def datagram_size(options: SideOptions, transport: str, side: str) -> int:
    """The datagram size of one side of a transport; the ordered ones have one for both."""
    own = options.number(CTX, f"transport_{transport}_{side}_datagram_max_size") if transport in UDP else 0
    return own or options.number(CTX, f"transport_{transport}_datagram_max_size")


def buffers(p: EndpointView) -> Findings:
    """Receive buffers against the rate of the sources, so that a short pause of the process costs nothing."""
    for name in UDP:
        keys = ((CTX, f"transport_{name}_data_rate_limit"), (CTX, f"transport_{name}_receiver_socket_buffer"))
        bps, size = (p.receiving.number(*key) for key in keys)
        if size and bps and p.receiving.differs(*keys) and (held_ms := size * 8000 / bps) < BUFFER_MS:
            yield warning(
                p.receiving.place(*keys), " ".join(keys[1]),
                f"{size} bytes are {held_ms:.1f} ms at {rate(bps)}",
                "a pause of the process longer than that loses datagrams", f"set it to {max(8 << 20, bps // 40)}",
            )  # fmt: skip
    transport = p.sending.um.get_str(SRC, "transport")
    limit_key = (SRC, "transport_session_maximum_buffer")
    limit, largest = p.sending.number(*limit_key), datagram_size(p.sending, "tcp", "source")
    if transport == "tcp" and p.sending.differs(limit_key) and 0 < limit < largest:
        yield warning(
            p.sending.place(limit_key), " ".join(limit_key), f"{limit} bytes hold no datagram of {largest}",
            "large messages block the session", f"set it to {16 * largest}",
        )  # fmt: skip
    pair = ((CTX, "resolver_datagram_max_size"), (CTX, "resolver_multicast_receiver_socket_buffer"))
    largest, size = (p.receiving.number(*key) for key in pair)
    if p.receiving.differs(pair[1]) and 0 < size < 8 * largest:
        yield warning(
            p.receiving.place(pair[1]), " ".join(pair[1]), f"{size} bytes hold {size // largest} datagrams",
            "a burst of advertisements is lost, and topics are found late", f"set it to {8 << 20}",
        )  # fmt: skip


def own_sizes(p: EndpointView) -> Findings:
    """Find sources of a TRD that send more than fits into the buffers of its receivers."""
    for transport in UDP:
        keys = tuple(
            (CTX, f"transport_{transport}_{name}datagram_max_size") for name in ("", "receiver_", "source_")
        )  # fmt: skip
        sends, takes = datagram_size(p.sending, transport, "source"), datagram_size(p.receiving, transport, "receiver")
        if sends > takes and (p.sending.differs(*keys) or p.receiving.differs(*keys)):
            yield warning(
                p.receiving.place(*keys), " ".join(keys[1]), f"receivers take {takes} bytes, sources send {sends}",
                "larger datagrams are lost for good", f"set both to {sends}",
            )  # fmt: skip


def filtering(p: EndpointView) -> Findings:
    """Find sources that are to filter on a transport that does not."""
    key = (SRC, "transport_source_side_filtering_behavior")
    transport = p.sending.um.get_str(SRC, "transport")
    if p.sending.differs(key) and p.sending.um.get_str(*key) == "inclusion" and transport != "tcp":
        yield hint(
            p.sending.place(key), " ".join(key), f"proxy sources send by {transport}, which does not filter",
            "receivers get all topics of a session, and drop what they do not want", "remove it, or send by TCP",
        )  # fmt: skip


def batching(p: EndpointView) -> Findings:
    keys = ((SRC, "implicit_batching_minimum_length"), (SRC, "implicit_batching_interval"))
    least, wait_ms = p.sending.number(*keys[0]), p.sending.ms(*keys[1])
    transport = p.sending.um.get_str(SRC, "transport")
    if transport not in SIZES:
        return
    size = datagram_size(p.sending, transport, "source")
    if p.sending.differs(*keys) and least > size and not p.config.smart_batch and wait_ms > 0:
        yield hint(
            p.sending.place(keys[0]), " ".join(keys[0]), f"{least} is above the datagram size of {size}",
            f"each message waits for {seconds(wait_ms)} unless others follow", "lower it, or set <smart-batch> to 1",
        )  # fmt: skip

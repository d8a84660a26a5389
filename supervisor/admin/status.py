"""Records of `tnwgdctl status` and `portals`, sent over the admin socket."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One process of the DRO; one that is not running has pid 0."""

    name: str
    role: str  # route manager, endpoint, ...
    index: int
    state: str
    pid: int
    incarnation: int
    restarts: int  # lives after the first, whatever ended the earlier ones
    uptime_s: float  # of this life; 0 when it is not running
    last_death: str  # how its last life ended; empty when it still has its first
    operation: str = ""  # what an operator has ordered and is not done

    @property
    def is_resting(self) -> bool:
        """Stopped by an operator, until it is resumed."""
        return self.state in ("paused", "drained")


@dataclass(frozen=True, slots=True)
class DroStatus:
    name: str
    version: str
    node_id: str  # decimal, as in the log; JSON readers would round the number
    pid: int
    uptime_s: float
    config_file: str
    config_loaded: float  # seconds since the epoch
    is_running: bool  # every worker was ready at least once, and the DRO is not stopping
    pending: tuple[str, ...] = ()  # changed elements that wait for a restart of the daemon
    run_dir: str = ""
    workers: tuple[WorkerStatus, ...] = field(default=())
    change: str = ""  # of the configuration, that is under way or waits for its confirmation
    routes: int = -1  # of the last calculation; -1 before the first
    routes_wait_s: float = 0.0  # the first follows so long after the last portal was ready


@dataclass(frozen=True, slots=True)
class PortalStatus:
    """One portal, with its counters since the start of the DRO. Fragments and bytes go with the name of the portal that
    sends them into its TRD; those that its full channel refused count as forwarded and dropped here."""

    name: str
    kind: str  # endpoint or peer
    state: str
    domain_id: int
    cost: int
    proxy_receivers: int
    proxy_sources: int
    local_topics: int  # wanted by receivers of its TRD
    local_patterns: int
    remote_topics: int  # wanted by other DROs in its TRD
    remote_patterns: int
    received: int  # fragments of applications that came from its TRD
    received_bytes: int
    control_received: int  # what sources of its TRD said about themselves
    forwarded: int  # fragments from other portals, for its TRD; from here on both kinds are counted
    forwarded_bytes: int
    sent: int
    sent_bytes: int
    dropped: dict[str, int]  # by reason
    queued: int
    queued_bytes: int
    queued_bytes_max: int
    queue_limit_bytes: int
    unrecovered: int  # transport datagrams given up by its proxy receivers
    naks_sent: int
    retransmitted: int
    socket_drops: int  # datagrams that found a full receive buffer
    unsent: int  # datagrams that the system refused to send
    discarded: int  # messages not sent to a slow TCP receiver, for each
    unicast_received: int  # from its TRD or the other DRO, data and control
    unicast_forwarded: int  # that leave by this portal
    unicast_sent: int
    unicast_dropped: dict[str, int]  # by reason, where they came in and where they leave
    immediate_received: int  # multicast immediate messages, likewise
    immediate_forwarded: int
    immediate_sent: int
    immediate_dropped: dict[str, int]
    gateway_control_received: int  # from other DROs
    gateway_control_sent: int
    gateway_control_dropped: int  # of both
    bad_datagrams: int = 0  # dropped: of its TRD or of a link with <udp>, broken or of somebody else
    unknown_source: int = 0  # fragments of sources that nobody wanted; from a companion: that are not known
    link_up: bool = False  # from here on of a peer portal, since its start
    link_reconnects: int = 0
    link_repairs: int = 0  # by digests
    link_lost_bytes: int = 0  # that may not have arrived when a connection ended
    batches: int = 0
    batch_min_bytes: int = 0
    batch_mean_bytes: int = 0
    batch_max_bytes: int = 0
    rtt_samples: int = 0
    rtt_min_us: int = 0
    rtt_mean_us: int = 0
    rtt_max_us: int = 0
    keepalive_answered_s: int = 0  # since the epoch; 0: none yet

    @property
    def dropped_total(self) -> int:
        return sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class PortalsStatus:
    """All portals at one moment."""

    time_s: float  # of a monotonic clock, for rates
    portals: tuple[PortalStatus, ...]


@dataclass(frozen=True, slots=True)
class OperationResult:
    """What an operation on a portal has come to. `note` tells what was not clean, and is empty otherwise."""

    portal: str
    state: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """What `drain --all` has come to: the DRO ends next. `notes` tell what was not clean, and are empty otherwise.

    `paths` between domains led through this DRO to the end, as there is no other way; -1 when routes did not follow in
    time.
    """

    paths: int
    drained: tuple[str, ...]
    notes: tuple[str, ...] = ()

"""The configuration of a DRO as the rest of the program sees it: frozen records, no XML.

Units are in the names; every value was checked. Lines are kept for messages and take no part in comparisons, so that
an edited file with the same meaning counts as unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dro.config.reading.reader import Node
from dro.config.um.layers import ContextOptions
from dro.config.um.options import UmOptions


@dataclass(frozen=True, slots=True)
class LogConfig:
    """`<log>`: where log lines go."""

    type: str  # console, file or syslog
    file: str  # of type file; empty otherwise
    frequency: str  # disable, daily, hourly or test
    size_mb: int  # millions of bytes; 0: no rolling by size


@dataclass(frozen=True, slots=True)
class RouteInfoConfig:
    """`<route-info>`: exchange of route information among DROs."""

    propagation_interval_ms: int
    check_interval_ms: int
    timeout_ms: int
    max_hop_count: int


@dataclass(frozen=True, slots=True)
class RouteRecalculationConfig:
    """`<route-recalculation>`: when paths are computed anew."""

    backoff_interval_ms: int
    warning_interval_ms: int


@dataclass(frozen=True, slots=True)
class FastRecalculationConfig:
    """`<fast-recalculation>`."""

    first_interval_ms: int


@dataclass(frozen=True, slots=True)
class RouteAuthenticationConfig:
    """`<route-authentication>`. The keys take no part in `repr`; the first one signs.

    Without keys the file cannot be read here, and `unread` says why: such a configuration can be looked at and not run.
    """

    key_file: str  # path as it was opened
    keys: tuple[bytes, ...] = field(repr=False)
    accepts_unsigned: bool
    unread: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class MapConfig:
    """`<topicmap>` or `<patternmap>`: read, and without effect, since names are kept in Python's own tables."""

    hash_function: str
    size: int


@dataclass(frozen=True, slots=True)
class UdpConfig:
    """Says where datagrams with statistics go: to `mcgroup`, else `bcaddress`, else `address`; else they are empty."""

    mcgroup: str
    bcaddress: str
    address: str
    port: int
    ttl: int  # of multicast
    interface: str  # of multicast: dotted local address; 0.0.0.0 for any


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """`<monitor>` with its two modules, or what UM options say instead: statistics of the UM contexts.

    `um` holds the options of the statistics context and its source, `udp` replaces them. While it `is_held` nothing is
    sent: pb statistics and those of `<daemon-monitor>` exclude each other.
    """

    interval_s: int  # 0: off
    transport_module: str  # lbm, lbmsnmp or udp
    topic: str
    um: UmOptions
    udp: UdpConfig | None
    format_module: str  # csv or pb
    separator: str
    is_held: bool = False

    def __str__(self) -> str:
        return f"every {self.interval_s} s by {self.transport_module} as {self.format_module}"


@dataclass(frozen=True, slots=True)
class WebMonitorConfig:
    """`<web-monitor>`: where the web monitor listens. `interface` as written; empty for all interfaces."""

    interface: str
    port: int


@dataclass(frozen=True, slots=True)
class PublishingConfig:
    """`<publishing-interval>`: gaps in seconds by group of daemon statistics; 0 is off."""

    intervals_s: tuple[tuple[str, int], ...] = ()

    def interval_s(self, group: str) -> int | None:
        """The gap of a group, else that of the group `default`; None if neither is set."""
        intervals = dict(self.intervals_s)
        return intervals.get(group, intervals.get("default"))


@dataclass(frozen=True, slots=True)
class DaemonMonitorConfig:
    """`<daemon-monitor>`: binary daemon statistics (deprecated). `um` holds the options of its context and source."""

    topic: str
    publishing: PublishingConfig
    answers_snapshots: bool
    obeys_changes: bool
    lbm_config: tuple[str, ...]
    um: UmOptions


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """`<daemon>`: what concerns the whole process."""

    name: str  # may be empty
    log: LogConfig
    route_info: RouteInfoConfig
    route_recalculation: RouteRecalculationConfig
    topic_map: MapConfig
    pattern_map: MapConfig
    uid: int | None = None  # None: unchanged
    gid: int | None = None
    pidfile: str = ""
    license_file: str = ""  # read and without effect
    monitor: MonitorConfig | None = None
    web_monitor: WebMonitorConfig | None = None
    daemon_monitor: DaemonMonitorConfig | None = None
    xml_config: str = ""  # path as it was opened
    fast_recalculation: FastRecalculationConfig | None = None
    equal_cost_sharing: bool = False
    route_authentication: RouteAuthenticationConfig | None = None


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`<rate-limit>` of one kind of message; 0 is no limit."""

    bps: int
    objects_per_second: int


@dataclass(frozen=True, slots=True)
class UseQueryConfig:
    """`<topic-use-query>` or `<pattern-use-query>`: how local interest is checked."""

    timeout_ms: int
    max: int
    periodic_interval_ms: int
    rate_limit: RateLimit


@dataclass(frozen=True, slots=True)
class AnnouncementConfig:
    """`<remote-topic-interest>`, `<remote-pattern-interest>` or `<domain-route>`: gaps between repetitions."""

    min_interval_ms: int
    max_interval_ms: int
    rate_limit: RateLimit


@dataclass(frozen=True, slots=True)
class InitialRequestConfig:
    """`<initial-request>`: resolution requests after the start."""

    periodic_interval_ms: int
    duration_s: int


@dataclass(frozen=True, slots=True)
class TopicResolutionConfig:
    """`<topic-resolution>` of an endpoint."""

    topic_use_query: UseQueryConfig
    pattern_use_query: UseQueryConfig
    remote_topic_interest: AnnouncementConfig
    remote_pattern_interest: AnnouncementConfig
    domain_route: AnnouncementConfig
    initial_request: InitialRequestConfig


@dataclass(frozen=True, slots=True)
class RemoteInterestConfig:
    """`<remote-topic>` or `<remote-pattern>`: sweep of interest that is no longer refreshed."""

    check_interval_ms: int
    max: int  # entries of one sweep
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SqnWindowConfig:
    """`<sqn-window>`: duplicate detection of one source, in sequence numbers."""

    size: int
    increment: int


@dataclass(frozen=True, slots=True)
class ContextQueryConfig:
    """`<context-query>`: context name queries."""

    periodic_interval_ms: int
    max_contexts: int
    interval_ms: int
    timeout_s: int


@dataclass(frozen=True, slots=True)
class ConditionConfig:
    """One condition of an ACE: `kind` is the name of its element, `value` a text, a port, an id or an address.

    `comparison` is `eq`, `ne`, `lt`, `le`, `gt` or `ge`, and `eq` for the three kinds of topic conditions.
    """

    kind: str
    value: str | int
    comparison: str = "eq"
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class AceConfig:
    """`<ace>`: its conditions are joined by AND."""

    accept: bool
    conditions: tuple[ConditionConfig, ...]
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class AclConfig:
    """`<acl>`: entries in order; a direction without a list (None) lets everything pass."""

    inbound: tuple[AceConfig, ...] | None = None
    outbound: tuple[AceConfig, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortalConfig:
    """Hold what `<endpoint>` and `<peer>` have in common. `um` holds the UM options with all layers applied."""

    name: str
    cost: int
    source_deletion_delay_ms: int
    max_queue_bytes: int
    smart_batch: bool
    lbm_config: tuple[str, ...]  # paths as they were opened
    sqn_window: SqnWindowConfig
    context_query: ContextQueryConfig
    um: UmOptions
    sending: ContextOptions  # options of the sending context and, by topic, of proxy sources
    receiving: ContextOptions  # options of the receiving context and, by topic or pattern, of proxy receivers
    acl: AclConfig | None = None
    source_context_name: str = ""
    receiver_context_name: str = ""
    publishing: PublishingConfig | None = None
    line: int = field(default=0, compare=False)
    file: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig(PortalConfig):
    """`<endpoint>`: a portal that joins one TRD."""

    domain_id: int
    topic_resolution: TopicResolutionConfig
    remote_topic: RemoteInterestConfig
    remote_pattern: RemoteInterestConfig
    hotlink_index: int = 0  # 0: none


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`<tls>` of a peer link; it covers the UDP part as well. The password takes no part in `repr`."""

    certificate: str
    certificate_key: str
    certificate_key_password: str = field(repr=False)
    trusted_certificates: str  # empty: those of the system
    cipher_suites: tuple[str, ...]  # OpenSSL names, best first; empty: the built-in list
    peer_name: str = ""  # that the companion's certificate must have; empty: any


@dataclass(frozen=True, slots=True)
class InitiatorConfig:
    """`<initiator>`: this side connects."""

    address: str  # dotted, or a host name that is resolved at each attempt
    port: int
    reconnect_interval_ms: int


@dataclass(frozen=True, slots=True)
class PeerTcpConfig:
    """`<single-tcp>`: the TCP part of a peer link. Either `initiator` is set or `listen_port` is not 0."""

    interface: str  # dotted local address; 0.0.0.0 for any
    receive_buffer_bytes: int  # 0: the system decides
    send_buffer_bytes: int
    keepalive: bool
    nodelay: bool
    compression: str  # LZ4 or empty; for the UDP part as well
    tls: TlsConfig | None
    initiator: InitiatorConfig | None
    listen_port: int


@dataclass(frozen=True, slots=True)
class PeerUdpConfig:
    """`<udp>`: the data part of a peer link over a reliable UDP protocol."""

    port: int
    receive_buffer_bytes: int
    send_buffer_bytes: int
    datagrams_per_read: int  # 0: one at a time
    coalesce_threshold: int
    window_size_bytes: int
    window_limit_bytes: int  # 0: none
    data_rate_bps: int
    retransmit_rate_bps: int
    rate_interval_ms: int
    nak_initial_backoff_ms: int
    nak_backoff_ms: int
    nak_suppress_ms: int
    nak_generation_ms: int
    send_naks: bool
    ignore_interval_ms: int
    sm_min_interval_ms: int
    sm_max_interval_ms: int
    activity_timeout_ms: int
    connect_interval_ms: int
    connect_attempts: int


@dataclass(frozen=True, slots=True)
class GatewayKeepaliveConfig:
    """`<gateway-keepalive>` of a peer link."""

    only_when_idle: bool
    interval_ms: int  # 0: off
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class FastKeepaliveConfig:
    """`<fast-keepalive>` of a peer link."""

    interval_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class CanaryConfig:
    """`<canary>` of a peer link."""

    interval_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig(PortalConfig):
    """`<peer>`: a portal linked to a companion of another DRO."""

    sourcemap_size: int
    tcp: PeerTcpConfig
    udp: PeerUdpConfig | None
    uim_max_queue_bytes: int  # of messages for one receiver, apart from the rest; 0: a tenth of `max_queue_bytes`
    max_datagram_bytes: int
    batch_min_bytes: int
    batch_interval_ms: int
    keepalive: GatewayKeepaliveConfig
    fast_keepalive: FastKeepaliveConfig | None = None
    canary: CanaryConfig | None = None


@dataclass(frozen=True, slots=True)
class DroConfig:
    """One DRO configuration file. `tree` holds every value as text with its place, also those that are defaults."""

    daemon: DaemonConfig
    portals: tuple[EndpointConfig, ...]  # the endpoints, in file order
    peers: tuple[PeerConfig, ...] = ()
    file: str = field(default="", compare=False)
    tree: Node | None = field(default=None, compare=False, repr=False)

    @property
    def all_portals(self) -> tuple[EndpointConfig | PeerConfig, ...]:
        """Endpoints, then peers."""
        return (*self.portals, *self.peers)


def statistics_on(config: DroConfig) -> bool:
    """Whether statistics are published over UM."""
    monitor = config.daemon.monitor
    is_sent = monitor is not None and monitor.interval_s > 0 and not monitor.is_held
    return is_sent or config.daemon.daemon_monitor is not None

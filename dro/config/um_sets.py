"""Typed sets of UM options: what one part of the client library or a portal needs, in the units that cores use.

Each set is made by its `of(options)` from the `UmOptions` of the object in question (context options merged with
those of the source or receiver). Durations are nanoseconds, sizes bytes, rates bits or records per second; 0 keeps
the meaning that the option gives it. Interfaces are dotted local addresses, `0.0.0.0` for "any". No default stands
here: all come from the option table.
"""

from __future__ import annotations

from dataclasses import dataclass

from dro.config.options import UmOptions

CTX = "context"
SRC = "source"
RCV = "receiver"
WRCV = "wildcard_receiver"


def source_transport(o: UmOptions) -> str:
    """The `transport` of a source: `tcp`, `lbtrm`, `lbtru`, `lbtipc`, `lbtsmx`, `broker` or `lbtrdma`."""
    return o.get_str(SRC, "transport")


def _side_size(o: UmOptions, common: str, side: str) -> int:
    """A datagram size that one side may override: 0 there means the common option."""
    return o.get_int(CTX, side) or o.get_int(CTX, common)


@dataclass(frozen=True, slots=True)
class RateCap:
    """Limits of one class of topic resolution records; 0 is unlimited."""

    records_per_second: int
    bps: int


@dataclass(frozen=True, slots=True)
class ResolverOptions:
    """The topic resolution channel of a context."""

    incoming_address: str  # 0.0.0.0: does not listen
    incoming_port: int
    outgoing_address: str
    outgoing_port: int
    interface: str
    ttl: int
    receive_buffer_bytes: int
    source_datagram_max_bytes: int
    receiver_datagram_max_bytes: int
    initial_advertisement: RateCap
    sustain_advertisement: RateCap
    initial_query: RateCap
    sustain_query: RateCap
    wildcard_query: RateCap
    cache: bool
    domain_id_active_propagation_timeout_s: int  # -1, 0 or seconds
    unicast_daemons: tuple[str, ...]  # any entry switches multicast resolution off

    @classmethod
    def of(cls, o: UmOptions) -> ResolverOptions:
        def cap(records: str, bps: str) -> RateCap:
            return RateCap(o.get_int(CTX, f"resolver_{records}_per_second"), o.get_int(CTX, f"resolver_{bps}_bps"))

        return cls(
            incoming_address=o.get_ip(CTX, "resolver_multicast_incoming_address"),
            incoming_port=o.get_int(CTX, "resolver_multicast_incoming_port"),
            outgoing_address=o.get_ip(CTX, "resolver_multicast_outgoing_address"),
            outgoing_port=o.get_int(CTX, "resolver_multicast_outgoing_port"),
            interface=o.get_interface(CTX, "resolver_multicast_interface"),
            ttl=o.get_int(CTX, "resolver_multicast_ttl"),
            receive_buffer_bytes=o.get_int(CTX, "resolver_multicast_receiver_socket_buffer"),
            source_datagram_max_bytes=_side_size(o, "resolver_datagram_max_size", "resolver_source_datagram_max_size"),
            receiver_datagram_max_bytes=_side_size(
                o, "resolver_datagram_max_size", "resolver_receiver_datagram_max_size"
            ),
            initial_advertisement=cap("initial_advertisements", "initial_advertisement"),
            sustain_advertisement=cap("sustain_advertisements", "sustain_advertisement"),
            initial_query=cap("initial_queries", "initial_query"),
            sustain_query=cap("sustain_queries", "sustain_query"),
            wildcard_query=cap("wildcard_queries", "wildcard_query"),
            cache=o.get_bool(CTX, "resolver_cache"),
            domain_id_active_propagation_timeout_s=o.get_int(CTX, "resolver_domain_id_active_propagation_timeout"),
            unicast_daemons=o.get_list(CTX, "resolver_unicast_daemon"),
        )


@dataclass(frozen=True, slots=True)
class AdvertisingOptions:
    """The advertising phases of a source; an interval of 0 switches its phase off, a duration of 0 has no end."""

    send_at_creation: bool
    initial_min_ns: int
    initial_max_ns: int
    initial_duration_ns: int
    sustain_interval_ns: int
    sustain_duration_ns: int
    immediate_response: bool
    send_final: bool

    @classmethod
    def of(cls, o: UmOptions) -> AdvertisingOptions:
        return cls(
            send_at_creation=o.get_bool(SRC, "resolver_send_initial_advertisement"),
            initial_min_ns=o.get_ns(SRC, "resolver_advertisement_minimum_initial_interval"),
            initial_max_ns=o.get_ns(SRC, "resolver_advertisement_maximum_initial_interval"),
            initial_duration_ns=o.get_ns(SRC, "resolver_advertisement_minimum_initial_duration"),
            sustain_interval_ns=o.get_ns(SRC, "resolver_advertisement_sustain_interval"),
            sustain_duration_ns=o.get_ns(SRC, "resolver_advertisement_minimum_sustain_duration"),
            immediate_response=o.get_bool(SRC, "resolver_advertisement_send_immediate_response"),
            send_final=o.get_bool(SRC, "resolver_send_final_advertisements"),
        )


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """The querying phases of a receiver; zeros as in `AdvertisingOptions`."""

    initial_min_ns: int
    initial_max_ns: int
    initial_duration_ns: int
    sustain_interval_ns: int
    sustain_duration_ns: int
    sources_threshold: int
    no_source_threshold: int  # unanswered queries before a no-source event, 0 for never

    @classmethod
    def of(cls, o: UmOptions) -> QueryOptions:
        return cls(
            initial_min_ns=o.get_ns(RCV, "resolver_query_minimum_initial_interval"),
            initial_max_ns=o.get_ns(RCV, "resolver_query_maximum_initial_interval"),
            initial_duration_ns=o.get_ns(RCV, "resolver_query_minimum_initial_duration"),
            sustain_interval_ns=o.get_ns(RCV, "resolver_query_sustain_interval"),
            sustain_duration_ns=o.get_ns(RCV, "resolver_query_minimum_sustain_duration"),
            sources_threshold=o.get_int(RCV, "resolution_number_of_sources_query_threshold"),
            no_source_threshold=o.get_int(RCV, "resolution_no_source_notification_threshold"),
        )


@dataclass(frozen=True, slots=True)
class WildcardOptions:
    """A wildcard receiver: its pattern and its queries."""

    pattern_type: str  # pcre, regex or appcb
    query_min_ns: int
    query_max_ns: int
    query_duration_ns: int
    no_source_linger_ns: int

    @classmethod
    def of(cls, o: UmOptions) -> WildcardOptions:
        return cls(
            pattern_type=o.get_str(WRCV, "pattern_type"),
            query_min_ns=o.get_ns(WRCV, "resolver_query_minimum_interval"),
            query_max_ns=o.get_ns(WRCV, "resolver_query_maximum_interval"),
            query_duration_ns=o.get_ns(WRCV, "resolver_query_minimum_duration"),
            no_source_linger_ns=o.get_ns(WRCV, "resolver_no_source_linger_timeout"),
        )


@dataclass(frozen=True, slots=True)
class LbtrmSourceOptions:
    """LBT-RM, sending: sessions, retransmission window, session messages, rate limits."""

    interface: str
    ttl: int
    address: str  # 0.0.0.0: one of the range
    address_low: str
    address_high: str
    destination_port: int
    nak_port_low: int  # unicast ports that take NAKs, one for each session
    nak_port_high: int
    window_size_bytes: int
    window_limit_bytes: int  # 0: none
    ignore_ns: int
    sm_min_ns: int
    sm_max_ns: int
    tgsz: int
    data_rate_bps: int
    retransmit_rate_bps: int
    rate_interval_ns: int
    datagram_max_bytes: int
    send_buffer_bytes: int

    @classmethod
    def of(cls, o: UmOptions) -> LbtrmSourceOptions:
        return cls(
            interface=o.get_interface(CTX, "resolver_multicast_interface"),
            ttl=o.get_int(CTX, "resolver_multicast_ttl"),
            address=o.get_ip(SRC, "transport_lbtrm_multicast_address"),
            address_low=o.get_ip(CTX, "transport_lbtrm_multicast_address_low"),
            address_high=o.get_ip(CTX, "transport_lbtrm_multicast_address_high"),
            destination_port=o.get_int(SRC, "transport_lbtrm_destination_port"),
            nak_port_low=o.get_int(CTX, "transport_lbtrm_source_port_low"),
            nak_port_high=o.get_int(CTX, "transport_lbtrm_source_port_high"),
            window_size_bytes=o.get_int(SRC, "transport_lbtrm_transmission_window_size"),
            window_limit_bytes=o.get_int(SRC, "transport_lbtrm_transmission_window_limit"),
            ignore_ns=o.get_ns(SRC, "transport_lbtrm_ignore_interval"),
            sm_min_ns=o.get_ns(SRC, "transport_lbtrm_sm_minimum_interval"),
            sm_max_ns=o.get_ns(SRC, "transport_lbtrm_sm_maximum_interval"),
            tgsz=o.get_int(SRC, "transport_lbtrm_tgsz"),
            data_rate_bps=o.get_int(CTX, "transport_lbtrm_data_rate_limit"),
            retransmit_rate_bps=o.get_int(CTX, "transport_lbtrm_retransmit_rate_limit"),
            rate_interval_ns=o.get_ns(CTX, "transport_lbtrm_rate_interval"),
            datagram_max_bytes=_side_size(
                o, "transport_lbtrm_datagram_max_size", "transport_lbtrm_source_datagram_max_size"
            ),
            send_buffer_bytes=o.get_int(CTX, "transport_lbtrm_source_socket_buffer"),
        )


@dataclass(frozen=True, slots=True)
class LbtrmReceiverOptions:
    """LBT-RM, receiving: loss recovery and activity of a session."""

    interface: str
    initial_backoff_ns: int
    backoff_ns: int
    suppress_ns: int
    generation_ns: int
    send_naks: bool
    activity_timeout_ns: int
    preactivity_timeout_ns: int  # 0: as the activity timeout
    datagram_max_bytes: int
    receive_buffer_bytes: int
    datagrams_per_read: int  # 0: one at a time

    @classmethod
    def of(cls, o: UmOptions) -> LbtrmReceiverOptions:
        return cls(
            interface=o.get_interface(CTX, "resolver_multicast_interface"),
            initial_backoff_ns=o.get_ns(RCV, "transport_lbtrm_nak_initial_backoff_interval"),
            backoff_ns=o.get_ns(RCV, "transport_lbtrm_nak_backoff_interval"),
            suppress_ns=o.get_ns(RCV, "transport_lbtrm_nak_suppress_interval"),
            generation_ns=o.get_ns(RCV, "transport_lbtrm_nak_generation_interval"),
            send_naks=o.get_bool(RCV, "transport_lbtrm_send_naks"),
            activity_timeout_ns=o.get_ns(RCV, "transport_lbtrm_activity_timeout"),
            preactivity_timeout_ns=o.get_ns(RCV, "transport_lbtrm_preactivity_timeout"),
            datagram_max_bytes=_side_size(
                o, "transport_lbtrm_datagram_max_size", "transport_lbtrm_receiver_datagram_max_size"
            ),
            receive_buffer_bytes=o.get_int(CTX, "transport_lbtrm_receiver_socket_buffer"),
            datagrams_per_read=o.get_int(CTX, "multiple_receive_maximum_datagrams"),
        )


@dataclass(frozen=True, slots=True)
class TcpSourceOptions:
    """TCP sessions, sending side."""

    interface: str
    port: int  # 0: one of the range
    port_low: int
    port_high: int
    maximum_ports: int
    listen_backlog: int
    reuse_address: bool
    nodelay: bool
    send_buffer_bytes: int  # 0: the system decides
    session_buffer_bytes: int
    multiple_receiver_behavior: str  # normal, source_paced or bounded_latency
    send_order: str  # serial or random
    use_session_id: bool
    activity_timeout_ns: int  # SO_KEEPALIVE; 0: off
    datagram_max_bytes: int

    @classmethod
    def of(cls, o: UmOptions) -> TcpSourceOptions:
        return cls(
            interface=o.get_interface(SRC, "transport_tcp_interface"),
            port=o.get_int(SRC, "transport_tcp_port"),
            port_low=o.get_int(CTX, "transport_tcp_port_low"),
            port_high=o.get_int(CTX, "transport_tcp_port_high"),
            maximum_ports=o.get_int(CTX, "transport_tcp_maximum_ports"),
            listen_backlog=o.get_int(SRC, "transport_tcp_listen_backlog"),
            reuse_address=o.get_bool(SRC, "transport_tcp_reuseaddr"),
            nodelay=o.get_bool(SRC, "transport_tcp_nodelay"),
            send_buffer_bytes=o.get_int(SRC, "transport_tcp_sender_socket_buffer"),
            session_buffer_bytes=o.get_int(SRC, "transport_session_maximum_buffer"),
            multiple_receiver_behavior=o.get_str(SRC, "transport_tcp_multiple_receiver_behavior"),
            send_order=o.get_str(SRC, "transport_tcp_multiple_receiver_send_order"),
            use_session_id=o.get_bool(SRC, "transport_tcp_use_session_id"),
            activity_timeout_ns=o.get_ns(SRC, "transport_tcp_activity_timeout"),
            datagram_max_bytes=o.get_int(CTX, "transport_tcp_datagram_max_size"),
        )


@dataclass(frozen=True, slots=True)
class TcpReceiverOptions:
    """TCP sessions, receiving side."""

    interface: str
    receive_buffer_bytes: int  # 0: the system decides
    activity_method: str  # timer or so_keepalive
    activity_timeout_ns: int  # 0: off
    dro_loss_recovery_timeout_ns: int
    datagram_max_bytes: int

    @classmethod
    def of(cls, o: UmOptions) -> TcpReceiverOptions:
        return cls(
            interface=o.get_interface(RCV, "transport_tcp_interface"),
            receive_buffer_bytes=o.get_int(CTX, "transport_tcp_receiver_socket_buffer"),
            activity_method=o.get_str(RCV, "transport_tcp_activity_method"),
            activity_timeout_ns=o.get_ns(RCV, "transport_tcp_activity_timeout"),
            dro_loss_recovery_timeout_ns=o.get_ns(RCV, "transport_tcp_dro_loss_recovery_timeout"),
            datagram_max_bytes=o.get_int(CTX, "transport_tcp_datagram_max_size"),
        )


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The request port (unicast immediate messages) of a context, and the connections that it opens to others."""

    interface: str
    port: int  # 0: first free one of the range
    port_low: int
    port_high: int
    bind: bool
    listen_backlog: int
    reuse_address: bool
    activity_timeout_ns: int  # SO_KEEPALIVE; 0: off
    response_interface: str
    response_activity_timeout_ns: int  # as `activity_timeout_ns`, for connections to others
    response_deletion_ns: int
    response_nodelay: bool
    response_buffer_bytes: int
    response_send_buffer_bytes: int

    @classmethod
    def of(cls, o: UmOptions) -> RequestOptions:
        copies_request = o.get_int(CTX, "response_tcp_activity_timeout") < 0
        response_activity = "request_tcp_activity_timeout" if copies_request else "response_tcp_activity_timeout"
        return cls(
            interface=o.get_interface(CTX, "request_tcp_interface"),
            port=o.get_int(CTX, "request_tcp_port"),
            port_low=o.get_int(CTX, "request_tcp_port_low"),
            port_high=o.get_int(CTX, "request_tcp_port_high"),
            bind=o.get_bool(CTX, "request_tcp_bind_request_port"),
            listen_backlog=o.get_int(CTX, "request_tcp_listen_backlog"),
            reuse_address=o.get_bool(CTX, "request_tcp_reuseaddr"),
            activity_timeout_ns=o.get_ns(CTX, "request_tcp_activity_timeout"),
            response_interface=o.get_interface(CTX, "response_tcp_interface"),
            response_activity_timeout_ns=o.get_ns(CTX, response_activity),
            response_deletion_ns=o.get_ns(CTX, "response_tcp_deletion_timeout"),
            response_nodelay=o.get_bool(CTX, "response_tcp_nodelay"),
            response_buffer_bytes=o.get_int(CTX, "response_session_maximum_buffer"),
            response_send_buffer_bytes=o.get_int(CTX, "response_session_sender_socket_buffer"),
        )


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """Ordered delivery of a receiver."""

    ordered_delivery: int  # 1: messages in order; -1: messages as they arrive; 0: fragments as they arrive
    maximum_burst_loss: int
    loss_check_interval_ns: int  # 0: off
    maximum_total_map_entries: int
    lbtrm_generation_ns: int
    tcp_dro_loss_recovery_timeout_ns: int

    @classmethod
    def of(cls, o: UmOptions) -> DeliveryOptions:
        return cls(
            ordered_delivery=o.get_int(RCV, "ordered_delivery"),
            maximum_burst_loss=o.get_int(RCV, "delivery_control_maximum_burst_loss"),
            loss_check_interval_ns=o.get_ns(RCV, "delivery_control_loss_check_interval"),
            maximum_total_map_entries=o.get_int(CTX, "delivery_control_maximum_total_map_entries"),
            lbtrm_generation_ns=o.get_ns(RCV, "transport_lbtrm_nak_generation_interval"),
            tcp_dro_loss_recovery_timeout_ns=o.get_ns(RCV, "transport_tcp_dro_loss_recovery_timeout"),
        )


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """Implicit batching of a source."""

    interval_ns: int
    minimum_length_bytes: int

    @classmethod
    def of(cls, o: UmOptions) -> BatchingOptions:
        return cls(
            interval_ns=o.get_ns(SRC, "implicit_batching_interval"),
            minimum_length_bytes=o.get_int(SRC, "implicit_batching_minimum_length"),
        )


@dataclass(frozen=True, slots=True)
class TsniSourceOptions:
    """Topic sequence number information of a source: when it is sent, and for how long an idle source sends it."""

    interval_ns: int  # 0: none
    active_threshold_ns: int  # 0: for ever

    @classmethod
    def of(cls, o: UmOptions) -> TsniSourceOptions:
        return cls(
            interval_ns=o.get_ns(SRC, "transport_topic_sequence_number_info_interval"),
            active_threshold_ns=o.get_ns(SRC, "transport_topic_sequence_number_info_active_threshold"),
        )


@dataclass(frozen=True, slots=True)
class TsniReceiverOptions:
    """Requests of a receiver for topic sequence number information."""

    request_interval_ns: int
    request_maximum: int

    @classmethod
    def of(cls, o: UmOptions) -> TsniReceiverOptions:
        return cls(
            request_interval_ns=o.get_ns(RCV, "transport_topic_sequence_number_info_request_interval"),
            request_maximum=o.get_int(RCV, "transport_topic_sequence_number_info_request_maximum"),
        )

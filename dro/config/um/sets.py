"""Sets of UM options: those that one part of the client library or a portal needs, in the units of the cores.

A field names its option; `of` builds a set from the `UmOptions` of the object (context options merged with those of the
source or receiver). Durations are nanoseconds, sizes bytes, rates bits or records per second; 0 has the meaning defined
by the option. Interfaces are dotted local addresses, `0.0.0.0` for "any". Defaults are not here but in the option
table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

from dro.config.um.interfaces import ANY
from dro.config.um.options import DEFAULTS, OptionKey, UmOptions, option_table
from dro.config.um.resolver_entries import ResolverEntry, resolver_entries
from dro.config.um.rules import Kind


class Record(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


T = TypeVar("T", bound=Record)
CTX: Final = "context"
SRC: Final = "source"
RCV: Final = "receiver"
WRCV: Final = "wildcard_receiver"
_KEYS: Final = "keys"
_RM_SIZE: Final = "transport_lbtrm_datagram_max_size"


def source_transport(o: UmOptions) -> str:
    """The `transport` of a source: `tcp`, `lbtrm`, `lbtru`, `lbtipc`, `lbtsmx`, `broker` or `lbtrdma`."""
    return o.get_str(SRC, "transport")


def repair_ns(o: UmOptions, transport: str) -> int:
    """Tell for how long receivers with these options may ask again for what a source has sent by a transport."""
    repairs = transport if transport == "lbtru" else "lbtrm"
    return o.get_ns(RCV, f"transport_{repairs}_nak_generation_interval")


def option(scope: str, name: str, *otherwise: str) -> Any:  # noqa: ANN401  # the annotation of the field says it
    """The field of an option. With `otherwise`: while the option has its default, that one of the same scope counts."""
    return field(metadata={_KEYS: tuple((scope, one) for one in (name, *otherwise))})


# ruff: noqa: RUF009  # what looks like a shared default is a field


def rate_cap(records: str, bits: str) -> Any:  # noqa: ANN401
    return option(CTX, f"resolver_{records}_per_second", f"resolver_{bits}_bps")


@dataclass(frozen=True, slots=True)
class RateCap:
    """Limits of one class of topic resolution records; 0 is unlimited."""

    records_per_second: int
    bps: int


@dataclass(frozen=True, slots=True)
class OptionSet:
    """The base of all sets."""

    @classmethod
    def of(cls, o: UmOptions) -> Self:
        """Make it once of one options object: thousands of sources and receivers have the same."""
        made: Self | None = o.made.get(cls)
        if made is None:
            make: Callable[..., Self] = cls
            made = o.made[cls] = make(*(_value(f, o) for f in fields(cls)))
        return made

    @classmethod
    def filling(cls, kind: type[T], o: UmOptions) -> T:
        """`of(o).fill(kind)`, made once likewise."""
        made: T | None = o.made.get((cls, kind))
        if made is None:
            made = o.made[cls, kind] = cls.of(o).fill(kind)
        return made

    def fill(self, kind: type[T], **more: Any) -> T:  # noqa: ANN401  # whatever fields `kind` has besides
        """A record of `kind`: the fields that this set has too, by name, and `more`."""
        make: Callable[..., T] = kind
        names = {f.name for f in fields(kind)}
        return make(**{f.name: getattr(self, f.name) for f in fields(self) if f.name in names}, **more)

    @classmethod
    def keys(cls) -> frozenset[OptionKey]:
        """The options that the set asks for."""
        return frozenset(key for f in fields(cls) for key in f.metadata[_KEYS])


def _value(f: Field[Any], o: UmOptions) -> int | str | tuple[str, ...] | RateCap:
    """Read the value of a field, as its annotation and the end of its name ask for it."""
    keys: tuple[OptionKey, ...] = f.metadata[_KEYS]
    if f.type == "RateCap":
        return RateCap(*(o.get_int(*key) for key in keys))
    known = option_table()[keys[0]]
    key = keys[-1] if o.value(*keys[0]) == known.default else keys[0]
    match f.type:
        case "bool":
            return o.get_bool(*key)
        case "str":
            return o.get_interface(*key) if known.rule.kind is Kind.INTERFACE else o.get_str(*key)
        case "int":
            return o.get_ns(*key) if f.name.endswith("_ns") else o.get_int(*key)
        case _:
            return o.get_list(*key)


@dataclass(frozen=True, slots=True)
class ResolverOptions(OptionSet):
    """The topic resolution channel of a context."""

    incoming_address: str = option(CTX, "resolver_multicast_incoming_address")  # 0.0.0.0: does not listen
    incoming_port: int = option(CTX, "resolver_multicast_incoming_port")
    outgoing_address: str = option(CTX, "resolver_multicast_outgoing_address")
    outgoing_port: int = option(CTX, "resolver_multicast_outgoing_port")
    interface: str = option(CTX, "resolver_multicast_interface")
    ttl: int = option(CTX, "resolver_multicast_ttl")
    receive_buffer_bytes: int = option(CTX, "resolver_multicast_receiver_socket_buffer")
    source_datagram_max_bytes: int = option(CTX, "resolver_source_datagram_max_size", "resolver_datagram_max_size")
    receiver_datagram_max_bytes: int = option(CTX, "resolver_receiver_datagram_max_size", "resolver_datagram_max_size")
    initial_advertisement: RateCap = rate_cap("initial_advertisements", "initial_advertisement")
    sustain_advertisement: RateCap = rate_cap("sustain_advertisements", "sustain_advertisement")
    initial_query: RateCap = rate_cap("initial_queries", "initial_query")
    sustain_query: RateCap = rate_cap("sustain_queries", "sustain_query")
    wildcard_query: RateCap = rate_cap("wildcard_queries", "wildcard_query")
    cache: bool = option(CTX, "resolver_cache")
    # -1, 0 or seconds
    domain_id_active_propagation_timeout_s: int = option(CTX, "resolver_domain_id_active_propagation_timeout")

    def sending_as(self, other: ResolverOptions) -> ResolverOptions:
        """Send by the options of another context of the TRD, and listen and ask by these."""
        return replace(
            self,
            ttl=other.ttl,
            source_datagram_max_bytes=other.source_datagram_max_bytes,
            initial_advertisement=other.initial_advertisement,
            sustain_advertisement=other.sustain_advertisement,
        )


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """Says what a socket is bound to: an interface, one of these ports. `option` names what decides about the port."""

    interface: str
    ports: range
    option: str


@dataclass(frozen=True, slots=True)
class UnicastResolverOptions(OptionSet):
    """Topic resolution by unicast resolver daemons; any daemon switches multicast resolution off."""

    listed: tuple[str, ...] = option(CTX, "resolver_unicast_daemon")
    address: str = option(CTX, "resolver_unicast_address")  # the deprecated form, of one daemon; 0.0.0.0: none
    destination_port: int = option(CTX, "resolver_unicast_destination_port")
    port: int = option(CTX, "resolver_unicast_port")  # deprecated; 0: one of the range
    interface: str = option(CTX, "resolver_unicast_interface")
    port_low: int = option(CTX, "resolver_unicast_port_low")
    port_high: int = option(CTX, "resolver_unicast_port_high")
    receive_buffer_bytes: int = option(CTX, "resolver_unicast_receiver_socket_buffer")
    keepalive_ns: int = option(CTX, "resolver_unicast_keepalive_interval")
    activity_ns: int = option(CTX, "resolver_unicast_activity_timeout")  # 0: every daemon is active
    check_ns: int = option(CTX, "resolver_unicast_check_interval")
    change_ns: int = option(CTX, "resolver_unicast_change_interval")
    force_alive: bool = option(CTX, "resolver_unicast_force_alive")
    ignore_unknown_source: bool = option(CTX, "resolver_unicast_ignore_unknown_source")

    @property
    def daemons(self) -> tuple[ResolverEntry, ...]:
        """All daemons, those of the deprecated options last."""
        old = (f"{self.address}:{self.destination_port}",) if self.address != ANY else ()
        return resolver_entries(self.listed + old)

    def places(self) -> list[LocalPlace]:
        """Return where the datagrams for each daemon leave from, in the order of the daemons."""
        port, option = self.port, "resolver_unicast_port" if self.port else "resolver_unicast_port_low/_high"
        ports = range(port, port + 1) if port else range(self.port_low, self.port_high + 1)
        return [
            LocalPlace(entry.interface or self.interface, range(own, own + 1), "resolver_unicast_daemon")
            if (own := entry.source_port)
            else LocalPlace(entry.interface or self.interface, ports, option)
            for entry in self.daemons
        ]


@dataclass(frozen=True, slots=True)
class ResolverServiceOptions(OptionSet):
    """Topic resolution over TCP, by SRSes, beside UDP unless that is off."""

    listed: tuple[str, ...] = option(CTX, "resolver_service")
    interest_mode: str = option(CTX, "resolver_service_interest_mode")  # filter or flood
    is_udp_off: bool = option(CTX, "resolver_disable_udp_topic_resolution")

    @property
    def services(self) -> tuple[ResolverEntry, ...]:
        """All SRSes."""
        return resolver_entries(self.listed)


def servers_of(o: UmOptions) -> dict[str, tuple[ResolverEntry, ...]]:
    """Return the daemons and SRSes that contexts with these options resolve topics by, under the options' names.

    Without any of them topics are resolved by multicast.
    """
    service, unicast = ResolverServiceOptions.of(o), UnicastResolverOptions.of(o)
    found = {
        "resolver_unicast_daemon": () if service.is_udp_off else unicast.daemons,
        "resolver_service": service.services,
    }
    return {name: servers for name, servers in found.items() if servers}


def unicast_places(o: UmOptions) -> list[LocalPlace]:
    """Return where contexts with these options send to daemons from, in the order of the daemons."""
    return [] if ResolverServiceOptions.of(o).is_udp_off else UnicastResolverOptions.of(o).places()


def uses_multicast(o: UmOptions) -> bool:
    """Say whether contexts with these options resolve topics by multicast, beside SRSes or alone."""
    return not (ResolverServiceOptions.of(o).is_udp_off or UnicastResolverOptions.of(o).daemons)


def tr_ways(o: UmOptions) -> list[str]:
    """Describe each way that topics are resolved by, in the same words for all contexts of one TRD."""
    r = ResolverOptions.of(o)
    ways = (f"{r.incoming_address}:{r.incoming_port}", f"{r.outgoing_address}:{r.outgoing_port}")
    parts = [f"{', '.join(dict.fromkeys(ways))} on {r.interface}"] if uses_multicast(o) else []
    for name, servers in servers_of(o).items():
        kind = "SRS" if name == "resolver_service" else "lbmrd"
        parts.append(f"{kind} {', '.join(sorted(map(str, servers)))}")
    return parts


def tr_channel(o: UmOptions) -> str:
    """Describe in one text what `tr_ways` has."""
    return " and ".join(tr_ways(o))


@dataclass(frozen=True, slots=True)
class AdvertisingOptions(OptionSet):
    """The advertising phases of a source; an interval of 0 switches its phase off, a duration of 0 has no end."""

    send_initial: bool = option(SRC, "resolver_send_initial_advertisement")
    minimum_initial_interval_ns: int = option(SRC, "resolver_advertisement_minimum_initial_interval")
    maximum_initial_interval_ns: int = option(SRC, "resolver_advertisement_maximum_initial_interval")
    minimum_initial_duration_ns: int = option(SRC, "resolver_advertisement_minimum_initial_duration")
    sustain_interval_ns: int = option(SRC, "resolver_advertisement_sustain_interval")
    minimum_sustain_duration_ns: int = option(SRC, "resolver_advertisement_minimum_sustain_duration")
    send_immediate_response: bool = option(SRC, "resolver_advertisement_send_immediate_response")
    send_final: bool = option(SRC, "resolver_send_final_advertisements")


@dataclass(frozen=True, slots=True)
class QueryOptions(OptionSet):
    """The querying phases of a receiver; zeros as in `AdvertisingOptions`."""

    minimum_initial_interval_ns: int = option(RCV, "resolver_query_minimum_initial_interval")
    maximum_initial_interval_ns: int = option(RCV, "resolver_query_maximum_initial_interval")
    minimum_initial_duration_ns: int = option(RCV, "resolver_query_minimum_initial_duration")
    sustain_interval_ns: int = option(RCV, "resolver_query_sustain_interval")
    minimum_sustain_duration_ns: int = option(RCV, "resolver_query_minimum_sustain_duration")
    source_threshold: int = option(RCV, "resolution_number_of_sources_query_threshold")
    # unanswered queries before a no-source event, 0 for never
    no_source_threshold: int = option(RCV, "resolution_no_source_notification_threshold")


@dataclass(frozen=True, slots=True)
class WildcardOptions(OptionSet):
    """A wildcard receiver: its pattern and its queries."""

    pattern_type: str = option(WRCV, "pattern_type")  # pcre, regex or appcb
    minimum_interval_ns: int = option(WRCV, "resolver_query_minimum_interval")
    maximum_interval_ns: int = option(WRCV, "resolver_query_maximum_interval")
    minimum_duration_ns: int = option(WRCV, "resolver_query_minimum_duration")
    no_source_linger_ns: int = option(WRCV, "resolver_no_source_linger_timeout")


@dataclass(frozen=True, slots=True)
class LbtrmSourceOptions(OptionSet):
    """LBT-RM, sending: sessions, retransmission window, session messages, rate limits."""

    interface: str = option(CTX, "resolver_multicast_interface")
    ttl: int = option(CTX, "resolver_multicast_ttl")
    address: str = option(SRC, "transport_lbtrm_multicast_address")  # 0.0.0.0: one of the range
    address_low: str = option(CTX, "transport_lbtrm_multicast_address_low")
    address_high: str = option(CTX, "transport_lbtrm_multicast_address_high")
    destination_port: int = option(SRC, "transport_lbtrm_destination_port")
    # unicast ports that take NAKs, one for each session
    nak_port_low: int = option(CTX, "transport_lbtrm_source_port_low")
    nak_port_high: int = option(CTX, "transport_lbtrm_source_port_high")
    window_size_bytes: int = option(SRC, "transport_lbtrm_transmission_window_size")
    window_limit_bytes: int = option(SRC, "transport_lbtrm_transmission_window_limit")  # 0: none
    ignore_ns: int = option(SRC, "transport_lbtrm_ignore_interval")
    sm_min_ns: int = option(SRC, "transport_lbtrm_sm_minimum_interval")
    sm_max_ns: int = option(SRC, "transport_lbtrm_sm_maximum_interval")
    tgsz: int = option(SRC, "transport_lbtrm_tgsz")
    data_rate_bps: int = option(CTX, "transport_lbtrm_data_rate_limit")
    retransmit_rate_bps: int = option(CTX, "transport_lbtrm_retransmit_rate_limit")
    rate_interval_ns: int = option(CTX, "transport_lbtrm_rate_interval")
    datagram_max_bytes: int = option(CTX, "transport_lbtrm_source_datagram_max_size", _RM_SIZE)
    pack_bytes: int = option(SRC, "implicit_batching_minimum_length")  # of what is at hand at once
    send_buffer_bytes: int = option(CTX, "transport_lbtrm_source_socket_buffer")


@dataclass(frozen=True, slots=True)
class LbtrmReceiverOptions(OptionSet):
    """LBT-RM, receiving: loss recovery and activity of a session."""

    interface: str = option(CTX, "resolver_multicast_interface")
    initial_backoff_ns: int = option(RCV, "transport_lbtrm_nak_initial_backoff_interval")
    backoff_ns: int = option(RCV, "transport_lbtrm_nak_backoff_interval")
    suppress_ns: int = option(RCV, "transport_lbtrm_nak_suppress_interval")
    generation_ns: int = option(RCV, "transport_lbtrm_nak_generation_interval")
    send_naks: bool = option(RCV, "transport_lbtrm_send_naks")
    activity_timeout_ns: int = option(RCV, "transport_lbtrm_activity_timeout")
    preactivity_timeout_ns: int = option(RCV, "transport_lbtrm_preactivity_timeout")  # 0: as the activity timeout
    datagram_max_bytes: int = option(CTX, "transport_lbtrm_receiver_datagram_max_size", _RM_SIZE)
    receive_buffer_bytes: int = option(CTX, "transport_lbtrm_receiver_socket_buffer")
    datagrams_per_read: int = option(CTX, "multiple_receive_maximum_datagrams")  # 0: one at a time


@dataclass(frozen=True, slots=True)
class ImmediateOptions(OptionSet):
    """Multicast immediate messages: LBT-RM on a group of their own. The rate limits are those of LBT-RM."""

    incoming_address: str = option(CTX, "mim_incoming_address")  # 0.0.0.0: none are received
    incoming_port: int = option(CTX, "mim_incoming_destination_port")
    outgoing_address: str = option(CTX, "mim_outgoing_address")
    outgoing_port: int = option(CTX, "mim_outgoing_destination_port")
    initial_backoff_ns: int = option(CTX, "mim_nak_initial_backoff_interval")
    backoff_ns: int = option(CTX, "mim_nak_backoff_interval")
    suppress_ns: int = option(CTX, "mim_nak_suppress_interval")
    generation_ns: int = option(CTX, "mim_nak_generation_interval")
    send_naks: bool = option(CTX, "mim_send_naks")
    activity_timeout_ns: int = option(CTX, "mim_activity_timeout")
    window_size_bytes: int = option(CTX, "mim_transmission_window_size")
    window_limit_bytes: int = option(CTX, "mim_transmission_window_limit")  # 0: none
    ignore_ns: int = option(CTX, "mim_ignore_interval")
    sm_min_ns: int = option(CTX, "mim_sm_minimum_interval")
    sm_max_ns: int = option(CTX, "mim_sm_maximum_interval")
    tgsz: int = option(CTX, "mim_tgsz")
    deletion_ns: int = option(CTX, "mim_src_deletion_timeout")  # of a session that is not sent on


@dataclass(frozen=True, slots=True)
class ImmediateDeliveryOptions(OptionSet):
    """Multicast immediate messages in the order of their sender; of applications."""

    ordered_delivery: int = option(CTX, "mim_ordered_delivery")  # 0: as they come
    window_size: int = option(CTX, "mim_sqn_window_size")
    generation_ns: int = option(CTX, "mim_nak_generation_interval")
    loss_check_ns: int = option(CTX, "mim_delivery_control_loss_check_interval")  # 0: the next one
    check_ns: int = option(CTX, "mim_delivery_control_activity_check_interval")
    idle_ns: int = option(CTX, "mim_delivery_control_activity_timeout")


@dataclass(frozen=True, slots=True)
class TcpSourceOptions(OptionSet):
    """TCP sessions, sending side."""

    interface: str = option(SRC, "transport_tcp_interface")
    port: int = option(SRC, "transport_tcp_port")  # 0: one of the range
    port_low: int = option(CTX, "transport_tcp_port_low")
    port_high: int = option(CTX, "transport_tcp_port_high")
    maximum_ports: int = option(CTX, "transport_tcp_maximum_ports")
    listen_backlog: int = option(SRC, "transport_tcp_listen_backlog")
    reuse_address: bool = option(SRC, "transport_tcp_reuseaddr")
    nodelay: bool = option(SRC, "transport_tcp_nodelay")
    send_buffer_bytes: int = option(SRC, "transport_tcp_sender_socket_buffer")  # 0: the system decides
    session_buffer_bytes: int = option(SRC, "transport_session_maximum_buffer")
    # normal, source_paced or bounded_latency
    multiple_receiver_behavior: str = option(SRC, "transport_tcp_multiple_receiver_behavior")
    send_order: str = option(SRC, "transport_tcp_multiple_receiver_send_order")  # serial or random
    use_session_id: bool = option(SRC, "transport_tcp_use_session_id")
    # none, inclusion or ulb
    source_side_filtering_behavior: str = option(SRC, "transport_source_side_filtering_behavior")
    activity_timeout_ns: int = option(SRC, "transport_tcp_activity_timeout")  # SO_KEEPALIVE; 0: off
    datagram_max_bytes: int = option(CTX, "transport_tcp_datagram_max_size")


@dataclass(frozen=True, slots=True)
class TcpReceiverOptions(OptionSet):
    """TCP sessions, receiving side."""

    interface: str = option(RCV, "transport_tcp_interface")
    receive_buffer_bytes: int = option(CTX, "transport_tcp_receiver_socket_buffer")  # 0: the system decides
    activity_method: str = option(RCV, "transport_tcp_activity_method")  # timer or so_keepalive
    activity_timeout_ns: int = option(RCV, "transport_tcp_activity_timeout")  # 0: off
    dro_loss_recovery_timeout_ns: int = option(RCV, "transport_tcp_dro_loss_recovery_timeout")
    datagram_max_bytes: int = option(CTX, "transport_tcp_datagram_max_size")


@dataclass(frozen=True, slots=True)
class TlsOptions(OptionSet):
    """Encryption of the TCP connections of a context. Files are PEM; "" is none."""

    use_tls: bool = option(CTX, "use_tls")
    certificate: str = option(CTX, "tls_certificate")
    key: str = option(CTX, "tls_certificate_key")
    key_password: str = option(CTX, "tls_certificate_key_password")
    trusted: str = option(CTX, "tls_trusted_certificates")  # "": those of the system
    cipher_suites: str = option(CTX, "tls_cipher_suites")  # of TLS 1.2
    limit_ns: int = option(CTX, "tls_compression_negotiation_timeout")  # of a handshake


@dataclass(frozen=True, slots=True)
class RequestOptions(OptionSet):
    """The request port (unicast immediate messages) of a context, and the connections that it opens to others."""

    interface: str = option(CTX, "request_tcp_interface")
    port: int = option(CTX, "request_tcp_port")  # 0: first free one of the range
    port_low: int = option(CTX, "request_tcp_port_low")
    port_high: int = option(CTX, "request_tcp_port_high")
    bind: bool = option(CTX, "request_tcp_bind_request_port")
    listen_backlog: int = option(CTX, "request_tcp_listen_backlog")
    reuse_address: bool = option(CTX, "request_tcp_reuseaddr")
    activity_timeout_ns: int = option(CTX, "request_tcp_activity_timeout")  # SO_KEEPALIVE; 0: off
    response_interface: str = option(CTX, "response_tcp_interface")
    # as `activity_timeout_ns`, for connections to others
    response_activity_timeout_ns: int = option(CTX, "response_tcp_activity_timeout", "request_tcp_activity_timeout")
    response_deletion_ns: int = option(CTX, "response_tcp_deletion_timeout")
    response_nodelay: bool = option(CTX, "response_tcp_nodelay")
    response_buffer_bytes: int = option(CTX, "response_session_maximum_buffer")
    response_send_buffer_bytes: int = option(CTX, "response_session_sender_socket_buffer")

    @property
    def has_default_range(self) -> bool:
        """Whether ports come from the range of the table: five, and each endpoint portal takes two."""
        default = RequestOptions.of(DEFAULTS)
        return not self.port and (self.port_low, self.port_high) == (default.port_low, default.port_high)

    @property
    def ports(self) -> tuple[tuple[int, ...], str]:
        """Ports to try, in this order, and the options that say so; 0: any, where nobody has said which."""
        if self.port:
            return (self.port,), "request_tcp_port"
        any_port = (0,) if self.has_default_range else ()
        return (*range(self.port_low, self.port_high + 1), *any_port), "request_tcp_port_low/_high"


@dataclass(frozen=True, slots=True)
class DeliveryOptions(OptionSet):
    """Ordered delivery of a receiver."""

    # 1: messages in order; -1: messages as they arrive; 0: fragments as they arrive
    ordered_delivery: int = option(RCV, "ordered_delivery")
    burst_limit: int = option(RCV, "delivery_control_maximum_burst_loss")
    loss_check_interval_ns: int = option(RCV, "delivery_control_loss_check_interval")  # 0: off
    map_limit: int = option(CTX, "delivery_control_maximum_total_map_entries")
    lbtrm_generation_ns: int = option(RCV, "transport_lbtrm_nak_generation_interval")
    dro_loss_recovery_timeout_ns: int = option(RCV, "transport_tcp_dro_loss_recovery_timeout")
    ipc_dro_loss_recovery_timeout_ns: int = option(RCV, "transport_lbtipc_dro_loss_recovery_timeout")
    use_hotlink: bool = option(RCV, "use_hotlink")


@dataclass(frozen=True, slots=True)
class BatchingOptions(OptionSet):
    """Implicit batching of a source."""

    interval_ns: int = option(SRC, "implicit_batching_interval")
    minimum_length_bytes: int = option(SRC, "implicit_batching_minimum_length")


@dataclass(frozen=True, slots=True)
class TsniSourceOptions(OptionSet):
    """Topic sequence number information of a source: when it is sent, and for how long an idle source sends it."""

    interval_ns: int = option(SRC, "transport_topic_sequence_number_info_interval")  # 0: none
    active_threshold_ns: int = option(SRC, "transport_topic_sequence_number_info_active_threshold")  # 0: for ever


@dataclass(frozen=True, slots=True)
class TsniReceiverOptions(OptionSet):
    """Requests of a receiver for topic sequence number information."""

    request_interval_ns: int = option(RCV, "transport_topic_sequence_number_info_request_interval")
    request_maximum: int = option(RCV, "transport_topic_sequence_number_info_request_maximum")

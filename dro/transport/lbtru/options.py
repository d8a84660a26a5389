"""The options of LBT-RU. Fields with the names of those of cores go into these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.config.um.sets import CTX, RCV, SRC, OptionSet, option

_SIZE: Final = "transport_lbtru_datagram_max_size"


@dataclass(frozen=True, slots=True)
class LbtruSourceOptions(OptionSet):
    """Sending: sessions, clients, retransmission window, session messages, rate limits."""

    interface: str = option(SRC, "transport_lbtru_interface")
    port: int = option(SRC, "transport_lbtru_port")  # 0: one of the range
    port_low: int = option(CTX, "transport_lbtru_port_low")
    port_high: int = option(CTX, "transport_lbtru_port_high")
    maximum_ports: int = option(CTX, "transport_lbtru_maximum_ports")
    allow_ephemeral: bool = option(SRC, "transport_lbtru_allow_ephemeral")
    use_session_id: bool = option(SRC, "transport_lbtru_use_session_id")
    client_timeout_ns: int = option(SRC, "transport_lbtru_client_activity_timeout")
    window_size_bytes: int = option(SRC, "transport_lbtru_transmission_window_size")
    window_limit_bytes: int = option(SRC, "transport_lbtru_transmission_window_limit")  # 0: none
    ignore_ns: int = option(SRC, "transport_lbtru_ignore_interval")
    sm_min_ns: int = option(SRC, "transport_lbtru_sm_minimum_interval")
    sm_max_ns: int = option(SRC, "transport_lbtru_sm_maximum_interval")
    data_rate_bps: int = option(CTX, "transport_lbtru_data_rate_limit")
    retransmit_rate_bps: int = option(CTX, "transport_lbtru_retransmit_rate_limit")
    rate_interval_ns: int = option(CTX, "transport_lbtru_rate_interval")
    datagram_max_bytes: int = option(CTX, "transport_lbtru_source_datagram_max_size", _SIZE)
    pack_bytes: int = option(SRC, "implicit_batching_minimum_length")  # of what is at hand at once
    send_buffer_bytes: int = option(CTX, "transport_lbtru_source_socket_buffer")  # 0: the system decides
    receive_buffer_bytes: int = option(CTX, "transport_lbtru_receiver_socket_buffer")


@dataclass(frozen=True, slots=True)
class LbtruReceiverOptions(OptionSet):
    """Receiving: connection, loss recovery and activity of a session."""

    interface: str = option(RCV, "transport_lbtru_interface")
    port_low: int = option(RCV, "transport_lbtru_port_low")
    port_high: int = option(RCV, "transport_lbtru_port_high")
    interval_ns: int = option(RCV, "transport_lbtru_connect_interval")
    attempts: int = option(RCV, "transport_lbtru_maximum_connect_attempts")
    acknowledgement_ns: int = option(RCV, "transport_lbtru_acknowledgement_interval")
    initial_backoff_ns: int = option(RCV, "transport_lbtru_nak_initial_backoff_interval")
    backoff_ns: int = option(RCV, "transport_lbtru_nak_backoff_interval")
    suppress_ns: int = option(RCV, "transport_lbtru_nak_suppress_interval")
    generation_ns: int = option(RCV, "transport_lbtru_nak_generation_interval")
    send_naks: bool = option(RCV, "transport_lbtru_send_naks")
    activity_timeout_ns: int = option(RCV, "transport_lbtru_activity_timeout")
    datagram_max_bytes: int = option(CTX, "transport_lbtru_receiver_datagram_max_size", _SIZE)
    receive_buffer_bytes: int = option(CTX, "transport_lbtru_receiver_socket_buffer")

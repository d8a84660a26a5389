"""Options of LBT-IPC."""

from __future__ import annotations

from dataclasses import dataclass

from dro.config.um.sets import CTX, RCV, SRC, OptionSet, option


@dataclass(frozen=True, slots=True)
class IpcSourceOptions(OptionSet):
    """Sessions, sending side."""

    behavior: str = option(SRC, "transport_lbtipc_behavior")  # source_paced or receiver_paced
    transport_id: int = option(SRC, "transport_lbtipc_id")  # 0: one of the range
    id_low: int = option(CTX, "transport_lbtipc_id_low")
    id_high: int = option(CTX, "transport_lbtipc_id_high")
    maximum_receivers: int = option(SRC, "transport_lbtipc_maximum_receivers_per_transport")
    sm_interval_ns: int = option(SRC, "transport_lbtipc_sm_interval")
    window_size_bytes: int = option(SRC, "transport_lbtipc_transmission_window_size")
    datagram_max_bytes: int = option(CTX, "transport_lbtipc_datagram_max_size")


@dataclass(frozen=True, slots=True)
class IpcReceiverOptions(OptionSet):
    """Sessions, receiving side."""

    activity_timeout_ns: int = option(RCV, "transport_lbtipc_activity_timeout")

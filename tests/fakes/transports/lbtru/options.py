"""The options of the kind, by which programs know what has an effect."""

from __future__ import annotations

from dataclasses import dataclass

from dro.config.um.sets import CTX, RCV, SRC, OptionSet, option


@dataclass(frozen=True, slots=True)
class SourceOptions(OptionSet):
    """Fields with the names of `SourceConfig` go into it."""

    window_size_bytes: int = option(SRC, "transport_lbtru_transmission_window_size")
    sm_min_ns: int = option(SRC, "transport_lbtru_sm_minimum_interval")
    datagram_max_bytes: int = option(CTX, "transport_lbtru_datagram_max_size")


@dataclass(frozen=True, slots=True)
class ReceiverOptions(OptionSet):
    """Fields with the names of `LossConfig` go into it."""

    backoff_ns: int = option(RCV, "transport_lbtru_nak_backoff_interval")
    generation_ns: int = option(RCV, "transport_lbtru_nak_generation_interval")
    activity_timeout_ns: int = option(RCV, "transport_lbtru_activity_timeout")

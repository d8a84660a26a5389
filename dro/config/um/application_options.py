"""Sets of UM options that applications alone use: late join, recovery, hot failover; see `dro.config.um.sets`."""

from __future__ import annotations

from dataclasses import dataclass

from dro.config.um.options import OptionKey, UmOptions
from dro.config.um.sets import CTX, RCV, SRC, WRCV, OptionSet, option

# what looks like a shared default is a field


@dataclass(frozen=True, slots=True)
class RetentionOptions(OptionSet):
    """Say what a source keeps for receivers that ask for it again."""

    late_join: bool = option(SRC, "late_join")
    size_threshold_bytes: int = option(SRC, "retransmit_retention_size_threshold")
    age_threshold_ns: int = option(SRC, "retransmit_retention_age_threshold")
    size_limit_bytes: int = option(SRC, "retransmit_retention_size_limit")

    @classmethod
    def limit_bytes(cls, o: UmOptions) -> int:
        """The size limit if it was set, else 0: by itself it is one of persistence."""
        key: OptionKey = (SRC, "retransmit_retention_size_limit")
        return cls.of(o).size_limit_bytes if o.is_set(*key) else 0


@dataclass(frozen=True, slots=True)
class LateJoinOptions(OptionSet):
    """Say what a receiver asks a source for when it comes."""

    is_used: bool = option(RCV, "use_late_join")
    info_interval_ns: int = option(RCV, "late_join_info_request_interval")
    info_max: int = option(RCV, "late_join_info_request_maximum")
    asks_silent: bool = option(RCV, "retransmit_initial_sequence_number_request")
    proximity: int = option(RCV, "retransmit_message_caching_proximity")
    request_max: int = option(RCV, "retransmit_request_maximum")  # 0: all
    interval_ns: int = option(RCV, "retransmit_request_interval")
    timeout_ns: int = option(RCV, "retransmit_request_message_timeout")
    outstanding_max: int = option(RCV, "retransmit_request_outstanding_maximum")


@dataclass(frozen=True, slots=True)
class OtrOptions(OptionSet):
    """Say what a receiver asks for when messages are missing. `use`: 0 never, 1 always, 2 of persistent ones."""

    use: int = option(RCV, "use_otr")
    otr_delay_ns: int = option(RCV, "otr_request_initial_delay")
    otr_threshold: int = option(RCV, "otr_message_caching_threshold")
    interval_ns: int = option(RCV, "otr_request_minimum_interval")
    interval_max_ns: int = option(RCV, "otr_request_maximum_interval")
    timeout_ns: int = option(RCV, "otr_request_message_timeout")
    outstanding_max: int = option(RCV, "otr_request_outstanding_maximum")  # 0: no limit
    alert_cooldown_ns: int = option(RCV, "otr_request_log_alert_cooldown")


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
class FailoverOptions(OptionSet):
    """Hot failover of a receiver."""

    ordered_delivery: int = option(RCV, "ordered_delivery")
    burst_limit: int = option(RCV, "delivery_control_maximum_burst_loss")
    map_limit: int = option(CTX, "delivery_control_maximum_total_map_entries")
    lbtrm_generation_ns: int = option(RCV, "transport_lbtrm_nak_generation_interval")
    lbtru_generation_ns: int = option(RCV, "transport_lbtru_nak_generation_interval")
    duplicate_delivery: bool = option(RCV, "hf_duplicate_delivery")
    optional_messages: bool = option(RCV, "hf_optional_messages")
    of_patterns: bool = option(WRCV, "hf_receiver")

    @property
    def wait_ns(self) -> int:
        """For how long a missing number is waited for."""
        return min(self.lbtrm_generation_ns, self.lbtru_generation_ns)

    @property
    def is_in_order(self) -> bool:
        return self.ordered_delivery == 1

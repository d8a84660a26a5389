"""Sets of UM options of late join and off-transport recovery; see `dro.config.um.sets`."""

from __future__ import annotations

from dataclasses import dataclass

from dro.config.um.options import OptionKey, UmOptions
from dro.config.um.sets import RCV, SRC, OptionSet, option

# what looks like a shared default is a field


@dataclass(frozen=True, slots=True)
class RetentionOptions(OptionSet):
    """What a source keeps for receivers that ask for it again."""

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
    """What a receiver asks a source for when it comes."""

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
    """What a receiver asks a source for when something is missing. `use`: 0 never, 1 always, 2 of persistent ones."""

    use: int = option(RCV, "use_otr")
    otr_delay_ns: int = option(RCV, "otr_request_initial_delay")
    otr_threshold: int = option(RCV, "otr_message_caching_threshold")
    interval_ns: int = option(RCV, "otr_request_minimum_interval")
    interval_max_ns: int = option(RCV, "otr_request_maximum_interval")
    timeout_ns: int = option(RCV, "otr_request_message_timeout")
    outstanding_max: int = option(RCV, "otr_request_outstanding_maximum")  # 0: no limit
    alert_cooldown_ns: int = option(RCV, "otr_request_log_alert_cooldown")

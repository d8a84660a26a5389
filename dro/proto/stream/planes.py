"""The sessions that carry one source side by side, with hotlinks: what makes them different from a single one.

All of them feed one delivery controller, which hands up what comes first and drops the second copy by its topic sqn. A
gap on one session is filled by another, so it is a loss only when none can supply it: when the time of repairs is over,
or, where all sessions deliver in order, as soon as all of them have passed it.

Source: DRO guide, "DRO Hotlinks"; forwarding notes, 14.2 and 14.5; client library notes, section 11. Guess: the OTID
and the topic sqn tell copies apart, no header of their own does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from dro.proto.context.sources import BoundSource
from dro.proto.delivery.config import DeliveryConfig
from dro.sqn import add, ahead
from dro.state import Outside, StateLayout


class Planes:
    """How far each session of one stream has come."""

    __slots__ = ("_passed", "_waits", "config")

    def __init__(self, config: DeliveryConfig, lbtrm_generation_ns: int) -> None:
        """`config` as for the first session, and how long LBT-RM tries to repair."""
        self._waits = config.dro_loss_recovery_timeout_ns > 0
        longest_ns = max(config.generation_interval_ns, config.dro_loss_recovery_timeout_ns, lbtrm_generation_ns)
        self.config = replace(config, immediate=False, generation_interval_ns=longest_ns)
        """What the controller of the stream needs."""
        self._passed: dict[BoundSource[Any], int] = {}  # the sqn after the newest

    def on_run(self, session: BoundSource[Any], first_sqn: int, count: int) -> None:
        """Note that so much came on a session, or was said to have been sent."""
        after = add(first_sqn, count)
        known = self._passed.get(session)
        if known is None or ahead(after, known) > 0:
            self._passed[session] = after

    def forget(self, session: BoundSource[Any]) -> None:
        self._passed.pop(session, None)

    def passed(self, sessions: Collection[BoundSource[Any]]) -> int | None:
        """The sqn before which no session will supply anything any more; None while one may, for all we know."""
        if self._waits or not sessions or not all(one.transport.is_in_order for one in sessions):
            return None
        if any(one not in self._passed for one in sessions):
            return None
        lowest, *others = (self._passed[one] for one in sessions)
        for sqn in others:
            lowest = sqn if ahead(sqn, lowest) < 0 else lowest
        return lowest


StateLayout(Planes, 1, _passed=dict[Outside, int])

"""Proxy receivers and proxy sources of a working DRO, as the portal has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dro.clock import ms
from dro.transport.lbtrm.sender import JOIN_NS
from portals.decisions.messages import PATTERN_PCRE
from portals.endpoint.proxies import JOINING_NS
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import one_process


def test_a_pattern_that_nobody_wants_any_more_joins_nothing(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        a, b = dro.application(1), dro.application(2)
        a.source(b"AAA")
        b.context.want_pattern(b"^A", PATTERN_PCRE, lambda topic: topic.startswith(b"A"))
        dro.until(lambda: b.topics() == {b"AAA"})
        b.context.unwant_pattern(b"^A", PATTERN_PCRE)
        dro.until(lambda: not dro.portals[1].receiving.bound_sources)


def test_the_sessions_that_a_sibling_feeds_are_those_of_its_sources(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 3) as dro:
        b, c = dro.application(2), dro.application(3)
        source = c.source(b"AAA")
        b.context.want_topic(b"AAA")
        dro.until(lambda: b.topics() == {b"AAA"})
        c.send(source)
        dro.until(lambda: b.heard(b"AAA") == [0])
        now_ns = dro.loop.now_ns()
        is_over = {worker: dro.portals[2].quiescence(worker, now_ns).is_over(now_ns) for worker in (1, 3)}
        assert is_over == {1: True, 3: False}


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_receivers_of_new_sessions_are_waited_for_when_a_portal_returns(
    tmp_path: Path, stepper: Stepper, transport: str
) -> None:
    """Over TCP for a connection, or until none has come for a while; over LBT-RM as long as one takes to join."""
    with one_process(tmp_path, stepper, 2, transports={2: transport}) as dro:
        a, b = dro.application(1), dro.application(2)
        a.source(b"AAA")
        sources = dro.portals[2].sources
        assert sources.can_deliver(dro.loop.now_ns()), "there is nothing to wait for"
        b.context.want_topic(b"AAA")
        dro.until(lambda: len(sources) == 1)
        made_ns = sources._advertised_ns
        if transport == "lbtrm":
            assert not sources.can_deliver(made_ns + JOIN_NS - 1)
            assert sources.can_deliver(made_ns + JOIN_NS)
            return
        dro.until(lambda: sources.can_deliver(made_ns))
        b.context.unwant_topic(b"AAA")
        dro.until(lambda: not sources.can_deliver(dro.loop.now_ns()))
        alone_ns = dro.loop.now_ns()
        assert not sources.can_deliver(alone_ns + JOINING_NS - ms(1))
        assert sources.can_deliver(alone_ns + JOINING_NS)

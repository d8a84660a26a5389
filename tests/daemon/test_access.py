"""A real `tnwgd` with access control lists: every condition, each comparison, on LBT-RM and TCP sources.

One daemon: LBT-RM sources in TRD 1, TCP sources in TRD 2, both wanted in TRD 3. Every topic of a source has an entry
of its own, which joins the topic by AND with one condition about the session; the values lie below, at and above what
the source has. LBT-RU and LBT-IPC have no traffic yet: `tests/config/dro_xml/test_acl.py` has the decisions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dro.loop import Loop
from dro.metrics.slots import Slot
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.client_config import Config
from dro.wire.lbmc import message as lbmc
from dro.wire.source_string import LbtrmAddress, TcpAddress, ip_text
from portals.decisions.messages import PATTERN_PCRE
from tests.fakes.um_contexts import RecordingSink, turn_until
from tests.rigs.one_process import QUICK_ROUTES, write_dro
from tests.rigs.site import Site

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "equal": operator.eq,
    "notequal": operator.ne,
    "lessthan": operator.lt,
    "lessthanequal": operator.le,
    "greaterthan": operator.gt,
    "greaterthanequal": operator.ge,
}  # fmt: skip

BY_NAME = 2  # topics of a plan that are rejected without a look at the session


@dataclass
class Plan:
    """Entries of one list, and what they do."""

    prefix: str
    entries: list[str] = field(default_factory=list)
    accepted: set[bytes] = field(default_factory=set)
    rejected: set[bytes] = field(default_factory=set)

    def add(self, conditions: str, *, holds: bool) -> None:
        """One topic with an entry that accepts it if `conditions` hold."""
        name = f"{self.prefix}.{len(self.entries)}"
        self.entries.append(f'<ace match="accept"><topic>{name}</topic>{conditions}</ace>')
        (self.accepted if holds else self.rejected).add(name.encode())

    def add_numbers(self, kind: str, have: int, text: Callable[[int], str] = str, *, applies: bool = True) -> None:
        """All comparisons of a number; a condition that does not apply is left out, so the topic alone decides."""
        for comparison, compare in COMPARE.items():
            for want in (have - 1, have, have + 1):
                condition = f'<{kind} comparison="{comparison}" value="{text(want)}"/>'
                self.add(condition, holds=not applies or compare(have, want))

    def add_transports(self, have: str) -> None:
        for comparison in ("eq", "ne", "equal", "notequal"):
            for want in ("tcp", "lbt-rm", "lbtrm", "lbt-ru", "lbtru", "lbt-ipc", "lbtipc"):
                is_same = want.replace("-", "") == have
                condition = f'<transport comparison="{comparison}" value="{want}"/>'
                self.add(condition, holds=is_same == comparison.startswith("eq"))

    @property
    def topics(self) -> list[bytes]:
        return sorted(self.accepted | self.rejected)


@contextmanager
def context(loop: Loop, config: Path) -> Iterator[tuple[FragmentContext, RecordingSink]]:
    sink = RecordingSink()
    core = FragmentContext(Config.load(config).options, loop, sink=sink)
    try:
        yield core, sink
    finally:
        core.close()


def plan_for(address: LbtrmAddress | TcpAddress, prefix: str) -> Plan:
    """Every condition with each comparison, for sources of this session."""
    plan = Plan(prefix)
    is_rm = isinstance(address, LbtrmAddress)
    plan.add_transports("lbtrm" if is_rm else "tcp")
    plan.add_numbers("source-ip", address.ip, ip_text)
    if isinstance(address, LbtrmAddress):
        plan.add_numbers("multicast-group", address.group, ip_text)
        plan.add_numbers("udp-source-port", address.nak_port)
        plan.add_numbers("udp-destination-port", address.dport)
        plan.add_numbers("tcp-source-port", 14371, applies=False)
    else:
        plan.add_numbers("tcp-source-port", address.port)
        plan.add_numbers("udp-source-port", 24000, applies=False)
        plan.add_numbers("udp-destination-port", 12000, applies=False)
        plan.add_numbers("multicast-group", 0xE1000005, ip_text, applies=False)
    plan.add_numbers("xport-id", 7, applies=False)
    # the three about topics, and AND among conditions
    plan.add("", holds=True)
    for kind in ("pcre-pattern", "regex-pattern"):
        plan.add(f"<{kind}>^{prefix}[.]</{kind}>", holds=True)
        plan.add(f"<{kind}>^x{prefix}</{kind}>", holds=False)
    low, high = ip_text(address.ip - 1), ip_text(address.ip + 1)
    between = f'<source-ip comparison="gt" value="{low}"/><source-ip comparison="lt" value="{high}"/>'
    plan.add(between, holds=True)
    plan.add(between + '<transport comparison="eq" value="lbt-ipc"/>', holds=False)
    return plan


def send_all(sources: list[FragmentSource], loop: Loop, sqn: int) -> None:
    for source in sources:
        payload = b"%d" % sqn
        header = lbmc.HEADER.pack(0, 0, 12 + len(payload), source.topic_index, sqn)
        source.transport.send_message(header + payload, loop.now_ns())


@pytest.mark.slow
def test_every_condition_with_each_comparison(tmp_path: Path) -> None:
    site = Site(tmp_path, 3, transports={2: "tcp"})
    own_group = f"source transport_lbtrm_multicast_address {site.net(1)}.20\n"
    site.config(1).write_text(site.config(1).read_text() + own_group)
    loop = Loop()
    try:
        with (
            context(loop, site.config(1)) as (rm, _),
            context(loop, site.config(2)) as (tcp, _),
            context(loop, site.config(3)) as (receiver, sink),
        ):
            # a first source on each session, so that its address is known when the lists are written
            first = [rm.open_source(b"rm.none"), tcp.open_source(b"tcp.none")]
            addresses = [source.transport.address for source in first]
            assert isinstance(addresses[0], LbtrmAddress)
            assert isinstance(addresses[1], TcpAddress)
            plans = (plan_for(addresses[0], "rm"), plan_for(addresses[1], "tcp"))
            port = addresses[1].port
            tcp_options = tcp.options.with_("source", "transport_tcp_port", port)
            sources = list(first)
            sources += [rm.open_source(topic) for topic in plans[0].topics]
            sources += [tcp.open_source(topic, options=tcp_options) for topic in plans[1].topics]
            assert {s.transport.address for s in sources} == set(addresses), "one session each"
            lists = {
                portal: f"<acl><inbound>{chr(10).join(plan.entries)}</inbound></acl>"
                for portal, plan in enumerate(plans, start=1)
            }
            write_dro(site, lists, QUICK_ROUTES)
            site.start()
            wanted = plans[0].accepted | plans[1].accepted
            assert min(len(plan.accepted) for plan in plans) > 80
            assert min(len(plan.rejected) for plan in plans) > 40
            for plan in plans:
                for topic in plan.topics:
                    receiver.want_topic(topic)
            receiver.want_pattern(rb"\.none$", PATTERN_PCRE, lambda topic: topic.endswith(b".none"))
            turn_until(loop, lambda: {bound.topic for bound in sink.current} == wanted)
            with site.books() as books:
                # by the name alone only a pattern of the entry decides; the topic without an entry comes by a pattern
                not_in = [len(plan.rejected) - BY_NAME + 1 for plan in plans]
                turn_until(loop, lambda: [books[k, Slot.SOURCES_NOT_IN] for k in (1, 2)] == not_in)
                turn_until(loop, lambda: books[3, Slot.PROXY_SOURCES] == len(wanted))
                sqn = 0

                def heard() -> set[bytes]:
                    nonlocal sqn
                    send_all(sources, loop, sqn)
                    sqn += 1
                    return {topic for topic, _, _ in sink.fragments}

                turn_until(loop, lambda: heard() == wanted)
                taken = books[1, Slot.TOPIC_RCVD] + books[2, Slot.TOPIC_RCVD]
                assert taken <= sqn * len(wanted), "fragments of rejected sources are not taken in"
                assert {bound.topic for bound in sink.current} == wanted
            assert "source not let into the DRO" in site.log
            assert 'reason="no entry matches"' in site.log
            assert site.stop() == 0
    finally:
        site.close()
        loop.close()

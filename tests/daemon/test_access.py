"""A real `tnwgd` with access control lists: every condition, each comparison, on sources of each transport.

One daemon: sources of LBT-RM, TCP, LBT-RU and LBT-IPC in TRDs 1 to 4, all wanted in TRD 5. Every topic of a source has
an entry of its own, which joins the topic by AND with one condition about the session; the values lie below, at and
above what the source has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from dro.loop import Loop
from dro.metrics.slots import Slot
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.client_config import Config
from dro.wire.lbmc import message as lbmc
from dro.wire.source_string import IpcAddress, LbtrmAddress, LbtruAddress, TcpAddress, TransportAddress, ip_text
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


NUMBERS: Final[dict[str, tuple[int, Callable[[int], str]]]] = {
    "source-ip": (0x7F000001, ip_text), "multicast-group": (0xE1000005, ip_text), "udp-source-port": (24000, str),
    "udp-destination-port": (12000, str), "tcp-source-port": (14371, str), "xport-id": (7, str),
}  # fmt: skip
"""Conditions on numbers, with one that is compared where there is none, and how it is written."""


def numbers_of(address: TransportAddress) -> dict[str, int]:
    """The numbers that a session has, by condition."""
    match address:
        case LbtrmAddress(ip, group, _, dport, nak_port):
            return {
                "source-ip": ip, "multicast-group": group, "udp-source-port": nak_port, "udp-destination-port": dport
            }  # fmt: skip
        case LbtruAddress(ip, port):
            return {"source-ip": ip, "udp-source-port": port}
        case IpcAddress(transport_id=number):
            return {"xport-id": number}
        case TcpAddress(ip, port):
            return {"source-ip": ip, "tcp-source-port": port}
    raise AssertionError(address)


def plan_for(address: TransportAddress, prefix: str) -> Plan:
    """Every condition with each comparison, for sources of this session."""
    plan = Plan(prefix)
    plan.add_transports(prefix)
    have = numbers_of(address)
    for kind, (other, text) in NUMBERS.items():
        plan.add_numbers(kind, have.get(kind, other), text, applies=kind in have)
    # the three about topics, and AND among conditions
    plan.add("", holds=True)
    for kind in ("pcre-pattern", "regex-pattern"):
        plan.add(f"<{kind}>^{prefix}[.]</{kind}>", holds=True)
        plan.add(f"<{kind}>^x{prefix}</{kind}>", holds=False)
    ip = have.get("source-ip", 0x7F000001)
    low, high = ip_text(ip - 1), ip_text(ip + 1)
    between = f'<source-ip comparison="gt" value="{low}"/><source-ip comparison="lt" value="{high}"/>'
    plan.add(between, holds=True)
    another = "tcp" if prefix == "lbtipc" else "lbt-ipc"
    plan.add(between + f'<transport comparison="eq" value="{another}"/>', holds=False)
    return plan


def send_all(sources: list[FragmentSource], loop: Loop, sqn: int) -> None:
    for source in sources:
        payload = b"%d" % sqn
        header = lbmc.HEADER.pack(0, 0, 12 + len(payload), source.topic_index, sqn)
        source.transport.send_message(header + payload, loop.now_ns())


FIXED: Final = {
    "tcp": ("transport_tcp_port", "tcp-source-port"),
    "lbtru": ("transport_lbtru_port", "udp-source-port"),
    "lbtipc": ("transport_lbtipc_id", "xport-id"),
}
"""By transport the option that puts a source on the session of another one, and which number that is.

LBT-RM has the group in its file.
"""


@pytest.mark.slow
def test_every_condition_with_each_comparison(tmp_path: Path) -> None:
    kinds = {1: "lbtrm", 2: "tcp", 3: "lbtru", 4: "lbtipc"}
    site = Site(tmp_path, 5, transports=kinds)
    own_group = f"source transport_lbtrm_multicast_address {site.net(1)}.20\n"
    site.config(1).write_text(site.config(1).read_text() + own_group)
    loop = Loop()
    try:
        with ExitStack() as stack:
            contexts = {trd: stack.enter_context(context(loop, site.config(trd)))[0] for trd in kinds}
            receiver, sink = stack.enter_context(context(loop, site.config(5)))
            # a first source on each session, so that its address is known when the lists are written
            sources = [one.open_source(f"{kinds[trd]}.none".encode()) for trd, one in contexts.items()]
            addresses = [source.transport.address for source in sources]
            plans = {trd: plan_for(address, kinds[trd]) for trd, address in zip(kinds, addresses, strict=True)}
            for trd, plan in plans.items():
                options = contexts[trd].options
                if kinds[trd] in FIXED:
                    name, number = FIXED[kinds[trd]]
                    options = options.with_("source", name, numbers_of(addresses[trd - 1])[number])
                sources += [contexts[trd].open_source(topic, options=options) for topic in plan.topics]
            assert {s.transport.address for s in sources} == set(addresses), "one session each"
            lists = {
                portal: f"<acl><inbound>{chr(10).join(plan.entries)}</inbound></acl>" for portal, plan in plans.items()
            }
            write_dro(site, lists, QUICK_ROUTES)
            site.start()
            wanted = {topic for plan in plans.values() for topic in plan.accepted}
            assert min(len(plan.accepted) for plan in plans.values()) > 80
            assert min(len(plan.rejected) for plan in plans.values()) > 20
            for plan in plans.values():
                for topic in plan.topics:
                    receiver.want_topic(topic)
            receiver.want_pattern(rb"\.none$", PATTERN_PCRE, lambda topic: topic.endswith(b".none"))
            turn_until(loop, lambda: {bound.topic for bound in sink.current} == wanted)
            with site.books() as books:
                # by the name alone only a pattern of the entry decides; the topic without an entry comes by a pattern
                not_in = {trd: len(plan.rejected) - BY_NAME + 1 for trd, plan in plans.items()}
                turn_until(loop, lambda: {trd: books[trd, Slot.SOURCES_NOT_IN] for trd in plans} == not_in)
                turn_until(loop, lambda: books[5, Slot.PROXY_SOURCES] == len(wanted))
                sqn = 0

                def heard() -> set[bytes]:
                    nonlocal sqn
                    send_all(sources, loop, sqn)
                    sqn += 1
                    return {topic for topic, _, _ in sink.fragments}

                turn_until(loop, lambda: heard() == wanted)
                taken = sum(books[trd, Slot.TOPIC_RCVD] for trd in plans)
                assert taken <= sqn * len(wanted), "fragments of rejected sources are not taken in"
                assert {bound.topic for bound in sink.current} == wanted
            assert "source not let into the DRO" in site.log
            assert 'reason="no entry matches"' in site.log
            assert site.stop() == 0
    finally:
        site.close()
        loop.close()

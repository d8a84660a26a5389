"""Each counter of the guide's portal pages is moved from outside, and then is the same wherever it is told.

Two real DROs. A joins TRD 1 and 2 and has a link to B, which joins TRD 3; the link goes through a relay that holds it
back, breaks it off, and adds messages of a companion that errs. A stimulus says which counters it moves, and by how
many messages where that is certain. What no stimulus moves is listed, with the test that moves it in a portal without
processes.

Source: DRO guide, 5.4.2 and 5.4.3.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Final

import pytest

from dro.metrics.table import ENDPOINT, PEER, PORTAL, PORTAL_TYPES, metrics
from tests.daemon.counter_stimuli import (
    PEER_XML,
    QUEUE,
    REPAIRED,
    SENT_AGAIN,
    SMALL,
    SOME,
    UNICAST_QUEUE,
    WINDOW,
    Bench,
    Moves,
    add_to_link,
    cut_link,
    freeze_receiver,
    hold_link,
    mend_link,
    nothing,
    open_sources,
    read_on,
    send_again,
    send_broken_datagrams,
    send_data,
    send_immediate,
    send_immediate_too_fast,
    send_immediate_too_large,
    send_immediate_without_ports,
    send_too_large,
    send_unicast,
    send_unicast_again,
    send_unicast_to_nobody,
    send_unicast_wrongly,
    stop_reading,
    want,
    want_beyond,
    want_flow,
)
from tests.portals.datapath import test_counters
from tests.rigs.figures import assert_same_everywhere
from tests.rigs.immediate import give_groups
from tests.rigs.link_relay import LinkRelay
from tests.rigs.network import PATIENT, Plan, Ports

pytestmark = pytest.mark.slow
DROS: Final[Ports] = {"A": [1, 2, "B"], "B": [3, "A"]}
LINKED: Final[Ports] = {"A": [1, "B"], "B": [2, "A"]}
PORTALS: Final = {"A-1": ENDPOINT, "A-2": ENDPOINT, "A-B": PEER, "B-3": ENDPOINT, "B-A": PEER}
UDP_XML: Final = (
    f'<receive-buffer>65536</receive-buffer><transmission-window size="{WINDOW}"/>'
    '<peer-rate-limit data="100000000" retransmit="2000000"/>'
    '<nak-handling backoff-interval="5" suppress-interval="5" generation-interval="1000" ignore-interval="40"/>'
    '<session-message min-interval="20" max-interval="200"/>'
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        plan = Plan(
            tmp_path, DROS, transport={1: "lbtrm", 2: "tcp", 3: "lbtrm"}, peer_xml=PEER_XML, has_monitors=True,
            delays_ms={("A", "B"): 1}, daemon=PATIENT,
        )  # fmt: skip  # the initiator connects to the relay
        stack.callback(plan.close)
        give_groups(plan)
        with plan.config(2).open("a") as file:
            file.write(
                f"context transport_lbtrm_datagram_max_size {SMALL}\ncontext transport_tcp_datagram_max_size {SMALL}\n"
                "context transport_lbtrm_data_rate_limit 2000000\n"
                "source transport_tcp_sender_socket_buffer 65536\nreceiver transport_tcp_receiver_socket_buffer 65536\n"
            )
        relay = stack.enter_context(LinkRelay(plan.relay_port("A", "B"), plan.link_port("A", "B")))
        made = Bench(plan, relay)
        stack.callback(made.close)
        made.wait_ready()
        yield made


@pytest.fixture
def datagrams(tmp_path: Path) -> Iterator[Bench]:
    """A link with `<udp>`, of which one end has a small buffer and the other repairs slowly."""
    plan = Plan(tmp_path, LINKED, udp=UDP_XML, has_monitors=True, daemon=PATIENT)
    made = Bench(plan)
    try:
        made.wait_ready()
        yield made
    finally:
        made.close()
        plan.close()


@dataclass(frozen=True)
class Stimulus:
    do: Callable[[Bench], None]
    moves: Moves


LINK: Final = (
    "GATEWAY_CONTROL_RCVD GATEWAY_CONTROL_SENT GATEWAY_CONTROL_GENERATED CONTROL_MESSAGES_RCVD RTT_SAMPLES RTT_MIN_US "
    "RTT_MEAN_US RTT_MAX_US KEEPALIVE_ANSWERED_S"
)
BATCHES: Final = (
    "LINK_BATCHES LINK_BATCH_MIN_BYTES LINK_BATCH_MEAN_BYTES LINK_BATCH_MAX_BYTES BATCH_MIN_MESSAGES "
    "BATCH_MEAN_MESSAGES BATCH_MAX_MESSAGES"
)
MIM: Final = {
    f"IMMEDIATE_{topic}_{name}": count
    for topic in ("TOPIC", "TOPICLESS")
    for name, count in (("RCVD", 2), ("REQ_RCVD", 1))
}
MIM_SENT: Final = {
    f"IMMEDIATE_{topic}_{name}": count
    for topic in ("TOPIC", "TOPICLESS")
    for name, count in (("FORWARDED", 2), ("SENT", 2), ("REQ_SENT", 1))
}


def some(names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), SOME)


def each_mim(what: str, count: int) -> dict[str, int]:
    return {f"IMMEDIATE_{topic}_{what}": count for topic in ("TOPIC", "TOPICLESS")}


STIMULI: Final = (
    Stimulus(
        nothing,
        {
            "A-B": some(LINK) | {"QUEUE_LIMIT": QUEUE, "UNICAST_QUEUE_LIMIT": UNICAST_QUEUE},
            "B-A": some(LINK),
            "A-2": {"QUEUE_LIMIT": 1_000_000},
        },
    ),
    Stimulus(
        want,
        {
            "A-1": {
                "LOCAL_TOPICS": 1,
                "LOCAL_PCRE": 1,
                "LOCAL_REGEX": 1,
                "RECEIVER_TOPICS": 2,
                "RECEIVER_PCRE": 2,
                "RECEIVER_REGEX": 2,
                "PROXY_RECEIVERS": SOME,
            },
            "A-2": {"LOCAL_TOPICS": 1, "LOCAL_PCRE": 1, "LOCAL_REGEX": 1},
            "A-B": {
                "REMOTE_TOPICS": 2,
                "REMOTE_PCRE": 1,
                "REMOTE_REGEX": 1,
                "RECEIVER_TOPICS": 2,
                "RECEIVER_PCRE": 2,
                "RECEIVER_REGEX": 2,
                "PROXY_RECEIVERS": SOME,
            },
            "B-A": {"PROXY_RECEIVERS": SOME},
        },
    ),
    Stimulus(want_beyond, {"B-3": {"REMOTE_TOPICS": 1, "REMOTE_PCRE": 1, "REMOTE_REGEX": 1}}),
    Stimulus(
        open_sources,
        {
            "A-2": {"PROXY_SOURCES": 1},
            "A-B": {"PROXY_SOURCES": 2} | some(BATCHES),
            "B-3": {"PROXY_SOURCES": 2},
        },
    ),
    Stimulus(
        send_data,
        {
            "A-1": {"TOPIC_RCVD": 10, "TOPIC_REQ_RCVD": 3, "CONTROL_RCVD": SOME},
            "A-2": {"FORWARDED": SOME, "SENT": SOME, "REQ_SENT": 3},
            "A-B": {"FORWARDED": SOME, "SENT": SOME, "REQ_SENT": 3},
            "B-A": {
                "TOPIC_RCVD": 10,
                "TOPIC_REQ_RCVD": 3,
                "CONTROL_RCVD": SOME,
                "DATA_RCVD": 10,
                "CONTROL_MESSAGES_RCVD": SOME,
            },
            "B-3": {"REQ_SENT": 3},
        },
    ),
    Stimulus(send_again, {"A-1": {"TOPIC_RCVD": 4}, "A-2": {"DROPPED_DUP": 3}, "A-B": {"DROPPED_DUP": 3}}),
    Stimulus(send_too_large, {"A-2": {"DROPPED_SIZE": 4}, "B-A": {"TOPIC_RCVD": 4}}),
    Stimulus(stop_reading, {"A-2": some("DROPPED_BLOCKED QUEUED_BYTES QUEUED_BYTES_MAX")}),
    Stimulus(read_on, {"A-2": some("SENT QUEUED_BYTES")}),
    Stimulus(
        send_unicast,
        {
            "A-1": {"UNICAST_DATA_RCVD": 3, "UNICAST_CONTROL_RCVD": 2},
            "A-2": {"UNICAST_FORWARDED": 2, "UNICAST_SENT": 2},
            "A-B": {"UNICAST_FORWARDED": 3, "UNICAST_SENT": 3},
            "B-A": {
                "UNICAST_DATA_RCVD": 2,
                "UNICAST_CONTROL_RCVD": 1,
                "RXREQ_RCVD": 1,
                "DATA_RCVD": 2,
                "CONTROL_MESSAGES_RCVD": SOME,
            },
        },
    ),
    Stimulus(send_unicast_again, {"A-1": {"UNICAST_DATA_DUP": 1, "UNICAST_CONTROL_DUP": 1}}),
    Stimulus(
        send_unicast_wrongly,
        {
            "A-1": {
                "UNICAST_DATA_NO_STREAM": 1,
                "UNICAST_DATA_NO_ROUTE": 1,
                "UNICAST_CONTROL_NO_STREAM": 1,
                "UNICAST_CONTROL_NO_ROUTE": 1,
            },
        },
    ),
    Stimulus(send_unicast_to_nobody, {"A-2": {"UNICAST_DROPPED_ERROR": 1}}),
    Stimulus(
        add_to_link,
        {
            "B-A": {
                "UNKNOWN_SOURCE": 2,
                "UNKNOWN_SOURCE_REQ": 1,
                "UNKNOWN_SOURCE_CONTROL": 1,
                "UNICAST_DATA_NO_STREAM": 1,
                "UNICAST_CONTROL_NO_STREAM": 1,
                "UNICAST_DATA_NO_ROUTE": 1,
                "UNICAST_CONTROL_NO_ROUTE": 1,
                "UNICAST_DATA_NO_FORWARDING": 1,
                "UNICAST_UNKNOWN_FORWARDING": 1,
                "UNICAST_CONTROL_UNHANDLED": 1,
            },
        },
    ),
    Stimulus(send_immediate_without_ports, {"A-2": each_mim("DROPPED_ERROR", 1)}),
    Stimulus(send_immediate, {"A-1": MIM, "A-2": MIM_SENT, "B-A": MIM | {"DATA_RCVD": 4}}),
    Stimulus(send_immediate_too_large, {"A-2": each_mim("DROPPED_SIZE", 1)}),
    Stimulus(send_immediate_too_fast, {"A-2": each_mim("DROPPED_BLOCKED", SOME)}),
    Stimulus(
        hold_link,
        {
            "A-B": some(
                "DROPPED_BLOCKED QUEUED_BYTES QUEUED_BYTES_MAX UNICAST_DROPPED_BLOCKED UNICAST_QUEUED_BYTES "
                "UNICAST_QUEUED_BYTES_MAX"
            ),
        },
    ),
    Stimulus(
        cut_link,
        {
            "A-B": some(
                "DROPPED_NOT_OPERATIONAL UNICAST_DROPPED_NOT_OPERATIONAL GATEWAY_CONTROL_NOT_OPERATIONAL "
                "QUEUED_BYTES UNICAST_QUEUED_BYTES"
            ),
        },
    ),
    Stimulus(mend_link, {"A-B": some("SENT")}),
)


DATAGRAM_STIMULI: Final = (
    Stimulus(
        want_flow,
        {"A-B": some("UDP_SENT UDP_SENT_BYTES"), "B-A": some("UDP_RCVD UDP_RCVD_BYTES")},
    ),
    Stimulus(freeze_receiver, {"A-B": some(SENT_AGAIN), "B-A": some(REPAIRED)}),
    Stimulus(
        send_broken_datagrams,
        {
            "B-A": {
                "UDP_DROPPED_SIZE": 1,
                "UDP_DROPPED_TYPE": 2,
                "UDP_DROPPED_VERSION": 3,
                "UDP_DROPPED_HEADER": 4,
                "UDP_DROPPED_SESSION": 5,
                "UDP_DROPPED_OTHER": 6,
            },
        },
    ),
)


def test_each_stimulus_moves_its_counters_everywhere(bench: Bench) -> None:
    """One after the other, each on what those before it have made."""
    for stimulus in STIMULI:
        check(bench, stimulus)


def test_each_stimulus_moves_counters_of_datagrams_everywhere(datagrams: Bench) -> None:
    for stimulus in DATAGRAM_STIMULI:
        check(datagrams, stimulus)


def check(bench: Bench, stimulus: Stimulus) -> None:
    """What it says that it moves has moved, with its bytes, and is told alike everywhere."""
    zero = stimulus.do is nothing
    before = {name: {} if zero else bench.rows(name) for name in stimulus.moves}
    stimulus.do(bench)
    missing: dict[str, dict[str, tuple[int, int]]] = {}

    def have_moved() -> bool:
        missing.clear()
        for name, moves in stimulus.moves.items():
            now, then = bench.rows(name), before[name]
            for row, count in moves.items():
                change = now[row] - then.get(row, 0)
                lacks_bytes = f"{row}_BYTES" in now and now[f"{row}_BYTES"] <= then.get(f"{row}_BYTES", 0)
                if lacks_bytes or (change != count if count != SOME else not change):
                    missing.setdefault(name, {})[row] = (count, change)
        return not missing

    bench.wait(have_moved, lambda: f"{stimulus.do.__name__}: (wanted, moved) {missing}")
    for name in stimulus.moves:
        assert_same_everywhere(bench.plan.web(name[0]), name)


def rows_of_the_guide(kind: str) -> set[str]:
    """Rows of the table that the guide's page, or its monitoring records, have."""
    text = files("dro.metrics").joinpath("data", f"{PORTAL}.csv").read_text(encoding="utf-8")
    return {
        line["name"]
        for line in csv.DictReader(text.splitlines())
        if line[kind] != "-" and (line[f"{kind}_field"] or line[f"{kind}_title"][:1].isupper())
    }


SLOT: Final = "tests.portals.datapath.test_counters:test_a_slot_counts_what_it_is_for"
REFUSED: Final = "tests.supervisor.samples.test_pages:test_what_its_full_channel_refused_is_forwarded_and_dropped"
NEVER: Final = "tests.metrics.test_table:test_every_cell_is_named_by_the_code_that_counts"
"""Tests of portals without processes."""
ELSEWHERE: Final = {
    (ENDPOINT, "DROPPED_ERROR"): SLOT,  # memory of a sibling that cannot be opened
    (PEER, "DROPPED_QUEUE_FAILURE"): REFUSED,  # no shared memory
    (PEER, "UNICAST_DROPPED_QUEUE_FAILURE"): REFUSED,
    (PEER, "GATEWAY_CONTROL_DROPPED"): SLOT,  # what waits for a link always has room; in a TRD it may have none
    (PEER, "GATEWAY_CONTROL_QUEUE_FAILURE"): NEVER,
    (PEER, "UDP_NCFS_UNKNOWN"): SLOT,  # a session has a number that no stranger knows, to answer in its name
}


def test_every_counter_of_the_guide_is_moved() -> None:
    moved = {
        (PORTALS[name], row)
        for stimulus in (*STIMULI, *DATAGRAM_STIMULI)
        for name, moves in stimulus.moves.items()
        for row in moves
    }
    wanted = {(kind, row) for kind in PORTAL_TYPES for row in rows_of_the_guide(kind)}
    assert wanted - moved == ELSEWHERE.keys()
    for (kind, row), place in ELSEWHERE.items():
        module, _, name = place.partition(":")
        assert callable(getattr(import_module(module), name)), place
        slot = next(metric.slots[0] for metric in metrics(PORTAL, kind) if metric.row == row)
        assert place != SLOT or slot in test_counters.CASES

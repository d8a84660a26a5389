"""Requests in a source's stream get their domain where they enter, in order and beside all other messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.config.um.options import DEFAULTS
from dro.metrics.slots import Slot
from dro.proto.delivery.fragment import message_limit
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import Frag, ODomain, Request
from dro.wire.lbmc.origin import request_with_domain
from dro.wire.lbmr.options import DomainId, TirOptions
from portals.datapath.handover import ForwardEntry
from portals.endpoint.requests import RequestOrigins
from tests.builders.um_options import with_all
from tests.portals.datapath.test_data_path import BlockingSender, Link

OWN, OTHER = 7, 9
SIZE = "transport_tcp_datagram_max_size"
ASKS = Request(5, 0x0A000001, 14400)
PLAIN, REQUEST, KNOWN, PIECE = (), (ASKS,), (ASKS, ODomain(OTHER)), (ASKS, Frag(0, 0, 9000))
Sent = tuple[int, tuple[Request | ODomain | Frag, ...], int]
"""Number of the source, blocks, and payload bytes."""
streams = st.lists(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from([PLAIN, REQUEST, KNOWN, PIECE]), st.integers(0, 3))),
    max_size=4,
)


def message(index: int, sqn: int, blocks: tuple[Request | ODomain | Frag, ...], payload: bytes) -> bytes:
    return lbmc.encode(lbmc.Message(MessageType.MESSAGE, index, sqn, blocks, payload))


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    made = Link(tmp_path)
    made.ingress.requests = RequestOrigins(OWN, DEFAULTS)
    yield made
    made.close()


@settings(max_examples=40)
@given(batches=streams)
def test_each_source_stays_in_order_and_requests_get_their_domain(batches: list[list[Sent]]) -> None:
    with TemporaryDirectory() as folder:
        link, out = Link(Path(folder)), BlockingSender()
        link.ingress.requests = RequestOrigins(OWN, DEFAULTS)
        for index in (1, 2):
            link.add_source(index, out)
        sqns, expected = {1: 0, 2: 0}, []
        for batch in batches:
            sent = []
            for index, blocks, size in batch:
                sent.append(message(index, sqns[index], blocks, bytes(size)))
                expected.append((5000 + index, sqns[index], request_with_domain(sent[-1], OWN)[12:]))
                sqns[index] += 1
            link.receive(b"".join(sent))
            link.carry()
        for index in (5001, 5002):
            assert [each for each in out.sent if each[0] == index] == [each for each in expected if each[0] == index]
        link.books()
        requests = sum(blocks != PLAIN for batch in batches for _, blocks, _ in batch)
        assert (link.page_p[Slot.TOPIC_REQ_RCVD], link.page_q[Slot.REQ_SENT]) == (requests, requests)
        link.close()


def test_the_domain_is_that_of_the_source(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    source = link.transport.sources[1]
    source.tir = replace(source.tir, options=TirOptions((DomainId(OTHER),)))
    link.receive(message(1, 0, REQUEST, b"?"))
    link.carry()
    assert out.sent == [(5001, 0, message(1, 0, KNOWN, b"?")[12:])]


@pytest.mark.parametrize(("left", "grows"), [(8, True), (7, False)])
def test_what_has_no_room_left_in_a_datagram_stays_as_it_is(link: Link, left: int, grows: bool) -> None:
    link.ingress.requests = RequestOrigins(OWN, with_all(DEFAULTS, [("context", SIZE, "8192")]))
    out = BlockingSender()
    link.add_source(1, out)
    full = message_limit(8192) - left
    sent = message(1, 0, REQUEST, bytes(full - len(message(1, 0, REQUEST, b""))))
    link.receive(sent)
    link.carry()
    expected = request_with_domain(sent, OWN) if grows else sent
    assert out.sent == [(5001, 0, expected[12:])]


def test_requests_that_nobody_wants_are_counted(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    entry = link.transport.sources[1].user
    assert isinstance(entry, ForwardEntry)
    entry.egress = ()
    link.receive(message(1, 0, REQUEST, b"?"))
    link.carry()
    assert out.sent == []
    assert link.page_p[Slot.TOPIC_REQ_RCVD] == 1

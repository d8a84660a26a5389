"""Messages of a peer link: as the vectors have them, there and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.proto.peerlink.messages import (
    COMPRESSION_LZ4,
    SOURCE_OPTIONS,
    Digests,
    Hello,
    MessageKind,
    SourceEnd,
    SourceRecord,
    digests_of,
    extension,
    extensions_of,
    fits,
    hello,
    keepalive,
    kind_of,
    pattern_interest,
    read_hello,
    read_source,
    response_to,
    source,
    source_end,
    topic_interest,
)
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import RawBlock
from dro.wire.lbmc.codes import BlockType
from dro.wire.lbmc.dro_blocks import (
    CAPABILITY1_UME,
    CAPABILITY3_PCRE,
    KA_QUERY,
    KA_RESPONSE,
    PATTERN_PCRE,
    PATTERN_REGEX,
    TnwgKeepalive,
    TopicMdInterest,
)

VECTORS = Path(__file__).parents[2] / "golden/vectors/lbmc.jsonl"


def vectors() -> Iterator[tuple[str, bytes]]:
    for line in VECTORS.read_text().splitlines():
        row = json.loads(line)
        yield row["name"], bytes.fromhex(row["hex"])


PEER = {name: data for name, data in vectors() if name.startswith("peer_")}
OTID = bytes(range(0x10, 0x30))


def test_greetings_are_those_of_the_vectors() -> None:
    own = Hello(b"DRO-A", bytes.fromhex("0a01010a3707c001"), 1, CAPABILITY1_UME, CAPABILITY3_PCRE)
    assert hello(own) == PEER["peer_hello_capabilities_name"]
    with_port = read_hello(lbmc.decode(PEER["peer_hello_with_udp_port_extension"]))
    assert with_port == Hello(b"DRO-A", b"", 1, CAPABILITY1_UME, CAPABILITY3_PCRE, udp_port=12000)


def test_keepalives_are_those_of_the_vectors() -> None:
    now_us = 0x6553F100 * 1_000_000 + 123456
    assert keepalive(42, now_us) == PEER["peer_keepalive_query"]
    query = lbmc.decode(PEER["peer_keepalive_query"]).get(TnwgKeepalive)
    assert query is not None
    assert response_to(query) == PEER["peer_keepalive_response"]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_response_has_what_came_in_the_query(index: int, seconds: int, microseconds: int) -> None:
    response = lbmc.decode(response_to(TnwgKeepalive(index, seconds, microseconds, flags=KA_QUERY))).get(TnwgKeepalive)
    assert response is not None
    assert (response.index, response.seconds, response.microseconds) == (index, seconds, microseconds)
    assert response.flags == KA_RESPONSE


def test_extensions_that_nobody_here_knows_are_skipped_and_known_ones_are_whole() -> None:
    def of(*blocks: RawBlock) -> dict[int, bytes]:
        return extensions_of(lbmc.control_message(*blocks))

    whole = extension(SOURCE_OPTIONS, bytes(600))
    assert of(*extension(0xEEEE, b"a"), *extension(0xEEEE, b"b"), *whole) == {SOURCE_OPTIONS: bytes(600)}
    with pytest.raises(DecodeError, match="no last piece"):
        of(*whole[:-1])
    with pytest.raises(DecodeError, match="a piece of"):
        of(*whole[1:])


def test_interest_is_that_of_the_vectors() -> None:
    assert [*topic_interest(b"AAA", (300, 2, 1))] == [PEER["peer_topic_interest_md"]]
    assert [*topic_interest(b"AAA", (2,), is_refresh=True)] == [PEER["peer_topic_interest_md_refresh"]]
    assert [*topic_interest(b"AAA", (1,), is_cancel=True)] == [PEER["peer_topic_interest_md_cancel"]]
    assert [*pattern_interest(rb"^USER\..*", PATTERN_PCRE, 1, (1, 2))] == [PEER["peer_pattern_interest_md"]]
    cancel = [*pattern_interest(b".*", PATTERN_REGEX, -2, (7,), is_cancel=True)]
    assert cancel == [PEER["peer_pattern_interest_md_cancel"]]


def test_sources_are_those_of_the_vectors() -> None:
    backwards = bytes(range(0xBF, 0x9F, -1))
    found = read_source(lbmc.decode(PEER["peer_topic_source_pattern"]))
    assert isinstance(found, SourceRecord)
    assert (found.srcidx, found.domain_id, found.topic, found.otid) == (6, 2, b"USER.a", backwards)
    assert found.request is not None
    assert source(found) == PEER["peer_topic_source_pattern"]
    new = read_source(lbmc.decode(PEER["peer_topic_source_new"]))
    assert isinstance(new, SourceRecord)
    assert source(new) == PEER["peer_topic_source_new"]
    end = source_end(1, SourceEnd(0x100000005, OTID), 0x5BC84E82)
    assert end == PEER["peer_topic_source_eos"]
    assert read_source(lbmc.decode(end)) == SourceEnd(0x100000005, OTID)


CLASSES = {
    "peer_hello_capabilities_name": MessageKind.CONTROL,
    "peer_keepalive_query": MessageKind.CONTROL,
    "peer_route_info_three_neighbours": MessageKind.CONTROL,
    "peer_topic_interest_md": MessageKind.CONTROL,
    "peer_pattern_interest_md": MessageKind.CONTROL,
    "peer_topic_source_new": MessageKind.CONTROL,
    "peer_topic_source_eos": MessageKind.CONTROL,
    "peer_data": MessageKind.SOURCE,
    "peer_data_fragment_batch_request": MessageKind.SOURCE,
    "peer_tsni": MessageKind.SOURCE,
    "peer_sri": MessageKind.SOURCE,
    "peer_unicast_data": MessageKind.UNICAST,
    "peer_unicast_control_rxreq": MessageKind.UNICAST,
    "peer_retransmission_routed": MessageKind.UNICAST,
    "peer_mim_topic": MessageKind.IMMEDIATE,
    "peer_ctxinfo_query": MessageKind.CONTROL,
    "peer_domain_active": MessageKind.CONTROL,
    "peer_topic_interest_single": MessageKind.CONTROL,
    "peer_advertisement": MessageKind.CONTROL,
}


@pytest.mark.parametrize(("name", "kind"), CLASSES.items())
def test_every_vector_is_of_its_class(name: str, kind: MessageKind) -> None:
    assert kind_of(PEER[name]) is kind


names = st.binary(min_size=1, max_size=251).filter(lambda name: not name.endswith(b"\0"))


@given(
    st.binary(max_size=100).filter(lambda name: not name.endswith(b"\0")),
    st.binary(min_size=8, max_size=8),
    st.integers(1, 0x7FFF),
    st.integers(0, 0xFFFF),
    st.sampled_from([(), (COMPRESSION_LZ4,), (3, COMPRESSION_LZ4)]),
    st.one_of(st.just(b""), st.binary(min_size=36, max_size=36)),
    st.booleans(),
)
def test_a_greeting_comes_back(
    name: bytes, instance: bytes, version: int, port: int, compression: tuple[int, ...], key: bytes, digests: bool
) -> None:
    fast = (port, version) if digests else None
    own = Hello(name, instance, version, 1, 2, port, compression, key, digests, fast_ms=fast, has_canaries=digests)
    message = lbmc.decode(hello(own))
    assert read_hello(message) == own
    assert kind_of(hello(own)) is MessageKind.CONTROL


@given(names, st.binary(max_size=3000), st.integers(1, 2**32 - 1), st.integers(1, 2**63), st.booleans())
def test_a_source_comes_back_with_all_its_options(
    topic: bytes, options: bytes, domain: int, srcidx: int, has_more: bool
) -> None:
    more = {"pattern_index": 7, "context_instance": bytes(8), "request": (1, 2, 3)} if has_more else {}
    record = SourceRecord(srcidx, domain, topic, OTID, 77, options=options, **more)  # type: ignore[arg-type]
    assert read_source(lbmc.decode(source(record))) == record


@given(names, st.sets(st.integers(1, 2**32 - 1), max_size=200), st.booleans(), st.booleans())
def test_many_domains_are_split_over_messages(
    topic: bytes, domains: set[int], is_cancel: bool, is_refresh: bool
) -> None:
    told: list[int] = []
    for message in topic_interest(topic, domains, is_cancel=is_cancel, is_refresh=is_refresh):
        block = lbmc.decode(message).get(TopicMdInterest)
        assert block is not None
        assert 0 < len(block.domains) <= 61
        told += block.domains
    assert told == sorted(domains)


@pytest.mark.parametrize(
    "digests", [Digests(3, 2**64 - 1), Digests(None, 0), Digests(0, None), Digests(None, None), Digests(0, 0)]
)
def test_digests_travel_in_a_response(digests: Digests) -> None:
    block = lbmc.decode(response_to(TnwgKeepalive(1, 2, 3, flags=KA_QUERY), digests)).get(TnwgKeepalive)
    assert block is not None
    assert digests_of(block) == digests


def test_since_when_an_initiator_connects_travels_in_its_greeting() -> None:
    own = Hello(b"A", b"instance", since_us=1_700_000_000_000_000)
    assert read_hello(lbmc.decode(hello(own))) == own


@pytest.mark.parametrize(("code", "what"), [(0x0E, "number"), (0x0B, "OTID"), (0x05, "topic")])
def test_a_source_that_lacks_something_is_refused(code: int, what: str) -> None:
    whole = lbmc.decode(source(SourceRecord(1, 2, b"T", OTID, 3)))
    with pytest.raises(DecodeError, match=what):
        read_source(lbmc.control_message(*[block for block in whole.blocks if block.code != code]))


def test_pieces_of_an_extension_that_do_not_join_are_refused() -> None:
    whole = lbmc.decode(source(SourceRecord(1, 2, b"T", OTID, 3, options=bytes(600))))
    extensions = [block for block in whole.blocks if block.code == BlockType.EXTOPT]
    assert len(extensions) == 3
    with pytest.raises(DecodeError, match="extopt"):
        read_source(lbmc.control_message(*[block for block in whole.blocks if block is not extensions[1]]))


def test_which_names_fit() -> None:
    assert [fits(name) for name in (b"", b"x", bytes(251), bytes(252))] == [False, True, True, False]

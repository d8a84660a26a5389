"""Messages of topic resolution over TCP: published examples, round trips, batches, and how they are printed."""

from __future__ import annotations

import json
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.dissect import packet as dissect
from dro.errors import DecodeError
from dro.wire.srs import messages as lbmsrs
from dro.wire.srs import rsocket
from dro.wire.srs.messages import (
    InterestInfo,
    MessageId,
    RegistrationRequest,
    RegistrationResponse,
    SourceDelete,
    SourceInfo,
    SourceLeave,
    SrsMessage,
    StreamRequest,
)
from dro.wire.srs.rsocket import ErrorFrame, PayloadFrame
from tests.builders.srs_records import all_records, source_info

VECTORS: Final = Path(__file__).parents[2] / "golden/vectors/lbmsrs.jsonl"
KNOWN: Final[dict[str, SrsMessage]] = {
    "registration_request": RegistrationRequest(1, 0x0A010203, 14391, 0xABCDEF01, 0x0A010203, 3, 100),
    "stream_request": StreamRequest(),
    "rir": InterestInfo(MessageId.RECEIVER_INFO, b"BBB", 100, bytes.fromhex("1122334455667788"), 0, 1, 2),
}
TAIL: Final = 63


def vectors() -> dict[str, tuple[bytes, dict[str, Any]]]:
    rows = map(json.loads, VECTORS.read_text(encoding="utf-8").splitlines())
    return {row["name"]: (bytes.fromhex(row["hex"]), row["expect"]) for row in rows}


@pytest.mark.parametrize("name", KNOWN)
def test_published_examples(name: str) -> None:
    raw, expected = vectors()[name]
    frame = rsocket.decode(raw[3:])
    assert rsocket.encode(frame) == raw
    data = getattr(frame, "data", b"")
    assert lbmsrs.decode(data) == (KNOWN[name],)
    assert lbmsrs.encode(KNOWN[name]) == data
    shown = dissect.fields("lbmsrs", raw)
    assert shown.error is None
    assert shown.values.items() >= expected.items()


def test_sizes_are_those_of_the_format() -> None:
    assert len(lbmsrs.encode(RegistrationResponse(1, 2))) == 15
    sir = source_info(b"AAA")
    assert len(lbmsrs.encode(sir)) == 99 + len(b"AAA\0") + len(sir.source) + 1
    assert len(lbmsrs.encode(SourceDelete(sir.otid, b"AAA"))) == 35 + 4
    assert len(lbmsrs.encode(InterestInfo(6, b"AAA"))) == 28 + 4
    assert len(lbmsrs.encode(SourceLeave(sir.otid, b"AAA", b"S"))) == 57 + 4 + 2


def test_a_response_has_a_wide_domain_and_a_narrow_version() -> None:
    raw = bytes.fromhex("0002 0000000000000007 00000064 01")
    assert lbmsrs.decode(raw) == (RegistrationResponse(7, 100, 1),)


def test_one_nul_at_the_end_of_a_string_does_not_belong_to_it() -> None:
    written = lbmsrs.encode(SourceDelete(bytes(32), b"AAA"))
    assert written[34:] == b"\4AAA\0"
    assert lbmsrs.decode(written[:34] + b"\3AAA") == (SourceDelete(bytes(32), b"AAA"),)
    longest = SourceDelete(bytes(32), b"x" * 255)
    assert lbmsrs.decode(lbmsrs.encode(longest)) == (longest,)
    for bad in (b"\5AA\0A\0", b"\2\0\0"):
        with pytest.raises(DecodeError, match="NUL"):
            lbmsrs.decode(written[:34] + bad)


def test_what_stands_before_a_bad_record_is_kept() -> None:
    records = tuple(all_records())
    raws = list(map(lbmsrs.encode, records))
    assert lbmsrs.decode(b"".join(raws)) == records
    for unknown in (b"\0\x0d", b"\xff\xff", b"\0\1", b"\0\3\0"):
        kept, trouble = lbmsrs.decode_lenient(b"".join(raws[:3]) + unknown + raws[3])
        assert kept == records[:3]
        assert trouble is not None
        assert trouble.where == "message.id"
        assert trouble.offset == sum(map(len, raws[:3]))
    whole = b"".join(raws)
    ends = [sum(map(len, raws[:count])) for count in range(len(raws) + 1)]
    for size in range(1, len(whole)):
        kept, trouble = lbmsrs.decode_lenient(whole[:size])
        assert kept == records[: len(kept)]
        assert len(kept) == max(i for i, end in enumerate(ends) if end <= size)
        assert (trouble is None) == (size in ends)


def test_what_stands_alone_has_nothing_behind_it() -> None:
    for message in (KNOWN["registration_request"], RegistrationResponse(1), StreamRequest()):
        kept, trouble = lbmsrs.decode_lenient(lbmsrs.encode(message) + b"\0")
        assert kept == ()
        assert trouble is not None
    assert lbmsrs.decode_lenient(b"")[1] is not None


def test_batches_are_filled_to_a_size_and_keep_the_order() -> None:
    records = [source_info(b"T%d" % index, index) for index in range(100)]
    batches = lbmsrs.pack_records(records, 1000)
    assert len(batches) > 10
    assert max(map(len, batches)) <= 1000
    assert [record for batch in batches for record in lbmsrs.decode(batch)] == records
    raws = list(map(lbmsrs.encode, records))
    assert lbmsrs.pack_records(raws, 1000) == batches
    assert lbmsrs.pack_records(raws, 10) == raws
    assert lbmsrs.pack_records([], 1000) == []


@pytest.mark.parametrize(
    "message",
    [
        SourceDelete(bytes(31), b"A"),
        SourceDelete(bytes(32), b"x" * 256),
        SourceDelete(bytes(32), b"A\0B"),
        replace(source_info(b"A"), ttl=1 << 16),
        replace(source_info(b"A"), cost=1 << 31),
        replace(source_info(b"A"), context_instance=b"short"),
        InterestInfo(12, b"A"),
        InterestInfo(6, b"A", context_instance=b"short"),
        SourceLeave(bytes(32), b"A", b"B", b"short"),
        RegistrationResponse(1 << 64),
    ],
)
def test_what_does_not_fit_is_refused(message: SrsMessage) -> None:
    with pytest.raises(DecodeError):
        lbmsrs.encode(message)


_TEXT: Final = st.binary(max_size=255).map(lambda raw: raw.replace(b"\0", b"x"))
_U8, _U16, _U32 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32))
_SIZED: Final = {
    "otid": st.binary(min_size=32, max_size=32), "context_instance": st.binary(min_size=8, max_size=8),
    "topic": _TEXT, "source": _TEXT, "name": _TEXT, "cost": st.integers(-(1 << 31), (1 << 31) - 1),
    "ulb_registration_id": st.integers(0, (1 << 64) - 1), "client_id": st.integers(0, (1 << 64) - 1),
    "kind": st.integers(6, 11), "request_port": _U16, "client_port": _U16, "ttl": _U16,
    "encryption": _U8, "compression": _U8, "context_type": _U8, "application_type": _U8, "interest_mode": _U8,
}  # fmt: skip
_KINDS: Final = (SourceInfo, SourceDelete, InterestInfo, SourceLeave, RegistrationRequest, RegistrationResponse)


def made(kind: type[SrsMessage]) -> st.SearchStrategy[SrsMessage]:
    values = {field.name: _SIZED.get(field.name, _U32) for field in fields_of(kind)}
    if kind in (RegistrationRequest, RegistrationResponse):
        values["version"] = _U8
    return st.builds(kind, **values)


@given(st.sampled_from(_KINDS).flatmap(made))
def test_a_message_is_read_as_it_was_written(message: SrsMessage) -> None:
    assert lbmsrs.decode(lbmsrs.encode(message)) == (message,)


@given(st.binary(max_size=300), st.integers(0, 12))
def test_any_bytes_are_read_or_refused(data: bytes, kind: int) -> None:
    for raw in (data, kind.to_bytes(2, "big") + data):
        messages, trouble = lbmsrs.decode_lenient(raw)
        again = b"".join(map(lbmsrs.encode, messages))
        assert not messages or lbmsrs.decode(again) == messages
        assert messages or trouble is not None


def test_an_error_shows_its_code_and_a_fault_what_stands_before_it() -> None:
    raw = rsocket.encode(ErrorFrame(0, 0x101, b"no"))
    assert dissect.fields("lbmsrs", raw).values["lbmsrs.rsocket.error_code"] == "257"
    broken = rsocket.encode(PayloadFrame(3, lbmsrs.encode(InterestInfo(6, b"AAA")) + b"\0\x63more"))
    found = dissect.fields("lbmsrs", broken + raw)
    assert found.error is not None
    assert found.values["lbmsrs.rir.topic"] == "AAA"
    for size in range(1, len(broken)):
        assert dissect.fields("lbmsrs", broken[:size]).error is not None

"""What Prometheus sends: both versions are read alike, and what is no request is refused with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import cramjam
import pyarrow.parquet as pq
import pytest
from starlette.applications import Starlette

from supervisor.history import receive, remote_write
from supervisor.history.remote_write import MAX_BYTES, V1, V2, BadRequestError, protocol_of, samples_of
from supervisor.history.sample_writer import SampleWriter
from supervisor.history.series import RemoteSample
from supervisor.history.store import Store

TS_MS = 1_700_000_100_000
LABELS = (("__name__", "dro_portal_up"), ("dro", "A"), ("portal", "P1"), ("portal_type", "peer"))


def v1(*samples: float) -> bytes:
    request = remote_write._classes()[0]()
    series = request.timeseries.add()
    for name, text in LABELS:
        series.labels.add(name=name, value=text)
    for at, value in enumerate(samples):
        series.samples.add(value=value, timestamp=TS_MS + at)
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


def v2(*samples: float, refs: tuple[int, ...] = tuple(range(8))) -> bytes:
    request = remote_write._classes()[1]()
    request.symbols.extend(text for label in LABELS for text in label)
    series = request.timeseries.add()
    series.labels_refs.extend(refs)
    for at, value in enumerate(samples):
        series.samples.add(value=value, timestamp=TS_MS + at)
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


def test_both_versions_say_the_same() -> None:
    expected = [RemoteSample(LABELS, TS_MS, 1.0), RemoteSample(LABELS, TS_MS + 1, 0.0)]
    assert samples_of(v1(1.0, 0.0), V1) == expected
    assert samples_of(v2(1.0, 0.0), V2) == expected


def test_the_content_type_tells_the_version() -> None:
    assert protocol_of("application/x-protobuf") == V1
    assert protocol_of(f"application/x-protobuf;proto={V2}") == V2
    assert protocol_of(f'Application/X-Protobuf ; charset=utf-8; PROTO="{V2}"') == V2, "as HTTP compares them"
    for other in ("text/plain", "application/x-protobuf;proto=io.prometheus.write.v3.Request", ""):
        with pytest.raises(BadRequestError, match="application/x-protobuf of") as refused:
            protocol_of(other)
        assert refused.value.status == 415


@pytest.mark.parametrize(
    ("body", "proto", "status", "why"),
    [
        (b"", V1, 400, "does not begin with a length"),
        (b"\xff" * 9, V1, 400, "does not begin with a length"),
        (b"\x05garbage", V1, 400, "not a Snappy block"),
        (bytes(cramjam.snappy.compress_raw(b"\xff" * 50)), V1, 400, "Snappy block with a prometheus.WriteRequest"),
        (bytes(cramjam.snappy.compress_raw(bytes(MAX_BYTES + 1))), V1, 413, f"send at most {MAX_BYTES}"),
        (v2(1.0, refs=(0, 99)), V2, 400, "symbols that are not there"),
        (v2(1.0, refs=(0, 1, 2)), V2, 400, "symbols that are not there"),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(body: bytes, proto: str, status: int, why: str) -> None:
    with pytest.raises(BadRequestError, match=why) as refused:
        samples_of(body, proto)
    assert refused.value.status == status


def test_what_is_right_beside_a_wrong_sample_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, "w")
    writer = SampleWriter(store)
    kept, problem = writer.keep(samples_of(v1(1.0, 7.0, 0.0), V1))
    assert kept == 2
    assert problem.startswith("dro_portal_up{dro='A', portal='P1', portal_type='peer'}: 7.0 is no value of it")
    writer.keep(samples_of(v1(1.0, 7.0, 0.0), V1))  # sent again
    store.close()
    (path,) = tmp_path.glob("table=portal/day=2023-11-14/dro=A/*.parquet")
    assert [row["up"] for row in pq.ParquetFile(path).read().to_pylist()] == [True, False]


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"dro": "A", "portal": "P1", "domain_id": "9" * 30}, "a number of more than 63 bits"),
        ({"dro": "A", "portal": "P1", "domain_id": str(1 << 63)}, "a number of more than 63 bits"),
        ({"dro": "ü" * 99, "portal": "P1", "domain_id": "7"}, "the name of the DRO is too long for a directory"),
    ],
)
def test_what_no_file_can_have_is_refused_and_stops_no_other(tmp_path: Path, labels: dict[str, str], why: str) -> None:
    store = Store(tmp_path, "w")
    writer = SampleWriter(store)
    series = (("__name__", "dro_portal_info"), *sorted({**labels, "portal_type": "endpoint"}.items()))
    kept, problem = writer.keep([RemoteSample(series, TS_MS, 1.0), RemoteSample(LABELS, TS_MS, 1.0)])
    assert kept == 1
    assert why in problem
    store.close()
    assert len(list(tmp_path.glob("table=portal/day=2023-11-14/dro=A/*.parquet"))) == 1


@pytest.mark.parametrize("name", ["dro_portal_state", "dro_worker_state"])
def test_a_series_without_a_label_that_a_dro_gives_it_stops_no_other(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path, "w")
    writer = SampleWriter(store)
    series = (("__name__", name), ("dro", "A"), ("portal", "P1"), ("worker", "P1"))
    writer.keep([RemoteSample(series, TS_MS, 1.0), RemoteSample(LABELS, TS_MS, 1.0)])
    store.close()
    (path,) = tmp_path.glob("table=*/day=2023-11-14/dro=A/*.parquet")
    assert pq.ParquetFile(path).read().column("up").to_pylist() == [True]


def test_requests_that_never_come_to_their_end_keep_no_other_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "BODY_S", 0.2)
    store = Store(tmp_path, "w")
    asked: dict[str, Any] = {"type": "http", "method": "POST", "path": receive.PATH, "query_string": b"",
                             "headers": [(b"content-type", b"application/x-protobuf")]}  # fmt: skip

    async def ask(app: Starlette, body: bytes | None) -> int:
        told: list[MutableMapping[str, Any]] = []

        async def receive_body() -> dict[str, Any]:
            if body is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            told.append(message)

        await app(asked, receive_body, send)
        return int(told[0]["status"])

    async def all_of_them() -> list[int]:
        app = receive.make_app(SampleWriter(store))
        stalled = [asyncio.create_task(ask(app, None)) for _ in range(receive.MAX_AT_ONCE)]
        await asyncio.sleep(0)
        good = await asyncio.wait_for(ask(app, v1(1.0)), 30)
        return [good, *await asyncio.gather(*stalled)]

    assert asyncio.run(all_of_them()) == [204, *[408] * receive.MAX_AT_ONCE]
    store.close()

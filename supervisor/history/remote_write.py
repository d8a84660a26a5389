"""Reads what Prometheus sends: remote write 1.0 and 2.0, compressed with Snappy."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message
from functools import cache
from typing import Final

import cramjam
from google.protobuf.message import DecodeError

from dro.lbmmon.made import Made, MessageField, message_classes
from supervisor.history.series import RemoteSample

V1: Final = "prometheus.WriteRequest"
V2: Final = "io.prometheus.write.v2.Request"
MAX_BYTES: Final = 8 << 20
"""Limits a request, without its compression."""

_V1_FIELDS: Final = (
    MessageField("WriteRequest", "timeseries", 1, "TimeSeries", True),
    MessageField("TimeSeries", "labels", 1, "Label", True),
    MessageField("TimeSeries", "samples", 2, "Sample", True),
    MessageField("Label", "name", 1, "string"),
    MessageField("Label", "value", 2, "string"),
    MessageField("Sample", "value", 1, "double"),
    MessageField("Sample", "timestamp", 2, "int64"),
)
_V2_FIELDS: Final = (
    MessageField("Request", "symbols", 4, "string", True),
    MessageField("Request", "timeseries", 5, "TimeSeries", True),
    MessageField("TimeSeries", "labels_refs", 1, "uint32", True),
    MessageField("TimeSeries", "samples", 2, "Sample", True),
    MessageField("Sample", "value", 1, "double"),
    MessageField("Sample", "timestamp", 2, "int64"),
)


class BadRequestError(ValueError):
    """Says why what was sent is no request; `status`: of HTTP."""

    def __init__(self, what: str, status: int = 400) -> None:
        super().__init__(what)
        self.status = status


@cache
def _classes() -> tuple[Made, Made]:
    return (
        message_classes("prometheus", _V1_FIELDS)["WriteRequest"],
        message_classes("io.prometheus.write.v2", _V2_FIELDS)["Request"],
    )


def protocol_of(content_type: str) -> str:
    """Which version a request is of. Raises: BadRequestError."""
    told = Message()
    told["content-type"] = content_type
    proto = told.get_param("proto", V1)
    if told.get_content_type() != "application/x-protobuf" or proto not in (V1, V2):
        raise BadRequestError(f"content type {content_type!r}: application/x-protobuf of {V1} or {V2} is read", 415)
    return proto


def samples_of(body: bytes, proto: str) -> list[RemoteSample]:
    """Decompress and decode a request. Raises: BadRequestError."""
    if (size := uncompressed_size(body)) > MAX_BYTES:
        raise BadRequestError(f"{size} bytes are too much: send at most {MAX_BYTES} at a time", 413)
    v1, v2 = _classes()
    try:
        content = bytes(cramjam.snappy.decompress_raw(body))
        request = (v1 if proto == V1 else v2).FromString(content)
    except (cramjam.DecompressionError, DecodeError) as e:
        raise BadRequestError(f"not a Snappy block with a {proto}: {e}") from e
    return list(_of_v1(request) if proto == V1 else _of_v2(request))


def uncompressed_size(body: bytes) -> int:
    """The length that a Snappy block begins with. Raises: BadRequestError."""
    size = 0
    for at, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return size
    raise BadRequestError("not a Snappy block: it does not begin with a length")


def _of_v1(request: Made) -> Iterator[RemoteSample]:
    for one in request.timeseries:
        series = tuple((label.name, label.value) for label in one.labels)
        for sample in one.samples:
            yield RemoteSample(series, sample.timestamp, sample.value)


def _of_v2(request: Made) -> Iterator[RemoteSample]:
    symbols = request.symbols
    for one in request.timeseries:
        refs = one.labels_refs
        if len(refs) % 2 or any(ref >= len(symbols) for ref in refs):
            raise BadRequestError("labels_refs name symbols that are not there")
        series = tuple((symbols[refs[at]], symbols[refs[at + 1]]) for at in range(0, len(refs), 2))
        for sample in one.samples:
            yield RemoteSample(series, sample.timestamp, sample.value)

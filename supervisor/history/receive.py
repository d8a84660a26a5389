"""Receives what Prometheus sends by remote write, into a history."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dro.errors import ResourceError
from supervisor.history.remote_write import MAX_BYTES, V2, BadRequestError, protocol_of, samples_of
from supervisor.history.sample_writer import SampleWriter

PATH: Final = "/api/v1/write"
MAX_AT_ONCE: Final = 4
"""Requests that are read at a time; others wait in their connections."""
BODY_S: Final = 10.0
"""Within which a request has to be whole."""
_log: Final = logging.getLogger("tnwgd-history")


def make_app(writer: SampleWriter, *, figures: Callable[[], Mapping[str, int]] = dict) -> Starlette:
    """The web application that Prometheus sends to. `figures`: more counters, by the ends of their names."""
    turn, room = asyncio.Lock(), asyncio.Semaphore(MAX_AT_ONCE)

    async def write(request: Request) -> Response:
        async with room:
            try:
                proto = protocol_of(request.headers.get("content-type", ""))
                if (encoding := request.headers.get("content-encoding", "snappy")).strip().lower() != "snappy":
                    raise BadRequestError(f"content encoding {encoding!r}: snappy is read", 415)
                try:
                    body = await asyncio.wait_for(_body(request), BODY_S)
                except TimeoutError:
                    raise BadRequestError(f"the request was not whole after {BODY_S:g} s", 408) from None
                async with turn:
                    count, problem = await asyncio.to_thread(_keep, writer, body, proto)
            except BadRequestError as e:
                return PlainTextResponse(f"{e}\n", e.status)
            except ResourceError as e:
                _log.error("%s", e)
                return PlainTextResponse(f"{e}\n", 503)
        headers = {}
        if proto == V2:
            headers = {f"X-Prometheus-Remote-Write-{what}-Written": "0" for what in ("Histograms", "Exemplars")}
            headers["X-Prometheus-Remote-Write-Samples-Written"] = str(count)
        if problem:
            return PlainTextResponse(f"{problem}\nthe other samples of the request are kept\n", 400, headers)
        return Response(status_code=204, headers=headers)

    async def metrics(_: Request) -> Response:
        counted = {"samples_written_total": writer.written, "samples_refused_total": writer.bad, **figures()}
        return PlainTextResponse(
            "".join(f"# TYPE dro_history_{name} counter\ndro_history_{name} {n}\n" for name, n in counted.items())
        )

    routes = [Route(PATH, write, methods=["POST"]), Route("/metrics", metrics)]
    return Starlette(routes=routes)


def _keep(writer: SampleWriter, body: bytes, proto: str) -> tuple[int, str]:
    return writer.keep(samples_of(body, proto))


async def _body(request: Request) -> bytes:
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MAX_BYTES:
            raise BadRequestError(f"the request has more than {MAX_BYTES} bytes", 413)
    return bytes(found)

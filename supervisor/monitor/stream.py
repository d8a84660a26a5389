"""Log events over HTTP: the recent ones as JSON, and those to come as server-sent events.

A stream lives as long as it is read; a reader that leaves too many events unread is cut off, as it would hold memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Annotated, Final, Literal

from fastapi import FastAPI, Header, Query, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from supervisor.monitor.answers.models import PROBLEMS
from supervisor.monitor.guard import MANY_STREAMS, UNREAD, Limits, connection_of
from supervisor.monitor.known.events import KEPT, MAX_LISTENERS, EventReader, Events, wanted
from supervisor.samples.events import EventRow

HEARTBEAT_S: Final = 15.0
_HEARTBEAT: Final = ":\n\n"

Level = Literal["", "debug", "information", "notice", "warning", "error", "critical", "alert", "emergency"]
Category = Literal["", "topology", "interest", "drops", "blocked", "configuration", "portal", "other"]
Serial = Annotated[int, Query(ge=0, description="only events with a higher serial")]


class EventStream(StreamingResponse):
    """Server-sent events, which the description of the interface says as well."""

    media_type = "text/event-stream"


@dataclass(frozen=True, slots=True)
class EventList:
    """`rows`: the newest of them, oldest first; `total`: how many are kept that match."""

    rows: list[EventRow]
    total: int


def add_events(app: FastAPI, events: Events, limits: Limits) -> None:
    """Let `app` serve them."""

    @app.get("/v1/events", responses=PROBLEMS)
    async def recent(
        level: Level = "", category: Category = "", after: Serial = 0,
        limit: Annotated[int, Query(ge=1, le=KEPT)] = 100,
    ) -> EventList:  # fmt: skip
        """List log events of all processes of the DRO, of this severity or above."""
        return EventList(*events.recent(level, category, after, limit))

    @app.get("/v1/events/stream", response_class=EventStream, responses=PROBLEMS)
    async def stream(
        request: Request, level: Level = "", category: Category = "",
        after: Annotated[int | None, Query(ge=0, description="begin with kept events of a higher serial")] = None,
        last_event_id: Annotated[str, Header()] = "",
    ) -> Response:  # fmt: skip
        """Send log events as they come, as server-sent events: `id` is the serial, `event` the category."""
        if len(events.listeners) >= MAX_LISTENERS:
            limits.drop(MANY_STREAMS)
            return PlainTextResponse(f"{MAX_LISTENERS} streams are open already\n", status_code=503)
        if last_event_id.isdecimal() and len(last_event_id) < 20:  # of a browser that lost the connection
            after = int(last_event_id)
        connection = connection_of(request.scope)
        listener = EventReader(wanted(level, category), lambda: connection.end_stream(UNREAD))
        first = [] if after is None else events.recent(level, category, after, KEPT)[0]
        events.listeners.add(listener)  # now, as others ask before this one is sent
        connection.begin_stream(lambda: events.listeners.discard(listener))
        return EventStream(_lines(first, listener))


async def _lines(first: list[EventRow], listener: EventReader) -> AsyncIterator[str]:
    yield _HEARTBEAT  # lets the client know that it is connected
    for row in first:
        yield shown(row)
    while not listener.is_late:
        try:
            row = await asyncio.wait_for(listener.waiting.get(), HEARTBEAT_S)
        except TimeoutError:
            yield _HEARTBEAT
        else:
            yield shown(row)


def shown(row: EventRow) -> str:
    """The event as the lines of a stream."""
    data = json.dumps(asdict(row), ensure_ascii=False, separators=(",", ":"))
    return f"id: {row.serial}\nevent: {row.category}\ndata: {data}\n\n"

"""What the monitor serves: metrics, health, and what is mounted beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder

from dro.bus.listing import PROXIES
from dro.command_line import version
from supervisor.monitor.answers.answers import Answers
from supervisor.monitor.answers.topics import TOPICS_VARIABLE, TopicMetrics
from supervisor.monitor.api import OPENAPI, add_api, add_errors
from supervisor.monitor.guard import Limits
from supervisor.monitor.known.events import Events
from supervisor.monitor.known.health import unhealthy, unready
from supervisor.monitor.known.metrics import Metrics
from supervisor.monitor.orders import Orders, add_orders
from supervisor.monitor.pages.views import Views
from supervisor.monitor.pages.web import add_pages
from supervisor.monitor.stream import add_events
from supervisor.samples.exposition import MAX_FORMATS, Families, Texts
from supervisor.samples.watch import DroObserver

RECENT_S: Final = 0.1
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def make_app(
    watch: DroObserver, metrics: Metrics, limits: Limits, events: Events, answers: Answers, orders: Orders, topics: int
) -> FastAPI:
    """Make the application of one DRO. `topics`: how many may have metrics of their own."""
    app = FastAPI(
        title="Open DRO", version=version(), docs_url=None, redoc_url=None, openapi_url=OPENAPI,
        description="What one DRO tells of itself, and its network as it sees it. Orders need a token.",
    )  # fmt: skip

    @app.middleware("http")
    async def secure(request: Request, call_next: Any) -> Response:  # noqa: ANN401 - a function of Starlette
        response: Response = await call_next(request)
        response.headers.update({k: v for k, v in SECURITY_HEADERS.items() if k not in response.headers})
        return response

    of_all, of_each = (
        Recent(lambda: metrics.of_dro(watch.known)),
        Recent(lambda: metrics.of_workers(watch.known, limits.dropped)),
    )

    @app.get("/metrics", include_in_schema=False)
    async def of_dro(request: Request) -> Response:
        return await of_all.answer(request)

    @app.get("/metrics/workers", include_in_schema=False)
    async def of_workers(request: Request) -> Response:
        return await of_each.answer(request)

    of_topics = TopicMetrics(lambda: answers.list_of(PROXIES).rows, topics)
    of_each_topic = Recent(lambda: of_topics.families(watch.known.status.name))

    @app.get("/metrics/topics", include_in_schema=False)
    async def of_single_topics(request: Request) -> Response:
        if not topics:
            text = f"metrics of topics are off; start the DRO with {TOPICS_VARIABLE}=N for N topics at most\n"
            return PlainTextResponse(text, status_code=404)
        return await of_each_topic.answer(request)

    # health is told without a thread, as requests that wait for a process of the DRO may have all of them

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return _verdict(unhealthy(watch.known))

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        return _verdict(unready(watch.known))

    add_events(app, events, limits)
    add_api(app, answers)
    add_orders(app, orders)
    add_errors(app, add_pages(app, Views(answers, events)))
    return app


class Recent:
    """Gives who asks within `RECENT_S` the same answer: a flood of requests costs no more than ten a second.

    It is made in a thread, beside those of other requests, so that who floods those is not in the way.
    """

    def __init__(self, collect: Callable[[], Families], clock: Callable[[], float] = time.monotonic) -> None:
        self._collect = collect
        self._clock = clock
        self._texts = Texts()
        self._lock = asyncio.Lock()
        self._limiter = CapacityLimiter(1)
        self._made: dict[str, tuple[float, tuple[bytes, str]]] = {}  # by format

    async def answer(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        wanted = choose_encoder(accept)[1]
        async with self._lock:
            made_s, (body, content_type) = self._made.get(wanted, (-RECENT_S, (b"", "")))
            if self._clock() - made_s >= RECENT_S:
                body, content_type = await run_sync(self._encoded, accept, limiter=self._limiter)
                if len(self._made) >= MAX_FORMATS:
                    self._made.clear()
                self._made[wanted] = self._clock(), (body, content_type)
        return Response(body, headers={"Content-Type": content_type})

    def _encoded(self, accept: str) -> tuple[bytes, str]:
        return self._texts.encoded(self._collect(), accept)


def _verdict(problems: list[str]) -> Response:
    text = "".join(f"{problem}\n" for problem in problems) or "ok\n"
    return Response(text, status_code=503 if problems else 200, media_type="text/plain; charset=utf-8")

"""The admin API below `/v1`: everything that a DRO tells, in JSON, with an OpenAPI document made from its types.

It only reads; what changes something is in `supervisor.monitor.orders`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dro.bus.listing import LISTS, PATH, TOPIC, PathRow
from dro.errors import DroError
from supervisor.admin.status import ConfigRecord, PortalStatus
from supervisor.monitor.answers.answers import Answers, sorted_rows
from supervisor.monitor.answers.drops import DropRow
from supervisor.monitor.answers.lists import Listing
from supervisor.monitor.answers.models import (
    MAX_DOMAIN,
    MAX_LIMIT,
    MAX_OFFSET,
    MAX_TEXT,
    PROBLEMS,
    ApiError,
    DroView,
    ExplainView,
    LinkView,
    MemoryRow,
    Page,
    WorkerView,
)
from supervisor.monitor.answers.top import BETWEEN_S, TopRow
from supervisor.monitor.known.hour import Series

PREFIX: Final = "/v1"
OPENAPI: Final = "/v1/openapi.json"
PAGED: Final = tuple(what for what in LISTS if what not in (TOPIC, PATH))
"""Lists of `dro.bus.listing` that are served as they are."""

Text = Annotated[str, Query(max_length=MAX_TEXT)]
Source = Annotated[int, Query(alias="from", ge=1, le=MAX_DOMAIN, description="domain id")]
Interested = Annotated[int, Query(alias="to", ge=1, le=MAX_DOMAIN, description="domain id")]
Offset = Annotated[int, Query(ge=0, le=MAX_OFFSET, description="rows to pass over")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="rows at most")]
Otid = Annotated[str, Query(pattern="^([0-9a-f]{2})*$", max_length=MAX_TEXT, description="of a source")]
Transport = Literal["", "tcp", "lbt-rm", "lbt-ru", "lbt-ipc"]


def add_api(app: FastAPI, answers: Answers) -> None:
    """Let `app` serve it."""
    router = APIRouter(prefix=PREFIX, responses=PROBLEMS)
    for what in PAGED:
        kind = LISTS[what]
        _add_list(router, what, kind, lambda portal, topic, what=what: answers.list_of(what, portal, topic))  # type: ignore[misc]
    _add_list(router, "drops", DropRow, lambda portal, _topic: Listing(tuple(answers.drops(portal))), has_topic=False)
    _add_looks(router, answers)
    _add_top(router, answers)
    app.include_router(router)


def add_errors(app: FastAPI, page: Callable[[Request, ApiError], Response]) -> None:
    """Let `app` answer errors with a `Problem`; what a browser shows with a `page`."""

    @app.exception_handler(ApiError)
    async def on_error(request: Request, error: ApiError) -> Response:
        path = request.url.path
        is_page = not path.startswith(f"{PREFIX}/") and not path.endswith(".json")
        if is_page and "text/html" in request.headers.get("accept", ""):
            return page(request, error)
        return JSONResponse(error.problem.model_dump(), status_code=error.status)

    @app.exception_handler(DroError)
    async def on_failure(request: Request, error: DroError) -> Response:
        return await on_error(request, ApiError(503, str(error)))

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        what = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors()[:5])
        return await on_error(request, ApiError(422, what, f"the parameters are described in {OPENAPI}"))

    @app.exception_handler(HTTPException)
    async def on_refused(request: Request, error: HTTPException) -> Response:
        """Answer for the framework: an address that does not exist, or not for this method."""
        path = request.url.path
        remedy = f"addresses are described in {OPENAPI}" if path.startswith(PREFIX) else "all pages are linked from /"
        answer = await on_error(request, ApiError(error.status_code, f"{path}: {error.detail}", remedy))
        answer.headers.update(error.headers or {})
        return answer


def _add_list(
    router: APIRouter, what: str, kind: type[Any], collect: Callable[[str, str], Listing], *, has_topic: bool = True
) -> None:
    names = [field.name for field in fields(kind)]

    def serve(
        portal: Text = "", topic: Text = "", sort: str = "", offset: Offset = 0, limit: Limit = 100
    ) -> Page[Any]:  # fmt: skip
        found = collect(portal, topic)
        rows = sorted_rows(found.rows, sort)
        return Page(
            rows=rows[offset : offset + limit], total=len(rows), offset=offset, limit=limit,
            problems=list(found.problems),
        )  # fmt: skip

    def serve_all(portal: Text = "", sort: str = "", offset: Offset = 0, limit: Limit = 100) -> Page[Any]:
        return serve(portal, "", sort, offset, limit)

    endpoint = serve if has_topic and what not in ("peers", "routes", "topology") else serve_all
    pattern = f"^(-?({'|'.join(names)}))?$"
    sort_type = Annotated[str, Query(pattern=pattern, description="field to sort by; with - from the highest")]
    endpoint.__annotations__ = {**endpoint.__annotations__, "sort": sort_type}
    router.add_api_route(
        f"/{what}",
        endpoint,
        response_model=Page[kind],  # type: ignore[valid-type]
        summary=f"List {what}",
        name=what,
        description=kind.__doc__,
    )


def _add_looks(router: APIRouter, answers: Answers) -> None:
    @router.get("/dro")
    def dro() -> DroView:
        """Tell how the DRO is."""
        return answers.dro()

    @router.get("/portals")
    def portals() -> list[PortalStatus]:
        """List all portals with their counters, which have the names of `docs/metrics.md`."""
        return list(answers.portals())

    @router.get("/portals/{name}")
    def portal(name: str) -> PortalStatus:
        """Tell the counters of one portal."""
        return answers.portal(name)

    @router.get("/portals/{name}/link")
    def link(name: str) -> LinkView:
        """Look at both ends of the link of a peer portal."""
        return answers.link(name)

    @router.get("/portals/{name}/series")
    def series(name: str) -> list[Series]:
        """Tell the last hour of a portal, a point each ten seconds."""
        answers.portal(name)
        return list(answers.hour.series(name))

    @router.get("/workers")
    def workers() -> list[WorkerView]:
        """List the processes of the DRO but for the parent."""
        return answers.workers()

    @router.get("/memory")
    def memory() -> list[MemoryRow]:
        """Tell what the allocators of all workers have."""
        return answers.memory()

    @router.get("/config")
    def config(defaults: bool = False) -> ConfigRecord:
        """Tell the configuration in force, each value with its origin; `defaults`: with options that nobody has set."""
        return answers.config(with_defaults=defaults)

    @router.get("/path")
    def path(
        source: Source,
        interested: Interested,
        otid: Otid = "",
    ) -> list[PathRow]:
        """List the nodes of the paths from one domain to another; of one source when its OTID is given."""
        return list(answers.path(source, interested, otid).rows)

    @router.get("/explain")
    def explain(
        topic: Annotated[str, Query(min_length=1, max_length=MAX_TEXT)],
        source: Source,
        interested: Interested,
        transport: Transport = "",
    ) -> ExplainView:
        """Tell how a topic gets from one domain to another, or the first reason why it does not."""
        return answers.explain({"topic": topic, "from_domain": source, "to_domain": interested, "transport": transport})


def _add_top(router: APIRouter, answers: Answers) -> None:
    @router.get("/top/{what}")
    async def top(what: Literal["topics", "sources"], limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> list[TopRow]:
        """List the topics or sources with the most fragments a second."""
        look = answers.top.topics if what == "topics" else answers.top.sources
        rows, looked_s = await asyncio.to_thread(look, limit)
        if not looked_s:
            await asyncio.sleep(BETWEEN_S)
            rows, _ = await asyncio.to_thread(look, limit)
        return rows

"""Serves the pages of the web monitor, each also as JSON under the same address with `.json`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import FastAPI, Query, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.staticfiles import StaticFiles

from dro.bus.listing import LISTS, PATH, TOPIC, PeerRow
from dro.clock import duration
from dro.metrics.table import PEER
from supervisor.admin.status import PortalStatus
from supervisor.monitor.answers.models import MAX_DOMAIN, MAX_OFFSET, MAX_TEXT, ApiError, EndView
from supervisor.monitor.pages.lines import Line, portal_groups
from supervisor.monitor.pages.views import PathView, Views

LISTED: Final = (*(what for what in LISTS if what not in (TOPIC, PATH)), "drops", "events", "top")
"""Lists with a page."""
TITLES: Final = {
    "peers": "Links to other DROs", "blocked": "Blocked receivers and links", "losses": "Losses nobody can repair",
    "drops": "Drops by reason", "events": "Log events", "top": "Fastest sources", "topology": "Topology rows",
}  # fmt: skip
MENU: Final = (
    ("Network", (
        ("/topology", "Topology"), ("/path", "Path"), ("/lists/routes", "Routes"), ("/lists/peers", "Links"),
    )),
    ("Traffic", (
        ("/lists/topics", "Topics"), ("/lists/sources", "Sources"), ("/lists/interest", "Interest"),
        ("/lists/proxies", "Proxies"), ("/lists/top", "Fastest sources"),
    )),
    ("Problems", (
        ("/topic", "Explain a topic"), ("/lists/drops", "Drops"), ("/lists/blocked", "Blocked"),
        ("/lists/losses", "Losses"),
    )),
    ("System", (
        ("/lists/events", "Events"), ("/memory", "Processes"), ("/configuration", "Configuration"),
    )),
)  # fmt: skip
"""Groups of pages; the first page of all is behind the name of the DRO."""
CHART_HEADERS: Final = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
"""A chart brings its styles along, and is shown as an image, where nothing else could be loaded."""
STATIC_S: Final = 3600
TIMES: Final = ("began_s", "ended_s", "time_s")
"""Fields that are a time since 1970."""

ENDINGS: Final = {
    "_per_s": "/s", "_s": " (s)", "_us": " (µs)", "_ms": " (ms)", "_bytes": " (bytes)", "_days": " (days)",
}  # fmt: skip
"""Ends of names of fields that are a unit."""
HEADS: Final = {
    "asked_for": "asked for (domains)", "dropped": "dropped (messages)", "interest_heard": "topics and patterns heard",
    "interest_told": "topics and patterns told", "joined": "joined (sources)", "lost": "lost (datagrams)",
    "proxies": "proxy sources", "queued": "queued (fragments)", "share": "share (%)",
    "wanted_by": "wanted by (domains)", "arena": "arena (bytes)", "ordblks": "ordblks (chunks)",
    "hblks": "hblks (regions)", "hblkhd": "hblkhd (bytes)", "uordblks": "uordblks (bytes)",
    "fordblks": "fordblks (bytes)",
}  # fmt: skip
"""Heads of fields whose names do not say what they count."""
ABBREVIATIONS: Final = ("DRO", "OTID", "RTT")

View = Any
"""One of `supervisor.monitor.pages.views`."""
Text = Annotated[str, Query(max_length=MAX_TEXT)]
From = Annotated[str, Query(alias="from", max_length=MAX_TEXT)]
To = Annotated[str, Query(alias="to", max_length=MAX_TEXT)]
Offset = Annotated[int, Query(ge=0, le=MAX_OFFSET)]


def add_pages(app: FastAPI, views: Views) -> Callable[[Request, ApiError], HTMLResponse]:
    """Let `app` serve them. Returns what makes the page of an error."""
    shown = _Shown(views)
    app.mount("/static", _Static(directory=Path(__file__).parent / "static"), name="static")

    def add(path: str, template: str, serve: Callable[..., Any]) -> None:
        """`serve` makes the view; its parameters are those of the address."""
        app.add_api_route(path, _page(shown, template, serve), include_in_schema=False, response_class=HTMLResponse)
        name = "/main" if path == "/" else path
        app.add_api_route(f"{name}.json", _json(serve), include_in_schema=False)

    def configuration(portal: Text = "", defaults: bool = False) -> View:
        return views.configuration(portal, defaults=defaults)

    def portal(name: Text) -> View:
        return views.portal(name)

    def link(portal: Text) -> View:
        return views.link(portal)

    def path(source: From = "", interested: To = "") -> View:
        return views.path(_domain(source), _domain(interested))

    def topic(topic: Text = "", source: From = "", interested: To = "") -> View:
        return views.topic(topic.strip(), _domain(source), _domain(interested))

    def listed(what: str, portal: Text = "", topic: Text = "", sort: Text = "", offset: Offset = 0) -> View:
        if what not in LISTED:
            raise ApiError(404, f"there is no list {what!r}", f"there are {', '.join(LISTED)}")
        return views.list_of(what, portal, topic, sort, offset)

    add("/", "main.html", views.main)
    add("/configuration", "configuration.html", configuration)
    add("/portal", "portal.html", portal)
    add("/link", "link.html", link)
    add("/topology", "topology.html", views.topology)
    add("/path", "path.html", path)
    add("/topic", "topic.html", topic)
    add("/memory", "memory.html", views.memory)
    app.add_api_route("/chart", _chart(views), include_in_schema=False)
    app.add_api_route("/lists/{what}.json", _json(listed), include_in_schema=False)
    app.add_api_route("/lists/{what}", _page(shown, "list.html", listed), include_in_schema=False)
    return shown.error


def _chart(views: Views) -> Callable[..., Response]:
    def endpoint(portal: Text, of: Literal["traffic", "queue", "RTT"] = "traffic") -> Response:
        return Response(views.chart(portal, of), media_type="image/svg+xml", headers=CHART_HEADERS)

    return endpoint


def _domain(text: str) -> int:
    """Read a domain id. Raises: ApiError."""
    text = text.strip() or "0"  # an empty field of a form
    if not (text.isascii() and text.isdecimal()) or int(text) > MAX_DOMAIN:
        raise ApiError(422, f"{text} is no domain id", f"it is a number of at most {MAX_DOMAIN}")
    return int(text)


class _Shown:
    """Fills templates."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._environment = Environment(
            loader=PackageLoader("supervisor.monitor.pages"), autoescape=select_autoescape(), undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._environment.filters |= {"number": number, "ago": duration, "clock": clock, "cell": cell, "head": head}
        self._environment.globals |= {
            "menu": MENU,
            "titles": TITLES,
            "network": self._network,
            "query": query,
            "lines_of": lines_of,
            "fields_of": fields_of,
        }

    def page(self, request: Request, template: str, view: View) -> str:
        known = self._views.answers.known
        json_path = "/main" if request.url.path == "/" else request.url.path
        return self._environment.get_template(template).render(
            view=view, dro=known.status.name or "DRO", now=time.time(), path=request.url.path,
            json_address=f"{json_path}.json{f'?{request.url.query}' if request.url.query else ''}",
            is_fresh=known.is_fresh, age_s=known.age_s,
        )  # fmt: skip

    def error(self, request: Request, error: ApiError) -> HTMLResponse:
        return HTMLResponse(self.page(request, "error.html", error.problem), status_code=error.status)

    def _network(self, path: PathView | None = None) -> Markup:
        return Markup(self._views.picture(path))


def _page(shown: _Shown, template: str, serve: Callable[..., Any]) -> Callable[..., Response]:
    return _answering(serve, lambda request, view: HTMLResponse(shown.page(request, template, view)))


def _json(serve: Callable[..., Any]) -> Callable[..., Response]:
    return _answering(serve, lambda _, view: JSONResponse(jsonable_encoder(view)))


def _answering(serve: Callable[..., Any], answer: Callable[[Request, View], Response]) -> Callable[..., Response]:
    """Make an endpoint with the parameters of `serve` and the request."""
    signature = inspect.signature(serve, eval_str=True)

    def endpoint(request: Request, **arguments: Any) -> Response:  # noqa: ANN401 - of any view
        return answer(request, serve(**arguments))

    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    endpoint.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[first, *signature.parameters.values()], return_annotation=inspect.Signature.empty
    )
    return endpoint


class _Static(StaticFiles):
    """Files that browsers may keep for a while."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:  # noqa: ANN401 - as in Starlette
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = f"max-age={STATIC_S}"
        return response


# for templates


def lines_of(end: EndView) -> dict[str, Line]:
    """The lines of an end of a link, by title."""
    portal = PortalStatus(end.portal, PEER, end.state, 0, 0, counters=end.counters)
    return {line.title: line for group in portal_groups(portal) for line in group.lines}


def fields_of(peer: PeerRow | None) -> dict[str, Any]:
    """The fields of a row of the list of peers, by name; none when there is no row."""
    return asdict(peer) if peer is not None else {}


def number(value: float | None) -> str:
    """Write a number with separators; of a rate what is below ten with a digit more."""
    if value is None:
        return "?"
    return f"{value:,.1f}" if isinstance(value, float) and value < 10 else f"{value:,.0f}"


def clock(seconds: float) -> str:
    """Write a time since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def head(name: str) -> str:
    """Write the name of a field as the head of its column, with the unit."""
    if name in HEADS:
        return HEADS[name]
    ending = next((ending for ending in ENDINGS if name.endswith(ending)), "")
    words = name.removesuffix(ending).split("_")
    found = " ".join(word.upper() if word.upper() in ABBREVIATIONS else word for word in words)
    return found if name in TIMES else found + ENDINGS.get(ending, "")


def cell(value: object, name: str) -> str:
    """Write the field of a row of a list."""
    match value:
        case -1:
            return "none"
        case bool():
            return "yes" if value else ""
        case float() if name in TIMES:
            return clock(value)
        case float() | int() if name not in ("serial", "domain_id", "from_domain", "to_domain", "version"):
            return number(value)
        case list() | tuple():
            return ", ".join(map(str, value))
        case dict():
            return ", ".join(f"{key} {text}" for key, text in value.items())
        case _:
            return str(value)


def query(**parameters: object) -> str:
    """Write the query of an address without the parameters that are empty."""
    found = {name: value for name, value in parameters.items() if value}
    return f"?{urlencode(found)}" if found else "?"

"""Limits on who speaks HTTP to the monitor: connections in all and of an address, time for a request, names in `Host`.

A client that is slow, silent or one too many is dropped, so that others are served; how many were is counted, and said
in the log at a limited rate. An answer that is not taken is not waited for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Set
from typing import Any, Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 256
MAX_OF_ADDRESS: Final = 64
REQUEST_LIMIT_S: Final = 10.0
"""For a whole request, from the connection or the end of the one before."""
ANSWER_LIMIT_S: Final = 30.0
"""For an answer that is no stream, and for a part of one to be taken."""
MAX_HEADERS: Final = 16 << 10  # bytes
_CONNECTION: Final = "dro.connection"  # in the state of a request

TOO_MANY, MANY_OF_ADDRESS = "too many connections", "too many connections of one address"
LATE, SLOW = "no whole request in time", "slow request"
UNREAD, FOREIGN, MANY_STREAMS = "answer not taken", "foreign Host", "too many streams"
REASONS: Final = (TOO_MANY, MANY_OF_ADDRESS, LATE, SLOW, UNREAD, FOREIGN, MANY_STREAMS)
"""Why a client is dropped."""

Dropped = Callable[[str], object]
Failed = Callable[[str, Exception], object]


class Limits:
    """Shared by all connections of one server."""

    def __init__(self, on_dropped: Dropped, on_failed: Failed) -> None:
        """`on_dropped` gets the reason; `on_failed` the path of a request and what kept it from being answered."""
        self.on_failed: Final = on_failed
        self.dropped = dict.fromkeys(REASONS, 0)
        self._on_dropped = on_dropped
        self._connections = Counter[str]()  # by address

    def admit(self, address: str) -> bool:
        """Count one more connection of an address; False, and counted as dropped, when there are too many."""
        if self._connections[address] >= MAX_OF_ADDRESS:
            self.drop(MANY_OF_ADDRESS)
        elif self._connections.total() >= MAX_CONNECTIONS:
            self.drop(TOO_MANY)
        else:
            self._connections[address] += 1
            return True
        return False

    def forget(self, address: str) -> None:
        """Count one connection of an address less."""
        self._connections[address] -= 1
        if not self._connections[address]:
            del self._connections[address]

    def drop(self, why: str) -> None:
        """Count a client that was turned away or cut off."""
        self.dropped[why] += 1
        self._on_dropped(why)


class GuardedProtocol(H11Protocol):
    """One connection of uvicorn's, with these limits. `limits` is set in a subclass for each server."""

    limits: Limits
    _timer: asyncio.TimerHandle | None = None  # for a request, or for its answer
    _unread: asyncio.TimerHandle | None = None  # while the client takes nothing
    _is_answering = False
    _address: str | None = None  # that this connection is counted for
    _has_begun = False  # something of the request has come
    _on_lost: Callable[[], object] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        address = str((transport.get_extra_info("peername") or ("",))[0])
        if not self.limits.admit(address):
            transport.abort()
            return
        self._address = address
        self.app_state = {**self.app_state, _CONNECTION: self}
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        if self._address is not None:
            self.limits.forget(self._address)
            self._address = None
            self.app_state = {}
            if self._on_lost is not None:
                self._on_lost()
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._address is None:
            return
        self._has_begun = True
        super().data_received(data)
        if not self._is_answering and self.cycle is not None and not self.cycle.response_complete:
            self._is_answering = True
            self._cancel()
            self._timer = self.loop.call_later(ANSWER_LIMIT_S, self._abort, SLOW)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(ANSWER_LIMIT_S, self._abort, UNREAD)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def on_response_complete(self) -> None:
        self._is_answering = False
        super().on_response_complete()
        if not self.transport.is_closing():
            self._expect_request()

    def begin_stream(self, on_lost: Callable[[], object]) -> None:
        """Let the answer of now go on for as long as it is taken; `on_lost` is called when the client is gone."""
        self._cancel()
        self._on_lost = on_lost

    def end_stream(self, why: str) -> None:
        """Cut it off."""
        if not self.transport.is_closing():
            self._abort(why)

    def _expect_request(self) -> None:
        self._cancel()
        self._has_begun = False
        self._timer = self.loop.call_later(REQUEST_LIMIT_S, self._on_no_request)

    def _on_no_request(self) -> None:
        """Abort a late request, or a connection that has begun none: browsers open some, so that is no event."""
        if self._has_begun:
            self._abort(LATE)
        else:
            self.transport.abort()

    def _cancel(self) -> None:
        for timer in (self._timer, self._unread):
            if timer is not None:
                timer.cancel()
        self._timer = self._unread = None

    def _abort(self, why: str) -> None:
        self.limits.drop(why)
        self.transport.abort()


def connection_of(scope: Scope) -> GuardedProtocol:
    """The one that a request came by."""
    connection = scope["state"][_CONNECTION]
    assert isinstance(connection, GuardedProtocol)
    return connection


class HostGuard:
    """Answers only requests for this host: a page of another site that a browser has open cannot read what is here.

    An IP address is always taken, as a foreign site has none that leads here under its own name.
    """

    def __init__(self, app: ASGIApp, hosts: Set[str], limits: Limits) -> None:
        """`hosts`: in small letters; more may be added later."""
        self._app = app
        self._hosts = hosts
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _size(scope) > MAX_HEADERS:  # what comes in one piece is beyond the server's own limit
            await PlainTextResponse(f"headers have at most {MAX_HEADERS} bytes\n", status_code=431)(
                scope, receive, send
            )
            return
        if scope.get("method") == "HEAD":  # as GET; the server leaves the body out
            scope = {**scope, "method": "GET"}
        if scope["type"] != "http" or self._is_ours(_header(scope, b"host")):
            try:
                await self._app(scope, receive, send)
            except Exception as e:  # the client has got its answer 500
                self._limits.on_failed(scope.get("path", ""), e)
            return
        self._limits.drop(FOREIGN)
        answer = PlainTextResponse(
            "no host of that name; send a Host header with an address of this host, or with what it calls itself\n",
            status_code=421,
        )
        await answer(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").rstrip(".").lower()
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def own_names() -> set[str]:
    """Return what this host calls itself, in small letters, without asking a name server."""
    name = socket.gethostname().lower()
    return {"localhost", name, name.partition(".")[0]}


def full_names() -> set[str]:
    """Return what name servers call this host, in small letters; they may be waited for."""
    try:
        return {socket.getfqdn().lower()}
    except UnicodeError:  # it calls itself what cannot be a name
        return set()


def _size(scope: Scope) -> int:
    headers: Any = scope.get("headers", ())
    return (
        sum(len(part) for pair in headers for part in pair)
        + len(scope.get("path", ""))
        + len(scope.get("query_string", b""))
    )


def _header(scope: Scope, name: bytes) -> str:
    headers: Any = scope["headers"]
    return next((value.decode("latin-1") for key, value in headers if key == name), "")

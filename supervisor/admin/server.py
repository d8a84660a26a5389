"""The admin socket of a running DRO: a UNIX stream socket with a registry of commands, served by the parent's loop.

A request is one line with a JSON object, `{"command": NAME, ...arguments}`. Its answer is one line, too:
`{"ok": true, "result": {...}}` or `{"ok": false, "error": {"what", "file", "line", "remedy", "problems"}}`, where
`problems` holds every error when there are several. A client gets its answers in the order of its requests; a long
operation answers when it is done.

Only the user of the DRO and root have access: the socket has mode 0600, and peer credentials are checked. A client
never makes the parent wait: line lengths, clients and times are limited, and a client that is silent or does not read
is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dro.bus.codec import JsonObject
from dro.clock import s
from dro.config.reading.problems import ConfigErrors
from dro.errors import ConfigError, DroError, RefusedError, ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.os_errors import remedy_of
from dro.timers import Timer

SOCKET_NAME: Final = "admin"
_BOUND_NAME: Final = (
    "bound"  # of the socket until it listens, so that nobody finds it before; no shorter than the other
)
MAX_LINE: Final = 64 << 10  # bytes of a request
MAX_CLIENTS: Final = 16
CLIENT_TIMEOUT_NS: Final = s(30)
"""A client has so long to send a whole request, and to take its answer. Operations under way do not count."""
ACCEPT_PAUSE_NS: Final = s(1)  # when there is no descriptor left
_BACKLOG: Final = 64
_ACCEPTS_PER_TURN: Final = 32
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_ROOT: Final = 0
_SHOWN: Final = 200  # characters of an order in the log


class Arguments:
    """The arguments of one request. Each is checked as it is taken; `done` refuses what nobody took."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = dict(values)

    def text(self, name: str, default: str | None = None) -> str:
        """Take a text. Raises: RefusedError when it is missing (without a default) or no text."""
        value = self._values.pop(name, default)
        if not isinstance(value, str):
            raise RefusedError(f"the argument {name!r} is missing" if value is None else f"{name!r} has to be a text")
        return value

    def number(self, name: str, default: float | None = None, *, minimum: float, maximum: float) -> float:
        """Take a number. Raises: RefusedError when it is missing (without a default), no number or out of range."""
        value = self._values.pop(name, default)
        if value is None:
            raise RefusedError(f"the argument {name!r} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
            raise RefusedError(f"{name!r} has to be a number from {minimum:.12g} to {maximum:.12g}")
        return value

    def flag(self, name: str) -> bool:
        """Take a flag, false when missing. Raises: RefusedError when it is neither true nor false."""
        value = self._values.pop(name, False)
        if not isinstance(value, bool):
            raise RefusedError(f"{name!r} has to be true or false")
        return value

    def done(self) -> None:
        """Check that all was taken. Raises: RefusedError when the request has an argument that nobody asked for."""
        if self._values:
            raise RefusedError(f"no such argument: {', '.join(map(repr, sorted(self._values)[:5]))}")


class Reply:
    """The answer to one request, given now or later, once; a second one is ignored."""

    def __init__(self, send: Callable[[JsonObject], object]) -> None:
        self._send = send
        self._is_given = False

    def ok(self, result: JsonObject) -> None:
        """`result` has to be something that JSON can carry."""
        self._give({"ok": True, "result": result})

    def fail(self, error: DroError) -> None:
        """What cannot be done, and why; place and remedy are taken from the error as far as it has them."""
        self._give({"ok": False, "error": error_object(error)})

    def _give(self, answer: JsonObject) -> None:
        if not self._is_given:
            self._is_given = True
            self._send(answer)


Handler = Callable[[Arguments, Reply], object]
"""Answers through the `Reply`, at once or later. A `DroError` that it raises is the answer, too."""


def error_object(error: DroError) -> JsonObject:
    """The `error` of an answer; of several configuration errors the first, and all as `problems`."""
    match error:
        case ConfigErrors():
            first = error.errors[0]
            return _described(first) | {"problems": [_described(e) for e in error.errors]}
        case _:
            return _described(error)


def _described(error: DroError) -> JsonObject:
    match error:
        case ConfigError():
            what = f"{error.element}: {error.what}" if error.element else error.what
            return {"what": what, "file": error.file, "line": error.line, "remedy": error.remedy}
        case RefusedError() | ResourceError():
            return {"what": error.what, "file": "", "line": 0, "remedy": error.remedy}
        case _:
            return {"what": str(error), "file": "", "line": 0, "remedy": ""}


class AdminServer:
    """The listening socket and its clients. Make it, `add` commands, `listen`."""

    def __init__(
        self,
        loop: Loop,
        log: logging.Logger,
        *,
        uid: Callable[[], int] = os.geteuid,
        client_timeout_ns: int = CLIENT_TIMEOUT_NS,
    ) -> None:
        """`uid`: who may speak besides root."""
        self.loop = loop
        self.client_timeout_ns = client_timeout_ns
        self._log = log
        self._limited = LimitedLogger(log, loop.now_ns).event
        self._uid = uid
        self._handlers: dict[str, Handler] = {}
        self._looking: set[str] = set()
        self._clients: set[_Client] = set()
        self._listener: socket.socket | None = None
        self._path: Path | None = None

    def add(self, command: str, handler: Handler, *, looks: bool = False) -> None:
        """Serve `command`; the handler gets the arguments of each request and the `Reply` to answer with.

        A command that does not only look is logged, with who gave it.
        """
        assert command not in self._handlers
        self._handlers[command] = handler
        if looks:
            self._looking.add(command)

    def listen(self, path: Path) -> None:
        """Listen there, and no longer where it did before. Raises: ResourceError."""
        self._close_listener()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        bound = path.with_name(_BOUND_NAME)
        try:
            bound.unlink(missing_ok=True)
            listener.bind(str(bound))
            bound.chmod(0o600)  # until then the directory, which is ours alone, keeps others out
            listener.listen(_BACKLOG)
            bound.rename(path)
        except OSError as e:
            listener.close()
            # what Python itself refuses, a path too long for a socket, has no number
            remedy = remedy_of(e.errno, "check the run directory") if e.errno else "name a run directory nearer to /"
            raise ResourceError(f"no admin socket {path}: {e.strerror or e}", remedy=remedy) from e
        self._listener, self._path = listener, path
        self.loop.add_reader(listener, self._accept)

    def fileno(self) -> int:
        """The descriptor of the listening socket; -1 without one."""
        return self._listener.fileno() if self._listener is not None else -1

    def adopt(self, path: Path, fd: int) -> None:
        """Listen where another program in this process did."""
        self._listener, self._path = socket.socket(fileno=fd), path
        self._listener.setblocking(False)
        self.loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Drop everybody and remove the socket; idempotent."""
        for client in list(self._clients):
            client.close()
        self._close_listener()

    def _close_listener(self) -> None:
        if self._listener is not None and self._path is not None:
            self.loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            with contextlib.suppress(OSError):  # something else may be there
                self._path.unlink()

    def close_inherited(self) -> None:
        """Close the descriptors in a forked child and touch nothing else."""
        for client in self._clients:
            client.sock.close()
        if self._listener is not None:
            self._listener.close()

    def _accept(self) -> bool:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._listener is None:
                return False
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return False
            except OSError as e:
                if e.errno != errno.ECONNABORTED:
                    self._pause(e)
                    return False
                continue
            self._accept_client(sock)
        return True

    def _pause(self, error: OSError) -> None:
        """Accept nobody for a while, as there is no descriptor or memory: whoever is in the queue goes on waiting."""
        self._limited(LogEvent.ADMIN_NOT_ACCEPTED, extra={"reason": error.strerror})
        listener = self._listener
        assert listener is not None
        self.loop.remove_reader(listener)

        def again() -> None:
            if self._listener is listener:
                self.loop.add_reader(listener, self._accept)

        self.loop.call_later(ACCEPT_PAUSE_NS, again)

    def _accept_client(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid not in (self._uid(), _ROOT):
            self._reject(sock, RefusedError("this user may not speak to this DRO"), {"uid": uid, "client_pid": pid})
        elif len(self._clients) >= MAX_CLIENTS:
            error = RefusedError(f"{MAX_CLIENTS} clients are connected already", remedy="try again when one is done")
            self._reject(sock, error, {"clients": MAX_CLIENTS})
        else:
            self._clients.add(_Client(self, sock, {"uid": uid, "client_pid": pid}))

    def _reject(self, sock: socket.socket, error: RefusedError, extra: Mapping[str, object]) -> None:
        self._limited(LogEvent.ADMIN_TURNED_AWAY, key=error.what, extra={"reason": error.what} | dict(extra))
        with contextlib.suppress(OSError):
            sock.send(_line({"ok": False, "error": error_object(error)}))
        sock.close()

    # what clients call

    def forget(self, client: _Client, why: str = "") -> None:
        self._clients.discard(client)
        if why:
            self._limited(LogEvent.ADMIN_DROPPED, key=why, extra={"reason": why})

    def handle(self, line: bytes, reply: Reply, client: Mapping[str, object]) -> None:
        """Answer one request; never raises."""
        command = ""
        try:
            request = _request(line)
            command = Arguments({"command": request.pop("command", None)}).text("command")
            handler = self._handlers.get(command)
            if handler is None:
                known = ", ".join(sorted(self._handlers))
                raise RefusedError(f"no such command: {command[:80]!r}", remedy=f"there are {known}")
            if command not in self._looking:
                self._log.info(
                    LogEvent.ORDER_RECEIVED, extra={"command": command, **client, "arguments": _shown(request)}
                )
            handler(Arguments(request), reply)
        except DroError as e:
            reply.fail(e)
        except Exception:  # a bug in a command must not take the whole DRO with it: nobody restarts the parent
            self._log.critical(LogEvent.ADMIN_COMMAND_FAILED, exc_info=True, extra={"command": command})
            reply.fail(RefusedError(f"internal error in {command!r}", remedy="see the log of the DRO"))


class _Client:
    """One connection: at most one request of it is worked on, and nothing is read ahead but one buffer."""

    def __init__(self, server: AdminServer, sock: socket.socket, client: Mapping[str, object]) -> None:
        self.sock = sock
        self._client = client
        self._server = server
        self._loop = server.loop
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._is_working = False
        self._is_over = False  # the client says nothing more
        self._is_open = True
        self._timer = self._patience()
        self._loop.add_reader(sock, self._on_readable)

    def close(self, why: str = "") -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._timer.cancel()
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        self.sock.close()
        self._server.forget(self, why)

    def _patience(self) -> Timer:
        """Start the timer that closes a silent client, as its turn begins."""
        return self._loop.call_later(self._server.client_timeout_ns, lambda: self.close("silent or slow"))

    def _on_readable(self) -> None:
        try:
            part = self.sock.recv(MAX_LINE)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not part:
            self._is_over = True
            self._loop.remove_reader(self.sock)
        self._inbox += part
        self._next()

    def _next(self) -> None:
        """Take the next request, unless the last one is not answered or its answer not taken."""
        if not self._is_open:
            return
        end = self._inbox.find(b"\n")
        if max(end, 0 if end >= 0 else len(self._inbox)) > MAX_LINE or len(self._inbox) > 2 * MAX_LINE:
            error = RefusedError(f"a request has at most {MAX_LINE} bytes")
            with contextlib.suppress(OSError):
                self.sock.send(_line({"ok": False, "error": error_object(error)}))
            self.close(error.what)
            return
        if self._is_working or self._outbox:
            return
        if end < 0:
            if self._is_over:
                self.close()
            return
        line = bytes(self._inbox[:end])
        del self._inbox[: end + 1]
        self._is_working = True
        self._timer.cancel()
        self._server.handle(line, Reply(self._answer), self._client)

    def _answer(self, answer: JsonObject) -> None:
        if not self._is_open:
            return
        self._is_working = False
        self._outbox += _line(answer)
        self._timer = self._patience()  # that of the request has ended with it
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self.sock.send(self._outbox)]
        except BlockingIOError:
            self._loop.add_writer(self.sock, self._flush)
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self.sock)
        self._loop.call_soon(self._next)


def _line(answer: JsonObject) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _shown(arguments: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in arguments.items())[:_SHOWN]


def _request(line: bytes) -> JsonObject:
    """Read a request. Raises: RefusedError."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise RefusedError("a request is one line with a JSON object", remedy='as {"command": "status"}')
    return request

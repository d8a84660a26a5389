"""The admin socket against clients of every kind: each line is answered or refused, and the loop goes on."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import resource
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dro.clock import ms, s
from dro.config.reading.problems import ConfigErrors
from dro.errors import ConfigError, RefusedError, ResourceError
from dro.log.setup import ToolFormatter
from dro.loop import Loop
from supervisor.admin.client import Client
from supervisor.admin.server import MAX_CLIENTS, MAX_LINE, AdminServer, Arguments, Reply
from supervisor.samples.watch import Asker

PATIENCE_S = 0.4  # of a hasty server
NOBODY = 65_534


class Formatter(ToolFormatter):
    """With traces."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record) + (self.formatException(record.exc_info) if record.exc_info else "")


class Served:
    """A server on a loop in a thread, with a few commands."""

    def __init__(self, folder: Path, *, uid: int | None = None, patience_s: float = 60) -> None:
        self.path = folder / "admin"
        self.loop = Loop()
        self.log = io.StringIO()
        logger = logging.getLogger(f"admin-test-{id(self)}")
        handler = logging.StreamHandler(self.log)
        handler.setFormatter(Formatter("test"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        self.server = AdminServer(
            self.loop, logger, uid=os.geteuid if uid is None else lambda: uid, client_timeout_ns=s(patience_s)
        )
        self.later: list[Reply] = []
        self.server.add("echo", lambda arguments, reply: reply.ok({"text": arguments.text("text")}), looks=True)
        self.server.add("flood", lambda _, reply: reply.ok({"text": "x" * (8 << 20)}))
        self.server.add("later", self._answer_later)
        self.server.add("bug", lambda arguments, reply: 1 // 0)
        self.server.add("strict", self._strict)
        self.server.listen(self.path)
        self._thread = threading.Thread(target=self.loop.run, daemon=True)
        self._thread.start()

    def _answer_later(self, arguments: Arguments, reply: Reply) -> None:
        self.later.append(reply)
        self.loop.call_later(ms(1000 * PATIENCE_S * 2), lambda: reply.ok({"text": "done"}))

    @staticmethod
    def _strict(arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        error = ConfigError("bad", file="dro.xml", line=7, element="<cost>", remedy="mend it")
        raise ConfigErrors([error, ConfigError("worse", file="dro.xml", line=9)])

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(20)
        try:
            sock.connect(str(self.path))
        except OSError:
            sock.close()
            raise
        return sock

    def wait(self, text: str) -> None:
        deadline = time.monotonic() + 20
        while text not in self.log.getvalue():
            assert time.monotonic() < deadline, self.log.getvalue()
            time.sleep(0.005)  # between two looks

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.server.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)
        assert not self._thread.is_alive()
        assert not self.path.exists()
        self.loop.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dro-t-") as name:
        yield Path(name)


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    made = Served(folder)
    yield made
    made.close()


@pytest.fixture
def hasty(folder: Path) -> Iterator[Served]:
    """One whose patience ends within the test."""
    made = Served(folder, patience_s=PATIENCE_S)
    yield made
    made.close()


def line_of(sock: socket.socket) -> bytes:
    """Up to the end of a line, or of the connection."""
    got = bytearray()
    while not got.endswith(b"\n"):
        part = sock.recv(1 << 16)
        if not part:
            break
        got += part
    return bytes(got)


def ask(sock: socket.socket, request: object) -> dict[str, Any]:
    sock.sendall(request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n")
    answer = json.loads(line_of(sock))
    assert isinstance(answer, dict)
    return answer


def works(served: Served) -> bool:
    with served.connect() as sock:
        return ask(sock, {"command": "echo", "text": "ä"}) == {"ok": True, "result": {"text": "ä"}}


def test_the_socket_is_for_its_owner_alone(served: Served) -> None:
    assert served.path.stat().st_mode & 0o777 == 0o600
    assert works(served)


def test_several_requests_on_one_connection_are_answered_in_order(served: Served) -> None:
    with served.connect() as sock:
        requests = [{"command": "echo", "text": str(n)} for n in range(300)]
        sock.sendall(b"".join(json.dumps(r).encode() + b"\n" for r in requests))
        answers = b""
        while answers.count(b"\n") < 300:
            answers += sock.recv(1 << 16)
    assert [json.loads(a)["result"]["text"] for a in answers.splitlines()] == [str(n) for n in range(300)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"\n", "one line with a JSON object"),
        (b"status\n", "one line with a JSON object"),
        (b"\xff\xfe\x00\n", "one line with a JSON object"),
        (b"[1]\n", "one line with a JSON object"),
        (b"[" * 60_000 + b"\n", "one line with a JSON object"),
        (b'{"command": ' + b"9" * 6000 + b"}\n", "one line with a JSON object"),
        (b"{}\n", "'command' is missing"),
        (b'{"command": 7}\n', "'command' has to be a text"),
        (b'{"command": "nope"}\n', "no such command: 'nope'"),
        (b'{"command": "echo"}\n', "'text' is missing"),
        (b'{"command": "echo", "text": []}\n', "'text' has to be a text"),
        (b'{"command": "strict", "more": 1}\n', "no such argument: 'more'"),
        (b'{"command": "bug"}\n', "internal error in 'bug'"),
    ],
)
def test_a_bad_line_is_answered_and_the_connection_goes_on(served: Served, line: bytes, what: str) -> None:
    with served.connect() as sock:
        answer = ask(sock, line)
        assert answer["ok"] is False
        assert what in answer["error"]["what"]
        assert ask(sock, {"command": "echo", "text": "on"})["ok"]


def test_an_unknown_command_is_answered_with_the_known_ones(served: Served) -> None:
    with served.connect() as sock:
        assert "bug, echo, flood, later, strict" in ask(sock, {"command": "x"})["error"]["remedy"]


def test_a_bug_in_a_command_is_logged_with_its_place(served: Served) -> None:
    with served.connect() as sock:
        ask(sock, {"command": "bug"})
    assert "ZeroDivisionError" in served.log.getvalue()


def test_an_order_is_logged_with_who_gave_it_and_a_look_is_not(served: Served) -> None:
    with served.connect() as sock:
        ask(sock, {"command": "echo", "text": "x"})
        ask(sock, {"command": "strict", "name": "P1\nforged", "limit_s": 3})
    (line,) = (line for line in served.log.getvalue().splitlines() if "order received" in line)
    assert f"command=strict uid={os.getuid()} client_pid={os.getpid()}" in line
    assert r"name=P1\x0aforged limit_s=3" in line


def test_every_problem_of_a_configuration_is_told_with_its_place(served: Served) -> None:
    with served.connect() as sock:
        error = ask(sock, {"command": "strict"})["error"]
    assert (error["what"], error["file"], error["line"], error["remedy"]) == ("<cost>: bad", "dro.xml", 7, "mend it")
    assert [(p["what"], p["line"]) for p in error["problems"]] == [("<cost>: bad", 7), ("worse", 9)]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_that_is_too_long_ends_the_connection(served: Served, end: bytes) -> None:
    with served.connect() as sock, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        sock.sendall(b"x" * (MAX_LINE + 1) + end)
        assert b"at most 65536 bytes" in line_of(sock)
        assert line_of(sock) == b""
    assert works(served)
    served.wait("admin client dropped")


def test_the_longest_line_is_taken(served: Served) -> None:
    with served.connect() as sock:
        frame = len(b'{"command": "echo", "text": ""}')
        text = "x" * (MAX_LINE - frame)
        assert ask(sock, {"command": "echo", "text": text})["result"]["text"] == text


def test_a_half_line_and_a_trickle_end_with_the_patience(hasty: Served) -> None:
    with hasty.connect() as half, hasty.connect() as trickle:
        half.sendall(b'{"command"')
        deadline = time.monotonic() + 20
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                trickle.sendall(b" ")
                assert time.monotonic() < deadline
                time.sleep(0.02)  # slower than its patience allows
        assert line_of(half) == b""
    assert works_soon(hasty)


def test_an_end_in_the_middle_of_a_line_is_no_request(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(b'{"command": "echo", "text": "x"}')
        sock.shutdown(socket.SHUT_WR)
        assert line_of(sock) == b""


def test_who_says_nothing_more_still_gets_the_answer(hasty: Served) -> None:
    """As a pipe into netcat does."""
    with hasty.connect() as sock:
        sock.sendall(b'{"command": "later"}\n')
        sock.shutdown(socket.SHUT_WR)
        assert json.loads(line_of(sock)) == {"ok": True, "result": {"text": "done"}}
        assert line_of(sock) == b""


def test_a_long_operation_does_not_count_as_silence(hasty: Served) -> None:
    with hasty.connect() as sock:
        assert ask(sock, {"command": "later"})["ok"]  # takes twice the patience


def test_who_leaves_during_an_operation_does_no_harm(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(b'{"command": "later"}\n')
        while not served.later:
            time.sleep(0.005)  # until it is under way
    with served.connect() as other:
        assert ask(other, {"command": "later"})["ok"]
    assert works(served)


def test_who_does_not_read_is_dropped_and_delays_nobody(hasty: Served) -> None:
    with hasty.connect() as deaf:
        for _ in range(4):
            deaf.sendall(b'{"command": "flood"}\n')
        assert works_soon(hasty)
        hasty.wait("admin client dropped")
    assert works_soon(hasty)


def test_who_sends_on_during_an_operation_is_bounded(served: Served) -> None:
    lines = b'{"command": "echo", "text": "x"}\n' * 100_000
    with served.connect() as sock:
        sock.sendall(b'{"command": "later"}\n')
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            sock.sendall(lines)
    assert works(served)


def test_one_client_too_many_is_told_so(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(served.connect()) for _ in range(MAX_CLIENTS)]
        for sock in socks:
            ask(sock, {"command": "echo", "text": ""})
        extra = stack.enter_context(served.connect())
        assert "16 clients are connected already" in json.loads(line_of(extra))["error"]["what"]
        assert ask(socks[0], {"command": "echo", "text": ""})["ok"]
    served.wait("admin client turned away")


def test_a_thousand_connections_that_come_and_go(served: Served) -> None:
    for n in range(1000):
        with contextlib.suppress(OSError), served.connect() as sock:
            if n % 3:
                sock.sendall(b"\x00" * (n % 7))
    assert works_soon(served)
    assert served.log.getvalue().count("\n") < 50


def works_soon(served: Served) -> bool:
    """For a server that is full, or in more haste than this machine."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(KeyError, ValueError, OSError):
            if works(served):
                return True
    return False


def test_no_descriptor_left_is_no_end(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    served = Served(folder)
    try:
        with served.connect() as before:
            ask(before, {"command": "echo", "text": ""})
            waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            waiting.settimeout(20)
            resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
            waiting.connect(str(served.path))
            served.wait("admin client cannot be accepted")
            assert ask(before, {"command": "echo", "text": ""})["ok"]
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert ask(waiting, {"command": "echo", "text": ""})["ok"]
            waiting.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        served.close()


def test_another_user_is_turned_away(folder: Path) -> None:
    """Also when the permissions of files would let him in."""
    is_root = os.geteuid() == 0
    served = Served(folder, uid=None if is_root else NOBODY)
    try:
        if not is_root:
            with served.connect() as sock:
                assert b"may not speak to this DRO" in line_of(sock)
            return
        folder.chmod(0o711)
        served.path.chmod(0o666)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setuid(NOBODY)
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.connect(str(served.path))
                os.write(writing, line_of(sock))
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(pid, 0)
        with os.fdopen(reading) as pipe:
            assert "may not speak to this DRO" in pipe.read()
        served.wait("admin client turned away")
        assert works(served)
    finally:
        served.close()


def test_a_socket_that_cannot_be_made_is_told(folder: Path) -> None:
    loop = Loop()
    server = AdminServer(loop, logging.getLogger("test"))
    for path, remedy in (
        (folder / "not there" / "admin", "make its directory"),
        (folder / ("x" * 120) / "admin", "nearer to /"),
    ):
        with pytest.raises(ResourceError, match=f"no admin socket.*{remedy}"):
            server.listen(path)
    server.close()
    loop.close()


def test_a_reply_is_given_once() -> None:
    given: list[dict[str, Any]] = []
    reply = Reply(given.append)
    reply.ok({})
    reply.fail(RefusedError("late"))
    assert given == [{"ok": True, "result": {}}]


def test_numbers_and_flags_are_checked() -> None:
    arguments = Arguments({"a": 5, "b": 5.5, "c": True, "d": "5", "e": float("nan"), "f": 11, "g": None})
    limits = {"minimum": 0, "maximum": 10}
    assert arguments.number("a", **limits) == 5
    assert arguments.number("b", **limits) == 5.5
    assert arguments.number("missing", 3, **limits) == 3
    for name in "cdef":
        with pytest.raises(RefusedError, match="from 0 to 10"):
            arguments.number(name, **limits)
    for name in ("g", "missing"):
        with pytest.raises(RefusedError, match="is missing"):
            arguments.number(name, **limits)
    assert Arguments({"x": True}).flag("x")
    assert not Arguments({}).flag("x")
    with pytest.raises(RefusedError, match="true or false"):
        Arguments({"x": 1}).flag("x")


def test_peer_credentials_have_the_layout_that_is_read() -> None:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with a, b:
        assert struct.unpack("3i", a.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[:2] == (
            os.getpid(),
            os.getuid(),
        )


def test_who_asks_again_after_a_long_time_is_answered(hasty: Served) -> None:
    """A page that was opened after half a minute said that the DRO is gone: it had closed the idle connection."""
    asker = Asker(hasty.path.parent)
    kept: list[Client] = []

    def echo(client: Client) -> object:
        kept.append(client)
        return client.request("echo", text="here")

    assert asker.ask(echo) == asker.ask(echo) == {"text": "here"}
    assert kept[0] is kept[1]
    hasty.wait("silent or slow")
    assert asker.ask(echo) == {"text": "here"}
    assert kept[2] is not kept[0]
    asker.close()

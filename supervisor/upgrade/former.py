"""Keeps the former program as a process until an upgrade is done: where a new worker does not start, it forks one.

`leave` forks it before the exec. The program that takes over asks it by a pair of sockets: one packet names the worker
and this life of it, and brings descriptors; packets with its kept sockets follow; the answer is the process id. Such a
life is forked twice, so that it becomes a child of the parent, which is made the one that orphans go to meanwhile.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

from dro.bus.actor import EXIT_BUG, WorkerIdentity, run_worker
from dro.bus.kept_bytes import KeptBytes
from dro.bus.kept_sockets import SocketsAtFork
from dro.bus.process_name import name_process, show_name
from dro.start_folder import enter_start_folder
from supervisor.parent.forked_task import fork
from supervisor.parent.parent import Parent
from supervisor.upgrade.description import FormerRecord, ProgramRecord

ANSWER_LIMIT_S: Final = 2.0
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_SOCKETS_AT_ONCE: Final = 200  # the kernel takes 253 descriptors in one packet
_MAX_PACKET: Final = 128 << 10
_GO: Final = b"g"
_PID_BYTES: Final = 4


def leave(parent: Parent[Any], program: ProgramRecord) -> FormerRecord:
    """Fork this program, for the one that takes over from it. Raises: OSError."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent_pid = os.getpid()

    def child() -> None:
        mine.close()
        parent.processes.close_inherited()
        _serve(parent, theirs, parent_pid)

    try:
        pid, pidfd = fork(child, EXIT_BUG)
    except OSError:
        mine.close()
        raise
    finally:
        theirs.close()
    os.close(pidfd)
    return FormerRecord(program.number, program.version, pid, mine.detach())


def end(record: FormerRecord) -> None:
    """End the process, whose parent this one is, and close the socket."""
    os.close(record.fd)
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(record.pid, signal.SIGKILL)
        os.waitpid(record.pid, 0)


class FormerProcess:
    """The side of the program that has taken over. Implements `supervisor.parent.processes.OtherProgram`."""

    def __init__(self, record: FormerRecord) -> None:
        self.number, self.version = record.number, record.version
        self._record = record
        self._sock = socket.socket(fileno=record.fd)
        self._sock.settimeout(ANSWER_LIMIT_S)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def fork(self, identity: WorkerIdentity, control: socket.socket) -> tuple[int, int]:
        """Fork that life of the former program; its process id and descriptor. Raises: OSError when there is none."""
        sockets = identity.sockets
        kept = [] if sockets is None else list(sockets.by_name.items())
        order = {"name": identity.name, "incarnation": identity.incarnation, "goes_on": identity.goes_on,
                 "sockets": len(kept)}  # fmt: skip
        ends = [] if sockets is None else [sockets.end.fileno()]
        self._send(order, [control.fileno(), identity.kept.fileno(), *ends])
        for first in range(0, len(kept), _SOCKETS_AT_ONCE):
            some = kept[first : first + _SOCKETS_AT_ONCE]
            self._send([name.hex() for name, _ in some], [fd for _, fd in some])
        pid = int.from_bytes(self._sock.recv(_PID_BYTES), "big")
        if pid == 0:
            raise OSError(0, "the process of the former program has not forked it")
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises unless it is a child of this one
        return pid, os.pidfd_open(pid)

    def _send(self, value: object, fds: list[int]) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        self._sock.sendmsg([json.dumps(value).encode()], [rights])

    def close_inherited(self) -> None:
        """Close in a forked child what is the parent's."""
        self._sock.close()

    def close(self) -> None:
        """End that process; lives that it has forked go on."""
        self._sock.detach()
        end(self._record)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)


# the side of the process that was left


def _serve(parent: Parent[Any], sock: socket.socket, parent_pid: int) -> NoReturn:
    """Fork what is asked for until the parent is gone, or ends this process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)
    name_process("tnwgd-former")
    show_name("former version")
    sock.setblocking(True)
    while True:
        order, fds = _receive(sock)
        sockets = dict[bytes, int]()
        while len(sockets) < order["sockets"]:
            names, more = _receive(sock)
            sockets.update(zip(map(bytes.fromhex, names), more, strict=True))

        pid = 0
        with contextlib.suppress(OSError):
            pid = _fork_twice(partial(_live, parent, parent_pid, sock, order, fds, sockets))
        for fd in (*fds, *sockets.values()):
            os.close(fd)
        sock.send(pid.to_bytes(_PID_BYTES, "big"))


def _receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """Wait for a packet; its value and descriptors. Ends this process when the other side is gone."""
    data, fds, _, _ = socket.recv_fds(sock, _MAX_PACKET, _SOCKETS_AT_ONCE)
    if not data:
        os._exit(0)
    return json.loads(data), fds


def _fork_twice(live: Callable[[], object]) -> int:
    """Fork a process that does this as a child of the parent of this one; its id. Raises: OSError."""
    go, say_go = os.pipe2(os.O_CLOEXEC)
    found, say_found = os.pipe2(os.O_CLOEXEC)
    try:
        between = os.fork()
        if between == 0:
            try:
                pid = os.fork()
                if pid == 0:
                    for fd in (say_go, found, say_found):
                        os.close(fd)
                    if os.read(go, 1) == _GO:  # else the one that forked it is gone, and nobody knows of it
                        os.close(go)
                        live()
                else:
                    os.write(say_found, pid.to_bytes(_PID_BYTES, "big"))
            finally:
                os._exit(EXIT_BUG)
        os.close(say_found)
        say_found = -1
        os.waitpid(between, 0)
        pid = int.from_bytes(os.read(found, _PID_BYTES), "big")
        os.write(say_go, _GO)
        return pid
    finally:
        for fd in (go, say_go, found, say_found):
            if fd >= 0:
                os.close(fd)


def _live(
    parent: Parent[Any],
    parent_pid: int,
    sock: socket.socket,
    order: dict[str, Any],
    fds: list[int],
    sockets: dict[bytes, int],
) -> NoReturn:
    """Run that life of that worker."""
    sock.close()
    enter_start_folder()
    control, memory, *ends = fds
    at_fork = SocketsAtFork(_adopted(ends[0]), sockets) if ends else None
    worker = parent.workers.of(order["name"])
    worker.incarnation = order["incarnation"]
    identity = parent.processes.identity(worker, order["goes_on"], at_fork)
    identity = replace(identity, kept=KeptBytes(memory), parent_pid=parent_pid)
    run_worker(identity, _adopted(control), worker.spec.main)


def _adopted(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock

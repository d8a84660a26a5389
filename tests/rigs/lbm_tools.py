"""The console programs lbmsrc, lbmrcv and lbmwrcv as subprocesses on loopback, each test in a net of its own.

Waiting is waiting for output, with a deadline that only a broken program meets.
"""

from __future__ import annotations

import itertools
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.rigs.loaded import Loaded
from tests.rigs.site import reserve_block

DEADLINE_S: Final = 60.0
_PORTS: Final = 24
_LAST_RECEIVED: Final = re.compile(r"\w+: received (\d+) messages, (\d+) bytes, lost (\d+), bursts (\d+), bad (\d+)")
_LAST_SENT: Final = re.compile(r"lbmsrc: sent (\d+) messages, (\d+) bytes, (\d+\.\d{3}) s")
_ROOMS: Final = dict.fromkeys(("lbmmon", "tnwgdmon", "tnwgdcmd"), "lbmmon") | dict.fromkeys(
    ("lbmreq", "lbmresp", "lbmimsg", "lbmireq", "lbmtrreq"), "immediate"
)
_nets = itertools.count()


class ToolNet:
    """Configuration files of one test: a multicast net, and ports that nobody else uses inside `with`."""

    def __init__(self, folder: Path) -> None:
        pid, number = os.getpid(), next(_nets)
        self._folder = folder
        self.port, self._guard = reserve_block(_PORTS)
        self._net = f"239.{200 + pid % 50}.{pid // 50 % 250}"
        self._host = 1 + number % 50 * 5

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.close()

    def config(self, transport: str, extra: str = "") -> str:
        """Path of a new file; `extra` lines come last."""
        net, host, port = self._net, self._host, self.port
        path = self._folder / f"{transport}-{time.monotonic_ns()}.cfg"
        path.write_text(f"""\
context default_interface 127.0.0.1
context resolver_multicast_interface 127.0.0.1
context resolver_multicast_address {net}.{host}
context resolver_multicast_port {port}
context resolver_multicast_ttl 0
context request_tcp_interface 127.0.0.1
context request_tcp_port_low {port + 1}
context request_tcp_port_high {port + 7}
source transport {transport}
context transport_lbtrm_multicast_address_low {net}.{host + 1}
context transport_lbtrm_multicast_address_high {net}.{host + 3}
source transport_lbtrm_destination_port {port}
context transport_lbtrm_source_port_low {port + 8}
context transport_lbtrm_source_port_high {port + 15}
context transport_lbtrm_data_rate_limit 1000000000
context transport_lbtrm_retransmit_rate_limit 500000000
source transport_tcp_interface 127.0.0.1
context transport_tcp_port_low {port + 16}
context transport_tcp_port_high {port + _PORTS - 1}
source transport_lbtru_interface 127.0.0.1
context transport_lbtru_port_low {port + 16}
context transport_lbtru_port_high {port + 19}
context transport_lbtru_data_rate_limit 1000000000
context transport_lbtru_retransmit_rate_limit 500000000
receiver transport_lbtru_interface 127.0.0.1
receiver transport_lbtru_port_low {port + 20}
receiver transport_lbtru_port_high {port + _PORTS - 1}
{extra}
""")
        return str(path)


class Tool:
    """One running program. Leaving `with` kills what still runs."""

    def __init__(self, name: str, *args: str) -> None:
        self.name = name
        self._process: subprocess.Popen[bytes] = Loaded(
            [sys.executable, "-m", f"dro.tools.{_ROOMS.get(name, 'lbm')}.{name}", *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._selector = selectors.DefaultSelector()
        self._texts = {"out": bytearray(), "err": bytearray()}
        for stream, kind in ((self._process.stdout, "out"), (self._process.stderr, "err")):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, kind)

    def __enter__(self) -> Tool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._selector.close()

    @property
    def out(self) -> str:
        return self._texts["out"].decode()

    @property
    def err(self) -> str:
        return self._texts["err"].decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def _read(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise AssertionError(f"{self.name} is late; output so far:\n{self.out}\n{self.err}")
        for key, _ in self._selector.select(left):
            data = os.read(key.fd, 1 << 20)
            self._texts[key.data] += data
            if not data:
                self._selector.unregister(key.fileobj)

    def wait_for(self, text: str) -> str:
        """The first line of standard output with `text` in it. Raises: AssertionError at the deadline or the end."""
        return self._wait_for(text, lambda: self.out)

    def wait_for_error(self, text: str) -> str:
        """Like `wait_for`, on standard error."""
        return self._wait_for(text, lambda: self.err)

    def _wait_for(self, text: str, output: Callable[[], str]) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            whole = output().rpartition("\n")[0]
            found = [line for line in whole.splitlines() if text in line]
            if found:
                return found[0]
            if not self._selector.get_map():
                raise AssertionError(f"{self.name} ended without {text!r}:\n{self.out}\n{self.err}")
            self._read(deadline)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def write_line(self, text: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close_output(self) -> None:
        """Be a reader that goes away."""
        assert self._process.stdout is not None
        self._selector.unregister(self._process.stdout)
        self._process.stdout.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit status; output is complete then."""
        deadline = time.monotonic() + DEADLINE_S
        while self._selector.get_map():
            self._read(deadline)
        return self._process.wait(max(0.1, deadline - time.monotonic()))

    @property
    def received(self) -> tuple[int, int, int, int, int]:
        """The last line of a receiver: messages, bytes, lost, bursts, bad."""
        match = _LAST_RECEIVED.fullmatch(self.lines[-1])
        assert match is not None, self.out
        messages, size, lost, bursts, bad = map(int, match.groups())
        return messages, size, lost, bursts, bad

    @property
    def sent(self) -> tuple[int, int]:
        """The last line of lbmsrc: messages, bytes."""
        match = _LAST_SENT.fullmatch(self.lines[-1])
        assert match is not None, self.out
        return int(match[1]), int(match[2])

    @property
    def digest(self) -> str:
        """SHA-256 from the line before the last."""
        head, _, digest = self.lines[-2].rpartition(" ")
        assert head == f"{self.name}: payload sha256"
        return digest

"""An application of one TRD in a process of its own: makes and deletes sources, receivers and patterns when told to.

Run as `python -m tests.rigs.application CONFIG`; `Application` starts it and talks to it. One command per line on its
standard input, one answer per line on its standard output, both JSON. It uses the message level of the client library
on a loop in its only thread, so that a command is done when its answer comes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from dro.loop import Loop
from dro.um.message.client_config import Config, object_options
from dro.um.message.context import MessageContext
from dro.um.message.events import Data, Event, WouldBlock
from dro.um.message.receiver import CallbackListener, MessageReceiver
from dro.um.message.source import MessageSource
from dro.um.message.wildcard_receiver import PatternReceiver
from tests.rigs import census
from tests.rigs.loaded import Loaded
from tests.rigs.waiting import readable

ROOT: Final = Path(__file__).parents[2]
TRANSPORTS: Final = ("lbtrm", "tcp")
ANSWER_S: Final = 60.0


class _Program:
    """The process."""

    def __init__(self, config: str) -> None:
        self._loop = Loop()
        self._context = MessageContext(Config.load(config), self._loop)
        self._sources: dict[str, MessageSource] = {}
        self._receivers: dict[str, MessageReceiver] = {}
        self._patterns: dict[str, PatternReceiver] = {}
        self._received = 0
        self._is_running = True
        self._input = b""
        os.set_blocking(0, False)
        self._loop.add_reader(0, self._on_input)

    def run(self) -> None:
        print(json.dumps({"ready": True}), flush=True)
        while self._is_running:
            self._loop.run_once()
        self._context.close_children()
        self._context.close()

    def _on_input(self) -> None:
        data = os.read(0, 1 << 20)
        if not data:
            self._is_running = False
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            command, *arguments = json.loads(line)
            print(json.dumps(self._do(command, arguments)), flush=True)

    def _do(self, command: str, names: list[str]) -> object:
        nothing = object_options("receiver", {})
        match command:
            case "add_sources":
                for nth, name in enumerate(names):
                    options = object_options("source", {"transport": TRANSPORTS[nth % len(TRANSPORTS)]})
                    self._sources[name] = self._context.source(name, options)
            case "remove_sources":
                for name in names:
                    self._sources.pop(name).close(final=True)
            case "add_receivers":
                for name in names:
                    self._receivers[name] = self._context.receiver(name, CallbackListener(self._on_event), nothing)
            case "remove_receivers":
                for name in names:
                    self._receivers.pop(name).close()
            case "add_patterns":
                for name in names:
                    self._patterns[name] = self._context.wildcard(name, CallbackListener(self._on_event), nothing)
            case "remove_patterns":
                for name in names:
                    self._patterns.pop(name).close()
            case "send":
                return sum(self._send(name) for name in self._sources)
            case "state":
                core = self._context.core
                return {"bound": len(core.bound_sources), "received": self._received, "finals": core.finals_pending}
            case "census":
                return asdict(census.take())
            case _:
                raise ValueError(command)
        return len(names)

    def _send(self, name: str) -> bool:
        """One message on a source; False when its session does not take it."""
        try:
            self._sources[name].send(name.encode())
        except WouldBlock:
            return False
        return True

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Data):
            self._received += 1


class Application:
    """The process as its driver sees it; a context manager that ends it."""

    def __init__(self, config: Path) -> None:
        self._process: subprocess.Popen[bytes] = Loaded(
            [sys.executable, "-m", "tests.rigs.application", str(config)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._output = b""
        self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, command: str, names: Iterable[str] = ()) -> object:
        """Have a command done; its answer. Raises: RuntimeError when the process ended, TimeoutError."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *names]).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def state(self) -> dict[str, int]:
        """`bound`: sources joined; `received`: messages, by each receiver; `finals`: sources that still say goodbye."""
        answer = self.tell("state")
        assert isinstance(answer, dict)
        return answer

    def census(self) -> census.Census:
        answer = self.tell("census")
        assert isinstance(answer, dict)
        return census.Census(**answer)

    def _answer(self) -> object:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + ANSWER_S
        while b"\n" not in self._output:
            if not readable([fd], max(0, deadline - time.monotonic())):
                raise TimeoutError("the application does not answer")
            data = os.read(fd, 1 << 20)
            if not data:
                raise RuntimeError(f"the application ended with status {self._process.wait()}")
            self._output += data
        line, _, self._output = self._output.partition(b"\n")
        return json.loads(line)

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    _Program(sys.argv[1]).run()

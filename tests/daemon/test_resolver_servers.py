"""What an operator sees of a TRD whose resolver daemon is silent, and when it answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from dro.wire.lbmr import packet as lbmr
from supervisor.tools.ctl.main import main
from tests.rigs import web
from tests.rigs.site import Site, reserve_block, running

HERE: Final = "127.0.0.1"
ANSWER: Final = lbmr.encode(lbmr.Packet(lbmr.VERSION, None, lbmr.Queries()))

Ask = Callable[..., Any]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(*words: str) -> Any:  # noqa: ANN401 - JSON
        capsys.readouterr()
        main([*words, "--json"])
        return json.loads(capsys.readouterr().out)

    return ask


@contextmanager
def answering(port: int) -> Iterator[None]:
    """A daemon that answers keepalives."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.bind((HERE, port))
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                _, sender = sock.recvfrom(65535)
                sock.sendto(ANSWER, sender)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        is_over.set()
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as waking:
            waking.sendto(b"", (HERE, port))
        thread.join(10)


@pytest.mark.slow
def test_a_daemon_that_is_silent_and_answers_later(tmp_path: Path, typed: Ask) -> None:
    port, guard = reserve_block(3)
    um = (
        f"context resolver_unicast_daemon {HERE}:{port}\ncontext resolver_unicast_port_low {port + 1}\n"
        f"context resolver_unicast_port_high {port + 2}\n"
    )
    with guard, running(Site(tmp_path, 2, um={1: um}, has_monitor=True)) as site:
        dro = ("--dro", site.name)
        status = typed("status", *dro)
        names = {worker["name"] for worker in status["workers"] if worker["role"] == "endpoint"}
        (first,) = (name for name, ways in status["resolution"].items() if "lbmrd" in ways)
        assert status["resolution"].keys() == names

        def resolution() -> str:
            return str(typed("status", *dro)["resolution"][first])

        def metrics() -> str:
            return web.fetch(site.web, "/metrics")[1].decode()

        def of_server(metric: str, value: int) -> bool:
            lines = [line for line in metrics().splitlines() if line.startswith(f"dro_portal_{metric}{{")]
            mine = [line for line in lines if f'portal="{first}"' in line and 'server="lbmrd"' in line]
            return [float(line.split()[-1]) for line in mine] == [value]

        site.wait(lambda: resolution() == f"lbmrd {HERE}:{port} (silent)", "a look at the daemon")
        site.wait(lambda: of_server("resolver_servers", 1), "metrics")
        assert of_server("resolver_servers_answering", 0)
        finding = typed("explain", "T", "--from", "1", "--to", "2", *dro)["network"]
        assert finding["verdict"] == "does not flow"
        backwards = typed("explain", "T", "--from", "2", "--to", "1", *dro)["network"]
        assert backwards["reason"] == f"{first} hears of nothing: no lbmrd of its TRD answers"
        with answering(port):
            site.wait(lambda: resolution() == f"lbmrd {HERE}:{port} (answers)", "an answer")
            site.wait(lambda: of_server("resolver_servers_answering", 1), "metrics")
            checks = typed("doctor", "--listen", "0.1", *dro)["checks"]
            found = [(c["portal"], c["status"]) for c in checks if c["check"] == f"lbmrd {HERE}:{port}"]
            assert found == [(first, "ok")]
        site.wait(lambda: "(silent)" in resolution(), "its end")

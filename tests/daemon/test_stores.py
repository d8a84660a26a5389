"""Persistence through a real DRO: a scripted store, source and receiver, each a program in a TRD of its own."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.rigs.site import Site, running

COUNT = 200
STORE_PORT_OFFSET = 18  # within the request ports of a TRD


def test_a_store_is_restarted_and_a_receiver_gets_the_rest_when_the_source_is_dead(tmp_path: Path) -> None:
    with running(Site(tmp_path, 3)) as site:

        def says(name: str, text: str) -> bool:
            return text in (tmp_path / f"{name}.log").read_text()

        port = next(
            int(line.split()[-1]) + STORE_PORT_OFFSET - 1
            for line in site.config(1).read_text().splitlines()
            if "request_tcp_port_low" in line
        )
        of_store = ("--file", str(tmp_path / "kept"), "--port", str(port))
        store = site.python("-m", "tests.rigs.store", "store", str(site.config(1)), *of_store, name="store")
        site.wait(lambda: says("store", f"store at TCP:1:127.0.0.1:{port}\n"), "the store")
        of_source = ("--store", f"TCP:1:127.0.0.1:{port}", "--count", str(COUNT))
        source = site.python("-m", "tests.rigs.store", "source", str(site.config(2)), *of_source, name="source")
        early = ("-m", "tests.rigs.store", "receiver", str(site.config(3)), "--count", str(COUNT))
        site.wait(lambda: says("source", "stable 1\n"), "the first message in the store")  # where a receiver begins
        site.python(*early, name="early")
        site.wait(lambda: says("source", f"stable {COUNT}\n"), "all to be stable")
        whole = f"got {COUNT}, each once and in order: True\n"
        site.wait(lambda: says("early", whole), "all to come")
        store.send_signal(signal.SIGTERM)
        assert store.wait(20) == 0
        assert says("store", f"kept {COUNT}\n")
        site.python("-m", "tests.rigs.store", "store", str(site.config(1)), *of_store, name="again")
        site.wait(lambda: says("again", "store at"), "the store again")
        source.kill()
        source.wait()
        site.python(*early, name="late")
        site.wait(lambda: says("late", whole), "all to come from the store")

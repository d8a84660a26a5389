"""Statistics that are published over UM come into a history as an import of the same packets would bring them in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from dro.errors import ResourceError
from dro.lbmmon.fields import message_class
from dro.lbmmon.records import DroStats, MonitorSender
from dro.um.blocking_api import BlockingContext, BlockingSource
from dro.um.message.client_config import Config
from supervisor.history.importer import Importer
from supervisor.history.main import main
from supervisor.history.published import WRITER, PublishedStatistics
from supervisor.history.store import Store
from tests.fakes.um_contexts import PATIENCE_S, private_config
from tests.rigs.histories import journalled, rows_of
from tests.rigs.lbm_tools import ToolNet
from tests.rigs.loaded import Loaded
from tests.rigs.waiting import wait_until
from tests.rigs.web import fetch
from tests.supervisor.history.test_importer import CSV, dro, encoded, packet, rows, seconds

TOPIC: Final = "/29west/statistics"
PACKETS: Final = [
    packet(7, encoded("DROMonMsg", dro(1000, 50))),
    packet(3, b"1,2,3,4,5,6,7,8,9,a,b,c,d,e,f,10,11,12,13,14,15,16,17,18", CSV, _1=b"\0\0\3\xe8", _2=b"app"),
    packet(7, encoded("DROMonMsg", dro(1060, 80))),
]


@contextmanager
def publishing(config: Config) -> Iterator[BlockingSource]:
    with BlockingContext(config) as context:
        yield context.source(TOPIC)


def until(holds: Callable[[], bool]) -> None:
    wait_until(holds, "what was published", PATIENCE_S)


def all_rows(history: Path) -> dict[str, list[dict[str, Any]]]:
    return {table: rows(history, table) for table in ("portal", "dro", "other", "library")}


def imported(tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """What the import of the same packets makes."""
    file = tmp_path / "packets"
    file.write_bytes(b"".join(PACKETS))
    assert main(["import", str(file), "--history", str(tmp_path / "imported")]) == 0
    return all_rows(tmp_path / "imported")


def test_packets_become_the_rows_that_an_import_makes(tmp_path: Path) -> None:
    config, store = private_config("tcp"), Store(tmp_path / "h", WRITER)
    with publishing(config) as source, PublishedStatistics(store, config, TOPIC) as published:
        source.wait_receivers(timeout=PATIENCE_S)
        for data in (PACKETS[0], b"no packet", *PACKETS[1:]):
            source.send(data)
        until(lambda: published.figures()["published_messages_total"] == 3)
        until(lambda: published.figures()["published_unread_total"] == 1)
    store.close()
    assert all_rows(tmp_path / "h") == imported(tmp_path)


def test_packets_wait_for_a_full_disk_and_what_is_too_much_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("supervisor.history.published.TURN_S", 0.01)
    config, store = private_config("tcp"), Store(tmp_path / "h", WRITER)
    is_full = threading.Event()
    is_full.set()
    commit = store.commit

    def full() -> None:
        if is_full.is_set():
            raise ResourceError("cannot write the history: No space left on device")
        commit()

    monkeypatch.setattr(store, "commit", full)
    size = len(PACKETS[0])
    with (
        publishing(config) as source,
        PublishedStatistics(store, config, TOPIC, max_waiting=4 * size) as published,
    ):
        source.wait_receivers(timeout=PATIENCE_S)
        for nth in range(10):
            source.send(packet(7, encoded("DROMonMsg", dro(1000 + nth, 50))))
        until(lambda: published.figures()["published_dropped_total"] == 6 and "No space left on device" in caplog.text)
        is_full.clear()
        until(lambda: published.figures()["published_messages_total"] == 4)

        def goes_on() -> bool:
            """What waited takes no room any more."""
            source.send(packet(7, encoded("DROMonMsg", dro(1020, 50))))
            return published.figures()["published_messages_total"] > 4

        until(goes_on)
    store.close()
    assert {seconds(row, "ts") for row in rows(tmp_path / "h", "dro")} == {*range(1000, 1004), 1020}
    assert caplog.text.count("No space left on device") == 1


def test_the_program_takes_them_beside_remote_write(tmp_path: Path) -> None:
    with ToolNet(tmp_path) as net:
        file = net.config("tcp")
        program = Loaded(
            [sys.executable, "-m", "supervisor.history.main", "receive", "--history", str(tmp_path / "h"),
             "--listen", f"127.0.0.1:{net.port}", "--um", file],
            stdout=subprocess.PIPE, text=True, env=os.environ,
        )  # fmt: skip
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == f"statistics over UM of topic {TOPIC}\n"
            with publishing(Config.load(file)) as source:
                source.wait_receivers(timeout=PATIENCE_S)
                for data in PACKETS:
                    source.send(data)
                until(lambda: len([*journalled(tmp_path / "h", "dro"), *journalled(tmp_path / "h", "library")]) == 3)
                until(lambda: fetch(f"127.0.0.1:{net.port}", "/metrics")[0] == 200)
                metrics = fetch(f"127.0.0.1:{net.port}", "/metrics")[1].decode().splitlines()
                assert "dro_history_published_messages_total 3" in metrics
                assert "dro_history_samples_written_total 0" in metrics
            program.send_signal(signal.SIGTERM)
            assert program.wait(PATIENCE_S) == 0
        finally:
            program.kill()
            program.communicate()
    assert all_rows(tmp_path / "h") == imported(tmp_path)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--um-topic", "t"], "--um-topic is nothing without --um"),
        (["--um", "/no/such/file"], "/no/such/file"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], why: str
) -> None:
    assert main(["receive", "--history", str(tmp_path), "--listen", "127.0.0.1:1", *given]) == 1
    assert why in capsys.readouterr().err


def test_numbers_that_no_column_holds_end_nothing(tmp_path: Path) -> None:
    """A counter above 63 bits, before and behind others: all of it is read, and what follows as well."""
    store = Store(tmp_path, "published")
    importer = Importer(store, lambda _: None, "published")
    for nth, value in enumerate([5, (1 << 64) - 1, 7, 8]):
        made = message_class("DROMonMsg")()
        made.stats.local.gateway_name = "D"
        portal = made.stats.portals.add(portal_name="P")
        portal.endpoint.receive.transport_topic_fragments_rcvd = value
        importer.take([DroStats(MonitorSender(1_700_000_000 + nth, "D", "127.0.0.1", 1 + nth // 3, 1), made)])
    importer.commit()
    store.close()
    assert importer.counts["messages of DROs"] == 4
    assert [row["topic_rcvd"] for row in rows_of(tmp_path, "portal", ["topic_rcvd"])] == [5, None, 7, 8]

"""Statistics over UM of a real DRO: what is published equals what pages show, through the end of any process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from dro.clock import NS_PER_S
from dro.errors import ResourceError
from dro.lbmmon.binary import PORTSTAT, BinaryMessage, decode_binary
from dro.lbmmon.control import MonitorCommand, encode_command
from dro.lbmmon.packet import decode
from dro.lbmmon.records import DroStats, LibraryStats
from dro.metrics.slots import Slot
from dro.metrics.slots import WorkerSlot as OfWorkers
from dro.metrics.table import ENDPOINT, PORTAL, metrics
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.requests import OpenRequest
from supervisor.admin.client import Client, find_dro
from supervisor.admin.status import DroStatus, OperationResult, PortalsStatus
from supervisor.reload.records import ReloadRecord
from supervisor.samples.pages import Pages
from tests.builders.golden_statistics import published_class, read_structure
from tests.rigs.going_on import TOPICS, Publisher
from tests.rigs.histories import rows_of
from tests.rigs.site import Site, drained, running
from tests.rigs.statistics import (
    BINARY_TOPIC,
    Listener,
    daemon_monitor_xml,
    listening,
    monitor_xml,
    publishing,
    statistics_file,
)
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.slow
TRANSPORTS: Final = {1: "tcp", 2: "lbtrm"}
TRD_OF_STATISTICS: Final = 3
PORTALS: Final = ("P1", "P2", "P3")
MESSAGES: Final = 200
SECOND_S: Final = 1.0


@contextmanager
def site_with(folder: Path, xml: str, *, request_port: bool = False) -> Iterator[tuple[Site, Path]]:
    """A DRO of three TRDs; `{file}` in `xml` is the UM file of its statistics."""
    site = Site(folder, 3, transports=TRANSPORTS)
    file = statistics_file(site, request_port=port_of(site) if request_port else 0)
    with running(publishing(site, xml.format(file=file))):
        yield site, file


def port_of(site: Site) -> int:
    """The request port of its daemon statistics."""
    return site.port(TRD_OF_STATISTICS) + 18


@contextmanager
def traffic(site: Site, count: int = MESSAGES) -> Iterator[Publisher]:
    """A publisher in the first TRD and a receiver in the second."""
    with BlockingContext(Config.load(site.config(1))) as sending, BlockingContext(Config.load(site.config(2))) as far:
        publisher = Publisher(sending, 0.005)
        receivers = [far.receiver(f"numbers.{n}") for n in range(len(publisher._sources))]
        for receiver in receivers:
            receiver.wait_sources(1, 30)
        publisher.start()
        try:
            wait_until(lambda: publisher.sent >= count, "messages", 30)
            yield publisher
        finally:
            publisher.stop()


def portals_now(site: Site) -> PortalsStatus:
    with closing(Client(find_dro(site.name))) as client:
        return client.ask(PortalsStatus, "portals")


def field_values(message: Any) -> dict[str, int]:  # noqa: ANN401  a message
    """All numbers of an endpoint portal of a `DROMonMsg`."""
    parts = (message, message.endpoint, message.endpoint.receive, message.endpoint.send)
    return {
        field.name: getattr(part, field.name)
        for part in parts
        for field in part.DESCRIPTOR.fields
        if field.message_type is None
    }


def page_values(counters: dict[str, int]) -> dict[str, int]:
    """What the page of an endpoint portal shows, by the field that has it."""
    by_slot = {int(Slot[name]): value for name, value in counters.items()}
    return {m.field: sum(by_slot[slot] for slot in m.slots) for m in metrics(PORTAL, ENDPOINT) if m.field}


def is_quiet(site: Site) -> bool:
    with site.books() as books:
        return drained(books)


def let_traffic_through(site: Site) -> None:
    """Begin and end traffic; all of it has left by the second portal, and nothing is on its way any more."""
    with traffic(site) as publisher:
        publisher.stop()
        with site.books() as books:
            everything = TOPICS * publisher.sent
            site.wait(lambda: min(books[1, Slot.TOPIC_RCVD], books[2, Slot.SENT]) >= everything, "the last messages")
    site.wait(lambda: is_quiet(site), "the end of traffic")


def test_protobuf_statistics_are_those_of_the_pages(tmp_path: Path) -> None:
    with site_with(tmp_path, monitor_xml(Path("{file}"))) as (site, file), listening(file) as listener:
        let_traffic_through(site)
        shown = {portal.name: page_values(portal.counters) for portal in portals_now(site).portals}
        assert shown["P1"]["transport_topic_fragments_rcvd"] >= MESSAGES

        def told() -> dict[str, dict[str, int]]:
            last = listener.dros()[-1]
            return {portal.portal_name: field_values(portal) for portal in last.stats.portals}

        def is_told() -> bool:
            return bool(listener.dros()) and all(
                told()["P1"][name] >= value for name, value in shown["P1"].items() if name.endswith("_rcvd")
            )

        site.wait(is_told, "a sample with all of it")
        counted = [name for name in shown["P1"] if "topic_fragment" in name and "control" not in name]
        assert len(counted) > 10
        for portal in PORTALS[:2]:  # the third one has the statistics themselves
            found = told()[portal]
            assert {name: found[name] for name in counted} == {name: shown[portal][name] for name in counted}
        packet = max((packet for _, packet in listener.heard), key=len)
        attributes = int.from_bytes(packet[6:8], "big")
        published = published_class("DROMonMsg").FromString(packet[12 + attributes :])
        assert published.SerializeToString() == packet[12 + attributes :]
        assert [portal.portal_name for portal in published.configs.portals] == list(PORTALS)
        first = listener.dros()[0]
        assert [portal.portal_name for portal in first.configs.portals] == list(PORTALS)
        assert site.name in first.configs.gateway.config_data
        assert first.attributes.application_id == site.name
        assert first.attributes.process_id == site.pid
        assert not any(message.HasField("configs") for message in listener.dros()[1:9])
        before = len(listener.dros())
        assert site.stop() == 0
        wait_until(lambda: len(listener.dros()) > before, "the last sample", 10)
        last = {portal.portal_name: field_values(portal) for portal in listener.dros()[-1].stats.portals}
        assert {n: last["P2"][n] for n in counted} == {n: shown["P2"][n] for n in counted}


def test_contexts_and_sessions_are_published_by_the_names_of_the_guide(tmp_path: Path) -> None:
    separator = ' options="separator=|"'
    xml = monitor_xml(Path("{file}"), form="csv", options=separator)
    with site_with(tmp_path, xml) as (site, file), listening(file) as listener, traffic(site) as publisher:
        site.wait(lambda: bool(listener.library("source_transport")), "sessions")
        publisher.stop()
        site.wait(lambda: is_quiet(site), "the end of traffic")
        shown = {portal.name: portal for portal in portals_now(site).portals}

        def told(kind: str, application: str) -> dict[str, LibraryStats]:
            """The newest of each session, or of the context."""
            return {stats.source: stats for stats in listener.library(kind, application)}

        def received() -> int:
            sessions = told("receiver_transport", "Gateway_Portal_P1_rcv_ctx").values()
            return sum(stats.values["tcp.lbm_msgs_rcved"] for stats in sessions)

        on_page = shown["P1"][Slot.TOPIC_RCVD] + shown["P1"][Slot.CONTROL_RCVD]
        site.wait(lambda: received() >= on_page, "the last messages")
        sent = told("source_transport", "Gateway_Portal_P2_src_ctx")
        assert all(source.startswith("LBTRM:127.0.0.1:") for source in sent)
        assert sum(stats.values["lbtrm.msgs_sent"] for stats in sent.values()) > 0
        assert sum(stats.values["lbtrm.rxs_sent"] for stats in sent.values()) == shown["P2"][Slot.RETRANSMITTED]
        for portal in PORTALS:
            for part in ("rcv_ctx", "src_ctx"):
                context = told("context", f"Gateway_Portal_{portal}_{part}")[""]
                assert context.sender.domain_id == int(portal[1:])
                assert context.sender.pid == site.pid
                assert len(context.sender.context_instance) == 8
        channel = told("context", "Gateway_Portal_P1_rcv_ctx")[""].values
        assert channel["tr_dgrams_sent"] > 0
        assert channel["tr_bytes_rcved"] > channel["tr_dgrams_rcved"] > 0
        assert b"|" in listener.heard[-1][1]


def test_statistics_as_datagrams(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as collector:
        collector.bind(("127.0.0.1", 0))
        collector.settimeout(30)
        port = collector.getsockname()[1]
        xml = (
            f'<monitor interval="1"><transport-module module="udp" options="address=127.0.0.1;port={port}"/>'
            '<format-module module="pb"/></monitor>'
        )
        with site_with(tmp_path, xml):
            found: set[str] = set()
            while len(found) < 10:  # two contexts and a loop of each portal, and the DRO
                [message] = decode(collector.recv(65_536))
                assert isinstance(message, DroStats | LibraryStats)
                assert message.sender.host == "127.0.0.1"
                found.add(message.sender.application)
    assert "Gateway_Portal_P3_src_ctx" in found


def test_the_history_has_the_numbers_of_the_pages(tmp_path: Path) -> None:
    """What is published, kept as packets in a file, and brought in."""
    with site_with(tmp_path, monitor_xml(Path("{file}"))) as (site, file), listening(file) as listener:
        let_traffic_through(site)
        shown = {portal.name: portal for portal in portals_now(site).portals}
        at = len(listener.dros())
        site.wait(lambda: len(listener.dros()) > at + 1, "samples of all of it")
        packets = tmp_path / "packets"
        packets.write_bytes(b"".join(packet for _, packet in listener.heard))
        history = tmp_path / "history"
        run = [sys.executable, "-m", "supervisor.history.main", "import", str(packets), "--history", str(history)]
        subprocess.run(run, check=True, timeout=60)
    rows = rows_of(
        history, "portal", ["ts", "portal", "topic_rcvd", "topic_rcvd_bytes", "sent", "sent_bytes", "forwarded"]
    )
    for name in PORTALS[:2]:
        last = max((row for row in rows if row["portal"] == name), key=lambda row: row["ts"])
        for slot in (Slot.TOPIC_RCVD, Slot.TOPIC_RCVD_BYTES, Slot.SENT, Slot.SENT_BYTES, Slot.FORWARDED):
            assert last[slot.name.lower()] == shown[name][slot], (name, slot.name)


def binaries(listener: Listener) -> list[tuple[float, BinaryMessage]]:
    return [(at, decode_binary(message)) for at, message in list(listener.heard)]


def times_of(listener: Listener, name: str, portal: str = "", attr_type: str = "") -> list[float]:
    return [
        at
        for at, m in binaries(listener)
        if m.name == name
        and (not portal or m.values["portal_name"] == portal)
        and (not attr_type or m.values["attr_type"] == attr_type)
    ]


def test_binary_statistics_are_sent_at_their_intervals_and_when_they_have_changed(tmp_path: Path) -> None:
    groups = (
        '<group name="default" ivl="1"/><group name="portal-config" ivl="2"/><group name="gateway-config" ivl="3"/>'
    )
    with (
        site_with(tmp_path, daemon_monitor_xml(Path("{file}"), groups)) as (site, file),
        listening(file, BINARY_TOPIC) as listener,
    ):
        site.wait(lambda: len(times_of(listener, "GATEWAYCFG")) >= 3, "three configurations", 30)
        configs = times_of(listener, "GATEWAYCFG")
        assert all(2.5 < after - before < 4.5 for before, after in pairwise(configs))
        options = times_of(listener, "PORTCFG", "P1", "source context")
        assert all(1.5 < after - before < 3.5 for before, after in pairwise(options))
        quiet = len(times_of(listener, "PORTSTAT", "P1"))
        rounds = len(options)
        site.wait(lambda: len(times_of(listener, "PORTCFG", "P1", "source context")) > rounds + 2, "more rounds", 30)
        assert len(times_of(listener, "PORTSTAT", "P1")) <= quiet + 1, (
            "nothing has changed: the statistics are not sent"
        )
        let_traffic_through(site)
        shown = {portal.name: page_values(portal.counters) for portal in portals_now(site).portals}

        def last() -> dict[str, Any]:
            found = [m for _, m in binaries(listener) if m.name == "PORTSTAT" and m.values["portal_name"] == "P2"]
            return dict(found[-1].values) if found else {}

        sent = "transport_topic_fragments_sent"
        site.wait(lambda: last().get(f"send_stats.{sent}") == shown["P2"][sent], "statistics with all of it")
        for name, value in shown["P2"].items():
            if "fragment" in name:
                part = "receive_stats" if f"receive_stats.{name}" in last() else "send_stats"
                assert last()[f"{part}.{name}"] == value, name
        stats = [raw for _, raw in listener.heard if raw[2:4] == PORTSTAT.to_bytes(2, sys.byteorder)]
        raw = [raw for raw in stats if decode_binary(raw).values["portal_name"] == "P2"][-1]
        record = read_structure("tnwg_portal_endpoint_dstat_record_t", raw, 288, sys.byteorder)
        assert len(raw) == 960
        assert record == {k: v for k, v in decode_binary(raw).values.items() if k in record}
        assert int(record["send_stats.transport_topic_fragments_sent"]) > 0
        names = {m.name for _, m in binaries(listener)}
        assert names == {"RM_LOCAL", "RM_PORTAL", "PORTSTAT", "GATEWAYCFG", "PORTCFG", "MALLINFO"}
        assert all(m.length == len(raw) for (_, raw), (_, m) in zip(listener.heard, binaries(listener), strict=False))
        before = len(listener.heard)
        assert site.stop() == 0
        wait_until(lambda: len([m for _, m in binaries(listener)[before:] if m.name == "PORTSTAT"]) >= 3, "the end", 10)


def ask(site: Site, *requests: bytes) -> list[bytes]:
    """Send control requests from another TRD; the answers."""
    target = f"TCP:{TRD_OF_STATISTICS}:127.0.0.1:{port_of(site)}"
    with BlockingContext(Config.load(site.config(1))) as context:
        return [context.request(target, request) for request in requests]


def test_each_control_request_does_what_it_says(tmp_path: Path) -> None:
    xml = daemon_monitor_xml(Path("{file}"), '<group name="default" ivl="0"/>')
    with (
        site_with(tmp_path, xml, request_port=True) as (site, file),
        listening(file, BINARY_TOPIC) as listener,
    ):
        site.wait(lambda: "proxy receiver created topic=tnwgd.monitor" in site.log, "the listener")

        def heard_after(request: bytes, count: int) -> list[BinaryMessage]:
            listener.heard.clear()
            assert ask(site, request) == [b"OK"]
            site.wait(lambda: len(listener.heard) >= count, f"what {request!r} brings")
            return [m for _, m in binaries(listener)]

        assert ask(site, b"version", b"version\0", b" version ") == [b"OK 1"] * 3
        assert {m.name for m in heard_after(b"snap mallinfo", 1)} == {"MALLINFO"}
        assert [m.name for m in heard_after(b"snap ri", 4)] == ["RM_LOCAL", *["RM_PORTAL"] * 3]
        assert [m.name for m in heard_after(b"snap gcfg\0", 1)] == ["GATEWAYCFG"]
        assert [m.values["portal_name"] for m in heard_after(b"snap pstat", 3)] == list(PORTALS)
        assert [m.values["portal_name"] for m in heard_after(b'"P2" snap pstat', 1)] == ["P2"]
        assert len(heard_after(b"snap pcfg", 18)) == 18
        assert {m.values["portal_name"] for m in heard_after(b'"P3" snap pcfg', 6)} == {"P3"}
        assert len({m.name for m in heard_after(b"snap", 27)}) == 6
        assert [m.name for m in heard_after(b"mallinfo 1", 2)] == ["MALLINFO"] * 2
        assert "GATEWAYCFG" in [m.name for m in heard_after(b"gcfg 1", 4)]
        listener.heard.clear()
        assert ask(site, b"mallinfo 0", b"gcfg 0", b"ri 1", b'"P1" pstat 1', b"pcfg 1") == [b"OK"] * 5
        # the answer comes first
        site.wait(lambda: times_of(listener, "PORTCFG"), "what the last of them changes")
        before = site.kill("statistics")
        site.wait(lambda: site.workers().get("statistics", before) != before, "the next worker")
        listener.heard.clear()
        site.wait(lambda: len(times_of(listener, "PORTCFG", "P1", "source")) >= 2, "what a request had changed")
        assert not {m.name for _, m in binaries(listener)} & {"MALLINFO", "GATEWAYCFG"}
        refusals = {
            b'"P9" snap pstat': b'ERROR unknown portal "P9"',
            b"pstat": b"ERROR bad interval",
            b"pstat -1": b"ERROR bad interval",
            b"pstat 2147483648": b"ERROR bad interval",
            b"snap all": b"ERROR unknown request",
            b"": b"ERROR unknown request",
            b"x" * 256: b"ERROR request too long",
        }
        assert ask(site, *refusals) == list(refusals.values())
        assert "Gwd-10185-93: control request refused" in site.log
        assert "Gwd-10185-96: control request too long" in site.log
        assert 'control request request="\\"P1\\" pstat 1"' in site.log


def test_a_reload_changes_what_is_published_while_it_runs(tmp_path: Path) -> None:
    xml = daemon_monitor_xml(Path("{file}"), '<group name="default" ivl="3600"/>')
    with (
        site_with(tmp_path, xml, request_port=True) as (site, file),
        listening(file, "other.topic") as listener,
    ):
        worker = site.worker("statistics")
        assert ask(site, b"version") == [b"OK 1"]
        config = site.folder / "dro.xml"
        text = config.read_text().replace('ivl="3600"', 'ivl="1"')
        config.write_text(text.replace("<daemon-monitor>", '<daemon-monitor topic="other.topic">'))
        with closing(Client(find_dro(site.name))) as client:
            client.ask(ReloadRecord, "reload", confirm=0, no_wait=False, within_s=60)
        site.wait(
            lambda: len(times_of(listener, "GATEWAYCFG")) >= 3, "the configuration, at the new interval and topic"
        )
        assert any("other.topic" in m.text for _, m in binaries(listener) if m.name == "GATEWAYCFG")
        assert ask(site, b'"P1" snap pstat') == [b"OK"]
        file.write_text(f"{file.read_text()}source transport_tcp_port 0\n")
        config.write_text(config.read_text().replace('ivl="1"', 'ivl="2"'))
        with closing(Client(find_dro(site.name))) as client:
            client.ask(ReloadRecord, "reload", confirm=0, no_wait=False, within_s=60)
            assert ask(site, b"version", b'"P1" snap pstat') == [b"OK 1", b"OK"]
            client.ask(OperationResult, "portal remove", name="P1", within_s=60)
        target = f"TCP:127.0.0.1:{port_of(site)}"
        with BlockingContext(Config.load(site.config(TRD_OF_STATISTICS))) as context:
            wait_until(lambda: context.request(target, b'"P1" snap pstat').startswith(b"ERROR unknown portal"), "it")
            assert context.request(target, b'"P2" snap pstat') == b"OK"
        assert site.worker("statistics") == worker


def test_a_request_port_that_is_taken_keeps_nothing_else_waiting(tmp_path: Path) -> None:
    site = Site(tmp_path, 3, transports=TRANSPORTS)
    file = statistics_file(site, request_port=port_of(site))
    of_monitor = site.folder / "monitor.cfg"
    of_monitor.write_text("\n".join(line for line in file.read_text().splitlines() if "request_tcp_port" not in line))
    publishing(site, monitor_xml(of_monitor, form="csv") + daemon_monitor_xml(file))
    with socket.create_server(("127.0.0.1", port_of(site))) as other, running(site):
        with listening(of_monitor) as library:
            site.wait(lambda: bool(library.library("context")), "statistics in csv")
        assert "statistics over UM do not begin, tried again" in site.log
        other.close()
        site.wait(lambda: "daemon statistics begin" in site.log, "the port")
        assert ask(site, b"version") == [b"OK 1"]


def test_control_messages_to_the_context_of_the_monitor(tmp_path: Path) -> None:
    xml = (
        '<monitor interval="3600"><transport-module options="config={file};context|request_tcp_bind_request_port=1"/>'
        '<format-module module="pb"/></monitor>'
    )
    with site_with(tmp_path, xml, request_port=True) as (site, file), listening(file) as listener:
        site.wait(lambda: "proxy receiver created topic=/29west/statistics" in site.log, "the listener")

        def told(command: str, *more: str) -> bytes:
            [answer] = ask(site, encode_command(MonitorCommand(command, *more)))
            return answer

        def heard(count: int) -> set[str]:
            site.wait(lambda: len(listener.heard) >= count, "what was asked for")
            found = {m.kind if isinstance(m, LibraryStats) else "dro" for m in listener.messages()}
            listener.heard.clear()
            return found

        assert told("SNAP", "GATEWAY") == b"OK"
        assert heard(1) == {"dro"}
        assert told("SAMPLE", "CONTEXT") == b"OK"
        assert heard(6) == {"context"}
        assert told("SAMPLE", "EVENT_QUEUE") == b"OK"
        assert heard(3) == {"event_queue"}
        assert told("SAMPLE", "ALL_NODES", "Gateway_Portal_P2_src_ctx") == b"OK"
        assert heard(1) == {"context"}
        assert told("SNAP") == b"OK"
        site.wait(lambda: bool(listener.dros()), "the DRO")
        assert listener.dros()[0].HasField("configs")
        assert told("SET_INTERVAL", "ALL_NODES", "", "1") == b"OK"
        before = site.kill("statistics")
        site.wait(lambda: site.workers().get("statistics", before) != before, "the next worker")
        listener.heard.clear()
        site.wait(lambda: len(listener.dros()) >= 2, "samples at the other interval")
        assert told("CLEAR_INTERVAL") == b"OK"
        assert told("SET_DEBUG_INFO", "ALL_NODES", "", "x") == b"ERROR SET_DEBUG_INFO is not supported"
        assert told("SAMPLE", "UMESTORE") == b"ERROR nothing of the kind UMESTORE is published here"
        assert ask(site, b"snap")[0].startswith(b"ERROR ")


@pytest.mark.parametrize(
    ("allow", "snapshot", "change"),
    [
        pytest.param("10", b"OK", b"ERROR configuration changes are disabled", id="snapshots alone"),
        pytest.param("01", b"ERROR snapshot requests are disabled", b"OK", id="changes alone"),
    ],
)
def test_what_is_not_allowed_is_refused(tmp_path: Path, allow: str, snapshot: bytes, change: bytes) -> None:
    with site_with(tmp_path, daemon_monitor_xml(Path("{file}"), allow=allow), request_port=True) as (site, _):
        assert ask(site, b"snap ri", b"ri 5") == [snapshot, change]


def test_counters_never_fall_whatever_is_killed(tmp_path: Path) -> None:
    xml = monitor_xml(Path("{file}"), form="csv") + daemon_monitor_xml(Path("{file}"))
    with (
        site_with(tmp_path, xml) as (site, file),
        listening(file) as library,
        listening(file, BINARY_TOPIC) as binary,
        traffic(site),
    ):
        for victims in (["statistics"], ["P1"], ["P2", "statistics"], ["P1", "P2"]):
            for name in victims:
                site.kill(name)
            had = len(binary.heard) + 20, len(library.heard) + 10

            def have_more(had: tuple[int, int] = had) -> bool:
                return len(binary.heard) > had[0] and len(library.heard) > had[1]

            site.wait(have_more, "samples after")
        by_name: dict[tuple[object, ...], list[int]] = {}
        gauges = {"receiver", "interest", "enqueued", "proxy", "topology", "recalc", "version", "cost", "index"}
        for _, m in binaries(binary):
            if m.name == "PORTSTAT":
                for name, value in m.values.items():
                    if isinstance(value, int) and not any(word in name for word in gauges):
                        by_name.setdefault((m.values["portal_name"], name), []).append(value)
        assert len(by_name) > 100
        moved = 0
        for key, values in by_name.items():
            assert values == sorted(values), f"{key}: {values}"
            moved += values[-1] > values[0]
        assert moved > 5
        by_object: dict[tuple[object, ...], list[int]] = {}
        for stats in library.library():
            for name, value in stats.values.items():
                if name.endswith(("msgs_sent", "bytes_sent", "msgs_rcved", "bytes_rcved", "tr_dgrams_rcved")):
                    key = (stats.sender.application, stats.kind, stats.source, name)
                    by_object.setdefault(key, []).append(value)
        for key, values in by_object.items():
            assert values == sorted(values), f"{key}: {values}"
        assert any(values[-1] > values[0] for values in by_object.values())


def test_counters_in_protobuf_never_fall_whatever_is_killed(tmp_path: Path) -> None:
    with site_with(tmp_path, monitor_xml(Path("{file}"))) as (site, file), listening(file) as listener, traffic(site):
        for victims in (["statistics"], ["P1", "P2"], ["P2", "statistics"]):
            for name in victims:
                site.kill(name)
            had = len(listener.dros()) + 2
            site.wait(lambda had=had: len(listener.dros()) > had, "samples after")  # type: ignore[misc]
        by_name: dict[tuple[str, str], list[int]] = {}
        for message in listener.dros():
            for portal in message.stats.portals:
                for name, value in field_values(portal).items():
                    if "_rcvd" in name or "_sent" in name or "_forwarded" in name:
                        by_name.setdefault((portal.portal_name, name), []).append(value)
        assert len(by_name) > 100
        for key, values in by_name.items():
            assert values == sorted(values), f"{key}: {values}"
        assert by_name["P1", "transport_topic_fragments_rcvd"][-1] > by_name["P1", "transport_topic_fragments_rcvd"][0]


def test_a_receiver_that_never_reads_holds_up_nobody(tmp_path: Path) -> None:
    """Guide: forwarding notices no receiver of statistics; nor do other receivers."""
    with site_with(tmp_path, daemon_monitor_xml(Path("{file}"))) as (site, file), traffic(site) as publisher:
        stuck = site.python("-c", _LISTENER, str(file), BINARY_TOPIC, name="stuck")
        site.wait(lambda: "heard" in (site.folder / "stuck.log").read_text(), "its first message")
        os.kill(stuck.pid, signal.SIGSTOP)
        with listening(file, BINARY_TOPIC) as listener:
            site.wait(lambda: len(listener.heard) > 60, "statistics for others", 60)
            before, begun = len(listener.heard), time.monotonic()
            site.wait(lambda: len(listener.heard) > before + 60, "statistics for others, later", 60)
            assert time.monotonic() - begun < 60
            sent = publisher.sent
            site.wait(lambda: publisher.sent > sent + 100, "traffic")
        os.kill(stuck.pid, signal.SIGCONT)
        assert site.stop() == 0


_LISTENER: Final = """
import sys
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
with BlockingContext(Config.load(sys.argv[1])) as context:
    for event in context.receiver(sys.argv[2]):
        print("heard", flush=True)
"""


def test_a_flood_of_requests_is_answered_up_to_the_limit_and_counted(tmp_path: Path) -> None:
    with site_with(tmp_path, daemon_monitor_xml(Path("{file}")), request_port=True) as (site, _), traffic(site) as flow:
        target = f"TCP:127.0.0.1:{port_of(site)}"
        answers: list[bytes] = []
        with BlockingContext(Config.load(site.config(TRD_OF_STATISTICS))) as context:
            assert context.request(target, b"version") == b"OK 1"
            second = time.monotonic_ns() // NS_PER_S
            site.wait(lambda: time.monotonic_ns() // NS_PER_S > second, "a second of which nothing is used up")
            handles: list[OpenRequest] = []

            def send(count: int) -> None:
                with context.lock:
                    for n in range(len(handles), len(handles) + count):
                        text = (b"snap ri", b'"P9" snap pstat', b"pstat 99999999999", bytes([n % 256]) * 40)[n % 4]
                        handles.append(
                            context.core.uim_request(target, text, lambda r: answers.append(r.data), failed.append)
                        )

            def counted() -> int:
                with closing(Client(find_dro(site.name))) as client:
                    status = client.ask(DroStatus, "status")
                worker = next(worker for worker in status.workers if worker.name == "statistics")
                with closing(Pages(Path(status.shm))) as pages:
                    page = pages[worker.index]
                slots = (OfWorkers.REQUESTS_ANSWERED, OfWorkers.REQUESTS_REFUSED, OfWorkers.REQUESTS_LIMITED)
                return sum(page[slot] for slot in slots)

            failed: list[ResourceError] = []
            for _ in range(10):
                send(100)
                site.wait(lambda: counted() >= len(handles), "requests counted")

            assert counted() == 1001
            assert not failed
            sent = flow.sent
            site.wait(lambda: flow.sent > sent + 100, "traffic goes on")
            assert 20 <= len(answers) < 1000
            with context.lock:
                for handle in handles:
                    handle.close()

        def is_answered() -> bool:
            try:
                return ask(site, b"version") == [b"OK 1"]
            except TimeoutError:
                return False

        site.wait(is_answered, "an answer in a second without a flood")
        assert "control requests dropped" in site.log

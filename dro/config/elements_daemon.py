"""`<daemon>` and everything in it but what it shares with portals: element in, record out.

Source: DRO guide, chapter 7.3, elements of these names. Guess: what the guide shows directly under `<daemon>` in one
chapter and DTD and reference put into `<daemon-monitor>` is taken in both places.
"""

from __future__ import annotations

import re
from typing import Final

from dro.config.elements import read_name, read_publishing
from dro.config.model import (
    DaemonConfig,
    DaemonMonitorConfig,
    LogConfig,
    MapConfig,
    MonitorConfig,
    PublishingConfig,
    RouteInfoConfig,
    RouteRecalculationConfig,
    WebMonitorConfig,
)
from dro.config.reader import ElementReader
from dro.config.um_sources import Reading, find_um_file, read_portal_um

_REQUESTS: Final = ("remote-snapshot-request", "remote-config-changes-request")
_HOST: Final = re.compile(r"[A-Za-z0-9_.\-]{1,253}(/[0-9]{1,2})?")
_UM_SCOPES: Final = ("context", "source", "receiver", "wildcard_receiver", "event_queue", "hfx")


def read_daemon(el: ElementReader, reading: Reading) -> DaemonConfig:
    """`<daemon>`. The maps and the licence file are read and have no effect: their jobs do not exist here."""
    reading.daemon_name = read_name(el.child("name"))
    daemon = DaemonConfig(
        name=reading.daemon_name,
        log=read_log(el.child("log")),
        uid=_optional_number(el.child("uid")),
        gid=_optional_number(el.child("gid")),
        pidfile=read_path(el.child("pidfile")),
        license_file=read_path(el.child("lbm-license-file")),
        topic_map=read_map(el.child("topicmap")),
        pattern_map=read_map(el.child("patternmap")),
        monitor=read_monitor(el.child("monitor")),
        web_monitor=read_web_monitor(el.child("web-monitor")),
        daemon_monitor=read_daemon_monitor(el, reading),
        xml_config=read_xml_config(el.child("xml-config"), reading),
        route_info=read_route_info(el.child("route-info")),
        route_recalculation=read_route_recalculation(el.child("route-recalculation")),
    )
    el.done()
    return daemon


def read_path(el: ElementReader) -> str:
    """An element that holds the name of a file; empty when absent."""
    path = el.content_text()
    if el.is_present and not path:
        el.error("is empty", remedy="write the name of a file, or remove it")
    el.done()
    return path


def _optional_number(el: ElementReader) -> int | None:
    value = el.content_optional()
    el.done()
    return value


def read_xml_config(el: ElementReader, reading: Reading) -> str:
    """`<xml-config>`: the path that was opened, its document goes into `reading`; empty when absent."""
    written = read_path(el)
    if not written:
        return ""
    path = find_um_file(written, el.file, el)
    el.effective(path)
    reading.read_xml_config(path, el)
    return path


def read_log(el: ElementReader) -> LogConfig:
    """`<log>`. Rolling belongs to files; elsewhere it is ignored with a warning."""
    log = LogConfig(
        type=el.choice("type"),
        file=el.content_text(),
        frequency=el.choice("frequency"),
        size_mb=el.integer("size"),
    )
    if log.type == "file" and not log.file:
        el.error("no file name", remedy="write the file name between the tags")
    elif log.type != "file" and (log.size_mb or log.frequency != "disable"):
        el.warning('frequency and size have a function with type="file" only')
    el.done()
    return log


def read_map(el: ElementReader) -> MapConfig:
    """`<topicmap>` or `<patternmap>`."""
    made = MapConfig(el.choice("hash-function"), el.integer("size"))
    el.done()
    return made


def read_monitor(el: ElementReader) -> MonitorConfig | None:
    """`<monitor>`; None when absent."""
    if not el.is_present:
        return None
    transport, form = el.child("transport-module"), el.child("format-module")
    monitor = MonitorConfig(
        interval_s=el.integer("interval"),
        transport_module=transport.choice("module"),
        transport_options=_transport_options(transport),
        format_module=form.choice("module"),
        separator=_separator(form),
    )
    transport.done()
    form.done()
    el.done()
    return monitor


def _parts(el: ElementReader) -> list[tuple[str, str]]:
    """The parts `name=value` of an option string, joined by `;`."""
    found = []
    for part in el.string("options").split(";"):
        name, equals, value = part.partition("=")
        if equals and name.strip():
            found.append((name.strip(), value))
        elif part.strip():
            el.warning(f"options: {part.strip()[:40]!r} is not name=value, ignored")
    return found


def _transport_options(el: ElementReader) -> tuple[tuple[str, str], ...]:
    kept = []
    for name, value in _parts(el):
        scope, bar, _option = name.partition("|")
        if name in ("config", "topic") or (bar and scope in _UM_SCOPES) or el.choice("module") == "udp":
            kept.append((name, value))
        else:
            el.warning(f"options: {name[:40]!r} is not known, ignored")
    return tuple(kept)


def _separator(el: ElementReader) -> str:
    separator = ","
    for name, value in _parts(el):
        if name == "separator" and value:
            separator = value
        else:
            el.warning(f"options: {name[:40]!r} is not known, ignored")
    return separator


def read_web_monitor(el: ElementReader) -> WebMonitorConfig | None:
    """`<web-monitor>`: `interface:port`, where `*` is all interfaces; None when absent."""
    text = el.content_text()
    el.done()
    if not el.is_present:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        el.error(f"{text[:60]!r} has no port from 1 to 65535", remedy="write interface:port, as in *:15304")
        return None
    if host != "*" and not _HOST.fullmatch(host):
        el.error(f"{host[:60]!r} is not an interface", remedy="write interface:port, as in *:15304")
        return None
    return WebMonitorConfig("" if host == "*" else host, int(port))


def read_daemon_monitor(daemon: ElementReader, reading: Reading) -> DaemonMonitorConfig | None:
    """`<daemon-monitor>`, also for what stands directly under `<daemon>`; None when there is neither."""
    el = daemon.child("daemon-monitor")
    inner = {name: el.child(name) for name in ("publishing-interval", *_REQUESTS)}
    for name in inner:
        if daemon.has(name):
            stray = daemon.child(name)
            stray.warning("belongs into <daemon-monitor>, taken as if it were there")
            if not inner[name].is_present:
                inner[name] = stray
            else:
                stray.error("given here and in <daemon-monitor>", remedy="keep the one in <daemon-monitor>")
    if not el.is_present and not any(reader.is_present for reader in inner.values()):
        return None
    for name in _REQUESTS:
        inner[name].yes_no("allow")
        inner[name].done()
    um = read_portal_um(el, reading)
    monitor = DaemonMonitorConfig(
        topic=el.string("topic"),
        publishing=read_publishing(inner["publishing-interval"]) or PublishingConfig(),
        answers_snapshots=inner[_REQUESTS[0]].yes_no("allow"),
        obeys_changes=inner[_REQUESTS[1]].yes_no("allow"),
        lbm_config=um.paths,
        um=um.um,
    )
    el.done()
    return monitor


def read_route_info(el: ElementReader) -> RouteInfoConfig:
    """`<route-info>`."""
    info = RouteInfoConfig(
        propagation_interval_ms=el.integer("propagation-interval"),
        check_interval_ms=el.integer("check-interval"),
        timeout_ms=el.integer("timeout"),
        max_hop_count=el.integer("max-hop-count"),
    )
    el.done()
    return info


def read_route_recalculation(el: ElementReader) -> RouteRecalculationConfig:
    """`<route-recalculation>`."""
    recalculation = RouteRecalculationConfig(
        backoff_interval_ms=el.integer("backoff-interval"),
        warning_interval_ms=el.integer("warning-interval"),
    )
    if recalculation.backoff_interval_ms > recalculation.warning_interval_ms:
        el.error(
            f"backoff-interval {recalculation.backoff_interval_ms} exceeds "
            f"warning-interval {recalculation.warning_interval_ms}",
            remedy="raise warning-interval or lower backoff-interval",
        )
    el.done()
    return recalculation

"""What the table cannot express of `<daemon>` and its content: values with special syntax, and rules.

Source: DRO guide, chapter 7.3, elements of these names. Guess: elements that one chapter shows directly under
`<daemon>`, and DTD and reference in `<daemon-monitor>`, are accepted in both places.
"""

from __future__ import annotations

import re
from typing import Final

from dro.config.dro_xml.elements import read_name, read_publishing
from dro.config.dro_xml.key_file import read_route_authentication
from dro.config.dro_xml.model import (
    DaemonConfig,
    DaemonMonitorConfig,
    LogConfig,
    MonitorConfig,
    PublishingConfig,
    RouteRecalculationConfig,
    WebMonitorConfig,
)
from dro.config.reading.reader import ElementReader
from dro.config.reading.record import check, read_record
from dro.config.um.sources import Reading, find_um_file, read_portal_um

_REQUESTS: Final = ("remote-snapshot-request", "remote-config-changes-request")
_HOST: Final = re.compile(r"[A-Za-z0-9_.\-]{1,253}(/[0-9]{1,2})?")
_UM_SCOPES: Final = ("context", "source", "receiver", "wildcard_receiver", "event_queue", "hfx")


def read_daemon(el: ElementReader, reading: Reading) -> DaemonConfig:
    """`<daemon>`. The maps and the licence file are read and have no effect: their jobs do not exist here."""
    reading.daemon_name = read_name(el.child("name"))
    return read_record(
        el,
        DaemonConfig,
        name=reading.daemon_name,
        log=read_log(el.child("log")),
        monitor=read_monitor(el.child("monitor")),
        web_monitor=read_web_monitor(el.child("web-monitor")),
        daemon_monitor=read_daemon_monitor(el, reading),
        xml_config=read_xml_config(el.child("xml-config"), reading),
        route_authentication=read_route_authentication(el.child("extensions").child("route-authentication")),
    )


def read_log(el: ElementReader) -> LogConfig:
    """`<log>`, of any daemon."""
    return read_record(el, LogConfig, file=el.text())


def read_xml_config(el: ElementReader, reading: Reading) -> str:
    """`<xml-config>`: the path that was opened, its document goes into `reading`; empty when absent."""
    written = el.text()
    el.done()
    if not written:
        return ""
    path = find_um_file(written, el.file, el)
    el.effective(path)
    reading.read_xml_config(path, el)
    return path


@check.register
def _log(log: LogConfig, el: ElementReader) -> None:
    """Check where the log goes: rolling belongs to files; elsewhere it is ignored with a warning."""
    if log.type == "file" and not log.file:
        el.error("no file name", remedy="write the file name between the tags")
    elif log.type != "file" and log.file:
        el.warning(f'{log.file!r} is not written: the log goes to {log.type}; add type="file" for a file')
    elif log.type != "file" and (log.size_mb or log.frequency != "disable"):
        el.warning('frequency and size have a function with type="file" only')


def read_monitor(el: ElementReader) -> MonitorConfig | None:
    """`<monitor>`; None when absent."""
    if not el.is_present:
        return None
    transport, form = _transport_options(el.child("transport-module")), _separator(el.child("format-module"))
    return read_record(el, MonitorConfig, transport_options=transport, separator=form)


def _parts(el: ElementReader) -> list[tuple[str, str]]:
    """Split an option string, joined by `;`, into its parts `name=value`."""
    found = []
    for part in el.text("options").split(";"):
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
        if name in ("config", "topic") or (bar and scope in _UM_SCOPES) or el.text("module") == "udp":
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
    text = el.text()
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
    allowed = [inner[name].text("allow") == "1" for name in _REQUESTS]
    for name in _REQUESTS:
        inner[name].done()
    um = read_portal_um(el, reading)
    return read_record(
        el,
        DaemonMonitorConfig,
        publishing=read_publishing(inner["publishing-interval"]) or PublishingConfig(),
        answers_snapshots=allowed[0],
        obeys_changes=allowed[1],
        lbm_config=um.paths,
        um=um.um,
    )


@check.register
def _route_recalculation(recalculation: RouteRecalculationConfig, el: ElementReader) -> None:
    backoff, warning = recalculation.backoff_interval_ms, recalculation.warning_interval_ms
    if backoff > warning:
        what = f"backoff-interval {backoff} exceeds warning-interval {warning}"
        el.error(what, remedy="raise warning-interval or lower backoff-interval")

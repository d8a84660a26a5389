"""What the table cannot express of `<daemon>` and its content: values with special syntax, and rules.

Source: DRO guide, chapter 7.3, elements of these names. Guess: elements that one chapter shows directly under
`<daemon>`, and DTD and reference in `<daemon-monitor>`, are accepted in both places.
"""

from __future__ import annotations

import re
from typing import Final

from dro.config.dro_xml.elements import read_name
from dro.config.dro_xml.key_file import read_route_authentication
from dro.config.dro_xml.model import (
    DaemonConfig,
    LogConfig,
    RouteRecalculationConfig,
    WebMonitorConfig,
)
from dro.config.dro_xml.monitor import read_daemon_monitor, read_monitor
from dro.config.reading.reader import ElementReader
from dro.config.reading.record import check, read_record
from dro.config.um.sources import Reading, find_um_file

_HOST: Final = re.compile(r"[A-Za-z0-9_.\-]{1,253}(/[0-9]{1,2})?")


def read_daemon(el: ElementReader, reading: Reading) -> DaemonConfig:
    """`<daemon>`. The maps and the licence file are read and have no effect: their jobs do not exist here."""
    reading.daemon_name = read_name(el.child("name"))
    xml_config = read_xml_config(el.child("xml-config"), reading)  # first, since the options of others come from it
    daemon_monitor = read_daemon_monitor(el, reading)
    return read_record(
        el,
        DaemonConfig,
        name=reading.daemon_name,
        log=read_log(el.child("log")),
        monitor=read_monitor(el.child("monitor"), reading, is_beside_binary=daemon_monitor is not None),
        web_monitor=read_web_monitor(el.child("web-monitor")),
        daemon_monitor=daemon_monitor,
        xml_config=xml_config,
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


@check.register
def _route_recalculation(recalculation: RouteRecalculationConfig, el: ElementReader) -> None:
    backoff, warning = recalculation.backoff_interval_ms, recalculation.warning_interval_ms
    if backoff > warning:
        what = f"backoff-interval {backoff} exceeds warning-interval {warning}"
        el.error(what, remedy="raise warning-interval or lower backoff-interval")

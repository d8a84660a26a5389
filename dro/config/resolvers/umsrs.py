"""The configuration file of `umsrs`: one root element, its values as a record, every problem with its place.

Source: public manual, SRS configuration file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_MS, NS_PER_S
from dro.config.dro_xml.elements_daemon import read_log
from dro.config.dro_xml.model import LogConfig
from dro.config.reading.problems import Problems, Warn
from dro.config.reading.reader import ElementReader
from dro.config.reading.record import read_record
from dro.config.reading.xml_file import line_of, read_xml_file
from dro.errors import ConfigError
from dro.proto.srs.settings import SrsTimes

TABLE: Final = "umsrs"
ROOT: Final = "um-srs"
_ROLLING: Final = ("max-history", "total-size-cap")


@dataclass(frozen=True, slots=True)
class SrsServiceConfig:
    """`<srs>`."""

    interface: str
    port: int
    state_lifetime_s: int
    route_lifetime_s: int
    source_leave_backoff_ms: int


@dataclass(frozen=True, slots=True)
class SrsDaemonConfig:
    """`<daemon>`."""

    log: LogConfig
    pid_file: str


@dataclass(frozen=True, slots=True)
class SrsConfig:
    """The whole file. Lines are 0 for what is not in it."""

    daemon: SrsDaemonConfig
    service: SrsServiceConfig
    times: SrsTimes
    file: str = ""
    interface_line: int = 0
    log_line: int = 0
    pid_file_line: int = 0


def load_umsrs(path: str, warn: Warn) -> SrsConfig:
    """Read a file; without a path, the defaults. Raises: ConfigError with everything that is wrong."""
    root = read_xml_file(path) if path else None
    if root is not None and root.tag != ROOT:
        what = f"the root element is <{str(root.tag)[:60]}>, not <{ROOT}>"
        raise ConfigError(what, file=path, line=line_of(root, 1), remedy=f"is this a file of {TABLE}?")
    problems = Problems(warn)
    el = ElementReader(root, ROOT, path, problems, table=TABLE)
    el.text("version")
    daemon_el, srs_el = el.child("daemon"), el.child("srs")
    log_el = daemon_el.child("log")
    if any(log_el.integer(name) for name in _ROLLING) or log_el.text("compression") != "none":
        log_el.warning("max-history, total-size-cap and compression have no effect: rolled files are kept as they are")
    daemon = read_record(daemon_el, SrsDaemonConfig, log=read_log(log_el))
    lifetimes_s = [_lifetime(srs_el, name) for name in ("source-state-lifetime", "interest-state-lifetime")]
    names = srs_el.child("context-name-state-lifetime")
    if names.is_present:
        names.integer()
        names.warning("has no effect: context names are passed on and not kept")
        names.done()
    service = read_record(srs_el, SrsServiceConfig)
    el.ignore("daemon-monitor", "has no effect: --metrics serves figures of the daemon")
    el.done()
    problems.raise_if_any()
    source_s, interest_s = (service.state_lifetime_s if one is None else one for one in lifetimes_s)
    times = SrsTimes(
        source_state_ns=source_s * NS_PER_S,
        interest_state_ns=interest_s * NS_PER_S,
        route_state_ns=service.route_lifetime_s * NS_PER_S,
        source_leave_backoff_ns=service.source_leave_backoff_ms * NS_PER_MS,
    )
    found = (srs_el.child("interface"), log_el, daemon_el.child("pid-file"))
    interface_line, log_line, pid_file_line = (one.line if one.is_present else 0 for one in found)
    return SrsConfig(daemon, service, times, path, interface_line, log_line, pid_file_line)


def _lifetime(srs: ElementReader, name: str) -> int | None:
    """Read a lifetime of its own, None where the common one counts."""
    el = srs.child(name)
    value = el.integer() if el.is_present else None
    el.done()
    return value

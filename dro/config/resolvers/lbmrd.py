"""The configuration file of `lbmrd`: one root element, its values as a record, every problem with its place.

Source: public manual, lbmrd configuration file, which wants `<domains>` and `<transformations>` in each file. Guess: a
file without them is clear enough, so they may be left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from typing import Final

from lxml import etree

from dro.config.dro_xml.elements_daemon import read_log
from dro.config.dro_xml.model import LogConfig
from dro.config.reading.problems import Problems, Warn
from dro.config.reading.reader import ElementReader
from dro.config.reading.record import read_record
from dro.config.reading.xml_file import line_of, read_xml_file
from dro.errors import ConfigError
from dro.proto.lbmrd.nat import NatRule, Translation

TABLE: Final = "lbmrd"
ANY_VALUE: Final = "*"
PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class LbmrdDaemonConfig:
    """`<daemon>`."""

    activity_ms: int
    interface: str
    port: int
    ttl_s: int
    log: LogConfig
    receive_buffer_bytes: int  # 0: as the system has it
    send_buffer_bytes: int


@dataclass(frozen=True, slots=True)
class LbmrdConfig:
    """The whole file. Lines are 0 for what is not in it."""

    daemon: LbmrdDaemonConfig
    translation: Translation
    file: str = ""
    interface_line: int = 0
    log_line: int = 0


def load_lbmrd(path: str, warn: Warn) -> LbmrdConfig:
    """Read a file; without a path, the defaults. Raises: ConfigError with everything that is wrong."""
    return read_lbmrd(read_xml_file(path) if path else None, path, warn)


def read_lbmrd(root: etree._Element | None, path: str, warn: Warn) -> LbmrdConfig:
    """`load_lbmrd` for a document in hand, or for none."""
    if root is not None and root.tag != TABLE:
        what = f"the root element is <{str(root.tag)[:60]}>, not <{TABLE}>"
        raise ConfigError(what, file=path, line=line_of(root, 1), remedy=f"is this a file of {TABLE}?")
    problems = Problems(warn)
    el = ElementReader(root, TABLE, path, problems, table=TABLE)
    el.text("version")
    daemon_el = el.child("daemon")
    log_el = daemon_el.child("log")
    if log_el.integer("max-history"):
        log_el.warning("max-history has no effect: rolled files are kept")
    daemon = read_record(daemon_el, LbmrdDaemonConfig, log=read_log(log_el))
    names, networks = _read_domains(el.child("domains"))
    rules = _read_transformations(el.child("transformations"), names)
    el.done()
    problems.raise_if_any()
    interface = daemon_el.child("interface")
    return LbmrdConfig(
        daemon,
        Translation(networks, rules),
        path,
        interface.line if interface.is_present else 0,
        log_el.line if log_el.is_present else 0,
    )


def _read_domains(el: ElementReader) -> tuple[set[str], tuple[tuple[IPv4Network, str], ...]]:
    """Read `<domains>`: names, and networks with the name of each; either stands once."""
    found: dict[IPv4Network, str] = {}
    names: set[str] = set()
    for domain in el.children("domain"):
        name = domain.text("name")
        if name in names:
            domain.error(f"there is a domain {name!r} already", remedy="give each domain its own name")
        names.add(name)
        networks = domain.children("network")
        if not networks:
            domain.error("<network> is missing", remedy="add the networks of the domain")
        for child in networks:
            network = _network(child)
            if network is not None and network in found:
                child.error(f"{network} is in domain {found[network]!r} already", remedy="name it once")
            elif network is not None:
                found[network] = name
            child.done()
        domain.done()
    el.done()
    return names, tuple(found.items())


def _network(el: ElementReader) -> IPv4Network | None:
    text = el.text()
    try:
        return IPv4Network(text, strict=False)
    except ValueError:
        el.error(f"{text[:40]!r} is not a network", remedy="write it as in 192.0.2.0/24")
        return None


def _read_transformations(el: ElementReader, domains: set[str]) -> dict[tuple[str, str], tuple[NatRule, ...]]:
    """Read `<transformations>`; several transforms for the same domains are as one."""
    found: dict[tuple[str, str], tuple[NatRule, ...]] = {}
    for transform in el.children("transform"):
        ends = transform.text("source"), transform.text("destination")
        for name in dict.fromkeys(ends):
            if name and name not in domains:
                transform.error(f"there is no domain {name!r}", remedy="name one of <domains>")
        rules = [_read_rule(rule) for rule in transform.children("rule")]
        if not rules:
            transform.error("<rule> is missing", remedy="add a rule, or remove it")
        found[ends] = (*found.get(ends, ()), *rules)
        transform.done()
    el.done()
    return found


def _read_rule(el: ElementReader) -> NatRule:
    match, replace = el.required_child("match"), el.required_child("replace")
    rule = NatRule(_address(match), _port(match), _address(replace), _port(replace))
    for child in (match, replace, el):
        child.done()
    return rule


def _address(el: ElementReader) -> int | None:
    text = el.text("address")
    if not text or text == ANY_VALUE:
        return None
    try:
        return int(IPv4Address(text))
    except AddressValueError:
        el.error(f"address {text[:40]!r} is not an IPv4 address", remedy="write it as in 192.0.2.1, or *")
        return None


def _port(el: ElementReader) -> int | None:
    text = el.text("port")
    if not text or text == ANY_VALUE:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= PORT_MAX:
        return int(text)
    el.error(f"port {text[:40]!r} is not a port", remedy=f"write a number from 1 to {PORT_MAX}, or *")
    return None

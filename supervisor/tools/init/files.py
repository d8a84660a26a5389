"""A starter configuration: what is typed for it, and its files, a direct link or one end of a peer link. No I/O.

Questions and options of `tnwgd init` accept the same values, which are read here.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, select_autoescape

from dro.config.dro_xml.elements import MAX_NAME_BYTES
from dro.config.reading.schema import UINT32_MAX
from dro.config.um.interfaces import SYSTEM, Lookup, resolve_host, resolve_interface
from dro.errors import ConfigError

DEFAULT_LISTEN_PORT: Final = 26123
DEFAULT_RESOLVER_PORT: Final = 12965
DEFAULT_PORTS: Final = {"lbmrd": 15380, "srs": 27000}
SRSES_MAX: Final = 5
STATISTICS_FILE: Final = "statistics.cfg"
_STATISTICS_GROUP: Final = "239.192.255.1"
"""Of no TRD that has a default."""
_FIRST_PORT: Final = 15000
_PORTS_PER_TRD: Final = 100
_BLOCKS: Final = 100
_WEB_BLOCK: Final = 3  # the ports from 15300 on are for web monitors
_WEB_PORT: Final = 15304
_WEB_PORTS: Final = 96
_SUFFIX: Final = len("-TRD") + len(str(UINT32_MAX))
_HOST: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


@dataclass(frozen=True, slots=True)
class UmFile:
    """A TRD that has a UM configuration file already."""

    path: str  # absolute


@dataclass(frozen=True, slots=True)
class NewTrd:
    """A TRD whose UM configuration file is to be written. Topics are resolved by multicast, or by servers."""

    interface: str  # as in a UM file: address, network, or "device"
    address: str  # the local address that it stands for
    group: str = ""
    port: int = 0
    kind: str = ""  # of the servers: lbmrd or srs
    servers: tuple[str, ...] = ()  # address and port of each

    @property
    def resolvers(self) -> set[str]:
        """Return what tells it from other TRDs; a group on another interface is another one."""
        return set(self.servers) or {f"{self.group}:{self.port} of {self.address}"}


Trd = UmFile | NewTrd


@dataclass(frozen=True, slots=True)
class Companion:
    """The other end of a peer link: this one connects to `host`, or listens when there is none."""

    port: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class Starter:
    """Everything that a starter configuration consists of; one TRD and a companion, or two TRDs."""

    name: str
    trds: tuple[tuple[int, Trd], ...]  # (domain id, TRD)
    companion: Companion | None = None
    has_statistics: bool = False


# what somebody typed; all raise ConfigError with what and remedy


def read_name(text: str) -> str:
    """The name of a DRO; names of portals are made from it."""
    name = " ".join(text.split())
    try:
        if not name or not name.isprintable():
            raise ConfigError(f"{text[:40]!r} is not a name", remedy="write letters, digits and signs")
        if len(name.encode()) > MAX_NAME_BYTES - _SUFFIX:
            raise ConfigError(f"the name is longer than {MAX_NAME_BYTES - _SUFFIX} bytes", remedy="shorten it")
    except UnicodeEncodeError as e:
        raise ConfigError("the name is not UTF-8", remedy="write letters, digits and signs") from e
    return name


def read_domain(text: str) -> int:
    return _number(text, "domain id", UINT32_MAX)


def read_port(text: str) -> int:
    return _number(text, "port", 65535)


def _number(text: str, what: str, maximum: int) -> int:
    is_number = len(text) <= len(str(maximum)) and text.isascii() and text.isdigit()
    if not is_number or not 1 <= int(text) <= maximum:
        raise ConfigError(f"{text[:40]!r} is not a {what}", remedy=f"write a number from 1 to {maximum}")
    return int(text)


def default_trd(domain_id: int, lookup: Lookup = SYSTEM) -> NewTrd:
    """Choose the first interface that can do multicast, else the loopback one; each domain has a group of its own."""
    table = lookup.interfaces()
    able = [i for i in table if i.is_up and i.is_multicast and not i.is_loopback]
    interface = address = next((i.address for i in table if i.is_loopback), "127.0.0.1")
    if able:
        interface, address = str(able[0].network), able[0].address
    return NewTrd(interface, address, f"239.192.{(domain_id - 1) % 254 + 1}.1", DEFAULT_RESOLVER_PORT)


def shown(trd: Trd) -> str:
    """Return what somebody would have to type for it."""
    if isinstance(trd, UmFile):
        return trd.path
    resolver = f"{trd.kind}={','.join(trd.servers)}" if trd.servers else f"{trd.group}:{trd.port}"
    return f"{trd.interface.strip(chr(34))},{resolver}"


def read_trd(text: str, domain_id: int, lookup: Lookup = SYSTEM) -> Trd:
    """`FILE`, `INTERFACE`, or `INTERFACE,` and `GROUP:PORT`, `lbmrd=SERVERS` or `srs=SERVERS`.

    A device may be written without quotes.
    """
    text = text.strip()
    if os.path.isfile(text):
        return UmFile(_plain_path(os.path.abspath(text)))
    written, resolver = (part.strip() for part in text.partition("," if "," in text else " ")[::2])
    device = written.strip('"')
    table = lookup.interfaces()
    if any(interface.name == device for interface in table):
        written = f'"{device}"'
    try:
        address = resolve_interface(written, lookup)
    except ConfigError as e:
        if text.endswith((".cfg", ".xml", ".conf")) or text.startswith((".", "/", "~")):
            raise ConfigError(f"there is no file {text!r}", remedy="write the path of a UM configuration file") from e
        there = ", ".join(f"{interface.name} ({interface.address})" for interface in table)
        remedy = f"write an interface of this host: {there}; or the path of a UM configuration file"
        raise ConfigError(e.what, remedy=remedy) from e
    kind, is_server, servers = resolver.partition("=")
    if is_server:
        return NewTrd(written, address, kind=_kind_of(kind), servers=read_servers(servers, _kind_of(kind)))
    standard = default_trd(domain_id, lookup)
    group, port = read_group(resolver) if resolver else (standard.group, standard.port)
    return NewTrd(written, address, group, port)


def _plain_path(path: str) -> str:
    """Check that the path can stand in the file. Raises: ConfigError."""
    if not path.isprintable():  # nor are bytes that are not UTF-8
        raise ConfigError(f"{path!r} has characters that do not print", remedy="rename the file")
    return path


def read_group(text: str) -> tuple[str, int]:
    """`GROUP:PORT` of topic resolution."""
    group, colon, port = text.partition(":")
    try:
        is_multicast = ipaddress.IPv4Address(group if colon else "").is_multicast
    except ValueError as e:
        remedy = "write GROUP:PORT, as in 239.192.1.1:12965"
        raise ConfigError(f"{text[:40]!r} is not a multicast group and a port", remedy=remedy) from e
    if not is_multicast:
        raise ConfigError(f"{group} is not a multicast group", remedy="write one from 224.0.0.0 to 239.255.255.255")
    return group, read_port(port)


def _kind_of(text: str) -> str:
    kind = text.strip().lower()
    if kind not in DEFAULT_PORTS:
        remedy = "write lbmrd=ADDRESS or srs=ADDRESS, or GROUP:PORT for multicast"
        raise ConfigError(f"{text[:40]!r} is no kind of server that resolves topics", remedy=remedy)
    return kind


def read_servers(text: str, kind: str) -> tuple[str, ...]:
    """`ADDRESS[:PORT]` of each daemon or SRS, separated by commas."""
    servers: dict[str, None] = {}
    for part in text.split(","):
        written, colon, port = part.strip().partition(":")
        remedy = f"write ADDRESS or ADDRESS:PORT of each, as in {kind}=192.0.2.5:{DEFAULT_PORTS[kind]}"
        try:
            address = ipaddress.IPv4Address(written)
        except ValueError as e:
            raise ConfigError(f"{written[:40]!r} is not the address of a server", remedy=remedy) from e
        if address.is_multicast or address.is_unspecified:
            raise ConfigError(f"{address} is not the address of a server", remedy=remedy)
        servers[f"{address}:{read_port(port) if colon else DEFAULT_PORTS[kind]}"] = None
    if kind == "srs" and len(servers) > SRSES_MAX:
        raise ConfigError(f"there are {len(servers)} SRSes", remedy=f"write {SRSES_MAX} at most")
    return tuple(servers)


def read_companion(text: str) -> Companion:
    """`HOST:PORT` to connect to, or `PORT` to listen on."""
    return read_connect(text) if ":" in text else Companion(read_port(text.strip()))


def read_connect(text: str) -> Companion:
    """`HOST:PORT`: an address or a host name, which is looked up at each attempt to connect."""
    host, _, port = text.strip().rpartition(":")
    if _HOST.fullmatch(host) is None:
        remedy = "write an address or a host name, as in 192.0.2.20:26123"
        raise ConfigError(f"{host[:60]!r} is neither an address nor a host name", remedy=remedy)
    if all(c in "0123456789." for c in host):
        resolve_host(host)
    return Companion(read_port(port), host)


def check_apart(first: Trd, second: Trd) -> None:
    """Two TRDs of one DRO are two."""
    if isinstance(first, UmFile) and first == second:
        raise ConfigError(f"both TRDs have the file {first.path}", remedy="each TRD needs a file of its own")
    if isinstance(first, NewTrd) and isinstance(second, NewTrd) and (shared := first.resolvers & second.resolvers):
        what = f"both TRDs resolve topics {'by' if first.servers else 'on'} {min(shared)}"
        own = "servers" if first.servers else "a group or a port"
        raise ConfigError(what, remedy=f"give each TRD {own} of its own")


# the files


def _render(template: str, **values: object) -> str:
    templates = Environment(
        loader=PackageLoader(__package__ or ""), autoescape=select_autoescape(["xml"]),
        trim_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return templates.get_template(template).render(values)


def um_file_name(domain_id: int) -> str:
    return f"trd{domain_id}.cfg"


def um_text(trd: NewTrd, domain_id: int, block: int) -> str:
    """A plain-text UM configuration file. `block` keeps the ports of TRDs on one host apart."""
    block %= _BLOCKS
    base = _FIRST_PORT + (block + (block >= _WEB_BLOCK)) * _PORTS_PER_TRD
    data_group = None
    if trd.group:
        group = ipaddress.IPv4Address(trd.group)  # data and immediate messages have the five beside it
        data_group = group + 1 if int(group) & 0xFF <= 250 else group - 5
    return _render("trd.cfg", trd=trd, domain_id=domain_id, base=base, data_group=data_group)


def statistics_text() -> str:
    """A plain-text UM configuration file for statistics of DROs on this host."""
    return _render("statistics.cfg", group=_STATISTICS_GROUP, port=DEFAULT_RESOLVER_PORT)


def dro_text(starter: Starter, um_paths: Sequence[str], statistics: str) -> str:
    """The DRO file. `um_paths`: of each TRD the UM file, as it is to be written; `statistics`: that of these."""
    ids = [domain_id for domain_id, _ in starter.trds]
    return _render(
        "dro.xml",
        name=starter.name,
        ids=ids,
        endpoints=list(zip(ids, um_paths, strict=True)),
        companion=starter.companion,
        statistics=statistics,
        web_port=_WEB_PORT + (ids[0] - 1) % _WEB_PORTS,
    )

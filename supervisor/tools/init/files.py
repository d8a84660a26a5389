"""The files of a starter configuration: a direct link between two TRDs, or one end of a peer link. Text only, no I/O.

Called by `tnwgd init`. User input is parsed here as well, so that questions and command-line options accept the same
values.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from dro.config.dro_xml.elements import MAX_NAME_BYTES
from dro.config.reading.schema import UINT32_MAX
from dro.config.um.interfaces import SYSTEM, Interface, Lookup, resolve_interface
from dro.errors import ConfigError

DEFAULT_LISTEN_PORT: Final = 26123
DEFAULT_RESOLVER_PORT: Final = 12965
_FIRST_PORT: Final = 15000
_PORTS_PER_TRD: Final = 100
_BLOCKS: Final = 100
_SUFFIX: Final = len("-TRD") + len(str(UINT32_MAX))
_GROUP: Final = re.compile(r"(?P<group>[0-9.]+):(?P<port>[0-9]{1,5})")
_HOST: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


@dataclass(frozen=True, slots=True)
class UmFile:
    """A TRD that has a UM configuration file already."""

    path: str  # absolute


@dataclass(frozen=True, slots=True)
class NewTrd:
    """A TRD whose UM configuration file is to be written."""

    interface: str  # as in a UM file: address, network, or "device"
    address: str  # the local address that it stands for
    group: str
    port: int

    @property
    def resolver(self) -> tuple[str, str, int]:
        """Return what tells it from other TRDs; a group on another interface is another one."""
        return self.address, self.group, self.port


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


# what somebody typed


def read_name(text: str) -> str:
    """The name of a DRO; names of portals are made from it. Raises: ConfigError with what and remedy."""
    name = " ".join(text.split())
    if not name or not name.isprintable():
        raise ConfigError(f"{text[:40]!r} is not a name", remedy="write letters, digits and signs")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as e:
        raise ConfigError("the name is not UTF-8", remedy="write letters, digits and signs") from e
    if size > MAX_NAME_BYTES - _SUFFIX:
        raise ConfigError(f"the name is longer than {MAX_NAME_BYTES - _SUFFIX} bytes", remedy="shorten it")
    return name


def read_domain(text: str) -> int:
    """A domain id. Raises: ConfigError."""
    return _number(text, "domain id", UINT32_MAX)


def read_port(text: str) -> int:
    """A port. Raises: ConfigError."""
    return _number(text, "port", 65535)


def _number(text: str, what: str, maximum: int) -> int:
    is_number = len(text) <= len(str(maximum)) and text.isascii() and text.isdigit()
    if not is_number or not 1 <= int(text) <= maximum:
        raise ConfigError(f"{text[:40]!r} is not a {what}", remedy=f"write a number from 1 to {maximum}")
    return int(text)


def default_trd(domain_id: int, lookup: Lookup = SYSTEM) -> NewTrd:
    """Choose the first interface that can do multicast, else the loopback one; each domain has a group of its own."""
    number = (domain_id - 1) % 254 + 1
    group = f"239.192.{number}.1"
    table = lookup.interfaces()
    able = [i for i in table if i.is_up and i.is_multicast and not i.is_loopback]
    chosen = next(iter([*able, *(i for i in table if i.is_loopback)]), None)
    if chosen is None:
        return NewTrd("127.0.0.1", "127.0.0.1", group, DEFAULT_RESOLVER_PORT)
    return NewTrd(_network_of(chosen), chosen.address, group, DEFAULT_RESOLVER_PORT)


def _network_of(interface: Interface) -> str:
    return (
        interface.address if interface.is_loopback else f"{interface.network.network_address}/{interface.prefix_length}"
    )


def shown(trd: Trd) -> str:
    """Return what somebody would have to type for it."""
    if isinstance(trd, UmFile):
        return trd.path
    return f"{trd.interface.strip(chr(34))},{trd.group}:{trd.port}"


def read_trd(text: str, domain_id: int, lookup: Lookup = SYSTEM) -> Trd:
    """`FILE`, `INTERFACE` or `INTERFACE,GROUP:PORT`. A device may be written without quotes. Raises: ConfigError."""
    text = text.strip()
    if os.path.isfile(text):
        return UmFile(_plain_path(os.path.abspath(text)))
    written, comma, resolver = text.partition(",")
    if not comma:
        written, _, resolver = text.partition(" ")
    written, resolver = written.strip(), resolver.strip()
    device = written.strip('"')
    if any(interface.name == device for interface in lookup.interfaces()):
        written = f'"{device}"'
    try:
        address = resolve_interface(written, lookup)
    except ConfigError as e:
        if text.endswith((".cfg", ".xml", ".conf")) or text.startswith((".", "/", "~")):
            raise ConfigError(f"there is no file {text!r}", remedy="write the path of a UM configuration file") from e
        there = ", ".join(f"{interface.name} ({interface.address})" for interface in lookup.interfaces())
        remedy = f"write an interface of this host: {there}; or the path of a UM configuration file"
        raise ConfigError(e.what, remedy=remedy) from e
    standard = default_trd(domain_id, lookup)
    group, port = read_group(resolver) if resolver else (standard.group, standard.port)
    return NewTrd(written, address, group, port)


def _plain_path(path: str) -> str:
    """Raises: ConfigError for what cannot stand in the file."""
    try:
        path.encode()
    except UnicodeEncodeError as e:
        raise ConfigError("the name of the file is not UTF-8", remedy="rename the file") from e
    if not path.isprintable():
        raise ConfigError(f"{path!r} has characters that do not print", remedy="rename the file")
    return path


def read_group(text: str) -> tuple[str, int]:
    """`GROUP:PORT` of topic resolution. Raises: ConfigError."""
    found = _GROUP.fullmatch(text)
    remedy = "write GROUP:PORT, as in 239.192.1.1:12965"
    if found is None:
        raise ConfigError(f"{text[:40]!r} is not a multicast group and a port", remedy=remedy)
    try:
        group = ipaddress.IPv4Address(found["group"])
    except ValueError as e:
        raise ConfigError(f"{found['group']!r} is not an IPv4 address", remedy=remedy) from e
    if not group.is_multicast:
        raise ConfigError(f"{group} is not a multicast group", remedy="write one from 224.0.0.0 to 239.255.255.255")
    return str(group), read_port(found["port"])


def read_companion(text: str) -> Companion:
    """`HOST:PORT` to connect to, or `PORT` to listen on. Raises: ConfigError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        return Companion(read_port(port))
    return Companion(host=read_host(host), port=read_port(port))


def read_host(text: str) -> str:
    """An address or a host name, which is looked up at each attempt to connect. Raises: ConfigError."""
    remedy = "write an address or a host name, as in 192.0.2.20:26123"
    if _HOST.fullmatch(text) is None:
        raise ConfigError(f"{text[:60]!r} is neither an address nor a host name", remedy=remedy)
    if all(c in "0123456789." for c in text):
        try:
            ipaddress.IPv4Address(text)
        except ValueError as e:
            raise ConfigError(f"{text!r} is not an IPv4 address", remedy=remedy) from e
    return text


def check_apart(first: Trd, second: Trd) -> None:
    """Two TRDs of one DRO are two. Raises: ConfigError."""
    if isinstance(first, UmFile) and first == second:
        raise ConfigError(f"both TRDs have the file {first.path}", remedy="each TRD needs a file of its own")
    if isinstance(first, NewTrd) and isinstance(second, NewTrd) and first.resolver == second.resolver:
        what = f"both TRDs resolve topics on {first.group}:{first.port} of {first.address}"
        raise ConfigError(what, remedy="give each TRD a group or a port of its own")


# the files


def um_file_name(domain_id: int) -> str:
    return f"trd{domain_id}.cfg"


def um_text(trd: NewTrd, domain_id: int, block: int) -> str:
    """A plain-text UM configuration file. `block` keeps the ports of TRDs on one host apart."""
    base = _FIRST_PORT + block % _BLOCKS * _PORTS_PER_TRD
    first, last = _data_groups(trd.group)
    return f"""\
# UM configuration of TRD {domain_id}: for the portal of the DRO and for all applications of this TRD.

# The network of the TRD; a host uses its interface that lies in it.
context default_interface {trd.interface}

# Topic resolution. Group and port make the TRD: equal on all its hosts, and different in every other TRD.
context resolver_multicast_address {trd.group}
context resolver_multicast_port {trd.port}
# Routers that a packet may pass; 1 keeps topic resolution and LBT-RM data on the local network.
context resolver_multicast_ttl 1

# What sources use; for the portal: what it forwards into this TRD with. tcp is the other choice.
source transport lbtrm

# LBT-RM: groups and port of the data, ports for NAKs, and limits in bits per second.
context transport_lbtrm_multicast_address_low {first}
context transport_lbtrm_multicast_address_high {last}
source transport_lbtrm_destination_port {base + 99}
context transport_lbtrm_source_port_low {base + 60}
context transport_lbtrm_source_port_high {base + 98}
context transport_lbtrm_data_rate_limit 10000000
context transport_lbtrm_retransmit_rate_limit 5000000

# TCP: ports of sources, and of requests and responses. Every context of a host needs one of the latter.
context transport_tcp_port_low {base + 30}
context transport_tcp_port_high {base + 59}
context request_tcp_port_low {base}
context request_tcp_port_high {base + 29}
"""


def _data_groups(resolver: str) -> tuple[str, str]:
    """Four groups beside that of topic resolution."""
    address = ipaddress.IPv4Address(resolver)
    first = address + 1 if int(address) & 0xFF <= 250 else address - 4
    return str(first), str(first + 3)


def dro_text(starter: Starter, um_paths: Sequence[str]) -> str:
    """The DRO file. `um_paths`: of each TRD the UM file, as it is to be written."""
    names = [domain_id for domain_id, _ in starter.trds]
    portals = [
        _endpoint(starter.name, domain_id, path) for (domain_id, _), path in zip(starter.trds, um_paths, strict=True)
    ]
    if starter.companion is None:
        about = f"a direct link: one DRO joins TRD {names[0]} and TRD {names[1]}"
    else:
        about = f"one end of a peer link: TRD {names[0]} and a link to a companion DRO"
        portals.append(_peer(starter.name, starter.companion))
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<!-- {about}.
     `tnwgd -v` checks it, `tnwgd -d` prints which elements may stand where. -->
<tnw-gateway version="1.0">
  <daemon>
    <!-- Names of DROs differ from each other in the whole network. -->
    <name>{escape(starter.name)}</name>
    <!-- To a file that rolls at 100 million bytes:
    <log type="file" size="100">/var/log/dro.log</log> -->
    <log type="console"/>
    <!-- Metrics and health over HTTP, for programs on this host; `*:15304` is for others too. -->
    <web-monitor>127.0.0.1:15304</web-monitor>
  </daemon>
  <portals>
{"".join(portals)}  </portals>
</tnw-gateway>
"""


def _endpoint(name: str, domain_id: int, um_path: str) -> str:
    space = "" if um_path == " ".join(um_path.split()) else ' xml:space="preserve"'
    return f"""\
    <endpoint>
      <name>{escape(name)}-TRD{domain_id}</name>
      <!-- The number of the TRD: the same in every DRO that joins it, used by no other TRD of the network. -->
      <domain-id>{domain_id}</domain-id>
      <!-- Of several ways the cheapest is taken; a way costs the sum of its portals. -->
      <cost>1</cost>
      <!-- Bytes that wait when the TRD cannot take them at once; what comes beyond that is dropped. -->
      <max-queue>1000000</max-queue>
      <!-- The UM options of the TRD. -->
      <lbm-config{space}>{escape(um_path)}</lbm-config>
      <!-- To let in nothing but some topics:
      <acl>
        <inbound>
          <ace match="accept"><pcre-pattern>^PUBLIC\\.</pcre-pattern></ace>
        </inbound>
      </acl> -->
    </endpoint>
"""


def _peer(name: str, companion: Companion) -> str:
    if companion.host:
        end = f"""\
        <!-- This side connects; the companion has <acceptor> with the same port. -->
        <initiator>
          <address>{escape(companion.host)}</address>
          <port>{companion.port}</port>
        </initiator>"""
    else:
        end = f"""\
        <!-- This side listens; the companion has <initiator> with the address of this host. -->
        <acceptor>
          <listen-port>{companion.port}</listen-port>
        </acceptor>"""
    return f"""\
    <peer>
      <name>{escape(name)}-PEER</name>
      <cost>1</cost>
      <single-tcp>
        <nodelay/>
{end}
      </single-tcp>
      <max-queue>1000000</max-queue>
      <!-- Milliseconds: how often the link is tried when it is quiet, and when it counts as broken. -->
      <gateway-keepalive idle="yes" interval="5000" timeout="15000"/>
    </peer>
"""

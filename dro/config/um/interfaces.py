"""Interface values of UM options: from their text forms to the one local IPv4 address they stand for.

The operating system is queried through a `Lookup`, so that readers and tests can supply their own table. Source: UM
configuration file rules, section 3.3 "Interfaces".
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dro.errors import ConfigError, HostError

ANY: Final = "0.0.0.0"
LOOPBACK: Final = "127.0.0.1"
_SIOCGIFCONF: Final = 0x8912
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFNETMASK: Final = 0x891B
_IFF_UP: Final = 0x1
_IFF_LOOPBACK: Final = 0x8
_IFF_MULTICAST: Final = 0x1000
_IFREQ: Final = struct.Struct("16s24s")  # name, union (64-bit Linux)
_MAX_ADDRESSES: Final = 4096


def is_of_device(address: str) -> bool:
    """Whether a local address is one that a device may lose: neither any, nor one of the loopback device."""
    return address not in ("", ANY) and not address.startswith("127.")


@dataclass(frozen=True, slots=True)
class Interface:
    """One IPv4 address of one device of this host."""

    name: str
    address: str
    prefix_length: int
    is_up: bool = True
    is_loopback: bool = False
    is_multicast: bool = True

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network((self.address, self.prefix_length), strict=False)


class Lookup(Protocol):
    """What the readers ask the operating system."""

    def interfaces(self) -> tuple[Interface, ...]:
        """All IPv4 addresses of this host in system order."""
        ...

    def host(self, name: str) -> str:
        """The IPv4 address of a host name. Raises: OSError."""
        ...


class OtherHost:
    """A host that is not this one, of which nothing is known: whatever a file says of it is taken for right."""

    def interfaces(self) -> tuple[Interface, ...]:
        return ()

    def host(self, name: str) -> str:
        return LOOPBACK


class SystemLookup:
    """The real thing: ioctl for interfaces, the system resolver for names."""

    def interfaces(self) -> tuple[Interface, ...]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            room = array("B", bytes(_MAX_ADDRESSES * _IFREQ.size))
            answer = fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iP", len(room), room.buffer_info()[0]))
            size = struct.unpack_from("i", answer)[0]
            found = []
            for at in range(0, size, _IFREQ.size):
                raw_name, union = _IFREQ.unpack_from(room, at)
                found.append(_describe(sock, raw_name, union))
            return tuple(found)

    def host(self, name: str) -> str:
        try:
            return socket.gethostbyname(name)
        except UnicodeError as e:  # the IDNA codec refuses empty and over-long labels
            raise OSError(f"{name!r} is not a host name") from e


SYSTEM: Final = SystemLookup()


def _describe(sock: socket.socket, raw_name: bytes, union: bytes) -> Interface:
    request = _IFREQ.pack(raw_name, union)
    flags = struct.unpack_from("H", fcntl.ioctl(sock, _SIOCGIFFLAGS, request), 16)[0]
    mask = fcntl.ioctl(sock, _SIOCGIFNETMASK, request)[20:24]
    return Interface(
        name=raw_name.split(b"\0", 1)[0].decode(errors="replace"),
        address=socket.inet_ntoa(union[4:8]),
        prefix_length=int.from_bytes(mask, "big").bit_count(),
        is_up=bool(flags & _IFF_UP),
        is_loopback=bool(flags & _IFF_LOOPBACK),
        is_multicast=bool(flags & _IFF_MULTICAST),
    )


def resolve_host(text: str, lookup: Lookup = SYSTEM) -> str:
    """The address that a dotted address or a host name stands for. Raises: ConfigError."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        pass
    if not text or len(text) > 253 or all(c in "0123456789." for c in text):
        raise ConfigError(
            f"{text!r} is not an IPv4 address", remedy="write four numbers from 0 to 255 with dots between"
        )
    try:
        return lookup.host(text)
    except OSError as e:
        raise HostError(f"host name {text!r} cannot be resolved", remedy="write an address, or add the name") from e


def resolve_interface(text: str, lookup: Lookup = SYSTEM) -> str:
    """The local IPv4 address meant by `a.b.c.d[/n]`, `host[/n]` or `"device"`; `0.0.0.0[/0]` stays "any".

    An exact address must be one of this host's, or lie inside the prefix of a loopback device (all of which can be
    bound on Linux). With `/n` the first interface wins whose address agrees in n bits. Raises: ConfigError
    """
    text = text.strip()
    if text.startswith('"') or text.endswith('"'):
        return _resolve_device(text, lookup)
    base, slash, bits_text = text.partition("/")
    bits = 32
    if slash:
        if not (bits_text.isascii() and bits_text.isdigit() and len(bits_text) <= 2 and int(bits_text) <= 32):
            raise ConfigError(f"{text!r}: the prefix length is not 0..32", remedy="write it as in 192.0.2.0/24")
        bits = int(bits_text)
    table = lookup.interfaces()
    if any(base == interface.name for interface in table):
        raise ConfigError(f"{base!r} is a device, not an address", remedy=f'write it in quotes: "{base}"')
    address = resolve_host(base, lookup)
    if address == ANY and bits in (0, 32):
        return ANY
    wanted = ipaddress.IPv4Address(address)
    if bits == 32:
        for interface in table:
            if address == interface.address or (interface.is_loopback and wanted in interface.network):
                return address
    else:
        network = ipaddress.IPv4Network((address, bits), strict=False)
        for interface in table:
            if ipaddress.IPv4Address(interface.address) in network:
                return interface.address
    if isinstance(lookup, OtherHost):
        return address
    have = ", ".join(f"{interface.name} {interface.address}" for interface in table[:8]) or "none"
    raise HostError(f"no interface of this host matches {text!r}", remedy=f"this host has {have}")


def _resolve_device(text: str, lookup: Lookup) -> str:
    name = text.strip('"')
    if len(text) < 3 or text != f'"{name}"':
        raise ConfigError(f"{text!r}: quotes do not match", remedy='write a device name as "eth0"')
    for interface in lookup.interfaces():
        if interface.name == name:
            return interface.address
    if isinstance(lookup, OtherHost):
        return LOOPBACK
    have = ", ".join(dict.fromkeys(interface.name for interface in lookup.interfaces())) or "none"
    raise HostError(f"device {name!r} does not exist or has no IPv4 address", remedy=f"this host has {have}")


def multicast_interface(address: str, lookup: Lookup = SYSTEM, warn: Callable[[str], None] | None = None) -> str:
    """A concrete address for multicast: `address`, or for "any" the first up, multicast-capable, non-loopback one.

    Warns when several would do. Guess: with nothing but loopback devices the first loopback address is taken, so
    that a host without a network can still be used alone; without any interface the answer stays "any".
    """
    if address != ANY:
        return address
    able = [i for i in lookup.interfaces() if i.is_up and i.is_multicast and not i.is_loopback]
    if not able:
        return next((i.address for i in lookup.interfaces() if i.is_loopback), ANY)
    if len({i.name for i in able}) > 1 and warn is not None:
        names = ", ".join(f"{i.name} ({i.address})" for i in able)
        warn(f"several interfaces can do multicast: {names}; the first is used; set default_interface to choose")
    return able[0].address

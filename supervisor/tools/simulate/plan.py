"""The network that is simulated: its DROs as configurations, and which portals are linked.

It is read from DRO XML files, whose peer links are found by address and port, or from a `topology.json` as in the
examples, which says of each portal only where it leads and what it costs; all else is as by default then.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from lxml import etree

from dro.config.dro_xml.load import load_dro, read_root
from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from dro.config.reading.problems import Problems, Warn
from dro.config.um.interfaces import ANY, OtherHost
from dro.config.um.sets import tr_ways
from dro.config.um.sources import Reading
from dro.errors import ConfigError

DROS_MAX: Final = 1000
_TEMPLATE: Final = """\
<tnw-gateway version="1.0"><daemon><name>A</name></daemon><portals>
<endpoint><name>E</name><domain-id>1</domain-id></endpoint>
<peer><name>I</name><single-tcp><initiator><address>127.0.0.1</address><port>1</port></initiator></single-tcp></peer>
<peer><name>L</name><single-tcp><acceptor><listen-port>1</listen-port></acceptor></single-tcp></peer>
</portals></tnw-gateway>"""


@dataclass(frozen=True, slots=True)
class PortalId:
    """A portal of a DRO."""

    dro: str
    portal: str

    def __str__(self) -> str:
        return f"{self.dro}/{self.portal}"


@dataclass(frozen=True, slots=True)
class PlannedLink:
    initiator: PortalId
    acceptor: PortalId


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """DROs by name."""

    dros: Mapping[str, DroConfig] = field(repr=False)
    links: tuple[PlannedLink, ...]

    @property
    def domains(self) -> list[int]:
        return sorted({e.domain_id for config in self.dros.values() for e in config.portals})

    def resolution(self) -> dict[int, list[str]]:
        """List how the portals of each TRD resolve topics; several ways without a common one do not meet in reality."""
        found: dict[int, dict[str, None]] = {domain_id: {} for domain_id in self.domains}
        for config in self.dros.values():
            for e in config.portals:
                for way in tr_ways(e.receiving.context()):
                    found[e.domain_id][way.partition(" on ")[0]] = None  # interfaces are of each host
        return {domain_id: list(ways) for domain_id, ways in found.items()}


def of_files(paths: Sequence[str], warn: Warn) -> NetworkPlan:
    """The network of these DRO XML files. Raises: ConfigError with file and line."""
    dros: dict[str, DroConfig] = {}
    for path in paths:
        config = load_dro(path, warn=warn, lookup=OtherHost(), environ={})
        name = config.daemon.name or Path(path).stem
        if name in dros:
            raise ConfigError(
                f"the DRO {name} is described by {dros[name].file} already", file=path,
                remedy="give each DRO a <name> of its own",
            )  # fmt: skip
        dros[name] = config
    return NetworkPlan(dros, tuple(_links(dros)))


def _links(dros: Mapping[str, DroConfig]) -> Iterable[PlannedLink]:
    acceptors = [(PortalId(n, p.name), p) for n, config in dros.items() for p in config.peers if not p.tcp.initiator]
    taken: dict[PortalId, PortalId] = {}
    for name, config in dros.items():
        for peer in config.peers:
            to = peer.tcp.initiator
            if to is None:
                continue
            here = PortalId(name, peer.name)
            fitting = [(place, p) for place, p in acceptors if p.tcp.listen_port == to.port and place.dro != name]
            if _is_dotted(to.address):
                fitting = [(place, p) for place, p in fitting if p.tcp.interface in (to.address, ANY)]
            if len(fitting) != 1:
                found = f"{len(fitting)} acceptors" if fitting else "no acceptor"
                raise ConfigError(
                    f"{here}: {found} in these files for {to.address}:{to.port}", file=peer.file, line=peer.line,
                    element="<initiator>", remedy="give the files of all DROs, each acceptor with a port of its own",
                )  # fmt: skip
            there, acceptor = fitting[0]
            if there in taken:
                raise ConfigError(
                    f"{taken[there]} and {here} both lead to {there}", file=acceptor.file, line=acceptor.line,
                    element="<acceptor>", remedy="an acceptor has one companion: give each a <peer> of its own",
                )  # fmt: skip
            taken[there] = here
            yield PlannedLink(here, there)


def _is_dotted(text: str) -> bool:
    try:
        return bool(IPv4Address(text))
    except ValueError:
        return False


# a topology


def of_topology(path: str) -> NetworkPlan:
    """The network of a `topology.json`. Raises: ConfigError that names the place in it."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot be read: {getattr(e, 'strerror', '') or e}", file=path, remedy="check it") from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"is no JSON: {e}", file=path, remedy="correct it, or give DRO XML files") from e
    return Topology(path).plan(document)


class Topology:
    """Reads the parsed document; `file` is named in errors."""

    def __init__(self, file: str) -> None:
        self._file = file

    def plan(self, document: object) -> NetworkPlan:
        top = self._object(document, "the document")
        dros = {}
        for nth, entry in enumerate(self._list(top, "dros", "the document")):
            dro = self._object(entry, f"dros[{nth}]")
            name = self._text(dro, "name", f"dros[{nth}]")
            if name in dros:
                raise self._error(f"two DROs have the name {name}")
            dros[name] = self._dro(name, dro)
        if not 0 < len(dros) <= DROS_MAX:
            raise self._error(f"has {len(dros)} DROs, between 1 and {DROS_MAX} are simulated")
        kinds = {PortalId(n, p.name): p.tcp.initiator is not None for n, c in dros.items() for p in c.peers}
        links = []
        for nth, entry in enumerate(self._list(top, "links", "the document") if "links" in top else []):
            link = self._object(entry, f"links[{nth}]")
            ends = [self._place(self._text(link, end, f"links[{nth}]"), kinds) for end in ("initiator", "acceptor")]
            links.append(PlannedLink(*ends))
        used = Counter(place for link in links for place in (link.initiator, link.acceptor))
        for place in kinds:
            if used[place] != 1:
                raise self._error(f"the peer portal {place} is at {used[place]} ends of links")
        return NetworkPlan(dros, tuple(links))

    def _dro(self, name: str, dro: dict[str, Any]) -> DroConfig:
        endpoints: list[EndpointConfig] = []
        peers: list[PeerConfig] = []
        portals = self._list(dro, "portals", name)
        for nth, entry in enumerate(portals):
            where = f"{name}: portals[{nth}]"
            portal = self._object(entry, where)
            named, cost = self._text(portal, "name", where), self._number(portal, "cost", where, default=1)
            if portal.get("type") == "endpoint":
                domain = self._number(portal, "domain_id", where)
                index = self._number(portal, "hotlink_index", where, default=0)
                endpoints.append(endpoint(named, domain, cost, index))
            elif portal.get("type") == "peer":
                peers.append(peer(named, cost, is_initiator=portal.get("role") == "initiator"))
            else:
                raise self._error(f"{where}: the type is neither endpoint nor peer")
        names = Counter([e.name for e in endpoints] + [p.name for p in peers])
        if twice := [n for n, times in names.items() if times > 1]:
            raise self._error(f"{name}: two portals have the name {twice[0]}")
        return dro_of(name, endpoints, peers, shares=dro.get("equal_cost_sharing") is True)

    def _place(self, text: str, known: Mapping[PortalId, bool]) -> PortalId:
        place = PortalId(*text.split("/", 1)) if "/" in text else PortalId(text, "")
        if place not in known:
            raise self._error(f"links: no peer portal {text}")
        return place

    def _error(self, what: str) -> ConfigError:
        return ConfigError(what, file=self._file, remedy="see docs/user-guide.md, section Planning a network")

    def _object(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(f"{where} is no object")
        return value

    def _list(self, of: dict[str, Any], name: str, where: str) -> list[object]:
        if not isinstance(of.get(name), list):
            raise self._error(f"{where} has no list {name!r}")
        found: list[object] = of[name]
        return found

    def _text(self, of: dict[str, Any], name: str, where: str) -> str:
        if not isinstance(of.get(name), str) or not of[name]:
            raise self._error(f"{where} has no text {name!r}")
        return str(of[name])

    def _number(self, of: dict[str, Any], name: str, where: str, default: int | None = None) -> int:
        value = of.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise self._error(f"{where} has no number {name!r}")
        return value


def _warn_nobody(_: object) -> None:
    """Ignore warnings of a file that is ours."""


@cache
def _template() -> DroConfig:
    reading = Reading(Problems(_warn_nobody), OtherHost(), {})
    return read_root(etree.fromstring(_TEMPLATE.encode()), "topology", reading)


def endpoint(name: str, domain_id: int, cost: int = 1, hotlink_index: int = 0) -> EndpointConfig:
    """Make an endpoint portal; all else is as by default."""
    made = _template().portals[0]
    return replace(made, name=name, domain_id=domain_id, cost=cost, hotlink_index=hotlink_index)


def peer(name: str, cost: int = 1, *, is_initiator: bool) -> PeerConfig:
    """Make a peer portal; all else is as by default."""
    return replace(_template().peers[not is_initiator], name=name, cost=cost)


def dro_of(
    name: str, endpoints: Iterable[EndpointConfig], peers: Iterable[PeerConfig], *, shares: bool = False
) -> DroConfig:
    """Make a DRO; all else is as by default. `shares`: with equal-cost sharing."""
    made = _template()
    daemon = replace(made.daemon, name=name, equal_cost_sharing=shares)
    return replace(made, daemon=daemon, portals=tuple(endpoints), peers=tuple(peers))


def load(paths: Sequence[str], warn: Warn) -> NetworkPlan:
    """Load a topology, if the one file has the suffix `.json`, else DRO XML files. Raises: ConfigError."""
    if len(paths) == 1 and paths[0].endswith(".json"):
        return of_topology(paths[0])
    if names := [path for path in paths if path.endswith(".json")]:
        raise ConfigError("a topology describes a whole network", file=names[0], remedy="give it alone, or XML files")
    return of_files(paths, warn)

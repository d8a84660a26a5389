"""From the path of a DRO XML file to `DroConfig`: reads the whole file and reports every problem.

Source: DRO guide, chapter 7. An error anywhere in the XML file stops the DRO; warnings do not. Guess: two endpoints
with the same resolver group, port and interface would be one TRD with two domain ids, so they are an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from lxml import etree

from dro.config.dro_xml.acl import Acl
from dro.config.dro_xml.elements import read_endpoint
from dro.config.dro_xml.elements_daemon import read_daemon
from dro.config.dro_xml.elements_peer import read_peer
from dro.config.dro_xml.model import AclConfig, DroConfig, EndpointConfig, PeerConfig
from dro.config.dro_xml.monitor import monitor_of_portals
from dro.config.dro_xml.unsupported import split_limits
from dro.config.reading.problems import OnIgnored, Problems, Warn
from dro.config.reading.reader import ElementReader
from dro.config.reading.xml_file import line_of, read_xml_file
from dro.config.um.interfaces import SYSTEM, Lookup
from dro.config.um.sets import ResolverOptions, tr_channel, uses_multicast
from dro.config.um.sources import Reading
from dro.errors import ConfigError

MAX_PORTALS: Final = 1000
"""More than any DRO can run; how many that are is the daemon's to say."""


def load_dro(
    path: str,
    *,
    warn: Warn,
    lookup: Lookup = SYSTEM,
    environ: Mapping[str, str] = os.environ,
    ignored: OnIgnored | None = None,
) -> DroConfig:
    """Read a DRO configuration file and the UM files that it names.

    `environ` is asked for the variables of the UM library. `ignored` is told of each bad setting in a UM file, which is
    a warning otherwise.
    Raises: ConfigErrors with everything that is wrong, each with file and line; ConfigError when the file cannot be
    read or is not XML.
    """
    problems = Problems(warn, ignored=ignored)
    return read_root(read_xml_file(path), path, Reading(problems, lookup, environ))


def read_root(root: etree._Element, file: str, reading: Reading) -> DroConfig:
    """`load_dro` for a document in hand; `file` names it, and is where relative names are looked up."""
    if root.tag != "tnw-gateway":
        what = f"the root element is <{str(root.tag)[:60]}>, not <tnw-gateway>"
        raise ConfigError(what, file=file, line=line_of(root, 1), remedy="is this a DRO configuration file?")
    problems = reading.problems
    reading.read_environment()
    el = ElementReader(root, "tnw-gateway", file, problems)
    el.text("version")
    daemon = read_daemon(el.child("daemon"), reading)
    portals_el = el.required_child("portals")
    endpoints: list[EndpointConfig] = []
    peers: list[PeerConfig] = []
    for child in _bounded(portals_el.children("endpoint", "peer"), portals_el):
        if child.name == "endpoint":
            endpoints.append(read_endpoint(child, reading))
        else:
            peers.append(read_peer(child, reading))
    if portals_el.is_present and not endpoints and not peers:
        portals_el.error("no portal", remedy="add at least one <endpoint>")
    elif len(endpoints) + len(peers) == 1:
        portals_el.warning("a single portal has nothing to forward to")
    portals_el.done()
    el.done()
    _check_unique(endpoints, problems)
    _check_peer_names(endpoints, peers, problems)
    for acl in (*(e.acl for e in endpoints), *(p.acl for p in peers)):
        _check_patterns(acl, problems)
    if daemon.monitor is None:
        portals: list[EndpointConfig | PeerConfig] = [*endpoints, *peers]
        portals.sort(key=lambda portal: portal.line)
        monitor = monitor_of_portals(portals, reading, is_beside_binary=daemon.daemon_monitor is not None)
        daemon = replace(daemon, monitor=monitor)
    config = DroConfig(daemon=daemon, portals=tuple(endpoints), peers=tuple(peers), file=file, tree=el.node())
    if problems.errors:  # what this release would refuse afterwards is reported with the rest
        with suppress(ConfigError):  # UM options that cannot be put together are among the errors already
            for refusal in split_limits(config)[0]:
                problems.error(refusal)
    problems.raise_if_any()
    return config


def _bounded(portals: Sequence[ElementReader], el: ElementReader) -> Sequence[ElementReader]:
    """Return the portals that are read at all: those of a hostile file would take minutes and gigabytes."""
    if len(portals) > MAX_PORTALS:
        el.error(f"{len(portals)} portals, at most {MAX_PORTALS} are read", remedy="spread them over several DROs")
    return portals[:MAX_PORTALS]


def _check_patterns(acl: AclConfig | None, problems: Problems) -> None:
    try:
        Acl.of(acl)
    except ConfigError as e:
        problems.error(e)


def _check_peer_names(endpoints: Sequence[EndpointConfig], peers: Sequence[PeerConfig], problems: Problems) -> None:
    """Check that the names of peers differ from each other and from those of endpoints."""
    first = {endpoint.name: endpoint.line for endpoint in endpoints}
    for peer in peers:
        if peer.name in first and peer.name:
            what = f"portal name {peer.name!r} is already used by the portal in line {first[peer.name]}"
            remedy = "give each portal its own name"
            problems.error(ConfigError(what, file=peer.file, line=peer.line, element="<peer>", remedy=remedy))
        first.setdefault(peer.name, peer.line)


def _check_unique(endpoints: Sequence[EndpointConfig], problems: Problems) -> None:
    """Check that no two endpoints share a name, domain id or resolver channel; the error names both places."""
    questions: tuple[tuple[str, Callable[[EndpointConfig], Hashable], str], ...] = (
        ("portal name {0!r}", lambda e: e.name or None, "give each portal its own name"),
        ("domain-id {0}", lambda e: e.domain_id or None, "a DRO has one endpoint for each TRD"),
        (
            "resolver channel {0}",
            _resolver_channel,
            "give each TRD its own resolver_multicast_address or port, or servers",
        ),
    )
    for subject, key_of, remedy in questions:
        first: dict[Hashable, EndpointConfig] = {}
        for endpoint in endpoints:
            key = key_of(endpoint)
            if key is None:
                continue
            other = first.setdefault(key, endpoint)
            if other is not endpoint:
                what = f"{subject.format(key)} is already used by the endpoint in line {other.line}"
                problems.error(
                    ConfigError(what, file=endpoint.file, line=endpoint.line, element="<endpoint>", remedy=remedy)
                )


def _resolver_channel(endpoint: EndpointConfig) -> str | None:
    o = ResolverOptions.of(endpoint.um)
    if uses_multicast(endpoint.um):
        return f"{o.incoming_address}:{o.incoming_port} on {o.interface}"
    return tr_channel(endpoint.um) or None

"""A configuration with one portal more or less, both record and tree: the configuration after `portal add` and
`portal remove`."""

from __future__ import annotations

from dataclasses import replace

from dro.config.dro_xml.model import DroConfig, EndpointConfig
from dro.config.reading.reader import Node
from dro.errors import ConfigError


def with_portal(config: DroConfig, other: DroConfig, name: str) -> DroConfig:
    """`config` and, as the last one of its kind, the portal of that name in `other`.

    Raises: ConfigError when there is none, or when it cannot be beside those of `config`.
    """
    portal = next((portal for portal in other.all_portals if portal.name == name), None)
    if portal is None:
        known = ", ".join(portal.name for portal in other.all_portals)
        raise ConfigError(f"there is no portal {name!r}", file=other.file, remedy=f"the file has {known}")
    if any(present.name == name for present in config.all_portals):
        raise ConfigError(f"the running DRO has a portal {name!r} already", file=portal.file, line=portal.line)
    domain_id = portal.domain_id if isinstance(portal, EndpointConfig) else 0
    for present in config.portals:
        if present.domain_id == domain_id:
            raise ConfigError(
                f"{name} has domain {domain_id}, and so has {present.name} of the running DRO",
                file=portal.file,
                line=portal.line,
                remedy=f"remove {present.name} first, or reload the whole file",
            )
    added = tuple(node for node in _portals(other) if _name_of(node) == name)
    tree = _with(config, (*_portals(config), *added))
    if isinstance(portal, EndpointConfig):
        return replace(config, portals=(*config.portals, portal), tree=tree)
    return replace(config, peers=(*config.peers, portal), tree=tree)


def without_portal(config: DroConfig, name: str) -> DroConfig:
    """`config` without that portal; as it is when it has none of that name."""
    endpoints = tuple(portal for portal in config.portals if portal.name != name)
    peers = tuple(portal for portal in config.peers if portal.name != name)
    nodes = tuple(node for node in _portals(config) if _name_of(node) != name)
    return replace(config, portals=endpoints, peers=peers, tree=_with(config, nodes))


def _portals(config: DroConfig) -> tuple[Node, ...]:
    if config.tree is None:
        return ()
    return (*config.tree.find("portals", "endpoint"), *config.tree.find("portals", "peer"))


def _name_of(node: Node) -> str:
    return next((child.text() for child in node.children if child.name == "name"), "")


def _with(config: DroConfig, portals: tuple[Node, ...]) -> Node | None:
    """Return the tree with these portals, and everything else as it is."""
    tree = config.tree
    if tree is None:
        return None
    children = []
    for child in tree.children:
        if child.name == "portals":
            others = tuple(node for node in child.children if node.name not in ("endpoint", "peer"))
            child = replace(child, children=(*others, *portals))
        children.append(child)
    return replace(tree, children=tuple(children))

"""A configuration with one portal more or less, both record and tree: the configuration after `portal add` and
`portal remove`."""

from __future__ import annotations

from dataclasses import replace

from dro.config.dro_xml.model import DroConfig
from dro.config.reading.reader import Node
from dro.errors import ConfigError


def with_portal(config: DroConfig, other: DroConfig, name: str) -> DroConfig:
    """`config` and, as the last of its endpoints, the one of that name in `other`.

    Raises: ConfigError when there is none, or when it cannot be beside those of `config`.
    """
    portal = next((portal for portal in other.portals if portal.name == name), None)
    if portal is None:
        known = ", ".join(portal.name for portal in other.portals)
        raise ConfigError(f"there is no portal {name!r}", file=other.file, remedy=f"the file has {known}")
    for present in config.portals:
        if present.name == name:
            raise ConfigError(f"the running DRO has a portal {name!r} already", file=portal.file, line=portal.line)
        if present.domain_id == portal.domain_id:
            raise ConfigError(
                f"{name} has domain {portal.domain_id}, and so has {present.name} of the running DRO",
                file=portal.file,
                line=portal.line,
                remedy=f"remove {present.name} first, or reload the whole file",
            )
    added = tuple(node for node in _endpoints(other) if _name_of(node) == name)
    return replace(config, portals=(*config.portals, portal), tree=_with(config, (*_endpoints(config), *added)))


def without_portal(config: DroConfig, name: str) -> DroConfig:
    """`config` without that endpoint; as it is when it has none of that name."""
    kept = tuple(portal for portal in config.portals if portal.name != name)
    nodes = tuple(node for node in _endpoints(config) if _name_of(node) != name)
    return replace(config, portals=kept, tree=_with(config, nodes))


def _endpoints(config: DroConfig) -> tuple[Node, ...]:
    return tuple(config.tree.find("portals", "endpoint")) if config.tree is not None else ()


def _name_of(node: Node) -> str:
    return next((child.text() for child in node.children if child.name == "name"), "")


def _with(config: DroConfig, endpoints: tuple[Node, ...]) -> Node | None:
    """The tree with these endpoints, and everything else as it is."""
    tree = config.tree
    if tree is None:
        return None
    children = []
    for child in tree.children:
        if child.name == "portals":
            others = tuple(node for node in child.children if node.name != "endpoint")
            child = replace(child, children=(*others, *endpoints))
        children.append(child)
    return replace(tree, children=tuple(children))

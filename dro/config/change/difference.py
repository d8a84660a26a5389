"""Differences in meaning between two configurations of a DRO: each change with its element, both values and class.

The records of `model.py` decide whether anything differs; the trees give the element, the attribute and their place.
Comments, white space, order of attributes and portals, explicit defaults, another file with the same UM options: no
change. Pure. Called by the planner of reloads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from dro.config.change.acl_difference import acl_changes
from dro.config.change.element_difference import Change, element_changes
from dro.config.change.reload_class import ReloadClass
from dro.config.change.um_difference import option_changes, um_changes
from dro.config.dro_xml.model import (
    DaemonConfig,
    DroConfig,
    EndpointConfig,
    PeerConfig,
    PublishingConfig,
    statistics_on,
)
from dro.config.reading.reader import Node
from dro.config.reading.schema import elements, fields_of
from dro.config.um.used import used_options

Portal = EndpointConfig | PeerConfig

_UM_FILES: Final = frozenset({"lbm-config", "xml-config"})  # what their options come to is compared, not their names


def differences(old: DroConfig, new: DroConfig) -> tuple[Change, ...]:
    """All changes from one configuration to another: those of the daemon first, then portals in the new order."""
    return (*_daemon_changes(old, new), *_portals_changes(old, new))


def portals_of(config: DroConfig) -> dict[str, Portal]:
    """All portals by name, in file order."""
    return {portal.name: portal for portal in sorted(config.all_portals, key=lambda portal: portal.line)}


# --- the daemon ----------------------------------------------------------------------------------------------------


def _daemon_changes(old: DroConfig, new: DroConfig) -> Iterator[Change]:
    before, after = _plain_daemon(old.daemon), _plain_daemon(new.daemon)
    nodes = _daemon_node(old), _daemon_node(new)
    has_process = statistics_on(old), statistics_on(new)
    for element in elements()["daemon"].children:
        if element in ("monitor", "daemon-monitor"):
            for change in _statistics(element, (before, after), nodes):
                waits = change.reload is ReloadClass.LIVE and has_process[0] != has_process[1]
                yield replace(change, reload=ReloadClass.DAEMON) if waits else change
            continue
        for change in element_changes(element, (before, after), nodes, ("daemon",), ""):
            yield replace(change, reload=ReloadClass.NONE) if element in _UM_FILES else change


def _statistics(element: str, daemons: tuple[DaemonConfig, DaemonConfig], nodes: tuple[Node, Node]) -> Iterator[Change]:
    """Yield changes of an element that has UM options, whatever they come from."""
    [field] = fields_of(element)
    old, new = (getattr(daemon, field) for daemon in daemons)
    if old is not None and new is not None:
        daemons = daemons[0], replace(daemons[1], **{field: replace(new, um=old.um)})
    yield from element_changes(element, daemons, nodes, ("daemon",), "")
    for one in option_changes(old.um, new.um) if old is not None and new is not None else ():
        if not (one.origin or one.was):  # follows from what else changed
            continue
        cls = ReloadClass.LIVE if tuple(one.subject.split()) in used_options() else ReloadClass.NONE
        yield Change(f"daemon/{element}/{one.subject}", "", one.old, one.new, cls, one.origin, one.was)


def _plain_daemon(daemon: DaemonConfig) -> DaemonConfig:
    """Leave out what makes no difference: a monitor that is off, the order of groups."""
    monitor = daemon.monitor if daemon.monitor is not None and daemon.monitor.interval_s else None
    stats = daemon.daemon_monitor
    if stats is not None:
        stats = replace(stats, publishing=_plain_publishing(stats.publishing) or PublishingConfig())
    return replace(daemon, monitor=monitor, daemon_monitor=stats)


def _plain_publishing(publishing: PublishingConfig | None) -> PublishingConfig | None:
    return None if publishing is None else PublishingConfig(tuple(sorted(publishing.intervals_s)))


def _daemon_node(config: DroConfig) -> Node:
    """Build the node of `<daemon>`, with what stands there by mistake in `<daemon-monitor>`."""
    daemon = _tree(config).find("daemon")[0]
    strays = ("publishing-interval", "remote-snapshot-request", "remote-config-changes-request")
    present = {node.name: node for node in daemon.children if node.name in strays and node.is_present}
    if not present:
        return daemon
    children = []
    for child in daemon.children:
        if child.name == "daemon-monitor":
            inner = tuple(node for node in child.children if node.name not in present)
            children.append(replace(child, is_present=True, children=(*inner, *present.values())))
        elif child.name not in present:
            children.append(child)
    return replace(daemon, children=tuple(children))


# --- portals -------------------------------------------------------------------------------------------------------


def _portals_changes(old: DroConfig, new: DroConfig) -> Iterator[Change]:
    before, after = portals_of(old), portals_of(new)
    for name, portal in before.items():
        if name not in after or type(after[name]) is not type(portal):
            path = _portal_path(portal)
            yield Change(path, name, _summary(portal), None, ReloadClass.PORTAL, "", f"{portal.file}:{portal.line}")
    for name, portal in after.items():
        was = before.get(name)
        if was is not None and type(was) is type(portal):
            yield from _portal_changes(was, portal, (old, new))
        else:
            path = _portal_path(portal)
            yield Change(path, name, None, _summary(portal), ReloadClass.PORTAL, f"{portal.file}:{portal.line}")


def _kind(portal: Portal) -> str:
    return "endpoint" if isinstance(portal, EndpointConfig) else "peer"


def _portal_path(portal: Portal) -> str:
    return f"{_kind(portal)}[{portal.name}]"


def _summary(portal: Portal) -> str:
    domain = f" in domain {portal.domain_id}" if isinstance(portal, EndpointConfig) else ""
    return f"{_kind(portal)}{domain}, cost {portal.cost}"


def _portal_changes(old: Portal, new: Portal, configs: tuple[DroConfig, DroConfig]) -> Iterator[Change]:
    path = (_portal_path(new),)
    um = [
        Change(
            f"{path[0]}/{one.where + ': ' if one.where else ''}{one.subject}", new.name, one.old, one.new,
            ReloadClass.PORTAL if one.has_effect else ReloadClass.NONE, one.origin, one.was,
        )
        for one in um_changes((old.sending, old.receiving), (new.sending, new.receiving))
    ]  # fmt: skip
    nodes = _portal_node(configs[0], old), _portal_node(configs[1], new)
    plain = _plain_portal(old), _plain_portal(new)
    for element in elements()[_kind(new)].children:
        if element == "acl":
            yield from acl_changes(plain[0].acl, plain[1].acl, path[0], new.name)
            continue
        for change in element_changes(element, plain, nodes, path, new.name):
            yield replace(change, reload=ReloadClass.NONE) if element in _UM_FILES else change
    yield from um


def _plain_portal(portal: Portal) -> Portal:
    acl = portal.acl
    if acl is not None and acl.inbound is None and acl.outbound is None:
        acl = None
    return replace(portal, acl=acl, publishing=_plain_publishing(portal.publishing))


def _portal_node(config: DroConfig, portal: Portal) -> Node:
    """Build the node of a portal, with `<udp>` beside `<single-tcp>`."""
    found = _tree(config).find("portals", _kind(portal))
    node = next(n for n in found if any(c.text() == portal.name for c in n.children if c.name == "name"))
    for single in (n for n in node.children if n.name == "single-tcp"):
        inner = [n for n in single.children if n.name == "udp" and n.is_present]
        if inner:
            bare = replace(single, children=tuple(n for n in single.children if n.name != "udp"))
            others = tuple(bare if n is single else n for n in node.children if n.name != "udp")
            return replace(node, children=(*others, inner[0]))
    return node


def _tree(config: DroConfig) -> Node:
    assert config.tree is not None, "a configuration that was loaded has its tree"
    return config.tree


def keep_daemon(old: DroConfig, new: DroConfig, names: frozenset[str]) -> DroConfig:
    """`new`, with these elements of `<daemon>` as they are in `old`."""
    if not names:
        return new
    values = {field: getattr(old.daemon, field) for name in names for field in fields_of(name)}
    kept = [node for node in _tree(old).find("daemon")[0].children if node.name in names]
    tree = _tree(new)
    children = []
    for child in tree.children:
        if child.name == "daemon":
            others = tuple(node for node in child.children if node.name not in names)
            child = replace(child, children=(*others, *kept))
        children.append(child)
    return replace(new, daemon=replace(new.daemon, **values), tree=replace(tree, children=tuple(children)))


def with_portals(config: DroConfig, names: Collection[str]) -> DroConfig:
    """`config` with these portals only."""
    return replace(
        config,
        portals=tuple(portal for portal in config.portals if portal.name in names),
        peers=tuple(peer for peer in config.peers if peer.name in names),
    )

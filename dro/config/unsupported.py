"""What a valid configuration asks for and this release cannot do yet: one table, asked before a DRO starts.

An error stops the start, since the DRO would do something else than it was told; a warning names what does nothing.
Called by the daemon. A row goes when its feature comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from dro.config.model import DroConfig, EndpointConfig
from dro.config.options import DEFAULTS, Parsed, UmOptions
from dro.config.reader import Node
from dro.config.schema import elements
from dro.config.um_layers import RECEIVER, SOURCE, WILDCARD_RECEIVER, XmlLayer
from dro.config.um_sets import ResolverOptions
from dro.config.um_used import unused
from dro.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A thing that has no effect. The text reads like that of a ConfigError."""

    what: str
    file: str
    line: int
    element: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.element}: {self.what}"


def _always(node: Node) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Row:
    """`path` leads from the root to the element; `applies` decides for elements that are there."""

    path: tuple[str, ...]
    is_error: bool
    what: str
    remedy: str = ""
    applies: Callable[[Node], bool] = _always


SOME: Final = "some values"
_NOT_YET: Final = "not supported yet"
_IGNORED: Final = "not supported yet, ignored"
_NO_MAPS: Final = "names are kept without tables of a fixed size, ignored"


def _is_hotlink(node: Node) -> bool:
    return node.text() not in ("", "0")


def _is_on(node: Node) -> bool:
    return node.text() == "1"


def _exchanges_routes(node: Node) -> bool:
    return any(name in _EXCHANGE and value.line for name, value in node.attributes)


_EXCHANGE: Final = ("propagation-interval", "timeout", "max-hop-count")
_TRANSPORT: Final = ("source", "transport")
_DAEMON: Final = ("daemon",)
_ENDPOINT: Final = ("portals", "endpoint")
_TABLE: Final = (
    _Row((*_DAEMON, "lbm-license-file"), False, "no licence is needed, ignored"),
    _Row((*_DAEMON, "topicmap"), False, _NO_MAPS),
    _Row((*_DAEMON, "patternmap"), False, _NO_MAPS),
    _Row((*_DAEMON, "monitor"), False, _IGNORED),
    _Row((*_DAEMON, "web-monitor"), False, _IGNORED),
    _Row((*_DAEMON, "daemon-monitor"), False, _IGNORED),
    _Row((*_DAEMON, "publishing-interval"), False, _IGNORED),
    _Row((*_DAEMON, "remote-snapshot-request"), False, _IGNORED),
    _Row((*_DAEMON, "remote-config-changes-request"), False, _IGNORED),
    _Row((*_DAEMON, "route-info"), False, f"{', '.join(_EXCHANGE)}: not supported yet, ignored", "", _exchanges_routes),
    _Row((*_ENDPOINT, "smart-batch"), False, _IGNORED, "", _is_on),
    _Row((*_ENDPOINT, "context-query"), False, _IGNORED),
    _Row((*_ENDPOINT, "hotlink-index"), True, "hotlinks are not supported yet", "remove it or write 0", _is_hotlink),
    _Row((*_ENDPOINT, "publishing-interval"), False, _IGNORED),
    _Row(("portals", "peer"), True, "peer portals are not supported yet", "remove it"),
)


def limit_of(element: str) -> str:
    """What the table says about elements of that name, or about what is around them; empty if nothing."""
    rows = {row.path[-1]: row for row in reversed(_TABLE)}
    name, parents = element, elements()[element].parents
    while name not in rows:
        if not parents:
            return ""
        name = parents[0]
        parents = elements()[name].parents
    row = rows[name]
    some = "" if row.applies is _always else f"{SOME} "
    return f"{some}{'refused' if row.is_error else 'warned about'}: {row.what}"


def _by_topic(endpoint: EndpointConfig) -> UmOptions:
    """Every option that the XML layers set for some topics or patterns only, with one of its values."""
    made = DEFAULTS
    for options, scopes in ((endpoint.sending, (SOURCE,)), (endpoint.receiving, (RECEIVER, WILDCARD_RECEIVER))):
        for layer in options.layers:
            if isinstance(layer, XmlLayer):
                settings = [s for scope in scopes for part in layer.parts(scope) for s in part.settings]
                made = made.with_parsed([Parsed(s.option, s.value, s.origin) for s in settings if s.value is not None])
    return made


def _transports(endpoint: EndpointConfig) -> Iterator[ConfigError]:
    """Transports that proxy sources cannot use yet; those that a DRO replaces by TCP are told elsewhere."""
    context = endpoint.sending.context()
    asked = {context.get_str(*_TRANSPORT): context.origin(_TRANSPORT)}
    for layer in endpoint.sending.layers:
        if isinstance(layer, XmlLayer):
            for part in layer.parts(SOURCE):
                asked |= {str(s.value): s.origin for s in part.settings if s.option.key == _TRANSPORT and part.matcher}
    for transport, origin in asked.items():
        if transport not in ("tcp", "lbtrm", "lbtsmx", "lbtrdma"):
            what = f"source transport {transport} is not supported yet ({origin})"
            yield ConfigError(
                what, file=endpoint.file, line=endpoint.line, element="<endpoint>", remedy="use tcp or lbtrm"
            )


def _two_trds(endpoint: EndpointConfig) -> ConfigError | None:
    """The two contexts of a portal belong into one TRD, whatever a UM XML file gives to each."""
    channels = []
    for options in (endpoint.sending.context(), endpoint.receiving.context()):
        o = ResolverOptions.of(options)
        channels.append(
            o.unicast_daemons or (f"{o.incoming_address}:{o.incoming_port}, {o.outgoing_address}:{o.outgoing_port}",)
        )
    if channels[0] == channels[1]:
        return None
    what = f"its contexts are on two topic resolution channels: {', '.join(channels[0])} and {', '.join(channels[1])}"
    remedy = "give both contexts the same resolver_multicast_address and port"
    return ConfigError(what, file=endpoint.file, line=endpoint.line, element="<endpoint>", remedy=remedy)


def _idle_names(config: DroConfig) -> Iterator[ConfigWarning]:
    """Names of contexts where no UM XML file is read: there is nothing that they could select."""
    for endpoint, node in zip(config.portals, config.tree.find(*_ENDPOINT) if config.tree else (), strict=False):
        for name, options in (("source-context-name", endpoint.sending), ("receiver-context-name", endpoint.receiving)):
            is_read = any(isinstance(layer, XmlLayer) for layer in options.layers)
            for child in () if is_read else node.find(name):
                if child.is_present:
                    yield ConfigWarning(
                        "has no effect without a UM XML file, whose contexts it selects",
                        child.file,
                        child.line,
                        f"<{name}>",
                    )


def unsupported(config: DroConfig) -> list[ConfigError | ConfigWarning]:
    """Everything in a loaded configuration that this release cannot do, each with file and line, in file order."""
    if config.tree is None:
        return []
    found: list[ConfigError | ConfigWarning] = []
    for row in _TABLE:
        for node in config.tree.find(*row.path):
            if node.is_present and row.applies(node):
                shown = f"<{node.name}>"
                if row.is_error:
                    error = ConfigError(row.what, file=node.file, line=node.line, element=shown, remedy=row.remedy)
                    found.append(error)
                else:
                    found.append(ConfigWarning(row.what, node.file, node.line, shown))
    found += _idle_names(config)
    for endpoint in config.portals:
        found += _transports(endpoint)
        if (divided := _two_trds(endpoint)) is not None:
            found.append(divided)
        idle = unused(endpoint.um.merged(_by_topic(endpoint)))
        if idle:
            told = f"UM options without effect yet: {', '.join(idle)}"
            found.append(ConfigWarning(told, endpoint.file, endpoint.line, "<endpoint>"))
    return sorted(found, key=lambda one: (one.file != config.file, one.file, one.line))

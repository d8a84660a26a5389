"""Features that a valid configuration requests and this release lacks: one table, checked before a DRO starts.

An error prevents the start, since the DRO would not do what is configured; a warning names what has no effect. Called
by the daemon. A row is removed when its feature is implemented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from dro.config.dro_xml.model import DroConfig, EndpointConfig
from dro.config.reading.reader import Node
from dro.config.reading.schema import elements
from dro.config.um.honoured import TRANSPORT, check_transport, refusals, without_effect
from dro.config.um.layers import RECEIVER, SOURCE, WILDCARD_RECEIVER, XmlLayer
from dro.config.um.options import DEFAULTS, Parsed, UmOptions
from dro.config.um.sets import tr_channel
from dro.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A thing that has no effect. The text reads like that of a ConfigError."""

    what: str
    file: str
    line: int
    element: str
    is_information: bool = False  # about features outside this product: nobody has to act

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.element}: {self.what}"


def _always(node: Node) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Row:
    """One element without effect: `path` leads from the root to it; `applies` decides for those that are there."""

    path: tuple[str, ...]
    what: str
    applies: Callable[[Node], bool] = _always


SOME: Final = "some values"
_NO_MAPS: Final = "names are kept without tables of a fixed size, ignored"


_REPLACED: Final = ("lbtsmx", "lbtrdma")  # by TCP, which is reported elsewhere
_DAEMON: Final = ("daemon",)
_ENDPOINT: Final = ("portals", "endpoint")
_PEER: Final = ("portals", "peer")
_TABLE: Final = (
    _Row((*_DAEMON, "lbm-license-file"), "no licence is needed, ignored"),
    _Row((*_DAEMON, "topicmap"), _NO_MAPS),
    _Row((*_DAEMON, "patternmap"), _NO_MAPS),
    _Row((*_PEER, "udp", "coalesce-threshold"), "messages are always copied into one datagram, ignored"),
)


def limit_of(element: str) -> str:
    """Return what the table says about elements of that name, or about what is around them; empty if nothing."""
    rows = {row.path[-1]: row for row in reversed(_TABLE)}
    name, parents = element, elements()[element].parents
    while name not in rows:
        if not parents:
            return ""
        name = parents[0]
        parents = elements()[name].parents
    row = rows[name]
    some = "" if row.applies is _always else f"{SOME} "
    return f"{some}warned about: {row.what}"


def _by_topic(endpoint: EndpointConfig) -> UmOptions:
    """Collect every option that the XML layers set for some topics or patterns only, with one of its values."""
    made = DEFAULTS
    for options, scopes in ((endpoint.sending, (SOURCE,)), (endpoint.receiving, (RECEIVER, WILDCARD_RECEIVER))):
        for layer in options.layers:
            if isinstance(layer, XmlLayer):
                settings = [s for scope in scopes for part in layer.parts(scope) for s in part.settings]
                made = made.with_parsed([Parsed(s.option, s.value, s.origin) for s in settings if s.value is not None])
    return made


def _of_statistics(config: DroConfig) -> list[UmOptions]:
    """List what was set of the options that statistics leave by."""
    found = (one.um for one in (config.daemon.monitor, config.daemon.daemon_monitor) if one is not None)
    return [UmOptions({key: value for key, value in um.explicit.items() if um.origin(key)}, um.origins) for um in found]


def _all_options(endpoint: EndpointConfig) -> tuple[UmOptions, ...]:
    return endpoint.sending.context(), endpoint.receiving.context(), _by_topic(endpoint)


def _refused_options(endpoint: EndpointConfig) -> Iterator[ConfigError]:
    """Yield what stops every program, and transports that proxy sources cannot use yet."""
    for options in _all_options(endpoint):
        yield from refusals(options)
    asked = [endpoint.sending.context()]
    for layer in endpoint.sending.layers:
        if isinstance(layer, XmlLayer):
            settings = (s for part in layer.parts(SOURCE) if part.matcher for s in part.settings)
            asked += [DEFAULTS.with_parsed([Parsed(s.option, s.value, s.origin)])
                      for s in settings if s.option.key == TRANSPORT and s.value not in (None, *_REPLACED)]  # fmt: skip
    yield from _transport_errors(asked)


def _transport_errors(asked: Iterable[UmOptions]) -> Iterator[ConfigError]:
    for options in asked:
        try:
            check_transport(options)
        except ConfigError as e:
            yield e


def _two_trds(endpoint: EndpointConfig) -> ConfigError | None:
    """Check that both contexts of a portal are in one TRD, whatever a UM XML file gives to each; None if they are."""
    channels = [tr_channel(options) for options in (endpoint.sending.context(), endpoint.receiving.context())]
    if channels[0] == channels[1]:
        return None
    what = f"its contexts are on two topic resolution channels: {channels[0]} and {channels[1]}"
    remedy = "give both contexts the same resolver_multicast_address, port and interface, daemons and SRSes"
    return ConfigError(what, file=endpoint.file, line=endpoint.line, element="<endpoint>", remedy=remedy)


def _idle_names(config: DroConfig) -> Iterator[ConfigWarning]:
    """Yield a warning for names of contexts where no UM XML file is read: there is nothing to select."""
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


def _idle_intervals(config: DroConfig) -> Iterator[ConfigWarning]:
    """Yield a warning for intervals of portals where no daemon statistics are sent."""
    if config.tree is None or config.daemon.daemon_monitor is not None:
        return
    for kind in ("endpoint", "peer"):
        for node in config.tree.find("portals", kind, "publishing-interval"):
            if node.is_present:
                what = "has no effect without <daemon-monitor>"
                yield ConfigWarning(what, node.file, node.line, "<publishing-interval>")


def _unread_keys(config: DroConfig) -> Iterator[ConfigError]:
    given = config.daemon.route_authentication
    if given is None or not given.unread or config.tree is None:
        return
    [node] = config.tree.find("daemon", "extensions", "route-authentication", "key-file")
    what, remedy = f"{given.key_file}: {given.unread}", "check the name, and that the user of the DRO may read it"
    yield ConfigError(what, file=node.file, line=node.line, element="<key-file>", remedy=remedy)


def _idle_options(config: DroConfig) -> Iterator[ConfigWarning]:
    """Yield all UM options without effect in two lines, however many portals share their files."""
    given = (*chain.from_iterable(map(_all_options, config.portals)), *_of_statistics(config))
    to_come, outside = without_effect(*given, in_portals=True)
    for node in config.tree.find("portals") if config.tree is not None else ():
        for what, is_information in ((to_come, False), (outside, True)):
            if what:
                yield ConfigWarning(what, node.file, node.line, "<portals>", is_information)


def unsupported(config: DroConfig) -> list[ConfigError | ConfigWarning]:
    """Everything in a loaded configuration that this release cannot do, each with file and line, in file order."""
    if config.tree is None:
        return []
    found: list[ConfigError | ConfigWarning] = []
    for row in _TABLE:
        for node in config.tree.find(*row.path):
            if node.is_present and row.applies(node):
                shown = f"<{node.name}>"
                found.append(ConfigWarning(row.what, node.file, node.line, shown))
    found += _unread_keys(config)
    found += _idle_names(config)
    found += _idle_intervals(config)
    found += [error for options in _of_statistics(config) for error in refusals(options)]
    found += _transport_errors(_of_statistics(config))
    for endpoint in config.portals:
        found += {str(error): error for error in _refused_options(endpoint)}.values()
        if (divided := _two_trds(endpoint)) is not None:
            found.append(divided)
    found += _idle_options(config)
    return sorted(found, key=lambda one: (one.file != config.file, one.file, one.line))


def split_limits(config: DroConfig) -> tuple[list[ConfigError], list[ConfigWarning]]:
    """`unsupported`: what makes this release refuse the configuration, and what only has no effect."""
    limits = unsupported(config)
    refusals = [limit for limit in limits if not isinstance(limit, ConfigWarning)]
    return refusals, [limit for limit in limits if isinstance(limit, ConfigWarning)]

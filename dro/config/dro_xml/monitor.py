"""Reads what publishes statistics over UM: `<monitor>`, or the UM options and variables that stand for it, and
`<daemon-monitor>`.

Attributes of `<monitor>` that are absent come from the environment. Without the element the first portal whose UM
options set an interval decides. The options of the statistics context come about in layers: those that differ from
other contexts, `<xml-config>`, the file of `config=`, pairs `scope|name=value`, and what always holds.

Source: DRO guide, 5.2, 5.3 and 7.3, elements of these names; UM operations guide, monitoring. Guess: the context of
`<daemon-monitor>` is one without a name in a UM XML file, unless its options name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from string import hexdigits
from typing import Final

from dro.config.dro_xml.elements import read_publishing
from dro.config.dro_xml.model import (
    DaemonMonitorConfig,
    EndpointConfig,
    MonitorConfig,
    PeerConfig,
    PublishingConfig,
    UdpConfig,
)
from dro.config.reading.problems import Problems
from dro.config.reading.reader import ElementReader
from dro.config.reading.record import read_record
from dro.config.reading.schema import UINT32_MAX
from dro.config.um.honoured import empty_ranges, names_protection
from dro.config.um.interfaces import ANY, Lookup, resolve_interface
from dro.config.um.layers import CONTEXT, SOURCE, Asked, ContextOptions, XmlLayer, find_application
from dro.config.um.options import UmOptions, find_option, place_of
from dro.config.um.sources import Reading, ValuePlace, find_um_file, read_portal_um
from dro.config.um.text_file import is_xml, parse_um_lines, read_text
from dro.config.um.used import MONITORING, STATISTICS_CONTEXT, STATISTICS_TOPIC
from dro.config.um.xml_document import parse_um_xml
from dro.errors import ConfigError

IN_VALUES: Final = f"{hexdigits}\"'"
MAX_TOPIC_BYTES: Final = 255
_SCOPES: Final = (CONTEXT, SOURCE)
_IDLE_SCOPES: Final = ("receiver", "event_queue")
"""Accepted in pairs; a sender has none of these."""
_BELOW: Final = (
    (CONTEXT, "context_name", STATISTICS_CONTEXT),
    (CONTEXT, "request_tcp_bind_request_port", 0),
    (SOURCE, "transport_lbtrm_transmission_window_size", 500_000),
    (SOURCE, "transport_lbtru_transmission_window_size", 500_000),
)
_ALWAYS: Final = (
    (CONTEXT, "operational_mode", "embedded"),
    (CONTEXT, "monitor_interval", 0),
    (CONTEXT, "mim_incoming_address", ANY),
    (CONTEXT, "resolver_cache", 0),
)
_OPTIONS: Final = tuple(name for _, name in MONITORING)
"""In the order of the attributes of `<monitor>`."""
_REQUESTS: Final = ("remote-snapshot-request", "remote-config-changes-request")
_UDP: Final = {"address": "", "port": "2933", "interface": ANY, "mcgroup": "", "bcaddress": "", "ttl": "16"}
_UDP_TARGETS: Final = ("mcgroup", "bcaddress", "address")
"""In the order in which they count."""
_IGNORED: Final = "is not known, ignored"


@dataclass(frozen=True, slots=True)
class _Option:
    """A UM option, as the place of what is wrong with its value."""

    options: UmOptions
    name: str
    problems: Problems

    @property
    def file(self) -> str:
        return place_of(self.options.origin((CONTEXT, self.name)))[0]

    @property
    def line(self) -> int:
        return place_of(self.options.origin((CONTEXT, self.name)))[1]

    def error(self, what: str, *, remedy: str = "") -> None:
        self.problems.error(self.options.error((CONTEXT, self.name), what, remedy))

    def warning(self, what: str) -> None:
        self.problems.warning(str(self.options.error((CONTEXT, self.name), what)))

    def value(self) -> str:
        return str(self.options.value(CONTEXT, self.name))


_Given = Mapping[str, tuple[str, ValuePlace]]
"""Values by the name of the UM option, with the places that they come from."""


def read_monitor(el: ElementReader, reading: Reading, *, is_beside_binary: bool) -> MonitorConfig | None:
    """`<monitor>`; None when absent. `is_beside_binary`: there is a `<daemon-monitor>`."""
    if not el.is_present:
        return None
    transport, form = el.child("transport-module"), el.child("format-module")
    rows = ((el, "interval"), (transport, "module"), (transport, "options"), (form, "module"), (form, "options"))
    given: dict[str, tuple[str, ValuePlace]] = {}
    for name, (at, attribute) in zip(_OPTIONS, rows, strict=True):
        given[name] = (at.text(attribute), at)
        variable = _Option(reading.base, name, reading.problems)
        if not at.gives(attribute) and reading.base.is_set(CONTEXT, name):
            given[name] = (variable.value(), variable)
            at.effective(variable.value(), attribute)
    for at in (transport, form, el):
        at.done()
    return _monitor(given, el, reading, is_beside_binary=is_beside_binary)


def monitor_of_portals(
    portals: Iterable[EndpointConfig | PeerConfig], reading: Reading, *, is_beside_binary: bool
) -> MonitorConfig | None:
    """Return what the UM options of the portals say, for a file without `<monitor>`; None if they set no interval."""
    first: tuple[str, list[str], _Given] | None = None
    for portal in portals:
        try:
            both = portal.sending.context(), portal.receiving.context()
        except ConfigError:  # among the errors already
            continue
        for options in both:
            given = {name: _Option(options, name, reading.problems) for name in _OPTIONS}
            values = [one.value() for one in given.values()]
            if not options.get_int(CONTEXT, "monitor_interval"):
                continue
            if first is None:
                first = portal.name, values, {name: (one.value(), one) for name, one in given.items()}
            elif values != first[1]:
                other = next(one for one, value in zip(given.values(), first[1], strict=True) if one.value() != value)
                other.warning(f"{other.value()!r} of {portal.name} has no effect, portal {first[0]} says otherwise")
    if first is None:
        return None
    return _monitor(first[2], first[2]["monitor_interval"][1], reading, is_beside_binary=is_beside_binary)


def _monitor(given: _Given, place: ValuePlace, reading: Reading, *, is_beside_binary: bool) -> MonitorConfig:
    interval_s, transport, form = (given[f"monitor_{name}"][0] for name in ("interval", "transport", "format"))
    options, at = given["monitor_transport_opts"]
    separator = _separator(*given["monitor_format_opts"], form)
    topic, um, udp, is_held = STATISTICS_TOPIC, UmOptions(), None, form == "pb" and is_beside_binary
    if int(interval_s) and transport == "udp":
        udp = _udp(options, at, reading.lookup)
    elif int(interval_s):
        topic, um = _lbm(options, at, reading)
    if int(interval_s) and is_held:
        place.warning("pb statistics do not start beside <daemon-monitor> (Gwd-10995-11); remove one of both")
    return MonitorConfig(min(int(interval_s), UINT32_MAX), transport, topic, um, udp, form, separator, is_held)


def _parts(text: str, place: ValuePlace) -> Iterator[tuple[str, str]]:
    """Split an option string, joined by `;`, into its parts `name=value`."""
    for part in text.split(";"):
        name, equals, value = part.partition("=")
        if equals and name.strip():
            yield name.strip().lower(), value
        elif part.strip():
            place.warning(f"options: {part.strip()[:40]!r} is not name=value, ignored")


def _separator(text: str, place: ValuePlace, form: str) -> str:
    separator = ","
    for name, value in _parts(text, place):
        if name != "separator" or form != "csv":
            place.warning(f"options: {name[:40]!r} {_IGNORED}")
        elif len(value) != 1 or not value.isascii() or value in IN_VALUES:
            what = f"options: separator {value[:40]!r} is not one ASCII character that no value has"
            place.error(what, remedy="write one, as in ,")
        else:
            separator = value
    return separator


def _lbm(text: str, place: ValuePlace, reading: Reading) -> tuple[str, UmOptions]:
    """Return topic and options of the source that a transport module `lbm` has."""
    topic, file, pairs = STATISTICS_TOPIC, "", []
    for name, value in _parts(text, place):
        scope, bar, option = name.partition("|")
        if name == "config":
            file = value.strip()
        elif name == "topic":
            topic = value
        elif not bar:
            place.warning(f"options: {name[:40]!r} {_IGNORED}")
        elif scope in _SCOPES:
            pairs.append((scope, option, value))
        elif scope in _IDLE_SCOPES:
            place.warning(f"options: {name[:80]!r} has no effect, a sender has no such object")
        else:
            place.error(f"options: {scope[:40]!r} is not a scope of a sender", remedy="write context or source")
    check_topic(topic, place)
    options = _with(reading.base, _BELOW)
    try:
        if reading.document is not None and reading.application is not None:
            layer = XmlLayer(reading.document, reading.application, STATISTICS_CONTEXT)
            options = ContextOptions(options, (layer,)).source(topic)
        if file:
            options = _over(options, file, topic, place, reading)
    except ConfigError as e:
        reading.problems.error(e)
    for scope, name, value in pairs:
        options = _with_pair(options, (scope, name), value, place, reading.lookup)
    options = _of_publisher(_with(options, _ALWAYS))
    for error in empty_ranges(options):
        reading.problems.error(error)
    return topic, options


def check_topic(topic: str, place: ValuePlace) -> None:
    """Report a topic that no source can have."""
    size = len(topic.encode(errors="replace"))
    if not 1 <= size <= MAX_TOPIC_BYTES:
        place.error(f"topic of {size} bytes", remedy=f"write one of 1 to {MAX_TOPIC_BYTES}")


def _over(options: UmOptions, file: str, topic: str, place: ValuePlace, reading: Reading) -> UmOptions:
    """Put the file of `config=`, of either kind, over the options; bad lines are errors. Raises: ConfigError."""
    path = find_um_file(file, place.file, place)
    strict = Problems(reading.problems.warning, strict=True)
    text = read_text(path)
    if isinstance(place, ElementReader):
        parts = (
            f"{name}={path if name == 'config' else value}" for name, value in _parts(place.text("options"), place)
        )
        place.effective(";".join(parts), "options")
    if is_xml(text):
        document = parse_um_xml(text.encode(), path, strict, reading.lookup)
        application = find_application(document, reading.daemon_name, reading.environ)
        options = XmlLayer(document, application, STATISTICS_CONTEXT).apply(options, Asked(SOURCE, topic))
    else:
        options = options.merged(parse_um_lines(text, path, strict, reading.lookup))
    for error in strict.errors:
        reading.problems.error(error)
    return options


def _with_pair(options: UmOptions, key: tuple[str, str], value: str, place: ValuePlace, lookup: Lookup) -> UmOptions:
    if find_option(*key) is None:
        shown = f"options: {'|'.join(key)[:80]!r}"
        if names_protection(key[1]):
            place.error(f"{shown} is no UM option", remedy="write the scope that it has")
        else:
            place.warning(f"{shown} {_IGNORED}")
        return options
    try:
        return options.with_(*key, value, lookup=lookup, origin=f"{place.file}:{place.line}")
    except ConfigError as e:
        place.error(f"options: {'|'.join(key)}: {e.what}", remedy=e.remedy)
        return options


def _with(options: UmOptions, settings: Iterable[tuple[str, str, int | str]]) -> UmOptions:
    for setting in settings:
        options = options.with_(*setting)
    return options


def _of_publisher(options: UmOptions) -> UmOptions:
    """Leave out what is about other objects than a context and its source."""
    kept = {key: value for key, value in options.explicit.items() if key[0] in _SCOPES}
    return UmOptions(kept, {key: options.origin(key) for key in kept})


def _udp(text: str, place: ValuePlace, lookup: Lookup) -> UdpConfig:
    values = dict(_UDP)
    for name, value in _parts(text, place):
        if name in values:
            values[name] = value.strip()
        else:
            place.warning(f"options: {name[:40]!r} {_IGNORED}")
    if not any(values[name] for name in _UDP_TARGETS):
        place.error("options: no destination", remedy=f"write {', '.join(_UDP_TARGETS[:-1])} or {_UDP_TARGETS[-1]}")
    for name in _UDP_TARGETS:
        if values[name] and not _is_target(name, values[name]):
            kind = "a multicast group" if name == "mcgroup" else "an IPv4 address"
            place.error(f"options: {name} {values[name][:40]!r} is not {kind}", remedy=f"write {kind}")
    numbers = {}
    for name, low, high in (("port", 1, 65535), ("ttl", 0, 255)):
        written = values[name]
        is_number = written.isascii() and written.isdigit() and len(written) <= 5
        numbers[name] = int(written) if is_number else -1
        if not low <= numbers[name] <= high:
            place.error(f"options: {name} {written[:40]!r} is out of range", remedy=f"write {low} to {high}")
    interface = ANY
    try:
        interface = resolve_interface(values["interface"], lookup)
    except ConfigError as e:
        place.error(f"options: interface: {e.what}", remedy=e.remedy)
    targets = {name: values[name] for name in _UDP_TARGETS}
    return UdpConfig(**targets, port=numbers["port"], ttl=numbers["ttl"], interface=interface)


def _is_target(name: str, text: str) -> bool:
    try:
        return IPv4Address(text).is_multicast or name != "mcgroup"
    except ValueError:
        return False


def read_daemon_monitor(daemon: ElementReader, reading: Reading) -> DaemonMonitorConfig | None:
    """`<daemon-monitor>`, also for what stands directly under `<daemon>`; None when there is neither."""
    el = daemon.child("daemon-monitor")
    inner = {name: el.child(name) for name in ("publishing-interval", *_REQUESTS)}
    for name in inner:
        if daemon.has(name):
            stray = daemon.child(name)
            stray.warning("belongs into <daemon-monitor>, taken as if it were there")
            if not inner[name].is_present:
                inner[name] = stray
            else:
                stray.error("given here and in <daemon-monitor>", remedy="keep the one in <daemon-monitor>")
    if not el.is_present and not any(reader.is_present for reader in inner.values()):
        return None
    allowed = [inner[name].text("allow") == "1" for name in _REQUESTS]
    for name in _REQUESTS:
        inner[name].done()
    topic, um = el.text("topic"), read_portal_um(el, reading)
    check_topic(topic, el)
    options = UmOptions()
    try:
        options = _of_publisher(um.sending.source(topic))
    except ConfigError as e:
        reading.problems.error(e)
    if not any(allowed):
        options = options.with_(CONTEXT, "request_tcp_bind_request_port", 0)
    return read_record(
        el,
        DaemonMonitorConfig,
        topic=topic,
        publishing=read_publishing(inner["publishing-interval"]) or PublishingConfig(),
        answers_snapshots=allowed[0],
        obeys_changes=allowed[1],
        lbm_config=um.paths,
        um=options,
    )

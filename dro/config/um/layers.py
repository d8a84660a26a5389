"""The UM options of one object of a DRO: a context, a proxy source, a proxy receiver, a wildcard receiver.

Layers, lowest first: defaults of the table, `LBM_MONITOR_*` and `LBM_DEFAULT_CONFIG_FILE`, `<lbm-config>` (of either
kind), `<lbm-attributes>`, `<xml-config>`, and values fixed by the DRO. An XML layer gives each object the options of
its application, its context and the matching topics, outer before inner.

Source: UM configuration file rules, sections 4.2 to 4.6 and 5.1. Guess: an object that no element matches has the
templates of the element around it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dro.config.um.options import DEFAULTS, OptionKey, Parsed, UmOptions, option_table
from dro.config.um.xml_document import (
    Application,
    Container,
    Contexts,
    Matcher,
    Setting,
    UmDocument,
    XmlContext,
    permitted,
)
from dro.errors import ConfigError
from dro.patterns import PatternLimit

CONTEXT: Final = "context"
SOURCE: Final = "source"
RECEIVER: Final = "receiver"
WILDCARD_RECEIVER: Final = "wildcard_receiver"
DAEMON_APPLICATION: Final = "tnwgd"
APPLICATION_VARIABLE: Final = "LBM_XML_CONFIG_APPNAME"
_NO_PROXY_TRANSPORTS: Final = ("lbtsmx", "lbtrdma")
_TRANSPORT: Final = (SOURCE, "transport")
_CACHED: Final = 10_000


def find_application(document: UmDocument, daemon: str, environ: Mapping[str, str]) -> Application:
    """The application of a DRO: that of the environment, of the daemon's name, `tnwgd`, the only one, the nameless.

    Raises: ConfigError.
    """
    for name in (environ.get(APPLICATION_VARIABLE, ""), daemon, DAEMON_APPLICATION):
        for application in document.applications:
            if name and application.name == name:
                return application
    if len(document.applications) == 1:
        return document.applications[0]
    for application in document.applications:
        if not application.name:
            return application
    what = f"no application named {daemon or DAEMON_APPLICATION!r}"
    raise ConfigError(what, file=document.file, line=1, remedy="add it, or give the daemon the name of one")


@dataclass(frozen=True, slots=True)
class Asked:
    """The object that options are wanted for; `name` is its topic or pattern."""

    scope: str
    name: str = ""
    pattern_type: str = ""


@dataclass(frozen=True, slots=True)
class PlainLayer:
    """Settings for all objects alike."""

    settings: tuple[Parsed, ...] = field(hash=False)

    def apply(self, base: UmOptions, asked: Asked) -> UmOptions:
        return base.with_parsed(self.settings)

    def by_topic(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class XmlPart:
    """Settings of an XML layer that stand together: for the objects that `matcher` fits, or for all.

    `allow_first` and `has_deny` are those of the list around it.
    """

    settings: tuple[Setting, ...]
    matcher: Matcher | None = None
    allow_first: bool = False
    has_deny: bool = False


@dataclass(frozen=True, slots=True)
class XmlLayer:
    """What one XML file says about the contexts of one name."""

    document: UmDocument = field(hash=False)
    application: Application
    context_name: str

    def apply(self, base: UmOptions, asked: Asked, over: UmOptions = DEFAULTS) -> UmOptions:
        """`over` holds whatever the file says, and is judged by its rules.

        Raises: ConfigError when the object, or one of its values, is not permitted.
        """
        settings = list(self._settings(asked))
        made = base.with_parsed([Parsed(s.option, s.value, s.origin) for s in settings if s.value is not None])
        made = made.merged(over)
        self._check_values(made, settings, asked)
        return made

    def by_topic(self) -> bool:
        """Whether objects of one context may have different options, or may not be."""
        found = self._find()
        if found is None or found[1] is None:
            return False
        containers = [c for c in found[1].containers if c.scope in (SOURCE, RECEIVER, WILDCARD_RECEIVER)]
        return any(c.matchers or c.templates or c.allow_first for c in containers)

    def parts(self, scope: str) -> Iterator[XmlPart]:
        """Everything that the layer says about objects of one scope, in the order in which it applies."""
        settings = list(self._of_templates(self.application.templates))
        found = self._find()
        if found is None:
            yield XmlPart(tuple(settings))
            return
        contexts, context = found
        settings += self._of_templates(contexts.templates)
        if context is not None:
            settings += [*self._of_templates(context.templates), *context.settings]
        yield XmlPart(tuple(settings))
        for container in context.containers if context is not None else ():
            if container.scope == scope:
                yield from self._parts_of(container)

    def _parts_of(self, container: Container) -> Iterator[XmlPart]:
        has_deny = any(not m.allow for m in container.matchers)

        def of(templates: tuple[str, ...], own: tuple[Setting, ...]) -> tuple[Setting, ...]:
            found = (*self._of_templates(templates), *own)
            return tuple(s for s in found if s.option.scope == container.scope)

        yield XmlPart(of(container.templates, ()), None, container.allow_first, has_deny)
        for matcher in container.matchers:
            yield XmlPart(of(matcher.templates, matcher.settings), matcher, container.allow_first, has_deny)

    def _find(self) -> tuple[Contexts, XmlContext | None] | None:
        """Find the element for contexts of this name, or else the first list, whose templates hold then."""
        for contexts in self.application.contexts:
            for context in contexts.contexts:
                if context.name == self.context_name:
                    return contexts, context
        return (self.application.contexts[0], None) if self.application.contexts else None

    def _settings(self, asked: Asked) -> Iterator[Setting]:
        """Yield settings in the order in which they apply: the context's for all scopes, its lists' for the own one."""
        yield from self._of_templates(self.application.templates)
        found = self._find()
        if found is None:
            return
        contexts, context = found
        yield from self._of_templates(contexts.templates)
        is_denied = context is not None and not context.allow
        is_allowed = context is not None and context.allow
        if not permitted(contexts.allow_first, is_allowed, is_denied):
            raise self._refusal(f"a context named {self.context_name!r} is not permitted")
        if context is None:
            return
        yield from self._of_templates(context.templates)
        yield from context.settings
        for container in context.containers:
            if container.scope == asked.scope:
                yield from self._of_container(container, asked)

    def _of_templates(self, names: tuple[str, ...]) -> Iterator[Setting]:
        for name in names:
            yield from self.document.templates[name]

    def _of_container(self, container: Container, asked: Asked) -> Iterator[Setting]:
        for setting in self._of_list(container, asked):
            if setting.option.scope == container.scope:
                yield setting

    def _of_list(self, container: Container, asked: Asked) -> Iterator[Setting]:
        yield from self._of_templates(container.templates)
        is_wildcard = container.scope == WILDCARD_RECEIVER
        try:
            matching = [
                m
                for m in container.matchers
                if (m.matches_pattern(asked.name, asked.pattern_type) if is_wildcard else m.matches_topic(asked.name))
            ]
        except PatternLimit as e:
            raise self._refusal(f"{asked.scope} {asked.name!r}: a pattern took too long") from e
        if not permitted(container.allow_first, any(m.allow for m in matching), any(not m.allow for m in matching)):
            raise self._refusal(f"{asked.scope} {asked.name!r} is not permitted")
        for matcher in matching:
            yield from self._of_templates(matcher.templates)
            yield from matcher.settings

    def _check_values(self, made: UmOptions, settings: list[Setting], asked: Asked) -> None:
        """Check the values by the last rules of each option; a value is judged wherever it comes from."""
        rules = {s.option.key: s for s in settings if s.has_rules and s.option.scope in (CONTEXT, asked.scope)}
        for key, setting in rules.items():
            value = made.value(*key)
            if not setting.permits(value):
                raise self._refusal(f"{key[0]} {key[1]}: the value {value!r} is not permitted", setting.origin)

    def _refusal(self, what: str, origin: str = "") -> ConfigError:
        place = origin.partition(" (template ")[0]
        file, _, line = (place or f"{self.document.file}:1").rpartition(":")
        return ConfigError(what, file=file, line=int(line), remedy="see the rules in that file")


Layer = PlainLayer | XmlLayer


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """The options of one context of a portal and of the objects in it; answers are kept.

    `base` holds what lies below the first layer.
    """

    base: UmOptions = DEFAULTS
    layers: tuple[Layer, ...] = ()
    _known: dict[Asked, UmOptions] = field(default_factory=dict, compare=False, repr=False)
    _made: dict[Hashable, UmOptions] = field(default_factory=dict, compare=False, repr=False)  # equal ones once

    def __reduce__(self) -> tuple[type[ContextOptions], tuple[UmOptions, tuple[Layer, ...]]]:
        """To another process go the layers; it finds its own answers."""
        return ContextOptions, (self.base, self.layers)

    def context(self) -> UmOptions:
        """The context itself. Raises: ConfigError when it is not permitted."""
        return self._of(Asked(CONTEXT))

    def source(self, topic: str) -> UmOptions:
        """A proxy source, with the options of its context. Raises: ConfigError when it is not permitted."""
        return self._of(Asked(SOURCE, topic))

    def receiver(self, topic: str) -> UmOptions:
        """A proxy receiver, with the options of its context. Raises: ConfigError when it is not permitted."""
        return self._of(Asked(RECEIVER, topic))

    def wildcard_receiver(self, pattern: str, pattern_type: str = "pcre") -> UmOptions:
        """A wildcard receiver, with the options of its context. Raises: ConfigError when it is not permitted."""
        return self._of(Asked(WILDCARD_RECEIVER, pattern, pattern_type))

    @property
    def by_topic(self) -> bool:
        """Whether sources or receivers of this context may differ in their options."""
        return any(layer.by_topic() for layer in self.layers)

    def _of(self, asked: Asked) -> UmOptions:
        options = self._known.get(asked)
        if options is None:
            options = self.base
            for layer in self.layers:
                options = layer.apply(options, asked)
            if options.get_str(*_TRANSPORT) in _NO_PROXY_TRANSPORTS:
                tcp = Parsed(option_table()[_TRANSPORT], "tcp", "fixed by the DRO")
                options = options.with_parsed([tcp])
            if len(self._known) >= _CACHED:
                self._known.clear()
                self._made.clear()
            content = (options, frozenset(options.origins.items()))  # origins take no part in their comparison
            options = self._known[asked] = self._made.setdefault(content, options)
        return options


def overridden(attributes: PlainLayer, options: UmOptions) -> list[OptionKey]:
    """The attributes that a higher layer has given another value."""
    own = {setting.option.key: setting.value for setting in attributes.settings}
    return [key for key, value in own.items() if not isinstance(value, tuple) and options.value(*key) != value]

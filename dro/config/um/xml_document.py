"""UM XML configuration files: from the document to frozen records, with every value read and checked.

The document must fit its DTD as a whole; then unknown options and bad values are reported and left out. `layers.py`
decides what applies to which object. Elements that concern features a DRO does not have (event queues, hot failover,
licence, application data) are accepted and not kept.

Source: UM configuration file rules, sections 4.1 and 4.4. Guess: `options` without a type take that of the element
around them, and in a template or context none, so that they are reported and left out; a missing version is 1.0.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, cast

from lxml import etree

from dro.config.reading.problems import Problems
from dro.config.reading.xml_file import FILE_ATTRIBUTE, line_of, parse_xml
from dro.config.um.honoured import must_count, names_protection
from dro.config.um.interfaces import Lookup
from dro.config.um.options import Option, find_option, option_table, place_of, scopes_of
from dro.config.um.rules import Value
from dro.errors import ConfigError
from dro.patterns import PCRE, Pattern, PatternError

_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_SPACE_ATTRIBUTE: Final = "{http://www.w3.org/XML/1998/namespace}space"
MAX_TEMPLATES: Final = 100  # named by one element
_SCOPE_OF: Final = {
    "context": "context", "sources": "source", "receivers": "receiver", "wildcard-receivers": "wildcard_receiver",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One `<option>`: `value` is None when it only has rules; `allow` and `deny` are read values."""

    option: Option
    value: Value | None
    allow_first: bool  # order="allow,deny"
    allow: tuple[Value, ...]
    deny: tuple[Value, ...]
    origin: str = field(compare=False)

    @property
    def has_rules(self) -> bool:
        return self.allow_first or bool(self.allow or self.deny)

    def permits(self, value: Value) -> bool:
        """The last rule that fits decides, in the order that the option names."""
        return permitted(self.allow_first, value in self.allow, value in self.deny)


def permitted(allow_first: bool, is_allowed: bool, is_denied: bool) -> bool:
    """Return what the rules of an element say: deny and then allow with a default of yes, or the other way round."""
    if allow_first:
        return is_allowed and not is_denied
    return is_allowed or not is_denied


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Pattern:
    return Pattern(_raw(pattern), PCRE)


@dataclass(frozen=True, slots=True)
class Matcher:
    """`<topic>` or `<wildcard-receiver>`: which objects it is about, whether they may be, and their options."""

    name: str | None
    pattern: str | None  # for wildcard receivers the pattern itself, to compare
    pattern_type: str
    allow: bool
    templates: tuple[str, ...]
    settings: tuple[Setting, ...]

    def matches_topic(self, topic: str) -> bool:
        """Say whether it matches a topic; without name and pattern it matches every one. Raises: PatternLimit."""
        if self.name is not None:
            return topic == self.name
        return self.pattern is None or _compiled(self.pattern).search(_raw(topic))

    def matches_pattern(self, pattern: str, pattern_type: str) -> bool:
        return self.pattern is None or (self.pattern == pattern and self.pattern_type == pattern_type)


@dataclass(frozen=True, slots=True)
class Container:
    """`<sources>`, `<receivers>` or `<wildcard-receivers>`."""

    scope: str
    allow_first: bool
    templates: tuple[str, ...]
    matchers: tuple[Matcher, ...]


@dataclass(frozen=True, slots=True)
class XmlContext:
    """`<context>`; without a name it is about contexts without one."""

    name: str
    allow: bool
    templates: tuple[str, ...]
    settings: tuple[Setting, ...]
    containers: tuple[Container, ...]


@dataclass(frozen=True, slots=True)
class Contexts:
    """`<contexts>`."""

    allow_first: bool
    templates: tuple[str, ...]
    contexts: tuple[XmlContext, ...]


@dataclass(frozen=True, slots=True)
class Application:
    """`<application>`."""

    name: str
    templates: tuple[str, ...]
    contexts: tuple[Contexts, ...]


@dataclass(frozen=True, slots=True)
class UmDocument:
    """A UM XML file."""

    file: str = field(compare=False)
    templates: Mapping[str, tuple[Setting, ...]] = field(hash=False)
    applications: tuple[Application, ...]


@cache
def _dtd() -> etree.DTD:
    with files("dro.config.data").joinpath("um-config.dtd").open("rb") as f:
        return etree.DTD(f)


def parse_um_xml(raw: bytes, file: str, problems: Problems, lookup: Lookup) -> UmDocument:
    """A document in hand; unknown options and bad values become warnings.

    Raises: ConfigError for what is not well-formed or does not fit the DTD; nothing of it holds then.
    """
    root = parse_xml(raw, file)
    if root.tag != "um-configuration":
        what = f"the root element is <{str(root.tag)[:60]}>, not <um-configuration>"
        raise ConfigError(what, file=file, line=line_of(root, 1), remedy="is this a UM configuration file?")
    if "version" not in root.attrib:
        root.set("version", "1.0")
    _validate(root, file)
    return _Reader(file, problems, lookup).document(root)


def _validate(root: etree._Element, file: str) -> None:
    """Compare a document with the DTD. Raises: ConfigError with the first thing that does not fit."""
    plain = copy.deepcopy(root)
    for element in plain.iter(etree.Element):
        element.attrib.pop(FILE_ATTRIBUTE, "")
    etree.cleanup_namespaces(plain)
    dtd = _dtd()
    if not dtd.validate(plain):
        first = cast("Any", dtd.error_log)[0]  # the stubs of lxml do not say what it holds
        what = f"does not fit the DTD: {first.message[:200]}"
        raise ConfigError(what, file=file, line=first.line, remedy="correct the file")


class _Reader:
    """Turns the elements of one document into records."""

    def __init__(self, file: str, problems: Problems, lookup: Lookup) -> None:
        self._file = file
        self._problems = problems
        self._lookup = lookup
        self._templates: dict[str, tuple[Setting, ...]] = {}

    def document(self, root: etree._Element) -> UmDocument:
        for template in root.iterfind("templates/template"):
            name = template.get("name", "")
            if name in self._templates:
                self._warn(template, f"template {name[:100]!r} is given again, the later one holds")
            self._templates[name] = self._settings(template, "", f" (template {name})")
        applications = tuple(self._application(e) for e in root.iterfind("applications/application"))
        return UmDocument(self._file, self._templates, applications)

    def _application(self, el: etree._Element) -> Application:
        contexts = tuple(
            Contexts(_allow_first(c), self._names(c), tuple(self._context(e) for e in c.iterfind("context")))
            for c in el.iterfind("contexts")
        )
        return Application(el.get("name", ""), self._names(el), contexts)

    def _context(self, el: etree._Element) -> XmlContext:
        containers = tuple(self._container(e) for e in el.iterchildren(*_SCOPE_OF))
        return XmlContext(
            el.get("name", ""), _is_allowed(el), self._names(el), self._settings(el, "context"), containers
        )

    def _container(self, el: etree._Element) -> Container:
        scope = _SCOPE_OF[str(el.tag)]
        matchers = (self._matcher(e, scope) for e in el.iterchildren(etree.Element))
        return Container(scope, _allow_first(el), self._names(el), tuple(m for m in matchers if m is not None))

    def _matcher(self, el: etree._Element, scope: str) -> Matcher | None:
        name, pattern = el.get("topicname"), el.get("pattern")
        if name is not None and pattern is not None:
            self._warn(el, "topicname and pattern exclude each other, ignored")
            return None
        if el.tag == "topic" and pattern is not None:
            try:
                _compiled(pattern)
            except PatternError as e:
                self._warn(el, f"{e.what}, ignored")
                return None
        pattern_type = {"application-callback": "appcb"}.get(
            el.get("pattern-type", "pcre"), el.get("pattern-type", "pcre")
        )
        return Matcher(name, pattern, pattern_type, _is_allowed(el), self._names(el), self._settings(el, scope))

    def _names(self, el: etree._Element) -> tuple[str, ...]:
        """List the templates that an element names, without those that do not exist. Raises: ConfigError."""
        found: list[str] = []
        for part in el.get("template", "").split(","):
            if len(found) >= MAX_TEMPLATES:
                file, line = place_of(self._place(el))
                what = f"names more than {MAX_TEMPLATES} templates"
                raise ConfigError(what, file=file, line=line, element=f"<{el.tag!s}>", remedy="name fewer")
            name = part.strip()
            if name in self._templates:
                found.append(name)
            elif name:
                self._warn(el, f"there is no template {name[:100]!r}, ignored")
        return tuple(found)

    def _settings(self, el: etree._Element, own_scope: str, suffix: str = "") -> tuple[Setting, ...]:
        """Read the settings of all `<options>` here; `own_scope` is for those without a type, `suffix` for origins."""
        settings = []
        for options in el.iterfind("options"):
            scope = options.get("type", own_scope).replace("-", "_")
            is_lost = not scope or own_scope not in ("", "context", scope)  # lists hold options of their scope alone
            for option in options.iterfind("option") if is_lost else ():
                if names_protection(name := option.get("name", "")):
                    remedy = 'move it to <options type="context"> of the <context>'
                    self._error(option, f"{scope} {name[:80]}".strip(), "would have no effect here", remedy)
            if not scope:
                self._warn(options, "type is missing, ignored")
                continue
            for option in options.iterfind("option"):
                setting = self._setting(option, scope, suffix)
                if setting is not None:
                    settings.append(setting)
        return tuple(settings)

    def _setting(self, el: etree._Element, scope: str, suffix: str) -> Setting | None:
        name = el.get("name", "").lower()
        option = find_option(scope, name)
        if option is None:
            where = scopes_of(name)
            known = [key[1] for key in option_table() if key[0] == scope]
            other = "it exists in scope " + ", ".join(where)
            advice = other if where else self._problems.suggestion(name, known, "remove it")
            if names_protection(name):
                self._error(el, f"{scope} {name[:80]}", "not an option of this scope", advice)
            else:
                self._warn(el, f"{scope} {name[:80]}: not an option of this scope, ignored; {advice}")
            return None
        text = el.get("default-value")
        value = None if text is None else self._value(el, option, text)
        if text is not None and value is None:
            return None
        allow, deny = (
            tuple(v for e in el.iterfind(kind) if (v := self._value(e, option, _text(e))) is not None)
            for kind in ("allow", "deny")
        )
        if value is not None and option.is_deprecated and option.relevance == "yes":
            subject = f"{option.scope} {option.name}"
            self._warn(el, f"{subject}: deprecated, but in effect", once=f"deprecated {subject}")
        return Setting(option, value, _allow_first(el), allow, deny, self._place(el) + suffix)

    def _value(self, el: etree._Element, option: Option, text: str) -> Value | None:
        try:
            value, notice = option.rule.parse(text, self._lookup)
        except ConfigError as e:
            subject, place = f"{option.scope} {option.name}", self._place(el)
            text = f"{place}: <{el.tag!s}>: {subject}: {e.what}, ignored" + (f"; {e.remedy}" if e.remedy else "")
            file, line = place_of(place)
            error = type(e)(e.what, file=file, line=line, element=subject, remedy=e.remedy)
            self._problems.setting_ignored(error, text, must_count=must_count(option.name, e))
            return None
        if notice:
            self._warn(el, f"{option.scope} {option.name}: {notice}")
        return value

    def _place(self, el: etree._Element) -> str:
        at: etree._Element | None = el
        while at is not None:
            if FILE_ATTRIBUTE in at.attrib:
                return f"{at.get(FILE_ATTRIBUTE)}:{line_of(el)}"
            at = at.getparent()
        return f"{self._file}:{line_of(el)}"

    def _error(self, el: etree._Element, subject: str, what: str, remedy: str) -> None:
        file, line = place_of(self._place(el))
        self._problems.error(ConfigError(what, file=file, line=line, element=subject, remedy=remedy))

    def _warn(self, el: etree._Element, text: str, *, once: str = "") -> None:
        self._problems.warning(f"{self._place(el)}: <{el.tag!s}>: {text}", once=once)


def _allow_first(el: etree._Element) -> bool:
    return el.get("order", "").replace(" ", "") == "allow,deny"


def _is_allowed(el: etree._Element) -> bool:
    return el.get("rule", "allow") == "allow"


def _text(el: etree._Element) -> str:
    text = el.text or ""
    return text if el.get(_SPACE_ATTRIBUTE) == "preserve" else _BLANKS.sub(" ", text).strip(" ")

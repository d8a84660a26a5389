"""The effective configuration as text: a DRO file with every value written out, each with its origin in a comment.

The text can be loaded again with the same meaning, given the UM files that it names, but for the passphrase of a key,
which is never written. UM options that are set outside the DRO file are comments. Called by the daemon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from dro.config.dro_xml.model import DroConfig
from dro.config.reading.reader import Node, NodeValue
from dro.config.reading.schema import elements
from dro.config.um.options import OptionKey, UmOptions, option_table
from dro.config.um.rules import Kind, Value

DEFAULT: Final = "default"
_SECRET: Final = "certificate-key-password"
_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_NOT_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_HIDDEN: Final = "(set, not shown)"


def effective_config(config: DroConfig, *, with_defaults: bool = False) -> str:
    """`config` as a DRO file. `with_defaults` adds the UM options that nobody has set.

    The origin of a value is `default`, or file and line; for UM options also a template or a variable.
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', _comment(f"effective configuration of {config.file}")]
    if config.tree is not None:
        lines += _Printer(config, with_defaults).lines(config.tree, 0)
    return "\n".join(lines) + "\n"


def um_lines(options: UmOptions, *, skip: frozenset[OptionKey] = frozenset(), with_defaults: bool) -> Iterator[str]:
    """`scope option = value [origin]` of every option that is set, or of all that have an effect in a DRO."""
    for key, option in sorted(option_table().items()):
        is_set = key in options.explicit
        wanted = is_set or (with_defaults and option.relevance == "yes" and option.rule.kind is not Kind.API)
        if wanted and key not in skip:
            origin = (options.origin(key) or "set") if is_set else DEFAULT
            yield f"{key[0]} {key[1]} = {_shown(key, options.value(*key))} [{origin}]"


def option_values(options: UmOptions, scope: str) -> list[tuple[str, str]]:
    """List name and value of every option of a scope; passwords are not shown."""
    table = sorted((pair for pair in option_table().items() if pair[0][0] == scope), key=lambda pair: pair[0])
    return [(key[1], _shown(key, options.value(*key))) for key, option in table if option.rule.kind is not Kind.API]


def _shown(key: OptionKey, value: Value) -> str:
    if key[1].endswith("_password"):
        return _HIDDEN if value else ""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _comment(text: str) -> str:
    """Write an XML comment; what may not stand in one is made harmless."""
    safe = _NOT_XML.sub("?", text).replace("--", "- -")
    return f"<!-- {safe}{' ' if safe.endswith('-') else ''} -->"


def _has_value(node: Node) -> bool:
    values = [value for _, value in node.attributes] + ([node.content] if node.content is not None else [])
    return any(value.text or value.line for value in values) or any(map(_has_value, node.children))


class _Printer:
    """Writes the tree of one configuration."""

    def __init__(self, config: DroConfig, with_defaults: bool) -> None:
        self._portals = {portal.name: portal for portal in config.all_portals}
        self._with_defaults = with_defaults

    def lines(self, node: Node, depth: int) -> Iterator[str]:
        spec = elements()[node.name]
        is_plain = not spec.attributes and spec.content is None
        if not _has_value(node) and not (node.is_present and is_plain):
            return
        pad = "  " * depth
        if node.name == _SECRET:
            yield pad + _comment(f"{node.name}: {_HIDDEN}")
            return
        attributes = "".join(f" {name}={self._quoted(node, name, value)}" for name, value in self._attributes(node))
        origin = self._origin(node)
        start = f"{pad}<{node.name}{attributes}"
        inner = [line for child in self._children(node) for line in self.lines(child, depth + 1)]
        if node.name in ("endpoint", "peer"):
            inner += ["  " * (depth + 1) + _comment(text) for text in self._um(node)]
        if node.content is not None and node.content.text:
            yield f"{start}>{escape(node.content.text)}</{node.name}>{origin}"
        elif inner:
            yield f"{start}>{origin}"
            yield from inner
            yield f"{pad}</{node.name}>"
        else:
            yield f"{start}/>{origin}"

    def _children(self, node: Node) -> list[Node]:
        """Order children as the DTD does, where it has an order; portals keep that of the file."""
        spec = elements()[node.name]
        place = {name: at for at, name in enumerate(spec.children)} if spec.is_ordered else {}
        last = len(place)
        if node.name == "portals":
            return sorted((child for child in node.children), key=lambda child: child.line)
        return sorted(node.children, key=lambda child: place.get(child.name, last))

    def _attributes(self, node: Node) -> list[tuple[str, NodeValue]]:
        found = [(name, value) for name, value in node.attributes if value.text or value.line]
        text = node.content.text if node.content is not None else ""
        if text != _BLANKS.sub(" ", text).strip(" "):
            found.append(("xml:space", NodeValue("preserve", node.line)))
        return found

    def _quoted(self, node: Node, name: str, value: NodeValue) -> str:
        is_secret = node.name == "option" and name == "value" and node.text("name").lower().endswith("_password")
        return quoteattr(_HIDDEN if is_secret else value.text, {"\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})

    def _origin(self, node: Node) -> str:
        """Write the comment behind an element: one place for all its values, or one for each attribute."""
        values = self._attributes(node)
        if node.content is not None:
            values = [*values, ("", node.content)]
        places = {name: f"{node.file}:{value.line}" if value.line else DEFAULT for name, value in values}
        if not places:
            return f" {_comment(f'{node.file}:{node.line}')}" if node.is_present else ""
        if len(set(places.values())) == 1:
            return f" {_comment(next(iter(places.values())))}"
        return " " + _comment(", ".join(f"{name or 'text'}: {place}" for name, place in places.items()))

    def _um(self, node: Node) -> Iterator[str]:
        """Yield the UM options of a portal that do not stand in its attributes."""
        portal = self._portals.get(next((child.text() for child in node.children if child.name == "name"), ""))
        if portal is None:
            return
        own = {
            (option.text("scope"), option.text("name").lower()): f"{option.file}:{option.line}"
            for option in node.find("lbm-attributes", "option")
        }
        options = portal.um
        skip = frozenset(key for key, place in own.items() if options.origin(key) == place)
        yield from um_lines(options, skip=skip, with_defaults=self._with_defaults)
        sending = portal.sending.context()
        for key, value in sorted(sending.explicit.items()):
            if key[0] == "context" and options.value(*key) != value:
                yield f"sending context: {key[0]} {key[1]} = {_shown(key, value)} [{sending.origin(key)}]"

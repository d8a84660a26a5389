"""The public message ids: which of our events is known to readers of DRO logs, under which id and in which words.

Scanners in the field look for the ids and the texts, so an event that has a public id is written under it, and in the
public shape where one is known. `{name}` in a shape is a field of the event; `{process}` is the name of the process,
which of a portal is the portal's. Fields that the shape does not show follow it as `name=value`. Events that are not
in the table have no id, which the public format allows.

Used by the formatters of `dro.log_lines`; the tests compare it with the published list and with the call sites.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_FIELD: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class PublicLine:
    """One message of the public list; without a shape our own text stands behind the id."""

    id: str
    shape: str = ""

    @property
    def fields(self) -> frozenset[str]:
        """Names of what the shape shows."""
        return frozenset(_FIELD.findall(self.shape))

    def render(self, values: Mapping[str, str]) -> str:
        """The shape with its fields filled in. Raises: KeyError for one that is missing."""
        return _FIELD.sub(lambda match: values[match[1]], self.shape)


_LINK: Final = "RecalcTrigger:LINK {way}:Version = {{version}}:NodeId = {{domain}}"

PUBLIC_LINES: Final[Mapping[str, PublicLine]] = {
    # the usual course of a run
    "starting": PublicLine("Gwd-7136-1"),
    "build": PublicLine("Gwd-7136-2"),
    "context created": PublicLine("Core-10403-150"),
    "DRO is running": PublicLine("Gwd-7122-1", "Gateway named [{dro}] with node id: {node_id} has started."),
    "link came up": PublicLine("Gwd-9574-01", _LINK.format(way="CAME UP")),
    "link went down": PublicLine("Gwd-9574-02", _LINK.format(way="WENT DOWN")),
    "node updated": PublicLine("Gwd-9574-05"),
    "routes calculated": PublicLine("Gwd-6361-74", "route recalculation took {took_s} seconds"),
    "stopping": PublicLine("Gwd-6033-391", "Shutdown event detected. Attempting to shutdown"),
    # what an operator may have to act on
    "DRO cannot start": PublicLine("Gwd-11041-1"),
    "worker cannot run": PublicLine("Gwd-11041-2"),
    "topology keeps changing, routes are late": PublicLine("Gwd-6361-75"),
    "two portals in one domain, the second is ignored": PublicLine("GwdApi-7097-2"),
    "began enqueueing data": PublicLine("Gwd-6945-1", "Portal [{process}] began enqueueing data"),
    "dropping data due to high volume": PublicLine("Gwd-6945-2", "Portal [{process}] dropping data due to high volume"),
    "completed flushing queue": PublicLine("Gwd-6945-3", "Portal [{process}] completed flushing queue"),
    "queued data of a deleted proxy source thrown away": PublicLine("Gwd-10434-1"),
    "fragment larger than the datagram size of the transport": PublicLine("Gwd-6361-42"),
    "proxy source cannot be created": PublicLine("Gwd-6361-38"),
    "pattern ignored": PublicLine("Gwd-5975-1"),
}

_DEPRECATED: Final = re.compile(r": <([a-z-]+)>: deprecated, ignored$")
DEPRECATED_ELEMENTS: Final[Mapping[str, PublicLine]] = {
    "late-join": PublicLine("Gwd-6814-15"),
    "topic-purge": PublicLine("Gwd-6814-16"),
    "topic-interest-generate": PublicLine("Gwd-6814-17"),
    "topic-domain-activity": PublicLine("Gwd-6814-18"),
    "pattern-purge": PublicLine("Gwd-6814-19"),
    "pattern-interest-generate": PublicLine("Gwd-6814-20"),
    "pattern-domain-activity": PublicLine("Gwd-6814-21"),
    "topic-use-check": PublicLine("Gwd-6814-29"),
    "pattern-use-check": PublicLine("Gwd-6814-30"),
}
"""Warnings about elements of the configuration, which begin with file, line and element."""


def public_line(text: str) -> PublicLine | None:
    """What the public list has for an event of ours, by the text of the call."""
    known = PUBLIC_LINES.get(text)
    if known is None and text.endswith("deprecated, ignored"):
        found = _DEPRECATED.search(text)
        known = DEPRECATED_ELEMENTS.get(found[1]) if found else None
    return known

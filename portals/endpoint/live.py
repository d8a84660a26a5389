"""The parts of a changed configuration that an endpoint portal applies while it runs.

`LIVE` has the fields of `EndpointConfig` whose row in the table of elements says `live`. Every other field needs a new
process, which the parent starts; a portal keeps the values that it was started with.

    acl                      all interest, sources and proxies are re-evaluated; only differences have an effect
    cost                     routes are calculated anew; advertisements of proxy sources carry the new sum
    source_deletion_delay    also for proxy sources that wait for their end already
    smart_batch              at once
    max_queue                at once; what is queued beyond a smaller limit is still sent, the ring keeps its size
    topic_resolution,        every timer expires after the new interval at the latest, limits apply from the next record
    remote_topic, _pattern

Source: DRO guide, 7.3 (elements of these names). Guess: all of it; the original reads its configuration once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dro.config.change.reload_class import live_fields
from dro.config.dro_xml.model import DroConfig, EndpointConfig

LIVE: Final = live_fields("endpoint")
TOPIC_RESOLUTION: Final = frozenset({"topic_resolution", "remote_topic", "remote_pattern"})


def own_part(name: str, config: DroConfig) -> EndpointConfig | None:
    """The endpoint of that name; None when a changed configuration has it no more."""
    return next((endpoint for endpoint in config.portals if endpoint.name == name), None)


def changed(old: EndpointConfig, new: EndpointConfig) -> frozenset[str]:
    """The live fields that differ. Lines of the file make no difference."""
    return frozenset(name for name in LIVE if getattr(old, name) != getattr(new, name))


def taken_over(old: EndpointConfig, new: EndpointConfig) -> EndpointConfig:
    """`old` with the live fields of `new`, and with its place in the file, for messages."""
    return replace(old, line=new.line, file=new.file, **{name: getattr(new, name) for name in LIVE})

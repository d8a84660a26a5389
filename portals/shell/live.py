"""The parts of a changed configuration that a portal applies while it runs.

`LIVE` has the fields of a portal's record whose row in the table of elements says `live`. Every other field needs a new
process, which the parent starts; a portal keeps the values that it was started with.

    acl                      all interest, sources and proxies are re-evaluated; only differences have an effect
    cost                     routes are calculated anew; advertisements of proxy sources carry the new sum
    source_deletion_delay    also for proxy sources that wait for their end already
    smart_batch              at once
    max_queue                at once; what is queued beyond a smaller limit is still sent, the ring keeps its size
    context_query            at once; questions that wait are asked in the new groups
    topic_resolution,        every timer expires after the new interval at the latest, limits apply from the next record
    remote_topic, _pattern
    batching                 from the next batch
    keepalive                from the next connection of the link

Source: DRO guide, 7.3 (elements of these names). Guess: all of it; the original reads its configuration once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

from dro.clock import ms
from dro.config.change.reload_class import live_fields
from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from portals.datapath.egress import Egress
from portals.decisions.core import PortalCore

P = TypeVar("P", EndpointConfig, PeerConfig)

LIVE: Final[dict[type[EndpointConfig] | type[PeerConfig], tuple[str, ...]]] = {
    EndpointConfig: live_fields("endpoint"),
    PeerConfig: live_fields("peer"),
}
TOPIC_RESOLUTION: Final = frozenset({"topic_resolution", "remote_topic", "remote_pattern"})


def own_part(old: P, config: DroConfig) -> P | None:
    """The portal of that name and kind; None when a changed configuration has it no more."""
    found = (portal for portal in config.all_portals if portal.name == old.name)
    return next((portal for portal in found if isinstance(portal, type(old))), None)


def changed(old: P, new: P) -> frozenset[str]:
    """The live fields that differ. Lines of the file make no difference."""
    return frozenset(name for name in LIVE[type(old)] if getattr(old, name) != getattr(new, name))


def taken_over(old: P, new: P) -> P:
    """`old` with the live fields of `new`, and with its place in the file, for messages."""
    return replace(old, line=new.line, file=new.file, **{name: getattr(new, name) for name in LIVE[type(old)]})


def apply_common(fields: frozenset[str], config: EndpointConfig | PeerConfig, core: PortalCore, egress: Egress) -> None:
    """What every kind of portal does with the fields that have changed."""
    if "source_deletion_delay_ms" in fields:
        core.deletion_delay.change(ms(config.source_deletion_delay_ms))
    if "max_queue_bytes" in fields:
        egress.queue.set_limit(config.max_queue_bytes)
    if "smart_batch" in fields:
        egress.set_smart_batch(config.smart_batch)

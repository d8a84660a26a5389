"""Where a target is: text to the request port of a context.

    TCP:ip:port             in the own TRD
    TCP:domain:ip:port      in any, through DROs
    SOURCE:source string    of the context that has this source; its advertisement names domain and port, also that of
                            a proxy source, of which DROs pass on what the origin has said

Source: client library notes, section 8; forwarding notes, 11.1.
"""

from __future__ import annotations

from typing import Final

from dro.errors import ResourceError
from dro.um.fragment.context import FragmentContext
from dro.um.message.unicast import parse_target
from dro.wire.lbmc.headers import ContextAddress, is_request_port
from dro.wire.lbmr.options import DomainId, ExtendedFunctionality
from dro.wire.source_string import format_source

_SOURCE: Final = "SOURCE:"


def find_target(core: FragmentContext, target: str) -> ContextAddress:
    """Find the address of a target. Raises: UsageError; ResourceError for a source that is not known here."""
    if not target.startswith(_SOURCE):
        return parse_target(target)
    text = target.removeprefix(_SOURCE)
    for bound in core.bound_sources:
        origin = bound.user.source if bound.user is not None else ""
        if text in (format_source(bound.address, bound.topic_index), origin):
            options = bound.tir.options
            domain = options.first(DomainId) if options is not None else None
            place = options.first(ExtendedFunctionality) if options is not None else None
            if place is None or not is_request_port(place.ip, place.port):
                raise ResourceError(
                    f"{target}: its context has no request port",
                    remedy="set request_tcp_bind_request_port to 1 there",
                )
            return ContextAddress(0 if domain is None else domain.domain_id, place.ip, place.port)
    raise ResourceError(
        f"{target}: no receiver here has that source",
        remedy="give the source string with the topic index, as events have it, while a receiver is open",
    )

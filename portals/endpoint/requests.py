"""Requests in the streams of the sources of a TRD: each says from which domain it is, so that answers find their way.

No state but the options. Called by the ingress for runs of requests only. Source: peer link notes, section 10; wire
notes of LBMC, REQUEST, and section 7; guide, datagram sizes of a DRO. Guess: the domain is that of the source, which is
another one than that of the TRD for a proxy source. A piece that has no room left in the datagrams of its own TRD,
which should be of one size everywhere, stays as it is: with more bytes, the next DRO would drop it. A run counts as
what its first message is, and stays as it is unless all its messages grow alike.
"""

from __future__ import annotations

from typing import Any

from dro.config.um.options import UmOptions
from dro.proto.context.sources import BoundSource
from dro.proto.delivery.fragment import message_limit
from dro.transport.registry import KINDS
from dro.transport.runs import Run
from dro.wire.lbmc.origin import request_with_domain


class RequestOrigins:
    """Implements `portals.datapath.ingress.CompleteRequests`."""

    def __init__(self, domain_id: int, options: UmOptions) -> None:
        """Of the portal and its receiving context."""
        self._domain_id = domain_id
        self._most = {
            kind.address: message_limit(options.get_int("context", f"transport_{name}_datagram_max_size"))
            for name, kind in KINDS.items()
        }

    def complete(self, view: memoryview, run: Run, source: BoundSource[Any]) -> bytes:
        """The messages of the run behind each other, all of one length, each with its domain; empty: as they are."""
        domain_id = source.tir.domain_id or self._domain_id
        places = range(run.offset, run.offset + run.fragments * run.stride, run.stride)
        messages = [bytes(view[at : at + run.length]) for at in places]
        made = [request_with_domain(message, domain_id) for message in messages]
        size = len(made[0])
        if made == messages or {len(each) for each in made} != {size}:
            return b""
        return b"".join(made) if size <= max(run.length, self._most[type(source.address)]) else b""

"""A target that is a DRO with two real portals in this process: datagrams of strangers in one of its TRDs.

What came is worked off by all that a portal has, and what leaves is sent; a portal that raises would have ended.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Hashable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Final

from dro.errors import DecodeError
from dro.metrics.slots import Slot
from dro.proto.unicast.splitter import MessageSplitter
from tests.fakes.um_contexts import Stepper
from tests.fuzz.mutate import script, steps_of
from tests.fuzz.resolution import context_packets
from tests.fuzz.seeds import recorded, vectors
from tests.fuzz.target import Target
from tests.rigs.one_process import one_process

_PACKETS_MAX: Final = 60
_DELAY_MAX_MS: Final = 300
_IP: Final = 0x0A000001
_OF_MESSAGES: Final = (b"\0", b"\x08")  # LBMR of this version begins otherwise
_SIGNS: Final = (Slot.BAD_DATAGRAMS, Slot.UNICAST_DATA_RCVD, Slot.UNICAST_FORWARDED)


def _seeds() -> list[bytes]:
    """Packets of topic resolution, and messages for the request port."""
    draw = Random(1)
    resolution = [b"\x10" + data[1:] if data[:1] == b"\0" else data for data in vectors("lbmr")]
    messages = vectors("lbmc", "", ("uim", "response", "rx", "lji", "peer_ctxinfo", "peer_route"))
    packets = [*resolution, *recorded(12965)[:20], *context_packets(), *messages]
    return [
        script([(draw.choice((0, 0, 10, 200)), packet) for packet in draw.choices(packets, k=40)]) for _ in range(6)
    ]


def _check(data: bytes) -> Hashable:
    stepper = Stepper()
    logging.disable(logging.CRITICAL)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dro-fuzz-") as name,
            closing(stepper.loop),
            one_process(Path(name), stepper, 2) as dro,
        ):
            context, other = dro.portals[1].receiving, dro.application(2)
            other.context.want_topic(b"OPT")
            for after_ms, packet in list(steps_of(data))[:_PACKETS_MAX]:
                dro.run(min(after_ms, _DELAY_MAX_MS))
                if packet[:1] in _OF_MESSAGES:
                    splitter = MessageSplitter()
                    splitter.feed(packet)
                    with suppress(DecodeError):  # which ends the connection
                        while (message := splitter.next_message()) is not None:
                            context.on_unicast(message, (_IP, 1))
                elif packet:
                    context.resolution._on_datagrams(iter([(packet, _IP + packet[-1])]), dro.loop.now_ns())
            dro.run(1000)
            page = dro.workers[1].counters
            return tuple([page[slot].bit_length() for slot in _SIGNS])
    finally:
        logging.disable(logging.NOTSET)


TARGETS: Final = (Target("portal-trd", _seeds, _check, form="script", limit_s=10.0, short=1),)

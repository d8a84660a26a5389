"""What an application sees of a killed portal: a receiver of the library with UM's default options, in order.

A DRO between two TRDs; a source in TRD 1, an LBT-RM and a TCP receiver in two others, each of the message level. The
egress portal of each is killed in turn under load. Reported: the time until the first message that was sent after the
kill is delivered, how many messages were reported as lost, and how many went without a word (which must be none).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final

from dro.um.blocking_api import BlockingContext, BlockingSource
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event, Loss, LossBurst
from tests.bench.portal_recovery import show
from tests.rigs.site import Site, running

STAMP: Final = Struct("!I")
PORTALS: Final = {"LBT-RM": "P2", "TCP": "P3"}
LIMIT_S: Final = 60.0


@dataclass
class Delivered:
    """What one receiver was given. Written by the thread of its context."""

    serials: list[int] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    lost: int = 0

    def on_event(self, event: Event) -> None:
        match event:
            case Data(data=data):
                self.serials.append(STAMP.unpack_from(data)[0])
                self.times_ns.append(time.monotonic_ns())
            case Loss():
                self.lost += 1
            case LossBurst(count=count):
                self.lost += count
            case _:
                pass


@dataclass(frozen=True)
class Recovery:
    transport: str
    first_ms: float
    missing: int  # between what came before and what came after
    lost: int  # reported to the application


class Load:
    """Sends at a steady rate while `until` is not fulfilled."""

    def __init__(self, source: BlockingSource, rate: int) -> None:
        self._source, self._rate = source, rate
        self.sent = 0

    def run(self, seconds: float, delivered: Delivered | None = None, serial: int = 0) -> None:
        """For so long, or until that receiver has a message of `serial` or later."""
        began, first = time.monotonic(), self.sent
        while time.monotonic() - began < seconds:
            while self.sent - first < (time.monotonic() - began) * self._rate:
                self._source.send(STAMP.pack(self.sent))
                self.sent += 1
            if delivered is not None and delivered.serials and delivered.serials[-1] >= serial:
                return
            time.sleep(0.001)


def kill(site: Site, load: Load, delivered: Delivered, transport: str) -> Recovery:
    load.run(1.0)
    lost, seen = delivered.lost, len(delivered.serials)
    site.kill(PORTALS[transport])
    killed_ns, serial = time.monotonic_ns(), load.sent
    load.run(LIMIT_S, delivered, serial)
    at = next((n for n in range(seen, len(delivered.serials)) if delivered.serials[n] >= serial), None)
    if at is None:
        raise SystemExit(f"message_recovery: nothing over {transport} within {LIMIT_S:g} s\n{site.logs}")
    load.run(0.5)
    missing = delivered.serials[-1] - delivered.serials[seen - 1] - (len(delivered.serials) - seen)
    return Recovery(transport, (delivered.times_ns[at] - killed_ns) / 1e6, missing, delivered.lost - lost)


def main() -> None:
    parser = argparse.ArgumentParser(prog="message_recovery", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=5, help="of each transport (default 5)")
    parser.add_argument("--rate", type=int, default=500, help="messages per second (default 500)")
    parser.add_argument("--json", type=Path, default=Path("build/message_recovery.json"), help="where the figures go")
    arguments = parser.parse_args()
    found: list[Recovery] = []
    with tempfile.TemporaryDirectory(prefix="dro-messages-") as name:
        folder = Path(name)
        with running(Site(folder, 3, transports={3: "tcp"})) as site, contextlib.ExitStack() as stack:
            contexts = [stack.enter_context(BlockingContext(Config.load(site.config(trd)))) for trd in site.trds]
            delivered = {"LBT-RM": Delivered(), "TCP": Delivered()}
            for context, one in zip(contexts[1:], delivered.values(), strict=True):
                stack.enter_context(context.receiver("messages", on_event=one.on_event))
            load = Load(stack.enter_context(contexts[0].source("messages")), arguments.rate)
            for one in delivered.values():
                load.run(LIMIT_S, one)
                if not one.serials:
                    raise SystemExit(f"message_recovery: no message within {LIMIT_S:g} s")
            for _ in range(arguments.kills):
                for transport, one in delivered.items():
                    found.append(kill(site, load, one, transport))
                    print(f"{asdict(found[-1])}", flush=True)
    for transport in PORTALS:
        those = [one for one in found if one.transport == transport]
        show(f"{transport}, in order, first message", [one.first_ms for one in those])
        print(f"    missing {[one.missing for one in those]}, reported {[one.lost for one in those]}")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1))


if __name__ == "__main__":
    main()

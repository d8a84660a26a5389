"""Run one party; see the module text of `tests.rigs.store`."""

from __future__ import annotations

import argparse
import pickle
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dro.clock import ms
from dro.loop import Loop
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.unicast import parse_target, target_text
from tests.rigs.store.clients import ScriptedReceiver, ScriptedSource
from tests.rigs.store.context_host import ContextHost
from tests.rigs.store.keeper import ScriptedStore, StoreState
from tests.rigs.store.party import PersistenceParty

TOPIC = b"topic"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.store")
    parser.add_argument("kind", choices=("store", "source", "receiver"))
    parser.add_argument("config")
    parser.add_argument("--file", type=Path, help="of a store: where it keeps all when it ends")
    parser.add_argument("--port", type=int, help="of a store")
    parser.add_argument("--store", help="of a source: TCP:domain:ip:port")
    parser.add_argument("--count", type=int, default=100, help="of messages")
    return parser.parse_args()


def main() -> int:
    asked = _parse()
    is_ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: is_ended.append(1))
    config = Config.load(asked.config)
    if asked.port:
        config = config.with_("context", "request_tcp_reuseaddr", 1)
        for end in ("low", "high"):
            config = config.with_("context", f"request_tcp_port_{end}", asked.port)
    loop = Loop()
    context = MessageContext(config, loop)
    host = ContextHost(context)
    party: PersistenceParty

    def until(holds: Callable[[], bool]) -> None:
        while not is_ended and not holds():
            loop.run_once(ms(20))

    until(lambda: bool(host.own.domain_id))
    match asked.kind:
        case "store":
            kept = pickle.loads(asked.file.read_bytes()) if asked.file.exists() else StoreState()
            party = store = ScriptedStore(host, kept)
            host.start(party)
            print(f"store at {target_text(host.own)}", flush=True)
            until(lambda: False)
            asked.file.write_bytes(pickle.dumps(store.kept))
            print(f"kept {sum(map(len, store.kept.messages.values()))}", flush=True)
        case "source":
            party = source = ScriptedSource(
                host, TOPIC, parse_target(asked.store), session_id=time.time_ns(), wants_proxy=True
            )
            host.start(party)
            until(lambda: source.is_ready)
            source.send(b"0")  # the store may hear of the source later, and gets this again
            until(lambda: not source.unstable)
            print("stable 1", flush=True)
            for number in range(1, asked.count):
                source.send(b"%d" % number)
                loop.run_once(ms(1))
            until(lambda: not source.unstable)
            print(f"stable {asked.count}", flush=True)
            until(lambda: False)
        case _:
            party = receiver = ScriptedReceiver(host, TOPIC)
            host.start(party)
            until(lambda: len(receiver.got) >= asked.count)
            is_whole = receiver.got == [b"%d" % number for number in range(asked.count)]
            print(f"got {len(receiver.got)}, each once and in order: {is_whole}", flush=True)
            until(lambda: False)
    host.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

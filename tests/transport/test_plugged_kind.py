"""A transport kind is one folder: it is found, its options count, and contexts and portals carry messages by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dro import transport
from dro.config.um import honoured, used
from dro.config.um.honoured import check_transport, without_effect
from dro.config.um.options import UmOptions
from dro.proto.repair.receiver import ReceiverStats
from dro.transport.registry import KINDS, find_kinds
from dro.um.blocking_api import BlockingContext
from dro.um.message.events import Data
from tests.fakes.transports.lbtru.kind import LOSES_EACH
from tests.fakes.um_contexts import PATIENCE_S, Stepper, private_config
from tests.rigs.network import network

FOLDER = Path(__file__).parents[1] / "fakes/transports"


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of the kind stands beside those of the others."""
    monkeypatch.setattr(transport, "__path__", [*transport.__path__, str(FOLDER)])
    monkeypatch.setattr(used, "FOLDERS", [*used.FOLDERS, str(FOLDER)])
    monkeypatch.setattr(honoured, "TRANSPORTS", used.transports())
    for name, kind in find_kinds().items():
        monkeypatch.setitem(KINDS, name, kind)
    used.used_options.cache_clear()
    yield
    used.used_options.cache_clear()


def test_contexts_carry_messages_by_it_and_its_losses_are_repaired(plugged: None) -> None:
    payloads = [b"%d" % number + bytes(number * 7 % 9000) for number in range(400)]
    config = private_config("lbtru", receiver__transport_lbtru_nak_backoff_interval=50)
    with BlockingContext(config) as a, BlockingContext(config) as b:
        source, receiver = a.source("topic"), b.receiver("topic")
        receiver.wait_sources(timeout=PATIENCE_S)
        source.wait_receivers(timeout=PATIENCE_S)
        for payload in payloads:
            source.send(payload)
        got: list[bytes] = []
        while len(got) < len(payloads):
            if isinstance(event := receiver.get(timeout=PATIENCE_S), Data):
                assert event.source.startswith("LBT-RU:127.0.0.1:")
                got.append(event.data)
        assert got == payloads
        counters = b.stats().receivers[0].counters
        assert isinstance(counters, ReceiverStats)
        assert counters.lost >= len(payloads) // LOSES_EACH
        assert counters.unrecovered_tmo == counters.unrecovered_txw == 0


def test_portals_carry_messages_between_it_and_another_kind(plugged: None, tmp_path: Path) -> None:
    stepper = Stepper()
    with network(tmp_path, stepper, {"D": (1, 2)}, transport={1: "lbtru", 2: "lbtrm"}) as net:
        here, there = net.application(1), net.application(2)
        for application in (here, there):
            application.context.want_topic(b"topic")
        sources = [here.source(b"topic"), there.source(b"topic")]
        net.start()
        net.until(lambda: len(here.bound(b"topic")) == len(there.bound(b"topic")) == len(sources))
        for _ in range(50):
            for application, source in zip((here, there), sources, strict=True):
                application.send(source)
            net.run(10)
        net.until(lambda: all(len(one.got(source)) == 50 for one in (here, there) for source in sources))
        net.run(1000, 50)
        for one in (here, there):
            for source in sources:
                assert sorted(one.got(source)) == list(range(50)), "each once; order is that of arrival"
    stepper.loop.close()


def test_its_options_have_an_effect_and_its_name_is_no_mistake(plugged: None) -> None:
    options = UmOptions({("receiver", "transport_lbtru_nak_backoff_interval"): 50, ("source", "transport"): "lbtru"})
    check_transport(options)
    assert without_effect(options) == ("", "")


def test_without_the_folder_they_have_none() -> None:
    options = UmOptions({("receiver", "transport_lbtru_nak_backoff_interval"): 50})
    assert "transport_lbtru_nak_backoff_interval" in without_effect(options)[0]

"""What applications notice of the DROs between their TRDs, whoever of them comes first."""

from __future__ import annotations

from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR

TOPIC = b"quotes"


def test_contexts_learn_the_domain_id_whether_they_come_before_the_dro_or_later(make: Make) -> None:
    net = make(PAIR, daemon="")
    early = {trd: net.application(trd).context for trd in (1, 2)}
    net.run(3000, 100)
    assert [context.domain_id for context in early.values()] == [0, 0]
    net.start()
    net.until(lambda: all(context.domain_id == trd for trd, context in early.items()), limit_ms=2000)
    late = net.application(1).context
    net.until(lambda: late.domain_id == 1, limit_ms=2000)


def test_a_source_that_was_quiet_for_long_is_heard_by_a_new_receiver(make: Make) -> None:
    """Neither advertises nor asks any more when the receiver comes, two DROs away."""
    net = make(CHAIN, daemon="")
    net.start()
    sender = net.application(1)
    source = sender.source(TOPIC)
    net.run(75_000, 100)
    receiver = net.application(3)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: bool(receiver.bound(TOPIC)), limit_ms=2000)
    net.run(500)
    sender.send(source, 10)
    net.until(lambda: receiver.got(source) == [*range(10)], limit_ms=1000)


def test_dros_that_start_after_a_quiet_receiver_find_it(make: Make) -> None:
    """It asks no more: the portals ask for everything when they start."""
    net = make(PAIR, daemon="")
    receiver, sender = net.application(2), net.application(1)
    receiver.context.want_topic(TOPIC)
    source = sender.source(TOPIC)
    net.run(75_000, 100)
    net.start()
    net.until(lambda: bool(receiver.bound(TOPIC)), limit_ms=16_000)
    net.run(500)
    sender.send(source, 10)
    net.until(lambda: receiver.got(source) == [*range(10)], limit_ms=1000)


def test_a_session_ends_at_the_dro(make: Make) -> None:
    """Two receivers are one connection to the source, and what they are connected to is a portal."""
    net = make(PAIR, transport="tcp")
    net.start()
    sender, receivers = net.application(1), [net.application(2), net.application(2)]
    source = sender.source(TOPIC)
    for receiver in receivers:
        receiver.context.want_topic(TOPIC)
    net.until(lambda: all(receiver.bound(TOPIC) for receiver in receivers))
    net.run(500)
    sender.send(source, 10)
    net.until(lambda: all(receiver.got(source) == [*range(10)] for receiver in receivers))
    assert source.transport.core.stats.num_clients == 1  # type: ignore[attr-defined]
    addresses = {receiver.bound(TOPIC)[0].transport.address for receiver in receivers}
    assert len(addresses) == 1
    assert source.transport.address not in addresses

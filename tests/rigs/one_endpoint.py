"""One real endpoint portal in a TRD with applications; its sibling is played by the test, message by message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dro.bus.descriptors import DescriptorWriter
from dro.bus.messages import ROUTE_MESSAGES, Role, Route, RouteMessage, RouteTable
from dro.shared_memory.ring import RingWriter
from dro.transport.runs import Run
from dro.wire.lbmc import message as lbmc
from portals.decisions.messages import PORTAL_MESSAGES, PortalMessage
from portals.endpoint.portal import EndpointPortal
from tests.fakes.queues import hand_over
from tests.fakes.siblings import all_messages, confirm_at_once
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker
from tests.rigs.one_process import OneProcess, one_process

HERE, THERE = 1, 99  # domains of the portal and behind the sibling
ENDPOINT, SIBLING = 1, 9  # workers
ROUTES = (Route((HERE,), THERE, ENDPOINT, SIBLING), Route((THERE,), HERE, SIBLING, ENDPOINT))


class OneEndpoint:
    """See the module text. The sibling is called `beyond`."""

    def __init__(self, dro: OneProcess) -> None:
        self.dro = dro
        self.portal: EndpointPortal = dro.portals[ENDPOINT]
        self.worker: FakeWorker = dro.workers[ENDPOINT]
        sibling = dro.add_worker(SIBLING, "beyond", Role.PEER)
        sibling.told["on_reconfigure"] = lambda _: None
        self.ring: RingWriter = sibling.create_ring(1 << 16)
        self._queues = DescriptorWriter(self.ring)
        confirm_at_once(self.worker)
        dro.introduce(sibling)
        self.portal._shell._intake.poll(SIBLING)  # which never greets
        self.hear_routes(*ROUTES)
        dro.stepper.settle()
        self.sent()

    def hear_routes(self, *routes: Route) -> None:
        version = self.portal.core.routes.version + 1
        self.worker.channels.on_ctl(0, ROUTE_MESSAGES.encode(RouteTable(version, routes)))

    def hear(self, *messages: PortalMessage) -> None:
        """The sibling says so; everything that follows at once has happened then."""
        for message in messages:
            self.worker.channels.on_ctl(SIBLING, PORTAL_MESSAGES.encode(message))
        self.dro.stepper.settle()

    def sent(self) -> list[PortalMessage | RouteMessage]:
        """What the sibling was told since the last call."""
        frames, self.worker.channels.sent = self.worker.channels.sent, []
        return [message for worker, message in all_messages(frames) if worker == SIBLING]

    def hand(self, handle: int, first: int, *payloads: bytes) -> None:
        """The sibling hands over messages of equal size, from that topic sqn on."""
        size = 12 + len(payloads[0])
        messages = [lbmc.HEADER.pack(0, 0, size, 0, first + i) + payload for i, payload in enumerate(payloads)]
        chunk = b"".join(messages)
        runs = [Run(handle, first, len(messages), 0, size, size, 0, 0, 0)]
        hand_over(self.ring, self._queues, ENDPOINT, chunk, runs)
        self.portal._shell._intake.take()


@contextmanager
def one_endpoint(
    folder: Path,
    stepper: Stepper,
    xml: str = "",
    *,
    transport: str | None = None,
    um: str | None = None,
    daemon: str = "",
) -> Iterator[OneEndpoint]:
    """`xml`: elements of the endpoint; `um`: options of the TRD."""

    def of_one(value: str | None) -> Mapping[int, str] | None:
        return None if value is None else {ENDPOINT: value}

    with one_process(
        folder, stepper, 1, portal_xml={ENDPOINT: xml}, transports=of_one(transport), um=of_one(um), daemon=daemon
    ) as dro:
        yield OneEndpoint(dro)

"""Siblings of a portal under test as far as the bus goes: what frames hold, and who confirms them."""

from __future__ import annotations

from collections.abc import Iterable

from dro.bus.messages import ROUTE_MANAGER, ROUTE_MESSAGES, RouteMessage
from portals.decisions.messages import PORTAL_MESSAGES, FramesAcked, PortalMessage
from tests.fakes.worker import FakeWorker


def messages_of(worker: int, frame: bytes) -> list[PortalMessage | RouteMessage]:
    """Of a frame to or from that worker, without confirmations."""
    if worker == ROUTE_MANAGER:
        return [ROUTE_MESSAGES.decode(frame)]
    return [message for message in PORTAL_MESSAGES.decode_all(frame) if not isinstance(message, FramesAcked)]


def all_messages(frames: Iterable[tuple[int, bytes]]) -> list[tuple[int, PortalMessage | RouteMessage]]:
    """With the worker that each was sent to."""
    return [(worker, message) for worker, frame in frames for message in messages_of(worker, frame)]


def confirm_at_once(worker: FakeWorker) -> None:
    """Every sibling confirms each frame of that worker in the next turn."""
    channels = worker.channels
    send = channels.send_ctl

    def send_and_confirm(to: int, frame: bytes) -> None:
        send(to, frame)
        if to != ROUTE_MANAGER and messages_of(to, frame):
            worker.loop.call_soon(lambda: channels.on_ctl(to, PORTAL_MESSAGES.encode(FramesAcked(1))))

    channels.send_ctl = send_and_confirm  # type: ignore[method-assign,assignment]  # the same, and confirmed

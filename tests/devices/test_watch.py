"""What the kernel tells of devices and addresses: any change is told on, soon and once, and which are gone."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Container

import pytest

from dro.clock import s
from dro.devices import follower
from dro.devices.watch import SETTLE_NS, AddressWatch, removed
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from tests.fakes.clock import SteppedClock


def link(kind: int, number: int) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, number, 0, 0)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def test_devices_that_are_gone_are_told_by_their_numbers() -> None:
    assert removed(link(17, 5) + link(16, 6) + link(17, 7)) == {5, 7}
    assert removed(link(20, 9)) == set()


@pytest.mark.parametrize(
    "data", [b"", b"x", bytes(16), link(17, 5)[:20], b"\xff" * 64, struct.pack("=IHHII", 16, 17, 0, 0, 0)]
)
def test_what_is_no_message_is_no_device(data: bytes) -> None:
    assert removed(data) == set()


class Kernel:
    """One end of a pair of sockets in place of route netlink."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        self.is_full = False
        kernel = self

        class Socket:
            def fileno(self) -> int:
                return ours.fileno()

            def bind(self, _: object) -> None:
                pass

            def recv(self, size: int) -> bytes:
                if kernel.is_full:
                    kernel.is_full = False
                    raise OSError(errno.ENOBUFS, "full")
                return ours.recv(size)

            def close(self) -> None:
                ours.close()

        monkeypatch.setattr(socket, "socket", lambda *_: Socket())


def test_messages_that_come_together_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = SteppedClock(), list[Container[int]]()
    kernel = Kernel(monkeypatch)
    with contextlib.closing(Loop(clock)) as loop, kernel.theirs:
        watch = AddressWatch(loop, told.append)
        kernel.theirs.send(link(17, 5))
        loop.run_once(0)
        kernel.theirs.send(link(17, 6))
        loop.run_once(0)
        assert told == []
        clock.time_ns += SETTLE_NS
        loop.run_once(0)
        assert told == [{5, 6}]
        kernel.is_full = True
        kernel.theirs.send(b"")
        loop.run_once(0)
        clock.time_ns += SETTLE_NS
        loop.run_once(0)
        assert 1 in told[1]
        assert 77 in told[1], "more was told than there was room for: it may be any device"
        watch.close()


def test_who_may_not_listen_is_told_what_to_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", refuse)
    with contextlib.closing(Loop(SteppedClock())) as loop, pytest.raises(ResourceError, match="cannot be watched") as e:
        AddressWatch(loop, lambda _: None)
    assert "AF_NETLINK" in e.value.remedy


def test_what_is_in_the_way_is_told_each_minute_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, troubles, missing = SteppedClock(), list[str](), ["no device has the address 10.0.0.1"]
    caplog.set_level("INFO")
    kernel = Kernel(monkeypatch)
    monkeypatch.setattr(follower, "follow_devices", lambda gone, more: list(missing))
    with contextlib.closing(Loop(clock)) as loop, kernel.theirs:
        made = follower.DeviceFollower(loop, troubles.append)
        kernel.theirs.send(link(17, 5))
        for _ in range(125):
            loop.run_once(0)
            clock.time_ns += s(1)
        told = [record.msg for record in caplog.records]
        assert told == [LogEvent.DEVICE_GONE] * 3
        missing.clear()
        loop.run_once(0)
        assert troubles == ["no device has the address 10.0.0.1", ""]
        assert caplog.records[-1].msg == LogEvent.DEVICE_BACK
        assert loop.next_deadline() is None, "nothing is looked for any more"
        made.close()

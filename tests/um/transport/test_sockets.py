"""The sockets of the transports never make the loop wait."""

from __future__ import annotations

import os
import socket

import pytest

from dro.errors import ResourceError
from dro.um.transport import sockets

LOOPBACK = "127.0.0.1"
GROUP = sockets.ip_number("239.201.0.1")


def test_no_socket_blocks() -> None:
    with (
        sockets.bind_in_range(socket.SOCK_DGRAM, LOOPBACK, (0,), option="test") as bound,
        sockets.multicast_sender(GROUP, bound.getsockname()[1], LOOPBACK, ttl=0, buffer_bytes=0) as sender,
        sockets.multicast_receiver(GROUP, 0, LOOPBACK, buffer_bytes=0, option="test") as receiver,
    ):
        assert [sock.getblocking() for sock in (bound, sender, receiver)] == [False] * 3


def test_a_group_that_cannot_be_joined_leaves_no_socket() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ResourceError, match=r"cannot listen to group 10\.0\.0\.1:0") as raised:
        sockets.multicast_receiver(sockets.ip_number("10.0.0.1"), 0, LOOPBACK, buffer_bytes=0, option="test")
    assert os.listdir("/proc/self/fd") == before
    assert raised.value.remedy == "change test or the interface"

"""The floor of what a router in plain Python costs: one process, one datagram at a time in and out, nothing else.

`python -m tests.bench.traffic.naive_forwarder IN OUT`, both multicast groups as `239.1.2.3:5000`, on loopback.
"""

from __future__ import annotations

import socket
import sys

LOOPBACK = socket.inet_aton("127.0.0.1")


def main(incoming: str, outgoing: str) -> None:
    (group, port), (to, to_port) = incoming.split(":"), outgoing.split(":")
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.bind((group, int(port)))
    receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + LOOPBACK)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, LOOPBACK)
    sender.connect((to, int(to_port)))
    buffer = bytearray(65536)
    view = memoryview(buffer)
    while True:
        count = receiver.recv_into(buffer)
        sender.send(view[:count])


if __name__ == "__main__":
    main(*sys.argv[1:3])

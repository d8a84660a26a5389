"""The harness itself: namespaces, loss, capture, verdicts, and the replayed source."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.rigs.netns import namespace
from tests.rigs.netns.capture import judge, ports
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.process import ROOT, TaskFailed
from tests.rigs.replay import DATA_GROUP, DECODE_AS, NAK_PORT, RETRANSMISSION, SOURCE_IP, nak_packet, sqn_of
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.long]
GROUP = ("239.77.1.1", 14400)
UDP_SEGMENT = 103  # of Linux; the socket module has no name for these two
SO_RCVBUFFORCE = 33
MESSAGE = bytes.fromhex("0000002550a53ee900000000") + bytes(25)  # one LBMC message of 37 bytes


def two_hosts(net: Net) -> tuple[Host, Host]:
    return net.host("left", {"trd1": "10.77.0.1/24"}), net.host("right", {"trd1": "10.77.0.2/24"})


def group_receiver(host: Host, group: tuple[str, int] = GROUP) -> socket.socket:
    with host.inside():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    s.bind(group)
    member = socket.inet_aton(group[0]) + socket.inet_aton(host.address())
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    s.settimeout(5)
    return s


def udp_sender(host: Host) -> socket.socket:
    with host.inside():
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def send_numbers(count: int, to: tuple[str, int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for n in range(count):
            s.sendto(struct.pack("!I", n), to)


def drain(s: socket.socket) -> list[bytes]:
    """What is there by now; senders on other hosts have returned, and delivery on a veth is synchronous enough."""
    got = []
    s.settimeout(0.5)
    try:
        while True:
            got.append(s.recv(65536))
    except TimeoutError:
        return got


def test_a_failing_function_brings_its_traceback_home(net: Net) -> None:
    left, _ = two_hosts(net)
    with pytest.raises(TaskFailed, match="ValueError: not this way"):
        left.call(_fail, "not this way")
    task = left.spawn(os.kill, 0, signal.SIGKILL)
    with pytest.raises(TaskFailed, match="ended with -9"):
        task.result()


def _fail(text: str) -> None:
    raise ValueError(text)


def test_namespaces_of_a_crashed_run_are_swept(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys\nfrom tests.rigs.netns.harness import Net\n"
        "from tests.rigs.waiting import wait_until\n"
        f"host = Net(pathlib.Path({str(tmp_path)!r})).host('h', {{'trd1': '10.77.0.1/24'}})\n"
        "process = host.start(['sleep', '600'])\nwait_until(host.pids, 'the process is in the namespace', 30)\n"
        "print(host.namespace, *host.pids(), flush=True)\nos._exit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    name, pid = done.stdout.split()
    wait_until(lambda: not namespace.start_ticks(int(pid)) or _is_zombie(int(pid)), "the kernel ending the orphan")
    namespace.sweep()  # or the sweep of a test beside this one, which may have been first
    wait_until(lambda: not (namespace.NAMES / name).exists(), "the end of the namespace")


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_random_loss_is_near_its_rate_and_counted(net: Net) -> None:
    left, right = two_hosts(net)
    with group_receiver(right) as receiver:
        loss = right.lose(0.1, dports=[(14400, 14401)], groups=[GROUP[0]])
        left.call(send_numbers, 5000, GROUP)
        got = {struct.unpack("!I", p)[0] for p in drain(receiver)}
        count = loss.remove()
        assert count.seen == 5000
        assert len(got) == 5000 - count.dropped
        assert 350 < count.dropped < 650  # seven standard deviations of a binomial 5000 x 0.1
        left.call(send_numbers, 100, GROUP)
        assert len(drain(receiver)) == 100


def test_every_nth_loss_is_exact_and_spares_other_ports(net: Net) -> None:
    left, right = two_hosts(net)
    with group_receiver(right) as receiver, group_receiver(right, (GROUP[0], 14500)) as spared:
        right.lose(every=4, dports=[14400])
        left.call(send_numbers, 100, GROUP)
        left.call(send_numbers, 100, (GROUP[0], 14500))
        assert [struct.unpack("!I", p)[0] for p in drain(receiver)] == [n for n in range(100) if n % 4]
        assert len(drain(spared)) == 100


def test_a_cut_is_silent_and_can_be_mended(net: Net) -> None:
    left, right = two_hosts(net)
    with group_receiver(right) as receiver, udp_sender(left) as sender:
        net.cut(left, "trd1")
        sender.sendto(b"lost", GROUP)
        assert "LOWER_UP" in left.run(["ip", "link", "show", "trd1"]).stdout
        net.mend(left, "trd1")
        sender.sendto(b"heard", GROUP)
        assert receiver.recv(100) == b"heard"


@pytest.mark.tshark
def test_a_capture_is_complete_from_its_start_to_its_stop(net: Net) -> None:
    left, right = two_hosts(net)
    of_trd, of_host = net.capture("trd1"), right.capture()
    with group_receiver(right):
        right.lose(0.5, dports=[14400])
        left.call(send_numbers, 2000, GROUP)
        paths = of_trd.stop(), of_host.stop()
    for path in paths:
        verdict = judge(path, [ports("udp", 14400, "data", 14401)], undecoded_ok=True)
        assert verdict.counts["undecoded"] == 2000
        assert not verdict.oddities


@pytest.mark.tshark
def test_a_capture_shows_datagrams_and_not_offload_trains(net: Net) -> None:
    left, _ = two_hosts(net)
    capture = net.capture("trd1", "udp")
    with udp_sender(left) as sender:
        sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 20 + len(MESSAGE))
        data = b"".join(bytes.fromhex(f"00002f3af9d74f3e{n:08x}0000000080030000") + MESSAGE for n in range(8))
        sender.sendto(data, GROUP)
    verdict = judge(capture.stop(), DECODE_AS)
    assert verdict.counts["lbtrm.data"] == 8


@pytest.mark.tshark
def test_a_tcp_session_on_any_port_of_a_range_is_clean(net: Net) -> None:
    left, right = two_hosts(net)
    capture = net.capture("trd1")
    with left.inside():
        listener = socket.create_server((left.address(), 20007))
    with listener:
        listener.settimeout(5)
        with right.inside():
            client = socket.create_connection(listener.getsockname(), timeout=5)
        server, _ = listener.accept()
        with client, server:
            client.sendall(bytes.fromhex("086b000cff080000f1789bcc"))  # the session id message of a receiver
            server.sendall(MESSAGE * 3)
            assert len(client.recv(3 * len(MESSAGE), socket.MSG_WAITALL)) == 3 * len(MESSAGE)
    path = capture.stop()
    verdict = judge(path, [ports("tcp", 20000, "lbttcp", 20009)])
    verdict.assert_clean({"lbttcp": 2})
    assert verdict.counts["lbmc"] == 4
    with pytest.raises(AssertionError, match="undecoded"):
        judge(path, [ports("tcp", 20000, "lbttcp", 20009), "tcp.port==20007,data"]).assert_clean()


@pytest.mark.tshark
def test_a_datagram_in_ip_fragments_is_dropped_and_judged_whole(net: Net) -> None:
    left, right = two_hosts(net)
    capture = net.capture("trd1")
    with group_receiver(right) as receiver, udp_sender(left) as sender:
        loss = right.lose(every=2, dports=[GROUP[1]])
        for n in range(4):
            sender.sendto(bytes.fromhex(f"00002f3af9d74f3e{n:08x}0000000080030000") + MESSAGE * 200, GROUP)
        assert [sqn_of(p) for p in drain(receiver)] == [1, 3]
        assert loss.count().seen == 4
    verdict = judge(capture.stop(), [ports("udp", 14400, "lbtrm")])
    verdict.assert_clean()
    assert (verdict.counts["lbtrm.data"], verdict.counts["lbmc"]) == (4, 800)


# the replayed source


def receive_session(address: str, total: int, timeout_s: float) -> tuple[list[int], int, int]:
    """A plain receiver with NAKs of its own: (distinct sqns in first-arrival order, retransmissions, NAK packets)."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as data,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as naks,
    ):
        data.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        data.bind(DATA_GROUP)
        member = socket.inet_aton(DATA_GROUP[0]) + socket.inet_aton(address)
        data.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        data.settimeout(0.05)
        print("ready")
        seen: dict[int, None] = {}
        resent = nak_packets = high = 0
        next_nak_s = 0.0
        deadline_s = time.monotonic() + timeout_s
        while len(seen) < total and time.monotonic() < deadline_s:
            try:
                payload = data.recv(2048)
            except TimeoutError:
                payload = b""
            if payload and payload[0] == 0:
                seen[sqn_of(payload)] = None
                resent += payload[16] & RETRANSMISSION != 0
                high = max(high, sqn_of(payload))
            elif payload and payload[0] == 2:
                high = max(high, int.from_bytes(payload[12:16], "big"))
            if seen and time.monotonic() > next_nak_s:
                next_nak_s = time.monotonic() + 0.05
                missing: Sequence[int] = [n for n in range(high + 1) if n not in seen][:100]
                if missing:
                    naks.sendto(nak_packet(missing), (SOURCE_IP, NAK_PORT))
                    nak_packets += 1
        return list(seen), resent, nak_packets


@pytest.mark.tshark
def test_a_replay_arrives_complete_over_ten_percent_loss(net: Net) -> None:
    source = net.host("source", {"trd1": f"{SOURCE_IP}/24"})
    receiver = net.host("receiver", {"trd1": "10.29.4.101/24"})
    capture = net.capture("trd1")
    loss = receiver.lose(0.1, dports=[DATA_GROUP[1]], groups=[DATA_GROUP[0]])
    task = receiver.spawn(receive_session, "10.29.4.101", 5000, 60.0)
    task.wait_output("^ready$")
    log = net.folder / "naks.jsonl"
    replay = source.start_python("-m", "tests.rigs.replay", "--speed", "4", "--linger", "30", "--naks", str(log))
    sqns, resent, nak_packets = task.result(60)
    assert replay.stop() == 0
    assert sorted(sqns) == list(range(5000))
    assert sqns != sorted(sqns)  # repairs came late
    assert resent > 350
    assert loss.count().dropped > 350
    summary = json.loads(replay.stdout.splitlines()[-1])
    assert summary["data"] == 5000
    assert summary["recorded_retransmissions"] == summary["ncf"] == summary["refused"] == summary["foreign"] == 0
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(entries) == nak_packets == summary["nak_packets"]
    assert sum(e["answered"] for e in entries) == summary["retransmissions"] >= resent
    assert {s for e in entries for s in e["sqns"]} <= set(range(5000))
    verdict = judge(capture.stop(), DECODE_AS)
    verdict.assert_clean({"lbtrm.data": 5000, "lbtrm.rx": resent, "lbtrm.nak": nak_packets, "lbmr.tir": 30})


def test_a_replay_waits_for_a_query_and_answers_later_ones(net: Net) -> None:
    source = net.host("source", {"trd1": f"{SOURCE_IP}/24"})
    asker = net.host("asker", {"trd1": "10.29.4.101/24"})
    replay = source.start_python(
        "-m", "tests.rigs.replay", "--after-query", "--speed", "20", "--linger", "0.2", "--recovery"
    )
    replay.wait_output("^ready$")
    with group_receiver(asker, ("239.101.3.1", 12965)) as tr, udp_sender(asker) as sender:
        sender.sendto(b"\x18\x01\x00\x00another.topic\x00", ("239.101.3.1", 12965))
        sender.sendto(b"\x19\x01\x00\x00\x01^29west\\.example\\.multi\\.[01]$\x00", ("239.101.3.1", 12965))
        heard: list[bytes] = []
        while len(heard) < 1 or heard[-1][:4] != b"\x18\x00\x00\x01":
            heard.append(tr.recv(2048))
        assert b"\x00\x10" in heard[-1]  # the creation advertisement, the first of the recording
        sender.sendto(b"\x18\x01\x00\x0029west.example.multi.0\x00", ("239.101.3.1", 12965))
        assert replay.wait(30) == 0
    summary = json.loads(replay.stdout.splitlines()[-1])
    assert summary["queries"] == 2
    assert summary["tr"] == 62 + 1
    assert (summary["data"], summary["recorded_retransmissions"]) == (5000, 541)
    assert (summary["sm"], summary["ncf"]) == (4, 45)

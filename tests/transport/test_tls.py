"""LBT-TCP over TLS: the same data, unreadable on its way, and nothing for who cannot prove who it is."""

from __future__ import annotations

import logging
import random
import shutil
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dro.clock import ms, s
from dro.config.um.options import DEFAULTS
from dro.config.um.sets import TlsOptions
from dro.config.um.text_file import parse_um_text
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.proto.tcp.source import SlowReceiver
from dro.transport import tls
from dro.transport.kind import SenderEvents, SessionHost
from dro.transport.mmsg import DatagramBatch
from dro.transport.stream import PlainStream
from dro.transport.tcp import sender as tcp_sender
from dro.transport.tcp.kind import TcpReceivers, TcpSenders
from dro.transport.tcp.sender import TcpSender
from dro.transport.tls import TlsStream, stream_maker
from dro.wire.source_string import TcpAddress
from tests.builders.certificates import self_signed
from tests.fakes.session_sink import KeepingSink, Message
from tests.fakes.worker import logged
from tests.transport.test_tcp import LOOPBACK, TcpBench, patterned

PASSWORD = "secret"
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, which makes certificates")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> TlsOptions:
    """The server has one certificate, and that is the one which clients trust."""
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"), "server", password=PASSWORD)
    return replace(
        TlsOptions.of(DEFAULTS), use_tls=True, certificate=certificate, key=key, key_password=PASSWORD,
        trusted=certificate, limit_ns=s(5),
    )  # fmt: skip


def bench_of(options: TlsOptions) -> TcpBench:
    return TcpBench(stream_maker(options, is_server=True), stream_maker(options, is_server=False))


@pytest.fixture
def bench(options: TlsOptions) -> Iterator[TcpBench]:
    made = bench_of(options)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of the log, however many there were before."""
    log = logging.getLogger(tls.__name__)
    monkeypatch.setattr(tls, "limited", lambda event, extra: log.warning(event, extra=extra))


def test_what_is_sent_arrives_whatever_its_size(bench: TcpBench) -> None:
    sender = bench.sender(buffer_bytes=1 << 20)
    sinks = [bench.joined(sender)[1] for _ in range(3)]
    expected: list[Message] = []
    for first, (size, count) in enumerate([(10, 1000), (1400, 300), (40_000, 40), (1, 5), (16_384, 20), (60_000, 3)]):
        expected += bench.send(sender, 1, first * 1000, [patterned(size, i) for i in range(count)])
    bench.until(lambda: all(len(sink.got) == len(expected) for sink in sinks))
    assert [sink.got for sink in sinks] == [expected] * 3
    bench.until(lambda: not sender.core.stats.bytes_buffered)
    done = sender.settling(bench.loop.now_ns(), 0, is_last=True)
    bench.until(lambda: done(bench.loop.now_ns()))


def test_a_slow_receiver_gets_all_of_it_also_when_the_session_ends_meanwhile(bench: TcpBench) -> None:
    sender = bench.sender(buffer_bytes=1 << 22, send_buffer=4096)
    _, sink = bench.joined(sender)
    payloads = [patterned(5000, i) for i in range(400)]
    expected = bench.send(sender, 1, 0, payloads)
    sender.close(s(2), bench.loop.now_ns())
    bench.until(lambda: len(sink.got) == len(expected))
    assert sink.got == expected
    bench.until(lambda: "ended" in sink.events)


def test_messages_that_are_discarded_for_a_slow_receiver_leave_the_stream_sound(bench: TcpBench) -> None:
    sender = bench.sender(SlowReceiver.BOUNDED_LATENCY, buffer_bytes=40_000, send_buffer=4096)
    _, sink = bench.joined(sender)
    for i in range(300):
        bench.send(sender, 1, i, [patterned(9000, i)])
    bench.until(lambda: bool(sink.got) and sink.got[-1][1] == 299)
    assert all(payload == patterned(9000, sqn) for _, sqn, payload in sink.got)
    assert sender.core.stats.msgs_discarded == 300 - len(sink.got)


def test_nothing_of_it_can_be_read_on_its_way(bench: TcpBench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = bytearray()
    push = TlsStream._push

    def keep(stream: TlsStream) -> None:
        seen.extend(stream._begun)
        push(stream)

    monkeypatch.setattr(TlsStream, "_push", keep)
    sender = bench.sender()
    with socket.create_server((LOOPBACK, 0)) as between:
        address = replace(sender.address, port=between.getsockname()[1])
        sink = KeepingSink()
        receiver = bench.receiver(address, sink)
        near, _ = between.accept()
        far = socket.create_connection((LOOPBACK, sender.address.port))
        passed = bytearray()
        for sock in (near, far):
            sock.setblocking(False)

        def relay() -> bool:
            for source, target in ((near, far), (far, near)):
                try:
                    piece = source.recv(1 << 16)
                except BlockingIOError:
                    continue
                passed.extend(piece)
                target.sendall(piece)
            return receiver.is_connected and sender.core.stats.num_clients == 1

        bench.until(relay)
        bench.send(sender, 1, 0, [b"all of this is confidential" * 10])
        bench.until(lambda: bool(relay() and sink.got))
        near.close()
        far.close()
    assert b"confidential" in seen
    assert b"confidential" not in passed
    assert len(passed) > 270


def test_a_source_without_a_trusted_certificate_is_refused(
    options: TlsOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = self_signed(tmp_path, "impostor")
    bench = TcpBench(
        stream_maker(replace(options, certificate=certificate, key=key), is_server=True),
        stream_maker(options, is_server=False),
    )
    sender = bench.sender()
    sink = KeepingSink()
    receiver = bench.receiver(sender.address, sink)
    bench.until(lambda: "ended" in sink.events)
    assert not receiver.was_connected
    bench.settle()
    told = [(event, str(fields["reason"])) for _, event, fields in logged(caplog)]
    assert [event for event, _ in told] == [LogEvent.TLS_FAILED] * 2, told
    assert "certificate verify failed: self-signed certificate" in "".join(reason for _, reason in told)
    assert (sender.core.stats.num_clients, sender._opening) == (0, {})
    bench.close()


@pytest.mark.parametrize("is_source_plain", [False, True])
def test_a_plain_partner_gets_and_gives_nothing(options: TlsOptions, is_source_plain: bool) -> None:
    with_tls = stream_maker(replace(options, limit_ns=ms(50)), is_server=not is_source_plain)
    bench = TcpBench(PlainStream, with_tls) if is_source_plain else TcpBench(with_tls, PlainStream)
    sender = bench.sender()
    sink = KeepingSink()
    receiver = bench.receiver(sender.address, sink)
    if is_source_plain:
        bench.until(lambda: sender.core.stats.num_clients == 1)
        bench.send(sender, 1, 0, [b"in plain text"])
    bench.until(lambda: "ended" in sink.events)
    assert (sink.got, receiver.core.stats.lbm_msgs_rcved) == ([], 0)
    bench.until(lambda: not sender._opening)
    assert sender.core.stats.num_clients == is_source_plain
    bench.close()


def test_who_says_nothing_is_closed_in_time_and_takes_no_room_from_others(
    bench: TcpBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_sender, "OPENING_MAX", 3)
    sender = bench.sender()
    silent = [socket.create_connection((LOOPBACK, sender.address.port)) for _ in range(5)]
    bench.until(lambda: len(sender._opening) == 3)
    bench.settle()
    for sock in silent:
        sock.setblocking(False)
    assert [sock.recv(10) for sock in silent[:2]] == [b"", b""], "the oldest are closed"
    with pytest.raises(BlockingIOError):
        silent[2].recv(10)
    _, sink = bench.joined(sender)
    expected = bench.send(sender, 1, 0, [b"x"])
    bench.until(lambda: sink.got == expected)
    sender.close(0, bench.loop.now_ns())
    assert sender._opening == {}
    for sock in silent:
        sock.close()


def test_a_partner_that_knows_only_the_suite_of_um_is_understood(options: TlsOptions) -> None:
    """TLS 1.2 and DHE-RSA-AES256-GCM-SHA384."""
    bench = bench_of(options)
    sender = bench.sender()
    context = ssl.create_default_context(cafile=options.trusted)
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("DHE-RSA-AES256-GCM-SHA384")
    bench.of_receiver = partial(TlsStream, context, s(5))
    _, sink = bench.joined(sender)
    expected = bench.send(sender, 1, 0, [patterned(3000, i) for i in range(50)])
    bench.until(lambda: sink.got == expected)
    bench.close()


def test_without_use_tls_streams_are_plain() -> None:
    assert stream_maker(TlsOptions.of(DEFAULTS), is_server=True) is PlainStream


@pytest.mark.parametrize(
    ("change", "is_server", "remedy"),
    [
        ({"certificate": "/nowhere.pem"}, True, "check tls_certificate or tls_certificate_key"),
        ({"key_password": "wrong"}, True, "check tls_certificate or tls_certificate_key"),
        ({"trusted": "/nowhere.pem"}, False, "check tls_trusted_certificates"),
        ({"cipher_suites": "NONSENSE"}, False, "check tls_cipher_suites"),
    ],
)
def test_what_cannot_be_used_is_named(
    options: TlsOptions, change: dict[str, str], is_server: bool, remedy: str
) -> None:
    with pytest.raises(ResourceError, match="TLS cannot be used: ") as no:
        stream_maker(replace(options, **change), is_server=is_server)  # type: ignore[arg-type]  # all are text
    assert no.value.remedy == remedy


def test_random_pieces(bench: TcpBench) -> None:
    rng = random.Random(7)
    sender = bench.sender(buffer_bytes=1 << 20, send_buffer=4096)
    _, sink = bench.joined(sender)
    expected: list[Message] = []
    for i in range(200):
        expected += bench.send(sender, 1, i, [patterned(rng.choice((1, 100, 3000, 20_000, 50_000)), i)])
        if rng.random() < 0.3:
            bench.loop.run_once(0)
    bench.until(lambda: len(sink.got) == len(expected))
    assert sink.got == expected


def test_the_options_of_a_context_reach_both_halves(options: TlsOptions, bench: TcpBench) -> None:
    text = f"""
    context use_tls 1
    context tls_certificate {options.certificate}
    context tls_certificate_key {options.key}
    context tls_certificate_key_password {PASSWORD}
    context tls_trusted_certificates {options.trusted}
    source transport_tcp_interface {LOOPBACK}
    receiver transport_tcp_interface {LOOPBACK}
    """
    um = parse_um_text(text, pytest.fail, file="a.cfg")
    host = SessionHost(bench.loop, um, DatagramBatch(), random.Random(1))
    sink = KeepingSink()
    sender = TcpSenders(host, SenderEvents(lambda *_: None, lambda _: None), False).acquire(um)
    assert isinstance(sender, TcpSender)
    assert isinstance(sender.address, TcpAddress)
    receivers = TcpReceivers(host, sink, sink.on_ended)
    receiver = receivers.join(sender.address, um, bench.loop.now_ns())
    bench.until(lambda: receiver.is_connected and sender.core.stats.num_clients == 1)
    assert isinstance(receiver._stream, TlsStream)
    assert [type(stream) for stream in sender._clients.values()] == [TlsStream]
    expected = bench.send(sender, 1, 0, [b"x" * 100])
    bench.until(lambda: sink.got == expected)
    receiver.leave()
    sender.close(0, bench.loop.now_ns())

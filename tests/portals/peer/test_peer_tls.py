"""TLS between peers: both sides prove who they are, every failure has a reason and a remedy, files may be renewed."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from dro.clock import ms, s
from dro.config.dro_xml.model import TlsConfig
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.transport.stream import ByteStream, PlainStream, StreamMaker
from dro.transport.tls_failure import failure_of, speaks_tls
from dro.transport.tls_files import context_of, problems
from portals.peer.stream import peer_tls
from portals.peer.stream.lz4_stream import Lz4Stream
from portals.peer.stream.peer_tls import PeerStreamMaker, PeerTlsStream
from tests.fakes.worker import logged
from tests.portals.peer.test_lz4_stream import End
from tests.rigs.certificates import Authority

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
SECRET = "a password"
HELLO = b"\x08\x00\x00\x40" + bytes(60)
NOW_S = time.time()


@dataclass
class Site:
    """Two authorities and what they have signed."""

    folder: Path
    ours: Authority
    others: Authority

    def tls(self, name: str = "a", **change: object) -> TlsConfig:
        certificate, key = (str(self.folder / f"{name}.{end}") for end in ("pem", "key"))
        made = TlsConfig(certificate, key, "", self.ours.trusted, ())
        return replace(made, **change)  # type: ignore[arg-type]  # the tests name fields


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("tls")
    made = Site(folder, Authority(folder), Authority(folder, "others"))
    made.ours.leaf("a", dns=["dro-a.example", "alias.example"])
    made.ours.leaf("b", dns=["dro-b.example"])
    made.ours.leaf("rsa", key="rsa")
    made.ours.leaf("locked", password=SECRET)
    made.ours.leaf("expired", begins=-9, ends=-1)
    made.ours.leaf("early", begins=1)
    made.ours.leaf("soon", ends=10.5)
    made.ours.leaf("one-sided", is_for_clients=False)
    made.others.leaf("stranger")
    return made


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of the log, however many there were before."""
    log = logging.getLogger(peer_tls.__name__)

    def write(event: LogEvent, extra: dict[str, object], key: object = None) -> None:
        assert event.level is not None
        log.log(event.level, event, extra=extra)

    monkeypatch.setattr(peer_tls, "limited", write)
    monkeypatch.setattr(peer_tls, "daily", write)


class Link:
    """A listening side and connections to it."""

    def __init__(self, acceptor: StreamMaker, initiator: StreamMaker) -> None:
        self.loop = Loop()
        self.makers = acceptor, initiator
        self.ends: list[End] = []
        self._listener = socket.create_server(("127.0.0.1", 0))

    def connect(self) -> tuple[End, End]:
        """The acceptor's end and the initiator's."""
        near = socket.socket()
        near.setblocking(False)
        near.connect_ex(self._listener.getsockname())
        far, _ = self._listener.accept()
        far.setblocking(False)
        pair = (
            End(self.loop, self.makers[0](self.loop, far, True)),
            End(self.loop, self.makers[1](self.loop, near, False)),
        )
        self.ends += pair
        for end in pair:
            end.start()
        return pair

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + 10
        while not done():
            self.loop.run_once(ms(10))
            if time.monotonic() > deadline:
                pytest.fail(f"it did not happen: {[end.told for end in self.ends]}")

    def close(self) -> None:
        for end in self.ends:
            end.stream.close()
        self._listener.close()
        self.loop.close()


def makers(acceptor: TlsConfig, initiator: TlsConfig) -> tuple[StreamMaker, StreamMaker]:
    return PeerStreamMaker(acceptor, is_server=True), PeerStreamMaker(initiator, is_server=False)


def of_context(tls: TlsConfig, *, is_server: bool, change: Callable[[ssl.SSLContext], object]) -> StreamMaker:
    """With a context that no configuration makes."""
    context = context_of(tls, is_server=is_server)
    change(context)
    return partial(PeerTlsStream, context, s(5), "")


def exchange(link: Link) -> tuple[End, End]:
    """Both say HELLO and hear the other's."""
    acceptor, initiator = link.connect()
    link.until(lambda: acceptor.told == initiator.told == ["open"])
    acceptor.send([HELLO, b"acceptor"])
    initiator.send([HELLO, b"initiator"])
    link.until(lambda: acceptor.got == HELLO + b"initiator" and initiator.got == HELLO + b"acceptor")
    return acceptor, initiator


def session_of(end: End) -> ssl.SSLSocket:
    assert isinstance(end.stream, PeerTlsStream)
    return end.stream._tls


# what works


@pytest.mark.parametrize(
    ("acceptor", "initiator"),
    [
        ({}, {"name": "b"}),
        ({"name": "locked", "certificate_key_password": SECRET}, {"name": "rsa"}),
        ({"peer_name": "DRO-B.example"}, {"name": "b", "peer_name": "alias.example"}),
        ({"peer_name": "rsa"}, {"name": "rsa", "peer_name": "a"}),  # common names
    ],
)
def test_two_sides_that_trust_each_other(
    site: Site, acceptor: dict[str, str], initiator: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Link(*makers(site.tls(**acceptor), site.tls(**initiator)))) as link:
        for end in exchange(link):
            assert session_of(end).version() == "TLSv1.3"
            assert session_of(end).compression() is None
    assert logged(caplog) == []


def test_a_certificate_is_trusted_by_itself(site: Site) -> None:
    """Its authority is in no list."""
    a, b = site.tls("a", trusted_certificates=str(site.folder / "b.pem")), site.tls("b")
    with closing(Link(*makers(a, replace(b, trusted_certificates=a.certificate)))) as link:
        exchange(link)


@pytest.mark.parametrize("suite", ["DHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"])
def test_suites_are_those_of_the_list_with_a_companion_of_tls_1_2(site: Site, suite: str) -> None:
    older = of_context(site.tls("rsa"), is_server=True, change=lambda c: setattr(c, "maximum_version", V12))
    chosen = PeerStreamMaker(site.tls(cipher_suites=(suite,)), is_server=False)
    with closing(Link(older, chosen)) as link:
        cipher = session_of(exchange(link)[1]).cipher()
        assert cipher is not None
        assert cipher[:2] == (suite, "TLSv1.2")


def test_tls_1_2_is_off_when_all_suites_are_of_1_3(site: Site) -> None:
    newer = site.tls(cipher_suites=("TLS_AES_256_GCM_SHA384",))
    assert context_of(newer, is_server=True).minimum_version == V13
    assert context_of(site.tls(), is_server=True).minimum_version == V12
    with closing(Link(*makers(newer, newer))) as link:
        exchange(link)


def test_nothing_of_a_session_is_kept_for_the_next(site: Site) -> None:
    for is_server in (True, False):
        context = context_of(site.tls(), is_server=is_server)
        assert context.options & ssl.OP_NO_RENEGOTIATION
        assert context.options & ssl.OP_NO_TICKET
        assert context.verify_mode is ssl.CERT_REQUIRED


def test_compressed_inside_of_tls(site: Site) -> None:
    with closing(Link(*makers(site.tls(), site.tls("b")))) as link:
        ends = exchange(link)
        inside = [End(link.loop, Lz4Stream(link.loop, end.stream)) for end in ends]
        for end in inside:
            end.start()
        noise = [os.urandom(70_000) + bytes([i]) * 200_000 for i in range(12)]
        for piece in noise:
            inside[0].send([piece])
            inside[1].send([piece[::-1]])
        link.until(lambda: len(inside[0].got) == len(inside[1].got) == sum(map(len, noise)))
        assert inside[1].got == b"".join(noise)
        assert inside[0].got == b"".join(piece[::-1] for piece in noise)


# what fails, with the words of both sides

NO_COMMON = "no cipher suite in common"
Change = Callable[[ssl.SSLContext], object]


def tell(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The reasons so far."""
    for record in caplog.records:
        assert record.msg == LogEvent.TLS_FAILED
        assert vars(record)["remedy"]
    return [vars(record)["reason"] for record in caplog.records]


def fail(link: Link, caplog: pytest.LogCaptureFixture, lines: int) -> tuple[list[str], tuple[End, End]]:
    """The reasons, once there are as many; neither side got a byte."""
    ends = link.connect()
    link.until(lambda: len(tell(caplog)) >= lines)
    for _ in range(20):
        link.loop.run_once(0)
    assert [bytes(end.got) for end in ends] == [b"", b""]
    return tell(caplog), ends


def limit(**values: object) -> Change:
    def change(context: ssl.SSLContext) -> None:
        for name, value in values.items():
            if name == "ciphers":
                context.set_ciphers(str(value))
            else:
                setattr(context, name, value)

    return change


UNKNOWN = (
    "the companion's certificate is of an unknown authority",
    "the companion does not know the authority of this side's certificate",
)
EXPIRED = "the companion's certificate has expired", "the companion says that this side's certificate has expired"
EARLY = (
    "the companion's certificate is not valid yet",
    "the companion does not accept this side's certificate: not valid yet, or too weak",
)
PURPOSE = (
    "the companion's certificate is not meant for this use",
    "the companion says that this side's certificate is not meant for this use",
)


@pytest.mark.parametrize("newest", [V13, V12])
@pytest.mark.parametrize("is_acceptor_wrong", [True, False])
@pytest.mark.parametrize(
    ("name", "reasons"), [("stranger", UNKNOWN), ("expired", EXPIRED), ("early", EARLY), ("one-sided", PURPOSE)]
)
def test_a_certificate_that_is_refused(
    site: Site,
    name: str,
    reasons: tuple[str, str],
    is_acceptor_wrong: bool,
    newest: ssl.TLSVersion,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if name == "one-sided" and is_acceptor_wrong:
        return  # it is for acceptors
    wrong, right = site.tls(name), site.tls("b")
    acceptor, initiator = (wrong, right) if is_acceptor_wrong else (right, wrong)
    older = limit(maximum_version=newest)
    with closing(Link(of_context(acceptor, is_server=True, change=older),
                      of_context(initiator, is_server=False, change=older))) as link:  # fmt: skip
        told, ends = fail(link, caplog, 2)
        assert sorted(told) == sorted(reasons)
        # with TLS 1.3 an initiator is open before the acceptor has looked at its certificate
        late = [["open", f"71: {reasons[1]}"]] if newest is V13 and not is_acceptor_wrong else [["lost"]]
        assert [end.told for end in ends] == [["lost"], *late]


@pytest.mark.parametrize(
    ("newest", "reason"),
    [
        (V13, "the companion wants a certificate and got none"),
        (V12, "no cipher suite in common, or the companion wants a certificate and got none"),
    ],
)
def test_a_companion_without_a_certificate(
    site: Site, newest: ssl.TLSVersion, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(site.ours.trusted)
    context.maximum_version = newest
    bare = partial(PeerTlsStream, context, s(5), "")
    with closing(Link(PeerStreamMaker(site.tls(), is_server=True), bare)) as link:
        assert sorted(fail(link, caplog, 2)[0]) == sorted(("the companion has no certificate", reason))


@pytest.mark.parametrize("is_acceptor_picky", [True, False])
def test_a_companion_with_another_name(site: Site, is_acceptor_picky: bool, caplog: pytest.LogCaptureFixture) -> None:
    picky, other = site.tls("a", peer_name="dro-c.example"), site.tls("b")
    with closing(Link(*makers(*((picky, other) if is_acceptor_picky else (other, picky))))) as link:
        told, ends = fail(link, caplog, 1)
        assert told == ["the companion's certificate is not for dro-c.example, it has dro-b.example, b"]
        assert ends[not is_acceptor_picky].told == ["lost"]


@pytest.mark.parametrize("is_acceptor_plain", [True, False])
def test_a_companion_that_speaks_plain(site: Site, is_acceptor_plain: bool, caplog: pytest.LogCaptureFixture) -> None:
    with_tls: StreamMaker = PeerStreamMaker(site.tls(), is_server=not is_acceptor_plain)
    pair = (PlainStream, with_tls) if is_acceptor_plain else (with_tls, PlainStream)
    with closing(Link(*pair)) as link:
        ends = link.connect()
        plain, other = ends if is_acceptor_plain else ends[::-1]
        link.until(lambda: plain.told)
        plain.send([HELLO])
        link.until(lambda: other.told == ["lost"])
        assert tell(caplog) == ["the companion does not speak TLS"]
        other.stream.close()
        if is_acceptor_plain:  # an acceptor that refuses says so in TLS, if its words are not lost with the connection
            link.until(lambda: speaks_tls(bytes(plain.got)))


@pytest.mark.parametrize(
    ("data", "is_tls"),
    [(b"\x16\x03\x01\x02\x00", True), (b"\x15\x03\x03\x00\x02", True), (HELLO, False), (b"\x16", False), (b"", False)],
)
def test_tls_is_known_by_its_first_bytes(data: bytes, is_tls: bool) -> None:
    assert speaks_tls(data) is is_tls


@pytest.mark.parametrize(
    ("acceptor", "initiator", "told"),
    [
        (limit(minimum_version=V13), limit(maximum_version=V12), ["no TLS version in common"] * 2),
        (limit(maximum_version=V12), limit(minimum_version=V13), ["no TLS version in common"] * 2),
        (
            limit(maximum_version=V12, ciphers="ECDHE-ECDSA-AES128-GCM-SHA256"),
            limit(ciphers="ECDHE-ECDSA-AES256-GCM-SHA384"),
            [NO_COMMON, f"{NO_COMMON}, or the companion wants a certificate and got none"],
        ),
    ],
)
def test_nothing_in_common(
    site: Site, acceptor: Change, initiator: Change, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    tls = site.tls()
    with closing(Link(of_context(tls, is_server=True, change=acceptor),
                      of_context(tls, is_server=False, change=initiator))) as link:  # fmt: skip
        got, ends = fail(link, caplog, 2)
        assert sorted(got) == told
        assert [end.told for end in ends] == [["lost"], ["lost"]]


@pytest.mark.parametrize("is_server", [True, False])
def test_a_companion_that_is_silent_or_goes_away(site: Site, is_server: bool, caplog: pytest.LogCaptureFixture) -> None:
    with_tls = PeerStreamMaker(site.tls(), is_server=is_server, limit_ns=ms(50))
    pair: tuple[StreamMaker, StreamMaker] = (with_tls, PlainStream) if is_server else (PlainStream, with_tls)
    with closing(Link(*pair)) as link:
        ends = link.connect()
        link.until(lambda: len(tell(caplog)) == 1)
        again = link.connect()
        again[is_server].stream.close()
        link.until(lambda: len(tell(caplog)) == 2)
        assert [end.told for end in (ends[not is_server], again[not is_server])] == [["lost"], ["lost"]]
    gone = "the companion closed the connection during the handshake"
    assert tell(caplog) == ["the handshake was not finished in time", gone]


def test_whatever_else_fails_has_a_reason() -> None:
    refused = ssl.SSLCertVerificationError(1, "x")
    refused.verify_code, refused.verify_message = 23, "certificate revoked"
    assert failure_of(refused).reason == "the companion's certificate is refused: certificate revoked"
    other = ssl.SSLError(1, "x")
    other.reason = "BAD_SIGNATURE"
    assert failure_of(other).reason == "TLS failed: BAD_SIGNATURE"
    assert failure_of(OSError(113, "No route to host")).reason.endswith("No route to host")


# files


@pytest.fixture
def files(site: Site, tmp_path: Path) -> TlsConfig:
    """Those of `a`, to be changed."""
    paths = {name: shutil.copy(path, tmp_path) for name, path in (
        ("certificate", site.folder / "a.pem"), ("certificate_key", site.folder / "a.key"),
        ("trusted_certificates", site.ours.trusted),
    )}  # fmt: skip
    return site.tls(**{name: str(path) for name, path in paths.items()})


def put(file: str, text: bytes) -> None:
    """As a program that renews certificates does: in one step."""
    other = Path(f"{file}.new")
    other.write_bytes(text)
    other.replace(file)


def serial_of(end: End) -> object:
    return (session_of(end).getpeercert() or {})["serialNumber"]


def test_renewed_files_count_from_the_next_connection_and_disturb_none(
    site: Site, files: TlsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    maker = PeerStreamMaker(files, is_server=True)
    with closing(Link(maker, PeerStreamMaker(site.tls("b"), is_server=False))) as link:
        acceptor, initiator = exchange(link)
        del acceptor.got[:], initiator.got[:]
        wanted = bytearray()
        for i in range(200):
            piece = bytes([i]) * 5000
            wanted += piece
            acceptor.send([piece])
            initiator.send([piece])
            if i == 100:
                certificate, key = site.ours.leaf("a", file="renewed", ends=300)
                put(files.certificate_key, Path(key).read_bytes())
                put(files.certificate, Path(certificate).read_bytes())
                renewed = exchange(link)
            link.loop.run_once(0)
        link.until(lambda: len(acceptor.got) == len(initiator.got) == len(wanted))
        assert acceptor.got == initiator.got == wanted
        assert serial_of(renewed[1]) != serial_of(initiator)
        assert maker.expires_s > NOW_S + 200 * 86_400
        exchange(link)
    with caplog.at_level(logging.INFO):
        assert [event for _, event, _ in logged(caplog)] in ([], [LogEvent.TLS_FILES_RENEWED])


def test_renewed_files_that_are_broken_leave_the_former_in_force(
    site: Site, files: TlsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sound = Path(files.certificate_key).read_bytes()
    with closing(Link(*makers(files, site.tls("b")))) as link:
        exchange(link)
        put(files.certificate_key, (site.folder / "b.key").read_bytes())
        exchange(link)
        exchange(link)
        os.unlink(files.certificate_key)
        exchange(link)
        put(files.certificate_key, sound)
        exchange(link)
    told = [(event, fields.get("reason"), fields.get("remedy")) for _, event, fields in logged(caplog)]
    key = files.certificate_key
    assert told == [
        (LogEvent.TLS_FILES_REFUSED, f"<certificate-key>: {key}: is not the key of {files.certificate}",
         "name the key that belongs to the certificate"),
        (LogEvent.TLS_FILES_REFUSED, f"<certificate-key>: {key}: No such file or directory",
         "check the path, and who may read the file"),
        (LogEvent.TLS_FILES_RENEWED, None, None),
    ]  # fmt: skip


def test_the_end_of_a_certificate_is_announced(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    tls = site.tls("soon")
    now_s = [NOW_S]
    maker = PeerStreamMaker(tls, is_server=True, now_s=lambda: now_s[0])
    for days in (-30, 0, 10, 11):
        now_s[0] = NOW_S + days * 86_400
        maker.warn_of_expiry()
    assert maker.expires_s == pytest.approx(NOW_S + 10.5 * 86_400, abs=3600)
    assert [(event, fields) for _, event, fields in logged(caplog)] == [
        (LogEvent.CERTIFICATE_EXPIRES, {"file": tls.certificate, "days": days}) for days in (10, 0, -1)
    ]


@pytest.mark.parametrize(
    ("change", "element", "what"),
    [
        ({"certificate": "/nowhere.pem"}, "certificate", "/nowhere.pem: No such file or directory"),
        ({"certificate_key": "/nowhere.key"}, "certificate-key", "/nowhere.key: No such file or directory"),
        ({"trusted_certificates": "/nowhere.pem"}, "trusted-certificates", "/nowhere.pem: No such file or directory"),
        ({"certificate": "{a.key}"}, "certificate", "{a.key}: has no certificate in PEM form"),
        ({"certificate_key": "{a.pem}"}, "certificate-key", "{a.pem}: has no private key in PEM form"),
        ({"certificate_key": "{b.key}"}, "certificate-key", "{b.key}: is not the key of {a.pem}"),
        ({"trusted_certificates": "{a.key}"}, "trusted-certificates", "{a.key}: has no certificates in PEM form"),
        ({"name": "locked"}, "certificate-key-password", "is missing"),
        ({"name": "locked", "certificate_key_password": "no"}, "certificate-key-password",
         "the password does not open {locked.key}"),
        ({"cipher_suites": ("NONSENSE",)}, "cipher-suites", "none of them can be used"),
        ({"cipher_suites": ("ADH-AES256-GCM-SHA384",)}, "cipher-suites", "none of them can be used"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(site: Site, change: dict[str, object], element: str, what: str) -> None:
    def filled(text: object) -> object:
        return text.replace("{", f"{site.folder}/").replace("}", "") if isinstance(text, str) else text

    tls = site.tls(**{name: filled(value) for name, value in change.items()})  # type: ignore[arg-type]
    (problem,) = problems(tls, NOW_S)
    assert (problem.element, problem.what, problem.is_fatal) == (element, filled(what), True)
    with pytest.raises(ResourceError) as no:
        PeerStreamMaker(tls, is_server=False)
    assert no.value.what == f"<{element}>: {filled(what)}"
    assert no.value.remedy == problem.remedy


@pytest.mark.parametrize(
    ("name", "what"),
    [("a", ""), ("expired", "has expired"), ("early", "is not valid yet"), ("soon", "expires in 10 days")],
)
def test_what_will_not_be_accepted_much_longer(site: Site, name: str, what: str) -> None:
    found = list(problems(site.tls(name), NOW_S))
    assert [(problem.what.partition(": ")[2], problem.is_fatal) for problem in found] == [(what, False)] * bool(what)


def test_without_trusted_certificates_it_is_those_of_the_system(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = site.tls(trusted_certificates="")
    with closing(Link(*makers(tls, site.tls("b")))) as link:
        assert sorted(fail(link, caplog, 2)[0]) == sorted(UNKNOWN)
    caplog.clear()
    monkeypatch.setenv("SSL_CERT_FILE", site.ours.trusted)
    with closing(Link(*makers(tls, tls))) as link:
        exchange(link)


def test_streams_are_byte_streams(site: Site) -> None:
    maker: StreamMaker = PeerStreamMaker(site.tls(), is_server=True)
    with closing(Loop()) as loop, closing(socket.socket()) as sock:
        stream: ByteStream = maker(loop, sock, True)
        assert (stream.holds, isinstance(stream, PeerTlsStream)) == (0, True)

"""XInclude: places, limits, circles, network addresses, and that nothing else gets in this way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer, ThreadingTCPServer

import pytest

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.dro_xml.unsupported import unsupported
from dro.config.reading import fetch, xml_file
from dro.errors import ConfigError

XI = {year: f'xmlns:xi="http://www.w3.org/{year}/XInclude"' for year in (2001, 2003)}


def include(href: str, year: int = 2001) -> str:
    return f'<xi:include {XI[year]} href="{href}"/>'


@pytest.fixture
def dro(tmp_path: Path) -> Path:
    return tmp_path / "dro.xml"


def write(path: Path, *portals: str) -> None:
    lines = "\n".join(portals)
    path.write_text(f'<tnw-gateway version="1.0">\n<portals>\n{lines}\n</portals></tnw-gateway>')


def load(path: Path) -> DroConfig:
    return load_dro(str(path), warn=lambda _: None)


ENDPOINT = "<endpoint><name>{0}</name><domain-id>{1}</domain-id><cost>{1}</cost></endpoint>"


@pytest.mark.parametrize("year", [2001, 2003])
def test_both_namespaces_and_names_relative_to_the_including_file(dro: Path, year: int) -> None:
    (dro.parent / "parts").mkdir()
    (dro.parent / "parts" / "one.xml").write_text(
        f"\n<endpoint><name>A</name><domain-id>4</domain-id>{include('cost.xml', year)}</endpoint>"
    )
    (dro.parent / "parts" / "cost.xml").write_text("<cost>7</cost>")
    write(dro, include("parts/one.xml", year))
    endpoint = load(dro).portals[0]
    assert (endpoint.name, endpoint.domain_id, endpoint.cost) == ("A", 4, 7)


def test_messages_name_the_included_file(dro: Path) -> None:
    (dro.parent / "one.xml").write_text("<endpoint>\n<name>A</name>\n<domain-id>0</domain-id></endpoint>")
    write(dro, include("one.xml"))
    with pytest.raises(ConfigError) as caught:
        load(dro)
    assert str(caught.value).startswith(f"{dro.parent}/one.xml:3: <domain-id>: 0 is out of range")
    (dro.parent / "one.xml").write_text("<publishing-interval>\n<group name='default' ivl='1'/></publishing-interval>")
    write(dro, f"<endpoint><name>A</name><domain-id>1</domain-id>{include('one.xml')}</endpoint>")
    assert str(unsupported(load(dro))[0]).startswith(f"{dro.parent}/one.xml:1: <publishing-interval>: has no effect")


def test_the_same_list_in_two_portals(dro: Path) -> None:
    (dro.parent / "ace.xml").write_text('<ace match="accept"><topic>T</topic></ace>')
    acl = f"<acl><inbound>{include('./ace.xml')}</inbound></acl>"
    one, two = (f"<endpoint><name>{n}</name><domain-id>{n}</domain-id>{acl}</endpoint>" for n in (1, 2))
    attributes = '<lbm-attributes><option scope="context" name="resolver_multicast_port" value="5"/></lbm-attributes>'
    write(dro, one, two.replace("<acl>", f"{attributes}<acl>"))
    portals = load(dro).portals
    assert portals[0].acl is not None
    assert portals[0].acl == portals[1].acl


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (include("none.xml"), "cannot read the included file: No such file or directory"),
        (include("dro.xml"), "includes itself"),
        (include("https://x.example/a.xml"), "https: is not supported"),
        (include("file:///etc/hostname"), "file: is not supported"),
        (include("a.xml").replace("href", "xpointer='x' href"), "only whole XML files"),
        (include("a.xml").replace("href", "parse='text' href"), "only whole XML files"),
        (include(""), "attribute href is missing"),
    ],
)
def test_refusals_name_the_place(dro: Path, text: str, part: str) -> None:
    write(dro, text)
    with pytest.raises(ConfigError) as caught:
        load(dro)
    assert str(caught.value).startswith(f"{dro}:3: <include>: ")
    assert part in str(caught.value)


def test_circles_over_several_files_end(dro: Path) -> None:
    (dro.parent / "a.xml").write_text(f"<portals>{include('b.xml')}</portals>")
    (dro.parent / "b.xml").write_text(f"<portals>{include('a.xml')}</portals>")
    write(dro, include("a.xml"))
    with pytest.raises(ConfigError, match="includes itself"):
        load(dro)


def test_width_and_size_are_bounded(dro: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dro.parent / "a.xml").write_text("<portals>" + include("b.xml") * 20 + "</portals>")
    (dro.parent / "b.xml").write_text("<portals>" + include("c.xml") * 20 + "</portals>")
    (dro.parent / "c.xml").write_text("<portals/>")
    write(dro, include("a.xml"))
    with pytest.raises(ConfigError, match="too many includes"):
        load(dro)
    monkeypatch.setattr(xml_file, "MAX_TOTAL_BYTES", 2000)
    (dro.parent / "c.xml").write_text(f"<portals><!--{'x' * 500}--></portals>")
    with pytest.raises(ConfigError, match="more than 2000 bytes with all includes"):
        load(dro)


def test_depth_is_bounded(dro: Path) -> None:
    for n in range(30):
        (dro.parent / f"{n}.xml").write_text(f"<portals>{include(f'{n + 1}.xml')}</portals>")
    write(dro, include("0.xml"))
    with pytest.raises(ConfigError, match="too many includes"):
        load(dro)


def test_an_included_bomb_is_refused(dro: Path) -> None:
    (dro.parent / "a.xml").write_text('<!DOCTYPE a [<!ENTITY e "x">]><a>&e;</a>')
    write(dro, include("a.xml"))
    with pytest.raises(ConfigError, match="declares entities"):
        load(dro)


def test_a_file_cannot_claim_to_be_another(dro: Path) -> None:
    write(dro, ENDPOINT.format("A", 0).replace("<endpoint>", '<endpoint xmlns:o="urn:open-dro" o:file="/etc/passwd">'))
    with pytest.raises(ConfigError) as caught:
        load(dro)
    assert str(caught.value).startswith(f"{dro}:3: ")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/portal.xml")
            self.end_headers()
        elif self.path == "/trap":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
        elif self.path == "/tls":
            self.send_response(302)
            self.send_header("Location", "https://127.0.0.1/")
            self.end_headers()
        elif self.path == "/portal.xml":
            self.reply(f"<endpoint><name>W</name><domain-id>3</domain-id>{include('cost.xml')}</endpoint>".encode())
        elif self.path == "/cost.xml":
            self.reply(b"<cost>5</cost>")
        elif self.path == "/large":
            self.reply(b"<a>" + b" " * 10_000)
        else:
            self.send_error(404)

    def reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the base class
        """Says nothing."""


@contextmanager
def serving(server: TCPServer) -> Iterator[str]:
    """Address and port of a server that runs in a thread."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(60)


@pytest.fixture
def server() -> Iterator[str]:
    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield f"http://{address}"


def test_http_addresses_with_names_relative_to_them(dro: Path, server: str) -> None:
    for name in ("portal.xml", "redirect"):
        write(dro, include(f"{server}/{name}"))
        endpoint = load(dro).portals[0]
        assert (endpoint.name, endpoint.cost) == ("W", 5)


def test_http_addresses_are_bounded(dro: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_file, "MAX_FILE_BYTES", 5000)
    for name, part in (
        ("none", "the server says 404"),
        ("trap", "is not allowed"),
        ("tls", "redirected to https:"),
        ("large", "larger than 5000 bytes"),
    ):
        write(dro, include(f"{server}/{name}"))
        with pytest.raises(ConfigError, match=part):
            load(dro)
    monkeypatch.setattr(fetch, "TOTAL_S", -1.0)
    with pytest.raises(ConfigError, match="not complete after"):
        load(dro)


FTP_FILES = {
    "portal.xml": f"<endpoint><name>F</name><domain-id>3</domain-id>{include('cost.xml')}"
    f"<acl><inbound>{include('lists/ace.xml')}</inbound></acl></endpoint>",
    "cost.xml": "<cost>5</cost>",
    "lists/ace.xml": '<ace match="accept"><topic>T</topic></ace>',
    "large": "<a>" + " " * 10_000,
}
FTP_ANSWERS = {"USER": "331 password?", "PASS": "230 welcome", "TYPE": "200 yes", "PWD": '257 "/umconf"'}


class FtpHandler(StreamRequestHandler):
    """Anonymous and passive, with the files of one folder."""

    def handle(self) -> None:
        folder = ""
        self.say("220 hello")
        with socket.create_server(("127.0.0.1", 0)) as passive:
            high, low = divmod(passive.getsockname()[1], 256)
            while line := self.rfile.readline().decode().strip():
                command, _, value = line.partition(" ")
                content = FTP_FILES.get(f"{folder}{value}")
                match command:
                    case "PASV":
                        self.say(f"227 here (127,0,0,1,{high},{low})")
                    case "CWD" if value.lstrip("/") in ("umconf", "umconf/lists"):
                        folder = "lists/" if value.endswith("lists") else ""
                        self.say("250 yes")
                    case "RETR" if content is not None:
                        self.say("150 it comes")
                        with passive.accept()[0] as data:
                            data.sendall(content.encode())
                        self.say("226 that was it")
                    case _:
                        self.say(FTP_ANSWERS.get(command, "550 no such file"))

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture
def ftp() -> Iterator[str]:
    with serving(ThreadingTCPServer(("127.0.0.1", 0), FtpHandler)) as address:
        yield f"ftp://{address}/umconf"


def test_ftp_addresses_with_names_relative_to_them(dro: Path, ftp: str) -> None:
    write(dro, include(f"{ftp}/portal.xml"))
    (endpoint,) = load(dro).portals
    assert (endpoint.name, endpoint.cost) == ("F", 5)
    assert endpoint.acl is not None
    assert endpoint.acl.inbound is not None
    assert [[condition.value for condition in ace.conditions] for ace in endpoint.acl.inbound] == [["T"]]


def test_what_cannot_be_had_by_ftp_is_told_with_its_place(dro: Path, ftp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not there, one that is too large, a server that is away, and one that does not answer."""
    monkeypatch.setattr(xml_file, "MAX_FILE_BYTES", 5000)

    def refusal(address: str) -> str:
        write(dro, include(address))
        with pytest.raises(ConfigError) as caught:
            load(dro)
        text = str(caught.value)
        assert text.startswith(f"{dro}:3: <include>: ")
        return text

    assert "none.xml: cannot read the included file: ftp error: error_perm('550 no" in refusal(f"{ftp}/none.xml")
    assert "/none/a.xml: cannot read the included file: 550 no such file" in refusal(f"{ftp}/none/a.xml")
    assert "/large: larger than 5000 bytes" in refusal(f"{ftp}/large")
    monkeypatch.setattr(fetch, "TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ftp://127.0.0.1:{silent.getsockname()[1]}/a.xml"
        assert f"{address}: cannot read the included file: timed out; check the address" in refusal(address)
    assert f"{address}: cannot read the included file: Connection refused; check the address" in refusal(address)

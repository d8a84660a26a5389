"""`tnwgd init`: what it writes loads and runs, what it asks on a terminal, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from lxml import etree

from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig, statistics_on
from dro.config.dro_xml.unsupported import ConfigWarning, unsupported
from dro.config.um.sets import tr_ways
from dro.errors import ConfigError
from dro.transport.sockets import ip_number
from supervisor.main import main
from supervisor.tools.init import main as init
from supervisor.tools.init.files import (
    Companion,
    NewTrd,
    Starter,
    UmFile,
    default_trd,
    read_companion,
    read_group,
    read_name,
    read_trd,
    shown,
)
from tests.fakes.lookup import LOOPBACK, FakeLookup
from tests.rigs.circumstances import on_terminal
from tests.rigs.loaded import Loaded
from tests.rigs.netns.harness import Net
from tests.rigs.waiting import readable, wait_until

ROOT = Path(__file__).parents[4]
HOST = FakeLookup()
TRDS = ("--trd1", "127.0.0.1,239.1.1.1:12001", "--trd2", "127.0.0.1,239.1.2.1:12002")


def load(path: Path, warnings: list[str] | None = None) -> DroConfig:
    sink = [] if warnings is None else warnings
    return load_dro(str(path), warn=sink.append, environ={})


# with options


def test_a_direct_link_loads_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "my.xml"
    assert main(["init", "direct", *TRDS, "--name", "A & B", "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert f"written: {output}\n" in out
    warnings: list[str] = []
    config = load(output, warnings)
    assert (warnings, unsupported(config)) == ([], [])
    assert config.daemon.name == "A & B"
    assert [(p.name, p.domain_id) for p in config.portals] == [("A & B-TRD1", 1), ("A & B-TRD2", 2)]
    for portal, group, port in zip(config.portals, ("239.1.1.1", "239.1.2.1"), (12001, 12002), strict=True):
        um = portal.um
        assert um.value("context", "resolver_multicast_incoming_address") == group
        assert um.value("context", "resolver_multicast_incoming_port") == port
        assert um.value("source", "transport") == "lbtrm"
    assert main(["-v", str(output)]) == 0
    assert capsys.readouterr() == (f"{output}: no errors\n", "")


def ports_of(um_file: Path) -> list[int]:
    """All ports that a context with this file may take."""
    found = dict(re.findall(r"(?m)^\w+ (\S+) (\S+)$", um_file.read_text()))
    names = ("request_tcp_port", "transport_tcp_port", "transport_lbtrm_source_port")
    ranges = [range(int(found[f"{name}_low"]), int(found[f"{name}_high"]) + 1) for name in names]
    return [*(port for one in ranges for port in one), int(found["transport_lbtrm_destination_port"])]


def test_the_trds_of_a_direct_link_share_no_group_and_no_port(tmp_path: Path) -> None:
    assert init.main(["direct", *TRDS, "--output", str(tmp_path / "d.xml")]) == 0
    ports = [port for trd in (1, 2) for port in ports_of(tmp_path / f"trd{trd}.cfg")]
    assert len(ports) == len(set(ports))
    assert max(ports) < 32768, "below the usual ephemeral range"


def test_dros_of_different_domains_share_no_port_so_that_one_host_can_run_them(tmp_path: Path) -> None:
    ports = []
    for domain_id in ("1", "2", "3", "4", "5", "77"):
        output = tmp_path / f"{domain_id}.xml"
        arguments = ("--trd", "127.0.0.1", "--domain", domain_id, "--connect", "far.example:1")
        assert init.main(["peer", *arguments, "--output", str(output)]) == 0
        where = load(output).daemon.web_monitor
        assert where is not None
        ports += [where.port, *ports_of(tmp_path / f"trd{domain_id}.cfg")]
    assert len(ports) == len(set(ports))
    assert ports[0] == 15304, "the one of the documents"


@pytest.mark.parametrize(
    ("end", "domain_id"),
    [(("--connect", "far.example:26200"), 1), (("--listen", "26200"), 2), (("--listen", "9", "--domain", "77"), 77)],
)
def test_one_end_of_a_peer_link_loads(
    end: tuple[str, ...], domain_id: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "p.xml"
    assert init.main(["peer", "--trd", "127.0.0.1", *end, "--name", "P", "--output", str(output)]) == 0
    config = load(output)
    assert [p.domain_id for p in config.portals] == [domain_id]
    [peer] = config.peers
    assert (peer.tcp.initiator is None) == (end[0] == "--listen")
    assert not [limit for limit in unsupported(config) if not isinstance(limit, ConfigWarning)]
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("note: ")]
    assert lines[-1] == f"run:   tnwgd {output}"


def test_statistics_have_a_um_file_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "s.xml"
    assert init.main(["direct", *TRDS, "--statistics", "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert f"statistics: lbmmon --transport-opts config={tmp_path}/statistics.cfg\n" in out
    assert "note: " not in out
    warnings: list[str] = []
    config = load(output, warnings)
    assert (warnings, unsupported(config), statistics_on(config)) == ([], [], True)
    made = config.daemon.monitor
    assert made is not None
    assert (made.interval_s, made.transport_module, made.format_module) == (10, "lbm", "pb")
    assert made.um.get_str("source", "transport") == "tcp"
    assert made.um.get_int("context", "resolver_multicast_ttl") == 0
    trds = [tr_ways(portal.receiving.context()) for portal in config.portals]
    assert tr_ways(made.um) not in trds
    ordinary = tmp_path / "o.xml"
    assert init.main(["direct", *TRDS, "--output", str(ordinary), "--force"]) == 0
    assert not statistics_on(load(ordinary))


def test_statistics_want_a_directory_without_a_semicolon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a;b").mkdir()
    arguments = ["peer", "--trd", "127.0.0.1", "--listen", "1", "--output", f"{tmp_path}/a;b/dro.xml"]
    assert init.main([*arguments, "--statistics"]) == 1
    assert "a;b/statistics.cfg: a name with a semicolon" in capsys.readouterr().err
    assert init.main(arguments) == 0


def test_um_files_that_exist_are_used_and_left_alone(tmp_path: Path) -> None:
    files = [tmp_path / f"old  {n}.cfg" for n in (1, 2)]
    for n, path in enumerate(files):
        path.write_text(f"context resolver_multicast_address 239.9.9.{n + 1}\n")
    output = tmp_path / "dro.xml"
    assert init.main(["direct", "--trd1", str(files[0]), "--trd2", str(files[1]), "--output", str(output)]) == 0
    config = load(output)
    assert [p.lbm_config for p in config.portals] == [(str(path),) for path in files], "two spaces in a row stay"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dro.xml", "old  1.cfg", "old  2.cfg"]


def test_a_device_that_does_not_exist_gets_those_that_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "dro.xml")
    with pytest.raises(SystemExit, match="2"):
        init.main(["direct", "--trd1", "nosuch0,239.1.1.1:12001", "--trd2", "127.0.0.1", "--output", output])
    (line,) = capsys.readouterr().err.splitlines()
    assert "--trd1: host name 'nosuch0' cannot be resolved; write an interface of this host: " in line
    assert "lo (127.0.0.1)" in line
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_replaced_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trd2.cfg").write_text("mine")
    arguments = ["direct", *TRDS, "--output", str(tmp_path / "dro.xml")]
    assert init.main(arguments) == 1
    assert f"{tmp_path}/trd2.cfg would be replaced; give --force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["trd2.cfg"]
    assert (tmp_path / "trd2.cfg").read_text() == "mine"
    assert init.main([*arguments, "--force"]) == 0
    assert "239.1.2.1" in (tmp_path / "trd2.cfg").read_text()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["direct", "--trd1", "127.0.0.1", "--trd2", "no-host.invalid"], "--trd2: host name 'no-host.invalid'"),
        (["direct", "--trd1", "127.0.0.1", "--trd2", "old.cfg"], "--trd2: there is no file 'old.cfg'"),
        (["direct", "--trd1", "127.0.0.1,239.1.1.1", "--trd2", "x"], "is not a multicast group and a port"),
        (["direct", "--trd1", "127.0.0.1,10.1.1.1:9", "--trd2", "x"], "10.1.1.1 is not a multicast group"),
        (["direct", "--trd1", "127.0.0.1,239.1.1.1:0", "--trd2", "x"], "'0' is not a port"),
        (["direct", *TRDS, "--domain1", "0"], "--domain1: '0' is not a domain id"),
        (["direct", *TRDS, "--domain1", "7", "--domain2", "7"], "both TRDs have domain id 7"),
        (["direct", "--trd1", "127.0.0.1,239.1.1.1:9", "--trd2", "127.0.0.1,239.1.1.1:9"], "both TRDs resolve topics"),
        (["direct", *TRDS, "--name", " "], "' ' is not a name"),
        (["direct", *TRDS, "--name", "n" * 200], "the name is longer than"),
        (["direct", *TRDS, "--name", "a\x07"], "is not a name"),
        (["peer", "--trd", "127.0.0.1", "--listen", "70000"], "--listen: '70000' is not a port"),
        (["peer", "--trd", "127.0.0.1", "--connect", "26123"], "--connect: '' is neither an address nor a host name"),
        (["peer", "--trd", "127.0.0.1", "--connect", "1.2.3:5"], "--connect: '1.2.3' is not an IPv4 address"),
    ],
)  # fmt: skip
def test_bad_values_name_the_option(
    arguments: Sequence[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        init.main([*arguments, "--output", str(tmp_path / "x.xml")])
    assert part in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["direct", "--trd1", "127.0.0.1"], "--trd2 missing"),
        (["direct", "--force"], "--trd1 and --trd2 missing"),
        (["peer", "--listen", "1"], "--trd missing"),
        (["peer", "--trd", "127.0.0.1"], "--connect or --listen missing"),
        (["peer", "--listen", "1", "--connect", "a:1"], "not allowed with"),
        (["ring"], "invalid choice"),
        ([], "not on a terminal"),
        (["direct"], "not on a terminal"),
    ],
)
def test_wrong_arguments_have_status_2(arguments: Sequence[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        init.main(arguments)
    assert caught.value.code == 2
    assert part in capsys.readouterr().err


def test_files_that_are_one_trd_are_refused_with_their_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.cfg", "b.cfg"):
        (tmp_path / name).write_text("context resolver_multicast_address 239.9.9.9\n")
    arguments = ["direct", "--trd1", f"{tmp_path}/a.cfg", "--trd2", f"{tmp_path}/b.cfg"]
    assert init.main([*arguments, "--output", f"{tmp_path}/dro.xml"]) == 1
    err = capsys.readouterr().err
    assert f"{tmp_path}/dro.xml:" in err
    assert "tnwgd-init-" not in err, "the name of a file that is gone helps nobody"
    assert not (tmp_path / "dro.xml").exists()


@pytest.mark.parametrize(("output", "part"), [("no/dir/x.xml", "there is no directory"), (".", "'.' is a directory")])
def test_places_that_do_not_exist(
    output: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init.main(["direct", *TRDS, "--output", output]) == 1
    assert f"--output: {part}" in capsys.readouterr().err


def test_a_directory_that_may_not_be_written_is_told_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write everywhere
    assert init.main(["direct", *TRDS, "--output", str(tmp_path / "x.xml")]) == 1
    assert f"--output: no file can be made in '{tmp_path}'; write another file" in capsys.readouterr().err
    assert init.main(["direct", *TRDS, "--output", ""]) == 1
    assert "--output: is empty" in capsys.readouterr().err


def test_a_file_system_that_takes_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main(["direct", *TRDS, "--output", "/proc/x.xml"]) == 1
    err = capsys.readouterr().err
    assert "/proc/" in err
    assert "Traceback" not in err


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.link, []

    def link(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 3:
            raise OSError(28, "No space left on device", str(source))
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert init.main(["direct", *TRDS, "--output", str(tmp_path / "dro.xml")]) == 1
    assert list(tmp_path.iterdir()) == []


# what can be typed


@pytest.mark.parametrize(
    ("text", "trd"),
    [
        ("192.0.2.10", NewTrd("192.0.2.10", "192.0.2.10", "239.192.3.1", 12965)),
        ("192.0.2.0/24 239.5.5.5:77", NewTrd("192.0.2.0/24", "192.0.2.10", "239.5.5.5", 77)),
        ("eth1,239.5.5.5:77", NewTrd('"eth1"', "198.51.100.5", "239.5.5.5", 77)),
        ('"eth1"', NewTrd('"eth1"', "198.51.100.5", "239.192.3.1", 12965)),
        ("east, 239.5.5.5:77", NewTrd("east", "192.0.2.10", "239.5.5.5", 77)),
        (
            "192.0.2.10,LBMRD=192.0.2.5, 192.0.2.6:99,192.0.2.5:15380",
            NewTrd("192.0.2.10", "192.0.2.10", kind="lbmrd", servers=("192.0.2.5:15380", "192.0.2.6:99")),
        ),
        ("eth1 srs=192.0.2.5", NewTrd('"eth1"', "198.51.100.5", kind="srs", servers=("192.0.2.5:27000",))),
    ],
)
def test_a_trd_as_it_is_typed(text: str, trd: NewTrd) -> None:
    made = read_trd(text, 3, HOST)
    assert made == trd
    assert read_trd(shown(made), 3, HOST) == made, "what is shown as a default can be typed"


def test_the_default_trd_is_the_first_network_that_can_do_multicast() -> None:
    assert default_trd(1, HOST) == NewTrd("192.0.2.0/24", "192.0.2.10", "239.192.1.1", 12965)
    assert default_trd(300, HOST).group == "239.192.46.1"
    alone = FakeLookup(table=(LOOPBACK,))
    assert default_trd(1, alone).interface == "127.0.0.1"
    assert default_trd(1, FakeLookup(table=())).interface == "127.0.0.1"


@pytest.mark.parametrize(
    ("resolver", "part"),
    [
        (
            "lbmrd=",
            "'' is not the address of a server; write ADDRESS or ADDRESS:PORT of each, as in lbmrd=192.0.2.5:15380",
        ),
        ("lbmrd=192.0.2.5,", "'' is not the address of a server"),
        ("srs=far.example:1", "'far.example' is not the address of a server"),
        ("srs=239.1.1.1", "239.1.1.1 is not the address of a server"),
        ("srs=192.0.2.5:x", "'x' is not a port"),
        ("srs=" + ",".join(f"192.0.2.{n}" for n in range(1, 7)), "there are 6 SRSes; write 5 at most"),
        ("stp=192.0.2.5", "'stp' is no kind of server that resolves topics; write lbmrd=ADDRESS or srs=ADDRESS, or"),
    ],
)
def test_bad_servers(resolver: str, part: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_trd(f"192.0.2.10,{resolver}", 3, HOST)
    assert part in str(error.value)


def test_trds_without_multicast_load_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "dro.xml"
    trds = ("--trd1", "127.0.0.1,lbmrd=127.0.0.5,127.0.0.6:99", "--trd2", "127.0.0.1,srs=127.0.0.5,127.0.0.6:98")
    assert init.main(["direct", *trds, "--output", str(output)]) == 0
    warnings: list[str] = []
    config = load(output, warnings)
    assert (warnings, unsupported(config)) == ([], [])
    assert [tr_ways(portal.receiving.context()) for portal in config.portals] == [
        ["lbmrd 127.0.0.5:15380, 127.0.0.6:99"], ["SRS 127.0.0.5:27000, 127.0.0.6:98"],
    ]  # fmt: skip
    assert {portal.um.value("source", "transport") for portal in config.portals} == {"tcp"}
    capsys.readouterr()
    assert main(["-v", str(output)]) == 0
    assert capsys.readouterr() == (f"{output}: no errors\n", "")


@pytest.mark.parametrize("kind", ["lbmrd", "srs"])
def test_trds_with_one_server_are_one(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    trds = ("--trd1", f"127.0.0.1,{kind}=127.0.0.5,127.0.0.6", "--trd2", f"127.0.0.1,{kind}=127.0.0.7,127.0.0.5")
    with pytest.raises(SystemExit, match="2"):
        init.main(["direct", *trds])
    assert "--trd2: both TRDs resolve topics by 127.0.0.5:" in capsys.readouterr().err


def test_companions() -> None:
    assert read_companion(" 26123 ") == Companion(26123)
    assert read_companion("far.example:1") == Companion(1, "far.example")
    for text in ("", "a:", ":1", "a b:1", "300.1.1.1:1", "a:99999"):
        with pytest.raises(ConfigError):
            read_companion(text)


@pytest.mark.parametrize("text", ["", "1", "239.1.1.1", "239.1.1.1:", "239.1.1.256:1", "239.1.1.1:65536", "::1"])
def test_bad_groups(text: str) -> None:
    with pytest.raises(ConfigError):
        read_group(text)


@pytest.mark.parametrize("group", ["239.1.1.0", "239.1.1.250", "239.1.1.255", "239.255.255.255"])
def test_data_groups_are_groups_beside_that_of_resolution(group: str, tmp_path: Path) -> None:
    arguments = ["peer", "--trd", f"127.0.0.1,{group}:9", "--listen", "9", "--output", str(tmp_path / "p.xml")]
    assert init.main(arguments) == 0
    [config] = tmp_path.glob("*.cfg")
    config.write_text(config.read_text().replace("# context mim_", "context mim_"))
    [portal] = load(tmp_path / "p.xml").portals
    immediate = ip_number(str(portal.um.value("context", "mim_address")))
    low = str(portal.um.value("context", "transport_lbtrm_multicast_address_low"))
    high = str(portal.um.value("context", "transport_lbtrm_multicast_address_high"))
    assert low.rsplit(".", 1)[0] == high.rsplit(".", 1)[0] == group.rsplit(".", 1)[0]
    assert group not in (low, high)
    assert immediate == ip_number(high) + 1 != ip_number(group)
    assert immediate & 0xFF > 4, "in the same 256"


def test_odd_names_are_written_as_they_are() -> None:
    name = read_name('  <a> & "b" -- \u00e9 ')
    text = init.plan_files(Starter(name, ((1, UmFile("/a--b")), (2, UmFile("/x & y")))), Path("d.xml"))
    document = etree.fromstring(text[Path("d.xml").absolute()].encode())
    assert document.findtext("daemon/name") == '<a> & "b" -- \u00e9'
    assert [found.text for found in document.iter("lbm-config")] == ["/a--b", "/x & y"]


# on a terminal


@dataclass
class Terminal:
    """A program on a pseudo-terminal of its own."""

    process: subprocess.Popen[bytes]
    fd: int
    seen: str = ""

    def wait(self, part: str) -> None:
        """Until that text has come since the last answer."""
        wait_until(lambda: self._look(part), f"{part!r} in {self.seen!r}", 30)

    def _look(self, part: str) -> bool:
        if readable([self.fd], 0.05):
            try:
                self.seen += os.read(self.fd, 65536).decode()
            except OSError:  # the other end is closed
                return part in self.seen
        return part in self.seen

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self.fd, text.encode())

    def end(self) -> int:
        """Its exit status; what it still says is in `seen`."""
        deadline = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < deadline:
            self._look("\0")
        self._look("\0")
        return self.process.wait(5)


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    controller, other = os.openpty()
    command = [sys.executable, "-m", "supervisor.main", "init", *arguments]
    process: subprocess.Popen[bytes] = Loaded(
        command, stdin=other, stdout=other, stderr=other, cwd=folder, env=os.environ | {"TERM": "dumb"},
        start_new_session=True, preexec_fn=on_terminal(os.ttyname(other)),
    )  # fmt: skip
    os.close(other)
    try:
        yield Terminal(process, controller)
    finally:
        process.kill()
        process.wait()
        os.close(controller)


TNWGD = (sys.executable, "-m", "supervisor.main")
QUESTION = re.compile(r"\[[^\]]*\]: ")


def test_five_questions_for_a_direct_link_and_bad_answers_asked_again(tmp_path: Path) -> None:
    with terminal(tmp_path) as tty:
        for question, answer in (
            ("Kind of link", "triangle"),
            ("'triangle' is no kind of link; write direct or peer", ""),
            ("Name of the DRO", "WEST"),
            ("First TRD", "127.0.0.1,239.3.1.1:4001"),
            ("Second TRD", "127.0.0.1,239.3.1.1:4001"),
            ("both TRDs resolve topics on 239.3.1.1:4001", "127.0.0.1,239.3.2.1:4001"),
            ("File to write", "no/such/folder.xml"),
            ("there is no directory 'no/such'", ""),
        ):
            tty.wait(question)
            tty.wait("]: ")
            tty.type(f"{answer}\n")
        tty.wait("run:   tnwgd dro.xml")
        assert tty.end() == 0
    config = load(tmp_path / "dro.xml")
    assert (config.daemon.name, len(config.portals)) == ("WEST", 2)


def test_defaults_alone_make_a_peer_link(tmp_path: Path) -> None:
    questions = 0
    with terminal(tmp_path, "peer") as tty:
        while tty.process.poll() is None:
            tty._look("]: ")
            if QUESTION.search(tty.seen):
                questions += 1
                tty.type("\n")
        assert tty.end() == 0, tty.seen
    assert questions == 4
    assert load(tmp_path / "dro.xml").peers[0].tcp.listen_port == 26123


@pytest.mark.parametrize(("key", "status", "word"), [("\x04", 1, "end of input"), ("\x03", 130, "interrupted")])
def test_leaving_in_the_middle_writes_nothing(key: str, status: int, word: str, tmp_path: Path) -> None:
    with terminal(tmp_path, "direct") as tty:
        tty.wait("]: ")
        tty.type("X\n")
        tty.wait("First TRD: ")
        tty.wait("]: ")
        tty.type(key)
        tty.wait(f"{word}, nothing was written")
        assert tty.end() == status
        assert "Traceback" not in tty.seen
    assert list(tmp_path.iterdir()) == []


# for real


@pytest.mark.netns
@pytest.mark.slow
def test_a_direct_link_that_was_asked_for_carries_messages(net: Net) -> None:
    """On a host between two networks; applications elsewhere use the same UM files."""
    dro = net.host("dro", {"trd1": "10.1.0.9/24", "trd2": "10.2.0.9/24"})
    trds = ("--trd1", "10.1.0.0/24", "--trd2", "trd2,239.192.7.1:12965")
    made = dro.run([*TNWGD, "init", "direct", *trds, "--output", f"{net.folder}/dro.xml"])
    assert made.returncode == 0, made.stderr
    assert 'context default_interface "trd2"' in (net.folder / "trd2.cfg").read_text()
    daemon = dro.start_python("-m", "supervisor.main", f"{net.folder}/dro.xml", name="tnwgd")
    daemon.wait_output("routes=2", 60)
    hosts = {trd: net.host(f"app{trd}", {f"trd{trd}": f"10.{trd}.0.1/24"}) for trd in (1, 2)}
    got = hosts[2].start_python("-u", "-m", "dro.tools.lbm.lbmrcv", "-c", f"{net.folder}/trd2.cfg", "-r", "20", "T")
    sent = hosts[1].start_python("-u", "-m", "dro.tools.lbm.lbmsrc", "-c", f"{net.folder}/trd1.cfg", "-P", "20", "T")
    assert got.wait(60) == 0, got.stdout
    sent.stop(10)
    assert daemon.stop(10) == 0, daemon.stdout

"""`tnwgd` as a program: arguments, configuration errors, a whole run with a portal that does nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dro.bus.messages import Role
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DaemonMonitorConfig, PublishingConfig, WebMonitorConfig
from dro.config.um.options import UmOptions
from dro.errors import ConfigError
from supervisor.history.worker import HistoryOptions
from supervisor.main import main
from supervisor.parent import process_plan
from tests.rigs.certificates import Authority
from tests.rigs.loaded import Loaded
from tests.rigs.quick_dro import NAME, QUICK

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "tests" / "golden" / "examples" / "direct-link"


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    (tmp_path / "a.cfg").write_text("context resolver_multicast_address 239.199.1.1\n")
    (tmp_path / "b.cfg").write_text("context resolver_multicast_address 239.199.1.2\n")
    path = tmp_path / "dro.xml"
    path.write_text(QUICK)
    return path


NOT_YET = "later.cfg:2: source transport: broker is not supported yet"


def refused(quick: Path) -> Path:
    """A file beside `quick` that asks for what this release has not."""
    quick.with_name("later.cfg").write_text("context resolver_multicast_address 239.199.1.1\nsource transport broker\n")
    path = quick.with_name("later.xml")
    path.write_text(QUICK.replace("a.cfg", "later.cfg"))
    return path


@pytest.fixture
def run_base() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dro-t-"))
    yield path
    path.rmdir()  # fails when anything is left


def test_a_dro_calculates_its_routes_also_after_the_route_manager_died(quick: Path, run_base: Path) -> None:
    log_path = quick.with_name("log")

    def log() -> str:
        return log_path.read_text()

    def wait_for(text: str, count: int = 1) -> None:
        deadline = time.monotonic() + 20
        while log().count(text) < count:
            assert time.monotonic() < deadline, log()
            time.sleep(0.005)  # between two looks

    with log_path.open("wb") as out:
        process: subprocess.Popen[bytes] = Loaded(
            [sys.executable, "-m", "tests.rigs.quick_dro", "-u", str(quick)],
            cwd=ROOT, env=os.environ | {"XDG_RUNTIME_DIR": str(run_base)}, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        wait_for(f"of {NAME} 22>11:2>1 11>22:1>2", count=2)
        line = next(text for text in log().splitlines() if "worker=route-manager pid=" in text)
        assert line[28:].startswith(" [information] worker started worker=route-manager")
        os.kill(int(line.partition("pid=")[2].split()[0]), signal.SIGKILL)
        wait_for(f"TABLE v4.1 of {NAME} 22>11:2>1 11>22:1>2", count=2)
        tables = [text for text in log().splitlines() if "TABLE" in text and text.endswith("process=P1")]
        lives = [text.partition("TABLE ")[2].partition(".")[0] for text in tables]  # of the route manager
        assert list(dict.fromkeys(lives)) == ["v1", "v4"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    assert list(run_base.iterdir()) == []
    assert [p for p in Path("/dev/shm").iterdir() if p.name.startswith(f"dro-{NAME}-{process.pid}-")] == []


def test_every_error_of_the_configuration_is_printed_and_nothing_starts(
    quick: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = QUICK.replace("<cost>3</cost>", "<cost>none</cost>").replace("<domain-id>11", "<domain-id>0")
    quick.write_text(broken)
    assert main([str(quick)]) == 1
    lines = capfd.readouterr().err.splitlines()
    places = [line for line in lines if line.startswith(str(quick))]
    assert len(places) == 2
    assert any(f"{quick}:6: " in line and "domain-id" in line for line in places)
    assert any(f"{quick}:7: " in line and "cost" in line for line in places)


def test_two_portals_of_one_name_are_refused(quick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = re.findall(r"<endpoint><name>(.*?)</name>|<endpoint>\s*<name>(.*?)</name>", QUICK)[:2]
    one, other = ("".join(names) for names in (first, second))
    quick.write_text(QUICK.replace(f"<name>{other}</name>", f"<name>{one}</name>"))
    assert main([str(quick)]) == 1
    assert one in capfd.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.xml")]) == 1
    assert "none.xml" in capfd.readouterr().err


def test_validate_only_looks(quick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-v", str(quick)]) == 0
    assert capfd.readouterr().out == f"{quick}: no errors\n"
    quick.write_text("<tnw-gateway/>")
    assert main(["-v", str(quick)]) == 1


def test_validate_looks_at_every_file(quick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken, later = quick.with_name("broken.xml"), refused(quick)
    broken.write_text(QUICK.replace("<domain-id>11", "<domain-id>0").replace("<cost>3", "<cost>0"))
    assert main(["-v", str(broken), str(quick), str(later)]) == 1
    out, err = capfd.readouterr()
    assert out == f"{quick}: no errors\n{later}: no errors, but this release refuses to run it\n"
    assert f"{broken}:6: <domain-id>" in err
    assert f"{broken}:7: <cost>" in err
    assert f"{NOT_YET}; " in err


def test_validate_looks_into_the_files_of_tls(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    certificate, key = Authority(tmp_path).leaf("a", ends=3.5)
    tls = f"\n<certificate>{certificate}</certificate>\n<certificate-key>{{0}}</certificate-key>"
    link = f"<single-tcp><tls>{tls}</tls><acceptor><listen-port>9</listen-port></acceptor></single-tcp>"
    peer = f'<tnw-gateway version="1.0"><portals><peer><name>P</name>{link}</peer></portals></tnw-gateway>'
    file = tmp_path / "dro.xml"
    for written, found in (
        (key, f"{file}:2: warning: portal P: <certificate>: {certificate}: expires in 3 days: "),
        (
            "/nowhere",
            f"{file}:3: warning: portal P: <certificate-key>: /nowhere: No such file or directory: ",
        ),
    ):
        file.write_text(peer.format(written))
        main(["-v", str(file)])
        assert [line for line in capfd.readouterr().err.splitlines() if line.startswith(found)]


def test_what_lint_says_has_one_severity(quick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quick.with_name("b.cfg").write_text("context request_tcp_port_low 14500\ncontext request_tcp_port_high 14500\n")
    assert main(["-v", str(quick)]) == 0
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "request_tcp_port" in line]
    assert line.startswith(f"{quick.with_name('b.cfg')}:2: warning: context request_tcp_port_high: ")
    assert "[warning]" not in line


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "context resolver_unicast_daemon 127.0.0.1",
            "'127.0.0.1' is not an entry; write [interface[:port]->]address:port",
        ),
        ("source transport broker", "broker is not supported yet"),
        ("context request_tcp_port_high 1", "no port lies in the range from 14391 to 1; "),
        ("context use_tls yes", "'yes' is not a whole number; "),
    ],
)
def test_validation_and_start_refuse_the_same_at_the_line_of_the_option(
    quick: Path, capfd: pytest.CaptureFixture[str], text: str, what: str
) -> None:
    um_file = quick.with_name("b.cfg")
    um_file.write_text(f"{text}\n{um_file.read_text()}")
    for arguments in (["-v", str(quick)], [str(quick)]):
        assert main(arguments) == 1
        assert f"b.cfg:1: {text.rpartition(' ')[0]}: {what}" in capfd.readouterr().err


def test_another_order_of_elements_is_a_warning_of_the_validation_too(
    quick: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cost, domain = "<cost>3</cost>", "<domain-id>22</domain-id>"
    quick.write_text(QUICK.replace(domain + cost, cost + domain))
    assert main(["-v", str(quick)]) == 0
    assert "<domain-id>: should stand before <cost>" in capfd.readouterr().err


def test_the_effective_configuration_can_be_printed(quick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-config", str(quick)]) == 0
    out = capfd.readouterr().out
    assert f"<cost>3</cost> <!-- {quick}:7 -->" in out
    assert "<cost>1</cost> <!-- default -->" in out
    assert "a.cfg:1]" in out
    assert "[default]" not in out
    assert main(["--print-config", "--with-defaults", str(quick)]) == 0
    assert "context resolver_multicast_ttl = 16 [default]" in capfd.readouterr().out


def test_what_is_not_supported_yet_does_not_start(quick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(refused(quick))]) == 1
    assert f"{NOT_YET}; use " in capfd.readouterr().err


def test_one_file_only_is_run(quick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(quick), str(quick)])
    assert end.value.code == 2
    assert "one CONFIG only" in capfd.readouterr().err


def test_the_dtd_can_be_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-d"]) == 0
    dtd = capfd.readouterr().out
    assert "<!ELEMENT tnw-gateway" in dtd
    assert not re.search(r"\w\.(csv|py|md)\b", dtd), "its comments name no file that operators do not have"


@pytest.mark.parametrize(
    ("argument", "status", "said"), [("-h", 0, "CONFIG"), ("--version", 0, "tnwgd "), ("-x", 2, "try tnwgd --help")]
)
def test_arguments(argument: str, status: int, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([argument])
    assert end.value.code == status
    printed = capfd.readouterr()
    assert said in printed.out + printed.err


def test_a_missing_argument_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "CONFIG is missing" in capfd.readouterr().err


DAEMON_MONITOR = DaemonMonitorConfig(
    "t", PublishingConfig(), answers_snapshots=False, obeys_changes=False, lbm_config=(), um=UmOptions()
)


def test_the_plan_follows_the_configuration(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_dro(str(quick), warn=lambda _: None)
    specs = process_plan.plan_of(config)
    assert [(s.name, s.role) for s in specs] == [
        ("route-manager", Role.ROUTE_MANAGER),
        ("P1", Role.ENDPOINT),
        ("P2", Role.ENDPOINT),
    ]
    again = process_plan.plan_of(load_dro(str(quick), warn=lambda _: None))
    parts = [spec.part for spec in again]
    assert parts == [None, *config.all_portals], "read again they are equal: a portal goes on with the same part"
    watched = replace(config, daemon=replace(config.daemon, web_monitor=WebMonitorConfig("", 15304)))
    assert [(s.name, s.role) for s in process_plan.plan_of(watched)][3:] == [("monitor", Role.MONITOR)]
    kept = process_plan.plan_of(watched, HistoryOptions("h"))
    assert [(s.name, s.role) for s in kept][3:] == [("monitor", Role.MONITOR), ("history", Role.HISTORY)]
    published = replace(config, daemon=replace(config.daemon, daemon_monitor=DAEMON_MONITOR))
    assert [(s.name, s.role) for s in process_plan.plan_of(published)][3:] == [("statistics", Role.STATISTICS)]
    monkeypatch.setattr(process_plan, "MAX_WORKERS", 5)
    with pytest.raises(ConfigError, match="at most 1"):
        process_plan.plan_of(config)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-d", "extra"], "extra without effect: -d prints the DTD and reads no file"),
        (["-d", "-u"], "-u without effect"),
        (["-d", "-v"], "-d and -v exclude each other"),
        (["-v", "--print-config", "x"], "-v and --print-config exclude each other"),
        (["-v", "-f", "x"], "-f without effect: -v runs no DRO"),
        (["--print-config", "--run-dir", "y", "x"], "--run-dir without effect: --print-config runs no DRO"),
        (["--log-json", "-v", "x"], "--log-json without effect"),
        (["--with-defaults", "x"], "--with-defaults without effect"),
        (["--run-dir", "", "x"], "--run-dir is empty"),
        (["-f"], "CONFIG is missing"),
    ],
)
def test_an_argument_without_effect_is_an_error(
    arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    printed = capfd.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_the_options_of_the_man_page(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capfd.readouterr().out
    for short, long in (("d", "dump-dtd"), ("h", "help"), ("v", "validate"), ("u", "use-utc"), ("f", "detach")):
        assert f"-{short}, --{long}" in said
    assert "exit status" in said


def test_a_failed_start_leaves_the_signals_of_the_caller(quick: Path) -> None:
    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]

    before, mask = handlers(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    quick.write_text("<tnw-gateway/>")
    assert main([str(quick)]) == 1
    assert handlers() == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask

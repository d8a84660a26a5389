"""`tnwgdctl` without a DRO: which one is meant, what is printed, what its exit status is."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dro.bus.codec import from_json
from dro.clock import duration
from dro.command_line import EXIT_USAGE
from supervisor.admin.client import Client, CommandError, UnreachableError, find_dro, running_dros
from supervisor.admin.server import error_object
from supervisor.admin.status import DroStatus, OperationResult, PortalsStatus, PortalStatus, WorkerStatus
from supervisor.host.run_dirs import start_time_of
from supervisor.tools.ctl.main import COMMANDS, arguments, main
from supervisor.tools.ctl.output import EXIT_UNREACHABLE, put, table
from supervisor.tools.ctl.portals import portals_text, rates, rates_text
from supervisor.tools.ctl.reload import EXIT_DIFFERENT
from supervisor.tools.ctl.status import status_text

ROOT = Path(__file__).parents[4]
ME = f"{os.getpid()}-{start_time_of(os.getpid())}"

WORKER = WorkerStatus("P1", "endpoint", 1, "ready", 4711, 5, 2, 75.0, "killed by SIGKILL", "drain")
STATUS = DroStatus(
    "NORTH", "0.1.0", "9223372036854775809", 4710, 90061.0, "/etc/dro.xml", 1_790_000_000.0, True,
    ("<daemon><pidfile>",), "/run/dro", (WORKER, replace(WORKER, name="P2", pid=0, state="paused", operation="")),
)  # fmt: skip
PORTAL = PortalStatus(
    "P1", "endpoint", "ready", 1, 3, 1, {
        "PROXY_RECEIVERS": 4, "PROXY_SOURCES": 5, "LOCAL_TOPICS": 6, "LOCAL_PCRE": 3, "LOCAL_REGEX": 4,
        "REMOTE_TOPICS": 8, "REMOTE_PCRE": 9, "TOPIC_RCVD": 1000, "TOPIC_RCVD_BYTES": 100_000, "CONTROL_RCVD": 7,
        "FORWARDED": 2000, "FORWARDED_BYTES": 200_000, "SENT": 1990, "SENT_BYTES": 199_000, "DROPPED_BLOCKED": 10,
        "QUEUED_BYTES": 512, "QUEUE_LIMIT": 1_000_000, "UNRECOVERABLE": 2, "SOCKET_DROPS": 15, "UNSENT": 16,
        "DISCARDED": 17, "UNICAST_DATA_NO_ROUTE": 20, "UNICAST_CONTROL_NO_ROUTE": 1, "IMMEDIATE_BROKEN": 28,
        "GATEWAY_CONTROL_DROPPED": 24,
    },
)  # fmt: skip


def counting(**counters: int) -> PortalStatus:
    return replace(PORTAL, counters=PORTAL.counters | counters)


WAY = ("--from", "1", "--to", "2")
CHANGE = {"path": "daemon/name", "portal": "", "old": "A", "new": "B", "reload": "live", "origin": "", "was": ""}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dro-t-") as name:
        yield Path(name)


class OneAnswer:
    """A socket that gives that answer to whoever asks first, and keeps the question."""

    def __init__(self, run_dir: Path, answer: bytes, times: int = 1) -> None:
        self.question = b""
        self._answer = answer
        self._times = times
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(run_dir / "admin"))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            for _ in range(self._times):
                self.question = sock.recv(1 << 16)
                if self.question:
                    sock.sendall(self._answer)

    def close(self) -> None:
        self._thread.join(20)
        self._listener.close()


def asked(folder: Path, answer: object, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit status of that command, and what it asked."""
    text = answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n"
    server = OneAnswer(folder, text)
    try:
        status = main([*words, "--run-dir", str(folder)])
    finally:
        server.close()
    question = json.loads(server.question)
    assert isinstance(question, dict)
    return status, question


def commands_of(parser: argparse.ArgumentParser) -> set[str]:
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return set(subparsers.choices)


def test_each_module_adds_the_commands_that_it_is_known_for() -> None:
    for names in COMMANDS.values():
        for name in names:
            assert commands_of(arguments(name)) == set(names)
    everything = {name for names in COMMANDS.values() for name in names}
    for word in ("", "nope", "7"):
        assert commands_of(arguments(word)) == everything


def test_a_dro_may_be_called_like_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dro", "status", "portals"]) == 3
    assert "'status'" in capsys.readouterr().err


@pytest.mark.parametrize(("topic", "status"), [("PUBLIC.a", 0), ("private", 1)])
def test_explain_has_status_1_for_a_topic_that_a_file_rejects(topic: str, status: int, tmp_path: Path) -> None:
    acl = '<acl><inbound><ace match="accept"><pcre-pattern>^PUBLIC</pcre-pattern></ace></inbound></acl>'
    portals = [
        f"<endpoint><name>P{n}</name><domain-id>{n}</domain-id><lbm-config>{n}.cfg</lbm-config>{acl if n == 1 else ''}"
        "</endpoint>"
        for n in (1, 2)
    ]
    for n in (1, 2):
        (tmp_path / f"{n}.cfg").write_text(f"context resolver_multicast_address 239.9.9.{n}\n")
    file = tmp_path / "dro.xml"
    file.write_text(f'<tnw-gateway version="1.0"><daemon/><portals>{"".join(portals)}</portals></tnw-gateway>')
    assert main(["explain", topic, "--from", "1", "--to", "2", "--file", str(file)]) == status


@pytest.mark.parametrize("words", [("--json", "status", "--dro", "X"), ("--dro", "X", "status", "--json")])
def test_common_options_stand_before_or_behind_the_command(words: tuple[str, ...]) -> None:
    args = arguments().parse_args(words)
    assert (args.json, args.dro, args.run_dir) == (True, "X", "")


# which DRO


def test_living_dros_of_this_user_are_found_and_dead_ones_are_not(folder: Path) -> None:
    (folder / f"dro-NORTH-{ME}").mkdir()
    (folder / f"dro-DEAD-{os.getpid()}-1").mkdir()
    (folder / "dro-GONE-4194304-7").mkdir()
    (folder / "dro-odd").mkdir()
    (folder / f"dro-FILE-{ME}").touch()
    (folder / f"dro-LINK-{ME}").symlink_to(folder / f"dro-NORTH-{ME}")
    assert [dro.name for dro in running_dros([folder, folder / "not there"], folder / "shm")] == ["NORTH"]
    assert find_dro(bases=[folder], shm=folder / "shm") == folder / f"dro-NORTH-{ME}"


def test_a_run_directory_anywhere_is_found_through_shared_memory(folder: Path) -> None:
    shm = folder / "shm"
    for name in (f"dro-NORTH-{ME}", f"dro-BARE-{ME}", "dro-GONE-4194304-7"):
        (shm / name).mkdir(parents=True)
    for name in (f"dro-NORTH-{ME}", "dro-GONE-4194304-7"):
        (shm / name / "run").symlink_to(folder / "elsewhere")
    assert [(dro.name, dro.run_dir) for dro in running_dros([], shm)] == [("NORTH", folder / "elsewhere")]


def test_one_of_several_has_to_be_named(folder: Path) -> None:
    for name in ("NORTH", "SOUTH", "A_B"):
        (folder / f"dro-{name}-{ME}").mkdir()
    with pytest.raises(
        UnreachableError, match=r"several DROs run here: A_B \(pid \d+\), NORTH .*choose one with --dro"
    ):
        find_dro(bases=[folder], shm=folder / "shm")
    assert find_dro("SOUTH", bases=[folder], shm=folder / "shm").name == f"dro-SOUTH-{ME}"
    assert find_dro("A B", bases=[folder], shm=folder / "shm").name == f"dro-A_B-{ME}"
    assert find_dro("SO", bases=[folder], shm=folder / "shm").name == f"dro-SOUTH-{ME}"
    with pytest.raises(UnreachableError, match=r"just the name 'SO'; .* whole name, as in SOUTH \(pid"):
        find_dro("SO", bases=[folder], shm=folder / "shm", is_whole=True)
    (folder / f"dro-NORTH-2-{ME}").mkdir()
    assert find_dro("NORTH", bases=[folder], shm=folder / "shm").name == f"dro-NORTH-{ME}"
    with pytest.raises(UnreachableError, match=r"several DROs run here: NORTH .*, NORTH-2 "):
        find_dro("NO", bases=[folder], shm=folder / "shm")
    with pytest.raises(UnreachableError, match="no DRO 'WEST' runs here; there are A_B"):
        find_dro("WEST", bases=[folder], shm=folder / "shm")
    with pytest.raises(UnreachableError, match="several DROs"):
        find_dro(str(os.getpid()), bases=[folder], shm=folder / "shm")


def test_none_at_all(folder: Path) -> None:
    with pytest.raises(UnreachableError, match="start one with tnwgd"):
        find_dro(bases=[folder], shm=folder / "shm")
    with pytest.raises(UnreachableError, match="no DRO 'X' runs here") as named:
        find_dro("X", bases=[folder], shm=folder / "shm")
    assert error_object(named.value)["remedy"] == "start one with tnwgd, or name its directory with --run-dir"


def test_a_socket_without_a_dro_is_unreachable(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(str(folder / "admin"))
    stale.close()  # nobody listens, the file stays
    assert main(["status", "--run-dir", str(folder)]) == 3
    assert main(["status", "--run-dir", str(folder / "not there")]) == 3
    errors = capsys.readouterr().err.splitlines()
    assert "Connection refused" in errors[0]
    assert "No such file" in errors[1]
    assert all("; name the run directory" in error for error in errors)


# answers


def test_status_for_people_and_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"ok": True, "result": asdict(STATUS)}
    assert asked(folder, answer, "status") == (0, {"command": "status"})
    text = capsys.readouterr().out
    assert "NORTH  open-dro 0.1.0  node 9223372036854775809" in text
    assert "up 1d 1h" in text
    assert "waits for a restart of the daemon: <daemon><pidfile>" in text
    (folder / "admin").unlink()
    asked(folder, answer, "--json", "status")
    assert from_json(DroStatus, json.loads(capsys.readouterr().out)) == STATUS


def test_a_refusal_is_printed_with_its_place_and_every_problem(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"what": "bad cost", "file": "dro.xml", "line": 7, "remedy": "mend it"}
    two = {"what": "worse", "file": "dro.xml", "line": 0, "remedy": ""}
    status, _ = asked(folder, {"ok": False, "error": one | {"problems": [one, two]}}, "portal", "add", "P3")
    assert status == 1
    assert capsys.readouterr().err == "tnwgdctl: dro.xml:7: bad cost; mend it\ntnwgdctl: dro.xml: worse\n"


def test_a_refusal_with_json_is_an_object_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"what": "busy", "file": "", "line": 0, "remedy": "wait"}
    status, _ = asked(folder, {"ok": False, "error": error}, "portal", "pause", "P1", "--json")
    assert status == 1
    assert json.loads(capsys.readouterr().out) == {"error": error}


@pytest.mark.parametrize("answer", [b"", b"hello\n", b"[]\n", b'{"ok": true}\n', b'{"ok": true, "result": {}}\n'])
def test_what_is_no_answer_of_a_dro(folder: Path, answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(folder, answer, "status")[0] == 3
    assert capsys.readouterr().err.startswith("tnwgdctl: ")


def test_who_is_turned_away_reads_why(folder: Path) -> None:
    """The server says it and closes, maybe before the request is sent."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "admin"))
    listener.listen()
    with listener, Client(folder) as client:
        sock, _ = listener.accept()
        sock.sendall(b'{"ok": false, "error": {"what": "too many"}}\n')
        sock.close()
        with pytest.raises(CommandError, match="too many"):
            client.request("status")


def test_what_a_dro_says_cannot_move_the_cursor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = replace(STATUS, name="\x1b[2J\x9b31m", config_file="a\nb")
    asked(folder, {"ok": True, "result": asdict(evil)}, "status")
    (folder / "admin").unlink()
    asked(folder, {"ok": False, "error": {"what": "\x1b]0;x\x07"}}, "status")
    said = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\x07"} & set(said.out + said.err)


@pytest.mark.parametrize(
    ("words", "request_", "status"),
    [
        (("pause", "P1"), {"command": "portal pause", "name": "P1"}, 0),
        (("drain", "P1"), {"command": "portal drain", "name": "P1", "limit_s": 30.0}, 1),
        (("remove", "P1", "--limit", "2.5"), {"command": "portal remove", "name": "P1", "limit_s": 2.5}, 1),
    ],
)
def test_an_operation_that_was_not_clean_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], request_: object, status: int
) -> None:
    """For a drain it means that it lost something, which is what a script has to know."""
    answer = {"ok": True, "result": asdict(OperationResult("P1", "drained", "12 fragments queued"))}
    assert asked(folder, answer, "portal", *words) == (status, request_)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("P1 is drained\n", "tnwgdctl: P1: 12 fragments queued\n")


@pytest.mark.parametrize(
    "words",
    [
        ("nope",), ("portal",), ("portal", "pause"), ("portal", "explode", "P1"), ("status", "extra"),
        ("portal", "drain", "P1", "--limit", "-1"), ("portal", "drain", "P1", "--limit", "nan"),
        ("portal", "pause", "P1", "--limit", "1"), ("portals", "--watch", "soon"), ("portals", "--count", "0"),
        ("portals", "--watch", "0"), ("portals", "--watch", "-1"),
        ("topics", "--topic", "\udcff"), ("topics", "--topic", "x" * 256), ("explain", "x" * 256, *WAY),
        ("explain", "a", "--from", "0", "--to", "2"), ("explain", "a", "--from", "-1", "--to", "2"),
        ("explain", "a", "--from", "1", "--to", "4294967296"), ("explain", "a", *WAY, "--udp-source-port", "99999"),
        ("explain", "a", *WAY, "--xport-id", "x"), ("explain", "a", *WAY, "--source-ip", "1.2.3"),
        ("status", "--dro", ""), ("--run-dir", "", "status"),
        ("portals", "--count", "2"),
    ],
)  # fmt: skip
def test_wrong_arguments(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"tnwgdctl[ a-z]*: .*; [^;]+$", line)
    assert "_" not in line


@pytest.mark.parametrize(
    ("answer", "words", "status"),
    [
        (asdict(STATUS), ("status",), 0),
        (asdict(STATUS), ("status", "--json"), 0),
        ({"file": "f", "changes": [CHANGE], "actions": []}, ("diff",), EXIT_DIFFERENT),
        ({"time_s": 1.0, "portals": [asdict(PORTAL)]}, ("portals", "--watch", "0.1"), 0),
    ],
)
def test_a_reader_that_has_enough_changes_no_exit_status(
    folder: Path, answer: dict[str, Any], words: tuple[str, ...], status: int
) -> None:
    server = OneAnswer(folder, json.dumps({"ok": True, "result": answer}).encode() + b"\n", times=2)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "supervisor.tools.ctl.main", *words, "--run-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writing)
    server.close()
    assert (done.returncode, done.stderr) == (status, b"")


# pictures


def test_a_table_is_aligned_and_leaves_out_what_is_empty() -> None:
    assert table(("NAME", "PID", "NOTE"), [("a", "7", ""), ("long", "1234", "")]) == (
        "NAME   PID\na        7\nlong  1234"
    )


@pytest.mark.parametrize("ending", ["\n", "\r", "\r\n", "\v", "\x85", "\u2028", "\u2029"])
def test_a_name_with_a_line_ending_forges_no_row(ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(table(("TOPIC", "SOURCES"), [(f"a{ending}forged", 1), ("b", 2)]))
    put(f"about {ending.strip(chr(10))}")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert re.match(r"a(\\[xu][0-9a-f]{2,4}){1,2}forged  +1$", lines[1])


def test_durations() -> None:
    assert [duration(x) for x in (0.9, 59, 60, 3599, 3600, 86_399, 86_400 * 3 + 3600 * 4)] == [
        "0s", "59s", "1m 00s", "59m 59s", "1h 00m", "23h 59m", "3d 4h"
    ]  # fmt: skip


def test_status_names_what_is_under_way_and_what_does_not_run() -> None:
    lines = status_text(STATUS).splitlines()
    (p1,) = (line for line in lines if line.startswith("P1"))
    (p2,) = (line for line in lines if line.startswith("P2"))
    assert p1.split("  ")[0] == "P1"
    assert "ready (drain)" in p1
    assert "4711  1m 15s" in p1
    assert "killed by SIGKILL" in p1
    assert "paused" in p2
    assert "4711" not in p2
    assert "LIFE" not in status_text(STATUS), "it counted the processes of all workers, beside RESTARTS of one"


def test_a_dro_without_portals_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert portals_text(PortalsStatus(1.0, ())) == ""


def test_portals_tell_drops_by_reason_and_what_waits() -> None:
    text = portals_text(PortalsStatus(1.0, (PORTAL,)))
    assert "P1 dropped 10 would_block" in text
    assert "P1 queues 512 of 1000000 bytes" in text
    assert "P1 gave up 2 datagrams" in text
    assert "P1 lost 15 datagrams" in text
    assert "P1 could not send 16 datagrams" in text
    assert "P1 discarded 17 messages" in text
    assert "P1 dropped unicast messages: 21 no_route" in text
    assert "P1 dropped immediate messages: 28 broken" in text
    assert "P1 dropped gateway control messages: 24 would_block" in text
    assert text.splitlines()[1].split() == (
        ["P1", "ready", "1", "3", "4", "5", "6+7", "8+9", "1000", "7", "2000", "1990", "10", "0"]
    )  # fmt: skip


def test_portals_say_what_their_columns_are() -> None:
    peer = replace(PORTAL, name="P2", kind="peer", domain_id=0)
    head, first, second, *others = portals_text(PortalsStatus(1.0, (PORTAL, peer))).splitlines()
    assert (first.split()[2], second.split()[2]) == ("1", "-"), "the other side of a link is no domain"
    assert first.index(" 1 ") == second.index(" - "), "numbers stand below each other"
    assert "LOCAL" in head
    assert others[0] == "LOCAL: topics + patterns that receivers of the TRD want"


def test_portals_tell_by_what_topics_are_resolved_and_which_servers_are_silent() -> None:
    ways = ("lbmrd 10.0.0.1:15380, 10.0.0.2:15380", "SRS 10.0.0.1:27000")
    portal = replace(
        counting(LBMRDS=2, LBMRDS_ANSWERING=1, LBMRDS_WHICH=2, SRSES=1, UNKNOWN_SENDERS=3), resolved_by=ways
    )
    assert portal.resolution == (
        "lbmrd 10.0.0.1:15380 (silent), 10.0.0.2:15380 (answers) and SRS 10.0.0.1:27000 (silent)"
    )
    text = portals_text(PortalsStatus(1.0, (portal,)))
    assert "P1 gets no answer from any SRS of its TRD" in text
    assert "any lbmrd" not in text
    assert "P1 dropped 3 datagrams of topic resolution whose sender is no lbmrd of its TRD" in text
    answers = replace(portal, counters={"SRSES": 1, "SRSES_WHICH": 1}, resolved_by=("SRS 10.0.0.1:27000",))
    assert answers.resolution == "SRS 10.0.0.1:27000 (answers)"
    assert (
        replace(portal, counters={}, resolved_by=("224.1.1.1:1 on 10.0.0.1",)).resolution == "224.1.1.1:1 on 10.0.0.1"
    )


def test_rates_between_two_looks() -> None:
    more = counting(TOPIC_RCVD=1500, FORWARDED=3000, SENT=2990, SENT_BYTES=324_000, DROPPED_BLOCKED=15)
    before, after = PortalsStatus(10.0, (PORTAL,)), PortalsStatus(12.0, (more, replace(PORTAL, name="NEW")))
    (rate,) = rates(before, after)
    assert (rate.received, rate.forwarded, rate.sent, rate.sent_bits, rate.dropped) == (250, 500, 500, 500_000, 2.5)
    assert rates_text(after, (rate,)).splitlines()[2].split() == ["NEW", "ready", "0"]


@pytest.mark.parametrize(("kind", "side"), [("endpoint", "TRD"), ("peer", "link")])
def test_datagrams_that_were_lost_or_bad_are_said_to_be_of_the_trd_or_the_link(kind: str, side: str) -> None:
    text = portals_text(PortalsStatus(1.0, (replace(counting(BAD_DATAGRAMS=9), kind=kind),)))
    assert f"P1 gave up 2 datagrams of its {side} as lost" in text
    assert f"P1 dropped 9 datagrams of its {side} that are broken or of others" in text
    assert "broken or of others" not in portals_text(PortalsStatus(1.0, (PORTAL,)))


@pytest.mark.parametrize(("columns", "lines"), [(200, 5), (60, 17)])
def test_a_narrow_terminal_gets_paragraphs(folder: Path, columns: int, lines: int) -> None:
    loud = ("DROPPED", "UNICAST", "IMMEDIATE", "QUEUED", "UNRECOVERABLE", "SOCKET", "UNSENT", "DISCARDED", "GATEWAY")
    quiet = replace(PORTAL, counters={n: c for n, c in PORTAL.counters.items() if not n.startswith(loud)})
    answer = {"ok": True, "result": asdict(PortalsStatus(1.0, (quiet,)))}
    server = OneAnswer(folder, json.dumps(answer).encode() + b"\n")
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "supervisor.tools.ctl.main", "portals", "--run-dir", str(folder)]
    environment = os.environ | {"COLUMNS": str(columns)}
    process = subprocess.Popen(command, cwd=ROOT, stdout=inner, stdin=inner, env=environment)
    os.close(inner)
    text = b""
    try:
        while part := os.read(outer, 65536):
            text += part
    except OSError:  # the other end is gone
        pass
    assert process.wait(60) == 0
    os.close(outer)
    server.close()
    shown = text.decode().splitlines()
    assert max(map(len, shown)) <= columns
    assert len(shown) == lines


# records


def test_records_travel_as_json() -> None:
    for record in (STATUS, PORTAL, PortalsStatus(1.5, (PORTAL,)), OperationResult("P", "ready")):
        assert from_json(type(record), json.loads(json.dumps(asdict(record)))) == record


def test_an_error_without_parts_has_a_text() -> None:
    assert str(CommandError({})) == "no reason given"


def test_without_arguments_the_commands_are_listed_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == EXIT_USAGE
    shown = capsys.readouterr().out
    for command in (name for names in COMMANDS.values() for name in names):
        assert re.search(rf"^ +{command} +\S", shown, re.MULTILINE), command


@pytest.mark.parametrize(("typed", "meant"), [("statsu", "status"), ("topic", "topics"), ("conifrm", "confirm")])
def test_a_mistyped_command_is_answered_with_the_nearest(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([typed])
    said = f"tnwgdctl: argument COMMAND: invalid choice: '{typed}'; did you mean {meant}?\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("words", "is_whole"),
    [(["status"], False), (["explain", "T", "--from", "1", "--to", "2"], False), (["diff"], False),
     (["drain", "--all"], True), (["portal", "pause", "P1"], True), (["recalculate"], True),
     (["rollback"], True), (["reload"], True)],
)  # fmt: skip
def test_what_changes_a_dro_takes_its_whole_name(
    words: list[str], is_whole: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def find(name: str, run_dir: str, *, is_whole: bool = False) -> Path:
        asked.append((name, run_dir, is_whole))
        raise UnreachableError("none", remedy="none")

    for module in ("output", "network"):
        monkeypatch.setattr(f"supervisor.tools.ctl.{module}.find_dro", find)
    assert main([*words, "--dro", "NOR"]) == EXIT_UNREACHABLE
    assert asked[:1] == [("NOR", "", is_whole)]

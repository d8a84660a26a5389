"""How `tnwgd` starts: what it refuses and why, what it warns about, and the published examples as they are.

Each test has a host of its own, so that ports and groups are free until the test takes them.
"""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.rigs.books import books_of
from tests.rigs.netns.app import App, Board, assert_same, wait_delivered
from tests.rigs.netns.capture import judge, ports
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.process import ROOT, Process
from tests.rigs.netns.topology import write_dro, write_um
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.netns

EXAMPLES = ROOT / "tests" / "golden" / "examples"
ENDS_S = 20.0
PEER = """    <peer>
      <name>P</name>
      <single-tcp>
        <initiator><address>10.2.0.1</address><port>many</port></initiator>
      </single-tcp>
    </peer>
"""


@pytest.fixture
def host(net: Net) -> Host:
    return net.host("machine", {"trd1": "10.1.0.9/24", "trd2": "10.2.0.9/24"})


def configuration(folder: Path, um: str = "", more: str = "") -> Path:
    """A DRO between TRD 1 and 2; `um` and `more` are for TRD 2."""
    return write_dro(folder, {1: write_um(folder, 1, "tcp"), 2: write_um(folder, 2, "tcp", um)}, {2: more})


def start(host: Host, xml: Path) -> Process:
    return host.start_python("-m", "supervisor.main", str(xml), name="tnwgd")


def refusal(host: Host, xml: Path) -> str:
    """The last word of a DRO that does not start, which is one line."""
    process = start(host, xml)
    assert process.wait(ENDS_S) == 1, process.stdout
    assert "Traceback" not in process.stdout + process.stderr
    (line,) = [line for line in process.stdout.splitlines() if "DRO cannot start" in line]
    return line


def taken(host: Host, kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    """A socket of another program on the host."""
    with host.inside():
        sock = socket.socket(socket.AF_INET, kind)
    sock.bind((address, port))
    if kind == socket.SOCK_STREAM:
        sock.listen()
    return sock


@pytest.mark.parametrize(
    ("um", "kind", "address", "port", "named"),
    [
        ("context request_tcp_port_low 15000\ncontext request_tcp_port_high 15000\n", socket.SOCK_STREAM, "10.2.0.9",
         15000, "request_tcp_port_low"),
        ("context request_tcp_port 15001\n", socket.SOCK_STREAM, "10.2.0.9", 15001, "request_tcp_port"),
        ("context resolver_multicast_address 239.5.5.5\n", socket.SOCK_DGRAM, "239.5.5.5", 12965,
         "resolver_multicast_incoming_address"),
    ],
)  # fmt: skip
def test_what_cannot_be_bound_is_named(
    net: Net, host: Host, um: str, kind: socket.SocketKind, address: str, port: int, named: str
) -> None:
    xml = configuration(net.folder, um)
    with taken(host, kind, address, port):
        line = refusal(host, xml)
    assert "worker=G1-TRD2" in line
    assert named in line
    assert "in use" in line
    assert not list(Path("/dev/shm").glob(f"dro-G1-{host.name}-*"))


def test_a_port_for_two_contexts_is_too_little(net: Net, host: Host) -> None:
    """A portal has two contexts, and each of them a request port."""
    xml = configuration(net.folder, "context request_tcp_port_low 15000\ncontext request_tcp_port_high 15000\n")
    assert "request_tcp_port_low" in refusal(host, xml)


def test_a_mistake_in_the_file_is_refused_with_file_and_line(net: Net, host: Host) -> None:
    xml = configuration(net.folder)
    text = xml.read_text().replace("  </portals>", f"{PEER}  </portals>")
    xml.write_text(text)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "many" in line)
    process = start(host, xml)
    assert process.wait(ENDS_S) == 1
    assert f"{xml}:{line}: <port>: " in process.stderr
    assert "many" in process.stderr
    assert "worker started" not in process.stdout


OF_ENDPOINTS = (
    "late-join", "topic-purge", "topic-interest-generate", "topic-domain-activity", "pattern-purge",
    "pattern-interest-generate", "pattern-domain-activity",
)  # fmt: skip
OF_PEERS = ("topic-use-check", "pattern-use-check")


def test_what_has_no_function_is_told_once_and_changes_nothing(net: Net, host: Host) -> None:
    """Deprecated elements, tables of names and a licence, by a warning each."""
    xml = configuration(net.folder, more="".join(f"<{name}/>" for name in OF_ENDPOINTS))
    peer = PEER.replace("<port>many", "<port>9").replace("      </single-tcp>\n", "      </single-tcp>\n      {}\n")
    text = xml.read_text().replace("  </portals>", peer.format("".join(f"<{n}/>" for n in OF_PEERS)) + "  </portals>")
    idle = "<lbm-license-file>/nowhere/um.lic</lbm-license-file><topicmap/><patternmap/>"
    xml.write_text(re.sub(r"(<log [^>]*/>)", rf"\1{idle}", text))
    process = start(host, xml)
    process.wait_output("route recalculation took .*routes=2 process=", ENDS_S)
    warnings = [line for line in process.stdout.splitlines() if "[warning]" in line]
    for name in OF_ENDPOINTS + OF_PEERS:
        (line,) = [line for line in warnings if f"<{name}>" in line]
        assert "deprecated, ignored" in line
        assert re.search(r"Gwd-6814-\d+: ", line)
    for name in ("lbm-license-file", "topicmap", "patternmap"):
        (line,) = [line for line in warnings if f"<{name}>" in line]
        assert "ignored" in line
    assert process.stop() == 0


def test_a_mistake_in_a_um_file_is_a_warning(net: Net, host: Host) -> None:
    xml = configuration(net.folder, "context no_such_option 1\ncontext resolver_multicast_ttl 999\n")
    process = start(host, xml)
    process.wait_output("route recalculation took .*routes=2 process=", ENDS_S)
    assert re.search(r"\[warning\] \S*trd2.cfg:\d+: .*no_such_option", process.stdout)
    assert re.search(r"\[warning\] \S*trd2.cfg:\d+: .*resolver_multicast_ttl.*999", process.stdout)
    assert process.stop() == 0


@pytest.mark.slow
@pytest.mark.tshark
@pytest.mark.parametrize("example", ["direct-link", pytest.param("star-central-dro", marks=pytest.mark.long)])
def test_an_example_runs_as_it_is(net: Net, host: Host, example: str) -> None:
    """From its own folder; a source in each TRD, on TCP and LBT-RM by turns, is heard in all the others."""
    folder = EXAMPLES / example
    topology = json.loads((folder / "topology.json").read_text())
    trds = {trd["domain_id"]: folder / trd["config"] for trd in topology["trds"]}
    decode_as = []
    for trd in topology["trds"]:
        low = trd["port_block"][0]
        decode_as += [
            ports("udp", low, "lbmr"),
            ports("udp", low + 1, "lbtrm"),
            ports("udp", low + 65, "lbtrm", low + 76),
        ]
        decode_as += [ports("tcp", low + 5, "lbttcp", low + 64)]
    board, messages = Board(), 100
    capture = host.capture("lo")
    argv = ["sh", "-c", f'cd {folder} && exec "$0" "$@"', str(ROOT / ".venv/bin/python"), "-m", "supervisor.main"]
    process = host.start([*argv, "dro-g1.xml"], "tnwgd", {"PYTHONPATH": str(ROOT)})
    count = len(trds) * (len(trds) - 1)
    process.wait_output(f"route recalculation took .*routes={count} process=", 120)  # 5 s after the last portal is up
    with books_of(process.pid, len(trds)) as books:
        apps = {trd: App(host, config, board, f"app{trd}") for trd, config in trds.items()}
        cell = {(s, r): 10 * s + r for s in trds for r in trds if s != r}
        for trd, app in apps.items():
            app.open("own", b"topic%d" % trd, ("source", "transport", "lbtrm" if trd % 2 else "tcp"))
            for other in trds:
                if other != trd:
                    app.receive(b"topic%d" % other, cell=cell[other, trd])
        for s, r in cell:
            apps[r].wait_heard(b"topic%d" % s)
        for trd, app in apps.items():
            cells = tuple(number for (s, _), number in cell.items() if s == trd)
            app.send("own", messages, seed=trd, sizes=(1, 2000), cells=cells)
        wait_delivered(board, dict.fromkeys(cell.values(), messages))
        reports = {trd: app.report() for trd, app in apps.items()}
        for s, r in cell:
            (heard,) = reports[r].of_topic(b"topic%d" % s)
            assert_same(heard, reports[s].sent["own"])
        for app in apps.values():
            app.end()
        wait_until(lambda: not books.problems(), "balance", 20)
    assert process.stop(10) == 0
    verdict = judge(capture.stop(), decode_as)
    verdict.assert_clean({"lbmr.tir": 1, "lbttcp": messages, "lbtrm.data": messages})

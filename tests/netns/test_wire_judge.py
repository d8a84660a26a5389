"""What the network tests put on the wire is shown to a dissector, and every kind of record is among it."""

from __future__ import annotations

import ast
import socket
from pathlib import Path
from typing import Final

import pytest

from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data
from dro.um.message.properties import batch_marks, compose
from dro.wire.lbmc.failover import HotFailover
from tests.builders.udp_capture import read_udp
from tests.rigs.netns.app import App, Board
from tests.rigs.netns.capture import ports
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import judged
from tests.rigs.netns.topology import address_in, running_dro, trd_name
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark]
SM = bytes.fromhex("02002f3af9d74f3e00000000000013870000000080030000")


def send(payload: bytes, to: tuple[str, int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(payload, to)


def test_a_judged_block_passes_clean_traffic_and_counts_it(net: Net) -> None:
    left = net.host("left", {"trd1": "10.77.0.1/24"})
    rule = ports("udp", 14500, "lbtrm")
    with judged(net, "trd1", decode_as=[rule], minimum={"trd1": {"lbtrm.sm": 2}}) as watch:
        left.call(send, SM, ("239.77.1.1", 14400))
        left.call(send, SM, ("239.77.1.1", 14500))
    assert watch.total("lbtrm.sm") == watch["trd1"].counts["lbtrm.sm"] == 2


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [(SM[:-1], "malformed"), (b"hello", "malformed"), (b"", "nothing was on the wire")],
    ids=["cut short", "other protocol", "silence"],
)
def test_a_judged_block_fails_on_what_does_not_decode(net: Net, payload: bytes, complaint: str) -> None:
    left = net.host("left", {"trd1": "10.77.0.1/24"})

    def watched() -> None:
        with judged(net, "trd1"):
            if payload:
                left.call(send, payload, ("239.77.1.1", 14400))

    with pytest.raises(AssertionError, match=complaint):
        watched()


def test_a_failure_inside_a_judged_block_is_what_the_test_reports(net: Net) -> None:
    net.host("left", {"trd1": "10.77.0.1/24"})
    with pytest.raises(ZeroDivisionError), judged(net, "trd1"):
        raise ZeroDivisionError


QUICK: Final = """
<topic-resolution>
  <topic-use-query timeout="150" max="10" periodic-interval="100"/>
  <pattern-use-query timeout="150" max="10" periodic-interval="100"/>
</topic-resolution>
"""
PATTERN: Final = rb"^wire\.[ab]$"
SEEN: Final = {
    # where the sources are: what the portal wants there for others, and how it learns of sources
    1: (
        ["request", "domain_route", "interest", "pattern_interest", "interest_cancel", "tqr", "wctqr", "tir"],
        {"lbtrm.data": 100, "lbttcp": 1},
    ),
    # where the receivers are: what the portal asks them, and its proxy sources from birth to end
    2: (
        ["request", "domain_route", "use_query", "use_response", "leave", "tqr", "proxy_tir", "final_tir"],
        {"lbtrm.data": 200},
    ),
    3: (
        ["request", "domain_route", "use_query", "use_response", "leave", "wctqr", "proxy_tir", "final_tir"],
        {"lbttcp": 1},
    ),
}


def test_every_kind_of_record_of_a_dro_is_seen_and_decodes(net: Net) -> None:
    """Topics and patterns come and go between an LBT-RM and a TCP source and receivers in two more TRDs."""
    board = Board()
    hosts = {trd: net.host(f"app{trd}", {trd_name(trd): f"{address_in(trd, 1)}/24"}) for trd in (1, 2, 3)}
    minimum = {trd_name(trd): {f"lbmr.{kind}": 1 for kind in kinds} | others for trd, (kinds, others) in SEEN.items()}
    with (
        judged(net, *minimum, minimum=minimum) as watch,
        running_dro(net, {1: "lbtrm", 2: "lbtrm", 3: "tcp"}, more=dict.fromkeys((1, 2, 3), QUICK)) as dro,
    ):
        apps = {trd: App(host, dro.configs[trd], board) for trd, host in hosts.items()}
        apps[2].receive(b"wire.a", cell=0)
        apps[2].receive(b"wire.b", cell=1)
        apps[3].match(PATTERN, cell=2)
        apps[1].open("a", b"wire.a")
        apps[1].open("b", b"wire.b", ("source", "transport", "tcp"))
        apps[1].send("a", 100, cells=(0, 2), sizes=(1, 1000))
        wait_until(lambda: list(board.messages[:3]) == [100, 0, 100], "every message of a", 30)
        # not before: in cell 2 the probes of one source would tell the other that it is heard
        apps[1].send("b", 100, cells=(1, 2), sizes=(1, 1000))
        wait_until(lambda: list(board.messages[:3]) == [100, 100, 200], "every message of b", 30)
        dro.wait_balanced()
        apps[2].unreceive(b"wire.a")
        dro.wait_log(r"proxy source deleted topic=wire\.a .*process=G1-TRD2")
        apps[3].unmatch(PATTERN)
        dro.wait_log(r"proxy receiver deleted (pattern|topic)=.*wire.*ab.* process=G1-TRD1")
        apps[1].close_source("b", final=True)
        dro.wait_log(r"proxy source deleted topic=wire\.b .*process=G1-TRD2")
        for app in apps.values():
            app.end()
    portals = {address_in(trd, 9) for trd in SEEN}
    for trd, path in watch.paths.items():
        speakers = {d.src for d in read_udp(path) if d.dport == 12965}
        assert len(speakers) == 2, (trd, speakers)
        assert len(speakers & portals) == 1


# Both hops lose a third, also of repairs: what one hop has after 8 s may need 4 s more on the other. A probe
# from before the start of the second hop's session, which is never repaired, is waited for as long.
# TSNIs are data: between two of them there must be time for a session message, which comes after 200 ms
MIXED: Final = """
source implicit_batching_minimum_length 2048
source transport_topic_sequence_number_info_interval 500
receiver transport_tcp_dro_loss_recovery_timeout 20000
receiver transport_lbtrm_nak_generation_interval 20000
"""
SMALL, LARGE, LARGE_BYTES, WITH_HEADERS = 400, 12, 60_000, 40


ONE_TSNI: Final = bytes.fromhex("08200010ff0c0001")
PROBE: Final = b"of a session that begins"


def send_mixed(config: Path, heard: Path, stop: Path) -> None:
    """Probes until they are heard; small and large messages, with all headers; silence with TSNIs until told."""
    with BlockingContext(Config.load(config)) as context, context.source("wire.mixed") as source:

        def is_heard() -> bool:
            source.send(PROBE)
            return heard.exists()

        wait_until(is_heard, "the receivers", 40, every_s=0.05)
        for n in range(SMALL):
            source.send(b"%d" % n, flush=False)
        for n in range(LARGE):
            source.send(n.to_bytes(4, "big") * (LARGE_BYTES // 4))
        for n in range(WITH_HEADERS):
            failover = HotFailover(n, 64 if n % 2 else 32, is_optional=n % 3 == 0)
            made = compose(b"h" * (LARGE_BYTES if n % 10 == 0 else n), {"n": n, "text": "x" * n}, 7, failover)
            source.send_composed(made, True, True, None, batch_marks(n % 4 == 0, n % 4 == 3))
        wait_until(stop.exists, "the end", 50)


def receive_mixed(config: Path, stop: Path) -> list[bytes]:
    with BlockingContext(Config.load(config)) as context:
        receiver = context.receiver("wire.mixed")
        found: list[bytes] = []
        while len(found) < SMALL + LARGE + WITH_HEADERS:
            event = receiver.get(timeout=40)
            if isinstance(event, Data):
                print("hearing", flush=True)
                if event.failover is not None:
                    assert event.properties == {"n": event.hf_sqn, "text": "x" * (event.hf_sqn or 0)}
                    assert event.channel == 7
                if event.data != PROBE:
                    found.append(event.data)
        print("complete", flush=True)
        wait_until(stop.exists, "the end", 50)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("first", ["lbtrm", pytest.param("tcp", marks=pytest.mark.long)])
def test_batches_fragments_sequence_information_and_recovery_decode(net: Net, first: str) -> None:
    hosts = {trd: net.host(f"app{trd}", {trd_name(trd): f"{address_in(trd, 1)}/24"}) for trd in (1, 2, 3)}
    transports = {1: first, 2: "lbtrm", 3: "tcp"}
    minimum = {trd_name(trd): {"lbmc.fragment": 80, "lbmc.tsni": 1} for trd in transports}
    for trd, transport in transports.items():
        recovery = {"lbtrm.nak": 1, "lbtrm.rx": 1, "lbtrm.ncf": 1, "lbtrm.sm": 1, "lbtrm.data": 80}
        minimum[trd_name(trd)] |= recovery if transport == "lbtrm" else {"lbttcp": 1}
    with (
        judged(net, *minimum, minimum=minimum) as watch,
        running_dro(net, transports, um=dict.fromkeys(transports, MIXED)) as dro,
    ):
        rules = [host.lose(0.3, dports=[14400]) for host in (dro.host, hosts[2])]
        heard, stop = net.folder / "heard", net.folder / "stop"
        sender = hosts[1].spawn(send_mixed, dro.configs[1], heard, stop)
        receivers = [hosts[trd].spawn(receive_mixed, dro.configs[trd], stop) for trd in (2, 3)]
        for task in receivers:
            task.wait_output("^hearing$", 40)
        heard.touch()
        for task in receivers:
            task.wait_output("^complete$", 50)
        assert all(rule.remove().dropped for rule in rules if rule.count().seen)
        paths = [capture.path for capture in watch.captures.values()]
        wait_until(lambda: all(ONE_TSNI in path.read_bytes() for path in paths), "TSNIs everywhere", 20, every_s=0.1)
        stop.touch()
        wanted = [b"%d" % n for n in range(SMALL)]
        wanted += [n.to_bytes(4, "big") * (LARGE_BYTES // 4) for n in range(LARGE)]
        wanted += [b"h" * (LARGE_BYTES if n % 10 == 0 else n) for n in range(WITH_HEADERS)]
        assert all(task.result(20) == wanted for task in receivers)
        sender.result(20)
        dro.wait_balanced()
    for verdict in watch.verdicts.values():
        assert verdict.counts["lbmc"] > verdict.counts["lbmc.fragment"] + SMALL
    if first == "lbtrm":
        counts = watch["trd1"].counts  # small messages shared datagrams
        assert counts["lbmc"] > 2 * (counts["lbtrm.data"] + counts["lbtrm.rx"])


def calls_of(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} | {a.arg for a in function.args.args}


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("test_*.py")), ids=lambda path: path.stem)
def test_every_network_test_is_judged(path: Path) -> None:
    """A test with a network uses `judged` or `judge`, itself or through a function of its module."""
    if path.stem in ("test_harness", "test_relay"):
        return  # tests of the harness: what they send is not UM
    functions = {f.name: calls_of(f) for f in ast.parse(path.read_text()).body if isinstance(f, ast.FunctionDef)}
    for name, names in functions.items():
        reached, new = set[str](), set(names)
        while new - reached:
            reached |= new
            new = set[str]().union(*(functions.get(called, ()) for called in new))
        assert not (name.startswith("test_") and "net" in names) or reached & {"judged", "judge"}, name

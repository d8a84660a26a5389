"""Links with `<udp>` between real processes: a network that loses packets, one that listens, and one that disturbs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from dro.metrics.slots import Slot
from dro.wire.lbmc import message as lbmc
from tests.rigs.books import books_of
from tests.rigs.certificates import Authority
from tests.rigs.netns.capture import judge
from tests.rigs.netns.examples import LINKS, Example, Flow, Network, network_of
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import Watch
from tests.rigs.network import QUICK
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark, pytest.mark.slow]

Judged = Callable[..., AbstractContextManager[Watch]]
MESSAGES: Final = 3000
INTERVAL_NS: Final = 1_000_000
CLEAR: Final = b"that nobody else shall read "


class Readable(Flow):
    """Whose payload is known again in a capture."""

    def send(self) -> None:
        payload = CLEAR * 10
        header = lbmc.HEADER.pack(0, 0, lbmc.HEADER.size + len(payload), self._source.topic_index, self.sent)
        assert self._source.transport.send_message(header + payload, self._loop.now_ns())
        self.sent += 1


def linked(folder: Path, tcp: dict[str, str]) -> Example:
    """The example, with more of `<single-tcp>` by DRO; each message leaves at once."""
    example = Example("peer-link-udp", folder, QUICK)
    for name, dro in example.dros.items():
        path = example.folder / dro["config"]
        text = path.read_text().replace("<nodelay/>", f"<nodelay/>{tcp[name]}")
        path.write_text(text.replace("</udp>", "</udp><smart-batch>1</smart-batch>"))
    return example


def tls(authority: Authority, name: str, trusted: Authority) -> str:
    certificate, key = authority.leaf(name)
    return (
        f"<tls><certificate>{certificate}</certificate><certificate-key>{key}</certificate-key>"
        f"<trusted-certificates>{trusted.trusted}</trusted-certificates></tls>"
    )


def sealed(folder: Path) -> dict[str, str]:
    authority = Authority(folder)
    return {name: tls(authority, name, authority) + "<compression>LZ4</compression>" for name in ("G1", "G2")}


def trds_of(example: Example) -> list[str]:
    """Without the link, on which are TLS and random bytes."""
    return [name for name in example.networks() if name != LINKS]


def udp_port(example: Example, name: str) -> int:
    port: int = next(portal["udp_port"] for portal in example.dros[name]["portals"] if "udp_port" in portal)
    return port


def link_counts(network: Network, counter: str) -> list[int]:
    """Of the two peer portals."""
    rows = [row for name in network.processes for row in network.ask(name, "portals")["portals"]]
    return [row["counters"][counter] for row in rows if "-TRD" not in row["name"]]


def until_sent(network: Network, flows: list[Readable], count: int) -> None:
    def look() -> bool:
        for flow in flows:
            if flow.sent < count:
                flow.go_on(INTERVAL_NS)
        return all(flow.sent == count and flow.is_caught_up for flow in flows)

    network.until(look)


@pytest.mark.parametrize(
    "is_sealed", [pytest.param(False, id="plain", marks=pytest.mark.long), pytest.param(True, id="sealed")]
)
def test_every_message_arrives_once_and_in_order_while_one_datagram_of_a_hundred_is_lost(
    net: Net, tmp_path: Path, is_sealed: bool
) -> None:
    example = linked(tmp_path, sealed(tmp_path) if is_sealed else {"G1": "", "G2": ""})
    net.capture_mib = 64
    with network_of(net, example) as network:
        capture = network.hosts["G1"].capture(LINKS)
        network.start()
        receivers = {domain: network.receivers(domain, [f"to {domain}"], [])[0] for domain in (1, 2)}
        flows = [Readable(b"to %d" % to, network.station(3 - to), [heard]) for to, heard in receivers.items()]
        network.until_known()
        until_heard(network, flows)
        losses = [network.hosts[name].lose(0.01, dports=[udp_port(example, name)]) for name in network.processes]
        until_sent(network, flows, MESSAGES)
        assert all(loss.count().dropped >= 5 for loss in losses)
        for flow, heard in zip(flows, receivers.values(), strict=True):
            got = heard.got[flow.topic]
            assert got == list(range(got[0], MESSAGES))
        assert all(count >= 5 for count in link_counts(network, "UDP_NAKS_SENT"))
        assert all(count >= 5 for count in link_counts(network, "UDP_RETRANSMITTED"))
        assert link_counts(network, "UNRECOVERABLE") == [0, 0]
        network.close()
        network.stop()
        path = capture.stop()
    times = path.read_bytes().count(CLEAR)
    if is_sealed:
        assert times == 0
    else:
        assert times >= 2 * MESSAGES
        judge(path, example.decoding()).assert_clean({"lbtru.data": MESSAGES, "lbtru.nak": 5})


def until_heard(network: Network, flows: list[Readable]) -> None:
    def look() -> bool:
        for flow in flows:
            flow.go_on(INTERVAL_NS * 20)
        return all(flow.is_heard for flow in flows)

    network.until(look)


def test_datagrams_of_others_are_named_and_do_no_harm(net: Net, judged: Judged, tmp_path: Path) -> None:
    """From a third host, and from that of the companion, as if somebody there had another key."""
    example = linked(tmp_path, sealed(tmp_path))
    with network_of(net, example) as network, judged(*trds_of(example), decode_as=example.decoding()):
        stranger = net.host("stranger", {LINKS: "10.127.9.9/16"})
        network.start()
        heard = network.receivers(2, ["to 2"], [])[0]
        flow = Readable(b"to 2", network.station(1), [heard])
        network.until_known()
        until_heard(network, [flow])
        to = (network.hosts["G2"].address(LINKS), udp_port(example, "G2"))

        def disturb() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for size in (0, 1, 20, 100, 1400):
                    sock.sendto(os.urandom(size), to)
                sock.sendto(b"\x01\0\0\0" + (1 << 40).to_bytes(8, "big") + os.urandom(100), to)

        stranger.call(disturb)
        network.hosts["G1"].call(disturb)
        until_sent(network, [flow], 500)
        got = heard.got[flow.topic]
        assert got == list(range(got[0], 500))
        with books_of(network.processes["G2"].pid, 2) as books:
            wait_until(
                lambda: sum(page[Slot.BAD_DATAGRAMS] for page in books.pages.values()) == 12, "twelve to be counted"
            )
        line = "datagram on the port of a peer link dropped"
        network.processes["G2"].wait_output(rf"{line}.*{stranger.address(LINKS)}.*foreign", 10)
        network.processes["G2"].wait_output(rf"{line}.*{network.hosts['G1'].address(LINKS)}.*forged", 10)
        network.close()
        network.stop()


@pytest.mark.parametrize(
    "wrong", [pytest.param("certificate", marks=pytest.mark.long), pytest.param("no UDP", id="without-UDP")]
)
def test_a_companion_that_does_not_fit_is_refused_by_name(net: Net, judged: Judged, tmp_path: Path, wrong: str) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    maker = other if wrong == "certificate" else authority
    parts = {"G1": tls(maker, "G1", authority), "G2": tls(authority, "G2", authority)}
    example = linked(tmp_path, parts)
    if wrong == "no UDP":
        path = example.folder / example.dros["G1"]["config"]
        text = path.read_text()
        path.write_text(text[: text.index("<udp>")] + text[text.index("</udp>") + len("</udp>") :])
    with network_of(net, example) as network, judged(*trds_of(example), decode_as=example.decoding()):
        network.start()
        reasons = {
            "certificate": ("certificate", "certificate"),
            "no UDP": ("<udp> is configured only at the companion", "<udp> is configured only here"),
        }
        for name, reason in zip(("G1", "G2"), reasons[wrong], strict=True):
            network.processes[name].wait_output(reason, 20)
        for name in network.processes:
            assert [row["state"] for row in network.ask(name, "peers")["peers"]] != ["up"]
        network.stop()

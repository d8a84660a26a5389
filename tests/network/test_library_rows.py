"""Every figure of the UM library that a portal counts moves in its row when the thing happens, and no other ever does.

A DRO between two TRDs: the first portal receives what an application sends, the second one sends it on. What happens is
done to real sessions: by traffic, or by a packet that is given to the core of the session.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from dro.bus.actor import WorkerContext
from dro.clock import ms, s
from dro.config.dro_xml.model import DroConfig
from dro.metrics.library import CONTEXT, EVENT_QUEUE, RECEIVER, SOURCE, library_figures
from dro.metrics.library_rows import QUEUE, RECEIVING, SENDING, LibraryKey, LibraryRow, LibraryRows, read_library
from dro.metrics.slots import Slot
from dro.proto.context import wanted
from dro.sqn import MASK
from dro.transport import mmsg
from dro.transport.datagrams.receiver import DatagramReceiver
from dro.transport.datagrams.sender import DatagramSender
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.lbtru.sender import LbtruSender
from dro.wire import lbtrm, lbtru
from dro.wire.lbmc import message as lbmc
from dro.wire.source_string import LbtrmAddress
from dro.wire.transport import NCF_IGNORED, NCF_RX_DELAY, NCF_SHED
from portals.endpoint import library
from portals.endpoint.portal import EndpointPortal
from tests.network.conftest import Make
from tests.rigs import network
from tests.rigs.immediate import Immediate, give_groups
from tests.rigs.network import QUICK, Network, Ports

TOPIC: Final = b"topic"
PLAN: Final[Ports] = {"A": [1, 2]}
ON: Final = QUICK + '<monitor interval="1"/>'
KEPT_MS: Final = 40_000
"""In which a portal has settled."""
FAR: Final = 1_000_000
BACKOFF: Final = "receiver transport_lbtru_nak_initial_backoff_interval 50\n"
"""So that a repair takes milliseconds, as the figures say it."""
Happens = Callable[["Bench"], object]


def limited(option: str, bps: int) -> str:
    """A rate limit of the sending portal."""
    return f'<lbm-attributes><option scope="context" name="{option}" value="{bps}"/></lbm-attributes>'


class Bench:
    """See the module text."""

    def __init__(self, make: Make, transport: str, um: str = "", sending: str = "") -> None:
        self.net: Network = make(PLAN, transport=transport, daemon=ON, um=um + BACKOFF, portal_xml={"A-2": sending})
        give_groups(self.net.plan)
        self.net.start()
        self.sender, self.receiver = self.net.application(1), self.net.application(2)
        self.source = self.sender.source(TOPIC)
        self.receiver.context.want_topic(TOPIC)
        self.net.until(lambda: len(self.receiver.bound(TOPIC)) == 1)
        self.dro = self.net.dros["A"]

    def portal(self, domain: int) -> EndpointPortal:
        return self.dro.endpoints[domain]

    @property
    def now_ns(self) -> int:
        return self.net.loop.now_ns()

    def send(self, count: int = 1, size: int = 0) -> None:
        for _ in range(count):
            self.sender.send(self.source, size=size)
            self.net.run(10)

    @property
    def joined(self) -> Any:  # noqa: ANN401  of either transport
        """The session that the first portal has joined."""
        (session,) = self.portal(1).receiving.joined.sessions()
        return session

    @property
    def sending(self) -> Any:  # noqa: ANN401  of either transport
        """The session that the second portal sends on."""
        (session,) = self.portal(2).sending.pools.senders()
        return session

    def nak(self, *behind: int) -> None:
        """A receiver asks the second portal for datagrams: 1 is the newest one."""
        ask(self.sending, self.now_ns, *behind)

    def rows(self) -> dict[LibraryKey, LibraryRow]:
        """All rows as of now, of both portals: the first portal that has one of a key counts."""
        found: dict[LibraryKey, LibraryRow] = {}
        for domain, worker in ((1, 1), (2, 2)):
            self.portal(domain)._shell.refresh_gauges()
            for row in read_library(self.dro.folder / f"library.{worker}"):
                found[row.key._replace(part=f"{domain} {row.part}")] = row
        return found


def ask(sender: object, now_ns: int, *behind: int) -> None:
    """Ask a session for datagrams, as a receiver does."""
    assert isinstance(sender, DatagramSender)
    sqns = tuple((sender.core.next_sqn - n) & MASK for n in behind)
    if isinstance(sender, LbtruSender):
        client = mmsg.raw_address(*sender._client_trains.clients[0])
        sender.on_packet(lbtru.encode(lbtru.Nak(sqns, options=sender._sid)), client, now_ns)
        return
    address = sender.address
    assert isinstance(address, LbtrmAddress)
    sender.on_packet(lbtrm.encode(lbtrm.Nak(address.nak_port, address.session_id, sqns)), 0, now_ns)


def tell(bench: Bench, lead: int, trail: int, session_id: int = 0) -> None:
    """Send a session message of the application's session to the first portal, or one with another session id."""
    sender = bench.source.transport
    if isinstance(sender, LbtruSender):
        options = (lbtru.sid_option(session_id),) if session_id else sender._sid
        (client,) = sender._client_trains.clients
        sender._send_one(lbtru.encode(lbtru.SessionMessage(1, lead, trail, options=options)), client)
    else:
        assert isinstance(sender, LbtrmSender)
        address = sender.address
        assert isinstance(address, LbtrmAddress)
        sender._socket.send(lbtrm.encode(lbtrm.SessionMessage(address.nak_port, address.session_id, 1, lead, trail)))
    bench.net.run(10)


def traffic(bench: Bench) -> None:
    bench.net.loop.call_soon(lambda: None)
    bench.send(3)


def lose_one(bench: Bench) -> None:
    """A datagram is missing and repaired."""
    bench.send()
    bench.sender.lose(bench.source)
    bench.send()
    bench.net.until(lambda: len(bench.receiver.heard(TOPIC)) == 3)
    assert isinstance(bench.joined, DatagramReceiver)


def again(bench: Bench) -> None:
    """The application sends again what came already."""
    bench.send()
    ask(bench.source.transport, bench.now_ns, 1)
    bench.net.run(10)


def in_the_core(*steps: Callable[[Any, int, int], object]) -> Happens:
    """Give these to the joined session; with the sqn that it expects, and the time."""

    def happens(bench: Bench) -> None:
        bench.send()
        core = bench.joined.core
        expected = core.expected
        for step in steps:
            step(core, expected, bench.now_ns)
        bench.joined.core.take_events()

    return happens


def gone_for_good(bench: Bench) -> None:
    """The source does not have any more what is missing."""
    bench.send()
    expected = bench.joined.core.expected
    lead = (expected + 2) & MASK
    for trail in (expected, lead):
        tell(bench, lead, trail)
    assert bench.joined.unrecoverable_dgrams


def of_no_topic(bench: Bench) -> None:
    """A message of a source that nobody has joined."""
    message = lbmc.HEADER.pack(0, 0, 16, bench.source.topic_index + 7, 0) + b"data"
    assert bench.source.transport.send_message(message, bench.now_ns)
    bench.send()


def of_no_session(bench: Bench) -> None:
    """Traffic of a session that nobody wants, on the group that is listened to."""
    other = bench.net.application(1)
    source = other.source(b"unwanted")
    for _ in range(3):
        other.send(source)
        bench.net.run(10)


def of_a_stranger(bench: Bench) -> None:
    """A datagram of nobody who was asked, to the socket of the first portal."""
    (client,) = bench.source.transport._client_trains.clients  # type: ignore[attr-defined]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(lbtru.encode(lbtru.SessionMessage(1, 0, 0)), client)
    bench.net.run(10)


def shown(bench: Bench) -> None:
    """Write the figures of the second portal."""
    bench.portal(2)._shell.refresh_gauges()


def topics(bench: Bench) -> None:
    """Topics that have no source, and one that has."""
    for topic in (b"one", b"two"):
        bench.receiver.context.want_topic(topic)
    bench.sender.source(b"two")
    bench.net.until(lambda: len(bench.receiver.bound(b"two")) == 1)


def refused(bench: Bench) -> None:
    """Datagrams of topic resolution that cannot be read, or sent."""
    resolution = bench.portal(1).receiving.resolution
    for datagram in (b"\xf0" + bytes(7), b"\x07" + bytes(7), b"\x00"):
        resolution._on_datagram(datagram, 1, bench.now_ns)

    def refuse(_: bytes) -> None:
        raise OSError(1, "refused")

    resolution.channel._send_one(refuse, b"")


def unicast(bench: Bench) -> None:
    """As the slots of the page, of which tests of unicast messages have what moves them."""
    page = bench.dro.workers[1].counters
    for slot in (Slot.UNICAST_DATA_DUP, Slot.UNICAST_CONTROL_NO_STREAM):
        page.add(slot)


def flood(bench: Bench) -> None:
    """More than the rate limit of the second portal lets through."""
    for _ in range(5):
        bench.sender.send(bench.source, 60, size=1000)
        bench.net.run(10)
    assert bench.dro.workers[2].counters[Slot.SEND_BLOCKED_EPISODES]


def asked(bench: Bench) -> None:
    bench.send()
    bench.nak(1)
    bench.nak(1)


def asked_for_much(bench: Bench) -> None:
    """More than the rate limit for retransmissions lets through at once, and than may wait for it."""
    bench.send(100, size=1200)
    bench.nak(*range(1, 100))


def waiting_calls(bench: Bench) -> None:
    """A reader and a queued call that have to wait."""
    loop = bench.net.loop
    one, other = socket.socketpair()
    with one, other:
        other.send(b"x")
        loop.add_reader(one, lambda: True)
        loop.run_once(0)
        loop.call_soon(lambda: None)
        bench.portal(1)._shell.refresh_gauges()
        loop.remove_reader(one)


def clog(bench: Bench) -> None:
    """A receiver of the proxy source that does not read."""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((socket.inet_ntoa(bench.sending.address.ip.to_bytes(4, "big")), bench.sending.address.port))
        bench.net.run(10)
        while not bench.sending.core.stats.bytes_buffered:
            bench.send(5, size=4000)
        shown(bench)


Data = Callable[[Any, int, int], object]
RX_LIMIT: Final = limited("transport_lbtrm_retransmit_rate_limit", 100_000)
RU_RX_LIMIT: Final = limited("transport_lbtru_retransmit_rate_limit", 100_000)
DATA_LIMIT: Final = limited("transport_lbtrm_data_rate_limit", 1_000_000)
NCFS: Final = [
    lambda core, sqn, now, reason=reason: core.on_ncf((sqn,), reason, sqn, now)
    for reason in (NCF_IGNORED, NCF_RX_DELAY, NCF_SHED, 9)
]
_FROM_1: Final = (RECEIVER, f"1 {RECEIVING}")
_FROM_2: Final = (SOURCE, f"2 {SENDING}")
STIMULI: Final[dict[str, tuple[str, Happens, str, tuple[tuple[tuple[str, str], str], ...]]]] = {
    # transport, what happens, more of the second portal, what moves in which rows
    "traffic": ("lbtrm", traffic, "", (
        (_FROM_1, "lbtrm.msgs_rcved lbtrm.bytes_rcved lbtrm.lbm_msgs_rcved"),
        (_FROM_2, "lbtrm.msgs_sent lbtrm.bytes_sent lbtrm.txw_msgs lbtrm.txw_bytes"),
        ((EVENT_QUEUE, f"1 {QUEUE}"), "io_events_tot timer_events_tot callback_events_tot events_tot"))),
    "loss": ("lbtrm", lose_one, "", (
        (_FROM_1, "lbtrm.lost lbtrm.nak_pckts_sent lbtrm.naks_sent lbtrm.nak_stm_min lbtrm.nak_stm_mean "
         "lbtrm.nak_stm_max lbtrm.nak_tx_min lbtrm.nak_tx_mean lbtrm.nak_tx_max"),
        ((CONTEXT, f"1 {RECEIVING}"), "fragments_lost"))),
    "duplicate": ("lbtrm", again, "", ((_FROM_1, "lbtrm.duplicate_data"),)),
    "gone": ("lbtrm", gone_for_good, "", (
        (_FROM_1, "lbtrm.unrecovered_txw"), ((CONTEXT, f"1 {RECEIVING}"), "fragments_unrecoverably_lost"))),
    "ncf": ("lbtrm", in_the_core(*NCFS), "", (
        (_FROM_1, "lbtrm.ncfs_ignored lbtrm.ncfs_rx_delay lbtrm.ncfs_shed lbtrm.ncfs_unknown"),)),
    "order": ("lbtrm", in_the_core(
        lambda core, sqn, now: core.on_data(sqn + 1, sqn, False, now, 50),
        lambda core, sqn, now: core.on_data(sqn, sqn, False, now, 50),
    ), "", ((_FROM_1, "lbtrm.out_of_order"),)),
    "time out": ("lbtrm", in_the_core(
        lambda core, sqn, now: core.on_data(sqn + 1, sqn, False, now, 50),
        lambda core, sqn, now: core.on_timer(now + s(30)),
    ), "", ((_FROM_1, "lbtrm.unrecovered_tmo"),)),
    "stray": ("lbtrm", in_the_core(
        lambda core, sqn, now: core.on_data((sqn + FAR) & MASK, sqn, False, now, 50)
    ), "", ((_FROM_1, "lbtrm.dgrams_dropped_other"),)),
    "no topic": ("lbtrm", of_no_topic, "", ((_FROM_1, "lbtrm.lbm_msgs_no_topic_rcved"),)),
    "no session": ("lbtrm", of_no_session, "", (((CONTEXT, f"1 {RECEIVING}"), "lbtrm_unknown_msgs_rcved"),)),
    "naks": ("lbtrm", asked, "", (
        (_FROM_2, "lbtrm.nak_pckts_rcved lbtrm.naks_rcved lbtrm.naks_ignored lbtrm.rxs_sent lbtrm.rx_bytes_sent"),)),
    "many naks": ("lbtrm", asked_for_much, RX_LIMIT, (
        (_FROM_2, "lbtrm.naks_shed lbtrm.naks_rx_delay_ignored lbtrm.rctlr_rx_msgs"),)),
    "topics": ("lbtrm", topics, "", (
        ((CONTEXT, f"1 {RECEIVING}"), "tr_dgrams_sent tr_bytes_sent tr_dgrams_rcved tr_bytes_rcved tr_rcv_topics "
         "tr_rcv_unresolved_topics"),
        ((CONTEXT, f"2 {SENDING}"), "tr_src_topics"))),
    "refused": ("lbtrm", refused, "", (
        ((CONTEXT, f"1 {RECEIVING}"), "tr_dgrams_dropped_ver tr_dgrams_dropped_type tr_dgrams_dropped_malformed "
         "tr_dgrams_send_failed"),)),
    "unicast": ("lbtrm", unicast, "", (
        ((CONTEXT, f"1 {RECEIVING}"), "uim_dup_msgs_rcved uim_msgs_no_stream_rcved"),)),
    "flood": ("lbtrm", flood, DATA_LIMIT, (((CONTEXT, f"2 {SENDING}"), "send_would_block"),)),
    "tcp": ("tcp", of_no_topic, "", (
        (_FROM_1, "tcp.bytes_rcved tcp.lbm_msgs_rcved tcp.lbm_msgs_no_topic_rcved"),)),
    "LBT-RU traffic": ("lbtru", of_no_topic, "", (
        (_FROM_1, "lbtru.msgs_rcved lbtru.bytes_rcved lbtru.lbm_msgs_rcved lbtru.lbm_msgs_no_topic_rcved"),
        (_FROM_2, "lbtru.msgs_sent lbtru.bytes_sent"))),
    "LBT-RU loss": ("lbtru", lose_one, "", (
        (_FROM_1, "lbtru.lost lbtru.nak_pckts_sent lbtru.naks_sent lbtru.nak_stm_min lbtru.nak_stm_mean "
         "lbtru.nak_stm_max lbtru.nak_tx_min lbtru.nak_tx_mean lbtru.nak_tx_max"),)),
    "LBT-RU duplicate": ("lbtru", again, "", ((_FROM_1, "lbtru.duplicate_data"),)),
    "LBT-RU gone": ("lbtru", gone_for_good, "", ((_FROM_1, "lbtru.unrecovered_txw"),)),
    "LBT-RU ncf": ("lbtru", in_the_core(*NCFS), "", (
        (_FROM_1, "lbtru.ncfs_ignored lbtru.ncfs_rx_delay lbtru.ncfs_shed lbtru.ncfs_unknown"),)),
    "LBT-RU time out": ("lbtru", in_the_core(
        lambda core, sqn, now: core.on_data(sqn + 1, sqn, False, now, 50),
        lambda core, sqn, now: core.on_timer(now + s(30)),
    ), "", ((_FROM_1, "lbtru.unrecovered_tmo"),)),
    "LBT-RU stray": ("lbtru", in_the_core(
        lambda core, sqn, now: core.on_data((sqn + FAR) & MASK, sqn, False, now, 50)
    ), "", ((_FROM_1, "lbtru.dgrams_dropped_other"),)),
    "LBT-RU session id": ("lbtru", lambda bench: tell(bench, 0, 0, 77), "", ((_FROM_1, "lbtru.dgrams_dropped_sid"),)),
    "LBT-RU stranger": ("lbtru", of_a_stranger, "", (((CONTEXT, f"1 {RECEIVING}"), "lbtru_unknown_msgs_rcved"),)),
    "LBT-RU naks": ("lbtru", asked, "", (
        (_FROM_2, "lbtru.nak_pckts_rcved lbtru.naks_rcved lbtru.naks_ignored lbtru.rxs_sent lbtru.rx_bytes_sent"),)),
    "LBT-RU many naks": ("lbtru", asked_for_much, RU_RX_LIMIT, (
        (_FROM_2, "lbtru.naks_shed lbtru.naks_rx_delay_ignored"),)),
    "LBT-IPC traffic": ("lbtipc", of_no_topic, "", (
        (_FROM_1, "lbtipc.msgs_rcved lbtipc.bytes_rcved lbtipc.lbm_msgs_rcved lbtipc.lbm_msgs_no_topic_rcved"),
        (_FROM_2, "lbtipc.msgs_sent lbtipc.bytes_sent"))),
}  # fmt: skip
AT_THE_TIME: Final[dict[str, tuple[str, Happens, tuple[str, str], str]]] = {
    # transport, what happens and is shown while it does, what has moved in which row
    "waiting": ("lbtrm", waiting_calls, (EVENT_QUEUE, QUEUE), "io_events callback_events events"),
    "clog": ("tcp", clog, (SOURCE, SENDING), "tcp.num_clients tcp.bytes_buffered"),
    "LBT-RU client": ("lbtru", shown, (SOURCE, SENDING), "lbtru.num_clients"),
    "LBT-IPC client": ("lbtipc", shown, (SOURCE, SENDING), "lbtipc.num_clients"),
}


def never() -> set[tuple[str, str]]:
    """Figures that nothing moves, by kind and name."""
    return {
        (kind, f"{transport}.{f.name}" if transport else f.name)
        for (kind, transport), figures in library_figures().items()
        for f in figures
        if f.why_zero
    }


def test_contexts_are_shown_as_soon_as_a_portal_is_there(make: Make) -> None:
    net = make(PLAN, daemon=ON)
    net.start()
    for worker in (1, 2):
        rows = read_library(net.dros["A"].folder / f"library.{worker}")
        assert {row.key for row in rows} == {
            LibraryKey(CONTEXT, RECEIVING),
            LibraryKey(CONTEXT, SENDING),
            LibraryKey(EVENT_QUEUE, QUEUE),
        }


@pytest.mark.parametrize("name", STIMULI)
def test_what_happens_moves_its_figures_and_none_that_is_said_to_stay(make: Make, name: str) -> None:
    transport, happens, sending, moved = STIMULI[name]
    bench = Bench(make, transport, sending=sending)
    before = bench.rows()
    happens(bench)
    after = bench.rows()
    for (kind, part), names in moved:
        ((key, row),) = [(key, row) for key, row in after.items() if (key.kind, key.part) == (kind, part)]
        for figure in names.split():
            assert row.values[figure] != before[key].values[figure], figure
    minima = {f.name for figures in library_figures().values() for f in figures if f.behaviour == "minimum"}
    for row in after.values():
        for kind, figure in never():
            value = row.values.get(figure, 0) if row.kind == kind else 0
            assert not value or figure.rpartition(".")[2] in minima, figure


@pytest.mark.parametrize("name", AT_THE_TIME)
def test_what_waits_is_shown(make: Make, name: str) -> None:
    transport, happens, (kind, part), names = AT_THE_TIME[name]
    bench = Bench(make, transport, um="source transport_tcp_sender_socket_buffer 4096\n")
    happens(bench)
    rows = [row for n in (1, 2) for row in read_library(bench.dro.folder / f"library.{n}")]
    for figure in names.split():
        assert max(row.values[figure] for row in rows if (row.kind, row.part) == (kind, part)) > 0, figure


def test_each_figure_has_a_stimulus_or_a_reason() -> None:
    moved = {(kind, name) for *_, several in STIMULI.values() for (kind, _), names in several for name in names.split()}
    moved |= {(kind, name) for _, _, (kind, _), names in AT_THE_TIME.values() for name in names.split()}
    figures = {
        (kind, f"{transport}.{f.name}" if transport else f.name)
        for (kind, transport), several in library_figures().items()
        for f in several
    }
    assert moved == figures - never()


# totals


def total(bench: Bench, *names: str) -> int:
    """The sum over the rows of all sessions."""
    return sum(
        row.values.get(name, 0) for row in bench.rows().values() for name in names if row.kind in (SOURCE, RECEIVER)
    )


def test_rows_add_up_to_the_page(make: Make) -> None:
    """While no session has ended."""
    bench = Bench(make, "lbtrm")
    lose_one(bench)
    bench.nak(1, 2)
    gone_for_good(bench)
    bench.net.run(500)

    def of_pages(slot: Slot) -> int:
        return sum(bench.dro.workers[n].counters[slot] for n in (1, 2))

    for slot, *names in (
        (Slot.NAKS_SENT, "lbtrm.naks_sent"),
        (Slot.RETRANSMITTED, "lbtrm.rxs_sent"),
        (Slot.UNRECOVERABLE, "lbtrm.unrecovered_txw", "lbtrm.unrecovered_tmo"),
    ):
        assert total(bench, *names) == of_pages(slot) > 0, slot
    refused(bench)
    contexts = [row.values for row in bench.rows().values() if row.kind == CONTEXT]
    dropped = [f"tr_dgrams_dropped_{cause}" for cause in ("ver", "type", "malformed")]
    assert sum(values[name] for values in contexts for name in dropped) == of_pages(Slot.BAD_DATAGRAMS) == 3


def test_very_many_topics_are_counted_in_slices(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(make, "lbtrm")
    monkeypatch.setattr(wanted, "COUNTED_AT_ONCE", 2)
    for n in range(20):
        bench.receiver.context.want_topic(b"none.%d" % n)
    portal = bench.portal(2)
    for n in range(20):
        portal.receiving.want_topic(b"of the portal.%d" % n)
    expected = portal.receiving.topic_count, portal.receiving.unresolved_topic_count
    key = LibraryKey(CONTEXT, f"2 {RECEIVING}")

    def shown() -> tuple[int, int]:
        values = bench.rows()[key].values
        return values["tr_rcv_topics"], values["tr_rcv_unresolved_topics"]

    assert shown() != expected
    bench.net.stepper.settle()
    assert shown() == expected


# life


def test_immediate_sessions_are_marked(make: Make) -> None:
    """Those that a portal sends on, and those that it hears."""
    bench = Bench(make, "lbtrm")
    immediate = Immediate(bench.sender.context)
    Immediate(bench.receiver.context)
    immediate.send(b"x", immediate.blocks(1))
    bench.net.run(500)
    rows = bench.rows()
    marked = {(key.kind, key.part) for key, row in rows.items() if row.is_mim}
    assert marked == {(RECEIVER, f"1 {RECEIVING}"), (SOURCE, f"2 {SENDING}")}
    assert all(
        row.values.get("lbtrm.msgs_rcved", row.values.get("lbtrm.msgs_sent")) for row in rows.values() if row.is_mim
    )


def test_contexts_and_sessions_say_what_they_are(make: Make) -> None:
    bench = Bench(make, "tcp")
    rows = bench.rows()
    kinds = {(key.kind, key.part) for key in rows}
    of_both = {(kind, f"{n} {part}") for n in (1, 2) for kind, part in (
        (CONTEXT, SENDING), (CONTEXT, RECEIVING), (EVENT_QUEUE, QUEUE))}  # fmt: skip
    assert kinds == of_both | {(RECEIVER, f"1 {RECEIVING}"), (SOURCE, f"2 {SENDING}")}
    for key, row in rows.items():
        domain, part = key.part.split()
        portal = bench.portal(int(domain))
        if part == QUEUE:
            assert (row.context_instance, row.domain_id) == (bytes(8), 0)
            continue
        context = portal.sending if part == SENDING else portal.receiving
        assert (row.context_instance, row.domain_id) == (context.context_instance, int(domain))
    assert bench.joined.statistics().source in {row.source for row in rows.values()}


def test_a_session_that_ended_is_freed_and_one_that_is_joined_again_is_another(make: Make) -> None:
    bench = Bench(make, "lbtrm")
    bench.send(3)
    sessions = bench.portal(1).receiving.joined

    def row() -> LibraryRow:
        (found,) = [row for key, row in bench.rows().items() if key.kind == RECEIVER]
        return found

    before, session = row(), bench.joined
    sessions.leave(session)
    sessions.join(session.address, bench.now_ns)
    after = row()
    assert (after.key, after.values["lbtrm.msgs_rcved"]) == (before.key, 0)
    assert after.object_id != before.object_id
    sessions.leave(bench.joined)
    assert not [key for key in bench.rows() if key.kind == RECEIVER]


def test_what_ends_while_the_portal_ends_stays_in_the_last_sample(make: Make) -> None:
    bench = Bench(make, "lbtrm")
    bench.send(3)
    counted = bench.sending.core.stats
    portal, worker = bench.portal(2), bench.dro.workers[2]
    worker.told["on_stop"]()
    bench.net.until(lambda: "finish" in worker.ends)
    rows = {row.key: row for row in read_library(bench.dro.folder / "library.2")}
    (sent,) = [row for key, row in rows.items() if key.kind == SOURCE]
    assert sent.values["lbtrm.msgs_sent"] == counted.msgs_sent >= 3
    portal.refresh_gauges()
    assert {row.key for row in read_library(bench.dro.folder / "library.2")} == rows.keys()


def test_rows_of_a_former_process_go_on_and_those_without_a_successor_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after kill -9: the next process finds the file."""
    context = LibraryKey(CONTEXT, RECEIVING)
    gone = LibraryKey(RECEIVER, RECEIVING, "lbtrm", "LBTRM:10.0.0.1:1:2:224.1.1.1:3")
    ids: dict[LibraryKey, int] = {}

    def found(path: Path) -> dict[LibraryKey, LibraryRow]:
        return {row.key: row for row in read_library(path)}

    def with_former(ctx: WorkerContext, config: DroConfig) -> LibraryRows | None:
        path = ctx.identity.counters_path.parent / f"library.{ctx.index}"
        former = LibraryRows.open(path)
        for key in (context, gone):
            former.show(key, [1000] * len(library_figures()[key.kind, key.transport]), instance=b"", domain_id=0)
        former.close()
        if ctx.index == 1:
            ids.update({key: row.object_id for key, row in found(path).items()})
        return library.open_rows(ctx, config)

    monkeypatch.setattr(network, "open_rows", with_former)
    net = make(PLAN, daemon=ON)
    net.start()
    path = net.dros["A"].folder / "library.1"
    assert gone in found(path)
    net.until(lambda: gone not in found(path), limit_ms=KEPT_MS)
    row = found(path)[context]
    assert (row.object_id, row.domain_id) == (ids[context], 1)
    assert row.values["tr_dgrams_sent"] > 1000


def test_nothing_is_written_unless_somebody_wants_it(make: Make) -> None:
    net = make(PLAN)
    net.start()
    net.run(2000, 50)
    assert list(net.dros["A"].folder.glob("library*")) == []


# cost


def test_sessions_are_shown_in_turn(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh shows a bounded number, one after the other, and all of them in as many refreshes as it takes."""
    monkeypatch.setattr(library, "AT_ONCE", 2)
    bench = Bench(make, "lbtrm")
    statistics = bench.portal(2)._library
    assert statistics is not None
    session = bench.sending
    shown: list[str] = []
    every = [(SOURCE, SENDING, False, session)] * 5
    monkeypatch.setattr(statistics, "_sessions", lambda: iter(every))
    monkeypatch.setattr(statistics, "_show", lambda *one: shown.append(one[0]))
    statistics._turn.clear()
    counts = []
    for _ in range(6):
        statistics.refresh()
        counts.append(len(shown))
    assert counts == [2, 4, 5, 7, 9, 10]
    statistics.finish()
    assert len(shown) == 15


def test_a_refresh_of_64_sessions_costs_milliseconds_at_most(make: Make) -> None:
    bench = Bench(make, "lbtrm")
    statistics = bench.portal(1)._library
    assert statistics is not None
    session = bench.joined
    costs_ns = []
    for _ in range(20):
        began_ns = time.perf_counter_ns()
        for _ in range(library.AT_ONCE):
            statistics._show(RECEIVER, RECEIVING, False, session)
        costs_ns.append(time.perf_counter_ns() - began_ns)
    print(f"64 sessions: {min(costs_ns) // 1000} us")
    assert min(costs_ns) < ms(20)

"""What the receiving tools count, print and end at, driven by events alone."""

from __future__ import annotations

import hashlib
import io

import pytest

from dro.tools.lbm import verify
from dro.tools.lbm.ending import EXIT_BAD, EXIT_OK
from dro.tools.lbm.lines import LineTotals
from dro.tools.lbm.payloads import PayloadRecord
from dro.tools.lbm.tally import Tally, TallyOptions
from dro.um.message.events import BOS, EOS, FLAG_RETRANSMIT, Data, Event, Loss, LossBurst, MessageBatch, NoSource

T, S = "topic", "TCP:10.0.0.1:14371:1[2]"


class TallyBench:
    def __init__(self, watch: TallyOptions, record: PayloadRecord | None = None) -> None:
        self.out = io.StringIO()
        self.ends = 0
        self.tally = Tally(watch, self.out, self._on_end, record)

    def _on_end(self) -> None:
        self.ends += 1

    def take(self, *events: Event) -> None:
        for event in events:
            self.tally.on_event(event)

    @property
    def text(self) -> str:
        return self.out.getvalue()


def data(sqn: int, payload: bytes = b"x" * 25, *, topic: str = T, source: str = S, flags: int = 0) -> Data:
    return Data(topic, source, sqn, payload, flags, source.encode())


def test_counts_and_last_line() -> None:
    bench = TallyBench(TallyOptions())
    bench.take(data(0), data(1, b"abc", flags=FLAG_RETRANSMIT), Loss(T, S, 2), LossBurst(T, S, 3, 10), data(13))
    assert bench.text == ""
    assert bench.tally.last_line("lbmrcv") == "lbmrcv: received 3 messages, 53 bytes, lost 11, bursts 1, bad 0\n"
    assert bench.tally.totals(7.0, 5) == LineTotals(7.0, 3, 53, 5, 11, 1)
    assert bench.tally.status() == EXIT_OK  # nobody asked
    assert bench.ends == 0


def test_verbose_lines() -> None:
    bench = TallyBench(TallyOptions(verbose=1))
    bench.take(BOS(T, S), data(0), data(1, flags=FLAG_RETRANSMIT), Loss(T, S, 2), LossBurst(T, S, 3), EOS(T, S))
    assert bench.text == (
        f"[{T}][{S}], Beginning of Transport Session\n"
        f"[{T}][{S}][0], 25 bytes\n"
        f"[{T}][{S}][1]-RX-, 25 bytes\n"
        f"[{T}][{S}][2], LOST\n"
        f"[{T}][{S}][3], LOSS BURST\n"
        f"[{T}][{S}], End of Transport Session\n"
    )


def test_sessions_and_missing_sources_are_told_without_being_asked() -> None:
    bench = TallyBench(TallyOptions())
    bench.tally.on_source(T, S, added=True)
    bench.take(BOS(T, S), data(0), EOS(T, S), NoSource(T))
    bench.tally.on_source(T, S, added=False)
    assert bench.text == (
        f"[{T}][{S}], source found\n"
        f"[{T}][{S}], Beginning of Transport Session\n"
        f"[{T}][{S}], End of Transport Session\n"
        f"[{T}], no sources found for topic\n"
        f"[{T}][{S}], source gone\n"
    )


def test_each_payload_as_text_is_one_line() -> None:
    bench = TallyBench(TallyOptions(ascii=True))
    bench.take(data(0, b"one"), data(1, b"two\0\nlbmrcv: received 9 messages"))
    assert bench.text == "one\ntwo\\x00\\nlbmrcv: received 9 messages\n"


def test_verification() -> None:
    bench = TallyBench(TallyOptions(verify=True))
    good = verify.make(7, 40)
    bench.take(data(0, good), data(1, good[:-1]), data(2, b"short"))
    assert bench.text == f"[{T}][{S}][1], BAD: wrong length\n[{T}][{S}][2], BAD: too short\n"
    assert bench.tally.last_line("p") == "p: received 3 messages, 84 bytes, lost 0, bursts 0, bad 2\n"
    assert bench.tally.status() == EXIT_BAD


def test_order_is_kept_per_topic_and_source() -> None:
    bench = TallyBench(TallyOptions(order=True))
    other = "TCP:10.0.0.9:14371:1[2]"
    bench.take(data(5), data(3, source=other), data(7), data(0, topic="t2"), data(4, source=other))
    assert bench.tally.bad == 0
    bench.take(data(7), data(6), data(8))
    assert bench.tally.bad == 2
    assert bench.text == f"[{T}][{S}][7], BAD: out of order\n[{T}][{S}][6], BAD: out of order\n"


def test_order_wraps_with_the_sequence_number() -> None:
    bench = TallyBench(TallyOptions(order=True))
    bench.take(data(0xFFFFFFFE), data(0xFFFFFFFF), data(0), data(1))
    assert bench.tally.bad == 0


def test_a_message_with_two_faults_is_one_bad_message() -> None:
    bench = TallyBench(TallyOptions(order=True, verify=True))
    bench.take(data(5, verify.make(0, 16)), data(4, b""))
    assert bench.tally.bad == 1
    assert bench.text.endswith("BAD: too short, out of order\n")


@pytest.mark.parametrize("loss", [Loss(T, S, 1), LossBurst(T, S, 1, 3), LossBurst(T, S, 1)])
def test_loss_makes_a_run_bad_where_it_was_asked_for(loss: Event) -> None:
    for is_loss_bad, status in ((False, EXIT_OK), (True, EXIT_BAD)):
        bench = TallyBench(TallyOptions(is_loss_bad=is_loss_bad))
        bench.take(data(0), loss)
        assert bench.tally.status() == status


def test_ends_after_so_many_messages_and_counts_no_more() -> None:
    bench = TallyBench(TallyOptions(maximum=2))
    bench.take(data(0), data(1), data(2), Loss(T, S, 3), EOS(T, S))
    assert bench.ends == 1
    assert bench.tally.is_complete
    assert (bench.tally.messages, bench.tally.lost, bench.text) == (2, 0, "")


def test_ends_when_every_source_has_ended() -> None:
    bench = TallyBench(TallyOptions(ends_at_eos=True))
    bench.tally.on_source(T, "a", added=True)
    bench.take(BOS(T, "a"), data(0, source="a"), data(0, source="b"), EOS(T, "a"))
    assert bench.ends == 0
    bench.tally.on_source(T, "c", added=True)  # found, not heard yet: another way to the same origin
    bench.take(EOS(T, "b"))
    assert bench.ends == 0
    bench.take(EOS(T, "c"))
    assert bench.ends == 1


def test_ends_at_an_eos_without_anything_before() -> None:
    bench = TallyBench(TallyOptions(ends_at_eos=True))
    bench.take(EOS(T, S))
    assert bench.ends == 1


def test_ends_at_too_much_loss() -> None:
    bench = TallyBench(TallyOptions(loss_percent=10))
    bench.take(*(data(i) for i in range(18)), Loss(T, S, 18))
    assert bench.ends == 0
    bench.take(Loss(T, S, 19))
    assert bench.ends == 1
    assert bench.tally.status() == EXIT_BAD


def test_a_record_gets_the_payloads_in_order() -> None:
    record = PayloadRecord()
    bench = TallyBench(TallyOptions(maximum=2), record)
    bench.take(data(0, b"a"), data(1, b"bc"), data(2, b"d"))
    assert record.sha256 == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize(
    "watch", [TallyOptions(), TallyOptions(verbose=1, order=True), TallyOptions(maximum=5), TallyOptions(maximum=6)]
)
def test_a_batch_is_the_same_as_its_messages(watch: TallyOptions) -> None:
    payloads = [b"a" * i for i in range(6)]
    one, other = TallyBench(watch), TallyBench(watch)
    one.tally.on_batch(MessageBatch(T, S, 0xFFFFFFFD, payloads, b"o"))
    other.take(*(Data(T, S, (0xFFFFFFFD + i) % 2**32, p, 0, b"o") for i, p in enumerate(payloads)))
    assert one.tally.last_line("p") == other.tally.last_line("p")
    assert (one.text, one.ends, one.tally.bad) == (other.text, other.ends, 0)
    one.tally.on_batch(MessageBatch(T, S, 3, [b"x"], b"o"))
    other.take(Data(T, S, 3, b"x", 0, b"o"))
    assert one.tally.messages == other.tally.messages == (watch.maximum or 7)

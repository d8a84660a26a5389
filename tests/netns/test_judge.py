"""The dissector's verdict: what passes, what does not, and which frame is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.udp_capture import Datagram, read_udp, write_udp
from tests.rigs.netns.capture import judge, judge_all
from tests.rigs.replay import CAPTURE, DATA_GROUP, DECODE_AS, SOURCE_IP

pytestmark = pytest.mark.tshark
MESSAGE = bytes.fromhex("0000002550a53ee900000000") + bytes(25)  # one LBMC message of 37 bytes


def lbtrm(payload_hex: str, frame: int = 1) -> Datagram:
    return Datagram(frame, frame * 1000, SOURCE_IP, 60709, *DATA_GROUP, bytes.fromhex(payload_hex))


def test_the_judge_passes_the_golden_capture() -> None:
    verdict = judge(CAPTURE, DECODE_AS)
    verdict.assert_clean()
    expected = {"lbtrm.data": 5000, "lbtrm.rx": 541, "lbtrm.sm": 4, "lbtrm.nak": 295, "lbtrm.ncf": 45}
    expected |= {"lbmr": 122, "lbmr.tqr": 43, "lbmr.wctqr": 18, "lbmr.tir": 62, "lbmc": 5541}
    assert {kind: verdict.counts[kind] for kind in expected} == expected
    assert verdict.frames == 6012
    with pytest.raises(AssertionError, match="expected 5001"):
        verdict.assert_clean({"lbtrm.data": 5001})


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ("03002f3af9d74f3e0005000000000001", "frame 2: malformed"),
        ("09002f3af9d74f3e00000000", "frame 2: malformed"),
        ("00002f3af9d74f3e00000001000000008003000100000003", "frame 2: malformed"),
    ],
    ids=["nak count beyond the list", "unknown type", "message shorter than its header"],
)
def test_the_judge_rejects_a_malformed_packet(tmp_path: Path, payload: str, complaint: str) -> None:
    good = "00002f3af9d74f3e000000000000000080030000" + MESSAGE.hex()
    path = tmp_path / "bad.pcap"
    write_udp(path, [lbtrm(good, 1), lbtrm(payload, 2), lbtrm(good, 3)])
    verdict = judge(path, DECODE_AS)
    with pytest.raises(AssertionError, match=complaint):
        verdict.assert_clean()
    assert {oddity.frame for oddity in verdict.oddities} == {2}


def test_captures_that_are_judged_together_have_their_own_verdicts(tmp_path: Path) -> None:
    good = "00002f3af9d74f3e000000000000000080030000" + MESSAGE.hex()
    for name, frames in {"a": [good], "b": [good, "09002f3af9d74f3e00000000"], "c": [], "d": [good] * 3}.items():
        write_udp(tmp_path / name, [lbtrm(payload, n) for n, payload in enumerate(frames, 1)])
    paths = [tmp_path / name for name in "abcd"]
    verdicts = judge_all(paths, DECODE_AS)
    assert verdicts == [judge(path, DECODE_AS) for path in paths]
    assert [verdict.frames for verdict in verdicts] == [1, 2, 0, 3]
    assert [[oddity.frame for oddity in verdict.oddities] for verdict in verdicts] == [[], [2], [], []]


def test_the_judge_rejects_what_no_rule_decodes(tmp_path: Path) -> None:
    path = tmp_path / "other.pcap"
    write_udp(path, [Datagram(1, 0, SOURCE_IP, 60709, "239.1.1.1", 29999, b"hello")])
    with pytest.raises(AssertionError, match="frame 1: undecoded"):
        judge(path, DECODE_AS).assert_clean()
    judge(path, DECODE_AS, undecoded_ok=True).assert_clean()


def test_a_written_capture_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "copy.pcap"
    datagrams = read_udp(CAPTURE)
    assert len(datagrams) == 6012 - 5  # all but the IGMP reports
    write_udp(path, datagrams)
    assert [d.payload for d in read_udp(path)] == [d.payload for d in datagrams]
    verdict = judge(path, DECODE_AS)
    verdict.assert_clean({"lbtrm.data": 5000, "lbtrm.rx": 541})

"""Lines that users' scripts parse."""

from __future__ import annotations

from dro.tools.lbm import lines
from dro.tools.lbm.lines import LineTotals

SOURCE = "LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400[7]"


def test_data_lines_keep_topic_source_sqn_length() -> None:
    assert lines.data_line("a.b", SOURCE, 7, 25, 0) == f"[a.b][{SOURCE}][7], 25 bytes\n"
    assert lines.data_line("a.b", SOURCE, 7, 25, 0x1) == f"[a.b][{SOURCE}][7], 25 bytes\n"
    assert lines.data_line("a.b", SOURCE, 7, 25, 0x9) == f"[a.b][{SOURCE}][7]-RX-, 25 bytes\n"
    assert lines.data_line("a.b", SOURCE, 7, 25, 0x2000) == f"[a.b][{SOURCE}][7]-OTR-, 25 bytes\n"


def test_other_events() -> None:
    assert lines.loss_line("t", "s", 9) == "[t][s][9], LOST\n"
    assert lines.loss_line("t", "s", 9, is_burst=True) == "[t][s][9], LOSS BURST\n"
    assert lines.fault_line("t", "s", 9, "wrong checksum") == "[t][s][9], BAD: wrong checksum\n"
    assert lines.began_line("t", "s") == "[t][s], Beginning of Transport Session\n"
    assert lines.ended_line("t", "s") == "[t][s], End of Transport Session\n"
    assert lines.source_line("t", "s", added=True) == "[t][s], source found\n"
    assert lines.source_line("t", "s", added=False) == "[t][s], source gone\n"
    assert lines.no_source_line("t") == "[t], no sources found for topic\n"


def test_names_from_outside_cannot_drive_the_terminal() -> None:
    assert lines.began_line("a\x1b[2J\nb\udcffé", "s\r") == (
        "[a\\x1b[2J\\nb\\xffé][s\\r], Beginning of Transport Session\n"
    )
    assert lines.ascii_line(b"one\ttwo\n\x1b[2J\xff\r") == "one\\ttwo\\n\\x1b[2J\\xff\\r\n"


def test_rates_are_thousands() -> None:
    assert lines.rate_text(2.0, 5000, 125_000) == "2.000 secs. 2.500 Kmsgs/sec. 500.000 Kbps"
    before = LineTotals(10.0, 100, 1000, 1, 2, 3)
    after = LineTotals(11.0, 1100, 126_000, 4, 4, 4)
    assert lines.receive_rate_line(after.since(before)) == (
        "1.000 secs. 1.000 Kmsgs/sec. 1000.000 Kbps [3 pkts lost, 2 msgs unrecovered, 1 loss bursts]\n"
    )


def test_an_interval_without_length_divides_by_nothing() -> None:
    assert lines.rate_text(0.0, 0, 0) == "0.000 secs. 0.000 Kmsgs/sec. 0.000 Kbps"

"""Arguments that lbmsrc, lbmrcv and lbmwrcv share."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from dro.command_line import Parser
from dro.config.um.options import DEFAULTS
from dro.tools.lbm import arguments
from dro.tools.lbm.arguments import NotYet, Setting
from tests.builders.um_options import with_all


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("1000", 1000), ("10k", 10_000), ("1.5m", 1_500_000), ("2G", 2 * 10**9), ("0.25k", 250), (" 7 ", 7)],
)
def test_counts(text: str, value: int) -> None:
    assert arguments.count(text) == value


@pytest.mark.parametrize("text", ["", "k", "-1", "1e3", "10kb", "1,5k", "0x10", "1.", ".5", "\u0661"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number such as"):
        arguments.count(text)


def test_positive_refuses_zero() -> None:
    assert arguments.positive("1") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="give 1 or more"):
        arguments.positive("0")


def test_durations() -> None:
    assert arguments.seconds("0.5") == 0.5
    assert arguments.milliseconds("20") == 0.02
    assert arguments.percent("2.5%") == 2.5


@pytest.mark.parametrize("kind", [arguments.seconds, arguments.milliseconds, arguments.percent])
@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "1e12"])
def test_what_is_no_duration_or_percentage(kind: Callable[[str], float], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a"):
        kind(text)


LBTRM = ("source", "transport", "lbtrm")
LBTRU = ("source", "transport", "lbtru")
RU = "transport_lbtru"
DATA_RU = f"{RU}_data_rate_limit"
DATA = "transport_lbtrm_data_rate_limit"
RETRANSMIT = "transport_lbtrm_retransmit_rate_limit"


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("U10m/5m", (LBTRU, ("context", DATA_RU, 10_000_000), ("context", f"{RU}_retransmit_rate_limit", 5_000_000))),
        ("u1m", (LBTRU, ("context", DATA_RU, 1_000_000))),
        ("1m/500k", (LBTRM, ("context", DATA, 1_000_000), ("context", RETRANSMIT, 500_000))),
        ("M10m/5m", (LBTRM, ("context", DATA, 10_000_000), ("context", RETRANSMIT, 5_000_000))),
        ("m2.5g", (LBTRM, ("context", DATA, 2_500_000_000))),
        ("1000", (LBTRM, ("context", DATA, 1000))),
    ],
)
def test_rates(text: str, settings: tuple[Setting, ...]) -> None:
    assert arguments.rates(text) == settings
    options = with_all(DEFAULTS, settings)
    assert options.get_str("source", "transport") == ("lbtru" if text[0] in "Uu" else "lbtrm")


@pytest.mark.parametrize("text", ["", "M", "U", "1m/", "/5", "1m/x", "X1m", "1m/2m/3m"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a rate such as"):
        arguments.rates(text)


@pytest.mark.parametrize(
    ("kind", "text", "option"),
    [
        (arguments.source_datagram_max, "M1472", "transport_lbtrm_source_datagram_max_size"),
        (arguments.source_datagram_max, "U1400", f"{RU}_source_datagram_max_size"),
        (arguments.receiver_datagram_max, "u65535", f"{RU}_receiver_datagram_max_size"),
        (arguments.source_datagram_max, "8192", "transport_tcp_datagram_max_size"),
        (arguments.receiver_datagram_max, "m9000", "transport_lbtrm_receiver_datagram_max_size"),
        (arguments.receiver_datagram_max, "65535", "transport_tcp_datagram_max_size"),
    ],
)
def test_datagram_sizes(kind: Callable[[str], tuple[Setting, ...]], text: str, option: str) -> None:
    settings = kind(text)
    assert [name for _, name, _ in settings] == [option]
    assert with_all(DEFAULTS, settings).get_int("context", option) == int(text.lstrip("UuMm"))


@pytest.mark.parametrize("text", ["", "M", "U", "U499", "499", "M65536", "1k", "-5", "M-5"])
def test_what_is_no_datagram_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="sizes are 500 to 65535 bytes"):
        arguments.source_datagram_max(text)


def parser() -> Parser:
    made = arguments.new_parser("tool", "A tool.")
    made.add_argument("-M", type=arguments.positive)
    arguments.add_not_yet(made, [NotYet(("-j", "--late-join"), "late join"), NotYet(("-f",), "failover", False)])
    return made


def test_common_arguments() -> None:
    options = parser().parse_args(["-c", "a.cfg", "--config=b.cfg", "-vv"], arguments.CommonOptions())
    assert options.config == ["a.cfg", "b.cfg"]
    assert options.verbose == 2


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-j", "1m"], "tool: -j (late join) is not supported yet; leave it out\n"),
        (["-j1m"], "tool: -j (late join) is not supported yet; leave it out\n"),
        (["--late-join=1m"], "tool: --late-join (late join) is not supported yet; leave it out\n"),
        (["-vf"], "tool: -f (failover) is not supported yet; leave it out\n"),
        (["--monitor-src=5"], "tool: --monitor-src (monitoring) is not supported yet; leave it out\n"),
        (["--monitor-evq"], "tool: --monitor-evq (monitoring) is not supported yet; leave it out\n"),
        (["-M", "0"], "tool: argument -M: 0 is too few; give 1 or more\n"),
        (["--unknown"], "tool: unrecognized arguments: --unknown; try tool --help\n"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err == text


def test_help_lists_what_is_not_supported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["-h"])
    assert not ended.value.code
    text = capsys.readouterr().out
    assert "not supported yet" in text
    assert "--late-join" in text

"""Streams of topic resolution over TCP in captures: framing, holes, and what `umdump` shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from dro.dissect.lbmsrs import SrsStream
from dro.dissect.tcpstream import Closed, Missing, Opened
from dro.tools.umdump.main import main
from dro.wire.srs import rsocket
from tests.builders.pcapfile import SYN, pcap, tcp
from tests.builders.srs_records import client_frames, server_frames

RAWS: Final = [rsocket.encode(frame) for frame in client_frames()]


def opened() -> SrsStream:
    stream = SrsStream()
    assert stream.on_piece(Opened()) is None
    return stream


@pytest.mark.parametrize("portion", [1, 5, 64, 10_000])
def test_whole_frames_come_out_whatever_the_segments(portion: int) -> None:
    stream, whole = opened(), b"".join(RAWS)
    runs = [stream.on_piece(whole[at : at + portion]) for at in range(0, len(whole), portion)]
    assert b"".join(run.data for run in runs if run) == whole
    assert stream.on_piece(Closed()) is None


def test_a_stream_is_found_again_behind_a_hole() -> None:
    stream = opened()
    assert stream.on_piece(RAWS[0] + RAWS[1][:5]) is not None
    assert stream.on_piece(Missing(20)) is None
    assert stream.on_piece(RAWS[1][25:]) is None
    run = stream.on_piece(RAWS[1][-7:] + RAWS[2] + RAWS[4])
    assert run is not None
    assert (run.data, run.error) == (RAWS[2] + RAWS[4], None)
    assert run.lost == len(RAWS[1]) + 7
    middle = SrsStream()
    assert middle.on_piece(Missing(-1)) is None
    found = middle.on_piece(b"\xff\xff" + RAWS[4])
    assert found is not None
    assert (found.data, found.lost) == (RAWS[4], -1)


def test_what_is_no_frame_is_an_error_and_so_is_an_end_within_one() -> None:
    stream = opened()
    run = stream.on_piece(RAWS[4] + b"\xff\xff\xff\xff")
    assert run is not None
    assert run.data == RAWS[4]
    assert run.error is not None
    cut = opened()
    assert cut.on_piece(RAWS[0][:-1]) is None
    end = cut.on_piece(Closed())
    assert end is not None
    assert end.error is not None


@pytest.mark.parametrize(("port", "rule"), [(27000, []), (5000, ["--decode-as", "tcp.port==5000,lbmsrs"])])
def test_umdump_shows_and_counts_a_conversation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], port: int, rule: list[str]
) -> None:
    ours, theirs = b"".join(RAWS), b"".join(map(rsocket.encode, server_frames()))
    client, server = ("10.0.0.1", 40000), ("10.0.0.2", port)
    frames = [
        tcp(*client, *server, 0, flags=SYN), tcp(*client, *server, 1, ours),
        tcp(*server, *client, 0, flags=SYN), tcp(*server, *client, 1, theirs),
    ]  # fmt: skip
    path = tmp_path / "srs.pcap"
    path.write_bytes(pcap(frames))
    assert main([*rule, str(path)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["proto"] for line in lines] == ["lbmsrs"] * 2
    assert lines[0]["fields"]["lbmsrs.sir.topic"] == ["AAA", "AAA"]
    assert main(["--summary", "--json", *rule, str(path)]) == 0
    counted = json.loads(capsys.readouterr().out)["protocols"]["lbmsrs"]
    assert counted["packets"] == 2
    assert counted["types"]["source info"] == 4
    assert counted["types"]["setup"] == 1
    assert counted["types"]["registration response"] == 1

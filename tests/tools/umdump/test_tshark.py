"""`umdump` against tshark, field by field, on the real capture."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from dro.tools.umdump.main import main

CAPTURE = Path(__file__).parents[2] / "golden" / "captures" / "um-lbtrm-single-source.pcap"
DECODE_AS = ("udp.port==12965,lbmr", "udp.port==14400,lbtrm", "udp.port==12090,lbtrm")
FIELDS = (
    "lbmr.hdr.tqrs",
    "lbmr.tqr.name",
    "lbmr.tir.name",
    "lbmr.tir.index",
    "lbmr.topt.otid.originating_transport",
    "lbmr.opt.src_id.src_id",
    "lbtrm.hdr.type",
    "lbtrm.hdr.session_id",
    "lbtrm.data.sqn",
    "lbtrm.data.flags_fec_type.rx",
    "lbtrm.sm.lead_sqn",
    "lbtrm.nak.num_naks",
    "lbtrm.nak.list.nak",
    "lbtrm.ncf.reason",
    "lbtrm.ncf.list.ncf",
    "lbmc.tidx",
    "lbmc.sqn",
    "lbmc.msglen",
)


def number(text: str) -> str:
    """Numbers in one base and bytes without separators: the two programs print the same value in several forms."""
    plain = text.replace(":", "")
    return str(int(plain, 16)) if plain.startswith("0x") else plain


@pytest.mark.tshark
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_every_packet_of_the_real_capture_shows_what_tshark_shows(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tshark", "-n", "-r", str(CAPTURE), "-T", "fields", "-E", "occurrence=a", "-E", "aggregator=|"]
    command += [part for rule in DECODE_AS for part in ("-d", rule)]
    command += [part for name in ("frame.number", *FIELDS) for part in ("-e", name)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True, text=True)
    theirs: dict[int, dict[str, list[str]]] = {}
    for line in done.stdout.splitlines():
        frame, *values = line.split("\t")
        shown = {
            name: [number(v) for v in value.split("|")] for name, value in zip(FIELDS, values, strict=True) if value
        }
        if shown:
            theirs[int(frame)] = shown
    assert main([str(CAPTURE)]) == 0
    ours: dict[int, dict[str, list[str]]] = {}
    for line in capsys.readouterr().out.splitlines():
        item = json.loads(line)
        found = {name: item["fields"][name] for name in FIELDS if name in item["fields"]}
        ours[item["frame"]] = {
            name: [number(v) for v in (value if isinstance(value, list) else [value])] for name, value in found.items()
        }
    assert ours.keys() == theirs.keys()
    wrong = [frame for frame, shown in theirs.items() if ours[frame] != shown]
    assert wrong == []
    seen = Counter(name for shown in theirs.values() for name in shown)
    assert {name for name in FIELDS if not seen[name]} == set()  # else a field name has been mistyped

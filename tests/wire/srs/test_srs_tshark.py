"""Topic resolution over TCP that we write, as the standard dissector reads it."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest

from dro.dissect import packet as dissect
from dro.wire.srs import messages as lbmsrs
from dro.wire.srs import rsocket
from dro.wire.srs.rsocket import CancelFrame, Frame, PayloadFrame, RequestNFrame
from tests.builders import pcapfile
from tests.builders.srs_records import all_records, client_frames, server_frames

pytestmark = pytest.mark.tshark

DEFECTS: Final = ("lbmsrs.registration_response.local_domain_id", "lbmsrs.registration_response.protocol_version")
"""S1: the dissector swaps their sizes."""


def conversation() -> list[tuple[bool, bytes]]:
    """Segments, whether of the client. What tshark does not begin with stands behind a keepalive (S4)."""
    ours, theirs = client_frames(), server_frames()
    end: list[Frame] = [*theirs[2:], RequestNFrame(3, 7), CancelFrame(3), PayloadFrame(3, b"", is_complete=True)]
    frames = [(True, ours[0]), (True, ours[1]), (False, theirs[0]), (True, ours[2]), (False, theirs[1])]
    segments = [(is_client, rsocket.encode(frame)) for is_client, frame in [*frames, (True, ours[3]), (True, ours[4])]]
    segments += [(False, rsocket.encode(PayloadFrame(3, lbmsrs.encode(record)))) for record in all_records()]
    return [*segments, (False, b"".join(map(rsocket.encode, end)))]


def test_the_standard_dissector_reads_what_we_write(tmp_path: Path) -> None:
    segments = conversation()
    packets, sent = [], {True: 1, False: 1}
    for is_client, raw in segments:
        ends = ("10.0.0.1", 40000, "10.0.0.2", 27000) if is_client else ("10.0.0.2", 27000, "10.0.0.1", 40000)
        packets.append(pcapfile.tcp(*ends, sent[is_client], raw, ack=sent[not is_client]))
        sent[is_client] += len(raw)
    path = tmp_path / "srs.pcap"
    path.write_bytes(pcapfile.pcap(packets))
    command = ["tshark", "-n", "-r", str(path), "-d", "tcp.port==27000,lbmsrs", "-T", "pdml"]
    text = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    shown = list(ET.fromstring(text).iter("packet"))
    assert len(shown) == len(segments)
    for (_, raw), packet in zip(segments, shown, strict=True):
        theirs: dict[str, list[str]] = {}
        for field in packet.iter("field"):
            name = field.get("name", "")
            if name.startswith(("lbmsrs.", "_ws.")) and (field.get("show") or field.find("field") is None):
                theirs.setdefault(name, []).append(field.get("show", ""))
        found = dissect.fields("lbmsrs", raw)
        assert found.error is None
        ours = {name: [texts] if isinstance(texts, str) else texts for name, texts in found.values.items()}
        assert len(ours) >= 5
        for name in DEFECTS:
            assert (name in ours) == (name in theirs)
            ours.pop(name, None)
            theirs.pop(name, None)
        assert comparable(theirs) == comparable(ours)


def comparable(texts: dict[str, list[str]]) -> dict[str, list[str]]:
    spelt = {"True": "1", "False": "0"}
    return {name: [spelt.get(text, text).replace(":", "") for text in values] for name, values in texts.items()}

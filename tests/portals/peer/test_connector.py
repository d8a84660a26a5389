"""Attempts of the initiator that end before there is a connection."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from dro.config.dro_xml.model import InitiatorConfig, PeerTcpConfig
from dro.proto.peerlink.session import LinkEnd
from portals.peer.stream.connector import Initiator
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker

INTERVAL_MS = 1000
TCP = PeerTcpConfig("0.0.0.0", 0, 0, False, False, "", None, InitiatorConfig("a.name.example", 14000, INTERVAL_MS), 0)


@pytest.mark.parametrize(
    ("error", "shown"),
    [(RuntimeError("can't start new thread"), "can't start new thread"), (MemoryError(), "no memory")],
    ids=["limit of processes", "no memory"],
)
def test_a_look_up_that_cannot_be_started_is_a_failed_attempt(
    tmp_path: Path, stepper: Stepper, error: Exception, shown: str
) -> None:
    ctx = FakeWorker(stepper.loop, tmp_path, 1, "P").ctx
    failed = Mock()
    initiator = Initiator(ctx, TCP, Mock(), Mock(), failed)
    remedy = "raise the limit of processes of the DRO's user, or TasksMax of its unit"
    why = f"cannot look up a.name.example: {shown}; {remedy}"
    with patch.object(threading.Thread, "start", side_effect=error) as start:
        initiator.connect()
    assert start.call_count == 1
    failed.assert_called_once_with(why, LinkEnd.ERROR)
    initiator.close()

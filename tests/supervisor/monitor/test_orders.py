"""Files of tokens, as they are read for each order over HTTP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dro.errors import ResourceError
from supervisor.monitor.orders import read_tokens


def test_a_fifo_is_no_file_of_tokens_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokens", 0o600)
    with pytest.raises(ResourceError, match="is no file"):
        read_tokens(tmp_path / "tokens")

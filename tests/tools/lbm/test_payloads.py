"""The record of payloads: digest and file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dro.errors import ResourceError
from dro.tools.lbm.payloads import PayloadRecord


def test_digest_is_over_the_payloads_back_to_back() -> None:
    record = PayloadRecord()
    assert record.sha256 == hashlib.sha256().hexdigest()
    for payload in (b"one", b"", b"three" * 1000):
        record.add(payload)
    record.close()
    assert record.sha256 == hashlib.sha256(b"one" + b"three" * 1000).hexdigest()


def test_file_has_each_payload_behind_its_length(tmp_path: Path) -> None:
    path = tmp_path / "payloads"
    record = PayloadRecord(str(path))
    record.add(b"ab")
    record.add(b"")
    record.add(b"c" * 300)
    record.close()
    record.close()
    assert path.read_bytes() == b"\0\0\0\2ab" + b"\0\0\0\0" + b"\0\0\1\x2c" + b"c" * 300
    assert record.sha256 == hashlib.sha256(b"ab" + b"c" * 300).hexdigest()


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot write .*missing/file: No such file.*--payload-file"):
        PayloadRecord(str(tmp_path / "missing" / "file"))


def test_a_full_disk_is_told() -> None:
    record = PayloadRecord("/dev/full")
    with pytest.raises(ResourceError, match="No space left"):
        record.add(b"x" * 1_000_000)
    with pytest.raises(ResourceError, match="No space left"):
        record.close()

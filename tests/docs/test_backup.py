"""What the guide to backups says to type brings back what was there."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from tests.builders.guide_blocks import blocks
from tests.rigs.histories import TS_MS, Receiver, rows_of
from tests.rigs.waiting import wait_until

GUIDE = "backup.md"


def run(script: str, folder: Path, **environ: object) -> None:
    more = {name: str(value) for name, value in environ.items()}
    subprocess.run(["sh", "-eu", "-c", script], cwd=folder, env=os.environ | more, check=True, timeout=60)


def test_a_configuration_comes_back_with_its_modes(tmp_path: Path) -> None:
    save, restore = blocks(GUIDE, "Configuration and secrets", "sh")
    modes = {"west.xml": 0o640, "route.keys": 0o640, "tokens": 0o600}
    (tmp_path / "etc" / "open-dro").mkdir(parents=True, mode=0o750)
    for name, mode in modes.items():
        path = tmp_path / "etc" / "open-dro" / name
        path.write_text(name)
        path.chmod(mode)
    run(save, tmp_path, ETC=tmp_path / "etc")
    assert stat.S_IMODE((tmp_path / "config.tar.gz").stat().st_mode) == 0o600
    (tmp_path / "new").mkdir()
    run(restore, tmp_path, ETC=tmp_path / "new")
    found = {path.name: path for path in (tmp_path / "new" / "open-dro").iterdir()}
    assert {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()} == modes
    assert all(path.read_text() == name for name, path in found.items())


def sent_all_the_time(receiver: Receiver, is_over: threading.Event) -> Callable[[], None]:
    def send() -> None:
        while not is_over.is_set():
            receiver.send(20)

    return send


def test_a_history_that_is_copied_while_it_is_written_has_all_that_was_acknowledged_once(tmp_path: Path) -> None:
    save, restore = blocks(GUIDE, "History", "sh")
    receiver = Receiver(tmp_path / "history")
    is_over = threading.Event()
    sender = threading.Thread(target=sent_all_the_time(receiver, is_over), daemon=True)
    sender.start()
    try:
        for nth in range(3):
            wait_until(
                lambda: len(list((tmp_path / "history").glob("table=portal/*/*/*.parquet"))) > 3, "files of a roll"
            )
            before = set(receiver.acknowledged)
            backup = tmp_path / f"backup{nth}"
            backup.mkdir()
            run(save, tmp_path, HISTORY=tmp_path / "history", BACKUP=backup)
            run(restore, tmp_path, HISTORY=backup / "history", BACKUP=backup)
            for path in (backup / "history").glob("table=*/*/*/*.parquet"):
                was = tmp_path / "history" / path.relative_to(backup / "history")
                assert path.read_bytes() == was.read_bytes()
            restored = Receiver(backup / "history")
            restored.process.terminate()
            assert restored.process.wait(30) == 0
            restored.close()
            rows = rows_of(backup / "history", "portal", ["ts", "connects"])
            found = {round(row["ts"].timestamp() * 1000) - TS_MS for row in rows}
            assert len(found) == len(rows), "each once"
            assert before <= found
    finally:
        is_over.set()
        sender.join(30)
        receiver.close()

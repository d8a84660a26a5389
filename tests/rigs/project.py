"""A project with tests of its own, run by pytest in a process of its own, to see what the plug-ins of this one do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
WITH_WORKERS: Final = ("-p", "xdist.plugin", "-n", "2")


def run(folder: Path, plugin: str, files: Mapping[str, str], *options: str, ci: str = "") -> tuple[int, str]:
    """Write the files and run the tests below `tests`; returns the exit status of pytest, and what it prints.

    Of the plug-ins that are installed none is loaded.
    """
    settings = {"pytest.ini": "[pytest]\naddopts = --import-mode=importlib\ntestpaths = tests\n"}
    for path, text in (settings | dict(files)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    more = {"CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", plugin, *options], cwd=folder, env=os.environ | more,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout

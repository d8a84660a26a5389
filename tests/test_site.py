"""The documents as a site: it builds without a broken link, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
LOADS: Final = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\ssrc=[\"']?(?:https?:)?//|<link\b[^>]*\shref=[\"']?(?:https?:)?//"
)
LOADS_BY_STYLE: Final = re.compile(r"@import|url\([\"']?(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert documents == {path.stem for path in site.glob("*.html")} - {"404"}


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    pages, styles = [*site.rglob("*.html")], [*site.rglob("*.css")]
    assert pages
    assert styles
    assert {path.name: found for path in pages if (found := LOADS.findall(path.read_text()))} == {}
    assert {path.name: found for path in styles if (found := LOADS_BY_STYLE.findall(path.read_text()))} == {}

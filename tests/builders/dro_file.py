"""DRO files in hand, read as on a host of the tests, without environment and without a daemon."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from dro.config.dro_xml.load import read_root
from dro.config.dro_xml.model import DroConfig
from dro.config.reading.problems import ConfigErrors, Problems, Warn
from dro.config.reading.xml_file import parse_xml
from dro.config.um.interfaces import SYSTEM, Lookup
from dro.config.um.sources import Reading
from tests.fakes.lookup import FakeLookup

HOST: Final = FakeLookup()
_KEYS: Final = Path(__file__).parents[1] / "golden" / "keys"
ROUTE_KEYS: Final = str(_KEYS / "route.keys")
"""Holds two keys of `<route-authentication>`."""
OTHER_KEYS: Final = str(_KEYS / "other.keys")


def parse_dro(
    raw: bytes, file: str, *, warn: Warn, lookup: Lookup = SYSTEM, environ: Mapping[str, str] = os.environ
) -> DroConfig:
    """`load_dro` for a document in hand; `file` names it in messages and is where relative names are looked up."""
    return read_root(parse_xml(raw, file), file, Reading(Problems(warn), lookup, environ))


def endpoint(name: str, domain: int, inner: str = "") -> str:
    return f"<endpoint><name>{name}</name><domain-id>{domain}</domain-id>{inner}</endpoint>"


def gateway(*portals: str, daemon: str = "") -> bytes:
    """One portal a line, the first in line 3."""
    lines = "\n".join(portals)
    return (
        f'<tnw-gateway version="1.0">\n<daemon>{daemon}</daemon><portals>\n{lines}\n</portals></tnw-gateway>'.encode()
    )


def load(
    raw: bytes | str,
    warnings: list[str] | None = None,
    *,
    file: str = "dro.xml",
    lookup: Lookup = HOST,
    environ: Mapping[str, str] | None = None,
) -> DroConfig:
    """What a file means; its warnings go into `warnings`. Raises: ConfigErrors."""
    text = raw.encode() if isinstance(raw, str) else raw
    warn = ([] if warnings is None else warnings).append
    return parse_dro(text, file, warn=warn, lookup=lookup, environ=environ or {})


def errors(raw: bytes | str) -> list[str]:
    """Why a file is refused."""
    with pytest.raises(ConfigErrors) as caught:
        load(raw)
    return [str(e) for e in caught.value.errors]

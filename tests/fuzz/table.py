"""All targets."""

from __future__ import annotations

from typing import Final

from tests.fuzz import history, lbmmon, links, portal, readers, resolution, scan, sessions, srs, stores, wire
from tests.fuzz.target import Target

PARTS: Final = (wire, scan, readers, history, lbmmon, resolution, srs, sessions, stores, links, portal)
TARGETS: Final[dict[str, Target]] = {target.name: target for part in PARTS for target in part.TARGETS}

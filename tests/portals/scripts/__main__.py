"""Writes anew what is expected in the scripts, as processes decide: `python -m tests.portals.scripts`."""

from __future__ import annotations

from tests.rigs.portal_hosts.play import written_anew
from tests.rigs.portal_hosts.script import SCRIPTS

for script in sorted(SCRIPTS.glob("*.txt")):
    script.write_text(written_anew(script))

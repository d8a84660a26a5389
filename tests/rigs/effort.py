"""Tells how much a run tries: what each change has to pass, or with `DRO_LONG=1` all there is."""

from __future__ import annotations

import os
from typing import Final

IS_LONG: Final = bool(os.environ.get("DRO_LONG"))

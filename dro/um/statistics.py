"""Options of a context that hears what UM applications and DROs publish of their statistics.

Source: UM operations guide, monitoring, transport module `lbm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dro.config.um.program import StrPath
from dro.config.um.used import STATISTICS_CONTEXT
from dro.um.message.client_config import Config

_BELOW: Final = (("context_name", STATISTICS_CONTEXT), ("request_tcp_bind_request_port", 0))


def statistics_config(files: Sequence[StrPath]) -> Config:
    """Load the configuration of such a context: named as UM names it, and without a request port unless it is set.

    Raises: ConfigError.
    """
    config = Config.load(*files)
    for name, value in _BELOW:
        if not config.options.is_set("context", name):
            config = config.with_("context", name, value)
    return config

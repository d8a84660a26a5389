"""Options of a context, as it completes them for itself."""

from __future__ import annotations

import pytest

from dro.config.um.options import UmOptions
from dro.config.um.sets import CTX
from dro.um.fragment import options


@pytest.mark.parametrize("given", ["0.0.0.0", "127.0.0.1"])
def test_any_interface_becomes_one_that_can_do_multicast(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setattr(options, "multicast_interface", lambda value, *, warn: "127.0.0.1")
    before = UmOptions().with_(CTX, "resolver_multicast_interface", given)
    after = options.with_interface(before)
    assert after.get_interface(CTX, "resolver_multicast_interface") == "127.0.0.1"
    assert (after is before) == (given == "127.0.0.1")

"""Whom a DRO becomes, and that nothing of root is left; `test_identity` shows it with a real one."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from types import SimpleNamespace

import pytest

from supervisor.host.privileges import Identity, identity_of
from tests.rigs.site import ROOT

PROGRAM = """
import os
from supervisor.host.privileges import Identity, become
assert os.getgroups() == [4, 24]
become(Identity(54321, 54322))
print(os.getresuid(), os.getresgid(), os.getgroups())
"""


@pytest.mark.netns  # needs root
def test_no_supplementary_group_is_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, extra_groups=[4, 24], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{(54321,) * 3} {(54322,) * 3} []\n", done.stderr


def test_a_user_alone_brings_its_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_uid=uid, pw_gid=777))
    assert identity_of(1001, None) == Identity(1001, 777)
    assert identity_of(1001, 5) == Identity(1001, 5)
    assert identity_of(None, 5) == Identity(os.getuid(), 5)

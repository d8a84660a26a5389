"""The user and group that a DRO runs as: which they are, and the permanent change to them.

The parent process changes before it forks the first worker, so every worker, even a restarted one, has the new identity
from its first instruction on, without supplementary groups and without capabilities.

Source: DRO guide, elements `uid` and `gid`. Guess: a user without a group gets that of the user in the password
database; a DRO that is not started as root and is configured for another user does not start.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dro.errors import ResourceError

NO_SUCH_ID: Final = "choose ids that exist in the user namespace of this process"
_PR_SET_DUMPABLE: Final = 4


@dataclass(frozen=True, slots=True)
class Identity:
    """A user and a group by number."""

    uid: int
    gid: int


def identity_of(uid: int | None, gid: int | None) -> Identity | None:
    """Find who the DRO is to become; None when it stays who it is. Raises: ResourceError when it cannot."""
    if uid is None and gid is None:
        return None
    if os.geteuid() != 0:
        if uid in (None, os.geteuid()) and gid in (None, os.getegid()):
            return None
        what = f"only root can become user {_shown(uid)} and group {_shown(gid)}; this is user {os.geteuid()}"
        raise ResourceError(what, remedy="start as root, or as that user without <uid> and <gid>")
    if uid is not None and gid is None:
        try:
            gid = pwd.getpwuid(uid).pw_gid
        except KeyError as e:
            remedy = "write <gid>, or the number of a user that exists"
            raise ResourceError(f"user {uid} has no entry in the password database, so no group", remedy=remedy) from e
    return Identity(os.getuid() if uid is None else uid, os.getgid() if gid is None else gid)


def _shown(number: int | None) -> str:
    return "(unchanged)" if number is None else str(number)


def become(identity: Identity) -> None:
    """Change user and groups of this process for good.

    Raises: ResourceError when the kernel refuses, or capabilities would be left.
    """
    uid, gid = identity.uid, identity.gid
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as e:
        remedy = NO_SUCH_ID if e.errno == errno.EINVAL else "start as root with CAP_SETUID and CAP_SETGID"
        raise ResourceError(f"cannot become user {uid}, group {gid}: {e.strerror}", remedy=remedy) from e
    # The kernel takes this away with a change of user: as if started by that user, it may leave a core or be traced.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3 or os.getgroups():
        raise ResourceError(f"user {uid}, group {gid} did not hold", remedy="report this")
    if uid != 0 and effective_capabilities() != 0:
        remedy = "start without ambient capabilities and securebits"
        raise ResourceError(f"capabilities are left after becoming user {uid}", remedy=remedy)


def effective_capabilities(pid: int | Literal["self"] = "self") -> int:
    """Read the capabilities of that process, one bit each. Raises: OSError when there is none."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16)
    return 0

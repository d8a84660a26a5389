"""Remedies for operating system errors: one for each errno that a lack of resources causes. Used wherever such an error
becomes a `ResourceError`.
"""

from __future__ import annotations

import errno
from typing import Final

_REMEDIES: Final = {
    errno.EMFILE: "raise the limit of open files: ulimit -n, or LimitNOFILE= of the service",
    errno.ENFILE: "raise the number of open files of the machine: sysctl fs.file-max",
    errno.ENOMEM: "free memory, or raise the memory limit of the service",
    errno.EAGAIN: "raise the limit of processes: ulimit -u, or TasksMax= of the service",
    errno.ENOSPC: "make room there: blocks and inodes",
    errno.EDQUOT: "make room there, or raise the quota of the user",
    errno.EROFS: "it is mounted read-only: choose another place",
    errno.EACCES: "give the user of the DRO access to it",
    errno.EPERM: "start as root, or as the user in question",
    errno.ENOENT: "make its directory first",
    errno.ENOTDIR: "a part of the path is no directory",
    errno.ELOOP: "a symbolic link is not followed here",
    errno.ENAMETOOLONG: "choose a shorter path",
}
SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})
"""Errors of a machine that has run out of something, which may have it again later."""


def remedy_of(number: int | None, otherwise: str = "") -> str:
    """Return what to do about that error; `otherwise` when the table does not know."""
    return _REMEDIES.get(number or 0, otherwise)

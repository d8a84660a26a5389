"""`python -m tests.rigs.dro_without_resuming FILE`: a `tnwgd` whose links confirm nothing, as other DROs do not."""

from __future__ import annotations

import sys
from dataclasses import replace

from dro.proto.peerlink.messages import Hello
from portals.peer.process.portal import PeerPortal
from supervisor.main import main

complete = PeerPortal._complete_hello


def _complete_hello(self: PeerPortal, own: Hello) -> Hello:
    return replace(complete(self, own), resumes=False)


if __name__ == "__main__":
    PeerPortal._complete_hello = _complete_hello  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))

"""How a peer portal goes on when its process was killed: what is left of the link, and when that is made anew."""

from __future__ import annotations

from functools import partial
from typing import Final

from dro.bus.actor import WorkerContext
from dro.errors import DecodeError
from dro.kept.gate import Gate
from dro.log.events import LogEvent
from dro.loop import Loop
from portals.peer.stream.kept_link import KeptLink
from portals.peer.stream.link_log import LinkLog
from portals.peer.stream.sender import LinkSender
from portals.shell.portal import KNOWN_NS, LOOK_NS, PortalShell

_NO_ROOM: Final = "no shared memory for the data of the link"


def open_kept(ctx: WorkerContext, sender: LinkSender, max_queue_bytes: int) -> KeptLink:
    """Open what the former process has left of the link, or begin anew where something of it is missing or broken."""
    kept = KeptLink(ctx.kept_state.rows)
    log = LinkLog.open(ctx.kept_state, max_queue_bytes, sender.header_bytes)
    if log is None:
        kept.forget()
        return kept
    on_lost = partial(_on_log_lost, ctx, kept)
    if kept.goes_on:
        why = "" if log.goes_on else "the log of the link cannot be read"
        try:
            if not why:
                sender.keep_in(log, kept.companion, on_lost)
                return kept
        except DecodeError as e:
            why = str(e)
        ctx.log.info(LogEvent.WORKER_STARTS_CLEAN, extra={"worker": ctx.name, "reason": why, "sockets": 0})
        kept.begin_anew()
    sender.keep_in(log, b"", on_lost)
    return kept


def _on_log_lost(ctx: WorkerContext, kept: KeptLink) -> None:
    """Let the next process begin the link anew: nothing of it is kept any more."""
    kept.forget()
    ctx.log.warning(LogEvent.STATE_NOT_KEPT, extra={"worker": ctx.name, "reason": _NO_ROOM})


def open_when_known(loop: Loop, shell: PortalShell, gate: Gate, until_ns: int | None = None) -> None:
    """Let the link be made when siblings have what they had of it, both ways: else its data would find nobody."""
    until_ns = until_ns or loop.now_ns() + KNOWN_NS
    if shell.has_proxies_again() or loop.now_ns() >= until_ns:
        gate.open()
    else:
        loop.call_later(LOOK_NS, partial(open_when_known, loop, shell, gate, until_ns))

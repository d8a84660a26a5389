"""Questions about contexts and answers to them, of a portal: from siblings and from behind the portal, and back.

Carries out what `portals.decisions.immediate.contexts` decides for siblings; what is for those behind the portal the
link takes with `take_for_link`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dro.bus.actor import WorkerContext
from dro.bus.messages import Role
from dro.config.dro_xml.model import ContextQueryConfig
from dro.proto.unicast.contexts import KnownContexts
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import CtxInfo
from portals.decisions.immediate.contexts import BEHIND, AskSiblings, ContextQuestions
from portals.shell.portal import PortalShell
from portals.shell.unicast import send_to_sibling


class ContextTraffic:
    """See the module text. Made by the link."""

    def __init__(self, ctx: WorkerContext, shell: PortalShell, options: ContextQueryConfig) -> None:
        self._ctx = ctx
        self._shell = shell
        self.questions = ContextQuestions(options, KnownContexts())
        self.known = self.questions.known

    def on_unknown(self, instance: bytes) -> None:
        """A message could not be sent on: nobody knows where the context of that instance is."""
        self.questions.on_unknown(instance, self._ctx.loop.now_ns())
        self._shell.act_soon()

    def on_context_info(self, worker: int, message: bytes) -> None:
        """Take one from a sibling, or from `BEHIND` the portal. Raises: DecodeError."""
        info = lbmc.decode(message).get(CtxInfo)
        if info is not None:
            self.questions.on_info(info, worker, self._ctx.loop.now_ns())
            self._shell.act_soon()

    def take_for_link(self) -> Iterator[CtxInfo]:
        """Tell siblings what is for them, and return what is for those behind the portal."""
        for effect in self.questions.take_effects():
            if isinstance(effect, AskSiblings):
                workers = [p.worker for p in self._ctx.peers.values() if p.role in (Role.ENDPOINT, Role.PEER)]
            elif effect.worker != BEHIND:
                workers = [effect.worker]
            else:
                yield effect.info
                continue
            message = lbmc.encode(lbmc.control_message(effect.info))
            for worker in workers:
                send_to_sibling(self._shell.addressed, worker, message)

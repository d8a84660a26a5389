"""ACL enforcement: what a portal accepts, by its access control list and the rules of its UM options by topic.

Three questions, each answered once for a topic or a session and cached: may a topic leave the DRO here, may a topic be
requested in the TRD, may a source of the TRD be joined. Fragments are never checked. The core asks the first two, the
receiving context the third. A change of the configuration makes a new `AclEnforcement`.

    interest recorded here        `may_leave`   else it is not sent to siblings, and no proxy source is made
    interest of siblings          `may_ask`     else no proxy receiver; requested if it depends on the session
    source heard here             `may_enter`   else it is not joined, and not reported to siblings
    patterns                      accepted; the topics that they find are checked

Source: DRO guide, 4.2.3; forwarding notes, section 15.2; UM configuration file rules, 4.4 and 4.6 (a topic that the
options forbid is not forwarded).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from dro.config.dro_xml.acl import ACCEPT_ALL, Acl, Session, Verdict
from dro.config.dro_xml.model import AclConfig
from dro.config.um.layers import ContextOptions
from dro.errors import ConfigError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.table import Table
from dro.wire.source_string import (
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    TcpAddress,
    TransportAddress,
    UnknownTransport,
    format_source,
)
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

REMEMBERED_MAX: Final = 500_000
"""Verdicts of one kind that are kept for certain; those of others that are asked for now and then stay as well."""
_PATTERN_TYPES: Final = {PATTERN_PCRE: "pcre", PATTERN_REGEX: "regex"}
_K = TypeVar("_K")


class _Verdicts(Generic[_K]):
    """What was decided, in two generations: a full one becomes the older, and what is asked for again stays."""

    def __init__(self) -> None:
        self._recent: Table[_K, bool] = Table()
        self._older: Table[_K, bool] = Table()

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def get(self, key: _K) -> bool | None:
        known = self._recent.get(key)
        if known is None and (known := self._older.pop(key, None)) is not None:
            self.keep(key, known)
        return known

    def keep(self, key: _K, verdict: bool) -> None:
        if len(self._recent) >= REMEMBERED_MAX:
            self._older, self._recent = self._recent, Table()
        self._recent[key] = verdict


def session_of(address: TransportAddress) -> Session:
    """A transport session as the conditions of an ACL see it.

    The UDP source port of LBT-RM is the one that the source advertises, from `transport_lbtrm_source_port_low` on.
    """
    match address:
        case TcpAddress(ip, port):
            return Session("tcp", source_ip=ip, tcp_source_port=port)
        case LbtrmAddress(ip=ip, group=group, dport=dport, nak_port=port):
            return Session(
                "lbt-rm", source_ip=ip, multicast_group=group, udp_source_port=port, udp_destination_port=dport
            )
        case LbtruAddress(ip, port):
            return Session("lbt-ru", source_ip=ip, udp_source_port=port)
        case IpcAddress(transport_id=number):
            return Session("lbt-ipc", xport_id=number)
        case SmxAddress() | RdmaAddress() | UnknownTransport():
            return Session("other")


def name_text(name: bytes) -> str:
    """Return the name as access lists and options compare it."""
    return name.decode("utf-8", "surrogateescape")


def _refusal(name: bytes, verdict: Verdict) -> dict[str, object]:
    place = {"at": f"{verdict.file}:{verdict.line}"} if verdict.file else {}
    return {"topic": name.decode(errors="replace"), "reason": verdict.reason, **place}


class AclEnforcement:
    """See the module text. Without arguments everything passes."""

    def __init__(
        self,
        acl: AclConfig | None = None,
        *,
        sending: ContextOptions | None = None,
        receiving: ContextOptions | None = None,
    ) -> None:
        """`sending` and `receiving` are the options of the two contexts. Raises: ConfigError for a bad pattern."""
        self._acl = Acl.of(acl)
        self._inbound = acl.inbound if acl is not None else None
        self._outbound = acl.outbound if acl is not None else None
        self._sending = sending if sending is not None and sending.by_topic else None
        self._receiving = receiving if receiving is not None and receiving.by_topic else None
        self._leaving = _Verdicts[bytes]()
        self._asking = _Verdicts[tuple[bytes, int]]()

    @property
    def judges_sources(self) -> bool:
        """Whether `may_enter` could ever refuse."""
        return self._inbound is not None

    def may_leave(self, topic: bytes) -> bool:
        """Whether sources of the topic may appear in the TRD of this portal."""
        if self._sending is None and self._outbound is None:
            return True
        known = self._leaving.get(topic)
        if known is None:
            verdict = self._acl.outbound(name_text(topic))
            if verdict.accept and self._sending is not None:
                verdict = _permitted(self._sending.source, topic)
            known = verdict.accept
            self._leaving.keep(topic, known)
            if not known:
                limited(LogEvent.TOPIC_NOT_LET_OUT, extra=_refusal(topic, verdict))
        return known

    def may_ask(self, symbol: bytes, pattern: int) -> bool:
        """Whether the TRD of this portal may be asked for a topic or pattern, as far as the name alone says."""
        if self._receiving is None and self._inbound is None:
            return True
        known = self._asking.get((symbol, pattern))
        if known is None:
            verdict = self._acl.inbound(name_text(symbol), None) if pattern == PATTERN_NONE else ACCEPT_ALL
            if verdict.accept and (options := self._receiving) is not None:
                kind = _PATTERN_TYPES.get(pattern, "")
                verdict = _permitted(
                    (lambda name: options.wildcard_receiver(name, kind)) if kind else options.receiver, symbol
                )
            known = verdict.accept
            self._asking.keep((symbol, pattern), known)
            if not known:
                limited(LogEvent.TOPIC_NOT_LET_IN, extra=_refusal(symbol, verdict))
        return known

    def may_enter(self, topic: bytes, address: TransportAddress) -> bool:
        """Whether that source may be joined. Not remembered here: the resolver asks once for each."""
        verdict = self._acl.inbound(name_text(topic), session_of(address))
        if not verdict.accept:
            extra = _refusal(topic, verdict) | {"source": format_source(address)}
            limited(LogEvent.SOURCE_NOT_LET_IN, extra=extra)
        return verdict.accept

    def lets_out_like(self, other: AclEnforcement) -> bool:
        """Whether `may_leave` answers as that of `other` does, without a look at any topic."""
        return self._outbound == other._outbound and self._sending is other._sending

    def lets_in_like(self, other: AclEnforcement) -> bool:
        """Whether `may_ask` and `may_enter` answer as those of `other` do, likewise."""
        return self._inbound == other._inbound and self._receiving is other._receiving

    def move_to(self, same: AclEnforcement) -> None:
        """Name the places of `same`, which has the same lists from other lines of a file, in messages from now on."""
        self._acl = same._acl


OPEN: Final = AclEnforcement()


def _permitted(ask: Callable[[str], object], name: bytes) -> Verdict:
    """Find what the options say about an object of that name."""
    try:
        ask(name_text(name))
    except ConfigError as e:
        return Verdict(False, file=e.file, line=e.line, reason=e.what)
    return ACCEPT_ALL

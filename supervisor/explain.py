"""What a configuration says about a topic on its way from one domain to another: portals, access lists, UM options.

Static: nothing here asks the network who sends or listens. Pure; called in a forked child of the parent, or by
`tnwgdctl` for a file.

Source: DRO guide, 4.2.3; forwarding notes, section 15.2: sources and interest are judged by the inbound list of the
portal where a topic enters, and by the outbound list of the portal where it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args

from dro.config.acl import Acl, Session, SessionTransport, Verdict, applies
from dro.config.elements_acl import SESSION_KINDS
from dro.config.model import AclConfig, DroConfig, EndpointConfig
from dro.config.options import UmOptions, option_table
from dro.config.um_difference import um_text
from dro.errors import ConfigError

FORWARDED: Final = "forwarded"
REJECTED: Final = "rejected"
DEPENDS: Final = "depends on the session"
NOT_HERE: Final = "not by this DRO"
TRANSPORTS: Final[tuple[SessionTransport, ...]] = tuple(
    transport for transport in get_args(SessionTransport) if transport != "other"
)
SESSION_PARTS: Final = {kind: kind.replace("-", "_") for kind in SESSION_KINDS if kind != "transport"}
"""What a session may be asked for, with the field of `Session` that has it."""
INBOUND: Final = "inbound"
OUTBOUND: Final = "outbound"


@dataclass(frozen=True, slots=True)
class Question:
    """`given` are the parts of the transport session that are known, by the name of their condition."""

    topic: str
    source_domain: int
    interested_domain: int
    transport: SessionTransport | None = None
    given: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """What one portal says in one direction. `ace` counts from 1; 0 is no entry."""

    portal: str
    direction: str
    verdict: str
    reason: str
    ace: int = 0
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class OptionRecord:
    """One UM option that is set for a proxy of this topic; `origin` says where."""

    portal: str
    proxy: str  # receiver or source
    option: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class ExplainRecord:
    """The answer. `missing` names the conditions whose values would be needed to decide."""

    topic: str
    source_domain: int
    interested_domain: int
    verdict: str
    reason: str
    ingress: str = ""
    egress: str = ""
    cost: int = 0
    verdicts: tuple[VerdictRecord, ...] = ()
    options: tuple[OptionRecord, ...] = ()
    missing: tuple[str, ...] = ()
    states: tuple[str, ...] = ()  # of portals that are not running now


def explain(config: DroConfig, question: Question, states: Mapping[str, str] | None = None) -> ExplainRecord:
    """`states` are those of the portals of a running DRO, by name."""
    topic, source, interested = question.topic, question.source_domain, question.interested_domain
    by_domain = {portal.domain_id: portal for portal in config.portals}
    if source == interested:
        reason = "both domains are one: nothing has to cross a DRO"
        return ExplainRecord(topic, source, interested, NOT_HERE, reason)
    away = [domain for domain in (source, interested) if domain not in by_domain]
    if away:
        known = ", ".join(f"{domain} ({portal.name})" for domain, portal in sorted(by_domain.items()))
        absent = " and ".join(map(str, away))
        reason = f"no endpoint of this DRO is in domain {absent}; it has {known}"
        return ExplainRecord(topic, source, interested, NOT_HERE, reason)
    ingress, egress = by_domain[source], by_domain[interested]
    inbound, missing = _inbound(ingress, question)
    verdicts = (
        inbound,
        _permission(ingress, INBOUND, topic),
        _record(egress.name, OUTBOUND, Acl.of(egress.acl).outbound(topic)),
        _permission(egress, OUTBOUND, topic),
    )
    told = tuple(verdict for verdict in verdicts if verdict is not None)
    verdict, reason = _whole(told)
    return ExplainRecord(
        topic, source, interested, verdict, reason, ingress.name, egress.name, ingress.cost + egress.cost, told,
        (*_options(ingress, topic, is_source=False), *_options(egress, topic, is_source=True)),
        missing if verdict == DEPENDS else (),
        tuple(f"{p.name} is {states[p.name]}" for p in (ingress, egress) if states and p.name in states),
    )  # fmt: skip


def _whole(verdicts: tuple[VerdictRecord, ...]) -> tuple[str, str]:
    """One that rejects decides; then one that depends."""
    for wanted in (REJECTED, DEPENDS):
        for one in verdicts:
            if one.verdict == wanted:
                return wanted, f"{one.direction} of {one.portal}: {one.reason}"
    return FORWARDED, "when there is a source there and interest here"


def _inbound(portal: EndpointConfig, question: Question) -> tuple[VerdictRecord, tuple[str, ...]]:
    acl = Acl.of(portal.acl)
    open_verdict = acl.inbound(question.topic, None)
    if not open_verdict.needs_session:
        return _record(portal.name, INBOUND, open_verdict), ()
    if question.transport is None:
        return _record(portal.name, INBOUND, open_verdict), ("transport",)
    given = question.given or {}
    asked = _asked(portal.acl, question.transport)
    missing = tuple(kind for kind in asked if kind not in given)
    if missing:
        return _record(portal.name, INBOUND, open_verdict), missing
    return _record(portal.name, INBOUND, acl.inbound(question.topic, _session(question.transport, given))), ()


def _asked(acl: AclConfig | None, transport: SessionTransport) -> list[str]:
    """Conditions of the inbound list that sessions of this transport have, but for the transport itself."""
    entries = acl.inbound if acl is not None and acl.inbound is not None else ()
    kinds = dict.fromkeys(condition.kind for entry in entries for condition in entry.conditions)
    return [kind for kind in kinds if kind in SESSION_PARTS and applies(kind, transport)]


def _session(transport: SessionTransport, given: Mapping[str, int]) -> Session:
    return Session(transport, **{SESSION_PARTS[kind]: value for kind, value in given.items()})


def _record(portal: str, direction: str, verdict: Verdict) -> VerdictRecord:
    decided = DEPENDS if verdict.needs_session else FORWARDED if verdict.accept else REJECTED
    return VerdictRecord(portal, direction, decided, verdict.reason, verdict.ace, verdict.file, verdict.line)


def _permission(portal: EndpointConfig, direction: str, topic: str) -> VerdictRecord | None:
    """What the rules of UM XML files say about the proxy; None when they permit it."""
    try:
        _of_proxy(portal, topic, is_source=direction == OUTBOUND)
    except ConfigError as e:
        return VerdictRecord(portal.name, direction, REJECTED, f"UM options: {e.what}", 0, e.file, e.line)
    return None


def _of_proxy(portal: EndpointConfig, topic: str, *, is_source: bool) -> UmOptions:
    """Raises: ConfigError when the UM options do not permit the proxy."""
    return portal.sending.source(topic) if is_source else portal.receiving.receiver(topic)


def _options(portal: EndpointConfig, topic: str, *, is_source: bool) -> list[OptionRecord]:
    """What is set for the proxy: options of its context and its own, without those that mean nothing to a DRO."""
    try:
        options = _of_proxy(portal, topic, is_source=is_source)
    except ConfigError:
        return []
    scope = proxy = "source" if is_source else "receiver"
    found = []
    for key, value in sorted(options.explicit.items()):
        option = option_table()[key]
        if key[0] in ("context", scope) and option.relevance == "yes" and not option.sets_also:
            origin = options.origin(key)
            found.append(OptionRecord(portal.name, proxy, " ".join(key), um_text(key, value), origin))
    return found

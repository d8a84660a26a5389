"""How a configuration treats a topic from one domain to another: portals, access control lists, UM options.

Static: the network is not queried for sources or receivers. Pure; called in a forked child of the parent, or by
`tnwgdctl` for a file.

Source: DRO guide, 4.2.3; forwarding notes, section 15.2: the inbound list applies to sources and interest at the portal
where a topic enters, the outbound list at the portal where it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import Final, get_args

from dro.config.change.um_difference import um_text
from dro.config.dro_xml.acl import Acl, Session, SessionTransport, Verdict, applies
from dro.config.dro_xml.elements_acl import NUMBER_KINDS, SESSION_KINDS
from dro.config.dro_xml.model import AclConfig, DroConfig, EndpointConfig, PeerConfig
from dro.config.reading.schema import UINT32_MAX
from dro.config.um.options import option_table
from dro.errors import ConfigError, RefusedError
from supervisor.admin.explanation import (
    ACCEPTED,
    DEPENDS,
    INBOUND,
    NOT_HERE,
    OUTBOUND,
    REJECTED,
    ExplainRecord,
    OptionRecord,
    VerdictRecord,
)
from supervisor.admin.server import Arguments

TRANSPORTS: Final[tuple[SessionTransport, ...]] = tuple(
    transport for transport in get_args(SessionTransport) if transport != "other"
)
SESSION_PARTS: Final = {kind: kind.replace("-", "_") for kind in SESSION_KINDS if kind != "transport"}
"""What a session may be asked for, with the field of `Session` that has it."""


@dataclass(frozen=True, slots=True)
class ExplainQuery:
    """`given` are the parts of the transport session that are known, by the name of their condition."""

    topic: str
    source_domain: int
    interested_domain: int
    transport: SessionTransport | None = None
    given: Mapping[str, int] | None = None
    ingress: str = ""  # portals that the path takes, if it is known
    egress: str = ""


def explain(config: DroConfig, question: ExplainQuery, states: Mapping[str, str] | None = None) -> ExplainRecord:
    """`states` are those of the portals of a running DRO, by name."""
    topic, source, interested = question.topic, question.source_domain, question.interested_domain
    by_domain = {portal.domain_id: portal for portal in config.portals}
    if source == interested:
        reason = "both domains are one: nothing has to cross a DRO"
        return ExplainRecord(topic, source, interested, NOT_HERE, reason)
    by_name = {portal.name: portal for portal in config.all_portals}
    if question.ingress in by_name and question.egress in by_name:
        return _between(by_name[question.ingress], by_name[question.egress], question, states or {})
    away = [domain for domain in (source, interested) if domain not in by_domain]
    if away:
        known = ", ".join(f"{domain} ({portal.name})" for domain, portal in sorted(by_domain.items()))
        absent = " and ".join(map(str, away))
        reason = f"no endpoint of this DRO is in domain {absent}; it has {known}"
        return ExplainRecord(topic, source, interested, NOT_HERE, reason)
    return _between(by_domain[source], by_domain[interested], question, states or {})


def _between(
    ingress: EndpointConfig | PeerConfig,
    egress: EndpointConfig | PeerConfig,
    question: ExplainQuery,
    states: Mapping[str, str],
) -> ExplainRecord:
    topic = question.topic
    inbound, missing = _inbound(ingress, question)
    outbound = _record(egress.name, OUTBOUND, Acl.of(egress.acl).outbound(topic))
    into, receiver_options = _proxy(ingress, topic, is_source=False)
    out_of, source_options = _proxy(egress, topic, is_source=True)
    verdicts = (inbound, *into, outbound, *out_of)
    verdict, reason = _whole(verdicts)
    return ExplainRecord(
        topic, question.source_domain, question.interested_domain, verdict, reason,
        ingress.name, egress.name, ingress.cost + egress.cost, verdicts,
        (*receiver_options, *source_options),
        missing if verdict == DEPENDS else (),
        tuple(f"{p.name} is {states[p.name]}" for p in (ingress, egress) if p.name in states),
    )  # fmt: skip


def _whole(verdicts: tuple[VerdictRecord, ...]) -> tuple[str, str]:
    """Sum up the verdicts: one that rejects decides; then one that depends."""
    for wanted in (REJECTED, DEPENDS):
        for one in verdicts:
            if one.verdict == wanted:
                return wanted, f"{one.direction} of {one.portal}: {one.reason}"
    return ACCEPTED, "when there is a source there and interest here"


def _inbound(portal: EndpointConfig | PeerConfig, question: ExplainQuery) -> tuple[VerdictRecord, tuple[str, ...]]:
    """Find what its list says, and the conditions that have to be known for more."""
    acl, given = Acl.of(portal.acl), question.given or {}
    missing: tuple[str, ...] = ("transport",)
    verdict = acl.inbound(question.topic, None)
    if not verdict.needs_session:
        missing = ()
    elif question.transport is not None:
        missing = tuple(kind for kind in _asked(portal.acl, question.transport) if kind not in given)
        if not missing:
            session = Session(question.transport, **{SESSION_PARTS[kind]: value for kind, value in given.items()})
            verdict = acl.inbound(question.topic, session)
    return _record(portal.name, INBOUND, verdict), missing


def _asked(acl: AclConfig | None, transport: SessionTransport) -> list[str]:
    """List conditions of the inbound list that sessions of this transport have, but for the transport itself."""
    entries = acl.inbound if acl is not None and acl.inbound is not None else ()
    kinds = dict.fromkeys(condition.kind for entry in entries for condition in entry.conditions)
    return [kind for kind in kinds if kind in SESSION_PARTS and applies(kind, transport)]


def _record(portal: str, direction: str, verdict: Verdict) -> VerdictRecord:
    decided = DEPENDS if verdict.needs_session else ACCEPTED if verdict.accept else REJECTED
    return VerdictRecord(portal, direction, decided, verdict.reason, verdict.ace, verdict.file, verdict.line)


def _proxy(
    portal: EndpointConfig | PeerConfig, topic: str, *, is_source: bool
) -> tuple[list[VerdictRecord], list[OptionRecord]]:
    """Find what the rules of UM XML files say, if they do not permit the proxy, and else the options set for it:
    those of its context and its own, without those that mean nothing to a DRO."""
    if isinstance(portal, PeerConfig):  # its proxies are numbers on the link
        return [], []
    try:
        options = portal.sending.source(topic) if is_source else portal.receiving.receiver(topic)
    except ConfigError as e:
        what, direction = f"UM options: {e.what}", OUTBOUND if is_source else INBOUND
        return [VerdictRecord(portal.name, direction, REJECTED, what, 0, e.file, e.line)], []
    scope = proxy = "source" if is_source else "receiver"
    found = []
    for key, value in sorted(options.explicit.items()):
        option = option_table()[key]
        if key[0] in ("context", scope) and option.relevance == "yes" and not option.sets_also:
            origin = options.origin(key)
            found.append(OptionRecord(portal.name, proxy, " ".join(key), um_text(key, value), origin))
    return [], found


# from the arguments of a request


def query_of(arguments: Arguments) -> ExplainQuery:
    """The query of an `explain` request. Raises: RefusedError."""
    topic = arguments.text("topic")
    source, interested = (_integer(arguments, name, None, UINT32_MAX) for name in ("from_domain", "to_domain"))
    ingress, egress = arguments.text("ingress", ""), arguments.text("egress", "")
    written = arguments.text("transport", "")
    transport = next((known for known in TRANSPORTS if known == written), None)
    if written and transport is None:
        raise RefusedError(f"there is no transport {written[:40]!r}", remedy=f"write one of {', '.join(TRANSPORTS)}")
    given: dict[str, int] = {}
    for kind in SESSION_PARTS:
        if kind in NUMBER_KINDS:
            number = _integer(arguments, kind, -1, 65535)
            if number >= 0:
                given[kind] = number
        elif address := arguments.text(kind, ""):
            given[kind] = _address(kind, address)
    arguments.done()
    if given and transport is None:
        raise RefusedError(f"{next(iter(given))} needs the transport", remedy=f"name one of {', '.join(TRANSPORTS)}")
    return ExplainQuery(topic, source, interested, transport, given, ingress, egress)


def _integer(arguments: Arguments, name: str, default: int | None, maximum: int) -> int:
    """Read a whole number. Raises: RefusedError."""
    number = arguments.number(name, default, minimum=1 if default is None else default, maximum=maximum)
    if number != int(number):
        raise RefusedError(f"{name!r} has to be a whole number")
    return int(number)


def _address(kind: str, text: str) -> int:
    try:
        return int(IPv4Address(text))
    except AddressValueError as e:
        raise RefusedError(f"{kind}: {text[:40]!r} is not an IPv4 address", remedy="write it as in 192.0.2.1") from e

"""Context information as a TRD carries it (LBMR), and as portals and DROs do (the LBMC block CTXINFO).

Source: wire notes LBMR, 8.2 and 8.6; wire notes LBMC, CTXINFO. Guess: a name that is too long for the block is as none.
"""

from __future__ import annotations

from typing import Final

from dro.wire.lbmc.dro_blocks import (
    CTXINFO_ADDRESS,
    CTXINFO_CTXINST,
    CTXINFO_NAME,
    CTXINFO_NAME_MAX,
    CTXINFO_PROXY,
    CTXINFO_QUERY,
    CtxInfo,
)
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.extended import (
    ContextFlag,
    RemoteAddress,
    RemoteContextOption,
    RemoteContextRecord,
    RemoteInstance,
    RemoteName,
)

_REMOTE_QUERY: Final = 0x8000
_FLAGS: Final = (
    (ContextFlag.QUERY, CTXINFO_QUERY),
    (ContextFlag.ADDRESS, CTXINFO_ADDRESS),
    (ContextFlag.INSTANCE, CTXINFO_CTXINST),
    (ContextFlag.PROXY, CTXINFO_PROXY),
)


def info_of(body: lbmr.ContextInfo, domain_id: int) -> CtxInfo | None:
    """Return what a context of the TRD says or asks; None for an answer for another, whose domain it cannot say."""
    if body.flags & ContextFlag.PROXY and not body.flags & ContextFlag.QUERY:
        return None
    name = _carried(body.name)
    flags = sum(there for here, there in _FLAGS if body.flags & here) | (CTXINFO_NAME if name else 0)
    return CtxInfo(body.address, body.port, domain_id, body.instance, body.hop_count, name=name, flags=flags)


def _carried(name: bytes | None) -> bytes:
    return name if name is not None and len(name) <= CTXINFO_NAME_MAX else b""


def infos_of_remote(body: lbmr.RemoteContextInfo) -> list[CtxInfo]:
    """The records about contexts of any TRD."""
    return [_of_record(record) for record in body.records]


def _of_record(record: RemoteContextRecord) -> CtxInfo:
    flags = CTXINFO_QUERY if record.flags & _REMOTE_QUERY else 0
    ip = port = domain_id = 0
    instance, name = bytes(8), b""
    for option in record.options:
        if isinstance(option, RemoteAddress):
            ip, port, domain_id = option.ip, option.port, option.domain_id
            flags |= CTXINFO_ADDRESS
        elif isinstance(option, RemoteInstance):
            instance = option.instance
            flags |= CTXINFO_CTXINST
        elif isinstance(option, RemoteName):
            name = _carried(option.name) or name
    flags |= CTXINFO_NAME if name else 0
    return CtxInfo(ip, port, domain_id, instance, name=name, flags=flags)


def question_packet(info: CtxInfo) -> lbmr.ContextInfo:
    """A question for the TRD."""
    flags = ContextFlag.QUERY | ContextFlag.PROXY | (ContextFlag.INSTANCE if info.flags & CTXINFO_CTXINST else 0)
    return lbmr.ContextInfo(info.hop_count, flags, 0, 0, info.ctxinst, info.name or None)


def remote_packet(info: CtxInfo) -> lbmr.RemoteContextInfo:
    """An answer for the TRD, about a context of another."""
    items: list[RemoteContextOption] = [
        RemoteAddress(info.domain_id, info.ip, info.port),
        RemoteInstance(info.ctxinst),
    ]
    if info.name:
        items.append(RemoteName(info.name))
    return lbmr.RemoteContextInfo((RemoteContextRecord(tuple(items)),))

"""Names, forms and flag bits of the LBMR fields that the dissector shows.

Names are those of the standard dissector, tables follow the order of the wire. Source: wire notes LBMR; the vectors
for names and printed forms. One name is odd there and kept: the queue of option 0x06 (A25).
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

Spec: TypeAlias = str
"""Fields in wire order as `name:form`, the form being u/x/i with a size in bytes for decimal, hex and signed, `ip`, `b`
and a size for bytes, `z` for a NUL-terminated name, `*` for a counted name that fills the rest, `B*` for bytes that do,
and a size alone for bytes that are not shown."""


@cache
def pairs(text: str, separator: str = ":") -> tuple[tuple[str, str], ...]:
    """The fields of a `Spec`, or by `=` the names and masks of `BITS`."""
    return tuple((name, form) for name, _, form in (word.partition(separator) for word in text.split()))


# the bits of a field that are shown, with their masks in hex
BITS: Final = {
    "lbmr.topt.ume.flags": "latejoin=4000 store=2000 qccap=1000 acktosrc=800",
    "lbmr.topt.latejoin.flags": "acktosrc=4000",
    "lbmr.topt.umq_qinfo.flags": "queue=4000 rcvlisten=2000 control=1000 srcrcvlisten=800 participants_only=400",
    "lbmr.topt.exfunc.functionality_flags": "ulb=8 umq=4 ume=2 lj=1",
    "lbmr.opt.version.flags": "ume=1 umq=2",
    "lbmr.tmb.tmr.flags": "response=80 wildcard_pcre=40 wildcard_regex=20",
    "lbmr.pser.flags": "option=8000",
    "lbmr.qmgmt.flags": "i_flag=80 n_flag=40",
    "lbmr.qmgmt.il_inst.flags": "m_flag=8000 q_flag=4000 p_flag=2000",
    "lbmr.ctxinfo.flags": "query=8000 ip=4000 instance=2000 tnwg_src=1000 tnwg_rcv=800 proxy=400 name=1",
    "lbmr.topic_res_request.flags": "gw_remote_interest=40 context_query=20 context_advertisement=10 gateway_meta=8"
    " advertisement=4 query=2 wildcard_query=1",
    "lbmr.tnwg.interest_rec.flags": "pattern=80 cancel=40 refresh=20",
    "lbmr.tnwg.ctxinfo.flags1": "query=80000000 tnwg_src=40000000 tnwg_rcv=20000000 proxy=10000000",
    "lbmr.rctxinfo.rec.flags": "query=8000",
}

# Options: code -> (part of the name, fields after code and length). `flags` shows its ignore bit by itself.
OptionSpecs: TypeAlias = dict[int, tuple[str, Spec]]

TOPT: Final[OptionSpecs] = {
    0x00: ("len", "total_len:u2"),
    0x01: (
        "ume",
        "flags:x2 store_tcp_port:u2 src_tcp_port:u2 store_tcp_addr:ip src_tcp_addr:ip src_reg_id:u4 transport_idx:u4"
        " high_seqnum:u4 low_seqnum:u4",
    ),
    0x02: ("ume_store", "flags:x1 grp_idx:u1 store_tcp_port:u2 store_idx:u2 store_ip_addr:ip src_reg_id:u4"),
    0x03: ("ume_store_group", "flags:x1 grp_idx:u1 grp_sz:u2 reserved:x2"),
    0x04: (
        "latejoin",
        "flags:x2 src_tcp_port:u2 reserved:x2 src_ip_addr:ip transport_idx:u4 high_seqnum:u4 low_seqnum:u4",
    ),
    0x05: ("umq_rcridx", "flags:x2 rcr_idx:x4"),
    0x06: ("umq_qinfo", "flags:x2 /lbmr.topt.ume_qinfo.queue:*"),
    0x07: ("cost", "flags:x1 hop_count:u1 cost:i4"),
    0x08: ("otid", "flags:x2 originating_transport:b32"),
    0x09: ("ctxinst", "flags:x1 res:x1 ctxinst:b8"),
    0x0A: ("ctxinsts", "flags:x1 idx:u1 ctxinsts:b8"),
    0x0B: ("ulb", "flags:x2 queue_id:x4 regid:x8 ulb_src_id:x4 src_ip_addr:ip src_tcp_port:u2 reserved:x2"),
    0x0C: ("ctxinstq", "flags:x1 idx:u1 ctxinstq:b8"),
    0x0D: ("domain_id", ":2 domain_id:u4"),
    0x0E: ("exfunc", "flags:x2 src_tcp_port:u2 reserved:x2 src_ip_addr:ip functionality_flags:x4"),
}
TOPT_UNKNOWN: Final = ("unknown", "flags:x1 data:B*")

PACKET: Final[OptionSpecs] = {
    0x80: ("len", "total_len:u2"),
    0x81: ("src_id", "flags:x2 src_id:b8"),
    0x82: ("src_type", "flags:x1 src_type:u1"),
    0x83: ("version", "flags:x2 version:u4"),
    0x84: ("local_domain", "flags:x2 local_domain_id:u4"),
}
PACKET_UNKNOWN: Final = ("unknown", "flags:x2 data:B*")

TNWG: Final[OptionSpecs] = {
    0x00: ("_ctxinst", "flags:x2 instance:b8"),
    0x01: ("_address", "flags:x2 port:u2 res:x2 ip:ip"),
    0x02: ("_domain", "flags:x2 domain_id:u4"),
    0x03: ("_name", "flags:x2 name:*"),
}
TNWG_UNKNOWN: Final = ("", "flags:x2 data:B*")

REMOTE: Final[OptionSpecs] = {
    0x01: ("address", "flags:x2 domain_id:u4 ip:ip port:u2 res:x2"),
    0x02: ("instance", "flags:x2 instance:b8"),
    0x03: ("odomain", "flags:x2 domain_id:u4"),
    0x04: ("name", "flags:x2 name:*"),
}
REMOTE_UNKNOWN: Final = ("unknown", "flags:x2 data:B*")

TRANSPORTS: Final[dict[tuple[int, int], Spec]] = {
    (0x00, 6): "tcp.ip:ip tcp.port:u2",
    (0x00, 10): "tcp.ip:ip tcp.session_id:x4 tcp.port:u2",
    (0x01, 6): "lbtru.ip:ip lbtru.port:u2",
    (0x01, 10): "lbtru.ip:ip lbtru.session_id:u4 lbtru.port:u2",
    (0x04, 10): "lbtsmx.host_id:x4 lbtsmx.session_id:x4 lbtsmx.xport_id:x2",
    (0x10, 16): "lbtrm.srcip:ip lbtrm.mcastip:ip lbtrm.sessid:x4 lbtrm.dport:u2 lbtrm.sport:u2",
    (0x20, 10): "lbtrdma.ip:ip lbtrdma.session_id:x4 lbtrdma.port:u2",
    (0x40, 10): "lbtipc.host_id:x4 lbtipc.session_id:x4 lbtipc.xport_id:x2",
}

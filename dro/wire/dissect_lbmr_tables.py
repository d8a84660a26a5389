"""Names, forms and flag bits of the LBMR fields that the dissector shows.

Names are those of the standard dissector, tables follow the order of the wire. Source: wire notes LBMR; the vectors
for names and printed forms. One name is odd there and kept: the queue of option 0x06 (A25).
"""

from __future__ import annotations

from typing import Final, TypeAlias

Spec: TypeAlias = tuple[tuple[str, str], ...]
"""Fields in wire order: name, and form: u/x/i with a size in bytes for decimal, hex and signed, `ip`, `b` and a size
for bytes, `z` for a NUL-terminated name, `*` for a counted name that fills the rest, `B*` for bytes that do."""

BITS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "lbmr.topt.ume.flags": (("latejoin", 0x4000), ("store", 0x2000), ("qccap", 0x1000), ("acktosrc", 0x0800)),
    "lbmr.topt.latejoin.flags": (("acktosrc", 0x4000),),
    "lbmr.topt.umq_qinfo.flags": (
        ("queue", 0x4000),
        ("rcvlisten", 0x2000),
        ("control", 0x1000),
        ("srcrcvlisten", 0x0800),
        ("participants_only", 0x0400),
    ),
    "lbmr.topt.exfunc.functionality_flags": (("ulb", 8), ("umq", 4), ("ume", 2), ("lj", 1)),
    "lbmr.opt.version.flags": (("ume", 1), ("umq", 2)),
    "lbmr.tmb.tmr.flags": (("response", 0x80), ("wildcard_pcre", 0x40), ("wildcard_regex", 0x20)),
    "lbmr.pser.flags": (("option", 0x8000),),
    "lbmr.qmgmt.flags": (("i_flag", 0x80), ("n_flag", 0x40)),
    "lbmr.qmgmt.il_inst.flags": (("m_flag", 0x8000), ("q_flag", 0x4000), ("p_flag", 0x2000)),
    "lbmr.ctxinfo.flags": (
        ("query", 0x8000),
        ("ip", 0x4000),
        ("instance", 0x2000),
        ("tnwg_src", 0x1000),
        ("tnwg_rcv", 0x0800),
        ("proxy", 0x0400),
        ("name", 0x0001),
    ),
    "lbmr.topic_res_request.flags": (
        ("gw_remote_interest", 0x40),
        ("context_query", 0x20),
        ("context_advertisement", 0x10),
        ("gateway_meta", 0x08),
        ("advertisement", 0x04),
        ("query", 0x02),
        ("wildcard_query", 0x01),
    ),
    "lbmr.tnwg.interest_rec.flags": (("pattern", 0x80), ("cancel", 0x40), ("refresh", 0x20)),
    "lbmr.tnwg.ctxinfo.flags1": (
        ("query", 0x80000000),
        ("tnwg_src", 0x40000000),
        ("tnwg_rcv", 0x20000000),
        ("proxy", 0x10000000),
    ),
    "lbmr.rctxinfo.rec.flags": (("query", 0x8000),),
}

# Options: code -> (part of the name, fields after code and length). `flags` shows its ignore bit by itself.
OptionSpecs: TypeAlias = dict[int, tuple[str, Spec]]

INSTANCE: Final = ("flags", "x1"), ("idx", "u1")
TOPT: Final[OptionSpecs] = {
    0x00: ("len", (("total_len", "u2"),)),
    0x01: (
        "ume",
        (
            ("flags", "x2"),
            ("store_tcp_port", "u2"),
            ("src_tcp_port", "u2"),
            ("store_tcp_addr", "ip"),
            ("src_tcp_addr", "ip"),
            ("src_reg_id", "u4"),
            ("transport_idx", "u4"),
            ("high_seqnum", "u4"),
            ("low_seqnum", "u4"),
        ),
    ),
    0x02: (
        "ume_store",
        (
            ("flags", "x1"),
            ("grp_idx", "u1"),
            ("store_tcp_port", "u2"),
            ("store_idx", "u2"),
            ("store_ip_addr", "ip"),
            ("src_reg_id", "u4"),
        ),
    ),
    0x03: ("ume_store_group", (("flags", "x1"), ("grp_idx", "u1"), ("grp_sz", "u2"), ("reserved", "x2"))),
    0x04: (
        "latejoin",
        (
            ("flags", "x2"),
            ("src_tcp_port", "u2"),
            ("reserved", "x2"),
            ("src_ip_addr", "ip"),
            ("transport_idx", "u4"),
            ("high_seqnum", "u4"),
            ("low_seqnum", "u4"),
        ),
    ),
    0x05: ("umq_rcridx", (("flags", "x2"), ("rcr_idx", "x4"))),
    0x06: ("umq_qinfo", (("flags", "x2"), ("/lbmr.topt.ume_qinfo.queue", "*"))),
    0x07: ("cost", (("flags", "x1"), ("hop_count", "u1"), ("cost", "i4"))),
    0x08: ("otid", (("flags", "x2"), ("originating_transport", "b32"))),
    0x09: ("ctxinst", (("flags", "x1"), ("res", "x1"), ("ctxinst", "b8"))),
    0x0A: ("ctxinsts", (*INSTANCE, ("ctxinsts", "b8"))),
    0x0B: (
        "ulb",
        (
            ("flags", "x2"),
            ("queue_id", "x4"),
            ("regid", "x8"),
            ("ulb_src_id", "x4"),
            ("src_ip_addr", "ip"),
            ("src_tcp_port", "u2"),
            ("reserved", "x2"),
        ),
    ),
    0x0C: ("ctxinstq", (*INSTANCE, ("ctxinstq", "b8"))),
    0x0D: ("domain_id", (("", "2"), ("domain_id", "u4"))),
    0x0E: (
        "exfunc",
        (
            ("flags", "x2"),
            ("src_tcp_port", "u2"),
            ("reserved", "x2"),
            ("src_ip_addr", "ip"),
            ("functionality_flags", "x4"),
        ),
    ),
}
TOPT_UNKNOWN: Final = ("unknown", (("flags", "x1"), ("data", "B*")))

PACKET: Final[OptionSpecs] = {
    0x80: ("len", (("total_len", "u2"),)),
    0x81: ("src_id", (("flags", "x2"), ("src_id", "b8"))),
    0x82: ("src_type", (("flags", "x1"), ("src_type", "u1"))),
    0x83: ("version", (("flags", "x2"), ("version", "u4"))),
    0x84: ("local_domain", (("flags", "x2"), ("local_domain_id", "u4"))),
}
PACKET_UNKNOWN: Final = ("unknown", (("flags", "x2"), ("data", "B*")))

TNWG: Final[OptionSpecs] = {
    0x00: ("_ctxinst", (("flags", "x2"), ("instance", "b8"))),
    0x01: ("_address", (("flags", "x2"), ("port", "u2"), ("res", "x2"), ("ip", "ip"))),
    0x02: ("_domain", (("flags", "x2"), ("domain_id", "u4"))),
    0x03: ("_name", (("flags", "x2"), ("name", "*"))),
}
TNWG_UNKNOWN: Final = ("", (("flags", "x2"), ("data", "B*")))

REMOTE: Final[OptionSpecs] = {
    0x01: ("address", (("flags", "x2"), ("domain_id", "u4"), ("ip", "ip"), ("port", "u2"), ("res", "x2"))),
    0x02: ("instance", (("flags", "x2"), ("instance", "b8"))),
    0x03: ("odomain", (("flags", "x2"), ("domain_id", "u4"))),
    0x04: ("name", (("flags", "x2"), ("name", "*"))),
}
REMOTE_UNKNOWN: Final = ("unknown", (("flags", "x2"), ("data", "B*")))

TRANSPORTS: Final[dict[tuple[int, int], Spec]] = {
    (0x00, 6): (("tcp.ip", "ip"), ("tcp.port", "u2")),
    (0x00, 10): (("tcp.ip", "ip"), ("tcp.session_id", "x4"), ("tcp.port", "u2")),
    (0x01, 6): (("lbtru.ip", "ip"), ("lbtru.port", "u2")),
    (0x01, 10): (("lbtru.ip", "ip"), ("lbtru.session_id", "u4"), ("lbtru.port", "u2")),
    (0x04, 10): (("lbtsmx.host_id", "x4"), ("lbtsmx.session_id", "x4"), ("lbtsmx.xport_id", "x2")),
    (0x10, 16): (
        ("lbtrm.srcip", "ip"),
        ("lbtrm.mcastip", "ip"),
        ("lbtrm.sessid", "x4"),
        ("lbtrm.dport", "u2"),
        ("lbtrm.sport", "u2"),
    ),
    (0x20, 10): (("lbtrdma.ip", "ip"), ("lbtrdma.session_id", "x4"), ("lbtrdma.port", "u2")),
    (0x40, 10): (("lbtipc.host_id", "x4"), ("lbtipc.session_id", "x4"), ("lbtipc.xport_id", "x2")),
}

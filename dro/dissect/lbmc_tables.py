"""Field names and printed forms of all LBMC blocks, in the notation of `spec`.

`BLOCKS` has one line per block code, for the fields from the third byte on (successor and length are the same
everywhere). `VARIANTS` adds what depends on a type byte. Blocks with lists or optional parts have their fixed fields
here and the rest in `lbmc`.
"""

from __future__ import annotations

from typing import Final

from dro.dissect.spec import Layout, compile_spec
from dro.wire.lbmc.codes import BlockType

_F16: Final = "flags:x2[ignore=8000]"
_F8: Final = "flags:x1[ignore=80]"
_CTXINST: Final = "flags:x2[^ctxinst_flags.ignore=8000] ctxinst:b8"
_UMQ_HEAD: Final = "queue_id:x4 cmd_id:x2 inst_idx:x2 regid:d8"

_PREG_RESP_REST: Final = (
    "_:x1[s_flag=80,marker=7f:d] reg_id:d4 transport_idx:d4 topic_idx:d4 low_seqnum:d4 high_seqnum:d4"
)

# code: field prefix and fields
_BLOCK_SPECS: Final[dict[int, str]] = {
    BlockType.FRAG: f"frag {_F16} first_sqn:d4 offset:d4 len:d4",
    BlockType.BATCH: "batch flags:x2[ignore=8000,batch_start=2,batch_end=1]",
    BlockType.REQUEST: "tcp_request flags:x1[^tcp_request_flags.ignore=80] transport:x1 qidx:d4 port:d2 reserved:d2"
    " ipaddr:ip",
    BlockType.TOPICNAME: f"topicname {_F16} topic:s*",
    BlockType.APPHDR: "apphdr _:x2[ignore=8000,code=7fff:d]",
    BlockType.APPHDR_CHAIN: "apphdr_chain res:x1 first_chain_hdr:x1",
    BlockType.UMQ_MSGID: f"umq_msgid {_F16} msgid_regid:x8 msgid_stamp:x8",
    BlockType.UMQ_SQD_RCV: "umq_sqd_rcv"
    " flags:x2[ignore=8000,r_flag=4000,s_flag=2000,re_flag=800,eoi_flag=100,boi_flag=200] queue_id:x4 queue_ver:x4"
    " rcr_idx:x4 assign_id:x4",
    BlockType.UMQ_RESUB: "umq_resub flags:x2[ignore=8000,q_flag=4000] rcr_idx:x4 resp_ip:ip resp_port:d2 appset_idx:x2",
    BlockType.OTID: f"otid {_F16} otid:b32",
    BlockType.CTXINSTD: f"ctxinst {_CTXINST}",
    BlockType.CTXINSTR: f"ctxinst {_CTXINST}",
    BlockType.SRCIDX: f"srcidx {_F16} srcidx:x8",
    BlockType.UMQ_ULB_MSG: "umq_ulb_msg flags:x2[ignore=8000,a=4000,r=2000] queue_id:x4 ulb_src_id:x4 assign_id:x4"
    " appset_idx:x2 num_ras:x2",
    BlockType.SSF_INIT: "ssf_init flags:x1[ignore=80,default_exclusions=20,default_inclusions=40] transport:d1"
    " transport_idx:d4 client_idx:d4 ssf_port:d2 res:d2 ssf_ip:ip",
    BlockType.SSF_CREQ: f"ssf_creq {_F8} mode:x1 transport_idx:d4 topic_idx:d4 client_idx:d4",
    BlockType.UME_PREG: "ume_preg flags:x1[ignore=80,f_flag=40,p_flag=20,w_flag=10,d_flag=8]"
    " _:x1[s_flag=80,marker=7f:d] reg_id:d4 transport_idx:d4 topic_idx:d4 src_reg_id:d4 resp_port:d2 res2:x2"
    " resp_ip:ip",
    BlockType.UME_PREG_RESP: "ume_preg_resp code:x1[ignore=80,o_flag=40,e_flag=20,n_flag=10,w_flag=2,d_flag=1]"
    f" {_PREG_RESP_REST}",
    BlockType.UME_ACK: "ume_ack flags:x1[ignore=80,o_flag=40,f_flag=20,u_flag=10,e_flag=8] type:x1 transport_idx:d4"
    " id_2:d4 rcv_reg_id:d4 seqnum:d4",
    BlockType.UME_RXREQ: "ume_rxreq flags:x2[ignore=8000,t=4000] @2 _:x2[marker=ff:x4] request_idx:d4 transport_idx:d4"
    " id_2:d4 seqnum:d4 rx_port:d2 res:x2 rx_ip:ip",
    BlockType.UME_KEEPALIVE: "ume_keepalive flags:x1[ignore=80,r_flag=40,t_flag=20] type:x1 transport_idx:d4"
    " topic_idx:d4 reg_id:d4",
    BlockType.UME_STOREID: "ume_storeid _:x2[ignore=8000,store_id=7fff:d]",
    BlockType.UME_RANGED_ACK: f"ume_ranged_ack {_F16} first_seqnum:d4 last_seqnum:d4",
    BlockType.UME_ACK_ID: f"ume_ack_id {_F16} id:d4",
    BlockType.UME_CAPABILITY: "ume_capability flags:x2[ignore=8000,qc_flag=4000,client_lifetime_flag=2000]",
    BlockType.UME_PROXY_SRC: "ume_proxy_src flags:x2[ignore=8000,enable=4000,compatibility=2000]",
    BlockType.UME_STORE_GROUP: f"ume_store_group {_F16} @3 grp_idx:d1 grp_sz:d2 res1:x2",
    BlockType.UME_STORE_INFO: f"ume_store {_F16} @3 grp_idx:d1 store_tcp_port:d2 store_idx:x2 store_ip_addr:ip"
    " src_reg_id:d4",
    BlockType.UME_LJ_INFO: f"ume_lj_info {_F16} low_seqnum:d4 high_seqnum:d4 qidx:d4",
    BlockType.TSNI: "tsni _:x2[ignore=8000,num_recs=7fff:d]",
    BlockType.UMQ_REG: "umq_reg flags:x1[ignore=80,r_flag=40,t_flag=20,i_flag=10,msg_sel_flag=8] reg_type:d1"
    f" {_UMQ_HEAD}",
    BlockType.UMQ_REG_RESP: f"umq_reg_resp flags:x1[ignore=80,r=40] resp_type:d1 {_UMQ_HEAD}",
    BlockType.UMQ_ACK: "umq_ack msgs:x1[ignore=80,t_flag=40,d_flag=20] @2 _:x1[num_ids=f:d] ack_type:d1",
    BlockType.UMQ_RCR: "umq_rcr flags:x2[ignore=8000,r_flag=4000,d_flag=2000,s_flag=1000,eoi_flag=200,boi_flag=100]"
    " queue_id:x4 rcr_idx:x4 msgid_regid:x8 msgid_stamp:x8 topic_tsp:x4 q_tsp:x4 assign_id:x4 appset_idx:x2 num_ras:x2"
    " queue_ver:x4",
    BlockType.UMQ_KA: "umq_ka flags:x1[ignore=80,r=40] ka_type:x1 queue_id:x4 regid:x8 inst_idx:x2 reserved:x2",
    BlockType.UMQ_RXREQ: "umq_rxreq flags:x1[ignore=80,r=40] rxreq_type:x1",
    BlockType.UMQ_QMGMT: "umq_qmgmt ",
    BlockType.UMQ_RESUB_REQ: f"umq_resub_req {_F16} msgid_regid:x8 msgid_stamp:x8 rcr_idx:x4 resp_ip:ip resp_port:d2"
    " appset_idx:x2",
    BlockType.UMQ_RESUB_RESP: f"umq_resub_resp {_F8} code:x1 msgid_regid:x8 msgid_stamp:x8 rcr_idx:x4 resp_ip:x2"
    " appset_idx:x2",
    BlockType.TOPIC_INTEREST: "topic_interest flags:x2[ignore=8000,cancel=4000,refresh=2000] domain_id:d4",
    BlockType.PATTERN_INTEREST: "pattern_interest flags:x1[ignore=80,cancel=40,refresh=20] type:d1 domain_id:d4"
    " index:i8",
    BlockType.ADVERTISEMENT: "advertisement flags:x1[ignore=80,eos=40,pattern=20,change=10,ctxinst=8] @4"
    " ad_flags:x4[lj=80000000,ume=40000000,acktosrc=20000000,queue=10000000,ulb=8000000] @3 hop_count:d1 @8 cost:d4"
    " transport_idx:d4 topic_idx:d4 low_seqno:d4 high_seqno:d4 domain_id:d4 pat_idx:i8 ctxinst:b8",
    BlockType.UME_CTXINSTS: f"ctxinst {_CTXINST}",
    BlockType.UME_STORENAME: f"ume_storename {_F16} store:s*",
    BlockType.UMQ_ULB_RCR: "umq_ulb_rcr flags:x2[ignore=8000,r_flag=4000,d_flag=2000,eoi_flag=200,boi_flag=100]"
    " queue_id:x4 ulb_src_id:x4 msgid_regid:x8 msgid_stamp:x8 topic_tsp:x4 assign_id:x4 appset_idx:x2 num_ras:x2",
    BlockType.UMQ_LF: f"umq_lf {_F8} type:x1 resp_ip:x2 lf:x2",
    BlockType.CTXINFO: "ctxinfo"
    " flags:x2[ignore=8000,query=4000,addr=2000,ctxinst=1000,name=800,tnwgsrc=400,tnwgrcv=200,proxy=100] reserved:x1"
    " hop_count:d1 port:d2 addr:ip domain_id:d4 ctxinst:b8",
    BlockType.UME_PSER: "ume_pser flags:x2[ignore=8000,source_ctxinst=4000,store_ctxinst=2000,reelect=1000]"
    " source_ip:ip store_ip:ip transport_idx:d4 topic_idx:d4 source_port:d2 store_port:d2 source_ctxinst:b8"
    " store_ctxinst:b8",
    BlockType.CTXINST: f"ctxinst {_CTXINST}",
    BlockType.DOMAIN: "domain flags:x2[ignore=8000,active=4000] domain:d4",
    BlockType.TNWG_CAPABILITIES: "tnwg_capabilities flags:x2[ignore=8000,version=7fff:d]"
    " capabilities1:x4[ume=80000000,umq=40000000] capabilities2:x4 capabilities3:x4[pcre=80000000,regex=40000000]"
    " capabilities4:x4",
    BlockType.PATIDX: f"patidx {_F16} patidx:x8",
    BlockType.UME_CLIENT_LIFETIME: f"ume_client_lifetime {_F16} activity_tmo:d4 lifetime:d4 ttl:d4",
    BlockType.UME_SID: f"ume_sid {_F16} sid:d8",
    BlockType.UMQ_IDX_CMD: f"umq_idx_cmd {_F8} cmd_type:d1 queue_id:d4 cmd_id:d2 inst_idx:d2 regid:d8",
    BlockType.UMQ_IDX_CMD_RESP: "umq_idx_cmd_resp flags:x1[ignore=80,ulb=20] resp_type:d1 queue_id:d4 cmd_id:d2"
    " inst_idx:d2 regid:d8",
    BlockType.ODOMAIN: f"odomain {_F16} domain:d4",
    BlockType.STREAM: f"stream {_F16} stream_id:d4 sqn:d4 ctxinst:b8",
    BlockType.TOPIC_MD_INTEREST: "topic_md_interest flags:x2[ignore=8000,cancel=4000,refresh=2000] domain_count:d2"
    " res1:d2",
    BlockType.PATTERN_MD_INTEREST: "pattern_md_interest flags:x1[ignore=80,cancel=40,refresh=20] type:d1"
    " domain_count:d2 res1:d2 index:i8",
    BlockType.LJI_REQ: "lji_req flags:x2[ignore=8000,l_flag=1,m_flag=2,o_flag=4] request_idx:d4 transport_idx:d4"
    " topic_idx:d4 req_ip:ip req_port:d2 res:x2 tx_low_sqn:d4 rx_req_max:d4 rx_req_outstanding_max:d4",
    BlockType.TNWG_KA: "tnwg_ka flags:x2[ignore=8000,q_flag=4000,r_flag=2000] index:d4 ts_seconds:d8"
    " ts_microseconds:d4 reserved_1:x4 reserved_2:x8 reserved_3:x8 reserved_4:x8 reserved_5:x8 reserved_6:x8",
    BlockType.UME_RCV_KEEPALIVE: f"ume_receiver_keepalive {_F16} rcv_regid:d4 session_id:d8 ctxinst:b8",
    BlockType.UMQ_CMD: f"umq_cmd {_F8} cmd_type:d1 queue_id:x4 cmd_id:x2 inst_idx:x2 regid:x8",
    BlockType.UMQ_CMD_RESP: f"umq_cmd_resp {_F8} resp_type:d1 queue_id:x4 cmd_id:x2 inst_idx:x2 regid:x8",
    BlockType.SRI_REQ: f"sri_req {_F16} transport_idx:d4 topic_idx:d4",
    BlockType.UME_STORE_DOMAIN: f"ume_store_domain {_F16} domain:d4",
    BlockType.SRI: "sri flags:x2[ignore=8000,acktosrc=1,initial_sqn_known=2] version:d4 low_sqn:d4 high_sqn:d4",
    BlockType.ROUTE_INFO: f"route_info {_F16} gateway_version:x4 configuration_signature:x4 node_id:x8 topology:x4"
    " vers:d2 sqn:d2 ttl:d1 reserved1:x1 reserved2:x2",
    BlockType.ROUTE_INFO_NEIGHBOR: f"route_info_neighbor {_F16} node_id:x8 ingress_cost:d4 egress_cost:d4",
    BlockType.GATEWAY_NAME: f"gateway_name {_F16} gateway_name:s*",
    BlockType.HMAC: f"hmac {_F8} padding:x1 data:b20",
    BlockType.UMQ_SID: f"umq_sid {_F8} -1 key:x4 sid:x8",
    BlockType.DESTINATION: f"destination {_F16} domain_id:d4 ipaddr:ip port:d2 hops_taken:d2 orig_domain_id:d4"
    " orig_ipaddr:ip orig_port:d2 reserved:x2",
    BlockType.TOPIC_IDX: f"topic_idx {_F8} -1 tidx:d4",
    BlockType.TOPIC_SOURCE: "topic_source flags:x2[ignore=8000,eos=4000] domain_id:d4",
    BlockType.TOPIC_SOURCE_EXFUNC: f"topic_source_exfunc {_F16} src_ip:ip src_port:d2 unused:x2"
    " functionality_flags:x4[lj=1,ume=2,umq=4,ulb=8]",
    BlockType.UME_STORE_INFO_EXT: f"ume_store_ext {_F16} @3 grp_idx:d1 store_tcp_port:d2 store_idx:x2 store_ip_addr:ip"
    " src_reg_id:d4 domain_id:d4 version:d4",
    BlockType.UME_PSRC_ELECTION_TOKEN: f"ume_psrc_election_token {_F16} @3 store_index:d1 token:x4",
    BlockType.TCP_SID: f"tcp_sid {_F16} sid:x4",
    BlockType.EXTOPT: "extopt flags:x1[ignore=80,ignore_subtype=40,more_fragments=20] id:d1 subtype:d2"
    " fragment_offset:d2",
}

# Authentication names its fields by the operation, the fourth byte.
_AUTH_SPECS: Final[dict[int, str]] = {
    1: "auth_request user_len:d1",
    2: "auth_challenge mod_len:d1 gen_len:d1 salt_len:d1 pubkey_len:d1",
    3: "auth_challenge_rsp pubkey_len:d1 evidence_len:d1",
    4: "auth_result result:d1",
}
AUTH_PARTS: Final[dict[int, tuple[str, ...]]] = {
    1: ("user_name",),
    2: ("mod", "gen", "salt", "pubkey"),
    3: ("pubkey", "evidence"),
    4: (),
}

_RELEASE: Final = "rcr_idx:d4 {0}.assign_id:d4 {0}.flags:x4[numeric=1] {0}.index_len:d1 {0}.reserved:b3"
_APPSET: Final = "assign_id:d4 {0}.appset_idx:d2 {0}.reserved:x2"
_INDEX: Final = "assign_id:d4 {0}.flags:x4[numeric=1] {0}.appset_idx:d2 {0}.index_len:d1 {0}.reserved:b1"


def _sub(name: str, first: str, form: str) -> str:
    return f"{name}.{first}{':d4 ' + name + '.' if first else ''}{form.format(name)}"


# code: type byte (the fourth): fields behind the fixed ones
_VARIANT_SPECS: Final[dict[int, dict[int, str]]] = {
    BlockType.UMQ_REG: {
        1: "reg_ctx.port:d2 reg_ctx.reserved:x2 reg_ctx.ip:ip reg_ctx.capabilities:x4",
        2: "reg_src.transport_idx:x4 reg_src.topic_idx:x4",
        3: "reg_rcv.assign_id:x4 reg_rcv.rcv_type_id:x4 reg_rcv.last_topic_rcr_tsp:x4",
        4: "rcv_dereg.rcr_idx:x4 rcv_dereg.assign_id:x4",
        5: "reg_ulb_rcv.ulb_src_id:x4 reg_ulb_rcv.assign_id:x4 reg_ulb_rcv.rcv_type_id:x4 reg_ulb_rcv.port:d2"
        " reg_ulb_rcv.reserved:x2 reg_ulb_rcv.ip:ip reg_ulb_rcv.capabilities:x4",
        6: "ulb_rcv_dereg.ulb_src_id:x4 ulb_rcv_dereg.assign_id:x4",
        7: "reg_observer_rcv.assign_id:x4 reg_observer_rcv.rcv_type_id:x4 reg_observer_rcv.last_topic_rcr_tsp:x4",
        8: "observer_rcv_dereg.rcr_idx:x4 observer_rcv_dereg.assign_id:x4",
    },
    BlockType.UMQ_REG_RESP: {
        1: "reg_ctx.capabilities:x4",
        2: "@2 _:x1[flags.src_s=20,flags.src_d=10] @20 reg_src.rcr_idx:x4",
        3: "reg_rcv.rcr_idx:x4 reg_rcv.assign_id:x4 reg_rcv.appset_idx:x2 reg_rcv.reserved:x2",
        4: "rcv_dereg.rcr_idx:x4 rcv_dereg.assign_id:x4",
        5: "reg_ulb_rcv.ulb_src_id:x4 reg_ulb_rcv.assign_id:x4 reg_ulb_rcv.appset_idx:x2 reg_ulb_rcv.reserved:x2"
        " reg_ulb_rcv.capabilities:x4",
        6: "ulb_rcv_dereg.ulb_src_id:x4 ulb_rcv_dereg.assign_id:x4",
        7: "reg_observer_rcv.rcr_idx:x4 reg_observer_rcv.assign_id:x4 reg_observer_rcv.appset_idx:x2"
        " reg_observer_rcv.reserved:x2",
        8: "observer_rcv_dereg.rcr_idx:x4 observer_rcv_dereg.assign_id:x4",
        9: "reg_ctx_ex.capabilities:x4 reg_ctx_ex.reserved:x2 reg_ctx_ex.flags:x2[firstmsg=1] reg_ctx_ex.stamp:x8",
        0xFF: "@2 _:x1[flags.l=20] @20 err.reserved:x2 err.code:x2",
    },
    BlockType.UMQ_ACK: {
        1: "stable.queue_id:x4 stable.inst_idx:x2 stable.reserved:x2",
        2: "cr.rcr_idx:x4 cr.assign_id:x4 cr.appset_idx:x2 cr.reserved:x2",
        3: "ulb_cr.ulb_src_id:x4 ulb_cr.assign_id:x4 ulb_cr.appset_idx:x2 ulb_cr.reserved:x2",
    },
    BlockType.UMQ_KA: {
        0x01: "src.transport_idx:x4 src.topic_idx:x4",
        0x11: "src.transport_idx:x4 src.topic_idx:x4",
        0x02: "rcv.rcr_idx:x4 rcv.assign_id:x4",
        0x12: "rcv.rcr_idx:x4 rcv.assign_id:x4",
        0x03: "ulb_rcv.ulb_src_id:x4 ulb_rcv.assign_id:x4",
        0x13: "ulb_rcv_resp.ulb_src_id:x4 ulb_rcv_resp.assign_id:x4 ulb_rcv_resp.appset_idx:x2"
        " ulb_rcv_resp.reserved:x2",
    },
    BlockType.UMQ_RXREQ: {
        1: "mr.assign_id:x4 mr.msgid_regid:x8 mr.msgid_stamp:x8",
        2: "qrrcr.tsp:x4",
        3: "trcrr.rcr_idx:x4 trcrr.tsp:x4",
        4: "ulb_mr.ulb_src_id:x4 ulb_mr.assign_id:x4 ulb_mr.appset_idx:x2 ulb_mr.reserved:x2"
        " ulb_mr.msgid_regid:x8 ulb_mr.msgid_stamp:x8",
        5: "ulb_trcrr.ulb_src_id:x4 ulb_trcrr.assign_id:x4 ulb_trcrr.tsp:x4",
        6: "ulb_mr_abort.ulb_src_id:x4 ulb_mr_abort.assign_id:x4 ulb_mr_abort.msgid_regid:x8"
        " ulb_mr_abort.msgid_stamp:x8",
        7: "ulb_trcrr_abort.ulb_src_id:x4 ulb_trcrr_abort.assign_id:x4 ulb_trcrr_abort.tsp:x4",
    },
    BlockType.UMQ_IDX_CMD: {
        1: "stop_assign.rcr_idx:d4 stop_assign.assign_id:d4",
        2: "start_assign.rcr_idx:d4 start_assign.assign_id:d4",
        3: _sub("ulb_stop_assign", "src_id", _APPSET),
        4: _sub("ulb_start_assign", "src_id", _APPSET),
        5: _sub("release_assign", "", _RELEASE),
        6: _sub("ulb_release_assign", "src_id", _INDEX),
        7: _sub("reserve_assign", "", _RELEASE),
        8: _sub("ulb_reserve_assign", "src_id", _INDEX),
    },
    BlockType.UMQ_IDX_CMD_RESP: {
        1: "stop_assign.rcr_idx:d4 stop_assign.assign_id:d4",
        2: _sub("start_assign", "rcr_idx", _APPSET),
        3: _sub("ulb_stop_assign", "src_id", _APPSET),
        4: _sub("ulb_start_assign", "src_id", _APPSET),
        5: _sub("release_assign", "rcr_idx", _APPSET),
        6: _sub("ulb_release_assign", "src_id", _APPSET),
        7: _sub("reserve_assign", "rcr_idx", _INDEX),
        8: _sub("ulb_reserve_assign", "src_id", _INDEX),
        0xFF: "err.reserved:x2 err.code:d2 err.error_string:t*",
    },
    BlockType.UMQ_CMD: {
        1: "topic_list.serial_num:x8",
        2: "msg_retrieve.rcr_idx:d4 msg_retrieve.assign_id:d4 msg_retrieve.info_only:d2"
        " msg_retrieve.num_msgids:d1 msg_retrieve.flags:x1",
        3: "msg_list.rcr_idx:x4 msg_list.assign_id:x4",
    },
    BlockType.UMQ_CMD_RESP: {
        1: "topic_list.num_topics:d4",
        2: "msg_retrieve.rcr_idx:d4 msg_retrieve.assign_id:d4",
        3: "msg_list.rcr_idx:d4 msg_list.assign_id:d4",
        4: "error.reserved:x2 error.code:d2 error.errmsg:t*",
    },
}

# Index commands and answers with an index behind their fields: (code, type) to the part that holds it and the offset
# of its length byte in the block.
INDEXED: Final[dict[tuple[int, int], tuple[str, int]]] = {
    (BlockType.UMQ_IDX_CMD, 5): ("lbmc.umq_idx_cmd.release_assign", 32),
    (BlockType.UMQ_IDX_CMD, 6): ("lbmc.umq_idx_cmd.ulb_release_assign", 34),
    (BlockType.UMQ_IDX_CMD, 7): ("lbmc.umq_idx_cmd.reserve_assign", 32),
    (BlockType.UMQ_IDX_CMD, 8): ("lbmc.umq_idx_cmd.ulb_reserve_assign", 34),
    (BlockType.UMQ_IDX_CMD_RESP, 7): ("lbmc.umq_idx_cmd_resp.reserve_assign", 34),
    (BlockType.UMQ_IDX_CMD_RESP, 8): ("lbmc.umq_idx_cmd_resp.ulb_reserve_assign", 34),
}
INDEX_NUMERIC_AT: Final = 31  # low bit: the index is a number

HEAD: Final = "next_hdr:d1 hdr_len:d1"
UNKNOWN: Final = compile_spec("lbmc.unhandled", HEAD)


def _prefix(text: str) -> str:
    return "lbmc." + text.partition(" ")[0]


def _layouts(specs: dict[int, str], head: str) -> dict[int, Layout]:
    return {code: compile_spec(_prefix(text), f"{head} {text.partition(' ')[2]}") for code, text in specs.items()}


BLOCKS: Final = _layouts(_BLOCK_SPECS, HEAD)
AUTH_NAMES: Final = {operation: _prefix(text) for operation, text in _AUTH_SPECS.items()}
AUTH: Final = _layouts(_AUTH_SPECS, f"{HEAD} {_F8} opid:d1")
AUTH_UNKNOWN: Final = compile_spec("lbmc.auth_unknown", f"{HEAD} flags:d1 opid:d1")
VARIANTS: Final[dict[int, dict[int, Layout]]] = {
    code: {kind: compile_spec(_prefix(_BLOCK_SPECS[code]), spec) for kind, spec in by_type.items()}
    for code, by_type in _VARIANT_SPECS.items()
}

PREG_RESP_ERROR: Final = compile_spec(  # instead of the layout in `BLOCKS` when the error bit is set
    "lbmc.ume_preg_resp", f"{HEAD} code:x1[ignore=80,o_flag=40,e_flag=20,code=f:x2] {_PREG_RESP_REST}"
)
PREG_RESP_ERROR_BIT: Final = 0x20
TSNI_RECORD: Final = compile_spec("lbmc.tsni.tsni_rec", "tidx:d4 sqn:d4")
TOPIC_MD_DOMAIN: Final = compile_spec("lbmc.topic_md_interest", "domain_id:d4")
PATTERN_MD_DOMAIN: Final = compile_spec("lbmc.pattern_md_interest", "domain_id:d4")
CTXINFO_NAME: Final = compile_spec("lbmc.ctxinfo", "name:s*")
CHAIN_ELEMENT: Final = compile_spec("lbmc.apphdr_chain.element", "next_hdr:d1 hdr_len:d1 res:x2")
CHAIN_PROPERTIES: Final = compile_spec("lbmc.apphdr_chain.msgprop", "next_hdr:d1 hdr_len:d1 res:x2 proplen:d4")
UMQ_ACK_ID: Final = compile_spec("lbmc.umq_ack.msgid", "regid:x8 stamp:x8")
UMQ_RXREQ_REGID: Final = compile_spec("lbmc.umq_rxreq.regid_resp", "regid:x8")
UMQ_RXREQ_ADDRESS: Final = compile_spec("lbmc.umq_rxreq.addr_resp", "ip:ip port:d2 reserved:x2")
UMQ_CMD_ID: Final = compile_spec("lbmc.umq_cmd.msg_retrieve.entry", "regid:x8 stamp:x8")
UMQ_TOPIC_NAME: Final = "lbmc.umq_cmd_resp.topic_list.topic_entry"
UMQ_APPSET_NAME: Final = f"{UMQ_TOPIC_NAME}.appset_entry"
UMQ_TOPIC: Final = compile_spec(UMQ_TOPIC_NAME, "rcr_idx:d4 num_appsets:d2 topic_len:d1 reserved:d1")
UMQ_APPSET: Final = compile_spec(
    UMQ_APPSET_NAME, "num_receiver_type_ids:d2 appset_idx:d2 appset_name_len:d1 reserved:b3"
)
UMQ_RECEIVER_TYPE: Final = compile_spec(UMQ_APPSET_NAME, "receiver_type_id:d4")
MESSAGE: Final = compile_spec("lbmc", "_:d1[version=f0:d,type=f:d] next_hdr:d1 msglen:d2")
MESSAGE_NUMBERS: Final = compile_spec("lbmc", "tidx:d4 sqn:d4")
PROPERTIES_TAIL: Final = compile_spec("lbmc.lbm_msg_properties.data", "@6 _:d1[version=f0:d,type=f:d] res:x1")

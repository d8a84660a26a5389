"""Hypothesis strategies for LBMR packets, canonical ones: what decoding gives back for what was encoded."""

from __future__ import annotations

from hypothesis import strategies as st

from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.extended import (
    ElectionOption,
    ElectionOptions,
    RemoteAddress,
    RemoteContextOption,
    RemoteContextRecord,
    RemoteInstance,
    RemoteName,
    RemoteOriginatingDomain,
)
from dro.wire.lbmr.options import ContextInstance, PacketOption, SenderVersion
from dro.wire.lbmr.queue_records import (
    ElectionCall,
    ElectionVote,
    InstanceList,
    Qir,
    QueueBlock,
    QueueDetail,
    QueueGroup,
    QueueInstance,
    ResumeOperation,
)
from dro.wire.lbmr.tlv import UnknownOption
from dro.wire.lbmr.tnwg import TnwgAddress, TnwgContextInstance, TnwgDomain, TnwgName, TnwgOption
from dro.wire.source_string import (
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    TcpAddress,
    TransportAddress,
    UnknownTransport,
)

u8 = st.integers(0, 0xFF)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
u64 = st.integers(0, 0xFFFFFFFFFFFFFFFF)
i32 = st.integers(-0x80000000, 0x7FFFFFFF)
b8 = st.binary(min_size=8, max_size=8)
name = st.one_of(
    st.sampled_from([b"", b"A", b"29west.example.multi.0", b"n" * 255]),
    st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b"x")),
)
counted = st.one_of(st.sampled_from([b"", b"\0", b"storeA"]), st.binary(max_size=40))

unknown_option = st.builds(
    UnknownOption,
    st.integers(0x20, 0x7F),
    st.tuples(st.integers(0x80, 0xFF), st.binary(min_size=1, max_size=30)).map(lambda t: bytes((t[0],)) + t[1]),
)

session_addresses: st.SearchStrategy[TransportAddress] = st.one_of(
    st.builds(TcpAddress, u32, u16, u32),
    st.builds(LbtruAddress, u32, u16, u32),
    st.builds(LbtrmAddress, u32, u32, u32, u16, u16),
    st.builds(IpcAddress, u32, u32, u16),
    st.builds(SmxAddress, u32, u32, u16),
    st.builds(RdmaAddress, u32, u16, u32),
)
addresses = st.one_of(
    session_addresses, st.builds(UnknownTransport, st.sampled_from([0x02, 0x11, 0x7F]), st.binary(max_size=40))
)

tir_option: st.SearchStrategy[lbmr.TirOption] = st.one_of(
    st.builds(lbmr.Ume, u16, u16, u32, u32, u32, u32, u32, u32, option_flags=u16),
    st.builds(lbmr.UmeStore, u8, u16, u16, u32, u32, option_flags=u8),
    st.builds(lbmr.UmeStoreGroup, u8, u16, option_flags=u8, reserved=u16),
    st.builds(lbmr.LateJoin, u16, u32, u32, u32, u32, option_flags=u16, reserved=u16),
    st.builds(lbmr.UmqRcrIndex, u32, option_flags=u16),
    st.builds(lbmr.UmqQueueInfo, counted, option_flags=u16),
    st.builds(lbmr.Cost, u8, i32, option_flags=u8),
    st.builds(lbmr.OtidOption, st.binary(min_size=32, max_size=32), option_flags=u16),
    st.builds(ContextInstance, b8, option_flags=u8, reserved=u8),
    st.builds(lbmr.StoreContextInstance, u8, b8, option_flags=u8),
    st.builds(lbmr.Ulb, u32, u64, u32, u32, u16, option_flags=u16, reserved=u16),
    st.builds(lbmr.QueueContextInstance, u8, b8, option_flags=u8),
    st.builds(lbmr.DomainId, u32, option_flags=u16),
    st.builds(lbmr.ExtendedFunctionality, u16, u32, u32, option_flags=u16, reserved=u16),
    unknown_option,
)
tir_options = st.builds(lbmr.TirOptions, st.lists(tir_option, max_size=6).map(tuple))
tir = st.builds(lbmr.Tir, name, addresses, u16, u32, st.none() | tir_options)

packet_option: st.SearchStrategy[PacketOption] = st.one_of(
    st.builds(lbmr.SourceId, b8, option_flags=u16),
    st.builds(lbmr.SourceType, u8, option_flags=u8),
    st.builds(SenderVersion, u32, option_flags=u16),
    st.builds(lbmr.LocalDomain, u32, option_flags=u16),
    unknown_option,
)
packet_options = st.one_of(
    st.builds(lbmr.PacketOptions, st.lists(packet_option, max_size=6).map(tuple)),
    st.builds(lbmr.standard_options, b8, st.integers(0, 2), u32),
)

wildcard_tqr = st.builds(lbmr.WildcardTqr, u8, name)
tmr = st.builds(lbmr.Tmr, u8, u8, name)
interest = st.builds(lbmr.InterestRecord, u32, st.one_of(name, st.binary(max_size=40)), u8, u8)

qir = st.builds(
    Qir,
    name,
    name,
    u32,
    u32,
    u32,
    st.lists(st.builds(QueueGroup, u16, u16), max_size=3).map(tuple),
    st.lists(st.builds(QueueBlock, u32, u16, u16, u16, u16), max_size=3).map(tuple),
    st.none() | tir_options,
)


def _queue_management(
    detail: st.SearchStrategy[QueueDetail], packet_type: int
) -> st.SearchStrategy[lbmr.QueueManagement]:
    def fit(message: lbmr.QueueManagement) -> lbmr.QueueManagement:
        """The value word and the NAME bit as the writer makes them."""
        value = len(message.detail.instances) if isinstance(message.detail, InstanceList) else message.value
        flags = message.flags & 0xBF | (0x40 if message.queue is not None else 0)
        fixed = (message.signature, message.queue_id, message.queue_version, message.ip, message.port)
        indexes = (message.instance_index, message.group_index)
        return lbmr.QueueManagement(
            flags, message.packet_type, *fixed, *indexes, value, message.detail, queue=message.queue
        )

    built = st.builds(
        lbmr.QueueManagement,
        u8,
        st.just(packet_type),
        st.binary(min_size=20, max_size=20),
        u32,
        u32,
        u32,
        u16,
        u16,
        u16,
        u16,
        detail,
        queue=st.none() | counted,
    )
    return built.map(fit)


_instance = st.builds(QueueInstance, u32, u16, u16, u16, u16)
queue_management = st.one_of(
    _queue_management(st.builds(InstanceList, u32, st.lists(_instance, max_size=3).map(tuple)), 1),
    _queue_management(st.none(), 2),
    _queue_management(st.none(), 3),
    _queue_management(st.none(), 4),
    _queue_management(st.builds(ElectionCall, u32), 5),
    _queue_management(st.builds(ElectionVote, u32, u32), 6),
    _queue_management(st.none(), 7),
    _queue_management(st.builds(ResumeOperation, u32), 8),
)

_election_option = st.one_of(
    st.builds(ElectionOption, st.integers(0, 1), b8),
    st.builds(ElectionOption, st.integers(2, 255), st.binary(max_size=20)),
)
election_options = st.builds(ElectionOptions, st.lists(_election_option, max_size=3).map(tuple), u16)


@st.composite
def elections(draw: st.DrawFn) -> lbmr.ProxySourceElection:
    options = draw(st.none() | election_options)
    flags = draw(u16) & 0x7FFF | (0x8000 if options is not None else 0)
    return lbmr.ProxySourceElection(
        draw(u16), draw(u32), draw(u32), draw(u32), draw(u32), draw(u16), draw(u16), draw(counted), flags, options
    )


@st.composite
def context_infos(draw: st.DrawFn) -> lbmr.ContextInfo:
    text = draw(st.none() | counted)
    flags = draw(u16) & 0xFFFE | (text is not None)
    return lbmr.ContextInfo(draw(u8), flags, draw(u16), draw(u32), draw(b8), text)


tnwg_option: st.SearchStrategy[TnwgOption] = st.one_of(
    st.builds(TnwgContextInstance, b8, option_flags=u16),
    st.builds(TnwgAddress, u16, u32, option_flags=u16, reserved=u16),
    st.builds(TnwgDomain, u32, option_flags=u16),
    st.builds(TnwgName, counted, option_flags=u16),
    unknown_option,
)
tnwg_options = st.lists(tnwg_option, max_size=5).map(tuple)

remote_option: st.SearchStrategy[RemoteContextOption] = st.one_of(
    st.builds(RemoteAddress, u32, u32, u16, option_flags=u16, reserved=u16),
    st.builds(RemoteInstance, b8, option_flags=u16),
    st.builds(RemoteOriginatingDomain, u32, option_flags=u16),
    st.builds(RemoteName, counted, option_flags=u16),
)
remote_record = st.builds(RemoteContextRecord, st.lists(remote_option, max_size=4).map(tuple), u16)

bodies: st.SearchStrategy[lbmr.Body] = st.one_of(
    st.builds(lbmr.Queries, st.lists(name, max_size=4).map(tuple), st.lists(tir, max_size=4).map(tuple)),
    st.builds(
        lbmr.WildcardQueries, st.lists(wildcard_tqr, max_size=4).map(tuple), st.lists(tir, max_size=3).map(tuple)
    ),
    st.builds(lbmr.ReceiverAlive),
    st.builds(lbmr.SourceAlive),
    st.builds(lbmr.TopicManagement, st.lists(tmr, max_size=4).map(tuple)),
    st.builds(lbmr.QueueResolution, st.lists(name, max_size=3).map(tuple), st.lists(qir, max_size=3).map(tuple)),
    elections(),
    queue_management,
    context_infos(),
    st.builds(lbmr.TopicResolutionRequest, u16),
    st.builds(lbmr.TnwgInterest, st.lists(interest, max_size=4).map(tuple)),
    st.builds(lbmr.TnwgContextInfo, u8, u32, u32, tnwg_options, reserved=u8),
    st.builds(lbmr.TnwgTopicResolutionRequest, tnwg_options),
    st.builds(lbmr.RemoteDomainRoute, u32, u16, u16, st.lists(st.integers(1, 0xFFFFFFFF), max_size=8).map(tuple)),
    st.builds(lbmr.RemoteContextInfo, st.lists(remote_record, max_size=3).map(tuple), u16),
)
packets = st.builds(lbmr.Packet, st.integers(0, 1), st.none() | packet_options, bodies)

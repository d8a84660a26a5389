"""LBMC blocks of persistence (UME): registration, acknowledgements, keepalives, source registration information.

A DRO passes these through; the client library reads and writes them. Addresses are IPv4 as 32-bit integers, session
ids have 64 bits, context instances are 8 bytes.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

from dro.wire.lbmc.block import FixedBlock, TextBlock, block
from dro.wire.lbmc.codes import BlockType

PREG_NO_ACK_FORWARD: Final = 0x40
PREG_PROXY_SOURCE: Final = 0x20
PREG_RECEIVER_PACED: Final = 0x10
PREG_DEREGISTER: Final = 0x08
MARKER_SOURCE: Final = 0x80  # in `marker`: a source's registration, else a receiver's; low 7 bits 1, 2, 3

PREG_RESP_KNOWN: Final = 0x40
PREG_RESP_ERROR: Final = 0x20  # then the low 4 bits are an error code
PREG_RESP_NO_CACHE: Final = 0x10  # for a receiver: no acknowledgements
PREG_RESP_RECEIVER_PACED: Final = 0x02
PREG_RESP_DEREGISTER: Final = 0x01

ACK_ARRIVAL_ORDER: Final = 0x40
ACK_NO_FORWARD: Final = 0x20
ACK_USER_ID: Final = 0x10
ACK_EXPLICIT: Final = 0x08
ACK_DELIVERED: Final = 0
ACK_STABLE: Final = 1

KEEPALIVE_ANSWER_WANTED: Final = 0x40
KEEPALIVE_NO_ADVERTISEMENT: Final = 0x20

CAPABILITY_QUORUM: Final = 0x4000
CAPABILITY_CLIENT_LIFETIME: Final = 0x2000

SRI_ACK_TO_SOURCE: Final = 0x0001
SRI_INITIAL_SQN_KNOWN: Final = 0x0002


@block(BlockType.UME_PREG, "BBIIIIHHI", "marker reg_id transport_index topic_index source_reg_id port reserved ip")
class UmePreg(FixedBlock):
    """Registration of a source or a receiver with a store."""

    marker: int
    reg_id: int
    transport_index: int
    topic_index: int
    source_reg_id: int  # for a receiver
    ip: int  # where to answer
    port: int
    reserved: int = field(default=0, kw_only=True)


@block(BlockType.UME_PREG_RESP, "BBIIIII")
class UmePregResp(FixedBlock):
    """The store's answer; `flags` is the code byte."""

    marker: int
    reg_id: int
    transport_index: int
    topic_index: int
    low_sqn: int
    high_sqn: int


@block(BlockType.UME_ACK, "BBIIII")
class UmeAck(FixedBlock):
    """Acknowledgement of one message: delivered to a receiver or stable in a store."""

    ack_type: int
    transport_index: int
    id_2: int  # to a source: topic index; to a store: the source's registration id
    receiver_reg_id: int
    sqn: int


@block(BlockType.UME_KEEPALIVE, "BBIII")
class UmeKeepalive(FixedBlock):
    """Persistence keepalive from a store (0), a receiver (1) or a source (2)."""

    sender: int
    transport_index: int
    topic_index: int
    reg_id: int


@block(BlockType.UME_RCV_KEEPALIVE, "HIQ8s")
class UmeRcvKeepalive(FixedBlock):
    """Keepalive of a receiver that has a session id."""

    receiver_reg_id: int
    session_id: int
    ctxinst: bytes


@block(BlockType.UME_STOREID, shared="store_id")
class UmeStoreId(FixedBlock):
    """The number of a store, 15 bits; shares its word with the ignore bit."""

    store_id: int


@block(BlockType.UME_RANGED_ACK, "HII")
class UmeRangedAck(FixedBlock):
    """A range of acknowledged sqns, both ends included."""

    first_sqn: int
    last_sqn: int


@block(BlockType.UME_ACK_ID, "HI")
class UmeAckId(FixedBlock):
    """The id of an acknowledgement."""

    ack_id: int


@block(BlockType.UME_CAPABILITY, "H")
class UmeCapability(FixedBlock):
    """Persistence capabilities, all in `flags`."""


@block(BlockType.UME_STORE_GROUP, "BBHH")
class UmeStoreGroup(FixedBlock):
    """A group of stores and how many it has."""

    group_index: int
    group_size: int
    reserved: int = field(default=0, kw_only=True)


@block(BlockType.UME_STORE_INFO, "BBHHII", "group_index port store_index ip source_reg_id")
class UmeStoreInfo(FixedBlock):
    """One store of a group."""

    group_index: int
    store_index: int
    ip: int
    port: int
    source_reg_id: int


@block(BlockType.UME_STORE_INFO_EXT, "BBHHIIII", "group_index port store_index ip source_reg_id domain_id version")
class UmeStoreInfoExt(FixedBlock):
    """One store of a group, with its domain and the version of the source's registration there."""

    group_index: int
    store_index: int
    ip: int
    port: int
    source_reg_id: int
    domain_id: int
    version: int


@block(BlockType.UME_STORENAME)
class UmeStoreName(TextBlock):
    """The context name of a store."""

    store: bytes


@block(BlockType.SRI_REQ, "HII")
class SriReq(FixedBlock):
    """Request for source registration information."""

    transport_index: int
    topic_index: int


@block(BlockType.SRI, "HIII")
class Sri(FixedBlock):
    """Source registration information; the stores follow, a higher version is newer."""

    version: int
    low_sqn: int
    high_sqn: int


@block(BlockType.UME_STORE_DOMAIN, "HI")
class UmeStoreDomain(FixedBlock):
    """The domain of a store."""

    domain_id: int


@block(BlockType.UME_CLIENT_LIFETIME, "HIII")
class UmeClientLifetime(FixedBlock):
    """How long the store keeps a silent client; milliseconds (inferred)."""

    activity_timeout: int
    lifetime: int
    ttl: int


@block(BlockType.UME_SID, "HQ")
class UmeSid(FixedBlock):
    """A persistence session id."""

    session_id: int

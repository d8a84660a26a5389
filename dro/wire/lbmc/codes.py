"""The numbers of LBMC: message types, block codes, and the two marks that end a chain of blocks.

LBMC is the message layer of Ultra Messaging: every user message, request, retransmission, source announcement and
DRO-to-DRO message is one LBMC message. Nothing here reads bytes; `message` and `blocks` do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

END_DATA: Final = 0x00  # the rest of the message is user data
END_NONE: Final = 0xFF  # nothing follows

MESSAGE_MAX: Final = 0xFFFF  # the length field has 16 bits
BLOCK_MIN: Final = 4
BLOCK_MAX: Final = 0xFF
MINIMAL_HEADER_SIZE: Final = 4
FULL_HEADER_SIZE: Final = 12


class MessageType(IntEnum):
    """Low four bits of the first byte; the type alone decides which of the two header forms follows."""

    MESSAGE = 0x0
    EOT = 0x1
    PROACTIVE_RETRANSMISSION = 0x2
    CONTROL = 0x8
    RETRANSMISSION = 0xA


FULL_HEADER_TYPES: Final = frozenset(
    {MessageType.MESSAGE, MessageType.PROACTIVE_RETRANSMISSION, MessageType.RETRANSMISSION}
)


class BlockType(IntEnum):
    """Every block code that has a public name; any other code is kept by its number (`RawBlock`)."""

    FRAG = 0x01
    BATCH = 0x02
    TGIDX = 0x03
    REQUEST = 0x04
    TOPICNAME = 0x05
    APPHDR = 0x06
    APPHDR_CHAIN = 0x07
    UMQ_MSGID = 0x08
    UMQ_SQD_RCV = 0x09
    UMQ_RESUB = 0x0A
    OTID = 0x0B
    CTXINSTD = 0x0C
    CTXINSTR = 0x0D
    SRCIDX = 0x0E
    UMQ_ULB_MSG = 0x0F
    SSF_INIT = 0x10
    SSF_CREQ = 0x11
    UME_PREG = 0x12
    UME_PREG_RESP = 0x13
    UME_ACK = 0x14
    UME_RXREQ = 0x15
    UME_KEEPALIVE = 0x16
    UME_STOREID = 0x17
    UME_RANGED_ACK = 0x18
    UME_ACK_ID = 0x19
    UME_CAPABILITY = 0x1A
    UME_PROXY_SRC = 0x1B
    UME_STORE_GROUP = 0x1C
    UME_STORE_INFO = 0x1D
    UME_LJ_INFO = 0x1E
    TSNI = 0x20
    UMQ_REG = 0x30
    UMQ_REG_RESP = 0x31
    UMQ_ACK = 0x32
    UMQ_RCR = 0x33
    UMQ_KA = 0x34
    UMQ_RXREQ = 0x35
    UMQ_QMGMT = 0x36
    UMQ_RESUB_REQ = 0x37
    UMQ_RESUB_RESP = 0x38
    TOPIC_INTEREST = 0x39
    PATTERN_INTEREST = 0x3A
    ADVERTISEMENT = 0x3B
    UME_CTXINSTS = 0x3C
    UME_STORENAME = 0x3D
    UMQ_ULB_RCR = 0x3E
    UMQ_LF = 0x3F
    CTXINFO = 0x40
    UME_PSER = 0x41
    CTXINST = 0x42
    DOMAIN = 0x43
    TNWG_CAPABILITIES = 0x44
    PATIDX = 0x45
    UME_CLIENT_LIFETIME = 0x46
    UME_SID = 0x47
    UMQ_IDX_CMD = 0x48
    UMQ_IDX_CMD_RESP = 0x49
    ODOMAIN = 0x4A
    STREAM = 0x4B
    TOPIC_MD_INTEREST = 0x4C
    PATTERN_MD_INTEREST = 0x4D
    LJI_REQ = 0x4E
    TNWG_KA = 0x4F
    UME_RCV_KEEPALIVE = 0x50
    UMQ_CMD = 0x51
    UMQ_CMD_RESP = 0x52
    SRI_REQ = 0x53
    UME_STORE_DOMAIN = 0x54
    SRI = 0x55
    ROUTE_INFO = 0x56
    ROUTE_INFO_NEIGHBOR = 0x57
    GATEWAY_NAME = 0x58
    AUTHENTICATION = 0x60
    HMAC = 0x62
    UMQ_SID = 0x63
    DESTINATION = 0x64
    TOPIC_IDX = 0x65
    TOPIC_SOURCE = 0x67
    TOPIC_SOURCE_EXFUNC = 0x68
    UME_STORE_INFO_EXT = 0x69
    UME_PSRC_ELECTION_TOKEN = 0x6A
    TCP_SID = 0x6B
    EXTOPT = 0xFE


# TGIDX is a name without a known layout, so a receiver treats it like a code that it has never heard of.
UNDERSTOOD_CODES: Final = frozenset(int(code) for code in BlockType if code is not BlockType.TGIDX)

"""The counters of a portal: the meaning of each 64-bit slot of its page.

One table for pages, exporter and tests. Message slots are followed by their byte slots. Source of the wording: DRO
guide 5.4.2; slots marked "ours" have no name in the guide.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from dro.bus import counters


class Slot(IntEnum):
    """General slots; append only."""

    # general
    LOCAL_TOPICS = 0
    LOCAL_PCRE = 1
    LOCAL_REGEX = 2
    REMOTE_TOPICS = 3
    REMOTE_PCRE = 4
    REMOTE_REGEX = 5
    PROXY_RECEIVERS = 6
    RECEIVER_TOPICS = 7
    RECEIVER_PCRE = 8
    RECEIVER_REGEX = 9
    PROXY_SOURCES = 10
    TOPICS_NOT_OUT = 11  # ours: topics wanted in the TRD that the access control list keeps from being asked for
    TOPICS_NOT_IN = 12  # ours: topics and patterns that siblings want and that may not be asked for in the TRD
    SOURCES_NOT_IN = 13  # ours: sources of wanted topics in the TRD that are not joined, for the same reason
    # receive
    TOPIC_RCVD = 16
    TOPIC_RCVD_BYTES = 17
    TOPIC_REQ_RCVD = 18
    TOPIC_REQ_RCVD_BYTES = 19
    CONTROL_RCVD = 20
    CONTROL_RCVD_BYTES = 21
    NO_TOPIC_RCVD = 22  # ours: fragments of topics that nobody wanted
    BAD_DATAGRAMS = 23  # ours: datagrams and TR packets dropped because they break their layout
    UNRECOVERABLE = 24  # ours: transport datagrams given up by the proxy receivers
    SOCKET_DROPS = 25  # ours: datagrams that found a full receive buffer
    # send
    FORWARDED = 32
    FORWARDED_BYTES = 33
    SENT = 34
    SENT_BYTES = 35
    REQ_SENT = 36
    REQ_SENT_BYTES = 37
    DROPPED_DUP = 38
    DROPPED_DUP_BYTES = 39
    DROPPED_BLOCKED = 40
    DROPPED_BLOCKED_BYTES = 41
    DROPPED_ERROR = 42
    DROPPED_ERROR_BYTES = 43
    DROPPED_SIZE = 44
    DROPPED_SIZE_BYTES = 45
    DROPPED_RESTART = 46  # ours: lost with a worker that died
    DROPPED_RESTART_BYTES = 47
    DROPPED_DELETED = 48  # ours: its proxy source was deleted meanwhile
    DROPPED_DELETED_BYTES = 49
    DROPPED_OLD = 50  # ours: below the duplicate window, and not known to be new
    DROPPED_OLD_BYTES = 51
    QUEUED_BYTES = 56
    QUEUED_BYTES_MAX = 57
    QUEUE_LIMIT = 58
    QUEUED = 59  # fragments
    # ours: how the data path does
    BATCHES_IN = 64
    RUNS_IN = 65
    TRAINS_OUT = 66
    NAKS_SENT = 67
    RETRANSMITTED = 68
    FLOWS_RESTARTED = 69  # sources that were seen to count anew
    UNSENT = 70  # datagrams that the system refused; what is in them counts as sent, and may be asked for
    DISCARDED = 71  # messages not sent to a slow TCP receiver, for each; they count as sent
    # ours: what strangers said and was not kept, each time
    SOURCES_LIMITED = 72  # advertisements of new sources, too many in a second
    SOURCES_FULL = 73  # advertisements of new sources, no room
    INTEREST_LIMITED = 74  # new topics and patterns asked for, too many in a second
    INTEREST_FULL = 75  # new topics and patterns asked for, no room
    # ours: how the portals keep up with each other
    REPORTS_WAITING = 76  # changes that siblings have still to be told, for each sibling
    # ours: the longest turn of the worker's loop since it was ready, microseconds
    LONGEST_TURN_US = counters.LONGEST_TURN_US  # as the clock says, with what others had of the processor meanwhile
    LONGEST_TURN_CPU_US = counters.LONGEST_TURN_CPU_US  # of processor time
    # ours: messages between portals that are not of a source, and their bytes
    ADDRESSED_HANDED = 80  # to siblings
    ADDRESSED_HANDED_BYTES = 81
    ADDRESSED_REFUSED = 82  # for siblings, and dropped: too many wait there, or no shared memory
    ADDRESSED_REFUSED_BYTES = 83
    ADDRESSED_FORWARDED = 84  # taken over from siblings
    ADDRESSED_FORWARDED_BYTES = 85
    ADDRESSED_OVERRUN = 86  # of these, dropped: overwritten before they were fetched
    ADDRESSED_OVERRUN_BYTES = 87
    ADDRESSED_ERROR = 88  # of these, dropped: nobody takes this kind, or it does not decode
    ADDRESSED_ERROR_BYTES = 89
    # unicast messages that came in from the TRD or the other DRO
    UNICAST_DATA_RCVD = 96
    UNICAST_DATA_RCVD_BYTES = 97
    UNICAST_DATA_DUP = 98
    UNICAST_DATA_DUP_BYTES = 99
    UNICAST_DATA_NO_STREAM = 100
    UNICAST_DATA_NO_STREAM_BYTES = 101
    UNICAST_DATA_NO_ROUTE = 102
    UNICAST_DATA_NO_ROUTE_BYTES = 103
    UNICAST_DATA_NO_FORWARDING = 104  # nothing says where it goes
    UNICAST_DATA_NO_FORWARDING_BYTES = 105
    UNICAST_CONTROL_RCVD = 106
    UNICAST_CONTROL_RCVD_BYTES = 107
    UNICAST_CONTROL_DUP = 108
    UNICAST_CONTROL_DUP_BYTES = 109
    UNICAST_CONTROL_NO_STREAM = 110
    UNICAST_CONTROL_NO_STREAM_BYTES = 111
    UNICAST_CONTROL_NO_ROUTE = 112
    UNICAST_CONTROL_NO_ROUTE_BYTES = 113
    UNICAST_CONTROL_NO_FORWARDING = 114
    UNICAST_CONTROL_NO_FORWARDING_BYTES = 115
    # of both, and ours
    UNICAST_HOPS = 116  # passed too many DROs
    UNICAST_HOPS_BYTES = 117
    UNICAST_NO_CONTEXT = 118  # for a context instance that is not known
    UNICAST_NO_CONTEXT_BYTES = 119
    UNICAST_UNHANDLED = 120  # for this DRO itself, and of no use to it
    UNICAST_UNHANDLED_BYTES = 121
    UNICAST_BROKEN = 122  # its blocks break their layout
    UNICAST_BROKEN_BYTES = 123
    # unicast messages that leave by this portal
    UNICAST_FORWARDED = 124
    UNICAST_FORWARDED_BYTES = 125
    UNICAST_SENT = 126
    UNICAST_SENT_BYTES = 127
    UNICAST_DROPPED_ERROR = 128
    UNICAST_DROPPED_ERROR_BYTES = 129
    UNICAST_DROPPED_BLOCKED = 130
    UNICAST_DROPPED_BLOCKED_BYTES = 131
    # control messages between DROs
    GATEWAY_CONTROL_RCVD = 132
    GATEWAY_CONTROL_RCVD_BYTES = 133
    GATEWAY_CONTROL_LIMITED = 134  # ours: dropped, as too many came in a second
    GATEWAY_CONTROL_LIMITED_BYTES = 135
    GATEWAY_CONTROL_SENT = 136
    GATEWAY_CONTROL_SENT_BYTES = 137
    GATEWAY_CONTROL_DROPPED = 138  # ours: not sent
    GATEWAY_CONTROL_DROPPED_BYTES = 139
    # of the link of a peer portal, since the start of the portal
    LINK_UP = 160  # ours: 1 while it is
    LINK_RECONNECTS = 161  # ours: links after the first
    LINK_REPAIRS = 162  # ours: the companion was told everything once more
    LINK_BATCHES = 163
    LINK_BATCH_MIN_BYTES = 164
    LINK_BATCH_MEAN_BYTES = 165
    LINK_BATCH_MAX_BYTES = 166
    RTT_SAMPLES = 167
    RTT_MIN_US = 168
    RTT_MEAN_US = 169
    RTT_MAX_US = 170
    KEEPALIVE_ANSWERED_S = 171  # when the last one was, since 1970; 0: none yet
    # multicast immediate messages that came in from the TRD or the other DRO, with a topic or without
    IMMEDIATE_TOPIC_RCVD = 172
    IMMEDIATE_TOPIC_RCVD_BYTES = 173
    IMMEDIATE_TOPIC_REQ_RCVD = 174
    IMMEDIATE_TOPIC_REQ_RCVD_BYTES = 175
    IMMEDIATE_TOPICLESS_RCVD = 176
    IMMEDIATE_TOPICLESS_RCVD_BYTES = 177
    IMMEDIATE_TOPICLESS_REQ_RCVD = 178
    IMMEDIATE_TOPICLESS_REQ_RCVD_BYTES = 179
    # ours: of both, what was dropped there
    IMMEDIATE_DUP = 180
    IMMEDIATE_DUP_BYTES = 181
    IMMEDIATE_NO_DOMAIN = 182
    IMMEDIATE_NO_DOMAIN_BYTES = 183
    IMMEDIATE_NO_ROUTE = 184  # none were calculated yet
    IMMEDIATE_NO_ROUTE_BYTES = 185
    IMMEDIATE_BROKEN = 186
    IMMEDIATE_BROKEN_BYTES = 187
    # those that leave by this portal
    IMMEDIATE_TOPIC_FORWARDED = 188
    IMMEDIATE_TOPIC_FORWARDED_BYTES = 189
    IMMEDIATE_TOPICLESS_FORWARDED = 190
    IMMEDIATE_TOPICLESS_FORWARDED_BYTES = 191
    IMMEDIATE_TOPIC_SENT = 192
    IMMEDIATE_TOPIC_SENT_BYTES = 193
    IMMEDIATE_TOPIC_REQ_SENT = 194
    IMMEDIATE_TOPIC_REQ_SENT_BYTES = 195
    IMMEDIATE_TOPICLESS_SENT = 196
    IMMEDIATE_TOPICLESS_SENT_BYTES = 197
    IMMEDIATE_TOPICLESS_REQ_SENT = 198
    IMMEDIATE_TOPICLESS_REQ_SENT_BYTES = 199
    IMMEDIATE_TOPIC_DROPPED_BLOCKED = 200
    IMMEDIATE_TOPIC_DROPPED_BLOCKED_BYTES = 201
    IMMEDIATE_TOPIC_DROPPED_ERROR = 202
    IMMEDIATE_TOPIC_DROPPED_ERROR_BYTES = 203
    IMMEDIATE_TOPIC_DROPPED_SIZE = 204
    IMMEDIATE_TOPIC_DROPPED_SIZE_BYTES = 205
    IMMEDIATE_TOPICLESS_DROPPED_BLOCKED = 206
    IMMEDIATE_TOPICLESS_DROPPED_BLOCKED_BYTES = 207
    IMMEDIATE_TOPICLESS_DROPPED_ERROR = 208
    IMMEDIATE_TOPICLESS_DROPPED_ERROR_BYTES = 209
    IMMEDIATE_TOPICLESS_DROPPED_SIZE = 210
    IMMEDIATE_TOPICLESS_DROPPED_SIZE_BYTES = 211
    IMMEDIATE_DROPPED_DUP = 212  # ours: of both, brought in by another portal or DRO before
    IMMEDIATE_DROPPED_DUP_BYTES = 213
    # of the link of a peer portal, since the start of the portal
    LINK_LOST_BYTES = 214  # ours: that may not have arrived when a connection ended; data among them counts as sent


class PairSlot(IntEnum):
    """Slots about one sibling, relative to its pair block."""

    HANDED = 0  # fragments that this portal handed to the sibling, also those that its channel refused
    HANDED_BYTES = 1
    REFUSED = 2  # of these, refused by the full channel: they count as dropped by the sibling, reason blocking
    REFUSED_BYTES = 3
    ACCOUNTED = 4  # fragments from the sibling that were sent or dropped here, for whatever reason
    ACCOUNTED_BYTES = 5
    QUEUED = 6  # fragments from the sibling that wait here
    QUEUED_BYTES = 7
    SENT = 8
    SENT_BYTES = 9


DROP_SLOTS: Final = {
    "duplicate": Slot.DROPPED_DUP,
    "would_block": Slot.DROPPED_BLOCKED,
    "error": Slot.DROPPED_ERROR,
    "size_error": Slot.DROPPED_SIZE,
    "worker_restart": Slot.DROPPED_RESTART,
    "source_deleted": Slot.DROPPED_DELETED,
    "too_old": Slot.DROPPED_OLD,
}
"""Metric reason -> slot of the fragments dropped for it; the bytes are in the next slot."""
UNICAST_DROP_SLOTS: Final = {
    "duplicate": (Slot.UNICAST_DATA_DUP, Slot.UNICAST_CONTROL_DUP),
    "no_stream": (Slot.UNICAST_DATA_NO_STREAM, Slot.UNICAST_CONTROL_NO_STREAM),
    "no_route": (Slot.UNICAST_DATA_NO_ROUTE, Slot.UNICAST_CONTROL_NO_ROUTE),
    "no_forwarding": (Slot.UNICAST_DATA_NO_FORWARDING, Slot.UNICAST_CONTROL_NO_FORWARDING),
    "hops": (Slot.UNICAST_HOPS,),
    "no_context": (Slot.UNICAST_NO_CONTEXT,),
    "unhandled": (Slot.UNICAST_UNHANDLED,),
    "broken": (Slot.UNICAST_BROKEN,),
    "error": (Slot.UNICAST_DROPPED_ERROR,),
    "would_block": (Slot.UNICAST_DROPPED_BLOCKED,),
}
"""The same for unicast messages."""
IMMEDIATE_DROP_SLOTS: Final = {
    "duplicate": (Slot.IMMEDIATE_DUP, Slot.IMMEDIATE_DROPPED_DUP),
    "no_domain": (Slot.IMMEDIATE_NO_DOMAIN,),
    "no_route": (Slot.IMMEDIATE_NO_ROUTE,),
    "broken": (Slot.IMMEDIATE_BROKEN,),
    "would_block": (Slot.IMMEDIATE_TOPIC_DROPPED_BLOCKED, Slot.IMMEDIATE_TOPICLESS_DROPPED_BLOCKED),
    "error": (Slot.IMMEDIATE_TOPIC_DROPPED_ERROR, Slot.IMMEDIATE_TOPICLESS_DROPPED_ERROR),
    "size_error": (Slot.IMMEDIATE_TOPIC_DROPPED_SIZE, Slot.IMMEDIATE_TOPICLESS_DROPPED_SIZE),
}
"""And for multicast immediate messages."""

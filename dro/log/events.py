"""The events that are logged: each is a constant, with its severity, its fields, and its public id where it has one.

Scanners in the field look for the public ids and texts, so an event that has a public id is written under it, and in
the public shape where one is known: `{name}` in a shape is a field of the event, `{process}` the name of the process,
which of a portal is the portal's. Fields that the shape does not show follow it as `name=value`. An event without id is
written in its own text, which the public format allows. `%s` is the caller's argument.

Called as `log.info(LogEvent.PROXY_SOURCE_CREATED, extra=...)`; the formatters of `dro.log.lines` read it back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from enum import StrEnum, unique
from typing import Final

_FIELD: Final = re.compile(r"\{(\w+)\}")
_LINK: Final = "RecalcTrigger:LINK {}:Version = {{version}}:NodeId = {{node_id}}"
_NODE: Final = "RecalcTrigger:{}:Version = {{version}}:NodeId = {{node_id}}:Node {} = {{node_name}}"
_NOTICE: Final = 25  # as `dro.log.lines` has it
_DEBUG, _INFO, _WARNING, _ERROR, _CRITICAL = (
    logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL,
)  # fmt: skip


@unique
class LogEvent(StrEnum):
    """Text, severity (None: the caller's), fields (`name?`: not always there, `*`: more), public id, shape."""

    level: int | None
    fields: frozenset[str]
    optional: frozenset[str]
    id: str
    shape: str
    shown: frozenset[str]

    def __new__(cls, text: str, level: int | None, fields: str = "", public_id: str = "", shape: str = "") -> LogEvent:
        event = str.__new__(cls, text)
        event._value_ = text
        event.level = level
        names = fields.split()
        event.fields = frozenset(name for name in names if name.isidentifier())
        event.optional = frozenset(name.rstrip("?") for name in names) - event.fields
        event.id = public_id
        event.shape = shape
        event.shown = frozenset(_FIELD.findall(shape))
        return event

    def render(self, values: Mapping[str, str]) -> str:
        """The shape with its fields filled in. Raises: KeyError for one that is missing."""
        return _FIELD.sub(lambda match: values[match[1]], self.shape)

    # fmt: off
    # the usual course of a run
    STARTING = "starting", _INFO, "dro version config", "Gwd-7136-1"
    BUILD = "build", _INFO, "python machine *", "Gwd-7136-2"
    PACKAGE_SHARED = "the package supervisor is shared", _WARNING, "reason remedy"
    CONFIGURATION_READ = "configuration read", _INFO, "portals um_files"
    PORTAL_CONFIGURED = "portal configured", _INFO, "portal domain cost lbm_config"
    CONTEXT_CREATED = "context created", _INFO, "context context_id address", "Core-10403-150"
    STEPS_FORM = "steps of the data path", _INFO, "form"
    DRO_RUNNING = (
        "DRO is running", _INFO, "dro node_id", "Gwd-7122-1",
        "Gateway named [{dro}] with node id: {node_id} has started."
    )
    LINK_UP = "link came up", _INFO, "version node_id route_version node_name?", "Gwd-9574-01", _LINK.format("CAME UP")
    LINK_DOWN = (
        "link went down", _INFO, "version node_id route_version node_name?", "Gwd-9574-02", _LINK.format("WENT DOWN")
    )
    RECALCULATION_FORCED = (
        "recalculation forced", _INFO, "version route_version", "Gwd-9574-03",
        "RecalcTrigger:FORCED RECALC:Version = {version}",
    )
    DRO_DISCOVERED = (
        "new DRO discovered", _INFO, "version node_id node_name route_version", "Gwd-9574-04",
        _NODE.format("NEW DRO DISCOVERED", "Name"),
    )
    NODE_UPDATED = (
        "node updated", _INFO, "version node_id node_name route_version", "Gwd-9574-05",
        _NODE.format("NODE UPDATED", "Name"),
    )
    DRO_TIMED_OUT = (
        "DRO timed out", _INFO, "version node_id node_name route_version", "Gwd-9574-06",
        _NODE.format("DRO TIMED OUT", "name"),
    )
    ROUTES_CALCULATED = (
        "routes calculated", _INFO, "took_s routes route_version", "Gwd-6361-74",
        "route recalculation took {took_s} seconds",
    )
    STOPPING = "stopping", _INFO, "signal", "Gwd-6033-391", "Shutdown event detected. Attempting to shutdown"
    STOPPING_AT_ONCE = "stopping at once", _WARNING, "signal"
    DRO_STOPPED = "DRO stopped", _INFO, "dro status"
    CONSOLE_LOG_ENDS = "the console log ends here: the DRO is detached", _WARNING
    FOREIGN_CLAIM = "another user's process claims what belongs to this DRO, ignored", _WARNING, "*"
    OLD_WORKERS_AWAITED = "waiting for the workers of a killed DRO to end", _INFO, "dro"

    # configuration; the place is file and line
    CONFIG_WARNING = "%s", None
    DEPRECATED_LATE_JOIN = "%s: <late-join>: deprecated, ignored", _WARNING, "", "Gwd-6814-15"
    DEPRECATED_TOPIC_PURGE = "%s: <topic-purge>: deprecated, ignored", _WARNING, "", "Gwd-6814-16"
    DEPRECATED_TOPIC_INTEREST_GENERATE = (
        "%s: <topic-interest-generate>: deprecated, ignored", _WARNING, "", "Gwd-6814-17"
    )
    DEPRECATED_TOPIC_DOMAIN_ACTIVITY = "%s: <topic-domain-activity>: deprecated, ignored", _WARNING, "", "Gwd-6814-18"
    DEPRECATED_PATTERN_PURGE = "%s: <pattern-purge>: deprecated, ignored", _WARNING, "", "Gwd-6814-19"
    DEPRECATED_PATTERN_INTEREST_GENERATE = (
        "%s: <pattern-interest-generate>: deprecated, ignored", _WARNING, "", "Gwd-6814-20"
    )
    DEPRECATED_PATTERN_DOMAIN_ACTIVITY = (
        "%s: <pattern-domain-activity>: deprecated, ignored", _WARNING, "", "Gwd-6814-21"
    )
    DEPRECATED_TOPIC_USE_CHECK = "%s: <topic-use-check>: deprecated, ignored", _WARNING, "", "Gwd-6814-29"
    DEPRECATED_PATTERN_USE_CHECK = "%s: <pattern-use-check>: deprecated, ignored", _WARNING, "", "Gwd-6814-30"
    FILE_NOT_READABLE = "file is not readable for the user of the DRO: a reload will fail", _WARNING, "file"
    CONFIGURATION_CHANGED = "configuration changed", _INFO, "changed? path? old? new? reload? further_changes?"
    CHANGE_TAKEN_OVER = "changed configuration taken over", _INFO, "changed"
    CHANGE_NOT_TAKEN_OVER = "changed configuration not taken over", _ERROR, "reason"

    # reload
    HANGUP_NEEDS_RESTART = "SIGHUP ignored: a changed configuration needs a restart", _WARNING
    HANGUP_BEFORE_CONFIRMATION = "SIGHUP ignored: the last reload is not confirmed yet", _WARNING
    RELOAD_BEGINS = "reload begins", _INFO, "file"
    RELOAD_REFUSED = "reload refused, nothing has changed", _ERROR, "reason"
    RELOAD_BROKEN = "reload failed", _CRITICAL
    RELOAD_WITHOUT_CHANGE = "reload done, nothing had to be changed", _INFO, "took_s"
    RELOAD_DONE = "reload done", _INFO, "took_s *"
    RELOAD_NOTE = "reload done, but", _WARNING, "note"
    CHANGE_NEEDS_RESTART = "change waits for a restart of the daemon", _WARNING, "path"
    ADDRESSES_NOT_TAKEN = (
        "local addresses have changed, but so has the file: portals keep those of before", _WARNING, "remedy",
    )  # fmt: skip
    RELOAD_UNCONFIRMED = "reload is taken back unless it is confirmed", _WARNING, "within_s"
    RELOAD_FAILED = "reload failed, it is taken back", _ERROR, "reason"
    RELOAD_NOT_CONFIRMED = "reload was not confirmed in time, it is taken back", _WARNING
    RELOAD_PARTLY_TAKEN_BACK = "reload taken back, but not wholly", _ERROR, "reason"
    RELOAD_TAKEN_BACK = "reload taken back, the former configuration is in force", _WARNING
    RELOAD_CONFIRMED = "reload confirmed", _INFO
    RELOAD_ENDS_WITH_DRO = "reload ends with the DRO", _WARNING, "state"

    # orders of operators
    ORDER_RECEIVED = "order received", _INFO, "command arguments *"
    ADMIN_COMMAND_FAILED = "admin command failed", _CRITICAL, "command"
    ADMIN_NOT_ACCEPTED = "admin client cannot be accepted", _WARNING, "reason"
    ADMIN_TURNED_AWAY = "admin client turned away", _WARNING, "reason *"
    ADMIN_DROPPED = "admin client dropped", _WARNING, "reason"
    MONITOR_LISTENS = "web monitor listens", _INFO, "address"
    MONITOR_CANNOT_LISTEN = "web monitor cannot listen", _ERROR, "address reason remedy"
    MONITOR_CLIENT_DROPPED = "client of the web monitor dropped", _WARNING, "reason"
    MONITOR_REQUEST_FAILED = "request to the web monitor failed", _ERROR, "path reason"
    MONITOR_BAD_VARIABLE = "environment variable for the web monitor ignored", _ERROR, "variable reason"
    MONITOR_ORDER = "order over HTTP", _INFO, "order who address result"
    HISTORY_BEGINS = "history is written", _INFO, "folder interval_s"
    HISTORY_NOT_WRITTEN = "history is not written", _ERROR, "reason"
    HISTORY_WRITTEN_AGAIN = "history is written again", _INFO, "folder"
    STATISTICS_BEGIN = "statistics over UM begin", _INFO, "interval_s format transport topic target"
    STATISTICS_NOT_OPEN = "statistics over UM do not begin, tried again", _ERROR, "element reason"
    STATISTICS_DEFAULTS = "no lbm-config for daemon statistics, defaults hold", _NOTICE, "", "Gwd-10958-1"
    DAEMON_STATISTICS_BEGIN = "daemon statistics begin", _INFO, "topic target"
    LIBRARY_NOT_SHOWN = "statistics of the UM library are not shown", _WARNING, "reason remedy"
    STATISTICS_NOT_SAMPLED = "statistics over UM: no sample", _ERROR, "reason"
    STATISTICS_NOT_SENT = "statistics over UM: message not sent", _ERROR, "format reason", "Gwd-10763-4"
    STATISTICS_ORDER = "control request", _INFO, "request from"
    STATISTICS_REQUEST_REFUSED = "control request refused", _WARNING, "request from reason", "Gwd-10185-93"
    STATISTICS_REQUEST_TOO_LONG = "control request too long", _WARNING, "request from reason", "Gwd-10185-96"
    STATISTICS_REQUESTS_LIMITED = "control requests dropped: more than are answered in a second", _WARNING, "from limit"
    OPERATION_BEGINS = "operation begins", _INFO, "operation worker"
    OPERATION_FAILED = "operation failed", _ERROR, "operation worker reason"
    OPERATION_NOTE = "operation done, but not cleanly", _WARNING, "operation worker note"
    OPERATION_DONE = "operation done", _INFO, "operation worker"
    DRAIN_BEGINS = "drain begins", _INFO, "limit_ms"
    DRAIN_AT_LIMIT = "drain ends at its limit", _WARNING, "waiting"
    DRAIN_OVER = "drain is over", _INFO

    # processes
    DRO_CANNOT_START = "DRO cannot start", _CRITICAL, "reason remedy *", "Gwd-11041-1"
    WORKER_CANNOT_RUN = "worker cannot run", _CRITICAL, "reason remedy", "Gwd-11041-2"
    UPGRADE_BEGINS = "upgrade begins", _INFO, "former version can_go_back"
    UPGRADE_DONE = "upgrade is done", _INFO, "version"
    UPGRADE_REFUSED = "upgrade is refused, nothing has changed", _ERROR, "reason remedy"
    UPGRADE_GOES_BACK = "upgrade goes back to the former version", _ERROR, "version reason"
    UPGRADE_FAILED = "upgrade has failed", _ERROR, "version reason remedy"
    DRO_TAKEN_OVER = "DRO is taken over", _INFO, "dro version former"
    WORKER_STARTED = "worker started", _INFO, "worker incarnation pid *"
    WORKER_READY = "worker ready", _INFO, "worker incarnation"
    WORKER_ENDED = "worker ended", None, "worker *"
    WORKER_RESTARTED = "worker is restarted", _INFO, "worker in_ms *"
    WORKER_STARTS_CLEAN = "what a worker had kept for its next life is not used", _INFO, "worker reason sockets"
    SOCKET_NOT_KEPT = (
        "a socket of a worker is not kept for its next life, it ends with this one", _WARNING, "worker reason remedy"
    )
    STATE_NOT_KEPT = "a worker keeps nothing for its next life", _WARNING, "worker reason"
    WORKER_SILENT = "worker does not answer", _WARNING, "worker"
    WORKER_ANSWERS = "worker answers again", _INFO, "worker"
    WORKER_KILLED = "worker is killed", _ERROR, "worker"
    WORKER_TOO_SLOW = "worker did not end in time, it is killed", _ERROR, "worker"
    WORKER_DEAF = "worker does not listen, it is started anew", _ERROR, "worker"
    WORKER_HUNG = "worker does not answer for too long, it is started anew", _ERROR, "worker"
    WORKER_STUCK = "worker takes no messages from its siblings, it is started anew", _ERROR, "worker reported_by"
    CANNOT_START_PROCESS = "cannot start a process", _ERROR, "worker reason remedy *"
    FILES_GONE = "files of this DRO were removed, what can be made anew is", _ERROR, "gone count remedy"
    FILES_NOT_MADE = "files of this DRO cannot be made anew", _ERROR, "reason remedy"
    WORKER_WITHOUT_FILES = "worker is started anew, as its files were removed", _ERROR, "worker"
    PARENT_FAULT = "a fault of the parent process, it goes on; report it", _ERROR, "reason"
    SIBLING_STUCK = "sibling takes no control messages", _ERROR, "worker incarnation"
    PARENT_GONE = "the parent process is gone", _ERROR
    RING_NOT_OPENED = "ring of a sibling cannot be opened", _WARNING, "sibling error"
    FRAGMENTS_LOST = "fragments lost with a worker", _INFO, "sibling fragments"
    DESCRIPTOR_BROKEN = "descriptor of a sibling does not decode", _ERROR, "error"

    # routes
    ROUTES_LATE = "topology keeps changing, routes are late", _WARNING, "waiting_ms", "Gwd-6361-75"
    ROUTES_NOT_KEPT = "routes are not kept for a restart of the route manager", _WARNING, "reason remedy"
    ROUTES_SLOW = "route recalculation takes longer than the propagation interval", _WARNING, "took_s", "Gwd-6361-91"
    SIGNATURES_DIFFER = "topology signatures of DROs differ", _WARNING, "waiting_ms own dros remedy"
    LINK_REFUSED = "link carries no traffic", _ERROR, "portal node_id reason remedy", "Gwd-7097-3"
    NAMED_LINK_REFUSED = "link to a DRO carries no traffic", _ERROR, "portal dro node_id reason remedy", "Gwd-7097-4"
    HOTLINK_CHAIN = "paths over two hotlinks one after the other are not used", _WARNING, "pairs count remedy"
    HOTLINK_INDEX_SHARED = "DROs of a TRD use the same hotlink index", _ERROR, "domain index dros remedy"
    ROUTE_INFO_MALFORMED = "route information dropped: not parsed", _ERROR, "portal error", "Gwd-6361-84"
    ROUTE_INFO_REFUSED = "route information of a DRO refused", _ERROR, "portal dro node_id reason", "Gwd-6361-111"
    ROUTE_INFO_DENIED = "route information of a DRO that has denied it, refused", _WARNING, "portal dro node_id remedy"
    ROUTE_INFO_UNSIGNED = "unauthenticated route information dropped", _WARNING, "portal dro node_id reason remedy"
    NODE_ID_USED_TWICE = "another DRO uses the node id of this one", _ERROR, "portal node_id remedy"
    TOO_MANY_DROS = "route information of a DRO dropped: too many DROs", _WARNING, "portal node_id reason"
    DOMAIN_TAKEN = "two portals in one domain, the second is ignored", _ERROR, "worker domain", "GwdApi-7097-2"

    # peer links
    PEER_CONNECTED = "connected to the companion", _INFO, "peer dro", "Gwd-9175-17"
    PEER_ACCEPTED = "accepted the companion", _INFO, "peer dro", "Gwd-9175-32"
    PEER_LINK_UP = (
        "peer link is up", _INFO, "dro node_id", "Gwd-7097-1",
        "peer portal [{process}] has just established a connection to gateway named: [{dro}] with node id: {node_id}",
    )
    PEER_LINK_LOST = (
        "peer link lost", _INFO, "peer interface reason remedy", "Gwd-6033-618",
        "peer portal [{process}] lost connection to peer at [{peer}] via [{interface}]",
    )
    PEER_CONNECT_FAILED = "no connection to the companion", _ERROR, "peer interface error", "Gwd-9175-6"
    PEER_REFUSED = "connection of a peer link refused", _WARNING, "peer reason remedy"
    PEER_LISTEN_FAILED = (
        "cannot listen for the companion, tried again", _ERROR, "address error remedy", "Gwd-9175-21"
    )
    PEER_ACCEPT_FAILED = "cannot accept a connection of a peer link", _ERROR, "address error", "Gwd-9175-24"
    LINK_ONE_SIDED = "a link that only one of two DROs lists", _WARNING, "dro neighbour reason remedy"
    PEER_ABSENT = "no link to the companion", _WARNING, "waiting_s reason remedy"
    PEER_DEGRADED = "the link is up and carries nothing, no route takes it", _WARNING, "silent_ms remedy"
    PEER_CARRIES = "the link carries data, as its canaries are answered", _INFO, "silent_ms"
    PEER_ODD = "odd configuration of a peer link", _WARNING, "peer reason remedy"
    PEER_SOURCE_IGNORED = "source of the companion ignored", _WARNING, "topic otid reason"
    PEER_SOURCE_UNREADABLE = "a source of the companion cannot be read, ignored", _WARNING, "peer error"
    PEER_UDP_UP = "data of the peer link goes by UDP", _INFO, "peer port"
    PEER_DATAGRAM_DROPPED = "datagram on the port of a peer link dropped", _WARNING, "peer reason remedy"
    PEER_DATAGRAMS_LOST = "datagrams of a peer link lost for good", _WARNING, "lost"
    PEER_DATA_FORGOTTEN = "data lost with a connection: more was under way than is kept", _WARNING, "bytes kept remedy"
    PEER_REPAIRED = "the companion had missed something, it is told once more", _WARNING, "interest sources"

    # proxies and their traffic
    ENQUEUEING_BEGAN = (
        "began enqueueing data", _INFO, "suppressed?", "Gwd-6945-1", "Portal [{process}] began enqueueing data"
    )
    QUEUE_DROPS = (
        "dropping data due to high volume", _INFO, "dropped max_queue", "Gwd-6945-2",
        "Portal [{process}] dropping data due to high volume",
    )
    QUEUE_FLUSHED = (
        "completed flushing queue", _INFO, "", "Gwd-6945-3", "Portal [{process}] completed flushing queue"
    )
    SIBLING_FULL = "a sibling takes no fragments, they are dropped", _WARNING, "sibling *"
    RING_FULL = "no shared memory for fragments, they are dropped", _ERROR, "error"
    SIBLING_TAKES_AGAIN = "a sibling takes fragments again", _INFO, "sibling refused"
    QUEUED_DATA_DROPPED = "queued data of a deleted proxy source thrown away", _INFO, "topic", "Gwd-10434-1"
    FRAGMENT_TOO_LARGE = (
        "fragment larger than the datagram size of the transport", _ERROR, "topic bytes limit", "Gwd-6361-42"
    )
    FLOW_RESTARTED = "a source counts its messages anew", _WARNING, "topic sqn"
    PROXY_SOURCE_CREATED = "proxy source created", _INFO, "topic otid"
    PROXY_SOURCE_DELETED = "proxy source deleted", _INFO, "topic otid"
    PROXY_SOURCE_REFUSED = "proxy source cannot be created", _ERROR, "topic error", "Gwd-6361-38"
    PROXY_SOURCE_LEFT = "proxy source left: its DRO is gone, another way is advertised", _INFO, "topic source"
    PROXY_RECEIVER_CREATED = "proxy receiver created", _INFO, "topic? pattern? domains"
    PROXY_RECEIVER_DELETED = "proxy receiver deleted", _INFO, "topic? pattern?"
    ADVERTISEMENT_UNCHANGED = "advertisement unchanged", _WARNING, "topic error"
    TOPIC_NOT_LET_OUT = "topic not let out of the DRO", _INFO, "*"
    TOPIC_NOT_LET_IN = "topic not let into the DRO", _INFO, "*"
    SOURCE_NOT_LET_IN = "source not let into the DRO", _INFO, "*"

    # topic resolution and what others send
    DOMAIN_DISCOVERED = "domain id discovered", _INFO, "context domain_id"
    FOREIGN_DOMAIN = "TR packet of another domain dropped", _WARNING, "from domain_id own"
    TR_MALFORMED = "malformed TR datagram dropped", _WARNING, "from error dropped"
    DEVICE_GONE = "a network device or address is gone, its traffic is not heard", _WARNING, "reason remedy"
    DEVICE_BACK = "network devices and addresses are there again, groups are joined anew", _INFO, "was"
    DEVICES_UNWATCHED = "network devices that are made again are not noticed", _WARNING, "reason remedy"
    TR_NOT_SENT = "TR datagram not sent", _WARNING, "error failed"
    TR_RECEIVE_FAILED = "TR receive failed", _WARNING, "error"
    TR_OFF = "topics are not resolved: UDP is off and no SRS is listed, so nobody is heard", _WARNING, "remedy"
    TR_UNKNOWN_SENDER = "TR datagram dropped: its sender is none of the daemons", _WARNING, "from dropped remedy"
    DAEMON_SILENT = "resolver daemon is silent, others are used if there are any", _WARNING, "daemon active"
    SRS_CONNECTED = "connected to SRS", _INFO, "srs"
    SRS_LOST = "SRS not reached", _WARNING, "srs reason"
    SRS_MALFORMED = "SRS record dropped", _WARNING, "srs error dropped"
    DAEMON_HEARD = "resolver daemon is heard again", _INFO, "daemon active"
    INTEREST_WITHOUT_NAME = "interest ignored: no name", _WARNING, "symbol"
    NEW_NAMES_LEFT_OUT = "new names of the TRD left out", _WARNING, "counter count"
    PATTERN_IGNORED = "pattern ignored", _WARNING, "pattern error", "Gwd-5975-1"
    PATTERN_LIMIT = "pattern takes too long to match, counts as no match", _WARNING, "pattern"
    PATTERN_WAITS = "pattern waits: too many are wanted there", _WARNING, "symbol remedy"
    QUERY_PATTERN_BAD = "wildcard query ignored: bad pattern", _WARNING, "pattern"
    SOURCE_HOPS = "source ignored: too many hops", _WARNING, "topic"
    SOURCE_OTHER_OTID = "source ignored: known under another OTID", _WARNING, "topic"
    SOURCE_OTHER_TOPIC = "source ignored: its OTID is known under another topic or domain", _WARNING, "*"
    SOURCE_TRANSPORT = "source ignored: its transport is not supported", _WARNING, "*"
    SOURCE_INDEX = "source ignored: its topic index is another topic's", _WARNING, "*"
    RECEIVERS_DIFFER = "receivers of a topic differ: the options of the first one hold", _WARNING, "topic *"

    # multicast immediate messages
    IMMEDIATE_SENDERS = "immediate messages dropped: too many new senders", _WARNING, "from limit"
    IMMEDIATE_NO_SESSION = "no session for immediate messages", _WARNING, "error"
    IMMEDIATE_NOT_SENT = "immediate message not sent", _WARNING, "target? reason"
    IMMEDIATE_NO_DOMAIN = (
        "immediate message dropped: it does not name its domain", _WARNING, "peer remedy", "Gwd-6361-133"
    )
    IMMEDIATE_TOO_EARLY = "immediate message dropped: no routes calculated yet", _WARNING, "peer"
    IMMEDIATE_BROKEN = "immediate message dropped: its blocks break their layout", _WARNING, "peer error"
    IMMEDIATE_TOO_LARGE = (
        "immediate message dropped: larger than a datagram of the TRD", _ERROR, "bytes remedy", "Gwd-6361-45"
    )

    # unicast immediate messages
    REQUEST_PORT_FAILED = "request port: accept failed", _WARNING, "port error"
    REQUEST_PORT_FULL = "request port: a silent connection closed for a new one", _WARNING, "peer limit"
    REQUEST_PORT_OUTSIDE = "request port outside the default range, which is taken", _INFO, "port range remedy"
    REQUEST_STREAM_BROKEN = "request connection closed: its bytes are no LBMC messages", _WARNING, "peer error"
    UNICAST_CONNECTION_LOST = "connection to a request port failed", _WARNING, "peer reason"
    NO_REQUEST_PORT = "no request port: unicast messages and route information cannot enter here", _WARNING, "remedy"
    UNICAST_DATA_UNADDRESSED = "unicast message dropped: no routing information", _WARNING, "peer", "Gwd-6259-50"
    UNICAST_CONTROL_UNADDRESSED = (
        "unicast control message dropped: no routing information", _WARNING, "peer", "Gwd-6259-52"
    )
    UNICAST_DATA_MANY_HOPS = "unicast message has passed very many DROs", _WARNING, "hops peer", "Gwd-6259-51"
    UNICAST_CONTROL_MANY_HOPS = (
        "unicast control message has passed very many DROs", _WARNING, "hops peer", "Gwd-6259-53"
    )
    UNICAST_DATA_LOOPS = "unicast message dropped: too many hops, routes loop", _ERROR, "peer", "Gwd-6259-55"
    UNICAST_CONTROL_LOOPS = (
        "unicast control message dropped: too many hops, routes loop", _ERROR, "peer", "Gwd-6259-56"
    )
    UNICAST_NOT_SENT = (
        "unicast message not sent into the TRD", _WARNING, "reason domain_id ip port", "Gwd-6259-54"
    )
    UNICAST_DATA_NO_STREAM = "unicast message dropped: no stream information", _WARNING, "peer"
    UNICAST_CONTROL_NO_STREAM = (
        "unicast control message dropped: no stream information", _WARNING, "peer", "Gwd-6033-353"
    )
    UNICAST_NO_ROUTE = "unicast message dropped: no route", _WARNING, "domain_id peer", "Gwd-6361-123"
    UNICAST_TOO_EARLY = "unicast message dropped: no routes calculated yet", _WARNING, "peer", "Gwd-6361-124"
    UNICAST_NO_CONTEXT = (
        "unicast message dropped: no forwarding entry for destination ctxinst", _WARNING, "instance peer"
    )
    UNICAST_UNHANDLED = "unicast message for the DRO itself dropped", _WARNING, "peer"
    UNICAST_BROKEN = "unicast message dropped: its blocks break their layout", _WARNING, "peer error"
    GATEWAY_CONTROL_LIMITED = "control messages of DROs dropped: too many", _WARNING, "peer"
    GATEWAY_CONTROL_REFUSED = "route information refused: no DRO has announced that address", _WARNING, "peer remedy"
    UNICAST_NOT_TAKEN = "unicast message dropped by an application", _DEBUG, "peer reason"
    RESPONSE_NOT_SENT = "response not sent", _WARNING, "target reason"
    NEIGHBOUR_DRO = "another DRO of the TRD", _INFO, "address instance"

    # transports
    SESSION_JOINED = "session joined", _DEBUG, "source"
    SESSION_NOT_JOINED = "session cannot be joined", _WARNING, "error *"
    LBMC_BROKEN = "bad LBMC content", _DEBUG, "error"
    FRAGMENT_DROPPED = "fragment dropped", _DEBUG, "source error"
    RECEIVE_FAILED = "receive failed", _WARNING, "group error"
    SEND_FAILED = "send failed", _WARNING, "session error failed"
    NAK_NOT_SENT = "NAK not sent", _WARNING, "to error"
    NAK_SOCKET_FAILED = "NAK socket failed", _WARNING, "error"
    SOURCE_NOT_ASKED = (
        "source filters and cannot be asked for topics: nothing of them comes, tried again", _WARNING, "source peer"
    )
    FILTER_REQUEST_REFUSED = "request to filter refused", _WARNING, "peer reason"
    TCP_STREAM_BROKEN = "TCP session closed: its bytes are no LBMC messages", _WARNING, "source error"
    TCP_ACCEPT_FAILED = "accept failed", _WARNING, "port error"
    LBTRU_PORTS_TAKEN = "ports of LBT-RU are taken, another one is used", _WARNING, "low high port"
    LBTRU_REQUEST_UNKNOWN = "LBT-RU request of an unknown kind dropped", _WARNING, "client request"
    LBTRU_CLIENT_REFUSED = "LBT-RU receiver refused: the session has as many as may be", _WARNING, "client limit"
    TLS_FAILED = "TLS connection refused", _WARNING, "peer reason remedy?"
    TLS_FILES_REFUSED = "changed TLS files cannot be used, the former ones stay in force", _ERROR, "reason remedy"
    TLS_FILES_RENEWED = "changed TLS files are in force", _INFO, "certificate"
    CERTIFICATE_EXPIRES = "certificate has to be renewed", _WARNING, "file days"
    TCP_DISCARDED = "messages discarded for a slow receiver", _WARNING, "client messages"
    IPC_ACCEPT_FAILED = "accept failed on LBT-IPC", _WARNING, "source error"
    IPC_BROKEN = "LBT-IPC session closed: its memory holds no LBMC messages", _WARNING, "source error"
    IPC_RECEIVER_REFUSED = "receiver of LBT-IPC refused", _WARNING, "source client reason remedy"
    IPC_NOT_JOINED = "LBT-IPC session not joined, tried again", _WARNING, "source reason remedy"
    IPC_ELSEWHERE = (
        "LBT-IPC sessions of other hosts, and of other implementations, are not joined: their layout is not public",
        _INFO, "source",
    )  # fmt: skip
    TCP_RECEIVER_CLOSED = "receiver connection closed", _INFO, "client reason *"

    # daemons of topic resolution
    SERVICE_STARTS = "daemon starts", _INFO, "daemon version config"
    SERVICE_RUNS = "daemon runs", _INFO, "daemon address"
    SERVICE_STOPS = "daemon stops", _INFO, "daemon signal"
    SERVICE_CANNOT_START = "daemon cannot start", _CRITICAL, "daemon reason"
    METRICS_LISTEN = "metrics are served", _INFO, "address"
    CLIENT_REGISTERED = "client registered", _INFO, "client domain?"
    CLIENT_EXPIRED = "client was silent, removed", _INFO, "client"
    CLIENT_REFUSED = "client refused: there are as many as may be", _WARNING, "from clients remedy"
    TR_OVERLOAD = "TR datagrams dropped: more than can be passed on", _WARNING, "from dropped"
    TR_UNTRANSLATED = "TR datagram not sent to another network domain: not translated", _WARNING, "from error"
    SRS_CLIENT_REGISTERED = "client registered over TCP", _INFO, "from client"
    SRS_CLIENT_LOST = "client has lost its connection", _INFO, "from client"
    SRS_CONNECTION_ENDED = "connection of a client ended", _WARNING, "from reason"
    SRS_UNREADABLE = "records of a client cannot be read", _WARNING, "from error"
    SRS_RECORDS_REFUSED = "records of clients refused", _WARNING, "refused remedy"
    SRS_DOMAIN = "domain id told by a DRO", _INFO, "from domain"
    SRS_ACCEPT_FAILED = "connection could not be taken", _ERROR, "error"

    # callbacks of an application
    RECEIVER_EVENT_CALLBACK = "event callback of a receiver failed", _ERROR, "topic"
    MESSAGE_CALLBACK = "message callback of a receiver failed", _ERROR, "topic"
    SOURCE_CALLBACK = "source callback of a receiver failed", _ERROR, "topic"
    SOURCE_EVENT_CALLBACK = "event callback of a source failed", _ERROR, "topic"
    REQUEST_CALLBACK = "callback of a request failed", _ERROR, ""
    TOPIC_CALLBACK = "topic callback of a wildcard receiver failed", _ERROR, "topic"

    # the log itself
    LOG_UNCHANGED = "log stays where it was", _ERROR, "reason remedy"
    LOG_TROUBLE = "trouble with the log", _WARNING, "reason"
    LOG_LINES_LOST = "log lines lost", _WARNING, "lines reason"
    LOG_LINE_BROKEN = "log line cannot be made", _ERROR, "text"
    LINES_REPEATED = "...previous THROTTLED MSG repeated %s times in %s seconds", None, "last_s_ago line"
    # fmt: on


_DEPRECATED: Final = "DEPRECATED_"
DEPRECATED_ELEMENTS: Final = {
    event.name.removeprefix(_DEPRECATED).replace("_", "-").lower(): event
    for event in LogEvent
    if event.name.startswith(_DEPRECATED)
}


def configuration_warning(log: logging.Logger) -> Callable[[str], None]:
    """Return what logs the warnings of a configuration that is read.

    That of a deprecated element has the attributes `place` and `element`.
    """

    def warn(text: str) -> None:
        if (element := getattr(text, "element", "")) in DEPRECATED_ELEMENTS:
            log.warning(DEPRECATED_ELEMENTS[element], getattr(text, "place", ""))
        else:
            log.warning(LogEvent.CONFIG_WARNING, text)

    return warn

"""LBT-IPC as a transport kind: receivers of the same host read the memory of a session, sources share a pool of ids.

A source without an explicit transport id takes the next unused one of the pool; when all are in use, they are shared by
turns. An explicit id outside of the pool is separate. Source: transport notes 9 and 15.3. The layout of the memory is
our own.
"""

from __future__ import annotations

import logging
from typing import Final

from dro.config.um.options import UmOptions
from dro.errors import DecodeError, ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.lbtipc.receiver import IpcReceiverConfig, IpcReceiverCore
from dro.proto.lbtipc.source import IpcSourceConfig, IpcSourceCore
from dro.shared_memory.records import RecordWriter
from dro.transport.kept_senders import KeptSenders, SentBefore
from dro.transport.kind import SenderEvents, SenderPool, SessionHost, TransportKind
from dro.transport.lbtipc import memory as shared
from dro.transport.lbtipc.kept import LISTENER, SOURCE_KIND, KeptIpc, SentRecords, connections, memory_path
from dro.transport.lbtipc.options import IpcReceiverOptions, IpcSourceOptions
from dro.transport.lbtipc.receiver import IpcReceiver
from dro.transport.lbtipc.sender import IpcSender, IpcSenderSetup
from dro.transport.runs import RunTable
from dro.transport.session import OnEnded, SenderTransport, SessionCounts, SessionSink
from dro.wire.source_string import IpcAddress, format_source

log = logging.getLogger(__name__)
limited = LimitedLogger(log, burst=1, interval_ns=1 << 62).event

_NAMES: Final = 8  # session ids to try, for one whose name is free


class IpcReceivers:
    """Joins sessions."""

    def __init__(self, host: SessionHost, sink: SessionSink, on_ended: OnEnded) -> None:
        self._host = host
        self._sink = sink
        self._on_ended = on_ended
        self._table: RunTable | None = None  # of all sessions

    def join(self, address: IpcAddress, options: UmOptions, now_ns: int) -> IpcReceiver:
        if self._table is None:
            self._table = RunTable()
        core = IpcReceiverCore(IpcReceiverOptions.filling(IpcReceiverConfig, options), now_ns)
        return IpcReceiver(
            self._host.loop, address, core, self._sink, self._on_ended, table=self._table, kept=self._host.kept
        )

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def close(self) -> None:
        pass


class IpcSenders(SenderPool[int]):
    """The sessions of sources of one context, by transport id."""

    def __init__(self, host: SessionHost, events: SenderEvents, sm_before_data: bool) -> None:
        """Messages of life come at fixed times, whatever is sent."""
        super().__init__()
        self._host = host
        self._events = events
        self._kept = KeptSenders(host.kept, SOURCE_KIND)

    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        o = IpcSourceOptions.of(options)
        if former and (sender := self._former(former, o)) is not None:
            return sender
        if o.transport_id:
            return self._open.get(o.transport_id) or self._open_session(o, o.transport_id)
        pool = range(o.id_low, o.id_high + 1)
        unused = next((i for i in pool if i not in self._open and self._kept.waiting_at((i,)) is None), None)
        if unused is not None:
            return self._open_session(o, unused)
        members = [self._open[i] for i in pool if i in self._open]
        if not members:
            raise ResourceError(
                f"no transport id of {o.id_low} to {o.id_high} is free",
                remedy="set transport_lbtipc_id_low and transport_lbtipc_id_high to a larger range",
            )
        return self._share(members)

    def _former(self, transport_index: int, o: IpcSourceOptions) -> SenderTransport | None:
        """Find the session of that transport index, which the former incarnation may have left."""
        for sender in self._open.values():
            if sender.transport_index == transport_index:
                return sender
        key, folder = self._kept.key_of(transport_index), self._host.kept.folder
        if key is None or folder is None:
            return None
        former = self._kept.take(transport_index, (LISTENER,), 0)
        if former is None:
            return None
        address = IpcAddress(shared.host_id(), former.log.mark, key[0])
        kept = KeptIpc(self._kept, transport_index, key[0], former.log)
        try:
            memory = RecordWriter.go_on(memory_path(folder, transport_index), address.session_id)
            self.sent_before[transport_index] = SentBefore(SentRecords(memory), 0, self._host.kept.turn.former)
            setup = IpcSenderSetup(
                address, transport_index, former.sockets[LISTENER], memory, o.datagram_max_bytes, self._host.kept.turn,
                kept,
            )  # fmt: skip
            sender = self._sender(setup, o)
        except (DecodeError, ResourceError):
            former.close()
            kept.forget()
            return None
        for name, sock in connections(former):
            sender.go_on(name, sock)
        return sender

    def forget_waiting(self) -> None:
        super().forget_waiting()
        self._kept.forget_waiting()
        if (folder := self._host.kept.folder) is not None:
            used = {memory_path(folder, sender.transport_index) for sender in self._open.values()}
            for path in {*folder.glob(memory_path(folder, 0).stem + ".*")} - used:
                path.unlink(missing_ok=True)

    def _open_session(self, o: IpcSourceOptions, transport_id: int) -> SenderTransport:
        transport_index, kept_here, kept = self._host.new_id(), self._host.kept, None
        for _ in range(_NAMES):
            address = IpcAddress(shared.host_id(), self._host.new_id(), transport_id)
            if (listener := shared.listen(address)) is not None:
                break
        else:
            raise ResourceError("no free name for a session of LBT-IPC", remedy="set another transport_lbtipc_id")
        log = self._kept.log(transport_index, 0, 0, address.session_id) if self._kept.keeps else None
        path = None
        if log is not None and kept_here.folder is not None:
            path = memory_path(kept_here.folder, transport_index)
            kept = KeptIpc(self._kept, transport_index, transport_id, log)
        try:
            memory = shared.make_memory(address, o.window_size_bytes, path)
            setup = IpcSenderSetup(
                address, transport_index, listener, memory, o.datagram_max_bytes, kept_here.turn, kept
            )  # fmt: skip
            sender = self._sender(setup, o)
        except ResourceError:
            listener.close()
            if kept is not None:
                kept.forget()
            raise
        if kept is not None:
            self._kept.keep(transport_index, (transport_id,), LISTENER, listener)
        return sender

    def _sender(self, setup: IpcSenderSetup, o: IpcSourceOptions) -> IpcSender:
        config = o.fill(IpcSourceConfig, is_receiver_paced=o.behavior == "receiver_paced")
        core = IpcSourceCore(config, self._host.loop.now_ns())
        sender = IpcSender(self._host.loop, setup, core, self._events)
        self._open[setup.address.transport_id] = sender
        return sender


def is_near(address: IpcAddress) -> bool:
    """Say whether a session is of this host, and of this implementation; says once in the log that others are not."""
    if address.host_id == shared.host_id():
        return True
    limited(LogEvent.IPC_ELSEWHERE, extra={"source": format_source(address)})
    return False


KIND: Final = TransportKind(IpcAddress, IpcReceivers, IpcSenders, is_near=is_near)

from dro.bus.counters cimport CounterPage
from dro.transport.runs cimport RunTable
from portals.datapath.descriptor cimport decode, table_bytes
from portals.datapath.outgoing cimport Lane

cdef Py_ssize_t _ACCOUNTED, _SENT, _SENT_OF, _FORWARDED

cdef class Egress:
    cdef public object queue, _now_ns, _call_later, _order, logs
    cdef public CounterPage _page
    cdef public dict _feeds, _lanes, _touched, _rings, _again
    cdef public RunTable _table
    cdef public bytearray _buffer
    cdef public object _worker
    cdef public bint _packs_all, _is_timed, is_operational
    cdef public long long _drops_logged_ns

    cpdef object on_batch(self, object worker, object slot)
    cpdef object _send_batch(self)
    cpdef object _send_rows(self, list lanes, object worker, bytearray buffer)
    cpdef object flush_sessions(self)
    cpdef object _send(self, Lane lane, object worker, bytearray buffer, RunTable table, object now_ns, list sent)
    cpdef object _count_sent(self, object worker, list sent)
    cpdef object _drop(self, object slot, object worker, object fragments, object nbytes)

cimport cython

from dro.bus.counters cimport CounterPage, Histogram
from dro.shared_memory.ring cimport RingWriter
from dro.transport.runs cimport RunTable
from portals.datapath.descriptor cimport encode

cdef Py_ssize_t _HANDED, _TOPIC_RCVD, _BATCHES_IN, _RUNS_IN
cdef long long _NS_PER_US
cdef object _SOURCE_DATA, _new

cdef class Pending:
    cdef public RunTable table
    cdef public Py_ssize_t placed
    cdef public long long base, end, since_ns

    cpdef object new_rows(self)

cdef class Ingress:
    cdef public object requests, counts_unknown, _queues, _wake, _name_of, _at_turn_end, _clock, _rows
    cdef public RingWriter _ring
    cdef public CounterPage _page
    cdef public Histogram _latency
    cdef public Py_ssize_t _chunk_max
    cdef public dict _pending, _refusals, _handed, _announced
    cdef public long long _now_ns

    cpdef object flush(self)
    cpdef Pending _out(self, object worker)
    cpdef bint _select_plain(self, dict sources, RunTable table) except -1
    cpdef object _place(self, object view)
    cpdef object _join(self, list found, object data, long long low)
    cpdef object _put(self, object data)
    cpdef object _announce(self, object worker, Pending pending)

from dro.um.transport.runs cimport RunTable
from portals.datapath.duplicate_window cimport DuplicateWindow

cdef class ProxySource:
    cdef public object otid, topic, transport
    cdef public unsigned int topic_index
    cdef public DuplicateWindow window
    cdef public list feeders
    cdef public Lane lane
    cdef public Py_ssize_t queued
    cdef public bint tsni_waits

cdef class Lane:
    cdef public object transport, waiting
    cdef public Py_ssize_t fragment_max_bytes
    cdef public dict proxies
    cdef public list starts, topics
    cdef public RunTable table

    cpdef object note(self, Py_ssize_t row, unsigned int topic_index)
    cpdef RunTable gather(self, object raw, bint is_sorted)

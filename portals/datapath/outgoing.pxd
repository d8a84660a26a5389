cimport cython

from dro.transport.runs cimport RunTable
from portals.datapath.duplicate_window cimport DuplicateWindow

cdef Py_ssize_t _WORDS, _FRAGMENTS, _LENGTH, _SHAPE
cdef unsigned int _REQUEST

cdef class ProxySource:
    cdef public object otid, topic, transport
    cdef public unsigned int topic_index
    cdef public DuplicateWindow window
    cdef public list feeders
    cdef public Lane lane
    cdef public Py_ssize_t queued
    cdef public bint before_goes_on, tsni_waits

cdef class Lane:
    cdef public object transport, waiting, log
    cdef public Py_ssize_t fragment_max_bytes
    cdef public dict proxies
    cdef public list noted, topics
    cdef public RunTable table

    cpdef object note(self, Py_ssize_t row, unsigned int topic_index)
    @cython.locals(cells="unsigned int[::1]", found="unsigned int[::1]", to=Py_ssize_t, start=Py_ssize_t, rows=Py_ssize_t,
                   number=Py_ssize_t, column=Py_ssize_t)
    cpdef RunTable gather(self, RunTable batch)

@cython.locals(cells="unsigned int[::1]", at=Py_ssize_t, nth=Py_ssize_t, fragments="long long", nbytes="long long")
cpdef tuple totals(RunTable table)

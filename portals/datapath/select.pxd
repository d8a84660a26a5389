cimport cython

from dro.transport.runs cimport RunTable
from portals.datapath.handover cimport ForwardEntry

cdef Py_ssize_t _WORDS, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE, _HEADROOM
cdef unsigned int _NO_HEADROOM, _PLAIN_BELOW

@cython.locals(cells="unsigned int[::1]", at=Py_ssize_t, nth=Py_ssize_t, entry=ForwardEntry, egress=object, handles=list)
cpdef object plain_part(RunTable table, dict sources)
@cython.locals(cells="unsigned int[::1]", to="unsigned int[::1]", at=Py_ssize_t, row=Py_ssize_t, start=Py_ssize_t,
               column=Py_ssize_t, n=Py_ssize_t)
cpdef object take_all(RunTable table, list handles, RunTable out)
@cython.locals(cells="unsigned int[::1]", at=Py_ssize_t, offset="long long", length="long long", low="long long",
               high="long long", row=Py_ssize_t)
cpdef tuple extent(RunTable table, Py_ssize_t first=*)
@cython.locals(cells="unsigned int[::1]", at=Py_ssize_t, row=Py_ssize_t)
cpdef object move(RunTable table, long long distance, Py_ssize_t first=*)
@cython.locals(cells="unsigned int[::1]", source="const unsigned char[::1]", out="unsigned char[::1]", at=Py_ssize_t,
               row=Py_ssize_t, to=Py_ssize_t, offset=Py_ssize_t, length=Py_ssize_t, size=Py_ssize_t)
cpdef object compact(object view, RunTable table, Py_ssize_t first, Py_ssize_t most)

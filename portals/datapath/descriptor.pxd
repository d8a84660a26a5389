cimport cython

from dro.um.transport.runs cimport RunTable

cdef Py_ssize_t _WORDS, _FRAGMENTS, _OFFSET, _LENGTH, _SHAPE
cdef unsigned int _DATA_BELOW, _LEAST

@cython.locals(cells="unsigned int[::1]", at=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t, offset="unsigned int",
               length="unsigned int", shape="unsigned int")
cpdef bint all_single(RunTable table, Py_ssize_t first, Py_ssize_t size) except -1

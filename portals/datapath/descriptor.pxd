cimport cython

from dro.transport.runs cimport RunTable

cdef Py_ssize_t _WORDS, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE
cdef unsigned int _KIND_SHIFT, _DATA, _CONTROL, _TSNI, _LEAST, _LEAST_CONTROL

cdef object _pack, _unpack_from

cpdef bytes encode(object position, object size, RunTable table)

cpdef Py_ssize_t table_bytes(Py_ssize_t rows)

@cython.locals(first=Py_ssize_t)
cpdef tuple decode(object frame, RunTable table, long long base=*)

# the end of a run is below 2 ** 64, and may not be below 2 ** 63
@cython.locals(words="unsigned int[::1]", at=Py_ssize_t, row=Py_ssize_t, fragments="unsigned long long", offset="unsigned long long",
               length="unsigned long long", stride="unsigned long long", shape="unsigned int", headroom="unsigned int",
               kind="unsigned int")
cpdef object check(RunTable table, Py_ssize_t first, unsigned long long size)

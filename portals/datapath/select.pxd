cimport cython

from dro.um.transport.runs cimport RunTable

cdef Py_ssize_t _WORDS, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE, _HEADROOM
cdef unsigned int _NO_HEADROOM

cpdef object take_all(RunTable table, list handles, RunTable out)
@cython.locals(cells="unsigned int[::1]", at=Py_ssize_t, offset="long long", length="long long", low="long long",
               high="long long", start=Py_ssize_t, end=Py_ssize_t)
cpdef tuple extent(RunTable table, Py_ssize_t first=*)
@cython.locals(cells="unsigned int[::1]", at=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t)
cpdef object move(RunTable table, long long distance, Py_ssize_t first=*)
@cython.locals(cells="unsigned int[::1]", source="const unsigned char[::1]", out="unsigned char[::1]", at=Py_ssize_t,
               start=Py_ssize_t, end=Py_ssize_t, to=Py_ssize_t, offset=Py_ssize_t, length=Py_ssize_t, size=Py_ssize_t)
cpdef object compact(object view, RunTable table, Py_ssize_t first, Py_ssize_t most)

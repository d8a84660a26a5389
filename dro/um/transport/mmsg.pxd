cimport cython

cdef unsigned long long _CONTROL

cdef class Sends:
    cdef unsigned long long[::1] _iovs, _headers
    cdef unsigned short[:] _segments
    cdef object _headers_at

    @cython.locals(iovs="unsigned long long[::1]", headers="unsigned long long[::1]", segments="unsigned short[:]",
                   n=Py_ssize_t, number=Py_ssize_t, at=Py_ssize_t, nbytes=Py_ssize_t, segment=Py_ssize_t,
                   base="unsigned long long")
    cpdef tuple send(self, object sock, bytearray buffer, list entries)

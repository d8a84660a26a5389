cimport cython

from dro cimport system_calls

cdef unsigned long long _CONTROL

cdef class DatagramBatch:
    cdef public object view, _memory, _base, _names, _iovs, _headers
    cdef unsigned long long _headers_at
    cdef unsigned long long[:] _name_keys
    cdef unsigned int[:] _lens
    cdef public Py_ssize_t count, stride, _overflow, _wish
    cdef public list lengths, offsets, senders

    cpdef object _set_stride(self, Py_ssize_t stride)
    @cython.locals(stride=Py_ssize_t, first=Py_ssize_t, is_equal=bint, longest=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t,
                   n=Py_ssize_t, lens="unsigned int[:]", names="unsigned long long[:]")
    cpdef object receive(self, object fd, Py_ssize_t most=*)

cdef class Sends:
    cdef unsigned long long[::1] _iovs, _headers
    cdef unsigned short[:] _segments
    cdef object _name, _name_at
    cdef unsigned long long _headers_at
    cdef Py_ssize_t _names

    @cython.locals(iovs="unsigned long long[::1]", headers="unsigned long long[::1]", segments="unsigned short[:]",
                   n=Py_ssize_t, number=Py_ssize_t, at=Py_ssize_t, nbytes=Py_ssize_t, segment=Py_ssize_t,
                   base="unsigned long long", sent=Py_ssize_t)
    cpdef tuple send(self, object sock, object buffer, list entries, object to=*)

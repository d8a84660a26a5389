cimport cython

from dro cimport system_calls

cdef Py_ssize_t _RESERVED, _COMMITTED
cdef long long _ALIGN

cdef class RingWriter:
    cdef public object path, incarnation, queues, mv, needs, _area, _fd, _whole
    cdef unsigned long long[::1] _cells
    cdef public long long capacity, data_at, extent, _next, _reserved, _limit, _given_back_at
    cdef public bint _had_backlog

    cpdef long long left(self, long long pos) except -1
    @cython.locals(pos="long long")
    cpdef long long place(self, long long nbytes) except -1
    @cython.locals(pos="long long", end="long long")
    cpdef long long reserve(self, long long nbytes) except -1
    cpdef object commit(self, long long end_pos)
    cpdef bint is_overrun(self, long long pos) except -1
    @cython.locals(nbytes=Py_ssize_t)
    cpdef long long write(self, object data) except -1

cdef class RingReader:
    cdef public object path, incarnation, queues, _area, _whole, _data
    cdef const unsigned long long[::1] _cells
    cdef public long long capacity, _reach

    cpdef object copy(self, object pos, object nbytes)
    @cython.locals(committed="long long", start="long long", gone_at="unsigned long long",
                   cells="const unsigned long long[::1]")
    cpdef bint append(self, bytearray buffer, object pos, object nbytes) except -1

cdef class RingWriter:
    cdef public object path, incarnation, queues, mv, needs, _area, _fd, _whole, _cells
    cdef public long long capacity, data_at, extent, _next, _reserved, _limit, _given_back_at
    cdef public bint _had_backlog

    cpdef long long left(self, long long pos) except -1
    cpdef long long place(self, long long nbytes) except -1
    cpdef long long reserve(self, long long nbytes) except -1
    cpdef object commit(self, long long end_pos)
    cpdef bint is_overrun(self, long long pos) except -1
    cpdef long long write(self, object data) except -1

cdef class RingReader:
    cdef public object path, incarnation, queues, _area, _whole, _cells, _data
    cdef public long long capacity, _reach

    cpdef object copy(self, object pos, object nbytes)
    cpdef bint append(self, bytearray buffer, object pos, object nbytes) except -1

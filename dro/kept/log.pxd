cimport cython

cdef Py_ssize_t _HEAD_BYTES
cdef object _pack_into, _unpack_from

cdef class SharedLog:
    cdef public object path, _fd, _area, _mv, _turn, _row
    cdef public unsigned long long _capacity, _extent, _begin, _end, _last, _first, _after, _mark, _reserved
    cdef public Py_ssize_t _newest_bytes
    cdef unsigned int[::1] _cells

    cpdef bint append(
        self, unsigned long long first, Py_ssize_t count, Py_ssize_t size, Py_ssize_t payload, object data,
        unsigned long long after
    ) except -1
    cpdef bint append_mixed(
        self, unsigned long long first, object ends, object payloads, object data, unsigned long long after
    ) except -1
    @cython.locals(most="unsigned long long", at="unsigned long long", offset="unsigned long long")
    cpdef object reserve(self, Py_ssize_t nbytes, Py_ssize_t count=*)
    @cython.locals(count=Py_ssize_t, nbytes=Py_ssize_t, paid="unsigned int", begin=Py_ssize_t, cell=Py_ssize_t,
                   number=Py_ssize_t, cells="unsigned int[::1]")
    cpdef object commit_mixed(
        self, unsigned long long first, object ends, object payloads, unsigned long long after
    )
    @cython.locals(at="unsigned long long", nbytes=Py_ssize_t, is_first=bint, back="unsigned long long")
    cpdef object _commit(
        self, unsigned long long first, Py_ssize_t count, Py_ssize_t size, unsigned int payload, Py_ssize_t data,
        Py_ssize_t behind_head, unsigned long long after
    )
    @cython.locals(begin="unsigned long long")
    cpdef object _make_room(self, unsigned long long end)
    cpdef object newest(self)
    cpdef object cut(self, Py_ssize_t count, unsigned long long after)
